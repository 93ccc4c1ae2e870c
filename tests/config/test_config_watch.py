"""Files are watched by their content."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from router.config_file import parse
from router.config_reload import merged
from router.config_watch import digests, files_of, watch

Eventually = Callable[..., Awaitable[Any]]


async def test_a_file_that_is_still_written_is_not_read(tmp_path: Path, eventually: Eventually) -> None:
    """Content that differs from look to look is no change yet; once it rests, it is one."""
    file = tmp_path / "file"
    file.write_text("0")
    looks, changes = 0, 0

    def files() -> list[Path]:
        nonlocal looks
        looks += 1
        if looks < 20:
            file.write_text(str(looks))
        return [file]

    async def changed() -> None:
        nonlocal changes
        assert looks >= 20
        changes += 1

    task = asyncio.ensure_future(watch(files, changed, digests([file]), 0.001))
    await eventually(lambda: changes or task.done())
    await eventually(lambda: looks > 30)
    task.cancel()
    assert changes == 1


async def test_a_file_that_is_gone_and_back_is_no_change(tmp_path: Path) -> None:
    """Unless its content is another; while it is away that is one, which the reader then judges."""
    file = tmp_path / "file"
    assert digests([file])[file].startswith("unreadable")
    file.write_text("a")
    known = digests([file])
    file.unlink()
    file.write_text("a")
    assert digests([file]) == known


def test_secrets_and_templates_are_watched_and_weights_are_not(tmp_path: Path) -> None:
    """A tokenizer may be a folder of gigabytes."""
    token, template = tmp_path / "token", tmp_path / "template"
    token.write_text("long-enough")
    config = parse(
        {
            "models": [{"name": "tiny", "tokenizer": str(tmp_path), "chat_template": str(template)}],
            "replicas": [{"url": "http://127.0.0.1:1"}],
            "admin": {"token_file": str(token)},
        },
        {},
    )
    assert set(files_of(config)) == {token, template}


def test_what_can_not_change_while_running_is_kept_and_named() -> None:
    """Whole sections and single keys; what stands beside them changes."""
    base: dict[str, Any] = {"models": [{"name": "tiny"}], "redis": "redis://a:1/0"}
    running = parse(dict(base), {})
    wanted = parse({**base, "redis": "redis://b:1/0", "admin": {"listen": "127.0.0.1:1", "decisions": 5}}, {})
    config, needs_restart = merged(running, wanted)
    assert needs_restart == ["redis", "admin.listen"]
    assert config.redis == running.redis
    assert (config.admin.listen, config.admin.decisions) == (None, 5)
    models = parse({**base, "models": [{"name": "other"}]}, {})
    assert merged(running, models) == (running, ["models"])
