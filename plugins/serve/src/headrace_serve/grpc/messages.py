"""The messages of gRPC, in a descriptor pool of their own.

Code that protoc generates registers its messages in the default pool of the process, where two packages
with the same messages collide. This module has the messages as text, and makes them in a pool that no
other package uses. So tritonclient, kserve and others may be imported in the same process, in any order.

The field numbers come from the Open Inference Protocol with Triton's extensions (``grpc_service.proto``,
``model_config.proto``), from ``grpc.health.v1``, ``grpc.reflection`` and ``google.rpc``. Messages that the
server refuses are left out, and so are the fields of the model configuration that it never sets.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["FILES", "SERVICES", "message"]

_PROTOCOL: Final = """
InferParameter
  oneof parameter_choice
  bool bool_param 1
  int64 int64_param 2
  string string_param 3
  double double_param 4
  uint64 uint64_param 5
InferTensorContents
  repeated bool bool_contents 1
  repeated int32 int_contents 2
  repeated int64 int64_contents 3
  repeated uint32 uint_contents 4
  repeated uint64 uint64_contents 5
  repeated float fp32_contents 6
  repeated double fp64_contents 7
  repeated bytes bytes_contents 8
ServerLiveRequest
ServerLiveResponse
  bool live 1
ServerReadyRequest
ServerReadyResponse
  bool ready 1
ModelReadyRequest
  string name 1
  string version 2
ModelReadyResponse
  bool ready 1
ServerMetadataRequest
ServerMetadataResponse
  string name 1
  string version 2
  repeated string extensions 3
ModelMetadataRequest
  string name 1
  string version 2
ModelMetadataResponse
  string name 1
  repeated string versions 2
  string platform 3
  repeated ModelMetadataResponse.TensorMetadata inputs 4
  repeated ModelMetadataResponse.TensorMetadata outputs 5
ModelMetadataResponse.TensorMetadata
  string name 1
  string datatype 2
  repeated int64 shape 3
ModelInferRequest
  string model_name 1
  string model_version 2
  string id 3
  map InferParameter parameters 4
  repeated ModelInferRequest.InferInputTensor inputs 5
  repeated ModelInferRequest.InferRequestedOutputTensor outputs 6
  repeated bytes raw_input_contents 7
ModelInferRequest.InferInputTensor
  string name 1
  string datatype 2
  repeated int64 shape 3
  map InferParameter parameters 4
  InferTensorContents contents 5
ModelInferRequest.InferRequestedOutputTensor
  string name 1
  map InferParameter parameters 2
ModelInferResponse
  string model_name 1
  string model_version 2
  string id 3
  map InferParameter parameters 4
  repeated ModelInferResponse.InferOutputTensor outputs 5
  repeated bytes raw_output_contents 6
ModelInferResponse.InferOutputTensor
  string name 1
  string datatype 2
  repeated int64 shape 3
  map InferParameter parameters 4
  InferTensorContents contents 5
ModelStreamInferResponse
  string error_message 1
  ModelInferResponse infer_response 2
ModelConfigRequest
  string name 1
  string version 2
ModelConfigResponse
  ModelConfig config 1
ModelConfig
  string name 1
  string platform 2
  ModelVersionPolicy version_policy 3
  int32 max_batch_size 4
  repeated ModelInput input 5
  repeated ModelOutput output 6
  repeated ModelInstanceGroup instance_group 7
  ModelDynamicBatching dynamic_batching 11
  string backend 17
  ModelTransactionPolicy model_transaction_policy 19
ModelTransactionPolicy
  bool decoupled 1
ModelInstanceGroup
  string name 1
  int32 count 2
  enum Kind kind 4
ModelDynamicBatching
  repeated int32 preferred_batch_size 1
  uint64 max_queue_delay_microseconds 2
ModelVersionPolicy
  ModelVersionPolicy.All all 2
ModelVersionPolicy.All
ModelInput
  string name 1
  enum DataType data_type 2
  repeated int64 dims 4
  bool optional 8
ModelOutput
  string name 1
  enum DataType data_type 2
  repeated int64 dims 3
ModelStatisticsRequest
  string name 1
  string version 2
ModelStatisticsResponse
  repeated ModelStatistics model_stats 1
ModelStatistics
  string name 1
  string version 2
  uint64 last_inference 3
  uint64 inference_count 4
  uint64 execution_count 5
  InferStatistics inference_stats 6
  repeated InferBatchStatistics batch_stats 7
StatisticDuration
  uint64 count 1
  uint64 ns 2
InferStatistics
  StatisticDuration success 1
  StatisticDuration fail 2
  StatisticDuration queue 3
  StatisticDuration compute_input 4
  StatisticDuration compute_infer 5
  StatisticDuration compute_output 6
  StatisticDuration cache_hit 7
  StatisticDuration cache_miss 8
InferBatchStatistics
  uint64 batch_size 1
  StatisticDuration compute_input 2
  StatisticDuration compute_infer 3
  StatisticDuration compute_output 4
SystemSharedMemoryStatusRequest
  string name 1
SystemSharedMemoryStatusResponse
  map SystemSharedMemoryStatusResponse.RegionStatus regions 1
SystemSharedMemoryStatusResponse.RegionStatus
  string name 1
  string key 2
  uint64 offset 3
  uint64 byte_size 4
SystemSharedMemoryRegisterRequest
  string name 1
  string key 2
  uint64 offset 3
  uint64 byte_size 4
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest
  string name 1
SystemSharedMemoryUnregisterResponse
CudaSharedMemoryStatusRequest
  string name 1
CudaSharedMemoryStatusResponse
  map CudaSharedMemoryStatusResponse.RegionStatus regions 1
CudaSharedMemoryStatusResponse.RegionStatus
  string name 1
  uint64 device_id 2
  uint64 byte_size 3
CudaSharedMemoryUnregisterRequest
  string name 1
CudaSharedMemoryUnregisterResponse
ModelRepositoryParameter
  oneof parameter_choice
  bool bool_param 1
  int64 int64_param 2
  string string_param 3
  bytes bytes_param 4
RepositoryModelLoadRequest
  string repository_name 1
  string model_name 2
  map ModelRepositoryParameter parameters 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest
  string repository_name 1
  string model_name 2
  map ModelRepositoryParameter parameters 3
RepositoryModelUnloadResponse
RepositoryIndexRequest
  string repository_name 1
  bool ready 2
RepositoryIndexResponse
  repeated RepositoryIndexResponse.ModelIndex models 1
RepositoryIndexResponse.ModelIndex
  string name 1
  string version 2
  string state 3
  string reason 4
"""

_DATA_TYPES: Final = (
    "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8",
    "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
)  # fmt: skip

_HEALTH: Final = """
HealthCheckRequest
  string service 1
HealthCheckResponse
  enum ServingStatus status 1
"""

_SERVING: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

_REFLECTION: Final = """
ExtensionRequest
  string containing_type 1
  int32 extension_number 2
ServerReflectionRequest
  oneof message_request
  string file_by_filename 3
  string file_containing_symbol 4
  ExtensionRequest file_containing_extension 5
  string all_extension_numbers_of_type 6
  string list_services 7
  plain string host 1
ServerReflectionResponse
  string valid_host 1
  ServerReflectionRequest original_request 2
  FileDescriptorResponse file_descriptor_response 4
  ListServiceResponse list_services_response 6
  ErrorResponse error_response 7
FileDescriptorResponse
  repeated bytes file_descriptor_proto 1
ListServiceResponse
  repeated ServiceResponse service 1
ServiceResponse
  string name 1
ErrorResponse
  int32 error_code 1
  string error_message 2
"""

_RPC: Final = """
Status
  int32 code 1
  string message 2
  repeated Detail details 3
Detail
  string type_url 1
  bytes value 2
RetryInfo
  RetryDelay retry_delay 1
RetryDelay
  int64 seconds 1
"""
"""``google.rpc.Status`` with its parts; Detail is ``google.protobuf.Any``, RetryDelay is Duration."""

_INFERENCE_METHODS: Final = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
    "ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad",
    "RepositoryModelUnload", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus", "CudaSharedMemoryUnregister",
)  # fmt: skip

_SCALARS: Final = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group",
    "message", "bytes", "uint32",
)  # fmt: skip
"""Types of fields in the order of their numbers, which begin at 1."""

_Field = descriptor_pb2.FieldDescriptorProto


def _file(name: str, package: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    """Make the descriptor of a file from a text of messages, such as `_PROTOCOL`."""
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    messages: dict[str, Any] = {}
    current: Any = None
    choice = False
    for line in text.strip().splitlines():
        if line.startswith(" "):
            choice = _field(current, package, line.split(), choice=choice)
            continue
        outer, _, inner = line.rpartition(".")
        current = messages[outer].nested_type.add() if outer else made.message_type.add()
        current.name = inner
        messages[line] = current
        choice = False
    return made


def _field(current: Any, package: str, words: list[str], *, choice: bool) -> bool:
    """Add the field of one line; return whether the fields of the next lines belong to a ``oneof``."""
    if words[0] == "oneof":
        current.oneof_decl.add(name=words[1])
        return True
    kind = words.pop(0) if words[0] in ("repeated", "map", "enum", "plain") else ""
    type_name, name, number = words
    field = current.field.add(name=name, number=int(number))
    repeated = kind in ("repeated", "map")
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if kind == "map":
        entry = current.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, type=_Field.TYPE_STRING)
        key.label = _Field.LABEL_OPTIONAL
        value = entry.field.add(name="value", number=2, type=_Field.TYPE_MESSAGE)
        value.label = _Field.LABEL_OPTIONAL
        value.type_name = f".{package}.{type_name}"
        field.type, field.type_name = _Field.TYPE_MESSAGE, entry.name
    elif type_name in _SCALARS:
        field.type = _SCALARS.index(type_name) + 1
    else:
        field.type = _Field.TYPE_ENUM if kind == "enum" else _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{type_name}"
    if choice and kind != "plain":
        field.oneof_index = 0
    return choice


def _enum(file: Any, name: str, values: tuple[str, ...]) -> None:
    made = file.enum_type.add(name=name)
    for number, value in enumerate(values):
        made.value.add(name=value, number=number)


def _service(file: Any, name: str, methods: dict[str, tuple[str, str, bool, bool]]) -> None:
    """Add a service; each method has its request, its response, and whether each of the two is a stream."""
    made = file.service.add(name=name)
    for method, (asked, answered, sends, receives) in methods.items():
        made.method.add(
            name=method,
            input_type=f".{file.package}.{asked}",
            output_type=f".{file.package}.{answered}",
            client_streaming=sends,
            server_streaming=receives,
        )


def _files() -> list[descriptor_pb2.FileDescriptorProto]:
    protocol = _file("grpc_service.proto", "inference", _PROTOCOL)
    _enum(protocol, "DataType", _DATA_TYPES)
    _enum(protocol, "Kind", ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"))
    methods = {m: (f"{m}Request", f"{m}Response", False, False) for m in _INFERENCE_METHODS}
    methods["ModelStreamInfer"] = ("ModelInferRequest", "ModelStreamInferResponse", True, True)
    _service(protocol, "GRPCInferenceService", methods)
    health = _file("grpc/health/v1/health.proto", "grpc.health.v1", _HEALTH)
    _enum(health, "ServingStatus", _SERVING)
    names = ("HealthCheckRequest", "HealthCheckResponse")
    _service(health, "Health", {"Check": (*names, False, False), "Watch": (*names, False, True)})
    reflections = []
    for version in ("v1", "v1alpha"):
        package = f"grpc.reflection.{version}"
        one = _file(f"{package.replace('.', '/')}/reflection.proto", package, _REFLECTION)
        names = ("ServerReflectionRequest", "ServerReflectionResponse")
        _service(one, "ServerReflection", {"ServerReflectionInfo": (*names, True, True)})
        reflections.append(one)
    return [protocol, health, *reflections, _file("google/rpc/status.proto", "google.rpc", _RPC)]


FILES: Final = _files()
"""The descriptors of all files."""

SERVICES: Final = [f"{file.package}.{one.name}" for file in FILES for one in file.service]
"""The full names of all services."""

_pool = descriptor_pool.DescriptorPool()
for _one in FILES:
    _pool.Add(_one)


def message(name: str) -> Any:
    """Give the class of a message by its full name."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))
