"""Bodies with pictures, drawn at random: several kinds of PNG, with `uuid` and without, in each chat API's own form."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Any

from tests.vllm.full.texts import text

Body = dict[str, Any]
_SAMPLES = {0: 1, 2: 3, 3: 1, 6: 4}
"""Samples a pixel by PNG's colour type: grey, RGB, palette, RGBA. All but RGB are converted by the engine."""


def png(rng: random.Random) -> bytes:
    """Return a PNG of one colour, of 8 to 300 pixels a side: the engine cuts it into 1 to 16 tiles and a whole."""
    width, height, kind = rng.randint(8, 300), rng.randint(8, 300), rng.choice(list(_SAMPLES))
    pixel = bytes(rng.randrange(4 if kind == 3 else 256) for _ in range(_SAMPLES[kind]))
    parts = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))]
    if kind == 3:
        parts.append(_chunk(b"PLTE", rng.randbytes(12)))
    parts += [_chunk(b"IDAT", zlib.compress((b"\0" + pixel * width) * height)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _pictures(rng: random.Random) -> list[str]:
    """Return 1 to 3 pictures as base64; now and then one comes twice."""
    drawn = [base64.b64encode(png(rng)).decode() for _ in range(rng.randint(1, 2))]
    return [*drawn, rng.choice(drawn)] if rng.random() < 0.4 else drawn


def _mixed(rng: random.Random, words: list[Body], pictures: list[Body]) -> list[Body]:
    parts = list(words)
    for picture in pictures:
        parts.insert(rng.randint(0, len(parts)), picture)
    return parts


def chat(rng: random.Random, mark: str) -> Body:
    """A conversation about pictures, in its last message or earlier; a `uuid` is the picture's name."""
    system = [{"role": "system", "content": mark + text(rng, rng.randint(1, 60))}] if rng.random() < 0.6 else []
    turns: list[Body] = []
    for turn in range(rng.randint(1, 3)):
        words = [{"type": "text", "text": f"{mark}{turn} " + text(rng, rng.randint(1, 30))} for _ in range(2)]
        pictures: list[Body] = []
        for data in _pictures(rng) if rng.random() < 0.7 or not turn else []:
            picture: Body = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            if rng.random() < 0.3:
                picture["image_url"]["detail"] = "auto"
            if rng.random() < 0.5:
                picture["uuid"] = f"{mark}{turn}-{zlib.crc32(data.encode())}"
            pictures.append(picture)
        turns.append({"role": "user", "content": _mixed(rng, words, pictures)})
        turns.append({"role": "assistant", "content": text(rng, rng.randint(1, 20))})
    return {"messages": system + turns[:-1]}


def responses(rng: random.Random, mark: str) -> Body:
    """`/v1/responses` with `input_image`."""
    words = [{"type": "input_text", "text": mark + text(rng, rng.randint(1, 40))}]
    pictures = [
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{data}"}
        for data in _pictures(rng)
    ]
    body: Body = {"input": [{"role": "user", "content": _mixed(rng, words, pictures)}]}
    return body | {"instructions": text(rng, 20)} if rng.random() < 0.5 else body


def messages(rng: random.Random, mark: str) -> Body:
    """`/v1/messages` with blocks of images."""
    words = [{"type": "text", "text": mark + text(rng, rng.randint(1, 40))}]
    pictures: list[Body] = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        for data in _pictures(rng)
    ]
    body: Body = {"messages": [{"role": "user", "content": _mixed(rng, words, pictures)}]}
    return body | {"system": text(rng, 20)} if rng.random() < 0.5 else body
