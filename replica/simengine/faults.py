"""What can be made to go wrong, by name: the one table of `--fault NAME=VALUE`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from replica.errors import UsageError


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one engine; 0 is off. Seconds are real ones, whatever the time scale."""

    drop_events: int = 0
    """Each batch whose number divides by it is not sent to subscribers (replay still has it)."""
    replay_batches: int = 0
    """Replay has so many of the newest batches, and not 10,000."""
    event_delay_s: float = 0.0
    """Batches leave that much later."""
    first_byte_delay_s: float = 0.0
    """Answers of /v1 begin that much later."""
    refuse: int = 0
    """Completions and chats are answered with this HTTP status (as 503) and nothing is computed."""
    break_after_tokens: int = 0
    """A stream's connection is cut after so many tokens."""
    die_after_tokens: int = 0
    """The process ends at once, with exit code 1, after so many tokens of all its answers together."""
    unhealthy: int = 0
    """/health answers with this HTTP status."""


NAMES = tuple(each.name for each in fields(Faults))


def parse(settings: list[str]) -> Faults:
    """Read `NAME=VALUE` settings.

    Raises:
        UsageError: A name is not in the table or a value is not a number of 0 or more.
    """
    values: dict[str, float] = {}
    problems = []
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if name not in NAMES:
            problems.append(f"--fault: {name!r} is not known; there are {', '.join(NAMES)}")
        elif value < 0:
            problems.append(f"--fault: {name} needs a number of 0 or more, not {text!r}")
        else:
            values[name] = value
    if problems:
        raise UsageError(problems)
    return Faults(**{name: value if name.endswith("_s") else int(value) for name, value in values.items()})  # type: ignore[arg-type]
