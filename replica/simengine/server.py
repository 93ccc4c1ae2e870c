"""The HTTP interface: vLLM's routes, statuses and shapes."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from replica.simengine import metrics
from replica.simengine.bodies import check_messages, check_model, read_json
from replica.simengine.engine import Engine
from replica.simengine.faults import Faults
from replica.simengine.generating import INLINE_BYTES, Generator
from replica.simengine.publisher import Publisher
from replica.simengine.refusals import Refusal, bad_schema
from replica.simengine.settings import VERSION, Settings
from replica.simengine.text import Text
from replica.simengine.words import Words

MOST_BODY_BYTES = 64 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Routes of one engine process."""

    def __init__(
        self, settings: Settings, text: Text, engines: list[Engine], publishers: list[Publisher], faults: Faults
    ) -> None:
        self._settings = settings
        self._text = text
        self._engines = engines
        self._publishers = publishers
        self._faults = faults
        self._generator = Generator(settings, text, Words(text), engines, faults)

    def application(self) -> web.Application:
        """Return the application; its runner needs `auto_decompress=False` and `handler_cancellation=True`."""
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[self._guard])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chats)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/health", self._health, allow_head=False)
        app.router.add_route("*", "/ping", self._health)
        app.router.add_get("/version", self._version, allow_head=False)
        app.router.add_get("/load", self._load, allow_head=False)
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        app.router.add_get("/kv_event_sources", self._sources, allow_head=False)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_get("/debug/blocks", self._blocks, allow_head=False)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the key under /v1, and give errors vLLM's shape."""
        key = self._settings.api_key
        if key is not None and request.path.startswith("/v1") and request.method != "OPTIONS":
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            known = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())
            if scheme.lower() != "bearer" or not known:
                return _json({"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except Refusal as refusal:
            return web.Response(status=refusal.status, body=refusal.body, content_type="application/json")
        except web.HTTPException as error:
            answer = _json({"detail": error.reason}, error.status)
            if isinstance(error, web.HTTPMethodNotAllowed):
                answer.headers["Allow"] = error.headers.get("Allow", "")
            return answer

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.answer(request, chat=False)

    async def _chats(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.answer(request, chat=True)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = read_json(await request.read(), request.headers.get("Content-Type"))
        if "messages" in body:
            check_messages(body)
            check_model(body, self._settings)
            special = bool(body.get("add_special_tokens", False))
            tokens = await self._encode(self._text.render(body), special=special)
        else:
            check_model(body, self._settings)
            prompt = body.get("prompt")
            if not isinstance(prompt, str):
                kind, what = ("string_type", "Input should be a valid string")
                raise bad_schema(kind, "body.prompt", what, prompt)
            tokens = await self._encode(prompt, special=bool(body.get("add_special_tokens", True)))
        strings = self._text.token_strings(tokens) if body.get("return_token_strs") else None
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._settings.limits.max_model_len,
                "tokens": tokens,
                "token_strs": strings,
            }
        )

    async def _encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) <= INLINE_BYTES:
            return self._text.encode(text, add_special_tokens=special)
        return await asyncio.to_thread(self._text.encode, text, add_special_tokens=special)

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = read_json(await request.read(), request.headers.get("Content-Type"))
        check_model(body, self._settings)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise bad_schema("list_type", "body.tokens", "Input should be a valid list", tokens)
        if tokens and max(tokens) >= self._text.vocabulary:
            raise Refusal(f"Token id {max(tokens)} is out of vocabulary")
        return _json({"prompt": self._text.decode(tokens)})

    async def _models(self, request: web.Request) -> web.Response:
        settings = self._settings
        cards = [_card(name, settings.model, None, settings) for name in settings.served]
        cards += [_card(each.name, each.path, settings.served[0], settings) for each in settings.adapters]
        return _json({"object": "list", "data": cards})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self._faults.unhealthy or 200)

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        return _json({"server_load": self._generator.open})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = metrics.render(self._settings, self._engines)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _sources(self, request: web.Request) -> web.Response:
        return _json({str(rank): publisher.source() for rank, publisher in enumerate(self._publishers)})

    async def _reset(self, request: web.Request) -> web.Response:
        done = [
            engine.scheduler.reset_prefix_cache() for engine in self._engines
        ]  # each of them, whatever the first says
        return _json({"success": all(done)})

    async def _blocks(self, request: web.Request) -> web.Response:
        """Tell what each rank's pool itself holds. vLLM has no such path: it is what events are held against."""
        return _json({"ranks": [_held(engine) for engine in self._engines]})


def _held(engine: Engine) -> dict[str, Any]:
    """Return a rank's blocks by the name that events give them (16 hex digits), with the copies of each."""
    scheduler = engine.scheduler
    copies: Counter[str] = Counter()
    for key, count in scheduler.pool.copies().items():
        copies[key[-8:].hex()] += count
    return {"busy": scheduler.has_work, "blocks": copies}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def _card(name: str, root: str, parent: str | None, settings: Settings) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": settings.limits.max_model_len if parent is None else None,
        "permission": [
            {
                "id": f"modelperm-{secrets.token_hex(8)}",
                "object": "model_permission",
                "created": int(time.time()),
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }
