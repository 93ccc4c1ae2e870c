"""The simulators' latency model, fitted to what was measured.

    step_s = decode_step_s + decode_request_s * (requests - 1) + prefill tokens / prefill_tokens_per_s
    TTFT of a prompt alone = request_s + decode_step_s + tokens / prefill_tokens_per_s

`request_s` is what a request costs around the engine's steps: HTTP, tokenising, the way to the engine's process. The
simulators don't know it, so it is told apart, and taken into account where the model is held against traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points.

    Attributes:
        at_zero: Its value at 0.
        slope: What it grows by.
        mean_error: Of the points, in shares of their values.
        worst_error: The same of the point that is farthest off.
    """

    at_zero: float
    slope: float
    mean_error: float
    worst_error: float


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Fit a line by least squares of relative errors, so that small values count as much as large ones.

    Raises:
        ValueError: Fewer than two different places, or a value that is not over 0.
    """
    if len({x for x, _ in points}) < 2 or min(y for _, y in points) <= 0:
        raise ValueError(f"a line needs two places and values over 0, not {list(points)}")
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    at_zero = mean_y - slope * mean_x
    errors = [abs(at_zero + slope * x - y) / y for x, y in points]
    return Line(at_zero, slope, sum(errors) / len(errors), max(errors))


@dataclass(frozen=True, slots=True)
class Model:
    """One engine's speed.

    Attributes:
        prefill_tokens_per_s: Prompt tokens that it computes in a second.
        decode_step_s: A step for one request alone.
        decode_request_s: What each further request of the step adds, 0 or more.
        request_s: Around the steps of a request, 0 or more.
        prefill_mean_error: Of the TTFTs that it was fitted to, as a share.
        prefill_worst_error: The worst of these.
        decode_mean_error: Of the steps that it was fitted to, as a share.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    decode_request_s: float
    request_s: float
    prefill_mean_error: float
    prefill_worst_error: float
    decode_mean_error: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def options(self) -> str:
        """Return the options of `warmroute simengine` and `warmroute simulate`."""
        return (
            f"--prefill-tokens-per-s {self.prefill_tokens_per_s:.6g} --decode-step-s {self.decode_step_s:.4g} "
            f"--decode-request-s {self.decode_request_s:.3g}"
        )


def model_of(ttfts_s: Sequence[tuple[int, float]], steps_s: Sequence[tuple[int, float]]) -> Model:
    """Return the model of an engine.

    Args:
        ttfts_s: (tokens, seconds to the first token) of prompts alone that nothing of was cached.
        steps_s: (requests in the batch, seconds a token); one request alone among them.

    Raises:
        ValueError: The time does not grow with the prompt, or too little was measured.
    """
    prefill = fit(ttfts_s)
    if prefill.slope <= 0:
        raise ValueError("longer prompts take no longer: are they cached, or too short to tell?")
    decode = fit([(requests - 1, seconds) for requests, seconds in steps_s])
    decode_step_s = decode.at_zero
    if decode.slope < 0:  # noise around a step that costs the same whatever the batch
        decode_step_s = sorted(seconds for _, seconds in steps_s)[len(steps_s) // 2]
    return Model(
        prefill_tokens_per_s=1 / prefill.slope,
        decode_step_s=decode_step_s,
        decode_request_s=max(0.0, decode.slope),
        request_s=max(0.0, prefill.at_zero - decode_step_s),
        prefill_mean_error=prefill.mean_error,
        prefill_worst_error=prefill.worst_error,
        decode_mean_error=decode.mean_error,
    )
