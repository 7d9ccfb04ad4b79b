"""`OnnxTensor`: its contract. ONNX Runtime and numpy are first imported in `init`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InputError, SetupError
from headrace_ort.options import OnnxOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.keys import Request
    from headrace_ort.items import Item
    from headrace_ort.signature import Signature

__all__ = ["OnnxTensor"]


class OnnxTensor(headrace.Backend):
    """Run an ONNX model with ONNX Runtime on a batch of requests.

    Reads:
        data: The input of a model with one input; with several inputs, the keys with their names; the option
            ``inputs`` names other keys. An array of the input's dtype: one sample, without the batch axis, or
            ``request_size`` rows, with it. For a scalar input: a scalar.
    Writes:
        result: The array of the only output, or a dict of arrays by output name; without batch
            axis if the request brought one sample. A numpy array, or with
            ``output_device = "device"`` an array on the device; new memory, the request's own.
    Batch:
        1 or more if the batch axis is dynamic, else the number to which the model is fixed. Rows are
        concatenated. Requests with different values of a scalar input run separately.

    Raises:
        InputError: A key is missing; dtype, rank, axes or number of rows do not fit; or
            ``ragged = "refuse"`` and the sample's shape is not that of the batch's first.
        BackendError: ONNX Runtime refused the run, or an output has no batch axis.
        InstanceLostError: The device can run nothing more in this process.
    Source:
        own; sessions and providers as in the Python API of ONNX Runtime.
    """

    Options = OnnxOptions
    rerun = True
    reads: tuple[str, ...] | type = ("{inputs}",)
    writes = ("result",)

    _session: Any = None
    _runner: Any = None
    _on_device: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    """Keeps the CUDA device that is current in the caller's thread, which ONNX Runtime changes."""
    _run_options: Any = None
    _run_samples: Callable[[list[Request]], bool] | None = None
    _signature: Signature
    _keys: dict[str, str]
    _options: OnnxOptions
    _built: dict[str, Any]

    def init(self, options: OnnxOptions, context: headrace.InitContext) -> None:
        """Make the session, or take the session that the node's instances share, and read its signature."""
        try:
            self._build(options, context)
        except SetupError as error:
            error.node, error.backend = context.node_name, self._label()
            error.instance = context.instance_index
            raise

    def _build(self, options: OnnxOptions, context: headrace.InitContext) -> None:
        from headrace_ort import builds

        onnxruntime = builds.import_runtime()
        from headrace_ort import collate, items, session, signature

        self._collate = collate
        self._read: Callable[..., Item] = items.read_item
        self._options = options
        self._place: Any = None
        log_level, opened = self._open(options, context)
        run_options = partial(session.run_options, log_level)
        self._run_options = run_options()
        self._signature = signature.read_signature(
            self._session,
            outputs=options.outputs,
            unbatched=options.unbatched,
            batch_axis=options.batch_axis,
        )
        signature.refuse_unknown("inputs", options.inputs, self._signature.inputs)
        self._keys = _keys(self._signature, options.inputs)
        self.reads = tuple(dict.fromkeys(self._keys.values()))
        if options.ragged == "pad":
            collate.check_padding(self._signature.inputs, options.pad_value)
            self._read = self._read_equal
        # If the model fixes the shape of all samples, `_alike` need not compare their shapes.
        batched = (port for port in self._signature.inputs if port.batched)
        self._refuses = options.ragged == "refuse" and any(port.exact is None for port in batched)
        self._set_range()
        self._bind(options, context, run_options)
        context.scope.get_or_create("inputs", self._inputs_for_scope)
        self._built = {
            "onnxruntime": onnxruntime.__version__,
            "model": str(options.model),
            "providers": list(self._session.get_providers()),
            **opened,
            "output_device": options.output_device,
            "cuda_graphs": [],
        }

    def _open(
        self, options: OnnxOptions, context: headrace.InitContext
    ) -> tuple[str, dict[str, Any]]:
        """Open the session, or take the one that the instances share.

        Returns:
            The level of the logs of its runs, and what `describe` gives of how it was opened.
        """
        from headrace_ort import providers, session

        chosen = self._choose(options, context)
        on_cpu = [name for name, _ in chosen] == [providers.CPU]
        threads = options.intra_op_threads or context.threads
        spinning = context.instance_num == 1 if options.spinning is None else options.spinning
        share = options.share_session
        if share is None:
            share = on_cpu and threads == 1
        log_level = options.log_level or ("fatal" if on_cpu else "error")
        if chosen[0][0] in providers.ON_CUDA:
            from headrace_ort.on_device import place_of

            self._place = place_of(context, chosen, shared=share, cuda_graph=options.cuda_graph)
            chosen = self._place.providers
            self._on_device = self._place.current()

        def make() -> Any:
            return session.make_session(
                options.model,
                chosen,
                intra_op_threads=threads,
                spinning=spinning,
                graph_optimization=options.graph_optimization,
                session_config=options.session_config,
                log_level=log_level,
                libraries=options.provider_libraries,
            )

        if share:
            about = options.model.stat()
            key = ("headrace_ort", str(options.model.resolve()), about.st_mtime_ns, about.st_size)
            how = (chosen, threads, spinning, options.graph_optimization, log_level)
            named = (*key, repr(how), repr(sorted(options.session_config.items())))
        with self._on_device:
            self._session = context.shared.get_or_create(named, make) if share else make()
        return log_level, {
            "provider_options": {
                name: {key: value for key, value in values.items() if key != "user_compute_stream"}
                for name, values in chosen
            },
            "intra_op_threads": threads,
            "spinning": options.session_config.get(session.SPINNING, str(int(spinning))) == "1",
            "shared_session": share,
        }

    def _choose(
        self, options: OnnxOptions, context: headrace.InitContext
    ) -> list[tuple[str, dict[str, str]]]:
        """Give the providers with their options; refuse two builds of ONNX Runtime, or warn about them."""
        from headrace_ort import builds, providers

        if options.provider_libraries and not context.allow_import:
            raise SetupError(
                "provider_libraries bring in code, and imports are refused here",
                hint="Load the configuration with imports allowed.",
            )
        chosen = providers.choose_providers(
            options.providers,
            context.device,
            options.provider_options,
            libraries=options.provider_libraries,
        )
        twice = builds.two_builds()
        if twice is not None:
            if any(name != providers.CPU for name, _ in chosen):
                raise twice
            context.logger.warning("%s. %s", twice.what, twice.hint)
        return chosen

    def _bind(
        self,
        options: OnnxOptions,
        context: headrace.InitContext,
        run_options: Callable[[], Any],
    ) -> None:
        """Make the runner for a CUDA device, or the fast function for plain samples on the CPU."""
        self._sizes = context.batch_sizes, context.max
        if self._place is None:
            from headrace_ort.session import bare_run

            self._run_samples = self._collate.runner_of_samples(
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
        self._runner = self._place.runner(
            self._session,
            self._signature,
            to_cpu=options.output_device == "cpu",
            run_options=run_options,
            sizes=context.batch_sizes or (),
        )
        context.at_batch_end(self._runner.end)

    def _inputs_for_scope(self) -> dict[str, dict[str, Any]]:
        """Give the batched inputs, for earlier elements that adapt to the model."""
        return {
            port.name: {"dtype": port.dtype, "shape": list(port.shape)}
            for port in self._signature.inputs
            if port.batched
        }

    def _set_range(self) -> None:
        signature = self._signature
        rows = signature.rows
        if signature.one_at_a_time and (rows is None or signature.fills):
            self.min, self.max = 1, 1
        elif rows is not None:
            self.min, self.max = rows, rows

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the model on all valid requests."""
        if self._run_samples is not None and self._run_samples(batch):
            return None
        look = None if self._place is None else self._place.look
        if len(batch) == 1:
            try:
                item = self._read(batch[0], self._signature, self._keys, look)
            except InputError as error:
                return [error]
            batch[0]["result"] = self._run([item])[0]
            return None
        outcomes: list[Exception | None] = [None] * len(batch)
        items: list[Item] = []
        places: list[int] = []
        for place, request in enumerate(batch):
            try:
                items.append(self._read(request, self._signature, self._keys, look))
            except InputError as error:
                outcomes[place] = error
            else:
                places.append(place)
        by_shape = self._options.ragged == "group"
        for group in self._collate.group_items(items, self._signature.inputs, by_shape=by_shape):
            members = self._alike(group, items, places, outcomes) if self._refuses else group
            results = self._run([items[i] for i in members])
            for i, result in zip(members, results, strict=True):
                batch[places[i]]["result"] = result
        return outcomes if len(places) < len(batch) or any(outcomes) else None

    def _read_equal(self, request: Request, *about: Any) -> Item:
        """Read a request whose arrays will be padded."""
        from headrace_ort import items

        item = items.read_item(request, *about)
        items.check_equal_axes(item, self._signature, self._keys)
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
            error = self._collate.refuse_ragged(items[group[0]], items[i], keys)
            if error is None:
                members.append(i)
            else:
                outcomes[places[i]] = error
        return members

    def _run(self, items: Sequence[Item]) -> list[Any]:
        """Run items that fit together and give the result of each."""
        signature, options = self._signature, self._options
        pad_value = options.pad_value if options.ragged == "pad" else None
        if self._runner is not None:
            with self._on_device:
                results: list[Any] = self._runner.run(
                    items, pad_value=pad_value, pad_multiple=options.pad_multiple
                )
            return results
        feeds = {}
        for port in signature.inputs:
            arrays = [item.arrays[port.name] for item in items]
            feeds[port.name] = (
                self._collate.concatenate(
                    arrays,
                    port,
                    rows=signature.rows,
                    pad_value=pad_value,
                    pad_multiple=options.pad_multiple,
                )
                if port.batched
                else arrays[0]
            )
        names = [port.name for port in signature.outputs]
        with self._on_device:
            outputs = self._session.run(names, feeds, self._run_options)
        for place in signature.passed:
            outputs[place] = outputs[place].copy()
        rows = self._collate.split_outputs(outputs, items, signature)
        if len(names) == 1:
            return [row[0] for row in rows]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def warm_up(self) -> None:
        """Run once on zeros if all shapes are declared and inputs are numbers; capture graphs with cuda_graph."""
        from headrace_ort.collate import zeros_for

        feeds = zeros_for(self._signature)
        if self._runner is not None:
            from headrace_ort.on_device import sizes_to_capture

            sizes = sizes_to_capture(*self._sizes) if self._options.cuda_graph else ()
            with self._on_device:
                self._built["cuda_graphs"] = self._runner.warm_up(feeds, sizes)
        elif feeds is not None:
            names = [port.name for port in self._signature.outputs]
            with self._on_device:
                self._session.run(names, feeds, self._run_options)

    def describe(self) -> dict[str, Any]:
        """Give providers, threads, batch size, and the inputs and outputs."""
        signature = self._signature
        inputs = {
            port.name: {"key": self._keys[port.name], **port.describe()}
            for port in signature.inputs
        }
        outputs = {port.name: port.describe() for port in signature.outputs}
        batch = {"batch": signature.rows, "one_at_a_time": signature.one_at_a_time}
        return {**self._built, **batch, "inputs": inputs, "outputs": outputs}

    def close(self) -> None:
        """Drop the session; a shared session lives until the node's last instance drops it."""
        with self._on_device:
            if self._runner is not None:
                self._runner.close()
            self._session = self._run_options = self._runner = self._run_samples = None


def _keys(signature: Signature, inputs: dict[str, str]) -> dict[str, str]:
    """Give the key of the request for each input.

    Raises:
        SetupError: An input would be read from ``result``, which no request brings.
    """
    names = [port.name for port in signature.inputs]
    alone = {names[0]: "data"} if len(names) == 1 else {name: name for name in names}
    keys = {**alone, **inputs}
    if "result" in keys.values():
        name = next(name for name, key in keys.items() if key == "result")
        raise SetupError(
            f"input {name!r} would be read from the key 'result', which is removed from every request",
            hint=f"Name another key in `inputs`: {{{name} = 'KEY'}}.",
        )
    return keys
