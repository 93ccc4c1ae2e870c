"""A conversation's next turn: is the answer before it rendered to the tokens that the engine has cached? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from router.tools.doctor_report import Finding, Status
from router.tools.doctor_requests import Request, common_tokens

WRONG_SHARE = 0.2
"""Of the turns looked at."""


def rerendered(requests: Sequence[Request]) -> list[Finding]:
    """Next turns that hit their earlier prompt but not its answer, on the same unit, by what was delivered."""
    turns = lost_turns = lost_tokens = 0
    example = ""
    for earlier, request in _continued(requests):
        size = request.block_size
        prompt_blocks = earlier.tokens // size
        kept = min((earlier.tokens + (earlier.completion_tokens or 0) - 1) // size * size, request.most_hit_tokens)
        if kept <= prompt_blocks * size or request.cached_tokens is None:
            continue  # the answer completes no block, or nothing is known
        turns += 1
        # Fewer than the prompt's own blocks were evicted; that is no matter of rendering.
        if (prompt_blocks - 1) * size <= request.cached_tokens < kept:
            lost_turns += 1
            lost_tokens += kept - request.cached_tokens
            example = f"as {earlier.name} and then {request.name}"
    if not turns:
        return []
    if lost_turns < max(1, WRONG_SHARE * turns):
        return [Finding(Status.FINE, f"{turns - lost_turns} of {turns} next turns found the answer before them")]
    detail = (
        f"{lost_turns} of {turns} next turns found the prompt before them but not its answer, {lost_tokens} tokens "
        "together: it was rendered to other tokens (reasoning dropped, tool arguments serialised anew, text trimmed)"
    )
    return [Finding(Status.WRONG, detail, lines=(example,))]


def dropped_in_bodies(requests: Sequence[Request]) -> list[Finding]:
    """Parts of earlier answers that a body holds and its rendering does not, in the user's own file."""
    turns, lost = 0, Counter[str]()
    examples: dict[str, str] = {}
    for request in requests:
        if not request.text:
            continue
        for message in _answers(request.body):
            turns += 1
            for what in _changed(message, request.text):
                lost[what] += 1
                examples.setdefault(what, request.name)
    if not turns:
        return []
    if not lost:
        return [Finding(Status.FINE, f"{turns} answers in the conversations, rendered as they stand")]
    return [
        Finding(
            Status.WRONG, f"{count} of {turns} answers in the conversations: {what}", lines=(f"as {examples[what]}",)
        )
        for what, count in lost.most_common()
    ]


def _continued(requests: Sequence[Request]) -> Iterator[tuple[Request, Request]]:
    """Yield (earlier, next turn): the next one begins with all whole blocks of the earlier one, on the same unit."""
    by_last_block: dict[tuple[str, int], Request] = {}
    for request in requests:
        if not request.blocks or not request.unit:
            continue
        for block in reversed(request.blocks):
            earlier = by_last_block.get((request.unit, block))
            if earlier is not None:
                # All of its tokens, and not its whole blocks alone, where that is known.
                if earlier.tokens < request.tokens and _begins_with(request, earlier):
                    yield earlier, request
                break
        whole = min(len(request.blocks), request.tokens // request.block_size)
        if whole * request.block_size + request.block_size > request.tokens:
            by_last_block[(request.unit, request.blocks[whole - 1])] = request


def _begins_with(request: Request, earlier: Request) -> bool:
    reach = len(request.steps) if request.ids is None else request.tokens
    return earlier.tokens > reach or common_tokens(request, earlier) >= earlier.tokens


def _answers(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and message.get("role") == "assistant":
            yield message


def _changed(message: dict[str, Any], rendered: str) -> Iterator[str]:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning.strip() and reasoning not in rendered:
        yield "their reasoning is not rendered"
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str) and arguments.strip() and arguments not in rendered:
            yield "tool arguments are rendered otherwise than they came"
            break
    content = message.get("content")
    if isinstance(content, str) and content.strip() and content not in rendered:
        word = "trimmed" if content.strip() in rendered else "changed"
        yield f"their text is {word}"
