"""`POST /admin/explain`: the decision that a body would get, bounded in size, in number at once and in line."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any, Protocol

from aiohttp import web
from pydantic import ValidationError

from router.admin.decision_views import decision_view
from router.config import RouterConfig
from router.config_placement import POLICIES, WeightsConfig
from router.errors import MalformedRequestError, OverloadedError, PolicyRefusedError, RequestTimeoutError
from router.fleet.fleet import Fleet
from router.placement import Placer
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.scheduling.wishes import Wishes

MAX_EXPLAIN_BYTES = 8 * 2**20
EXPLAINS_AT_ONCE = 2
MAX_EXPLAINS = 8
"""At once and in line: their bodies are held meanwhile."""


class Explained(Protocol):
    """What is read to explain."""

    @property
    def fleet(self) -> Fleet: ...
    @property
    def config(self) -> RouterConfig: ...
    @property
    def placer(self) -> Placer: ...
    @property
    def reader(self) -> PromptReader: ...

    def clock(self) -> float: ...

    async def completed(self, prompt: Prompt, path: str, body: bytes) -> Prompt: ...


class Explaining:
    """Explains, a few at once."""

    def __init__(self, view: Explained) -> None:
        self._view = view
        self._at_work = asyncio.Semaphore(EXPLAINS_AT_ONCE)
        self._held = 0

    async def explain(self, request: web.Request) -> dict[str, Any]:
        """Decide without sending.

        Raises:
            OverloadedError: Too many are explained already.
            MalformedRequestError, PolicyRefusedError: The query is wrong.
        """
        if self._held >= MAX_EXPLAINS:
            raise OverloadedError(f"{MAX_EXPLAINS} bodies are being explained already", retry_after_s=1)
        self._held += 1
        try:
            return await self._explain(request)
        finally:
            self._held -= 1

    async def _explain(self, request: web.Request) -> dict[str, Any]:
        view = self._view
        policy, weights = _policy_of(request), weights_of(request, view.config.placement.weights)
        try:
            async with asyncio.timeout(view.config.timeouts.request_s):
                body = await request.read()
        except TimeoutError:
            # Also a body whose chunks are malformed after the first: aiohttp waits for the rest.
            raise RequestTimeoutError("the body did not come in time") from None
        async with self._at_work:
            path = request.query.get("path") or ("/v1/chat/completions" if b'"messages"' in body else "/v1/completions")
            prompt = await asyncio.to_thread(view.reader.read, path, body)
            prompt = await view.completed(prompt, path, body)
            decision = view.placer.explain(prompt, view.clock(), wishes=Wishes(policy=policy), weights=weights)
            answer = decision_view(decision, view.fleet)
            if request.query.get("tokens") == "1":
                # The caller's own body, so its tokens are no news to the caller.
                answer["token_ids"] = None if prompt.token_ids is None else [*prompt.token_ids]
                answer["media"] = [asdict(item) for item in prompt.media]
            return answer


def _policy_of(request: web.Request) -> str | None:
    policy = request.query.get("policy")
    if policy is not None and policy not in POLICIES:
        raise PolicyRefusedError(f"`policy` must be one of: {', '.join(POLICIES)}", param="policy")
    return policy


def weights_of(request: web.Request, present: WeightsConfig) -> WeightsConfig | None:
    """Return the present weights with those that the query's `weights` (a JSON object) gives; None without it.

    Raises:
        MalformedRequestError: It is none, or a weight is not known or out of its range.
    """
    text = request.query.get("weights")
    if text is None:
        return None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise MalformedRequestError('`weights` must be a JSON object, as {"price_base": 2}', param="weights")
    try:
        return WeightsConfig.model_validate({**present.model_dump(), **given})
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise MalformedRequestError(f"`weights`: {'; '.join(wrong)[:500]}", param="weights") from None
