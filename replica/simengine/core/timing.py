"""How long a step takes on the hardware that is imagined.

    step_s = decode_step_s + decode_request_s * (requests of the step - 1)
             + prefill tokens of the step / prefill_tokens_per_s

One forward pass has a price of its own (weights are read once, whatever the batch), which paces decoding; prompt tokens
add to it in proportion, and so do the requests beside the first (sampling, bookkeeping: 0 unless it is measured, as
`python -m loadtest.calibrate` does). Attention's growth with the context is left out: prefix routing is about tokens
not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from replica.simengine.core.scheduler import Step


@dataclass(frozen=True, slots=True)
class Timing:
    """Speed of one engine.

    Attributes:
        prefill_tokens_per_s: Prompt tokens a second, above 0.
        decode_step_s: Seconds a step takes before any prompt token, 0 or more.
        decode_request_s: Seconds that each request beside the first adds to a step, 0 or more.
    """

    prefill_tokens_per_s: float = 8000.0
    decode_step_s: float = 0.025
    decode_request_s: float = 0.0

    def step_s(self, step: Step) -> float:
        """Return the seconds from a step's start to its tokens."""
        return self.decoding_s(len(step.work)) + step.prefill_tokens / self.prefill_tokens_per_s

    def decoding_s(self, requests: int) -> float:
        """Return the seconds of a step that gives each of so many requests a token."""
        return self.decode_step_s + self.decode_request_s * max(0, requests - 1)
