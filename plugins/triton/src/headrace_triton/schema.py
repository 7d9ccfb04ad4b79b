"""The messages of a ``config.pbtxt``: which fields each has, of which type, and what becomes of each here.

Source: ``model_config.proto`` of Triton, as tritonclient 2.73.0 has it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace_formats.reader_table import Mark, Row

__all__ = ["DATATYPES", "ENUMS", "MESSAGES", "ONE_OF", "Field"]

_MESSAGES: Final = """
ModelConfig +name:text +platform:text +backend:text -runtime:text +version_policy:VersionPolicy +max_batch_size:int
  +input:ModelInput* +output:ModelOutput* -batch_input:BatchInput* -batch_output:BatchOutput* ~optimization:Optimization
  +dynamic_batching:DynamicBatching +sequence_batching:SequenceBatching +ensemble_scheduling:Ensemble
  +instance_group:InstanceGroup* +default_model_filename:text -cc_model_filenames:text{} ~metric_tags:text{}
  +parameters:Parameter{} ~model_warmup:Warmup* -model_operations:Operations +model_transaction_policy:TransactionPolicy
  -model_repository_agents:Agents ~response_cache:ResponseCache ~model_metrics:Metrics
VersionPolicy +latest:Latest +all:Nothing +specific:Specific
Latest +num_versions:uint
Specific +versions:int*
Nothing
ModelInput +name:text +data_type:DataType =format:Format +dims:int* +reshape:Reshape =is_shape_tensor:bool
  =allow_ragged_batch:bool +optional:bool -is_non_linear_format_io:bool
ModelOutput +name:text +data_type:DataType +dims:int* +reshape:Reshape +label_filename:text =is_shape_tensor:bool
  -is_non_linear_format_io:bool
Reshape +shape:int*
BatchInput kind:BatchInputKind target_name:text* data_type:DataType source_input:text*
BatchOutput target_name:text* kind:BatchOutputKind source_input:text*
Optimization graph:Graph priority:Priority cuda:Cuda execution_accelerators:Accelerators input_pinned_memory:Enabled
  output_pinned_memory:Enabled gather_kernel_buffer_threshold:uint eager_batching:bool
Graph level:int
Cuda graphs:bool busy_wait_events:bool graph_spec:GraphSpec* output_copy_stream:bool
GraphSpec batch_size:int input:GraphShape{} graph_lower_bound:GraphLowerBound
GraphLowerBound batch_size:int input:GraphShape{}
GraphShape dim:int*
Accelerators gpu_execution_accelerator:Accelerator* cpu_execution_accelerator:Accelerator*
Accelerator name:text parameters:text{}
Enabled enable:bool
DynamicBatching ~preferred_batch_size:int* +max_queue_delay_microseconds:uint =preserve_ordering:bool =priority_levels:uint
  ~default_priority_level:uint +default_queue_policy:QueuePolicy -priority_queue_policy:QueuePolicy{}
QueuePolicy +timeout_action:TimeoutAction +default_timeout_microseconds:uint +allow_timeout_override:bool
  +max_queue_size:uint
SequenceBatching +direct:Direct -oldest:Oldest +max_sequence_idle_microseconds:uint +control_input:ControlInput*
  +state:State* -iterative_sequence:bool
Direct ~max_queue_delay_microseconds:uint =minimum_slot_utilization:number
Oldest max_candidate_sequences:int preferred_batch_size:int* max_queue_delay_microseconds:uint preserve_ordering:bool
ControlInput +name:text +control:Control*
Control +kind:ControlKind +int32_false_true:int* +fp32_false_true:number* +bool_false_true:bool* +data_type:DataType
State +input_name:text +output_name:text +data_type:DataType +dims:int* +initial_state:InitialState*
  =use_same_buffer_for_input_output:bool =use_growable_memory:bool
InitialState +data_type:DataType +dims:int* +zero_data:bool +data_file:text =name:text
Ensemble +step:Step* ~max_inflight_requests:uint
Step +model_name:text +model_version:int +input_map:text{} +output_map:text{} -model_namespace:text
InstanceGroup =name:text +kind:InstanceKind +count:int ~rate_limiter:RateLimiter +gpus:int* -secondary_devices:Secondary*
  ~profile:text* -passive:bool ~host_policy:text
RateLimiter resources:Resource* priority:uint
Resource name:text global:bool count:uint
Secondary kind:SecondaryKind device_id:int
Parameter +string_value:text
Warmup name:text batch_size:uint inputs:WarmupInput{} count:uint
WarmupInput data_type:DataType dims:int* zero_data:bool random_data:bool input_data_file:text
Operations op_library_filename:text*
TransactionPolicy +decoupled:bool
Agents agents:Agent*
Agent name:text parameters:text{}
ResponseCache enable:bool
Metrics metric_control:MetricControl*
MetricControl metric_identifier:MetricIdentifier histogram_options:HistogramOptions
MetricIdentifier family:text
HistogramOptions buckets:number*
"""
"""The fields of each message, each behind its mark. Those of a message that is not obeyed have none: they share its fate."""

_MARKS: Final[dict[str, Mark]] = {"+": "obeyed", "-": "refused", "~": "left out", "=": "harmless"}

_WHY: Final = {
    "ModelConfig.runtime": "name `backend`, whose library runs the model",
    "ModelConfig.batch_input": "a backend gets the list of requests",
    "ModelConfig.batch_output": "a backend gets the list of requests",
    "ModelConfig.optimization": "the backend chooses by itself, and its options change that",
    "ModelConfig.cc_model_filenames": "name one file in `default_model_filename`",
    "ModelConfig.metric_tags": "metrics have the names of model and node alone",
    "ModelConfig.model_warmup": "a backend warms up by itself: its option `warm_up_input` names real data",
    "ModelConfig.model_operations": "the key `import` of a pipeline brings code of yours",
    "ModelConfig.model_repository_agents": "files are served as they are",
    "ModelConfig.response_cache": "answers are not cached: that takes Cache[X] of headrace-flow",
    "ModelConfig.model_metrics": "the bounds of histograms are an option of Prometheus",
    "ModelInput.format": "a picture comes as the model has its axes, and clients are told the format",
    "ModelInput.is_shape_tensor": "an engine says itself which of its tensors are shapes",
    "ModelInput.allow_ragged_batch": "requests of any shapes wait together, and a run takes those that it can",
    "ModelInput.is_non_linear_format_io": "tensors are linear",
    "ModelOutput.is_shape_tensor": "an engine says itself which of its tensors are shapes",
    "ModelOutput.is_non_linear_format_io": "tensors are linear",
    "DynamicBatching.preferred_batch_size": "a batch takes all that waits, up to `max`: `batch_sizes` are the only ones that run",
    "DynamicBatching.preserve_ordering": "each caller gets its own answer",
    "DynamicBatching.priority_levels": "a request has the priority that it says, of any number of levels",
    "DynamicBatching.default_priority_level": "headrace serve has one default for all models, --priority-default",
    "DynamicBatching.priority_queue_policy": "one bound holds for all priorities: `default_queue_policy`",
    "SequenceBatching.oldest": "a state travels with its request, so write `direct`",
    "SequenceBatching.iterative_sequence": "Iterate of headrace-flow runs step by step",
    "Direct.max_queue_delay_microseconds": "a batch of sequences takes what waits",
    "Direct.minimum_slot_utilization": "a state travels with its request, and takes no slot",
    "State.use_same_buffer_for_input_output": "it changes where a state lies, not its values",
    "State.use_growable_memory": "it changes where a state lies, not its values",
    "InitialState.name": "it is a name for logs",
    "Ensemble.max_inflight_requests": "the queues of the models bound them",
    "Step.model_namespace": "models of all repositories have one space of names",
    "InstanceGroup.name": "instances are numbered",
    "InstanceGroup.rate_limiter": "instances run when they are idle: Concurrency[X] of headrace-flow bounds them",
    "InstanceGroup.secondary_devices": "an instance has one device",
    "InstanceGroup.profile": "instance i uses profile i",
    "InstanceGroup.passive": "each instance takes requests",
    "InstanceGroup.host_policy": "the process is bound to cores and memory by numactl and taskset",
}
"""Why a field is not obeyed, and what holds or what to do in its place."""

DATATYPES: Final = {
    "TYPE_BOOL": "BOOL",
    **{f"TYPE_{k}{bits}": f"{k}{bits}" for k in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    **{f"TYPE_FP{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "TYPE_STRING": "BYTES",
    "TYPE_BF16": "BF16",
}
"""The datatype of the protocol for each of a configuration, in the order of their numbers, from 1."""

_ENUMS: Final = """
Format FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
BatchInputKind BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN
BatchOutputKind BATCH_SCATTER_WITH_INPUT_SHAPE
Priority PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
TimeoutAction REJECT DELAY
ControlKind CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END CONTROL_SEQUENCE_CORRID
InstanceKind KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
SecondaryKind KIND_NVDLA
"""


def _lines(text: str) -> dict[str, list[str]]:
    """Return the words of each line by its first one; a line that begins with spaces goes on."""
    split = (line.split() for line in text.strip().replace("\n  ", " ").split("\n"))
    return {first: words for first, *words in split}


ENUMS: Final = {"DataType": ["TYPE_INVALID", *DATATYPES], **_lines(_ENUMS)}
"""The names of each enumeration, the default first."""

ONE_OF: Final = {
    "ModelConfig": ("dynamic_batching", "sequence_batching", "ensemble_scheduling"),
    "VersionPolicy": ("latest", "all", "specific"),
    "SequenceBatching": ("direct", "oldest"),
    "InitialState": ("zero_data", "data_file"),
    "WarmupInput": ("zero_data", "random_data", "input_data_file"),
}
"""Fields of which a message has one at most."""


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        type: ``text``, ``int``, ``uint``, ``number``, ``bool``, or the name of an enumeration or message.
        repeated: Whether it may stand there several times.
        mapped: Whether each value is a pair of ``key`` and ``value``.
        row: What becomes of it.
    """

    type: str
    repeated: bool = False
    mapped: bool = False
    row: Row = Row()


def _field(message: str, text: str) -> tuple[str, Field]:
    name, kind = text.split(":")
    mark = _MARKS.get(name[0], "")
    name = name.removeprefix(name[0]) if mark else name
    why = _WHY[f"{message}.{name}"] if mark not in ("", "obeyed") else ""
    row = Row(mark, why)
    return name, Field(kind.rstrip("*{}"), kind.endswith("*"), kind.endswith("{}"), row)


MESSAGES: Final = {
    kind: dict(_field(kind, word) for word in words) for kind, words in _lines(_MESSAGES).items()
}
"""The fields of each message, by name."""
