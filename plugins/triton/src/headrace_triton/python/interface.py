"""What ``import triton_python_backend_utils`` gives to a ``model.py``."""

from __future__ import annotations

import json
import logging
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_triton.python import tensors
from headrace_triton.python.messages import (
    FINAL,
    RELEASE_ALL,
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    ResponseSender,
    TritonError,
)
from headrace_triton.python.metrics import COUNTER, GAUGE, MetricFamily
from headrace_triton.python.source import NOT_HERE
from headrace_triton.python.tensors import Tensor, TritonModelException

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "COUNTER", "GAUGE", "InferenceRequest", "InferenceResponse", "InferenceResponseSender",
    "InferenceTrace", "Logger", "MetricFamily", "ModelConfig", "PreferredMemory", "Tensor", "TritonError",
    "TritonModelException", "deserialize_bytes_tensor", "get_input_config_by_name",
    "get_input_tensor_by_name", "get_model_dir", "get_output_config_by_name",
    "get_output_tensor_by_name", "is_model_ready", "numpy_to_triton_type", "serialize_byte_tensor",
    "triton_string_to_numpy", "triton_to_numpy_type", "using_decoupled_model_transaction_policy",
]  # fmt: skip

TRITONSERVER_RESPONSE_COMPLETE_FINAL, TRITONSERVER_REQUEST_RELEASE_ALL = FINAL, RELEASE_ALL
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 1, 2
TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU = 0, 1
TRITON_STRING_TO_NUMPY = tensors.NUMPY
InferenceResponseSender = ResponseSender

_logger = logging.getLogger("headrace.triton")


class PreferredMemory:
    """Where the outputs of a call are wanted. They are always in memory of the CPU."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.kind, self.device = preferred_memory_type, preferred_device_id


class Logger:
    """Logs to the logger ``headrace.triton`` of the server."""

    INFO, WARNING, ERROR, VERBOSE = "INFO", "WARNING", "ERROR", "VERBOSE"

    class LogLevel:
        """The levels."""

        INFO, WARNING, ERROR, VERBOSE = "INFO", "WARNING", "ERROR", "VERBOSE"

    @staticmethod
    def log(message: str, level: str = "INFO") -> None:
        """Log a message."""
        _logger.log(logging.DEBUG if level == "VERBOSE" else getattr(logging, level), "%s", message)

    log_info = staticmethod(_logger.info)
    log_warn = staticmethod(_logger.warning)
    log_error = staticmethod(_logger.error)
    log_verbose = staticmethod(_logger.debug)


def __getattr__(name: str) -> Any:
    hint = NOT_HERE.get(name)
    problem = f"module 'triton_python_backend_utils' has no attribute {name!r}"
    raise AttributeError(problem if hint is None else f"{problem} here. {hint}")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model of the server takes requests.

    Args:
        model_name: Its name.
        model_version: Its version, digits. ``""``: any that its name means.

    Raises:
        TritonModelException: The version is no number above 0, or there are no models beside this one.
    """
    if model_version and not (model_version.isdecimal() and int(model_version)):
        raise TritonModelException(f"a version is a number above 0, got {model_version!r}")
    return InferenceRequest.ready(model_name, model_version)


def get_model_dir() -> str:
    """Return the folder of the version of the model whose file calls this."""
    return str(Path(sys._getframe(1).f_globals["__file__"]).resolve().parent)


def _named(tensors: list[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input of a request. None without it."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output of a response. None without it."""
    return _named(inference_response.output_tensors(), name)


def _by_name(side: str) -> Callable[[Mapping[str, Any], str], dict[str, Any] | None]:
    def find(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        return next((port for port in model_config.get(side, ()) if port["name"] == name), None)

    return find


get_input_config_by_name = _by_name("input")
get_output_config_by_name = _by_name("output")


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a configuration says that requests have any number of responses."""
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the type of numpy for the name of a datatype, ``TYPE_FP32``."""
    return tensors.NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the type of numpy for the number of a datatype."""
    return [*tensors.NUMPY.values()][data_type - 1]


def numpy_to_triton_type(data_type: Any) -> int:
    """Return the number of a datatype for a type of numpy."""
    return Tensor("", np.empty(0, data_type)).triton_dtype()


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | None:
    """Return elements of text as bytes, each behind its length in 4 bytes. None for an array of numbers."""
    if input_tensor.dtype.kind not in "OS":
        return None
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in input_tensor.flat]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Return the elements that `serialize_byte_tensor` has written, as ``object [N]``."""
    texts, at = [], 0
    while at < len(encoded_tensor):
        (size,) = struct.unpack_from("<I", encoded_tensor, at)
        texts.append(encoded_tensor[at + 4 : at + 4 + size])
        at += 4 + size
    return np.array(texts, dtype=object)


class ModelConfig:
    """The configuration that ``auto_complete_config`` of a model completes."""

    def __init__(self, model_config: str) -> None:
        self._config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the greatest batch, unless the configuration has a greater one: ValueError."""
        if self._config.get("max_batch_size", 0) > max_batch_size:
            has = self._config["max_batch_size"]
            raise self._wrong(f"max_batch_size {max_batch_size}, the configuration has {has}")
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Let requests share batches, unless the configuration schedules otherwise: ValueError."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise self._wrong(f"dynamic_batching, the configuration has {other}")
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy: Mapping[str, Any]) -> None:
        """Say whether requests have any number of responses. ValueError where the configuration says otherwise."""
        if [*transaction_policy] != ["decoupled"]:
            raise self._wrong(f"model_transaction_policy {dict(transaction_policy)}")
        is_set = (self._config.get("model_transaction_policy") or {}).get("decoupled")
        if is_set and not transaction_policy["decoupled"]:
            raise self._wrong("decoupled false, the configuration says true")
        self._config["model_transaction_policy"] = dict(transaction_policy)

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - models know it by this name
        """Add an input with ``name``, ``data_type`` and ``dims``. ValueError where the configuration has another of the name."""
        self._add("input", input)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, as `add_input` does."""
        self._add("output", output)

    def _add(self, side: str, port: Mapping[str, Any]) -> None:
        needed = {"name", "data_type", "dims"}
        if not needed <= {*port} or not {*port} <= needed | {"optional"}:
            raise self._wrong(
                f"an {side} with {sorted(port)}: name, data_type and dims are expected"
            )
        ports = self._config.setdefault(side, [])
        for known in ports:
            if known["name"] == port["name"]:
                for key in ("data_type", "dims"):
                    if known.get(key) not in (None, [], "TYPE_INVALID", port[key]):
                        text = f"the configuration has {known[key]}"
                        raise self._wrong(f"{side} {port['name']!r}: {key} {port[key]}, {text}")
                known.update(port)
                return
        ports.append(dict(port))

    def _wrong(self, problem: str) -> ValueError:
        return ValueError(f"auto_complete_config of model {self._config.get('name')!r}: {problem}")
