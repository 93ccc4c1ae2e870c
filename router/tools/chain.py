"""`warmroute chain`: what the router makes of one request, block by block.

It reads the body as the router does, and prints the token ids, the whole digest of each full block and how many tokens
the engine's cache can serve at most. Put it beside the engine's own events to see where two chains part.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from router.errors import ConfigurationError, Problem
from router.kv.extra_keys import ExtraKeys, Lora
from router.kv.hashes import block_hash, chain_digests, max_hit_tokens
from router.kv.schemes import HashAlgorithm, Scheme
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.table import load
from router.request.prompt import Prompt
from router.request.reader import PromptReader
from router.request.reasons import MEANINGS, Reason

MOST_BLOCK_TOKENS = 4096
"""As in `models[].block_size`."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `warmroute chain`."""
    parser.add_argument("--endpoint", required=True, metavar="PATH", help="/v1/completions, /v1/chat/completions...")
    parser.add_argument("--body", required=True, metavar="FILE", help="the request's body as sent; - is standard input")
    parser.add_argument(
        "--tokenizer", required=True, type=Path, metavar="DIR", help="folder with the tokenizer's files, or one file"
    )
    parser.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="the engine's --chat-template; default: the folder's own"
    )
    parser.add_argument("--block-size", required=True, metavar="N", help="tokens a block, 1 to 4096")
    parser.add_argument(
        "--hash-algo",
        default=HashAlgorithm.SHA256,
        choices=[algorithm.value for algorithm in HashAlgorithm],
        help="the engine's --prefix-caching-hash-algo (default: sha256, as in vLLM)",
    )
    parser.add_argument("--seed", metavar="S", help="the engine's PYTHONHASHSEED; default: it has none set")
    parser.add_argument("--lora", metavar="NAME=PATH", help="the adapter that the request runs with; default: none")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the chain; 0 when the request was understood, 1 when not.

    Raises:
        ConfigurationError: When an option can't be used.
    """
    problems: list[Problem] = []
    body = _read_body(args.body, problems)
    block_size = _block_size(args.block_size, problems)
    lora = _lora(args.lora, problems)
    try:
        text = load(args.tokenizer, args.chat_template)
    except TokenizerError as error:
        problems.append(Problem("--tokenizer", str(error)))
    scheme = Scheme(HashAlgorithm(args.hash_algo), block_size, args.seed)
    if not scheme.root_is_known:
        problems.append(
            Problem(
                "--seed",
                f"{args.hash_algo} without a seed has a random root in each engine process",
                "start the engine with PYTHONHASHSEED and give its value here",
            )
        )
    if problems:
        raise ConfigurationError(problems)
    prompt = PromptReader(lambda _: text).read(args.endpoint, body)
    if prompt.token_ids is None:
        return _refuse(prompt.reason or Reason.INTERNAL, as_json=args.json)
    extra = ExtraKeys(lora=lora, salt=prompt.salt, media=prompt.media)
    digests = chain_digests(prompt.token_ids, scheme, extra)
    most = max_hit_tokens(prompt.tokens, scheme.block_size) if prompt.reads_cache else 0
    if args.json:
        hashes = [digest.hex() for digest in digests]
        print(json.dumps({"token_ids": [*prompt.token_ids], "block_hashes": hashes, "max_hit_tokens": most}))
    else:
        print(_table(prompt, scheme, extra, digests, most))
    return 0


def _refuse(reason: Reason, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"token_ids": None, "block_hashes": [], "max_hit_tokens": 0, "reason": reason.value}))
    print(f"warmroute chain: not understood: {reason.value}: {MEANINGS[reason]}", file=sys.stderr)
    return 1


def _table(prompt: Prompt, scheme: Scheme, extra: ExtraKeys, digests: list[bytes], most: int) -> str:
    seed = "the engine's own" if scheme.seed is None else repr(scheme.seed)
    lines = [
        f"prompt     {prompt.tokens} tokens, of which the cache can serve {most} at most",
        f"scheme     {scheme.algorithm}, {scheme.block_size} tokens a block, seed {seed}",
        f"salt       {'yes' if extra.salt else 'none'}",
        f"adapter    {extra.lora.name if extra.lora else 'none'}",
    ]
    if not prompt.reads_cache:
        lines.append("note       it asks for logprobs of its prompt: the engine stores its blocks but reads none")
    lines += ["", f"{'block':>5}  {'tokens':>13}  {'identity':>20}  digest"]
    for place, digest in enumerate(digests):
        start = place * scheme.block_size
        tokens = f"{start}-{start + scheme.block_size - 1}"
        lines.append(f"{place:>5}  {tokens:>13}  {block_hash(digest):>20}  {digest.hex()}")
    left = prompt.tokens - len(digests) * scheme.block_size
    lines.append(f"{left} tokens after the last full block" if left else "no token after the last full block")
    return "\n".join(lines)


def _read_body(name: str, problems: list[Problem]) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        problems.append(Problem("--body", f"can't read {name}: {error.strerror}", "name a file, or - for stdin"))
        return b""


def _block_size(value: str, problems: list[Problem]) -> int:
    if value.isascii() and value.isdigit() and len(value) <= len(str(MOST_BLOCK_TOKENS)):
        size = int(value)
        if 1 <= size <= MOST_BLOCK_TOKENS:
            return size
    problems.append(Problem("--block-size", f"must be a number of tokens from 1 to {MOST_BLOCK_TOKENS}"))
    return 1


def _lora(value: str | None, problems: list[Problem]) -> Lora | None:
    if value is None:
        return None
    name, equals, path = value.partition("=")
    if not (name and equals and path):
        problems.append(Problem("--lora", "must be NAME=PATH"))
    return Lora(name, path)
