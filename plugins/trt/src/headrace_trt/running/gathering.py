"""Concatenates a batch, runs it, and splits the result: the parts of a ``CatSplit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, InputError
from headrace_tensors import DeviceArray
from headrace_trt.running.results import check_run, rows_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.keys import Request
    from headrace_trt.running.grouping import Run
    from headrace_trt.running.runner import Runner

__all__ = ["Gathered", "Gathering"]


@dataclass(frozen=True)
class Gathered:
    """A concatenated batch that does not fit one run: the runs into which it is divided."""

    runs: Sequence[Run]


class Gathering:
    """The state of the current batch, shared by TensorrtCat, TensorrtInferTensor and TensorrtSplit.

    Args:
        runner: The runner of the instance.
        wider: Makes a runner with a wider profile, for an instance whose own profile takes one row. Such an
            instance can get more rows: in a sequence, elements that take one request at a time do not limit the
            range of the whole. None: there is no wider profile, or it is not needed.

    Attributes:
        runners: The runner of the instance, and the wider one once it is made.
    """

    def __init__(self, runner: Runner, wider: Callable[[], Runner] | None = None) -> None:
        self.keys = runner.keys
        self.runners = [runner]
        self._wider = wider
        self._runner = runner
        self._signature = runner.signature
        self._unbatched = {port.name for port in runner.signature.outputs if not port.batched}
        self._placed: tuple[Any, Run, Mapping[str, int]] | None = None
        self._layout: dict[int, tuple[int, int, int, bool]] = {}
        self._rows: tuple[int, ...] = ()
        self._samples: list[int] = []

    def runner_for(self, batch: Sequence[Request]) -> Runner:
        """Return the runner whose profile takes the rows of a batch. The wider one is made when needed.

        Raises:
            SetupError: There is not enough memory for another context.
        """
        if self._wider is None or sum(request.get("request_size", 1) for request in batch) <= 1:
            return self.runners[0]
        if len(self.runners) == 1:
            self.runners.append(self._wider())
            self.runners[1].rows.padding = self.runners[0].rows.padding
        return self.runners[1]

    def gather(self, batch: Sequence[Request]) -> list[Exception | None] | None:
        """Put all valid requests into the input buffers. Each gets the concatenated batch as its ``result``.

        That is a `DeviceArray` with the rows of all requests (a dict by name with several inputs), or a
        `Gathered` if they do not fit one run.

        Raises:
            CudaError: The device failed, or is out of memory.
        """
        runner = self._runner = self.runner_for(batch)
        self.finish()
        samples = runner.place_samples(batch)
        if samples is not None:
            run, pointers = samples
            self._rows = (run.rows,)
            self._samples = list(map(id, batch))
            gathered = self._arrays(run, pointers)
            self._placed = (gathered, run, pointers)
            for request in batch:
                request["result"] = gathered
            return None
        rows = runner.rows
        outcomes, items, places = rows.read(batch)
        plan = rows.plan(items, places, outcomes)
        runs = [runner.run_of([items[i] for i in members], rows.padding) for members in plan]
        self._rows = tuple(run.rows for run in runs)
        for number, members in enumerate(plan):
            start = 0
            for i in members:
                item = items[i]
                identity = id(batch[places[i]])
                self._layout[identity] = (number, start, item.rows, item.sample)
                start += item.rows
        value: Any = Gathered(runs)
        if len(runs) == 1:
            pointers = runner.place(runs[0])
            value = self._arrays(runs[0], pointers)
            self._placed = (value, runs[0], pointers)
        for place, outcome in enumerate(outcomes):
            if outcome is None:
                batch[place]["result"] = value
        return outcomes if any(outcomes) else None

    def _arrays(self, run: Run, pointers: Mapping[str, int]) -> Any:
        arrays = {}
        for port in self._signature.inputs:
            if port.is_shape:
                continue
            shape = run.shapes[port.name]
            if port.batched:
                shape = (run.rows, *shape[1:])
            arrays[port.name] = self._runner.outputs.array(port, pointers[port.name], shape, None)
        return next(iter(arrays.values())) if len(self._signature.inputs) == 1 else arrays

    def run(self, request: Request) -> bool:
        """Run the batch if ``data`` is the object from `gather`, else return False."""
        data = request.get("data")
        placed = self._placed
        if placed is not None and data is placed[0]:
            _, run, pointers = placed
            fetched = self._runner.run_placed(run, pointers)
            self._runner.settle()
            request["result"] = self._whole_result(run, fetched)
            return True
        if type(data) is Gathered:
            runner = self._runner
            pairs = [(run, runner.run_placed(run, runner.place(run))) for run in data.runs]
            runner.settle()
            request["result"] = [self._whole_result(run, outputs) for run, outputs in pairs]
            return True
        return False

    def _whole_result(self, run: Run, outputs: Sequence[Any]) -> Any:
        ports = self._signature.outputs
        check_run(run, ports, outputs)
        parts = [
            rows_of(output, 0, run.rows, sample=False) if port.batched else whole(output)
            for port, output in zip(ports, outputs, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return {port.name: part for port, part in zip(ports, parts, strict=True)}

    def split(self, batch: Sequence[Request]) -> None:
        """Give each request its rows of ``data``, the result of the concatenated batch.

        Raises:
            InputError: A request has no ``data``.
            BackendError: A request is not in the batch of TensorrtCat, or the result has other rows.
        """
        if self._samples:
            if self._split_samples(batch):
                return
            self._layout = {own: (0, row, 1, True) for row, own in enumerate(self._samples)}
        several = len(self._rows) > 1
        checked: Any = None
        for request in batch:
            layout = self._layout.get(id(request))
            if layout is None:
                raise BackendError("this request is not in the batch of TensorrtCat")
            number, start, rows, sample = layout
            if "data" not in request:
                raise InputError("the request lacks a key", key="data", expected="a result")
            data = request["data"]
            if several:
                data = data[number]
            if data is not checked:
                self._check(data, self._rows[number])
                checked = data
            request["result"] = self._part(data, start, start + rows, sample=sample)

    def _part(self, data: Any, start: int, stop: int, *, sample: bool) -> Any:
        """Return rows of a result; with several outputs, a dict with rows of each."""
        if type(data) is dict:
            return {
                name: whole(value)
                if name in self._unbatched
                else rows_of(value, start, stop, sample=sample)
                for name, value in data.items()
            }
        return whole(data) if self._unbatched else rows_of(data, start, stop, sample=sample)

    def _split_samples(self, batch: Sequence[Request]) -> bool:
        """Give each request its row if ``data`` is one array and the requests are its samples, in order.

        False if anything differs. The caller then writes all results anew.
        """
        data = batch[0].get("data")
        if type(data) is not DeviceArray or self._unbatched:
            return False
        if data.shape[:1] != self._rows or list(map(id, batch)) != self._samples:
            return False
        for request, row in zip(batch, data.rows(), strict=True):
            if request.get("data") is not data:
                return False
            request["result"] = row
        return True

    def _check(self, data: Any, total: int) -> None:
        """Refuse a result that does not have the rows of the batch."""
        values = data if type(data) is dict else {"": data}
        for name, value in values.items():
            if name in self._unbatched or (self._unbatched and not name):
                continue
            length = len(value) if hasattr(value, "__len__") else 0
            if length != total:
                raise BackendError(
                    f"the result of the concatenated batch has {length} rows, not {total}",
                    hint="The backend in post_processor must keep the batch axis.",
                )

    def finish(self) -> None:
        """Drop the state of the batch."""
        self._placed, self._layout, self._rows, self._samples = None, {}, (), []
