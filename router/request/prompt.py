"""What the router understood of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from router.kv.extra_keys import ExtraKeys, Lora, MediaItem
from router.kv.hashes import chain
from router.kv.schemes import Scheme, UnknownRootError
from router.native.subclassing import mypyc_attr
from router.request.reasons import Reason
from router.request.trail import Trail

ChainKey = tuple[Scheme, Lora | None, str | None, tuple[MediaItem, ...]]
"""What a chain depends on besides the tokens: scheme, adapter, salt, media."""
_MAX_CHAINS = 16
"""Chains kept of one prompt. A fleet has a scheme or two; past ones go when there are too many."""


class Chains(dict[ChainKey, list[int]]):
    """The chains of one prompt that were computed.

    Attributes:
        grown: Told how many blocks a new one has, where the prompt is kept for others.
        latest: The chain that was asked for last, with its scheme, adapter, salt and media: by far the most asked, and
            to look it up takes longer than all else where nothing is new, since schemes are hashed by their fields.
    """

    __slots__ = ("grown", "latest")

    def __init__(self) -> None:
        super().__init__()
        self.grown: Callable[[int], None] | None = None
        self.latest: tuple[Scheme | None, Lora | None, str | None, tuple[MediaItem, ...], list[int]] = (
            None,
            None,
            None,
            (),
            [],
        )


class Kind(StrEnum):
    """Which API a request is of."""

    CHAT = "chat"
    COMPLETION = "completion"
    POOLING = "pooling"
    OTHER = "other"


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True)
class Prompt:
    """One request's prompt, and what else placement and accounting need of its body.

    Attributes:
        kind: The API.
        model: The name that the client sent: a model's or an adapter's; None when it sent none.
        stream: Whether the answer is a stream of events.
        token_ids: The ids that the engine will compute, of the first prompt when there are several; those before the
            first image, sound or video when it has media (then `reason` is MEDIA); None when the request was not
            understood (then `reason` says why).
        tokens: Length of the prompt in tokens; an estimate (body bytes / 4) when it was not understood to its end.
        salt: `cache_salt`, if any.
        media: Images and the like whose place and length are known, in order.
        reads_cache: False when the engine reads nothing from its prefix cache for it (it asks for logprobs of the
            prompt) though it stores the blocks.
        max_tokens: The limit of the answer in tokens that the client set, if any.
        priority: That the client asks for, if any; lower goes first.
        include_usage: Whether a stream ends with a usage chunk (`stream_options.include_usage`).
        reason: Why `token_ids` is None or ends before the prompt does; else None.
        n: Answers asked for, 1 or more.
        other_tokens: Tokens of the further prompts of a batch, estimated where they are text.
        conversation: What names the conversation that it is of, where that is asked for; else None.
        trail: Where its chain is looked up and kept; None: it is hashed whole.
        render_s: What its chat template took, where it was rendered for this request.
    """

    kind: Kind
    model: str | None
    stream: bool
    token_ids: Sequence[int] | None = field(repr=False)
    tokens: int
    salt: str | None = field(default=None, repr=False)
    media: tuple[MediaItem, ...] = ()
    reads_cache: bool = True
    max_tokens: int | None = None
    priority: int | None = None
    include_usage: bool = False
    reason: Reason | None = None
    n: int = 1
    other_tokens: int = 0
    conversation: bytes | None = field(default=None, repr=False)
    trail: Trail | None = field(default=None, repr=False, compare=False)
    render_s: float = field(default=0.0, compare=False)
    chains: Chains = field(default_factory=Chains, init=False, repr=False, compare=False)

    def until_now(self, reason: Reason) -> Prompt:
        """Return what is known of the prompt, since its tokens are not known in time, for this reason.

        That is what a draft of it holds (`PromptReader.read`). Safe while another thread still reads it.
        """
        if self.reason is Reason.DEADLINE:
            self.reason = reason  # a draft with tokens is nobody else's
            return self
        return replace(self, token_ids=None, trail=None, media=(), reason=self.reason or reason)

    def again(self) -> Prompt:
        """Return the same prompt for another request: its own to change, with the chains that both compute shared."""
        # Field by field: `dataclasses.replace` takes ten times as long, and this is on every request's path.
        copy = Prompt.__new__(Prompt)
        copy.kind = self.kind
        copy.model = self.model
        copy.stream = self.stream
        copy.token_ids = self.token_ids
        copy.tokens = self.tokens
        copy.salt = self.salt
        copy.media = self.media
        copy.reads_cache = self.reads_cache
        copy.max_tokens = self.max_tokens
        copy.priority = self.priority
        copy.include_usage = self.include_usage
        copy.reason = self.reason
        copy.n = self.n
        copy.other_tokens = self.other_tokens
        copy.conversation = self.conversation
        copy.trail = self.trail
        copy.chains = self.chains
        copy.render_s = 0.0
        return copy

    def chain(self, scheme: Scheme, lora: Lora | None, pause: Callable[[], None] | None = None) -> list[int]:
        """Return the identities of the prompt's full blocks under a scheme and adapter, computed once.

        Empty when the prompt was not understood, or when the scheme's root can't be known. The list is shared: do not
        change it.

        Args:
            pause: As `router.kv.hashes.chain_digests` has it.
        """
        if self.token_ids is None:
            return []
        chains = self.chains
        latest = chains.latest
        if latest[0] is scheme and latest[1] is lora and latest[2] is self.salt and latest[3] is self.media:
            return latest[4]
        key = (scheme, lora, self.salt, self.media)
        known = chains.get(key)
        if known is None:
            extra = ExtraKeys(lora=lora, salt=self.salt, media=self.media)
            try:
                if self.trail is None or self.media:
                    known = chain(self.token_ids, scheme, extra, pause)
                else:
                    known = self.trail.chain(self.token_ids, scheme, extra, pause)
            except UnknownRootError:
                known = []
            if len(chains) >= _MAX_CHAINS:
                chains.clear()
            chains[key] = known
            if chains.grown is not None:
                chains.grown(len(known))
        chains.latest = (*key, known)
        return known
