"""`OnnxTensor`: its contract. ONNX Runtime and numpy are first imported in `init`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import SetupError
from headrace.keys import RESERVED
from headrace_ort.model_file import read_facts, warning_of_batch_dependence
from headrace_ort.options import OnnxOptions
from headrace_tensors import RowRunner, choose_keys, enter, read_item, wait_for_callers
from headrace_tensors.devices import Devices, check_devices, devices_of_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.keys import Request
    from headrace_ort.model_file import WeightFiles
    from headrace_tensors import Signature

__all__ = ["OnnxTensor"]


class OnnxTensor(headrace.Backend):
    """Run an ONNX model with ONNX Runtime on a batch of requests.

    Reads:
        data: The input of a model with one input; with several inputs, the keys with their names; the option
            ``inputs`` names other keys. An array of the input's dtype: one sample, without the batch axis, or
            ``request_size`` rows, with it. For a scalar input: a scalar.
            An input with a value in the model may be missing.
    Writes:
        result: The array of the only output, or a dict of arrays by output name; without batch
            axis if the request brought one sample. A numpy array, or with
            ``output_device = "device"`` a `DeviceArray`, which shares its memory with the batch's other results.
    Batch:
        1 or more if the batch axis is dynamic, else the fixed number of the model. Rows are concatenated.
        Requests with different values of an input without batch axis run separately. They run one at a time
        if such an input is large, or if an output has no batch axis. Leave the node's ``batch_sizes`` out if
        requests bring rows: any number runs (a graph fills it up), and copies of requests may not reach a size.

    Raises:
        InputError: A key is missing. Dtype, rank, axes or number of rows do not fit, or
            ``ragged = "refuse"`` and the sample's shape differs from the batch's first.
        BackendError: ONNX Runtime refused the run, an output does not have the rows of the batch, or a file with
            weights was written to.
        InstanceLostError: The device can run nothing more in this process.
    Source:
        own. Sessions and providers as in the Python API of ONNX Runtime.
    """

    Options = OnnxOptions
    rerun, wide = True, True
    reads: tuple[str, ...] | type = ("{inputs}",)
    writes = ("result",)
    enter = staticmethod(enter)
    check_pipeline = staticmethod(check_devices)

    _session: Any = None
    _runner: Any = None
    """The runner on a CUDA device. None: the session gets arrays on the CPU."""
    _place: Any = None
    _adapter: Any = None
    _current: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    """Restores the current CUDA device of the caller's thread, since ONNX Runtime changes it."""
    _graph_sizes: Iterable[int] = ()
    """The numbers of rows of which the warm-up captures graphs."""
    _run_samples: Callable[[list[Request]], bool] | None = None
    _weights: WeightFiles | None = None
    _rows: Any = None
    _built: dict[str, Any]

    @classmethod
    def needs_thread(cls, options: OnnxOptions, device: str | None) -> bool:
        """Say yes on CUDA, whose providers keep handles, and captured graphs, for each thread that runs a session."""
        return options.on_cuda(device)

    @classmethod
    def auto_instances(cls, options: OnnxOptions, device: str | None, threads: int) -> int | None:
        """Return an instance for each thread on the CPU, whose instances share a session, else one."""
        apart = options.share_weights is False or (options.intra_op_threads or 1) > 1
        return threads if options.on_cpu(device) and not apart else 1

    @staticmethod
    def devices(options: OnnxOptions, context: headrace.InitContext) -> Devices | None:
        """Return those of the node's ``device``; None where options of the providers decide."""
        own = context.device or "cpu"
        decides = options.on_cuda(own) == own.startswith("cuda")
        apart = any("device_id" in values for values in options.provider_options.values())
        return devices_of_engine(own, options) if decides and not apart else None

    @classmethod
    def lint(cls, options: OnnxOptions, largest_batch: int) -> Iterable[str]:
        """Tell of operators by which the rows of a batch change each other's results."""
        if largest_batch == 1:
            return ()
        warning = warning_of_batch_dependence(options.model, read_facts(options.model).operators)
        return () if warning is None else (warning,)

    def init(self, options: OnnxOptions, context: headrace.InitContext) -> None:
        """Make the session, or take the session that the node's instances share, and read its signature."""
        try:
            self._build(options, context)
        except BaseException as error:
            if self._weights is not None:
                self._weights.close()
            if isinstance(error, SetupError):
                error.node, error.backend = context.node_name, self._label()
                error.instance = context.instance_index
            raise

    def _build(self, options: OnnxOptions, context: headrace.InitContext) -> None:
        from headrace_ort import builds

        onnxruntime = builds.import_runtime()
        from headrace_ort import session, signature
        from headrace_ort.opening import choose_row_sizes, open_session

        self._options, self._entered = options, context.request.entered
        opened = open_session(options, context)
        self._session, self._place, self._weights = opened.session, opened.place, opened.weights
        read = signature.read_signature(
            self._session,
            outputs=options.outputs,
            unbatched=options.unbatched,
            batch_axis=options.batch_axis,
            shared=context.batch.max != 1,
        )
        read = read.with_sizes(choose_row_sizes(options, context, read, planned=opened.planned))
        if opened.place is not None:
            self._current = opened.place.current()
        self._rows = self._bind(read, context, partial(session.run_options, opened.log_level))
        self.reads = self._rows.reads
        self._set_range(context)
        batched = {port.name for port in read.inputs if port.batched}
        inputs = {name: about for name, about in read.as_inputs().items() if name in batched}
        context.store.scope.get_or_create("inputs", lambda: inputs)
        self._built = {
            "onnxruntime": onnxruntime.__version__,
            "model": str(options.model),
            "providers": list(self._session.get_providers()),
            **opened.about,
            "output_device": options.output_device,
            "cuda_graphs": [],
            "row_sizes": list(read.sizes),
        }

    def _bind(
        self,
        signature: Signature,
        context: headrace.InitContext,
        run_options: Callable[[], Any],
    ) -> RowRunner:
        """Make the runner for a CUDA device, or for arrays on the CPU, with the fast function for plain samples."""
        from headrace_ort.on_cpu import CpuRunner
        from headrace_ort.values import read_on_cpu

        options, place = self._options, self._place
        keys = choose_keys(signature, options.inputs, RESERVED)
        if place is None:
            from headrace_ort.plain_samples import runner_of_samples
            from headrace_ort.session import bare_run

            self._run_samples = runner_of_samples(
                signature, keys, bare_run(self._session), run_options()
            )
        elif any(port.axis for port in (*signature.inputs, *signature.outputs)):
            self._place = None
        else:
            from headrace_ort.on_device import sizes_to_capture

            sizes = signature.sizes or context.batch.sizes
            if options.cuda_graph:
                self._graph_sizes = sizes_to_capture(sizes, context.batch.max)
            self._adapter = self._runner = place.runner(
                self._session,
                signature,
                to_cpu=options.output_device == "cpu",
                run_options=run_options,
                sizes=sizes or (),
                measured=options.row_sizes is None and bool(signature.sizes),
                current=self._current,
            )
            context.batch.at_end(self._runner.end)
        if self._runner is None:
            current = None if place is None else self._current
            self._adapter = CpuRunner(self._session, signature, run_options(), current)
        value = read_on_cpu if self._runner is None else place.read
        empty = self._runner is None
        read = partial(read_item, signature=signature, keys=keys, read=value, takes_empty=empty)
        return RowRunner(self._adapter, read, signature, keys, options, context)

    def _set_range(self, context: headrace.InitContext) -> None:
        signature = self._rows.signature
        rows = signature.rows
        if signature.one_at_a_time and (rows is None or signature.fills):
            self.min, self.max = 1, 1
        elif rows is not None:
            self.min, self.max = signature.least_rows, rows
            if self.min < rows and not context.batch.pad:
                context.logger.warning(
                    "the model is fixed to %d rows: copies of a row fill up each run with fewer. If that is meant, say"
                    " pad = true. If not, export the model with a dynamic batch axis",
                    rows,
                )

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the model on all valid requests."""
        if self._weights is not None:
            self._weights.check()
        if self._run_samples is not None and self._run_samples(batch):  # on the CPU only
            return None
        if self._place is not None:
            self._place.behind.clear()
            wait_for_callers(batch, self._entered, self._place.stream)
        outcomes: list[Exception | None] | None = self._rows.forward(batch)
        return outcomes

    def warm_up(self) -> None:
        """Run few rows, refuse outputs that do not follow them, and capture graphs or measure a default of row_sizes."""
        on_host = self._runner is None
        self._rows.warm_up(self._adapter.outputs_of, free_axes=on_host, bounded=on_host)
        if self._runner is not None:
            self._built["cuda_graphs"] = self._runner.warm_up(self._graph_sizes)
            self._built["row_sizes"] = self._runner.row_sizes.allowed

    def describe(self) -> dict[str, Any]:
        """Return providers, threads, batch size, and the inputs and outputs; apart from them inputs that may be missing."""
        signature = self._rows.signature
        batch = {"batch": signature.rows, "one_at_a_time": signature.one_at_a_time}
        return {**self._built, **batch, **self._rows.describe()}

    def close(self) -> None:
        """Drop the session; a shared session lives until the node's last instance drops it."""
        with self._current:
            if self._runner is not None:
                self._runner.close()
            self._session = self._runner = self._adapter = None
            self._run_samples = self._rows = None
        if self._weights is not None:
            self._weights.close()
