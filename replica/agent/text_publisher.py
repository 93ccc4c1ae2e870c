"""Keeps the model's tokenizer files in Redis, for routers that have none: each once, however many agents share it.

They are read when the agent starts and again with each new life of the engine, which may have come up with another
template. A file's key expires when no agent renews it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence

from replica.agent import scripts, text_files
from replica.agent.settings import AgentSettings
from replica.agent.text_files import TextFile, TextFilesError
from router.kv.client.client import RedisClient, RedisError
from router.kv.registration import RegisteredModel
from router.kv.text_files import digest_of
from router.kv.wire import MAX_CHUNK_BYTES

log = logging.getLogger(__name__)


class TextPublisher:
    """One agent's.

    Attributes:
        files: Name to SHA-256 of what lies in Redis; empty until all of it does.
    """

    def __init__(self, settings: AgentSettings, redis: RedisClient) -> None:
        self.files: Mapping[str, str] = {}
        self._settings = settings
        self._redis = redis
        self._renew_s = settings.lease_s / 4
        self._ttl_ms = int(4 * settings.lease_s * 1000)
        self._models: Sequence[RegisteredModel] = ()
        self._seen: tuple[object, ...] = ()
        self._found: dict[str, TextFile] = {}
        self._is_stale = False
        self._wake = asyncio.Event()
        self._ending = False
        self._said: str | None = None

    def look(self, models: Sequence[RegisteredModel], lives: tuple[int, ...]) -> None:
        """Read the files again if the engine serves another model, or has begun another life, since the last call."""
        seen = (lives, *(model.root for model in models if model.parent is None))
        if seen != self._seen:
            self._seen, self._models, self._is_stale = seen, models, True
            self._wake.set()

    def end(self) -> None:
        """Let `run` end at the next occasion: redis-py swallows a cancellation that arrives within a command."""
        self._ending = True
        self._wake.set()

    async def run(self) -> None:
        """Publish and renew until ended. Nothing that Redis or the files do ends it."""
        while not self._ending and self._settings.publishes_tokenizer:
            try:
                await self._publish()
            except TextFilesError as error:
                self.files = {}
                self._say(f"routers get no tokenizer from here: {error}")
            except (RedisError, OSError, TimeoutError) as error:
                # What is listed may be there all the same; the lease's writer tells of Redis' trouble.
                log.debug(f"tokenizer files are not renewed: {error}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _publish(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._found = {}
            self._found = await asyncio.to_thread(self._read)
        for file in set(self._found.values()):
            key = self._settings.keys.text_file(file.digest)
            if not await self._redis.run(key, "PEXPIRE", key, self._ttl_ms):
                await self._write(file)
        files = {name: file.digest for name, file in sorted(self._found.items())}
        if files != self.files:
            self.files = files
            if files:
                self._say(f"routers get the tokenizer from here: {', '.join(files)}", logging.INFO)

    def _read(self) -> dict[str, TextFile]:
        folder = self._settings.tokenizer or text_files.folder_of(self._models)
        if folder is not None:
            return text_files.read(folder, self._settings.chat_template, self._settings.chat_template_kwargs)
        if self._settings.chat_template is not None:
            raise TextFilesError("--chat-template is of no use without a tokenizer: name its folder with --tokenizer")
        return {}

    async def _write(self, file: TextFile) -> None:
        data = await asyncio.to_thread(file.read)
        if digest_of(data) != file.digest:
            self._is_stale = True
            raise TextFilesError(f"{file.path} changed while it was published; it is read again")
        keys = self._settings.keys
        draft = keys.text_file_draft(file.digest, secrets.token_hex(8))
        for start in range(0, max(1, len(data)), MAX_CHUNK_BYTES):
            await self._redis.script(scripts.APPEND, [draft], [self._ttl_ms, data[start : start + MAX_CHUNK_BYTES]])
        await self._redis.script(scripts.KEEP_FILE, [draft, keys.text_file(file.digest)], [self._ttl_ms])

    def _say(self, text: str, level: int = logging.WARNING) -> None:
        if text != self._said:
            self._said = text
            log.log(level, text)
