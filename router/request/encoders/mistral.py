"""Mistral's tokenizers and chat encoding: tekken and SentencePiece, by the package mistral-common.

There is no template: the package turns messages into ids by itself, and text in a message never becomes a special
token. Follows vLLM 0.32 (`--tokenizer-mode mistral`), which asks transformers' MistralCommonBackend.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from router.request import bodies, messages
from router.request.chat import CHAT, MAX_CHARS, Dialect
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.mistral_turns import TurnEncoder, Turns, can_be_cut, pieces_of
from router.request.reasons import NotUnderstoodError, Reason
from router.request.token_cache import TokenCache
from router.request.token_ids import packed
from router.request.tokens import ALL, Keep, Tokens, TooMuchFreshError
from router.request.trail import Trail, follow, trail_of_ids

_FILES = re.compile(r"tekken(_\d+)?\.json|.*\.model\.v\d+(m\d+)?|tokenizer\.model\.v\d+(m\d+)?")
_ID_CHARS = 9  # Mistral's calls have ids of this length: the engine keeps the last ones of a longer id
_EFFORT_VERSION = 15  # tokenizers from this version on are told the reasoning effort
_REFUSED = ("chat_template", "chat_template_kwargs")
_CHARS_PER_TOKEN = 4  # a usual figure for English text; only an estimate is made of it
_TURNS = b"\2"  # begins the keys of a chat by its messages


class MistralText:
    """A Mistral model's text (`router.request.text.Text`). Safe to use from several threads."""

    def __init__(self, file: Path, cache: TokenCache | None = None, max_chars: int = MAX_CHARS) -> None:
        """Load a tokenizer.

        Args:
            file: `tekken.json` or `tokenizer.model.v3` and the like.
            cache: Where tokenised text is kept; None: nowhere.
            max_chars: Longest text that is encoded.

        Raises:
            TokenizerError: It can't be read, or the package is missing.
        """
        try:
            from mistral_common.protocol.instruct.request import ChatCompletionRequest
            from mistral_common.protocol.instruct.validator import ValidationMode
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        except ImportError:
            raise TokenizerError(f"{file} needs the package mistral-common: pip install 'warmroute[mistral]'") from None
        try:
            self._mistral = MistralTokenizer.from_file(str(file), mode=ValidationMode.test)
        except ImportError as error:
            raise TokenizerError(f"{file} needs another package ({error}): pip install 'warmroute[mistral]'") from None
        except Exception as error:  # the package raises many kinds
            raise TokenizerError(f"{file} can't be read ({error}): copy it again from the model") from None
        self._instruct: Any = self._mistral.instruct_tokenizer
        self._request: Callable[..., Any] = ChatCompletionRequest.from_openai
        self._tokenizer: Any = self._mistral.instruct_tokenizer.tokenizer
        self._version = int(re.sub(r"\D.*", "", str(self._tokenizer.version.value).removeprefix("v")) or 0)
        self._cache = cache or TokenCache(0)
        self.max_chars = max_chars
        self.timeless = True
        self._encode: Callable[..., list[int]] = self._tokenizer.encode
        self._namespace = secrets.randbits(62) << 2  # a number of its own: the lowest bits are for the flags
        self._cuts = can_be_cut(self._tokenizer)
        self._turns = TurnEncoder(self._mistral, self._version, self._cache, self._namespace)
        # The package decodes every chat again, to show it; nobody looks at that here, and it is most of the time.
        setattr(self._instruct, "decode", lambda **_: "")  # noqa: B010
        # The chat encoding asks the tokenizer for each message's text: those are looked up.
        setattr(self._tokenizer, "encode", self._remembered)  # noqa: B010 - to assign to a method is no typed thing

    @property
    def merges_inline_system(self) -> bool:
        """Whether `/v1/messages` puts later system messages into the first: always, without a template."""
        return True

    @property
    def effort_without_thinking(self) -> str:
        """Raise: what the engine finds out by rendering depends on the tokenizer's version.

        Raises:
            NotUnderstoodError: UNSUPPORTED.
        """
        raise NotUnderstoodError(Reason.UNSUPPORTED)

    def render_chat(self, body: Mapping[str, Any], dialect: Dialect = CHAT) -> str:
        """Raise: a chat has no text here.

        Raises:
            NotUnderstoodError: UNSUPPORTED.
        """
        raise NotUnderstoodError(Reason.UNSUPPORTED)

    def chat(
        self, body: Mapping[str, Any], add_special_tokens: bool, keep: Keep = ALL, dialect: Dialect = CHAT
    ) -> Tokens:
        """Return the tokens of a chat completion body.

        Raises:
            NotUnderstoodError: With the reason.
        """
        if any(body.get(name) is not None for name in _REFUSED):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        given = messages.list_of_messages(body.get("messages"))
        tools = messages.tools(body.get("tools"))
        if not bodies.flag(body.get("continue_final_message"), default=False):
            turns = self._turns.turns(given, tools)
            if turns is not None:
                return self._by_turns(turns, keep)
        if keep.fresh_bytes is not None:
            raise TooMuchFreshError  # the package's own work on a long chat takes a millisecond and more
        items = [_prepared(item) for item in given]
        if sum(_chars(item) for item in items) > self.max_chars:
            raise NotUnderstoodError(Reason.TOO_LONG)
        continues = bodies.flag(body.get("continue_final_message"), default=False)
        generates = bodies.flag(body.get("add_generation_prompt"), default=True)
        is_assistant = bool(items) and items[-1]["role"] == "assistant"
        if not items or (generates and (continues or is_assistant)) or (continues and not is_assistant):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        options: dict[str, Any] = {}
        if self._version >= _EFFORT_VERSION and body.get("reasoning_effort") is not None:
            options["reasoning_effort"] = body["reasoning_effort"]
        try:
            request = self._request(items, tools=tools, continue_final_message=continues, **options)
            ids = list(self._mistral.encode_chat_completion(request).tokens)
        except NotUnderstoodError:
            raise
        except Exception:  # the package raises many kinds; the engine answers each with a 400
            raise NotUnderstoodError(Reason.TEMPLATE_ERROR) from None
        if keep.tokens is not None:
            return Tokens(keep.of(ids))
        return Tokens(ids, trail_of_ids(ids, self._cache))

    def _by_turns(self, turns: Turns, keep: Keep) -> Tokens:
        """Return the tokens of a plain conversation; only messages that are new are encoded."""
        chars = sum(map(len, turns.contents))
        if chars > self.max_chars:
            raise NotUnderstoodError(Reason.TOO_LONG)
        keys, start = turns.keys, self._instruct.start()
        if keep.known is not None and keep.tokens is None:
            known = self._cache.known(keys)
            if 0 < len(known) < len(keys):
                tokens = self._joined(start, known, keys)
                keep.known(replace(tokens, stopped=Reason.DEADLINE, estimate=chars // _CHARS_PER_TOKEN))
        if keep.fresh_bytes is not None:
            missing = [turns.contents[place] for place in self._cache.missing(keys)]
            if sum(len(content.encode()) for content in missing) + len(turns.system or "") > keep.fresh_bytes:
                raise TooMuchFreshError
        try:
            found = self._turns.encode(turns)
        except NotUnderstoodError:
            raise
        except Exception:  # the package raises many kinds
            raise NotUnderstoodError(Reason.TEMPLATE_ERROR) from None
        tokens = self._joined(start, found, keys)
        return tokens if keep.tokens is None else Tokens(keep.of(list(tokens.ids)))

    def _joined(self, start: Sequence[int], found: Sequence[Sequence[int]], keys: Sequence[bytes]) -> Tokens:
        ids, ends = packed(start), []
        for piece in found:
            ids.extend(piece)
            ends.append(len(ids))
        return Tokens(ids, Trail(follow(keys[: len(ends)], _TURNS), ends, self._cache))

    def tokens(self, text: str, add_special_tokens: bool, keep: Keep = ALL) -> Tokens:
        """Return the tokens of a text.

        Raises:
            NotUnderstoodError: TOO_LONG, TOKENIZER_ERROR.
        """
        if len(text) > self.max_chars:
            raise NotUnderstoodError(Reason.TOO_LONG)
        if keep.fresh_bytes is not None:
            raise TooMuchFreshError
        try:
            ids = list(self._tokenizer.encode(text, add_special_tokens, False))
        except NotUnderstoodError:
            raise
        except Exception:
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
        if keep.tokens is not None:
            if keep.side is not None or not add_special_tokens or not keep.tokens:
                return Tokens(keep.of(ids))
            # By the tokenizer's own side BOS is always kept.
            return Tokens([ids[0], *Keep(keep.tokens - 1, None, keep.default_side).of(ids[1:])])
        return Tokens(ids, trail_of_ids(ids, self._cache))

    def encode(
        self, text: str, add_special_tokens: bool, keep_tokens: int | None = None, keep_side: str | None = None
    ) -> list[int]:
        """Return the ids of `tokens`."""
        return [*self.tokens(text, add_special_tokens, Keep(keep_tokens, keep_side)).ids]

    def _remembered(self, s: str, bos: bool, eos: bool) -> list[int]:
        """Encode as the tokenizer does; the same text and flags give the same ids."""
        if getattr(self._turns.alone, "on", False):
            return self._encode(s, bos, eos)
        if self._cuts:
            return self._by_lines(s, bos, eos)
        namespace = self._namespace ^ (bos | eos << 1)
        try:
            keys = self._cache.keys([s.encode()], namespace)
        except UnicodeEncodeError:
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
        [ids] = self._cache.encode([s], keys, lambda pieces: [self._encode(pieces[0], bos, eos)])
        return ids.tolist()

    def _by_lines(self, text: str, bos: bool, eos: bool) -> list[int]:
        """Return the ids of a text that may be cut: what came before in another text is not encoded again."""
        pieces = pieces_of(text)
        try:
            keys = self._cache.keys(map(str.encode, pieces), self._namespace)
        except UnicodeEncodeError:
            raise NotUnderstoodError(Reason.TOKENIZER_ERROR) from None
        ids = [self._tokenizer.bos_id] if bos else []
        for found in self._cache.encode(
            pieces, keys, lambda missing: [self._encode(piece, False, False) for piece in missing]
        ):
            ids += found
        return [*ids, self._tokenizer.eos_id] if eos else ids


def find(folder: Path) -> Path | None:
    """Return the tokenizer file in a folder, or that is the path itself; None when there is none.

    Of several the newest by name is taken, tekken first, as mistral-common does.
    """
    if folder.is_file():
        return folder if _FILES.fullmatch(folder.name) else None
    found = sorted(file for file in folder.iterdir() if _FILES.fullmatch(file.name))
    tekken = [file for file in found if file.suffix == ".json"]
    return (tekken or found)[-1] if found else None


def _prepared(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the engine hands it on: calls always there, ids short."""
    item = dict(item)
    if item["role"] == "assistant":
        calls = item.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise NotUnderstoodError(Reason.BAD_REQUEST)
        item["tool_calls"] = [{**call, "id": str(call.get("id", ""))[-_ID_CHARS:]} for call in calls]
    elif item["role"] == "tool" and isinstance(item.get("tool_call_id"), str):
        item["tool_call_id"] = item["tool_call_id"][-_ID_CHARS:]
    if isinstance(item.get("content"), list):
        messages.text_parts_only(item["content"])
    return item


def _chars(item: dict[str, Any]) -> int:
    content = item.get("content")
    if isinstance(content, list):
        return sum(len(part.get("text", "")) for part in content if isinstance(part, dict))
    return len(content) if isinstance(content, str) else 0
