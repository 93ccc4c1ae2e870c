"""Mistral's chat encoding message by message: what was encoded before is looked up, and the new message costs alone.

mistral-common turns a whole conversation into ids anew each time: a millisecond and more for a long chat, whatever is
known of it. But of a plain conversation (perhaps a system prompt, then users and assistants by turns, each with a text)
it encodes every message by itself, by methods of its own that depend on nothing but the message, on whether it is the
first or the last of the user's, and for those two on the tools and the system prompt. So those very methods are asked
for each message once, and the results are joined as the package joins them. Any other conversation is the package's.

`tests/request/test_request_mistral_turns.py` holds it against the package by chance.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from router.request.token_cache import TokenCache

_TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How every tekken so far divides text into words."""
_NEW_LINE = re.compile(r"(?<=\n)(?=[^\s/]|[ \t]+\S)").search
"""Behind a line's end, where the next line begins with at most spaces and tabs before its first character.

A word of that expression that holds a line's end is of the branch for line ends, and ends with the last one of a run of
white space, which is this; or of the branch before it, and goes on behind it with a slash alone, where no text is cut.
And no word looks behind itself; one that looks ahead, for white space, never ends at a line's end, which the branch for
these has taken before. So a text cut here gives the ids of the whole.
"""
_MIN_PIECE_CHARS = 256
_LAST_VERSION = 13  # later ones put settings beside the tools
_TOOLS_KEPT = 64
_ASSISTANT, _USER, _SYSTEM = 0, 1, 2


def pieces_of(text: str) -> list[str]:
    """Return a text cut at ends of lines, into pieces of `_MIN_PIECE_CHARS` and more but for the last."""
    pieces, start = [], 0
    while found := _NEW_LINE(text, start + _MIN_PIECE_CHARS):
        pieces.append(text[start : found.start()])
        start = found.start()
    pieces.append(text[start:])
    return pieces


def can_be_cut(tokenizer: Any) -> bool:
    """Whether `pieces_of` is sure to give the ids of the whole with one of the package's tokenizers."""
    return getattr(getattr(tokenizer, "_model", None), "_pat_str", None) == _TEKKEN_PATTERN


@dataclass(frozen=True, slots=True)
class Turns:
    """A plain conversation.

    Attributes:
        contents: The texts of the messages that have ids of their own: users and assistants by turns, and before them
            the system prompt, where it is one of these.
        keys: What the ids of each are kept under.
        first: The place of the first user's message.
        system: The system prompt, where it is encoded with a user's message.
        tools: The package's form of the tools.
    """

    contents: Sequence[str]
    keys: Sequence[bytes]
    first: int
    system: str | None
    tools: Any


class TurnEncoder:
    """Encodes plain conversations. Safe to use from several threads."""

    def __init__(self, mistral: Any, version: int, cache: TokenCache, namespace: int) -> None:
        """Wrap a tokenizer of the package.

        Args:
            mistral: A `MistralTokenizer`.
            version: The number of its version.
            cache: Where the messages' ids are kept.
            namespace: Of this tokenizer's own; its bits 2 and 3 are changed here.
        """
        from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        self.alone = threading.local()
        """Has `on` while a message is encoded whose text need not be kept: its ids are, as the message's."""
        self._instruct = mistral.instruct_tokenizer
        self._validate = mistral._chat_completion_request_validator.validate_request
        self._request: Callable[..., Any] = ChatCompletionRequest.from_openai
        self._assistant, self._user, self._system = AssistantMessage, UserMessage, SystemMessage
        self._is_followed = version <= _LAST_VERSION
        self._system_apart = version >= 7
        self._cache = cache
        self._namespace = namespace
        self._tools: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def turns(self, items: Sequence[dict[str, Any]], tools: Any) -> Turns | None:
        """Return a conversation as turns; None where it is not plain.

        Args:
            items: The messages, each with its role.
            tools: The tools as the engine hands them on.
        """
        if not self._is_followed or not self._cache.limit_bytes:
            return None
        contents = _plain(items)
        if contents is None:
            return None
        try:
            system = contents.pop(0) if len(contents) % 2 == 0 else None
            known, context = (None, b"") if tools is None else self._known_tools(tools)
        except Exception:  # the package has its own way to say what is wrong
            return None
        first = 0
        if self._system_apart and system is not None:
            contents.insert(0, system)
            first, system = 1, None
        if system is not None:
            context += xxhash.xxh3_128_digest(system.encode(), seed=_SYSTEM)  # no tools spell alike
        try:
            keys = self._keys(contents, first, context)
        except UnicodeEncodeError:
            return None
        return Turns(contents, keys, first, system, known)

    def _keys(self, contents: Sequence[str], first: int, context: bytes) -> list[bytes]:
        """Return the keys; `context` is a digest of what the first and the last user's message depend on besides."""
        keys = [b""] * len(contents)
        places = ((_SYSTEM, slice(0, first)), (_USER, slice(first, None, 2)), (_ASSISTANT, slice(first + 1, None, 2)))
        for kind, which in places:
            keys[which] = self._cache.keys(map(str.encode, contents[which]), self._namespace ^ (kind + 1) << 2)
        if context:
            for place in {first, len(keys) - 1}:
                flags = bytes((place == first, place == len(keys) - 1))
                keys[place] = xxhash.xxh3_128_digest(keys[place] + context + flags)
        return keys

    def encode(self, turns: Turns) -> list[array[int]]:
        """Return the ids of each message.

        Raises:
            Exception: What the package raises.
        """
        return self._cache.encode(
            range(len(turns.contents)), turns.keys, lambda missing: [self._fresh(turns, place) for place in missing]
        )

    def _fresh(self, turns: Turns, place: int) -> list[int]:
        content, instruct = turns.contents[place], self._instruct
        is_first, is_last = place == turns.first, place == len(turns.contents) - 1
        # Tools and a system prompt come again with the next turn's message: their text is kept beside this one's.
        self.alone.on = not ((is_first or is_last) and (turns.system or turns.tools))
        try:
            if place < turns.first:
                return list(instruct.encode_system_message(self._system(content=content))[0])
            if (place - turns.first) % 2:
                return list(instruct.encode_assistant_message(self._assistant(content=content), True))
            more = {"system_prompt": turns.system, "force_img_first": True}
            return list(
                instruct.encode_user_message(self._user(content=content), turns.tools, is_last, is_first, **more)[0]
            )
        finally:
            self.alone.on = False

    def _known_tools(self, tools: Any) -> tuple[Any, bytes]:
        """Return tools as the package has them, once it has found them good, and a digest of them."""
        key = xxhash.xxh3_128_digest(orjson.dumps(tools))
        with self._lock:
            known = self._tools.get(key)
        if known is None:
            request = self._request([{"role": "user", "content": "x"}], tools=tools)
            known = self._validate(request).tools
            with self._lock:
                self._tools[key] = known
                while len(self._tools) > _TOOLS_KEPT:
                    self._tools.popitem(last=False)
        return known, key if known else b""


def _plain(items: Sequence[dict[str, Any]]) -> list[str] | None:
    """Return the texts of a plain conversation's messages; None where it is none."""
    contents = []
    for item in items:
        content = item.get("content")
        if len(item) != 2 or type(content) is not str or not content:
            return None
        contents.append(content)
    roles = [item["role"] for item in items]
    if len(roles) % 2 == 0:
        if not roles or roles[0] != "system":
            return None
        del roles[0]
    is_plain = roles[::2].count("user") == len(roles[::2]) and roles[1::2].count("assistant") == len(roles[1::2])
    return contents if is_plain else None
