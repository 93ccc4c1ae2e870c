"""The process that renders chat templates from outside; see `router.request.client_templates`.

It reads requests from standard input and answers on standard output, each a length of 4 bytes and JSON. It may use a
limited amount of memory, writes no files, and ends with its standard input.
"""

from __future__ import annotations

import json
import resource
import sys
from functools import lru_cache
from typing import Any

from router.request.chat import ChatRenderer, Dialect
from router.request.reasons import NotUnderstoodError, Reason
from router.request.render import ChatTemplate

MEMORY_BYTES = 2**30
_LENGTH_BYTES = 4


def main() -> None:
    """Answer requests until there are no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(bytes(_LENGTH_BYTES))
    sink.flush()
    while len(head := source.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        answer = json.dumps(_answer(source.read(int.from_bytes(head, "big")))).encode()
        sink.write(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
        sink.flush()


def _answer(data: bytes) -> dict[str, Any]:
    try:
        request: dict[str, Any] = json.loads(data)
        chat = ChatRenderer(
            {name: _template(source) for name, source in request["sources"].items()},
            request["special_tokens"],
            request["defaults"],
            request["max_chars"],
        )
        body, dialect = request["body"], Dialect(*request["dialect"])
        match request["what"]:
            case "render":
                return {"text": chat.render(body, dialect)}
            case "before_media":
                text, chars = chat.before_media(body, dialect)
                return {"text": text, "chars": chars}
            case "merges_inline_system":
                return {"merges": chat.merges_inline_system()}
            case _:  # `check`: they were compiled
                return {}
    except NotUnderstoodError as error:
        return {"reason": error.reason.value}
    except Exception:  # of memory or depth, or a fault of ours: the next request is answered all the same
        return {"reason": Reason.TEMPLATE_ERROR.value}


@lru_cache(maxsize=16)
def _template(source: str) -> ChatTemplate:
    """Clients send the same template with each request."""
    return ChatTemplate(source)


if __name__ == "__main__":
    main()
