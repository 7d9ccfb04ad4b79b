"""`TensorrtInferTensor`, `TensorrtCat` and `TensorrtSplit`: their contracts."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import BackendError, SetupError
from headrace_tensors import choose_keys, enter, wait_for_callers
from headrace_tensors.devices import Devices, check_devices, devices_of_engine, hands_on
from headrace_trt.backends.base import (
    GATHERING,
    Held,
    cuda_for,
    device_errors_in_setup,
    engine_of,
    gathering_of,
    stream_of,
)
from headrace_trt.running.options import InferOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.keys import Request
    from headrace_tensors import Signature
    from headrace_trt.running.gathering import Gathering
    from headrace_trt.running.runner import Runner

__all__ = ["TensorrtCat", "TensorrtInferTensor", "TensorrtSplit"]


def _devices(options: Any, context: headrace.InitContext) -> Devices:
    return devices_of_engine(context.device or "cuda:0", options)


class TensorrtInferTensor(headrace.Backend):
    """Run the engine of the backend before it in the same IoC, or of the backend in its brackets.

    ``TensorrtInferTensor[Onnx2Tensorrt]`` is the short form of
    ``IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor]``.

    Each instance has an execution context with buffers of its own, and runs on the instance's stream. Instance ``i``
    takes the optimization profile ``i`` modulo their number. If the profile of an instance takes one row, but the
    expression around it takes more, batches of more rows run in a second context under the widest profile.

    Reads:
        data: The input of an engine with one input; with several inputs, the keys with their names; the option
            ``inputs`` names other keys. An array of the input's dtype on the host or on the device (DLPack, the CUDA
            array interface), one sample, without the batch axis, or ``request_size`` rows, with it. Or a dict of such
            arrays by input name.
    Writes:
        result: The array of the only output, or a dict of arrays by output name; without batch
            axis if the request brought one sample. A numpy array, or with
            ``output_device = "device"`` a `DeviceArray`, which shares its memory with the batch's other results.
    Batch:
        The batch range of its profile. One at a time if an input or output has no batch axis. Leave the node's
        ``batch_sizes`` out if requests bring rows: any number runs, and copies of requests may not reach a size.

    Raises:
        InputError: A key is missing. Dtype, rank, axes or number of rows do not fit the profile, or
            ``ragged = "refuse"`` and the sample's shape differs from the batch's first.
        BackendError: TensorRT refused the run, the device is out of memory, or an output has no
            batch axis.
        InstanceLostError: The CUDA context cannot be used any more.
    Source:
        own. ``execute_async_v3`` of TensorRT.
    """

    Options = InferOptions
    takes = (0, 1)
    owns_thread = True
    rerun = True
    reads: tuple[str, ...] | type = ("{inputs}",)
    writes = ("result",)
    enter = staticmethod(enter)
    check_pipeline = staticmethod(check_devices)
    devices = staticmethod(_devices)

    _runner: Runner | None = None
    _gathering: Gathering | None = None

    @classmethod
    def auto_instances(cls, options: InferOptions, device: str | None, threads: int) -> int | None:
        """Return one: the runs of several on a device take turns, and each has memory of its own."""
        return 1

    def init(self, options: InferOptions, context: headrace.InitContext) -> None:  # noqa: PLR0915
        """Make an execution context of the engine before this, on the instance's stream."""
        from headrace_trt.engines.signature import read_signature
        from headrace_trt.running.execution import SharedScratch
        from headrace_trt.running.gathering import Gathering
        from headrace_trt.running.runner import Runner

        self._entered = context.request.entered
        with device_errors_in_setup():
            engine = engine_of(context)
            cuda, ordinal = cuda_for(context)
            profile = context.instance_index % max(engine.profiles, 1)

            def read(profile: int) -> Signature:
                names, unbatched = options.outputs, options.unbatched
                ports = read_signature(engine, profile, outputs=names, unbatched=unbatched)
                return ports.with_sizes(options.row_sizes)

            signature = read(profile)
            if signature.least_rows > 1 < engine.profiles:
                raise SetupError(
                    f"profile {profile} takes {signature.least_rows} rows or more, and an output has no batch"
                    " axis: from a smaller batch it would be computed with copies of a row",
                    hint="Let every profile begin at 1 row, or leave the output out with `outputs`.",
                )
            keys = choose_keys(signature, options.inputs, from_data=True)
            scratch = None
            if options.context_memory == "shared":
                scratch = context.store.node.get_or_create(
                    ("headrace_trt.scratch", id(engine)), lambda: SharedScratch(engine, cuda)
                )
            self._stream = stream = stream_of(context, cuda, ordinal)
            make: Callable[..., Runner] = Runner
            if context.span is not None:
                from headrace_trt.running.spans import SpannedRunner, Spans

                spans = Spans(cuda, stream, context.span, f"cuda:{ordinal}")
                make = functools.partial(SpannedRunner, spans=spans)

            def run_with(profile: int, signature: Signature) -> Runner:
                return make(
                    engine,
                    cuda,
                    stream,
                    profile=profile,
                    signature=signature,
                    keys=keys,
                    options=options,
                    context=context,
                    scratch=scratch,
                )

            self._runner = runner = run_with(profile, signature)
            wider = None
            if signature.high_rows == 1 < engine.profiles and not signature.one_at_a_time:
                others = [(other, read(other)) for other in range(engine.profiles)]
                widest = max(others, key=lambda profile_of: profile_of[1].high_rows or 0)
                if (widest[1].high_rows or 0) > 1:
                    wider = functools.partial(run_with, *widest)
        self.reads = runner.rows.reads
        if signature.one_at_a_time:
            self.min = self.max = signature.least_rows
        else:
            self.min, self.max = signature.low_rows, signature.high_rows
        self._gathering = gathering = Gathering(runner, wider)
        context.store.scope.get_or_create(GATHERING, lambda: Held(gathering))
        context.store.scope.get_or_create("inputs", signature.as_inputs)
        context.batch.at_end(self._finish)

    def warm_up(self) -> None:
        """Run few rows, and zeros at the best and the largest shapes of the profile.

        Raises:
            SetupError: An output does not follow the rows.
        """
        if self._runner is not None:
            with _device_errors():
                self._runner.warm_up()

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the engine on all valid requests, or on the batch of TensorrtCat."""
        gathering = self._gathering
        if gathering is None:
            raise BackendError("TensorrtInferTensor is closed")
        with _device_errors():
            # If the batch is TensorrtCat's, that one has waited for the callers.
            if len(batch) == 1 and gathering.run(batch[0]):
                return None
            wait_for_callers(batch, self._entered, self._stream)
            return gathering.runner_for(batch).forward(batch)

    def _finish(self) -> None:
        if self._gathering is not None:
            self._gathering.finish()
            with _device_errors():
                for runner in self._gathering.runners:
                    runner.finish()

    def describe(self) -> dict[str, Any]:
        """Return the profile, its range, and the inputs and outputs."""
        return self._runner.describe() if self._runner is not None else {}

    def close(self) -> None:
        """Release contexts and buffers."""
        runner, gathering = self._runner, self._gathering
        self._runner = self._gathering = None
        for part in gathering.runners if gathering is not None else filter(None, (runner,)):
            part.close()


class TensorrtCat(headrace.Backend):
    """Put the rows of all requests straight into the engine's input buffers.

    The first part of ``CatSplit[TensorrtCat,...,TensorrtSplit]``, behind a TensorrtInferTensor, with its
    options. Each request is checked separately, and an invalid request fails alone.

    Reads:
        data: The inputs of TensorrtInferTensor.
    Writes:
        result: The same object for all requests: a `DeviceArray` with the rows of all, in the order of the
            requests (a dict by name with several inputs); valid until the end of the batch.
    Batch:
        1 or more.

    Raises:
        InputError: As TensorrtInferTensor raises it.
        BackendError: The device is out of memory.
        InstanceLostError: The CUDA context cannot be used any more.
    Source:
        own
    """

    owns_thread = True
    reads: tuple[str, ...] | type = ("data",)
    writes = ("result",)
    enter = staticmethod(enter)
    devices = staticmethod(_devices)

    _gathering: Gathering | None = None

    def init(self, options: headrace.Options, context: headrace.InitContext) -> None:
        """Find the `Gathering` of the TensorrtInferTensor before this.

        Raises:
            SetupError: There is none, or its results are cut to the lengths of requests.
        """
        self._gathering = gathering_of(context, "TensorrtCat")
        if self._gathering.runners[0].rows.padding.crops:
            raise SetupError(
                "ragged = 'pad' cuts outputs to the lengths of a request, and TensorrtSplit does not",
                hint="`crop` = {} leaves them as long as the padded inputs. Or leave TensorrtCat and TensorrtSplit out.",
            )
        self.reads = tuple(dict.fromkeys(self._gathering.keys.values()))
        self._entered = context.request.entered
        with device_errors_in_setup():
            self._stream = stream_of(context, *cuda_for(context))

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Concatenate all valid requests."""
        if self._gathering is None:
            raise BackendError("TensorrtCat is closed")
        with _device_errors():
            wait_for_callers(batch, self._entered, self._stream)
            return self._gathering.gather(batch)

    def close(self) -> None:
        """Drop the reference to the `Gathering`."""
        self._gathering = None


class TensorrtSplit(headrace.Backend):
    """Return each request of a concatenated batch its own rows of the result.

    The last part of ``CatSplit[TensorrtCat,...,TensorrtSplit]``.

    Reads:
        data: The result for the batch of TensorrtCat: an array with the batch as first axis, or a
            dict of arrays.
    Writes:
        result: The rows of this request, of the same dtype, without batch axis if it brought one sample. Numpy
            arrays are copied; arrays on a device are views, and keep the memory of the batch's result alive.
    Batch:
        1 or more.

    Raises:
        InputError: A request has no ``data``.
        BackendError: The result does not have the rows of the batch.
    Source:
        own
    """

    owns_thread = True
    reads = ("data",)
    writes = ("result",)
    devices = staticmethod(hands_on)

    _gathering: Gathering | None = None

    def init(self, options: headrace.Options, context: headrace.InitContext) -> None:
        """Find the `Gathering` of the TensorrtInferTensor before this."""
        self._gathering = gathering_of(context, "TensorrtSplit")

    def forward(self, batch: list[Request]) -> None:
        """Give each request its rows."""
        if self._gathering is None:
            raise BackendError("TensorrtSplit is closed")
        self._gathering.split(batch)

    def close(self) -> None:
        """Drop the reference to the `Gathering`."""
        self._gathering = None


@contextlib.contextmanager
def _device_errors() -> Iterator[None]:
    """Turn an error of the device into a BackendError for the batch, or into InstanceLostError."""
    from headrace_trt.libraries.cuda import CudaError, request_error

    try:
        yield
    except CudaError as error:
        raise request_error(error) from error
