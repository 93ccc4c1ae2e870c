"""Errors of what runs beside an engine: the agent and the simulated engine.

ReplicaError
|-- UsageError       options or environment can't be used; every problem at once; exit code 2
|-- EngineError      the engine's HTTP side did not answer, or not as expected
"""

from __future__ import annotations

from collections.abc import Sequence


class ReplicaError(Exception):
    """Base of the errors raised on purpose in `replica`."""


class UsageError(ReplicaError):
    """The command was called wrongly. All problems are in it, so that one run shows them all."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class EngineError(ReplicaError):
    """The engine did not answer, or not as expected; trying again later is right.

    Attributes:
        status: HTTP status of its answer; None where there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
