"""The latency model: what follows from measured times, by arithmetic, and what it predicts."""

from __future__ import annotations

import pytest

from loadtest.calibrate.__main__ import main
from loadtest.calibrate.measure import Ask, Timed
from loadtest.calibrate.model import Model, fit, model_of
from loadtest.calibrate.predict import errors, predict


def model(prefill: float = 1_000.0, step: float = 0.02, request: float = 0.0, more: float = 0.0) -> Model:
    return Model(prefill, step, more, request, 0.0, 0.0, 0.0)


def test_a_line_through_points_on_it_is_exact() -> None:
    """y = 2 + 3x."""
    line = fit([(0, 2.0), (1, 5.0), (10, 32.0)])
    assert (line.at_zero, line.slope) == pytest.approx((2.0, 3.0))
    assert line.mean_error == pytest.approx(0.0, abs=1e-12)


def test_errors_are_shares_of_the_values() -> None:
    """Two values at one place, 10% apart, weighted by 1/y^2: the line passes nearer to the smaller one."""
    line = fit([(0, 1.0), (0, 1.1), (10, 2.0)])
    at_zero = (1.0 / 1.0 + 1.1 / 1.21) / (1.0 + 1 / 1.21)
    assert line.at_zero == pytest.approx(at_zero)
    assert line.worst_error == pytest.approx(max(at_zero - 1.0, (1.1 - at_zero) / 1.1))


@pytest.mark.parametrize("points", [[(1, 1.0)], [(1, 1.0), (1, 2.0)], [(0, 0.0), (1, 1.0)]])
def test_too_little_is_refused(points: list[tuple[float, float]]) -> None:
    """One place gives no slope, and a time of nothing no relative error."""
    with pytest.raises(ValueError, match="a line needs"):
        fit(points)


def test_a_model_is_found_again_in_its_own_times() -> None:
    """4,000 tokens/s, 10 ms a step, 1 ms for each further request, 3 ms around a request."""
    ttfts_s = [(tokens, 0.003 + 0.010 + tokens / 4_000) for tokens in (128, 512, 2_048)]
    steps_s = [(batch, 0.010 + 0.001 * (batch - 1)) for batch in (1, 2, 8)]
    found = model_of(ttfts_s, steps_s)
    assert found.prefill_tokens_per_s == pytest.approx(4_000)
    assert (found.decode_step_s, found.decode_request_s, found.request_s) == pytest.approx((0.010, 0.001, 0.003))
    assert found.options() == "--prefill-tokens-per-s 4000 --decode-step-s 0.01 --decode-request-s 0.001"


def test_what_makes_no_sense_is_bounded_or_refused() -> None:
    """Larger batches that seem faster cost nothing more; prompts that take no longer give no speed."""
    assert model_of([(1, 1.0), (9, 2.0)], [(1, 0.011), (4, 0.010), (8, 0.009)]).decode_request_s == 0.0
    with pytest.raises(ValueError, match="longer prompts take no longer"):
        model_of([(128, 0.5), (2_048, 0.4)], [(1, 0.01), (2, 0.01)])


def test_a_request_alone_takes_what_the_model_says() -> None:
    """100 tokens at 1,000/s and a step of 20 ms, 5 ms around it; then two more tokens at 20 ms."""
    [timed] = predict(model(request=0.005), [[Ask(100, 3)]], step_tokens=2_048)
    assert timed.ttft_s == pytest.approx(0.005 + 0.1 + 0.02)
    assert timed.total_s == pytest.approx(0.125 + 0.04)


def test_prompts_longer_than_a_step_take_several() -> None:
    """250 tokens in steps of 100: three steps."""
    [timed] = predict(model(), [[Ask(250, 1)]], step_tokens=100)
    assert timed.ttft_s == pytest.approx(0.25 + 3 * 0.02)


def test_users_share_the_engine() -> None:
    """Two prompts in one step, one further request at 1 ms; each user asks again when it is answered."""
    asked = [[Ask(100, 1), Ask(50, 1)], [Ask(100, 1)]]
    times = predict(model(more=0.001), asked, step_tokens=2_048)
    assert [timed.ttft_s for timed in times] == pytest.approx([0.221, 0.221, 0.07])


def test_errors_tell_by_how_much_the_prediction_is_off() -> None:
    """20% too long for the first token, right for the whole."""
    found = errors([Timed(1.0, 2.0, ())], [Timed(1.2, 2.0, ())])
    assert [each.share for each in found] == pytest.approx([0.2, 0.2, 0.0, 0.0])


def test_an_engine_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, in words; wrong options 2."""
    assert main(["http://127.0.0.1:9", "--model", "tiny"]) == 1
    assert "did not answer" in capsys.readouterr().err
    for words in (["--batches", "2,4"], ["--most-tokens", "8"]):
        with pytest.raises(SystemExit) as ended:
            main(["http://127.0.0.1:9", "--model", "tiny", *words])
        assert ended.value.code == 2
