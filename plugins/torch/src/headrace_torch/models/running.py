"""Runs a loaded model on the rows of a batch: precision, graphs, results that own their memory."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from headrace.errors import BackendError, SetupError, is_out_of_memory
from headrace_torch.devices.memory import (
    as_backend_error,
    give_back_memory,
    is_lost,
    without_frames,
)
from headrace_torch.models.graphs import Graphs
from headrace_torch.models.loading import first_line
from headrace_torch.requests.items import halves
from headrace_torch.requests.signature import named_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_tensors import Item
    from headrace_torch.models.loading import Model

__all__ = ["DTYPES", "Runner", "SharedModel", "halved", "prepare_model", "run_or_failure"]

Result = TypeVar("Result")

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""The dtypes that weights are cast to, by name."""

_WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that use CUDA graphs, whose output memory the next run overwrites."""


class SharedModel:
    """A model that a node's instances on one device share.

    Attributes:
        model: The model. None once it is closed.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model: Model | None = model
        self._device = device

    def close(self) -> None:
        """Drop the model, and return its memory to the device."""
        self.model = None
        give_back_memory(self._device)


def prepare_model(
    model: Model,
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    compile_mode: str | None = None,
    kind: object = None,
) -> Model:
    """Put a model onto its device, in the precision and the layout that were asked for.

    Args:
        model: The loaded model. It is changed and given back.
        device: The device on which the model runs.
        dtype: The dtype to which floating weights are cast. None leaves them.
        channels_last: Whether weights of convolutions get that memory layout.
        compile_mode: A mode of ``torch.compile``. None does not compile.
        kind: What modules of one class must have in common to share what was compiled: a hashable value. None: the
            model shares nothing.

    Raises:
        SetupError: The weights do not fit into the device's memory. An AOTInductor package is to be cast or to get
            another layout, or an AOTInductor package or TorchScript is to be compiled.
    """
    module = model.module
    if module is None:
        option = "dtype" if dtype is not None else "channels_last" if channels_last else None
        if option is not None:
            raise SetupError(
                f"`{option}` cannot change an AOTInductor package: it is compiled",
                hint="Cast the model before it is compiled, or use its torch.export program.",
            )
    else:
        try:
            module.to(device=device, dtype=dtype)
            if channels_last:
                module.to(memory_format=torch.channels_last)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise SetupError(
                    f"the weights do not fit on {device}: {first_line(error)}"
                ) from without_frames(error)
            raise
    if compile_mode is not None:
        if module is None or model.kind == "TorchScript":
            raise SetupError(
                f"`compile` cannot be used with {model.kind}",
                hint="It compiles modules and torch.export programs.",
            )
        if compile_mode in _WITH_GRAPHS:  # what was compiled belongs to the thread that has run it
            kind = None
        shared = kind and (type(module), str(device), dtype, channels_last, compile_mode, kind)
        called = _with_own_code(model.call, shared)
        model.call = torch.compile(called, mode=compile_mode)
    model.count()
    return model


_codes: dict[object, CodeType] = {}


def _with_own_code(call: Callable[..., Any], kind: object) -> Callable[..., Any]:
    """Return a function that calls ``call``, whose code object only the models of one kind share. None: no other.

    torch.compile keeps eight variants of what it has compiled for a code object, and runs all others uncompiled.
    Models of one class would share the eight, on all devices, and so would those that torch's own layers make up.
    """

    def run(*tensors: torch.Tensor) -> Any:
        return call(*tensors)

    code = run.__code__.replace()
    code = code if kind is None else _codes.setdefault(kind, code)
    return FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)


_with_trees: weakref.WeakSet[Runner] = weakref.WeakSet()
_taking_trees = threading.Lock()


def _take_trees(runner: Runner, mode: str | None) -> None:
    """Give this thread CUDA-graph trees of its own, which a compiled model with graphs needs.

    Some versions of torch (2.11) give them only to the thread that imports this module of it first. In the thread of a later
    pipeline every run would end with an AssertionError.

    Raises:
        SetupError: Another instance of this process runs such a model. Two threads give wrong answers.
    """
    from torch._inductor import cudagraph_trees

    with _taking_trees:
        if _with_trees:
            raise SetupError(
                f"compile = {mode!r} uses CUDA graphs of torch, which one thread of a process may use, and another"
                " instance does",
                hint="Close its pipeline before you build the next. Or use compile = true, or"
                " cuda_graph = true.",
            )
        _with_trees.add(runner)
    local = cudagraph_trees.local
    if not hasattr(local, "tree_manager_containers"):
        local.tree_manager_containers = {}
        local.tree_manager_locks = defaultdict(threading.Lock)


class Runner:
    """Runs one model for one instance.

    Args:
        model: The model, on its device.
        device: The device of the model.
        outputs: Names of the outputs to give. None: all.
        whole: Names of outputs without batch axis. ``"all"`` means all.
        channels_last: Whether to pass inputs of four axes in that memory layout.
        compile_mode: The mode of ``torch.compile`` with which the model was compiled. None: it was not.

    Attributes:
        compiled: Whether the model was compiled.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        *,
        outputs: Sequence[str] | None = None,
        whole: frozenset[str] = frozenset(),
        channels_last: bool = False,
        compile_mode: str | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._wanted = outputs
        self._whole = whole
        self._channels_last = channels_last
        self.compiled = compile_mode is not None
        self._copies = compile_mode in _WITH_GRAPHS
        if self._copies and device.type == "cuda":
            _take_trees(self, compile_mode)
        # Whether the model writes into its inputs. These may belong to callers, so it then gets copies. None until a
        # run has shown it. For a package no run shows it, because torch does not see what compiled code writes.
        self._writes: bool | None = None if model.module is not None else True
        self.graphs = Graphs(device) if device.type == "cuda" else None

    def warmed_up(self) -> None:
        """Check at the next request, too, whether the model writes into its inputs."""
        self._writes = self._writes or None

    @property
    def likely_dtype(self) -> torch.dtype | None:
        """The floating dtype of the weights, which inputs often have too; None if there are no weights."""
        module = self._model.module
        if module is None:
            return None
        floating = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
        return next(floating, None)

    def call(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Call the model; return its outputs by name, which may share memory with inputs or weights."""
        return named_outputs(self._model.call(*tensors), self._wanted)

    def laid_out(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Convert inputs to the memory layout that was asked for, and for a compiled model to one kind of tensors."""
        if self._channels_last:
            tensors = [
                tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
                for tensor in tensors
            ]
        elif self.compiled:
            tensors = [tensor.contiguous() for tensor in tensors]
        return [_ordinary(tensor) for tensor in tensors] if self.compiled else tensors

    def run(
        self, tensors: Sequence[torch.Tensor], rows: int, *, new: bool = False
    ) -> dict[str, torch.Tensor]:
        """Run the model on inputs of ``rows`` rows. Return its outputs by name, in new memory.

        Args:
            tensors: The inputs.
            rows: The number of their rows.
            new: Whether the inputs were made for this run, so that the model may write into them.

        Raises:
            BackendError: An output does not have the rows of the batch.
        """
        tensors = self.laid_out(tensors)
        if self.graphs is not None and self.graphs.takes(tensors, rows):
            return self._checked(self.graphs.run(tensors, rows), rows)
        if self._copies:
            torch.compiler.cudagraph_mark_step_begin()
        before: list[int] | None = None
        if self._writes is None or (self._writes and not new):
            tensors = _copies_of(tensors)
            before = [
                tensor._version for tensor in tensors
            ]  # 1 for a copy of an inference tensor, else 0
        outputs = self._checked(self.call(tensors), rows)
        if self._writes is None:
            self._writes = [tensor._version for tensor in tensors] != before
        inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        own = _held(outputs)
        return {name: self._owned(output, inputs | own) for name, output in outputs.items()}

    def _owned(self, output: torch.Tensor, inputs: set[int]) -> torch.Tensor:
        """Return an output in memory of its own, which no input, no weight and no later run of a graph uses."""
        memory = output.untyped_storage().data_ptr()
        foreign = memory in inputs or memory in self._model.memory
        if self._copies or foreign or 0 in output.stride():
            return output.clone(memory_format=torch.contiguous_format)
        return output

    def _checked(self, outputs: dict[str, torch.Tensor], rows: int) -> dict[str, torch.Tensor]:
        for name, output in outputs.items():
            if self._whole and self._whole & {name, "all"}:
                continue
            if output.ndim == 0 or output.shape[0] != rows:
                raise BackendError(
                    f"the model's output {name!r} is {list(output.shape)} for a batch of {rows} rows",
                    hint="Name it in `unbatched` if it belongs to the whole run; `outputs` names those to give.",
                )
        return outputs

    def close(self) -> None:
        """Release the graphs and the model even if frames of an error still refer to the runner."""
        _with_trees.discard(self)
        if self.graphs is not None:
            self.graphs.close()
        del self._model


def _held(outputs: dict[str, torch.Tensor]) -> set[int]:
    """Return the addresses of outputs whose memory others still hold, such as a model that uses it again.

    The outputs are replaced by aliases, so that what refers to their memory apart from these belongs to others.
    """
    for name in outputs:
        outputs[name] = outputs[name].detach()
    holders: dict[int, int] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for output in outputs.values():
        storage = output.untyped_storage()
        storages[storage._cdata] = storage  # which holds the memory too
        holders[storage._cdata] = holders.get(storage._cdata, 1) + 1
    return {
        storage.data_ptr()
        for key, storage in storages.items()
        if torch._C._storage_Use_Count(key) > holders[key]
    }


def _copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors outside of inference mode, so that torch counts the writes into the copies (``_version``)."""
    with torch.inference_mode(False), torch.no_grad():
        return [tensor.clone() for tensor in tensors]


def _ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that is no inference tensor and needs no gradient.

    torch.compile compiles a model again when inference tensors follow other inputs: minutes in which requests wait.
    Elements make inference tensors. Callers and other libraries do not.
    """
    if not tensor.is_inference():
        return tensor.detach() if tensor.requires_grad else tensor
    with torch.inference_mode(False), torch.no_grad():
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        return alias.set_(storage, offset, tensor.size(), tensor.stride())


def run_or_failure(run: Callable[[], Result], device: torch.device) -> Result | BackendError:
    """Call ``run``. If memory runs out, return an error without a traceback.

    Raises:
        InstanceLostError: The device can run nothing more in this process.
        Exception: Any other error of ``run``.
    """
    try:
        return run()
    except Exception as error:
        if not is_out_of_memory(error):
            if is_lost(error):
                raise as_backend_error(error, device) from None
            raise
        failure = as_backend_error(error, device)
    return cast("BackendError", failure)


def halved(
    run: Callable[[Sequence[Item]], list[Any]],
    items: Sequence[Item],
    device: torch.device,
    *,
    halve: bool = True,
    tried: BackendError | None = None,
) -> list[Any]:
    """Run items in one batch. If memory runs out, run them in halves, down to single rows.

    The memory of a failed run is free for the next one, since the error keeps no traceback.

    Args:
        run: Runs items and gives a result for each: a tensor, or a table of tensors by name.
        items: The items.
        device: The device on which ``run`` runs.
        halve: Whether to try halves. False: all items fail.
        tried: The error of an earlier run of all items in one batch. None: there was none.

    Returns:
        For each item its result, or a BackendError.

    Raises:
        InstanceLostError: The device can run nothing more in this process.
        Exception: Any other error of ``run``.
    """
    results = run_or_failure(lambda: run(items), device) if tried is None else tried
    if not isinstance(results, BackendError):
        return results
    failure = results
    give_back_memory(device)
    if not halve or sum(item.rows for item in items) == 1:
        return [failure for _ in items]
    if len(items) > 1:
        half = len(items) // 2
        return halved(run, items[:half], device) + halved(run, items[half:], device)
    # One request with several rows, such as CatSplit makes of many.
    parts: list[Any] = []
    for part in halves(items[0]):
        parts += halved(run, [part], device)
        if isinstance(parts[-1], BackendError):
            return parts[-1:]
    first, second = parts
    if isinstance(first, torch.Tensor):
        return [torch.cat([first, second])]
    return [{name: torch.cat([first[name], second[name]]) for name in first}]
