"""One engine with its agent, a router before it and an ear at its events, and the check of one request on them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from router.kv.extra_keys import ExtraKeys, Lora, MediaItem
from router.kv.hashes import chain_digests, max_hit_tokens
from router.request.reader import PromptReader
from router.request.remote import Question, question_for, read_answer
from router.tools.processes import Child, stop_all, wait_for
from tests.vllm.engines import (
    MODEL,
    Answer,
    call,
    engine_command,
    engine_environment,
    free_port,
    wait_until_healthy,
)
from tests.vllm.full.generated import Case
from tests.vllm.full.models import Served
from tests.vllm.full.plans import Plan, Sends
from tests.vllm.full.published import Published

SETTLE_S = 60.0
EVENT_S = 20.0
ASK_MS = 20_000


@dataclass(frozen=True)
class Usage:
    """What an answer tells of its tokens; those that were cached are None where an API does not tell."""

    prompt_tokens: int
    cached_tokens: int | None

    @classmethod
    def of(cls, answer: Answer) -> Usage:
        """Read it in any of the APIs' forms."""
        usage = answer.json["usage"]
        if "prompt_tokens" in usage:
            details = usage.get("prompt_tokens_details")
            return cls(usage["prompt_tokens"], details["cached_tokens"] or 0 if details else None)
        if "input_tokens_details" in usage:
            return cls(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
        cached = usage.get("cache_read_input_tokens") or 0
        return cls(usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached)


class Line:
    """The processes of one plan; `children` are what must be stopped."""

    def __init__(self, plan: Plan, folder: Path, redis_url: str) -> None:
        """Start nothing yet; files go to `folder`."""
        self.plan = plan
        self.children: list[Child] = []
        self.published = Published()
        self._folder = folder
        self._redis_url = redis_url

    def begin(self, made: Served, core: int) -> None:
        """Start the engine, and its agent where that starts it; `finish` waits for it."""
        plan, port, events = self.plan, free_port(), free_port()
        options = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://127.0.0.1:{free_port()}"}
        scheme, parser = plan.scheme, "mistral" if plan.sends is Sends.MISTRAL else "hermes"
        command = engine_command(made.engine, port, options, scheme.algorithm, scheme.block_size, parser)
        command += plan.options
        served: dict[str, Any] = {"name": MODEL, "tokenizer": str(made.tokenizer)}
        if made.template is not None:
            served["chat_template"] = str(made.template)
            command += ["--chat-template", str(made.template)]
        if plan.variables:
            served["chat_template_kwargs"] = plan.variables
            command += ["--default-chat-template-kwargs", json.dumps(plan.variables)]
        self._paths = {name: str(made.engine / "adapters" / name) for name in plan.adapters}
        if plan.adapters:
            command += ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules"]
            command += [f"{name}={path}" for name, path in self._paths.items()]
        environment = engine_environment(core) | {
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": str(int(not plan.whole_hashes))
        }
        seed = [] if scheme.seed is None else ["--hash-seed", scheme.seed]
        if scheme.seed is not None:
            environment["PYTHONHASHSEED"] = scheme.seed
        self.engine = f"http://127.0.0.1:{port}"
        agent = ["--engine-url", self.engine, "--redis", self._redis_url, "--replica-id", plan.name, *seed]
        if plan.by_agent:
            # What it lacks, its agent adds.
            place = command.index("--kv-events-config")
            del command[place : place + 2]
            command.remove("--enable-prompt-tokens-details")
            agent += ["--kv-events", f"tcp://127.0.0.1:{events}"]
            under = [sys.executable, "-m", "router.cli", "agent", *agent, "--", *command]
            self._starting = Child("engine under its agent", under, self._folder, environment)
            served = {"name": MODEL}
        else:
            self._starting = Child("engine", command, self._folder, environment)
        self.children.append(self._starting)
        self._events, self._agent = f"tcp://127.0.0.1:{events}", agent
        config = {"listen": "127.0.0.1:0", "models": [served], "redis": self._redis_url}
        config["limits"] = {"remote_tokenize_deadline_ms": ASK_MS}
        (self._folder / "router.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def finish(self) -> None:
        """Start what is beside the engine, and wait until the router trusts the engine's hashes."""
        self.router = self._start("router", "--config", str(self._folder / "router.yaml"))["http"]
        wait_until_healthy(self._starting, self.engine)
        self.published.connect(self._events)
        if not self.plan.by_agent:
            self._start("agent", *self._agent)
        self._until("the ear hears", self._hears)
        self._until("the router trusts the engine", lambda: self._trust() == "exact")
        source = "agent" if self.plan.by_agent else "folder"
        self._until(f"the router has the {source}'s tokenizer", lambda: self._text_source() == source)

    def stop(self) -> None:
        """End all of it."""
        stop_all(self.children, grace_s=20.0)
        self.published.close()

    def second_router(self, **changes: Any) -> str:
        """Start another router that knows the engine too; `changes` are of its configuration. Return its address."""
        config = yaml.safe_load((self._folder / "router.yaml").read_text(encoding="utf-8")) | changes
        file = self._folder / "second.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        url = str(self._start("router", "--config", str(file), name="second router")["http"])
        self._until("the second router trusts the engine", lambda: self._trust(url) == "exact")
        return url

    def _start(self, command: str, *arguments: str, name: str = "") -> dict[str, Any]:
        name = name or command
        child = Child(name, [sys.executable, "-m", "router.cli", command, *arguments], self._folder)
        self.children.append(child)
        return dict(wait_for(f"the {name} is ready", child.ready_line, [child], 30.0))

    def _until(self, what: str, condition: Callable[[], Any]) -> Any:
        return wait_for(what, condition, self.children, SETTLE_S)

    def _hears(self) -> bool:
        # Each has a number of its own: one that was sent before the socket was connected is lost.
        prompt = [300] * 64 + [int(time.monotonic() * 100) % 3_000 + 300] * 64
        if self.plan.sends in (Sends.INPUTS, Sends.TOKENS):
            path = "/v1/embeddings" if self.plan.sends is Sends.INPUTS else "/pooling"
            self._ask_engine(path, {"model": MODEL, "input": prompt})
        else:
            self._ask_engine("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
        return bool(self.published.wait(1.0))

    def _trust(self, router: str | None = None) -> str:
        replicas = call(router or self.router, "GET", "/admin/replicas").json["replicas"]
        return next((str(unit["trust"]) for replica in replicas for unit in replica["units"]), "unknown")

    def _text_source(self) -> str:
        return str(call(self.router, "GET", "/admin/replicas").json["texts"][0]["source"])

    def _ask_engine(self, path: str, body: Any) -> Answer:
        answer = call(self.engine, "POST", path, body)
        assert answer.status == 200, answer.text
        return answer

    def _ask(self, case: Case) -> Answer:
        answer = call(self.router, "POST", case.path, case.raw)
        assert answer.status == 200, f"{answer.status}: {answer.text}"
        return answer

    def _explain(self, case: Case) -> dict[str, Any]:
        answer = call(self.router, "POST", f"/admin/explain?tokens=1&path={case.path}", case.raw)
        assert answer.status == 200, answer.text
        return dict(answer.json)

    def check(self, case: Case) -> None:
        """Send a request twice; fail unless ids, hashes and cached tokens are what the router says."""
        size = self.plan.scheme.block_size
        explained = self._explain(case)
        ids = explained["token_ids"]
        assert ids is not None, f"the router did not understand it: {explained['prompt_reason']}"
        self.published.wait(0.0)
        first = self._ask(case)
        told = [self._tokenize(item) if not isinstance(item, list) else item for item in case.told]
        prompts = _prompts(first, case) or told or [ids]
        _same("ids, router and engine", ids, prompts[0])
        assert len(told) in (0, len(prompts))
        for ours, theirs in zip(prompts, told, strict=False):
            _same("ids, engine and /tokenize", ours, theirs)
        question = _question(case)
        if question is not None and (not question.renders or "--enable-scale-out" in self.plan.options):
            told_ids = read_answer(question, self._ask_engine(question.path, question.body).text.encode())
            assert told_ids is not None
            _same(f"ids, router and what it would be told by {question.path}", ids, told_ids[0])
        usage = Usage.of(first)
        assert usage.prompt_tokens == sum(map(len, prompts))
        if len(prompts) == 1 and "n" not in case.body and usage.cached_tokens is not None:
            assert usage.cached_tokens == first.predicted, "the first time"
        media = tuple(MediaItem(**item) for item in explained["media"])
        self._check_hashes(case, prompts, media, to_the_end=case.path in ("/v1/responses", "/v1/messages"))

        hits = [max_hit_tokens(len(prompt), size) if case.reads_cache else 0 for prompt in prompts]
        self._until(f"the router expects {hits[0]}", lambda: self._explain(case)["matched_tokens"] == hits[0])
        before = self._hit_tokens()
        second = self._ask(case)
        assert second.predicted == hits[0]
        if (cached := Usage.of(second).cached_tokens) is None:
            self._until(f"{sum(hits)} tokens are hit", lambda: self._hit_tokens() - before >= sum(hits))
            assert self._hit_tokens() - before == sum(hits)
        else:  # of several prompts it tells of the last one alone
            assert cached == hits[-1]
        assert not self.published.problems

    def check_by_load(self, path: str, body: dict[str, Any], reason: str) -> Answer:
        """Send a request whose prompt the router does not read; fail unless it says why and what it says holds on.

        Returns:
            The answer.
        """
        raw = json.dumps({"model": MODEL, **body}).encode()
        told = call(self.router, "POST", f"/admin/explain?tokens=1&path={path}", raw).json
        assert (told["token_ids"], told["prompt_reason"], told["matched_tokens"]) == (None, reason, 0)
        answer = call(self.router, "POST", path, raw)
        assert answer.status == 200, answer.text
        assert answer.predicted == 0
        [replica] = call(self.router, "GET", "/admin/replicas").json["replicas"]
        assert all(item["mismatched"] == 0 for unit in replica["units"] for item in unit["predictions"])
        assert self._trust() == "exact"
        return answer

    def _tokenize(self, question: Any) -> list[int]:
        return list(self._ask_engine("/tokenize", question).json["tokens"])

    def _hit_tokens(self) -> int:
        lines = call(self.engine, "GET", "/metrics").text.splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:prefix_cache_hits_total{"))

    def _check_hashes(
        self, case: Case, prompts: list[list[int]], media: tuple[MediaItem, ...], to_the_end: bool
    ) -> None:
        """Compare the first prompt's predicted chain with the published one, and see that nothing else was published.

        Args:
            media: What the router knows of the first prompt's pictures.
            to_the_end: Whether what was published must cover the whole prompt, with the tokens after its last block.
        """
        size, model = self.plan.scheme.block_size, str(case.body["model"])
        lora = Lora(model, self._paths[model]) if model in self._paths else None
        digests = chain_digests(prompts[0], self.plan.scheme, ExtraKeys(lora, case.salt, media))
        predicted = [digest[-self.plan.published_bytes :] for digest in digests]
        whole = sum(len(prompt) // size for prompt in prompts) + int(to_the_end)
        new: list[bytes] = []
        deadline = time.monotonic() + EVENT_S
        while not self._is_there(predicted, new, len(prompts[0]), to_the_end) and time.monotonic() < deadline:
            new += self.published.wait(max(0.0, deadline - time.monotonic()))
        paths = [self.published.path(name) for name in new]
        for place, name in enumerate(predicted):
            block = self.published.blocks.get(name)
            assert block is not None, f"block {place} of {len(predicted)} has another hash than {name.hex()}"
            assert block.parent == (predicted[place - 1] if place else None)
            assert block.token_ids == tuple(prompts[0][place * size : (place + 1) * size])
            keys: list[Any] = [model] * bool(lora) + _published_media(media, place * size, size)
            assert list(block.extra_keys) == keys + [case.salt] * (bool(case.salt) and not place)
        for path in paths:
            tokens = self.published.tokens(path)
            assert any(tokens[: len(ids)] == ids[: len(tokens)] for ids in prompts), "published for no prompt of it"
        assert len(new) <= whole + 2 * int(case.body.get("n", 1)) * len(prompts), "more blocks than prompt and answer"
        if to_the_end:
            assert any(self.published.tokens(path)[: len(prompts[0])] == prompts[0] for path in paths)

    def _is_there(self, predicted: list[bytes], new: list[bytes], prompt_tokens: int, to_the_end: bool) -> bool:
        if not all(name in self.published.blocks for name in predicted):
            return False
        size = self.plan.scheme.block_size
        return not to_the_end or any(len(self.published.path(name)) * size >= prompt_tokens for name in new)


def _question(case: Case) -> Question | None:
    """Return what a router without the tokenizer would ask the replica; None where that tells it nothing."""
    return question_for(PromptReader(lambda _: None).read(case.path, case.raw), case.path, case.raw)


def _published_media(media: tuple[MediaItem, ...], start: int, size: int) -> list[Any]:
    """Return the keys of the items that a block's tokens touch, as events carry them: name and offset in the block."""
    end = start + size
    return [[m.identifier, m.offset - start] for m in media if m.offset < end and m.offset + m.length > start]


def _prompts(answer: Answer, case: Case) -> list[list[int]]:
    """Return the ids of each prompt as the engine tells them; none where an API has no such field."""
    found: list[list[int]] = []
    for part in answer.chunks if answer.streamed else [answer.json]:
        if ids := part.get("prompt_token_ids"):
            found.append(ids)
        found += [choice["prompt_token_ids"] for choice in part.get("choices", []) if choice.get("prompt_token_ids")]
    answers = len(found) // case.prompts
    return found[:: max(1, answers)]


def _same(what: str, ours: list[int], theirs: list[int]) -> None:
    if ours != theirs:
        at = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(ours), len(theirs)) if at is None else at
        near = slice(max(0, at - 5), at + 5)
        raise AssertionError(
            f"{what} part at token {at} ({len(ours)} and {len(theirs)} tokens): {ours[near]} and {theirs[near]}"
        )
