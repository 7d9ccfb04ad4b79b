"""The names that Triton's module has for a model.py: each is here, or refused at load by its name."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace_triton.python import interface
from headrace_triton.python.source import NOT_HERE
from headrace_triton.repository import read_repository

TRITON = """
InferenceRequest async_exec correlation_id exec flags get_response_sender inputs is_cancelled parameters request_id
  requested_output_names set_flags set_release_flags timeout trace
InferenceResponse error has_error output_tensors
Logger ERROR INFO LogLevel VERBOSE WARNING log log_error log_info log_verbose log_warn
MetricFamily COUNTER GAUGE HISTOGRAM Metric
ModelConfig add_input add_output as_dict set_dynamic_batching set_max_batch_size set_model_transaction_policy
PreferredMemory
TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
TRITONSERVER_REQUEST_RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
TRITONSERVER_RESPONSE_COMPLETE_FINAL
TRITON_STRING_TO_NUMPY
Tensor as_numpy from_dlpack is_cpu name shape to_dlpack triton_dtype
TritonError ALREADY_EXISTS CANCELLED INTERNAL INVALID_ARG NOT_FOUND UNAVAILABLE UNKNOWN UNSUPPORTED code message
TritonModelException args with_traceback
deserialize_bytes_tensor
get_input_config_by_name
get_input_tensor_by_name
get_model_dir
get_output_config_by_name
get_output_tensor_by_name
is_model_ready
load_model
numpy_to_triton_type
serialize_byte_tensor
triton_string_to_numpy
triton_to_numpy_type
unload_model
using_decoupled_model_transaction_policy
"""
"""The names, and behind a class those of it: what ``dir`` gave in a model.py under the Triton 2.51.0 of PyTriton 0.7.0.

In ``execute``: ``{one: [n for n in dir(getattr(pb_utils, one)) if n[0] != "_"] for one in dir(pb_utils) if one[0] != "_"}``.
"""
NEWER = {
    "InferenceResponse": ["parameters"],
    "InferenceTrace": ["get_context"],
    "Metric": ["increment", "observe", "set", "value"],
    "ResponseIterator": ["cancel"],
}
"""What ``src/pb_stub.cc`` of python_backend has besides, with classes that the module does not name."""


def lines():
    return [one.split() for one in TRITON.strip().replace("\n  ", " ").splitlines()]


@pytest.mark.parametrize("line", lines(), ids=lambda line: line[0])
def test_each_name_of_tritons_module_is_here_or_refused_by_its_name(line):
    name, *inside = line
    if name in NOT_HERE:
        with pytest.raises(AttributeError, match=rf"no attribute '{name}' here\. \w"):
            getattr(interface, name)
        return
    found = getattr(interface, name)
    assert [one for one in inside if not hasattr(found, one)] == []


def test_what_is_refused_is_a_name_of_tritons():
    assert {*NOT_HERE} <= {name for name, *_ in lines()}


def test_newer_names_are_here():
    from headrace_triton.python import messages, metrics

    classes = {**vars(interface), **vars(metrics), **vars(messages)}
    assert [
        f"{name}.{one}"
        for name, inside in NEWER.items()
        for one in inside
        if not hasattr(classes[name], one)
    ] == []


def test_any_other_name_is_none():
    with pytest.raises(AttributeError, match="no attribute 'get_input_tensor'"):
        interface.get_input_tensor  # noqa: B018


MODEL = """import triton_python_backend_utils{alias}

class TritonPythonModel:
    def initialize(self, args):
        {use}
    def execute(self, requests):
        return None
"""


@pytest.mark.parametrize(
    ("alias", "use", "column"),
    [
        (" as pb_utils", "pb_utils.load_model('other')", 9),
        ("", "    triton_python_backend_utils.load_model('other')".lstrip(), 9),
        (" as p", "self.load = [p.load_model]", 22),
    ],
)
def test_a_name_that_is_not_here_is_refused_when_the_repository_is_read(
    repository, alias, use, column
):
    repository.python("m", 'backend: "python"\n', MODEL.format(alias=alias, use=use))
    with pytest.raises(ConfigError) as caught:
        read_repository(repository.folder)
    (problem,) = caught.value.problems
    assert problem.file == str(repository.folder / "m" / "1" / "model.py")
    assert (problem.line, problem.column) == (5, column)
    assert "`load_model` of pb_utils has no counterpart here" in problem.message
    assert "--allow repository" in problem.hint


def test_a_name_that_is_imported_is_refused_too(repository):
    code = "from triton_python_backend_utils import Tensor, unload_model\n" + MODEL.format(
        alias="", use="pass"
    )
    repository.python("m", 'backend: "python"\n', code)
    with pytest.raises(ConfigError, match=r"model\.py:1:1: `unload_model`"):
        read_repository(repository.folder)


@pytest.mark.parametrize("use", ["self.load_model(1)", "args.load_model", "load_model = 1"])
def test_the_same_name_of_something_else_is_none_of_it(repository, use):
    repository.python("m", 'backend: "python"\n', MODEL.format(alias=" as pb_utils", use=use))
    assert [*read_repository(repository.folder)] == ["m"]


def test_code_that_is_no_python_is_refused_with_its_line(repository):
    repository.python("m", 'backend: "python"\n', MODEL.format(alias="", use="def def"))
    with pytest.raises(ConfigError, match=r"model\.py:5:\d+: it is no Python: invalid syntax"):
        read_repository(repository.folder)
