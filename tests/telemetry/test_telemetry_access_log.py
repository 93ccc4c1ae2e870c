"""The access log: a line a request, on one line whatever clients named, none lost at the end."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest

from router.scheduling.decision import Decision, Outcome
from router.telemetry import line_writer
from router.telemetry.access_log import AccessLog, RequestFacts

FACTS = RequestFacts("q", "POST", "/v1/completions", "tiny", stream=True)
PLACED = Decision("q", 0.0, "tiny", "cost", 112, 1.0, [], {}, "r0/0", 5.0, 48, 64, "owner", "exact")


def outcome(**changes: object) -> Outcome:
    values = {"status": 200, "error": None, "prompt_tokens": 112, "cached_tokens": 32, "completion_tokens": 3}
    return Outcome(**{**values, "ttft_s": 0.1, "total_s": 0.25, **changes})


def lines(log: AccessLog, stream: io.StringIO) -> list[str]:
    log.writer.flush()
    return stream.getvalue().splitlines()


def test_a_line_tells_the_decision_in_brief() -> None:
    """Unit, match and outcome are in it, under the names that the document gives; times to the microsecond."""
    stream = io.StringIO()
    log = AccessLog(stream, "json")
    log.write(PLACED, outcome(), FACTS)
    (line,) = map(json.loads, lines(log, stream))
    assert time.time() - time.mktime(time.strptime(line.pop("at")[:19], "%Y-%m-%dT%H:%M:%S")) < 86_400
    assert line == {
        "level": "info",
        "logger": "warmroute.access",
        "request_id": "q",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "model": "tiny",
        "stream": True,
        "total_s": 0.25,
        "ttft_s": 0.1,
        "unit": "r0/0",
        "policy": "cost",
        "why": "owner",
        "trust": "exact",
        "prompt_tokens": 112,
        "matched_tokens": 48,
        "cached_tokens": 32,
    }


def test_both_formats_hold_the_same_fields() -> None:
    """A line for people has the names and values of the line for machines; what is not known is in neither."""
    plain, machine = io.StringIO(), io.StringIO()
    retried = Decision("q", 0.0, "tiny", "cost", 9, 1.0, [], {}, "r0/0", 5.0, 0, 0, "random", "exact", "bad_json")
    retried.retries = ["r1", "r2"]
    cases = [
        (PLACED, outcome(), FACTS),
        (retried, outcome(error="upstream_broken", aborted=True, ttft_s=None, cached_tokens=None), FACTS),
        (None, outcome(status=None, error="overloaded"), RequestFacts("q", "GET", "/x")),
    ]
    logs = AccessLog(plain, "console"), AccessLog(machine, "json")
    for case in cases:
        for log in logs:
            log.write(*case)
    for people, parsed in zip(lines(logs[0], plain), map(json.loads, lines(logs[1], machine)), strict=True):
        clock, level, logger, *words = people.split()
        assert (len(clock), level, logger) == (len("12:00:00.000"), "info", "access:")
        del parsed["at"], parsed["level"], parsed["logger"]
        fields = dict(word.split("=", 1) for word in words)
        assert {name: float(value) if name.endswith("_s") else value for name, value in fields.items()} == {
            name: value if name.endswith("_s") else str(value) for name, value in parsed.items()
        }
    assert "retries=2" in plain.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_forged_id_path_or_model_stays_inside_its_line(log_format) -> None:
    """Control and direction characters become question marks; long names are cut."""
    stream = io.StringIO()
    log = AccessLog(stream, log_format)
    for _ in range(2):  # seen for the first time, and seen before
        log.write(None, outcome(), RequestFacts("a\r\nb \x1b[31m", "POST", "/v1/x\ny", "ti\u202eny" + "n" * 9_999))
    first, second = lines(log, stream)
    assert all(name in first for name in ("a??b ?[31m", "/v1/x?y", "ti?ny"))
    assert first[40:] == second[40:]
    assert len(first) < 1_000


def test_lines_are_written_soon_by_themselves() -> None:
    """Nobody has to ask: the writer takes what waits within a moment, again and again."""
    written = threading.Event()

    class Stream(io.StringIO):
        def flush(self) -> None:
            written.set()

    log = AccessLog(Stream())
    for _ in range(3):
        written.clear()
        log.write(None, outcome(), FACTS)
        assert written.wait(10)
    log.close()


def test_a_line_that_cannot_be_made_costs_no_other() -> None:
    """Neither its request nor the writer's thread ends with it, and the lost are told."""
    stream = io.StringIO()
    log = AccessLog(stream)
    bad = RequestFacts("q", "POST", None)  # type: ignore[arg-type]
    for facts in (FACTS, bad, FACTS, bad, FACTS):
        log.write(None, outcome(), facts)
    log.close()
    told = stream.getvalue().splitlines()
    assert sum("request_id=q" in line for line in told) == 3
    assert sum(int(line.split()[0]) for line in told if "were lost" in line) == 2


def test_no_line_is_lost_between_many_writes_and_the_end() -> None:
    """Lines that come while batches are taken out are all there after `close`, in order."""
    stream = io.StringIO()
    log = AccessLog(stream, "json")
    for number in range(20_000):
        log.write(None, outcome(), RequestFacts(str(number), "POST", "/v1/completions"))
    log.close()
    assert [int(json.loads(line)["request_id"]) for line in stream.getvalue().splitlines()] == list(range(20_000))


def test_a_standard_error_that_takes_nothing_holds_bounded_memory_and_no_request(monkeypatch) -> None:
    """Lines over the bound are lost and counted, without waiting; the count is told once there is room."""
    monkeypatch.setattr(line_writer, "MAX_LINES", 10)
    stuck, go_on = threading.Event(), threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            stuck.set()
            go_on.wait(30)
            return super().write(text)

    stream = Stream()
    log = AccessLog(stream)
    log.write(None, outcome(), FACTS)
    assert stuck.wait(10)
    for _ in range(25):
        log.write(None, outcome(), FACTS)
    assert log.writer.lost == 15
    go_on.set()
    log.close()
    assert len(stream.getvalue().splitlines()) == 1 + 10 + 1
    assert "15 lines of the access log were lost" in stream.getvalue()


def test_a_broken_standard_error_fails_no_request() -> None:
    """The access log gives up quietly when its stream is closed."""
    stream = io.StringIO()
    log = AccessLog(stream)
    stream.close()
    log.write(None, outcome(), FACTS)
    log.writer.flush()
    assert log.writer.broken
    log.close()
