"""The messages of the Open Inference Protocol that a client needs, in a descriptor pool of their own.

Code that protoc generates registers its messages in the default pool of the process, where two packages with the
same messages collide. In a pool of their own they do not. A ``map`` is declared here as the repeated message of key
and value that it is on the wire, and a ``oneof`` as its fields.

The field numbers are those of ``grpc_service.proto`` of the Open Inference Protocol, with ``ModelConfig`` of Triton's
``model_config.proto``. What a client does not read is left out.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["SERVICE", "message"]

SERVICE: Final = "inference.GRPCInferenceService"

_TENSOR: Final = "string name 1, string datatype 2, repeated int64 shape 3"
_NAMED: Final = "string name 1, string version 2"
_MESSAGES: Final = {
    "InferParameter": "bool bool_param 1, int64 int64_param 2, string string_param 3",
    "Parameter": "string key 1, InferParameter value 2",
    "InferTensorContents": "repeated bool bool_contents 1, repeated int32 int_contents 2, "
    "repeated int64 int64_contents 3, repeated uint32 uint_contents 4, repeated uint64 uint64_contents 5, "
    "repeated float fp32_contents 6, repeated double fp64_contents 7, repeated bytes bytes_contents 8",
    "Tensor": f"{_TENSOR}, repeated Parameter parameters 4, InferTensorContents contents 5",
    "TensorMetadata": _TENSOR,
    "RequestedOutput": "string name 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1, string version 2",
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": "bool ready 1",
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": "string name 1, repeated string versions 2, string platform 3, "
    "repeated TensorMetadata inputs 4, repeated TensorMetadata outputs 5",
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": "ModelConfig config 1",
    "ModelConfig": "int32 max_batch_size 4, repeated ModelInput input 5, "
    "ModelTransactionPolicy model_transaction_policy 19",
    "ModelTransactionPolicy": "bool decoupled 1",
    "ModelInput": "string name 1, repeated int64 dims 4, bool optional 8",
    "ModelInferRequest": "string model_name 1, string model_version 2, string id 3, "
    "repeated Parameter parameters 4, repeated Tensor inputs 5, repeated RequestedOutput outputs 6, "
    "repeated bytes raw_input_contents 7",
    "ModelInferResponse": "string model_name 1, string model_version 2, string id 3, "
    "repeated Parameter parameters 4, repeated Tensor outputs 5, repeated bytes raw_output_contents 6",
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes")
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="headrace_remote.proto", package="inference", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        entry = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            *repeated, kind, field, number = text.split()
            added = entry.field.add(name=field, number=int(number))
            added.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".inference.{kind}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str) -> Any:
    """Return the class of a message by its name."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))
