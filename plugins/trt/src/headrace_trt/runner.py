"""Runs the requests of one instance: fills input buffers, runs the engine, gives results that own their memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, InputError, SetupError
from headrace_tensors import (
    Item,
    find_crops,
    pad_values,
    prove_crops,
    read_warm_up,
    runs_of_lengths,
    warm_up_rows,
)
from headrace_tensors.device_arrays import StreamRef
from headrace_trt.execution import ContextMemory, Execution
from headrace_trt.graphs import GraphCache
from headrace_trt.grouping import Run, plan_runs
from headrace_trt.items import Reader, zeros
from headrace_trt.memory import PinnedArena, close_all
from headrace_trt.outputs import Outputs, Raw, nbytes_of
from headrace_trt.placing import InputBuffers
from headrace_trt.results import hand_out, hand_out_samples
from headrace_trt.run_settings import RunSettings, SharedScratch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.keys import Request
    from headrace_tensors import Crop, Signature
    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine

__all__ = ["RunSettings", "Runner", "SharedScratch"]


class Runner:
    """Runs requests with one execution context on one stream, in one thread.

    Args:
        engine: The engine.
        cuda: The CUDA runtime.
        stream: The handle of the instance's stream.
        profile: The index of the optimization profile.
        signature: Inputs and outputs of the engine under that profile.
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
        self._kept: list[Any] = []
        self._sample_runs: dict[int, Run] = {}
        self.crops = find_crops(signature, settings.crop) if settings.ragged == "pad" else {}
        self._check_crops()
        self._reader = Reader(signature, keys, cuda, lambda: self._stream.handle, engine.ordinal)
        self._arena = PinnedArena(cuda)
        self._graph_memory: ContextMemory | None = None
        self._execution: Execution | None = None
        self._graphs: GraphCache | None = None
        self._inputs = InputBuffers(
            cuda,
            signature,
            self._arena,
            pads=pad_values(settings.pad_value, signature.inputs, "engine"),
            in_place=not settings.cuda_graph,
            moved=self._address_changed,
        )
        self.outputs = Outputs(
            cuda,
            signature,
            self._stream,
            self._arena,
            ordinal=engine.ordinal,
            on_device=settings.output_device == "device",
        )
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _check_crops(self) -> None:
        if self.crops and self._settings.output_device == "device":
            raise SetupError(
                "outputs on the device are not cut to the lengths of a request",
                hint="crop = {} leaves them as long as the padded inputs; output_device = 'cpu' cuts.",
            )

    def _prepare(self) -> None:
        if self._settings.cuda_graph:
            # The contexts of all graphs run one after the other on one stream, so they share one scratch memory.
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
            self.settle_for_host()
            hand_out_samples(run, self.signature.outputs, outputs, batch)
            return None
        outcomes, items, places = self.read(batch)
        runs = self.planned(items, places, outcomes)
        fetched = [self.run_placed(run, self.place(run, items)) for run in runs]
        self.settle_for_host()
        requests = [batch[place] for place in places]
        for run, outputs in zip(runs, fetched, strict=True):
            hand_out(run, self.signature.outputs, outputs, items, requests, self.crops)
        return outcomes if any(outcomes) else None

    def place_samples(self, batch: Sequence[Request]) -> tuple[Run, dict[str, int]] | None:
        """Put a batch with one valid sample per request, the most frequent case, into the input buffer.

        Returns:
            The run and the address of its input. None for any other batch, which `read`, `planned`
            and `place` take.

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
        found = self._sample_runs.get(count)
        signature = self.signature
        if found is None and (
            len(signature.inputs) == 1
            and not signature.one_at_a_time
            and count <= (signature.high_rows or count)
            and signature.rows in (None, count)
            and ((filled := signature.filled(count)) == count or signature.sizes)
        ):
            (port,) = signature.inputs
            shape = (filled, *(port.exact or ()))
            found = Run(tuple(range(count)), count, filled, {port.name: shape})
            self._sample_runs[count] = found
        return found

    def read(
        self, batch: Sequence[Request]
    ) -> tuple[list[Exception | None], list[Item], list[int]]:
        """Read requests.

        Returns:
            An outcome per request, the items of the valid requests, and the places of these in ``batch``.
        """
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

    def planned(
        self, items: Sequence[Item], places: Sequence[int], outcomes: list[Exception | None]
    ) -> list[Run]:
        """Divide items into runs; an item that fits into no run gets its error in ``outcomes``."""
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

    def place(self, run: Run, items: Sequence[Item]) -> dict[str, int]:
        """Put the rows of a run into the input buffers. Return the address of each input.

        Raises:
            CudaError: The device failed, or is out of memory.
        """
        self._begin()
        self._kept.append(items)
        return self._inputs.place(run, items, self._stream.handle)

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
        if self._scratch is not None and not self._locked:
            self._scratch.lock.acquire()
            self._locked = True

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
        wanted = raws[: len(self.signature.outputs)]
        return [targets.resolved(raw) if -1 in raw.shape else raw for raw in wanted]

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

    def settle_for_host(self) -> None:
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
        if self._locked and self._scratch is not None:
            self._locked = False
            self._scratch.lock.release()

    def warm_up(
        self,
        logger: logging.Logger | None = None,
        *,
        told: Sequence[str] = (),
        real: Path | None = None,
        node: str | None = None,
        most: int | None = None,
        sizes: Sequence[int] | None = None,
        store: Any = None,
    ) -> None:
        """Run few rows, and zeros at the profile's best and largest shapes.

        Args:
            logger: Gets a warning if the engine refuses random inputs. None: the logger of this module.
            told: Outputs of which the user has said that they have no batch axis.
            real: A file of inputs to run in place of random ones.
            node: The node, for a warning that results depend on other rows. None: its requests never share a run.
            most: The largest batch of the node, in rows. None: it is not known.
            sizes: The node's `batch_sizes`.
            store: The node's store. Keeps how outputs follow unequal lengths, for all instances with this profile. None: nothing is kept.

        Raises:
            BackendError: The engine refuses a shape.
            SetupError: An output does not follow the rows, or the lengths of padded samples.
            CudaError: The device is out of memory.
        """
        found = None if real is None else read_warm_up(real, self.signature)
        logger = logger or logging.getLogger("headrace.trt")
        warm_up_rows(
            self._outputs_of,
            self.signature,
            logger,
            real=found,
            told=told,
            node=None if self.outputs.on_device else node,
            most=most,
            sizes=sizes,
            bounded=False,
            shared=most != 1,
        )
        values = pad_values(self._settings.pad_value, self.signature.inputs, "engine")
        run = runs_of_lengths(self._outputs_of, self.signature, values, found)

        def prove() -> dict[str, tuple[Crop, ...]]:
            return prove_crops(run, self.signature, self._settings, real=found, most=most)

        key = ("headrace_trt.crops", id(self._engine), self._profile, repr(self._settings))
        self.crops = prove() if store is None else store.get_or_create(key, prove)
        self._check_crops()
        for which in ("best", "high"):
            self._run_alone(zeros(self.signature, which))

    def _run_alone(self, item: Item) -> list[Any]:
        """Run one item, and return each output, or its shape where it is on the device."""
        shapes = {name: tuple(tensor.shape) for name, tensor in item.tensors.items()}
        try:
            run = Run((0,), item.rows, item.rows, shapes)
            outputs = self.run_placed(run, self.place(run, [item]))
            self._inputs.warm_up(self._stream.handle)
            if self.outputs.on_device:
                return [tuple(output.shape) for output in outputs]
            self.settle_for_host()
            return [output.copy() for output in outputs]
        finally:
            self.finish()

    def _outputs_of(self, feeds: Mapping[str, Any], rows: int) -> list[Any]:
        best = zeros(self.signature, "best").tensors
        decide = {port.name: best[port.name] for port in self.signature.inputs if port.is_shape}
        return self._run_alone(Item({**feeds, **decide}, rows, sample=False))

    def describe(self) -> dict[str, Any]:
        """Return profile, range and the signature. JSON-able."""
        signature = self.signature
        inputs = {
            port.name: {"key": self.keys[port.name], **port.describe()} for port in signature.inputs
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
