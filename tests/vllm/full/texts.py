"""Texts and ids drawn at random: plain words, and what tokenizers, JSON and templates stumble over."""

from __future__ import annotations

import random

_WORDS = (
    "the route of a letter through the old post office is known to the clerk who sorts it by town and by street and "
    "keeps a list of names with each bag so that none is lost when the train is late or the road is under water def "
    "return self import class None True 0 12 2026-08-01 3.14159 0x1F snake_case camelCase https://a.example/b?c=d&e=f"
).split()
_ODD = (
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈👍🏽",
    "e\u0301a\u0308o\u0302\u0323",
    "Zürich – „Größe“",  # noqa: RUF001
    "漢字かな交じり文",
    "한국어 문장",
    "שלום עולם",
    "नमस्ते",
    "ﬁ ﷺ Å ①",
    "\u00a0\u2009\u200b\u2028",
    "\t\t  \r\n\n ",
    "<|im_end|>",
    "<|im_start|>system\n",
    "<|endoftext|>",
    "</tools><tool_call>",
    "{{ 7 * 7 }}{% raw %}",
    "<b>&amp;</b> \"quoted\" 'single' \\ back/slash",
    "\x01\x7f",
    "𝕬𝖇𝖈 𐍈",  # noqa: RUF001
)


def text(rng: random.Random, words: int) -> str:
    """Return a text of so many words, one in ten of them odd, with odd spaces now and then."""
    parts = []
    for _ in range(words):
        parts.append(rng.choice(_ODD) if rng.random() < 0.1 else rng.choice(_WORDS))
        parts.append(rng.choice(["  ", "\n", ", ", ".\n\n", ""]) if rng.random() < 0.1 else " ")
    return "".join(parts)


def ids(rng: random.Random, count: int) -> list[int]:
    """Return so many ids of the golden tokenizer's vocabulary; short, middling and special ones are among them."""
    return [rng.choice([rng.randrange(24), rng.randrange(256), rng.randrange(3, 4096)]) for _ in range(count)]
