"""`OnnxTensor`: its contract. ONNX Runtime and numpy are first imported in `init`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.errors import InputError, SetupError
from headrace.keys import RESERVED
from headrace_ort.model_file import read_facts, warning_of_batch_dependence
from headrace_ort.options import OnnxOptions
from headrace_tensors import (
    check_equal_axes,
    check_padding,
    choose_keys,
    concatenate,
    enter,
    find_crops,
    group_items,
    pad_values,
    padded_shapes,
    prove_crops,
    read_item,
    read_warm_up,
    refuse_ragged,
    runs_of_lengths,
    split_outputs,
    wait_for_callers,
    warm_up_rows,
    warning_of_padding,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.keys import Request
    from headrace_ort.model_file import WeightFiles
    from headrace_tensors import Item, Signature

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

    _session: Any = None
    _runner: Any = None
    _place: Any = None
    _on_device: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    """Restores the current CUDA device of the caller's thread, since ONNX Runtime changes it."""
    _run_options: Any = None
    _store: Any = None
    _run_samples: Callable[[list[Request]], bool] | None = None
    _weights: WeightFiles | None = None
    _seen: tuple[Mapping[str, Any], int] = {}, 0
    """Inputs with which the warm-up has run, and their number of rows."""
    _signature: Signature
    _keys: dict[str, str]
    _options: OnnxOptions
    _shared_by: str | None
    """The node whose requests share runs; None if its `max` is 1, or another instance compares them."""
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

    @classmethod
    def lint(cls, options: OnnxOptions, largest_batch: int) -> Iterable[str]:
        """Tell of operators by which the rows of a batch change each other's results."""
        if largest_batch == 1:
            return ()
        found = warning_of_batch_dependence(options.model, read_facts(options.model).operators)
        return () if found is None else (found,)

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
        from headrace_ort.opening import open_session
        from headrace_ort.values import read_on_cpu

        self._value = read_on_cpu
        self._options = options
        self._logger, self._entered = context.logger, context.request.entered
        self._store = context.store.node
        opened = open_session(options, context)
        self._session, self._place, self._weights = opened.session, opened.place, opened.weights
        if opened.place is not None:
            self._on_device = opened.place.current()
        run_options = partial(session.run_options, opened.log_level)
        self._run_options = run_options()
        self._signature = signature.read_signature(
            self._session,
            outputs=options.outputs,
            unbatched=options.unbatched,
            batch_axis=options.batch_axis,
            shared=context.batch.max != 1,
        ).with_sizes(options.row_sizes)
        ports = self._signature.inputs
        self._keys = choose_keys(self._signature, options.inputs, RESERVED)
        self.reads = _reads(self._signature, self._keys)
        self._pads: dict[str, float] | None = None
        self._crops = {}
        if options.ragged == "pad":
            self._pads = pad_values(options.pad_value, ports)
            check_padding(ports, self._pads)
            self._crops = find_crops(self._signature, options.crop)
            warning = warning_of_padding(options.pad_value, ports)
            if warning is not None:
                context.logger.warning("%s", warning)
        # If the model fixes the shape of all samples, they need not be compared.
        free = any(port.batched and port.exact is None for port in ports)
        self._refuses = options.ragged == "refuse" and free
        self._by_shape = options.ragged == "group" and free
        self._set_range(context)
        self._bind(options, context, run_options)
        batched = {port.name for port in ports if port.batched}
        inputs = self._signature.as_inputs()
        inputs = {name: about for name, about in inputs.items() if name in batched}
        context.store.scope.get_or_create("inputs", lambda: inputs)
        self._built = {
            "onnxruntime": onnxruntime.__version__,
            "model": str(options.model),
            "providers": list(self._session.get_providers()),
            **opened.about,
            "output_device": options.output_device,
            "cuda_graphs": [],
        }

    def _bind(
        self,
        options: OnnxOptions,
        context: headrace.InitContext,
        run_options: Callable[[], Any],
    ) -> None:
        """Make the runner for a CUDA device, or the fast function for plain samples on the CPU."""
        self._sizes = self._signature.sizes or context.batch.sizes, context.batch.max
        alone = context.batch.max == 1 or context.instance_index > 0  # one instance speaks for all
        self._shared_by = None if alone else context.node_name
        if self._place is None:
            from headrace_ort.plain_samples import runner_of_samples
            from headrace_ort.session import bare_run

            self._run_samples = runner_of_samples(
                self._signature, self._keys, bare_run(self._session), self._run_options
            )
            return
        if any(port.axis for port in (*self._signature.inputs, *self._signature.outputs)):
            if options.output_device == "device" or options.cuda_graph:
                raise SetupError(
                    "batch_axis goes with arrays on the CPU only",
                    hint="Leave output_device and cuda_graph out, or export the batch axis in front.",
                )
            self._place = None
            return
        self._check_crops()
        self._runner = self._place.runner(
            self._session,
            self._signature,
            to_cpu=options.output_device == "cpu",
            run_options=run_options,
            sizes=self._signature.sizes or context.batch.sizes or (),
        )
        context.batch.at_end(self._runner.end)

    def _check_crops(self) -> None:
        crops = [crop for found in self._crops.values() for crop in found]
        on_device = self._place is not None and self._options.output_device == "device"
        if on_device and any(crop.axis != 1 for crop in crops):
            raise SetupError(
                "on the device only the first axis of samples is cut to the lengths of a request",
                hint="crop = {} leaves outputs as long as the padded inputs; output_device = 'cpu' cuts all.",
            )

    def _set_range(self, context: headrace.InitContext) -> None:
        signature = self._signature
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
        self._wait(batch)
        if len(batch) == 1:
            try:
                item = self._read(batch[0])
            except InputError as error:
                return [error]
            batch[0]["result"] = self._run([item])[0]
            return None
        outcomes: list[Exception | None] = [None] * len(batch)
        items: list[Item] = []
        places: list[int] = []
        for place, request in enumerate(batch):
            try:
                items.append(self._read(request))
            except InputError as error:
                outcomes[place] = error
            else:
                places.append(place)
        for group in group_items(items, self._signature.inputs, by_shape=self._by_shape):
            members = self._alike(group, items, places, outcomes) if self._refuses else group
            results = self._run([items[i] for i in members])
            for i, result in zip(members, results, strict=True):
                batch[places[i]]["result"] = result
        return outcomes if len(places) < len(batch) or any(outcomes) else None

    def _wait(self, batch: list[Request]) -> None:
        if self._place is not None:
            self._place.behind.clear()
            wait_for_callers(batch, self._entered, self._place.stream)

    def _read(self, request: Request) -> Item:
        """Read a request; if its arrays will be padded, axes of one name must be equal before."""
        value = self._value if self._place is None else self._place.read
        on_host = self._runner is None
        item = read_item(request, self._signature, self._keys, value, takes_empty=on_host)
        if self._pads is not None:
            check_equal_axes(item, self._signature, self._keys)
        return item

    def _alike(
        self,
        group: Sequence[int],
        items: Sequence[Item],
        places: Sequence[int],
        outcomes: list[Exception | None],
    ) -> list[int]:
        """Give the members of a group whose samples have the shape of its first; the others get an error as outcome."""
        if len(group) == 1:
            return list(group)
        keys = {port.name: self._keys[port.name] for port in self._signature.inputs if port.batched}
        members = []
        for i in group:
            error = refuse_ragged(items[group[0]], items[i], keys)
            if error is None:
                members.append(i)
            else:
                outcomes[places[i]] = error
        return members

    def _run(self, items: Sequence[Item]) -> list[Any]:
        """Run items that fit together and give the result of each."""
        signature, multiple = self._signature, self._options.pad_multiple
        padded = padded_shapes(items, signature, multiple) if self._crops else None
        if self._runner is not None:
            with self._on_device:
                results: list[Any] = self._runner.run(
                    items,
                    pads=self._pads,
                    pad_multiple=multiple,
                    crops=self._crops,
                    padded=padded,
                )
            return results
        feeds = {}
        total = signature.filled(sum(item.rows for item in items))
        for port in signature.inputs:
            if port.name not in items[0].tensors:
                continue
            arrays = [item.tensors[port.name] for item in items]
            feeds[port.name] = (
                concatenate(
                    arrays,
                    port,
                    rows=total,
                    pad_value=None if self._pads is None else self._pads[port.name],
                    pad_multiple=multiple,
                )
                if port.batched
                else arrays[0]
            )
        outputs = self._run_feeds(feeds)
        for place in signature.passed:
            outputs[place] = outputs[place].copy()
        found = split_outputs(
            outputs, items, signature, rows=total, crops=self._crops, padded=padded
        )
        names = [port.name for port in signature.outputs]
        if len(names) == 1:
            return [row[0] for row in found]
        return [dict(zip(names, row, strict=True)) for row in found]

    def _run_feeds(self, feeds: dict[str, Any]) -> list[Any]:
        names = [port.name for port in self._signature.outputs]
        with self._on_device:
            outputs: list[Any] = self._session.run(names, feeds, self._run_options)
        return outputs

    def warm_up(self) -> None:
        """Run one row and two, and refuse outputs that do not follow the rows; capture graphs with cuda_graph."""
        options, signature = self._options, self._signature
        real = None
        if options.warm_up_input is not None:
            real = read_warm_up(options.warm_up_input, signature)
        told = [port.name for port in signature.outputs]
        if options.unbatched != "all":
            told = list(options.unbatched)
        warm_up_rows(
            self._outputs_of,
            signature,
            self._logger,
            real=real,
            told=told,
            free_axes=self._runner is None,
            node=None if options.output_device == "device" else self._shared_by,
            most=self._sizes[1],
            sizes=self._sizes[0],
            bounded=self._runner is None,
            shared=self._sizes[1] != 1,
        )
        if self._pads is not None:
            run = runs_of_lengths(self._outputs_of, signature, self._pads, real)
            self._crops = self._store.get_or_create(
                ("headrace_ort.crops", repr(options)),
                lambda: prove_crops(run, signature, options, real=real, most=self._sizes[1]),
            )
            self._check_crops()
        if self._runner is not None:
            from headrace_ort.on_device import sizes_to_capture

            sizes = sizes_to_capture(*self._sizes) if options.cuda_graph else ()
            with self._on_device:
                self._built["cuda_graphs"] = self._runner.warm_up(sizes)
                # Convolutions are planned for the last of them, the largest. Samples of free axes have not run.
                for rows in signature.sizes if self._seen[1] else ():
                    self._runner.outputs_of(*self._seen, filled=rows)

    def _outputs_of(self, feeds: Mapping[str, Any], rows: int) -> list[Any]:
        """Run inputs whose batch axis is in front, and return each output, or its shape where it is on the device."""
        if self._runner is not None:
            if self._seen[1] not in range(1, rows):
                self._seen = feeds, rows  # the fewest rows, which fit into all sizes
            with self._on_device:
                outputs: list[Any] = self._runner.outputs_of(feeds, rows)
            return outputs
        made = {
            port.name: concatenate([feeds[port.name]], port) if port.batched else feeds[port.name]
            for port in self._signature.inputs
            if port.name in feeds
        }
        return self._run_feeds(made)

    def describe(self) -> dict[str, Any]:
        """Return providers, threads, batch size, and the inputs and outputs; apart from them inputs that may be missing."""
        signature = self._signature
        inputs: dict[str, Any] = {}
        optional: dict[str, Any] = {}
        for port in signature.inputs:
            if port.name in self._keys:
                about = {"key": self._keys[port.name], **port.describe()}
                (optional if port.optional else inputs)[port.name] = about
        outputs = {port.name: port.describe() for port in signature.outputs}
        batch = {"batch": signature.rows, "one_at_a_time": signature.one_at_a_time}
        found = {**self._built, **batch, "inputs": inputs, "outputs": outputs}
        return {**found, "optional_inputs": optional} if optional else found

    def close(self) -> None:
        """Drop the session; a shared session lives until the node's last instance drops it."""
        with self._on_device:
            if self._runner is not None:
                self._runner.close()
            self._session = self._run_options = self._runner = self._run_samples = None
            self._store = None
        if self._weights is not None:
            self._weights.close()


def _reads(signature: Signature, keys: Mapping[str, str]) -> tuple[str, ...] | type:
    """Return the keys that requests hold; those of optional inputs need not be there."""
    needed = [keys[port.name] for port in signature.inputs if not port.optional]
    optional = [keys[port.name] for port in signature.inputs if port.optional and port.name in keys]
    if not optional:
        return tuple(dict.fromkeys(needed))
    kinds: dict[str, Any] = {
        **dict.fromkeys(optional, NotRequired[Any]),
        **dict.fromkeys(needed, Any),
    }
    return TypedDict("Reads", kinds)  # type: ignore[operator, no-any-return]
