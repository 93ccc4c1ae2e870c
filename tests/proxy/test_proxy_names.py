"""Several models behind one router, under the names that clients use."""

from __future__ import annotations

import json
from typing import Any

MODELS = [{"name": "big", "aliases": ["gpt-4o"]}, {"name": "small"}]
SPLIT = {"mix": [{"model": "big", "weight": 1}, {"model": "small", "weight": 1}]}


async def test_an_alias_goes_to_its_model_and_to_no_other(harness: Any, engine: Any, wire: Any) -> None:
    """Short and long bodies; the answer's own model passes unchanged."""

    async def behave(asked: Any, writer: Any) -> None:
        writer.write(wire.ok(b'{"model": "big"}'))

    one, other = await engine(behave), await engine()
    item = await harness(models=MODELS)
    item.announce(one, "r0", models=("big",))
    item.announce(other, "r1", models=("small",))
    for pad in (0, 200_000):
        sent = wire.chat_body(model="gpt-4o", pad=pad)
        answer = await item.ask(wire.post(sent))
        assert (answer.status, answer.body) == (200, b'{"model": "big"}')
        assert one.asked[-1].body == sent.replace(b'"gpt-4o"', b'"big"')
        assert one.asked[-1].one("content-length") == str(len(one.asked[-1].body))
    assert not other.asked
    item.assert_accounted()


async def test_a_split_goes_to_all_its_models(harness: Any, engine: Any, wire: Any) -> None:
    """Each conversation to one of them."""
    one, other = await engine(), await engine()
    item = await harness(models=MODELS, splits=SPLIT)
    item.announce(one, "r0", models=("big",))
    item.announce(other, "r1", models=("small",))
    for number in range(20):
        for _ in range(2):
            assert (await item.ask(wire.post(wire.chat_body(f"question {number}", model="mix")))).status == 200
    asked = {"big": one.asked, "small": other.asked}
    found = {model: [json.loads(each.body) for each in list_] for model, list_ in asked.items()}
    assert all(body["model"] == model for model, bodies in found.items() for body in bodies)
    questions = {model: {body["messages"][0]["content"] for body in bodies} for model, bodies in found.items()}
    assert questions["big"]
    assert questions["small"]
    assert not questions["big"] & questions["small"]
    item.assert_accounted()


async def test_other_names_are_listed_with_the_models(harness: Any, engine: Any, wire: Any) -> None:
    """The union of the fleet's models, and what stands for those that are served."""
    item = await harness(models=[*MODELS, {"name": "gone", "aliases": ["ghost"]}], splits=SPLIT)
    item.announce(await engine(), "r0", models=("big",))
    item.announce(await engine(), "r1", models=("small", "big"))
    listed = {each["id"]: each for each in json.loads((await item.ask(wire.get("/v1/models"))).body)["data"]}
    assert sorted(listed) == ["big", "gpt-4o", "mix", "small"]
    assert listed["gpt-4o"]["root"] == listed["big"]["root"]
    assert listed["gpt-4o"]["max_model_len"] == 4_096


async def test_names_change_with_the_configuration(harness: Any, engine: Any, wire: Any) -> None:
    """From the next request on."""
    one = await engine()
    item = await harness(models=[{"name": "big"}])
    item.announce(one, "r0", models=("big",))
    assert (await item.ask(wire.post(wire.chat_body(model="gpt-4o")))).status == 404
    config = item.plane._config
    changed = type(config).model_validate({**config.model_dump(exclude_unset=True), "models": MODELS})
    item.plane.configure(changed)
    assert (await item.ask(wire.post(wire.chat_body(model="gpt-4o")))).status == 200


async def test_a_client_that_leaves_while_its_long_body_is_renamed_costs_nothing(
    harness: Any, engine: Any, wire: Any, eventually: Any
) -> None:
    """No engine hears of it, and its memory is given back."""
    one = await engine()
    item = await harness(models=MODELS, limits={"inline_body_bytes": 0})
    item.announce(one, "r0", models=("big",))
    for _ in range(10):
        client = await item.client()
        client.send(wire.post(wire.chat_body(model="gpt-4o", pad=3_000_000)))
        client.reset()
    await eventually(lambda: not item.plane.door.connections)
    await eventually(lambda: item.in_flight == 0 and item.plane.door.budget.used_bytes == 0)
