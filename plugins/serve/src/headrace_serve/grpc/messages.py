"""The messages of gRPC, in a descriptor pool of their own.

Code that protoc generates registers its messages in the default pool of the process, where two packages
with the same messages collide. This module reads their descriptors from ``messages.textproto``, a
``FileDescriptorSet`` in protobuf's text format, into a pool that no other package uses. So tritonclient, kserve and
others may be imported in the same process, in any order.

The field numbers come from the Open Inference Protocol with Triton's extensions (``grpc_service.proto``,
``model_config.proto``), from ``grpc.health.v1``, ``grpc.reflection`` and ``google.rpc``. Messages that the
server refuses are left out, and so are the fields of the model configuration that it never sets.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

__all__ = ["FILES", "SERVICES", "message"]


def _files() -> list[descriptor_pb2.FileDescriptorProto]:
    text = files(__package__).joinpath("messages.textproto").read_text(encoding="utf-8")
    parsed = text_format.Parse(text, descriptor_pb2.FileDescriptorSet())
    (reflection,) = (file for file in parsed.file if file.package == "grpc.reflection.v1")
    older = text_format.MessageToString(reflection).replace("reflection.v1", "reflection.v1alpha")
    older = older.replace("reflection/v1", "reflection/v1alpha")
    return [*parsed.file, text_format.Parse(older, descriptor_pb2.FileDescriptorProto())]


FILES: Final = _files()
"""The descriptors of all files."""

SERVICES: Final = [f"{file.package}.{service.name}" for file in FILES for service in file.service]
"""The full names of all services."""

_pool = descriptor_pool.DescriptorPool()
for _one in FILES:
    _pool.Add(_one)


def message(name: str) -> Any:
    """Give the class of a message by its full name."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))
