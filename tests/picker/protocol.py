"""ext_proc's messages by Google's own runtime, which the picker does without: what its bytes are held against.

`ext_proc.json` holds Envoy's descriptors of them (envoy 1.40's API, Apache-2.0), without options and the messages
that are not used here. Their package is not installed: it brings an old copy of OpenTelemetry's messages along.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    struct_pb2,
    wrappers_pb2,
)

_pool = descriptor_pool.DescriptorPool()
for _file in (any_pb2, duration_pb2, struct_pb2, wrappers_pb2):
    _pool.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
for _proto in json_format.Parse(
    Path(__file__).with_name("ext_proc.json").read_text(), descriptor_pb2.FileDescriptorSet()
).file:
    _pool.Add(_proto)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


ProcessingRequest = _message("envoy.service.ext_proc.v3.ProcessingRequest")
ProcessingResponse = _message("envoy.service.ext_proc.v3.ProcessingResponse")
HttpBody = _message("envoy.service.ext_proc.v3.HttpBody")
HttpTrailers = _message("envoy.service.ext_proc.v3.HttpTrailers")
