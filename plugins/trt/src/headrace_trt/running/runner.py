"""Runs the requests of one instance: fills input buffers, runs the engine, gives results that own their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError
from headrace_tensors import Item, RowRunner
from headrace_tensors.device_arrays import StreamRef
from headrace_trt.running.execution import ContextMemory, Execution, ScratchTurn
from headrace_trt.running.graphs import GraphCache
from headrace_trt.running.grouping import Run, not_padded, run_shapes
from headrace_trt.running.items import Reader, zeros
from headrace_trt.running.memory import PinnedArena, close_all
from headrace_trt.running.outputs import Outputs, Raw, nbytes_of
from headrace_trt.running.placing import InputBuffers
from headrace_trt.running.results import hand_out_samples, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace import InitContext
    from headrace.errors import InputError
    from headrace.keys import Request
    from headrace_tensors import Padding, Signature
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.execution import SharedScratch
    from headrace_trt.running.options import InferOptions

__all__ = ["Runner"]


class Runner:
    """Runs requests with one execution context on one stream, in one thread: the `EngineAdapter` of TensorRT.

    Args:
        engine: The engine.
        cuda: The CUDA runtime.
        stream: The handle of the instance's stream.
        profile: The index of the optimization profile.
        signature: Inputs and outputs of the engine under that profile.
        keys: The key of the request for each input name.
        options: The options of ``TensorrtInferTensor``.
        context: The context of the instance.
        scratch: Scratch memory for ``context_memory = "shared"``.

    Attributes:
        rows: What all engines do with a batch.

    Raises:
        SetupError: A context cannot be made, or samples not be padded as the options say.
        CudaError: The device is out of memory.
    """

    def __init__(  # noqa: PLR0913 - all but four by name
        self,
        engine: Engine,
        cuda: Cuda,
        stream: int,
        *,
        profile: int,
        signature: Signature,
        keys: Mapping[str, str],
        options: InferOptions,
        context: InitContext,
        scratch: SharedScratch | None = None,
    ) -> None:
        self.signature = signature
        self.keys = keys
        self._engine = engine
        self._cuda = cuda
        self._stream = StreamRef(stream)
        self._profile = profile
        self._options = options
        self._scratch = None if scratch is None else ScratchTurn(scratch)
        self._pending = False
        self._kept: list[Any] = []
        self._sample_runs: dict[int, Run] = {}
        self._reader = Reader(signature, keys, cuda, lambda: self._stream.handle, engine.ordinal)
        on_device = options.output_device == "device"
        self.cut_axes = frozenset[int]() if on_device else None
        self.rows = RowRunner(
            self,
            self._reader.read,
            signature,
            keys,
            options,
            context,
            unfit=self._not_padded if options.ragged == "pad" else None,
            of_engine=(id(engine), profile),
        )
        self._arena = PinnedArena(cuda)
        self._graph_memory: ContextMemory | None = None
        self._execution: Execution | None = None
        self._graphs: GraphCache | None = None
        self._inputs = InputBuffers(
            cuda,
            signature,
            self._arena,
            in_place=not options.cuda_graph,
            moved=self._address_changed,
        )
        self.outputs = Outputs(
            cuda,
            signature,
            self._stream,
            self._arena,
            ordinal=engine.ordinal,
            on_device=on_device,
        )
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _not_padded(self, items: Sequence[Item]) -> dict[int, InputError]:
        return not_padded(items, self.signature, self._options.pad_multiple, self.keys)

    def _prepare(self) -> None:
        if self._options.cuda_graph:
            # The contexts of all graphs run one after the other on one stream, so they share one scratch memory.
            if self._scratch is None:
                self._graph_memory = ContextMemory.for_engine(self._engine, self._cuda)
            limit = self._options.cuda_graph_limit
            self._graphs = GraphCache(self._cuda, self._stream.handle, limit, self._context)
        else:
            self._execution = self._context()

    def _context(self) -> Execution:
        memory = self._scratch.memory if self._scratch is not None else self._graph_memory
        strategy = self._options.context_memory if memory is None else "user_managed"
        return Execution(
            self._engine,
            self._profile,
            self.signature,
            self._stream.handle,
            strategy=strategy,
            memory=memory,
            pool=self.outputs.pool,
        )

    def _address_changed(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    # A batch of requests.

    def forward(self, batch: Sequence[Request]) -> list[Exception | None] | None:
        """Run requests and write their results. One outcome per request, None when all went well.

        Raises:
            BackendError: The engine refused a run.
            CudaError: The device failed, or is out of memory.
        """
        samples = self.place_samples(batch)
        if samples is not None:
            run, pointers = samples
            outputs = self.run_placed(run, pointers)
            self.settle()
            hand_out_samples(run, self.signature.outputs, outputs, batch)
            return None
        return self.rows.forward(batch)

    def run(self, items: Sequence[Item], padding: Padding) -> Iterator[Any]:
        """Queue a run of items. Give the result of each once the stream is synchronised.

        Raises:
            BackendError: The engine refused the run, or an output does not have the rows of the batch.
            CudaError: The device failed, or is out of memory.
        """
        run = self.run_of(items, padding)
        outputs = self.run_placed(run, self.place(run))
        return results_of(run, self.signature.outputs, outputs, padding.crops)

    def run_of(self, items: Sequence[Item], padding: Padding) -> Run:
        """Return the run of items that fit together."""
        rows = sum(item.rows for item in items)
        filled = self.signature.filled(rows)
        multiple = 0 if padding.values is None else padding.multiple
        shapes = run_shapes(items, self.signature, filled, multiple)
        return Run(items, rows, filled, shapes, padding.values)

    def place_samples(self, batch: Sequence[Request]) -> tuple[Run, dict[str, int]] | None:
        """Put a batch with one valid sample per request, the most frequent case, into the input buffer.

        Returns:
            The run and the address of its input. None for any other batch, which `rows` takes.

        Raises:
            CudaError: The device failed, or is out of memory.
        """
        run = self._sample_run(len(batch))
        values = None if run is None else self._reader.read_samples(batch)
        if run is None or values is None:
            return None
        self._begin()
        self._kept.append(values)
        (port,) = self.signature.inputs
        values += values[-1:] * (run.filled - run.rows)
        pointer = self._inputs.place_samples(port, values, self._stream.handle)
        return run, {port.name: pointer}

    def _sample_run(self, count: int) -> Run | None:
        """Return the run of ``count`` samples; None if they do not make exactly one run."""
        run = self._sample_runs.get(count)
        signature = self.signature
        if run is None and (
            len(signature.inputs) == 1
            and not signature.one_at_a_time
            and count <= (signature.high_rows or count)
            and signature.rows in (None, count)
            and ((filled := signature.filled(count)) == count or signature.sizes)
        ):
            (port,) = signature.inputs
            shape = (filled, *(port.exact or ()))
            run = Run((), count, filled, {port.name: shape})
            self._sample_runs[count] = run
        return run

    def place(self, run: Run) -> dict[str, int]:
        """Put the rows of a run into the input buffers. Return the address of each input.

        Raises:
            CudaError: The device failed, or is out of memory.
        """
        self._begin()
        self._kept.append(run.items)
        return self._inputs.place(run, self._stream.handle)

    def run_placed(self, run: Run, pointers: Mapping[str, int]) -> list[Any]:
        """Queue a run on the filled input buffers, and the copies of its outputs. Return the arrays, not filled yet.

        Raises:
            BackendError: The engine refused the run.
            CudaError: The device failed, or is out of memory.
        """
        self._begin()
        return self.outputs.fetch(self._execute(run, pointers), self._kept)

    def _begin(self) -> None:
        self._pending = True
        if self._scratch is not None:
            self._scratch.take()

    def _execute(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        """Queue a run on the filled input buffers; return the wanted outputs."""
        if self._graphs is not None:
            return self._execute_graph(run, pointers)
        execution = self._execution
        if execution is None:
            raise BackendError("this instance is closed")
        shapes = execution.set_shapes(run.shapes, pointers)
        for name, pointer in pointers.items():
            execution.bind(name, pointer)
        targets = self.outputs
        raws = [targets.target(execution, port, shapes[port.name]) for port in targets.ports]
        # The engine may write an output on the host until the stream is synchronised.
        self._kept.append(raws)
        execution.enqueue()
        named = raws[: len(self.signature.outputs)]
        return [targets.resolved(raw) if -1 in raw.shape else raw for raw in named]

    def _execute_graph(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        graphs, targets = self._graphs, self.outputs
        assert graphs is not None  # noqa: S101 - asked by the caller
        # A graph is recorded for fixed shapes, and for fixed values of the shape inputs.
        key = (tuple(sorted(run.shapes.items())), self._inputs.shape_values)
        execution = graphs.get(key).execution
        shapes = execution.set_shapes(run.shapes, pointers)
        for port in targets.ports:
            if -1 in shapes[port.name] or execution.host_output(port) is not None:
                raise BackendError(
                    f"the size of output {port.name!r} is known only after a run: it cannot be"
                    " recorded as a CUDA graph",
                    hint="Set cuda_graph = false.",
                )
        sizes = {port: nbytes_of(port, shapes[port.name]) for port in targets.ports}
        if not all(targets.fits(port, nbytes) for port, nbytes in sizes.items()):
            graphs.clear()  # the graphs hold the addresses of output buffers, which will move
        addresses = {port.name: targets.buffer(port, nbytes) for port, nbytes in sizes.items()}
        recorded = graphs.get(key)
        if recorded.graph is None:
            recorded.execution.set_shapes(run.shapes, pointers)
            for name, pointer in {**pointers, **addresses}.items():
                recorded.execution.bind(name, pointer)
        graphs.run(recorded)
        return [
            Raw(port, shapes[port.name], addresses[port.name], None, None)
            for port in self.signature.outputs
        ]

    # The end of a batch.

    def settle(self) -> None:
        """Wait for the stream if the results are numpy arrays, which the CPU reads.

        Raises:
            CudaError: The device failed.
        """
        if not self.outputs.on_device and self._pending:
            self._cuda.stream_synchronize(self._stream.handle)
            self._pending = False
            self._unlock()
            self._kept.clear()

    def finish(self) -> None:
        """End the batch: wait for the queued work, and drop the inputs that it has read.

        Raises:
            CudaError: The device failed.
        """
        try:
            if self._pending:
                self._cuda.stream_synchronize(self._stream.handle)
        finally:
            self._pending = False
            self._unlock()
            self._kept.clear()
            self._arena.reset()

    def _unlock(self) -> None:
        if self._scratch is not None:
            self._scratch.give()

    def warm_up(self) -> None:
        """Run few rows, and zeros at the profile's best and largest shapes.

        Raises:
            BackendError: The engine refuses a shape.
            SetupError: An output does not follow the rows, or the lengths of padded samples.
            CudaError: The device is out of memory.
        """
        self.rows.warm_up(self.outputs_of)
        for which in ("best", "high"):
            self._run_alone(zeros(self.signature, which))

    def _run_alone(self, item: Item) -> list[Any]:
        """Run one item, and return each output, or its shape where it is on the device."""
        shapes = {name: tuple(tensor.shape) for name, tensor in item.tensors.items()}
        try:
            run = Run((item,), item.rows, item.rows, shapes)
            outputs = self.run_placed(run, self.place(run))
            self._inputs.warm_up(self._stream.handle)
            if self.outputs.on_device:
                return [tuple(output.shape) for output in outputs]
            self.settle()
            return [output.copy() for output in outputs]
        finally:
            self.finish()

    def outputs_of(self, feeds: Mapping[str, Any], rows: int) -> list[Any]:
        """Run inputs by name, and return each output, or its shape where it is on the device."""
        best = zeros(self.signature, "best").tensors
        decide = {port.name: best[port.name] for port in self.signature.inputs if port.is_shape}
        return self._run_alone(Item({**feeds, **decide}, rows, sample=False))

    def describe(self) -> dict[str, Any]:
        """Return profile, range and the signature. JSON-able."""
        signature = self.signature
        return {
            "profile": self._profile,
            "rows": [signature.low_rows, signature.high_rows],
            "one_at_a_time": signature.one_at_a_time,
            **self.rows.describe(),
            "output_device": self._options.output_device,
            "cuda_graph": self._options.cuda_graph,
            "context_memory": self._options.context_memory,
        }

    def close(self) -> None:
        """Release everything: contexts first, then their memory."""
        self._unlock()
        self._kept.clear()
        if self._graphs is not None:
            self._graphs.close()
        if self._execution is not None:
            self._execution.close()
        self._execution = self._graphs = None
        self._stream.close()
        memory, self._graph_memory = self._graph_memory, None
        close_all([memory, self._inputs, self.outputs, self._arena])
