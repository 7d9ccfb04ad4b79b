"""What one instance runs: requests to input buffers, the engine, and results that own their memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import BackendError, InputError
from headrace_trt.arrays import DeviceArray, StreamRef, item_bytes, numpy_dtype
from headrace_trt.execution import ContextMemory, Execution
from headrace_trt.graphs import GraphCache
from headrace_trt.grouping import Run, plan_runs
from headrace_trt.items import Item, Reader
from headrace_trt.memory import Buffer, DevicePool, PinnedArena, close_all
from headrace_trt.placing import InputBuffers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.keys import Request
    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine
    from headrace_trt.signature import Port, Signature

__all__ = ["Gathered", "Raw", "RunSettings", "Runner", "SharedScratch"]


@dataclass(frozen=True)
class RunSettings:
    """How requests are run; the fields are those of the options of ``TensorrtInferTensor``."""

    ragged: str = "refuse"
    pad_value: float = 0.0
    pad_multiple: int = 1
    output_device: str = "cpu"
    cuda_graph: bool = False
    cuda_graph_limit: int = 16
    context_memory: str = "static"


class SharedScratch:
    """Scratch memory of all instances of a node; one of them runs at a time."""

    def __init__(self, engine: Engine, cuda: Cuda) -> None:
        self.memory = ContextMemory.for_engine(engine, cuda)
        self.lock = threading.Lock()

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()


class Raw(NamedTuple):
    """An output as the engine left it.

    Attributes:
        port: Which output.
        shape: Its shape.
        pointer: Its address on the device.
        owner: The block that is its own; None in a buffer that is used again.
        host: The array, where the engine writes it in memory of the host.
    """

    port: Port
    shape: tuple[int, ...]
    pointer: int
    owner: Any
    host: Any


@dataclass(frozen=True)
class Gathered:
    """What a batch became that does not fit one run: its items, and the runs they are divided into."""

    items: Sequence[Item]
    runs: Sequence[Run]


@dataclass
class _Batch:
    """The state of the batch that is under way.

    Attributes:
        placed: What the gathered batch is called by, its run and the addresses of its inputs.
        layout: Per request (by identity): its run, first row, rows, and whether it was one sample.
        rows: Rows of every run.
        kept: Items whose arrays queued work still reads.
    """

    placed: tuple[Any, Run, Mapping[str, int]] | None = None
    layout: dict[int, tuple[int, int, int, bool]] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    kept: list[Any] = field(default_factory=list)


class Runner:
    """Runs requests with one execution context on one stream, in one thread.

    Args:
        engine: The engine.
        cuda: The CUDA runtime.
        stream: The handle of the instance's stream.
        profile: The index of the optimization profile.
        signature: What the engine takes and gives under it.
        keys: The key of the request for each input name.
        settings: How requests are run.
        scratch: Scratch memory for ``context_memory = "shared"``.

    Raises:
        SetupError: A context cannot be made.
        CudaError: The device is out of memory.
    """

    def __init__(
        self,
        engine: Engine,
        cuda: Cuda,
        stream: int,
        *,
        profile: int,
        signature: Signature,
        keys: Mapping[str, str],
        settings: RunSettings,
        scratch: SharedScratch | None = None,
    ) -> None:
        self.signature = signature
        self.keys = keys
        self._engine = engine
        self._cuda = cuda
        self._stream = StreamRef(stream)
        self._profile = profile
        self._settings = settings
        self._scratch = scratch
        self._locked = False
        self._pending = False
        self._batch = _Batch()
        self._reader = Reader(signature, keys, cuda, lambda: self._stream.handle, engine.ordinal)
        self._pool = DevicePool(cuda, stream)
        self._arena = PinnedArena(cuda)
        self._graph_memory: ContextMemory | None = None
        self._execution: Execution | None = None
        self._graphs: GraphCache | None = None
        self._inputs = InputBuffers(
            cuda,
            signature,
            self._arena,
            pad_value=settings.pad_value,
            in_place=not settings.cuda_graph,
            moved=self._address_changed,
        )
        every = (*signature.outputs, *signature.unwanted)
        self._outputs = {port.name: Buffer(cuda) for port in every}
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        if self._settings.cuda_graph:
            # The contexts of all graphs run one after the other: one scratch memory for them.
            if self._scratch is None:
                self._graph_memory = ContextMemory.for_engine(self._engine, self._cuda)
            limit = self._settings.cuda_graph_limit
            self._graphs = GraphCache(self._cuda, self._stream.handle, limit, self._context)
        else:
            self._execution = self._context()

    def _context(self) -> Execution:
        memory = self._scratch.memory if self._scratch is not None else self._graph_memory
        strategy = self._settings.context_memory if memory is None else "user_managed"
        return Execution(
            self._engine,
            self._profile,
            self.signature,
            self._stream.handle,
            strategy=strategy,
            memory=memory,
            pool=self._pool,
        )

    def _address_changed(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    # A batch of requests, as they come.

    def forward(self, batch: Sequence[Request]) -> list[Exception | None] | None:
        """Run requests and write their results; one outcome per request, None when all went well.

        Raises:
            BackendError: The engine refused a run.
            CudaError: The device failed, or is out of memory.
        """
        outcomes, items, places = self._read(batch)
        runs = self._planned(items, places, outcomes)
        fetched = [self._fetch(self._run(run, items)) for run in runs]
        self._settle_for_host()
        for run, outputs in zip(runs, fetched, strict=True):
            self._hand_out(run, outputs, items, [batch[place] for place in places])
        return outcomes if any(outcomes) else None

    def _read(
        self, batch: Sequence[Request]
    ) -> tuple[list[Exception | None], list[Item], list[int]]:
        outcomes: list[Exception | None] = [None] * len(batch)
        items, places = [], []
        for place, request in enumerate(batch):
            try:
                items.append(self._reader.read(request))
            except InputError as error:
                outcomes[place] = error
            else:
                places.append(place)
        return outcomes, items, places

    def _planned(
        self, items: Sequence[Item], places: Sequence[int], outcomes: list[Exception | None]
    ) -> list[Run]:
        runs, errors = plan_runs(
            items,
            self.signature,
            ragged=self._settings.ragged,
            pad_multiple=self._settings.pad_multiple,
            keys=self.keys,
        )
        for i, error in errors.items():
            outcomes[places[i]] = error
        return runs

    def _run(self, run: Run, items: Sequence[Item]) -> list[Raw]:
        self._begin()
        self._batch.kept.append(items)
        pointers = self._inputs.place(run, items, self._stream.handle)
        return self._execute(run, pointers)

    def _begin(self) -> None:
        self._pending = True
        if self._scratch is not None and not self._locked:
            self._scratch.lock.acquire()
            self._locked = True

    def _execute(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        """Queue a run whose inputs are in place; give the outputs that are wanted."""
        if self._graphs is not None:
            return self._execute_graph(run, pointers)
        execution = self._execution
        if execution is None:
            raise BackendError("this instance is closed")
        shapes = execution.set_shapes(run.shapes, pointers)
        for name, pointer in pointers.items():
            execution.bind(name, pointer)
        raws = [self._target(execution, port, shapes[port.name]) for port in self._every()]
        execution.enqueue()
        return [self._told(execution, raw) for raw in raws[: len(self.signature.outputs)]]

    def _every(self) -> tuple[Port, ...]:
        return (*self.signature.outputs, *self.signature.unwanted)

    def _target(self, execution: Execution, port: Port, shape: tuple[int, ...]) -> Raw:
        """Give an output its memory."""
        if -1 in shape:
            return Raw(port, shape, 0, execution.allocator(port), None)
        host = execution.host_output(port)
        if host is not None:
            execution.bind(port.name, host.ctypes.data)
            return Raw(port, shape, 0, None, host)
        nbytes = _nbytes(port, shape)
        wanted = port in self.signature.outputs
        if self._settings.output_device == "cuda" and wanted:
            block = self._pool.take(nbytes)
            execution.bind(port.name, block.pointer)
            return Raw(port, shape, block.pointer, block, None)
        buffer = self._outputs[port.name]
        buffer.reserve(nbytes)
        execution.bind(port.name, buffer.pointer)
        return Raw(port, shape, buffer.pointer, None, None)

    def _told(self, execution: Execution, raw: Raw) -> Raw:
        """Give an output whose size the data decided with what it became."""
        if -1 not in raw.shape:
            return raw
        allocator = raw.owner
        if allocator.error is not None:
            raise allocator.error
        block = allocator.block
        return Raw(raw.port, allocator.shape, block.pointer if block else 0, block, None)

    def _execute_graph(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        assert self._graphs is not None  # noqa: S101 - asked by the caller
        key = tuple(sorted(run.shapes.items()))
        recorded = self._graphs.get(key)
        execution = recorded.execution
        shapes = execution.set_shapes(run.shapes, pointers)
        for port in self._every():
            if -1 in shapes[port.name] or execution.host_output(port) is not None:
                raise BackendError(
                    f"the size of output {port.name!r} is known only after a run: it cannot be"
                    " recorded as a CUDA graph",
                    hint="Set cuda_graph = false.",
                )
        if any(self._outputs[p.name].nbytes < _nbytes(p, shapes[p.name]) for p in self._every()):
            self._graphs.clear()  # their addresses are about to change
            for port in self._every():
                self._outputs[port.name].reserve(_nbytes(port, shapes[port.name]))
            recorded = self._graphs.get(key)
            execution = recorded.execution
            execution.set_shapes(run.shapes, pointers)
        if recorded.graph is None:
            for name, pointer in pointers.items():
                execution.bind(name, pointer)
            for port in self._every():
                execution.bind(port.name, self._outputs[port.name].pointer)
        self._graphs.run(recorded)
        return [
            Raw(port, shapes[port.name], self._outputs[port.name].pointer, None, None)
            for port in self.signature.outputs
        ]

    # Results.

    def _fetch(self, raws: Sequence[Raw]) -> list[Any]:
        """Queue what brings outputs to where they are wanted; arrays that are not finished yet."""
        fetched: list[Any] = []
        for raw in raws:
            nbytes = _nbytes(raw.port, raw.shape)
            if self._settings.output_device == "cuda":
                fetched.append(self._on_device(raw, nbytes))
            elif raw.host is not None:
                fetched.append(raw.host)
            else:
                pointer, view = self._arena.take(nbytes)
                if nbytes:
                    self._cuda.copy(pointer, raw.pointer, nbytes, self._stream.handle)
                if raw.owner is not None:
                    self._batch.kept.append(raw.owner)
                fetched.append(view.view(numpy_dtype(raw.port.dtype)).reshape(raw.shape))
        return fetched

    def _on_device(self, raw: Raw, nbytes: int) -> DeviceArray:
        owner, pointer = raw.owner, raw.pointer
        if owner is None:
            owner = self._pool.take(nbytes)
            source = pointer if raw.host is None else raw.host.ctypes.data
            if nbytes:
                self._cuda.copy(owner.pointer, source, nbytes, self._stream.handle)
            self._batch.kept.append(raw.host)
            pointer = owner.pointer
        return self._array(pointer, raw.shape, raw.port.dtype, owner)

    def _array(self, pointer: int, shape: tuple[int, ...], dtype: str, owner: Any) -> DeviceArray:
        return DeviceArray(
            self._cuda,
            pointer,
            shape,
            dtype,
            ordinal=self._engine.ordinal,
            stream=self._stream,
            owner=owner,
        )

    def _hand_out(
        self,
        run: Run,
        outputs: Sequence[Any],
        items: Sequence[Item],
        requests: Sequence[Request],
    ) -> None:
        """Write the results of one run into its requests."""
        ports = self.signature.outputs
        self._check_rows(run, outputs)
        start = 0
        for i in run.members:
            item = items[i]
            stop = start + item.rows
            parts = [
                rows_of(output, start, stop, sample=item.sample) if port.batched else whole(output)
                for port, output in zip(ports, outputs, strict=True)
            ]
            names = [port.name for port in ports]
            requests[i]["result"] = (
                parts[0] if len(parts) == 1 else dict(zip(names, parts, strict=True))
            )
            start = stop

    def _check_rows(self, run: Run, outputs: Sequence[Any]) -> None:
        for port, output in zip(self.signature.outputs, outputs, strict=True):
            if port.batched and (not output.shape or output.shape[0] < run.rows):
                raise BackendError(
                    f"output {port.name!r} is {list(output.shape)} for a batch of {run.rows} rows",
                    hint="If it has no batch axis, name it in `unbatched`.",
                )

    # A batch gathered into one item, run, and handed out again.

    def gather(self, batch: Sequence[Request]) -> list[Exception | None] | None:
        """Put all requests that are right into the input buffers; their ``result`` is the batch.

        It is a `DeviceArray` of the rows of all (a dict by name with several inputs), or a
        `Gathered` where they do not fit one run.

        Raises:
            CudaError: The device failed, or is out of memory.
        """
        outcomes, items, places = self._read(batch)
        runs = self._planned(items, places, outcomes)
        state = self._batch = _Batch(kept=[*self._batch.kept, items])
        state.rows = tuple(run.rows for run in runs)
        for number, run in enumerate(runs):
            start = 0
            for i in run.members:
                item = items[i]
                identity = id(batch[places[i]])
                state.layout[identity] = (number, start, item.rows, item.sample)
                start += item.rows
        value: Any = Gathered(items, runs)
        if len(runs) == 1:
            self._begin()
            pointers = self._inputs.place(runs[0], items, self._stream.handle)
            value = self._placed_arrays(runs[0], pointers)
            state.placed = (value, runs[0], pointers)
        for place, outcome in enumerate(outcomes):
            if outcome is None:
                batch[place]["result"] = value
        return outcomes if any(outcomes) else None

    def _placed_arrays(self, run: Run, pointers: Mapping[str, int]) -> Any:
        arrays = {}
        for port in self.signature.inputs:
            if port.is_shape:
                continue
            shape = run.shapes[port.name]
            if port.batched:
                shape = (run.rows, *shape[1:])
            arrays[port.name] = self._array(pointers[port.name], shape, port.dtype, None)
        return next(iter(arrays.values())) if len(self.signature.inputs) == 1 else arrays

    def run_gathered(self, request: Request) -> bool:
        """Run what `gather` gave, where ``data`` is that; False where it is something else."""
        data = request.get("data")
        placed = self._batch.placed
        if placed is not None and data is placed[0]:
            _, run, pointers = placed
            self._begin()
            fetched = self._fetch(self._execute(run, pointers))
            self._settle_for_host(keep_layout=True)
            request["result"] = self._whole_result(run, fetched)
            return True
        if type(data) is Gathered:
            pairs = [(run, self._fetch(self._run(run, data.items))) for run in data.runs]
            self._settle_for_host(keep_layout=True)
            request["result"] = [self._whole_result(run, outputs) for run, outputs in pairs]
            return True
        return False

    def _whole_result(self, run: Run, outputs: Sequence[Any]) -> Any:
        self._check_rows(run, outputs)
        parts = [
            rows_of(output, 0, run.rows, sample=False) if port.batched else whole(output)
            for port, output in zip(self.signature.outputs, outputs, strict=True)
        ]
        names = [port.name for port in self.signature.outputs]
        return parts[0] if len(parts) == 1 else dict(zip(names, parts, strict=True))

    def split(self, request: Request) -> None:
        """Give a request its rows of the result of the gathered batch, which is its ``data``.

        Raises:
            BackendError: The request was not gathered, or the result has other rows.
        """
        found = self._batch.layout.get(id(request))
        if found is None:
            raise BackendError("this request was not gathered by the TensorrtCat of this batch")
        number, start, rows, sample = found
        data = request["data"]
        total = self._batch.rows[number]
        if len(self._batch.rows) > 1:
            data = data[number]
        single = len(self.signature.outputs) == 1
        if isinstance(data, dict):
            known = {port.name: port for port in self.signature.outputs}
            request["result"] = {
                name: self._part(value, known.get(name), start, rows, total, sample=sample)
                for name, value in data.items()
            }
        else:
            port = self.signature.outputs[0] if single else None
            request["result"] = self._part(data, port, start, rows, total, sample=sample)

    def _part(
        self, value: Any, port: Port | None, start: int, rows: int, total: int, *, sample: bool
    ) -> Any:
        if port is not None and not port.batched:
            return whole(value)
        try:
            length = len(value)
        except TypeError:
            length = -1
        if length != total:
            raise BackendError(
                f"the result of the gathered batch has {max(length, 0)} rows, not {total}",
                hint="What stands in post_processor must keep the batch axis.",
            )
        return rows_of(value, start, start + rows, sample=sample)

    # The end of a batch.

    def _settle_for_host(self, *, keep_layout: bool = False) -> None:
        """Wait, where results are to be read by the CPU."""
        if self._settings.output_device == "cpu" and self._pending:
            self._cuda.stream_synchronize(self._stream.handle)
            self._pending = False
            self._unlock()
            self._batch.kept.clear()
            if not keep_layout:
                self._batch.placed = None

    def finish(self) -> None:
        """End the batch: wait for what is queued, and let go of what it read.

        Raises:
            CudaError: The device failed.
        """
        try:
            if self._pending:
                self._cuda.stream_synchronize(self._stream.handle)
        finally:
            self._pending = False
            self._unlock()
            self._batch = _Batch()
            self._arena.reset()

    def _unlock(self) -> None:
        if self._locked and self._scratch is not None:
            self._locked = False
            self._scratch.lock.release()

    def warm_up(self) -> None:
        """Run zeros at the profile's best and largest shapes.

        Raises:
            BackendError: The engine refuses them.
            CudaError: The device is out of memory.
        """
        for which in ("best", "high"):
            tensors: dict[str, Any] = {}
            for port in self.signature.inputs:
                lengths = getattr(port, which)
                if port.is_shape:
                    tensors[port.name] = np.asarray(port.best, numpy_dtype(port.dtype)).reshape(
                        tuple(n for n in port.shape if n is not None)
                    )
                else:
                    tensors[port.name] = np.zeros(lengths, numpy_dtype(port.dtype))
            rows = next(
                getattr(port, which)[0] for port in self.signature.inputs if port.batched
            )
            rows = min(rows, self.signature.high_rows)
            tensors = {
                port.name: tensors[port.name][:rows] if port.batched else tensors[port.name]
                for port in self.signature.inputs
            }
            items = [Item(tensors, rows, sample=False)]
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            try:
                self._fetch(self._run(Run((0,), rows, shapes), items))
            finally:
                self.finish()

    def describe(self) -> dict[str, Any]:
        """Give profile, range and the signature. JSON-able."""
        signature = self.signature
        inputs = {
            port.name: {"key": self.keys[port.name], **port.describe()}
            for port in signature.inputs
        }
        return {
            "profile": self._profile,
            "rows": [signature.low_rows, signature.high_rows],
            "one_at_a_time": signature.one_at_a_time,
            "inputs": inputs,
            "outputs": {port.name: port.describe() for port in signature.outputs},
            "output_device": self._settings.output_device,
            "cuda_graph": self._settings.cuda_graph,
            "context_memory": self._settings.context_memory,
        }

    def close(self) -> None:
        """Give everything back: contexts first, then their memory."""
        self._unlock()
        self._batch = _Batch()
        if self._graphs is not None:
            self._graphs.clear()
        if self._execution is not None:
            self._execution.close()
        self._execution = self._graphs = None
        self._stream.handle = 0
        memory, self._graph_memory = self._graph_memory, None
        close_all([memory, self._inputs, *self._outputs.values(), self._pool, self._arena])


def rows_of(value: Any, start: int, stop: int, *, sample: bool) -> Any:
    """Give rows of an array of any library; of the host's in memory of their own."""
    part = value[start:stop]
    if isinstance(part, np.ndarray):
        part = part.copy()
    if not sample:
        return part
    return part.reshape(part.shape[1:]) if isinstance(part, np.ndarray) else part[0]


def whole(value: Any) -> Any:
    """Give an array that belongs to the batch as a whole, in memory of its own on the host."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _nbytes(port: Port, shape: tuple[int, ...]) -> int:
    count = item_bytes(port.dtype)
    for length in shape:
        count *= length
    return count
