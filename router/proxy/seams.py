"""What the data plane needs of the core: narrow Protocols, held against the real classes by a typing test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from router.fleet.replica import Replica
from router.kv.extra_keys import Lora
from router.kv.schemes import Scheme
from router.placement import Placement
from router.request.prompt import Prompt
from router.scheduling.decision import Decision, Outcome
from router.scheduling.wishes import NO_WISHES, Wishes
from router.telemetry.recorder import RequestFacts

Clock = Callable[[], float]
"""Monotonic seconds."""


class Reader(Protocol):
    """Understands bodies. Thread-safe; never raises for a client's body.

    Attributes:
        tells_conversations: Whether prompts tell which conversation they are of.
    """

    tells_conversations: bool

    def read(self, path: str, body: bytes, drafted: Callable[[Prompt], None] | None = None) -> Prompt:
        """Return what the body says; `drafted` gets it before its tokens are known."""

    def quick(self, path: str, body: bytes, inline_bytes: int) -> Prompt | None:
        """Return what `read` would if that takes a moment; `inline_bytes` is how much may be tokenised."""

    def facts(self, path: str, body: bytes) -> Prompt:
        """Return what the body says besides its prompt."""


class Places(Protocol):
    """Chooses replicas and keeps count of what runs there."""

    def place(
        self,
        prompt: Prompt,
        request_id: str,
        now_s: float,
        excluded: Collection[str] = (),
        wishes: Wishes = NO_WISHES,
    ) -> Placement:
        """Choose and reserve; raises ModelNotFoundError or NoReplicaError."""

    def first_token(self, placement: Placement, now_s: float) -> None:
        """The answer began."""

    def finish(self, placement: Placement, now_s: float, outcome: Outcome) -> None:
        """The request ended there."""


class Health(Protocol):
    """Takes note of how replicas answer, and knows what they serve."""

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """All replicas by id."""

    def sole_model(self) -> str | None:
        """The base model that a request without a model is for, if there is one alone."""

    def namings(self, model: str | None) -> Sequence[tuple[Scheme, Lora | None]]:
        """How the units that serve a model name its blocks. Called from threads."""

    def max_model_len(self, name: str) -> int | None:
        """Return a model's longest prompt and answer together, in tokens; None where its replicas don't agree."""

    def failed(self, replica_id: str, now_s: float, *, refused_connection: bool = False) -> bool:
        """Not connected, broken off, timed out, 502 to 504; tells whether this ejected it."""

    def succeeded(self, replica_id: str) -> None:
        """A good answer."""


class Records(Protocol):
    """Metrics, decisions, access log."""

    def accepted(self) -> None:
        """A request came in; `finished` follows exactly once."""

    def prompt_read(self, seconds: float, reason: str | None) -> None:
        """It was read, or not understood."""

    def remote_tokenized(self, result: str) -> None:
        """A replica was to tokenise it."""

    def placed(self, decision: Decision, seconds: float) -> None:
        """A replica was chosen."""

    def retried(self, reason: str) -> None:
        """Another attempt is made."""

    def queue_changed(self, waiting: int) -> None:
        """So many requests wait for a replica with room now."""

    def queue_left(self, waited_s: float) -> None:
        """A request waits no more, for whatever reason."""

    def ejected(self) -> None:
        """A replica was ejected."""

    def finished(self, placement: Placement | None, outcome: Outcome, facts: RequestFacts) -> None:
        """It ended."""
