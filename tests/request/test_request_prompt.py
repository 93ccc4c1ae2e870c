"""Prompt: chains are computed once and never raise."""

from __future__ import annotations

from dataclasses import MISSING, fields

from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import chain
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.prompt import Kind, Prompt
from router.request.reasons import MEANINGS, Reason
from router.request.token_cache import TokenCache
from router.request.trail import trail_of_ids

SCHEME = Scheme(HashAlgorithm.SHA256_CBOR, 16)
IDS = list(range(64))


def _prompt(token_ids: list[int] | None, salt: str | None = None) -> Prompt:
    return Prompt(Kind.CHAT, "m", False, token_ids, 64, salt=salt)


def test_chain_has_the_salt_and_the_adapter() -> None:
    """The chain is the engine's for the prompt's salt and the adapter that is asked about."""
    lora = Lora("a", "/a")
    assert _prompt(IDS, salt="s").chain(SCHEME, lora) == chain(IDS, SCHEME, ExtraKeys(lora=lora, salt="s"))


def test_chain_is_computed_once_for_scheme_and_adapter() -> None:
    """The same question gives the same list, another scheme or adapter another one."""
    prompt = _prompt(IDS)
    first = prompt.chain(SCHEME, None)
    assert prompt.chain(Scheme(HashAlgorithm.SHA256_CBOR, 16), None) is first
    others = [prompt.chain(Scheme(HashAlgorithm.SHA256, 16), None), prompt.chain(SCHEME, Lora("a", "/a"))]
    assert first not in others


def test_no_ids_no_chain() -> None:
    """A prompt that was not understood has an empty chain."""
    assert _prompt(None).chain(SCHEME, None) == []


def test_unknown_root_no_chain() -> None:
    """Under a scheme whose root can't be known the chain is empty and nothing is raised."""
    assert _prompt(IDS).chain(Scheme(HashAlgorithm.XXHASH, 16), None) == []


def test_a_prompt_shorter_than_a_block_has_an_empty_chain() -> None:
    """15 tokens in blocks of 16 are no block (HASH-03)."""
    assert _prompt(IDS[:15]).chain(SCHEME, None) == []


def test_a_prompt_for_another_request_says_the_same() -> None:
    """No field is lost, and what is known of the chains is shared."""
    trail = trail_of_ids(list(range(512)), TokenCache(2**20))
    values = {"salt": "s", "media": (object(),), "reads_cache": False, "max_tokens": 7, "priority": 1, "n": 3}
    more = {"include_usage": True, "reason": Reason.MEDIA, "other_tokens": 5, "conversation": b"c", "trail": trail}
    prompt = Prompt(Kind.CHAT, "m", True, IDS, 64, **values, **more)
    # What a rendering took is told once: not of the next request that needs none.
    unlike = {field.name for field in fields(Prompt) if field.default is not MISSING} - {"render_s"}
    assert unlike == {*values, *more}
    again = prompt.again()
    assert {field.name: getattr(again, field.name) for field in fields(Prompt)} == {
        field.name: getattr(prompt, field.name) for field in fields(Prompt)
    }
    assert again.chains is prompt.chains


def test_repr_shows_no_prompt() -> None:
    """Neither ids nor salt show up in a log line that prints a prompt."""
    shown = repr(_prompt([987654321], salt="secret-salt"))
    assert "987654321" not in shown
    assert "secret-salt" not in shown


def test_every_reason_has_a_meaning() -> None:
    """The table of meanings is complete."""
    assert set(MEANINGS) == set(Reason)
