"""`TorchModule`: its contract. torch is first imported in `init`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, SetupError
from headrace_tensors import RowRunner, choose_keys, read_warm_up
from headrace_torch.backends.base import TensorBackend
from headrace_torch.backends.module_options import TorchModuleOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_tensors import Item

__all__ = ["TorchModule"]


class TorchModule(TensorBackend):
    """Run a model with torch on a batch of requests.

    Reads:
        data: The input of a model with one input; with several inputs, the keys with their names; the option
            ``inputs`` names other keys. A tensor of real numbers on the instance's device, or an array on the host (of
            the input's dtype, if the model declares it): one sample, without the batch axis, or ``request_size``
            rows, with it. If neither the model nor ``shape`` declares the rank, a request with ``request_size``
            brings rows, a request without it a sample.
    Writes:
        result: The tensor of the only output, or a table of tensors by name; without batch axis if the request
            brought one sample. In new memory.
    Batch:
        1 or more if the batch axis is dynamic, or the range of the exported program, or its fixed number. Leave the
        node's ``batch_sizes`` out if requests bring rows: any number runs (a graph fills it up), and copies of requests
        may not reach a size.

    Raises:
        InputError: A key is missing. Dtype, rank, axes, rows or device do not fit, or
            ``ragged = "refuse"`` and the sample's shape differs from the batch's first.
        BackendError: The model raised, memory ran out, or an output does not have the rows of the batch.
    Source:
        own. Torch.jit, torch.export and AOTInductor as in the Python API of torch.
    """

    Options = TorchModuleOptions
    default_device = "cpu"
    takes_from = ("cpu",)
    reads: tuple[str, ...] | type = ("{inputs}",)
    writes = ("result",)

    _runner: Any = None
    _owner: Any = None
    _rows: Any = None
    _adapter: Any = None
    _built: dict[str, Any]

    @classmethod
    def most_instances(cls, options: TorchModuleOptions) -> int | None:
        """Return 1 for the modes of torch.compile that use CUDA graphs: these belong to one thread of the process."""
        return 1 if options.compile in ("reduce-overhead", "max-autotune") else None

    @classmethod
    def auto_instances(
        cls, options: TorchModuleOptions, device: str | None, threads: int
    ) -> int | None:
        """Return one for each thread on the CPU if the instances share the weights, else one."""
        number = super().auto_instances(options, device, threads)
        return number if options.share_weights else 1

    def build(self, options: TorchModuleOptions, context: InitContext) -> None:
        """Load the model, or take the node's shared model."""
        import torch

        from headrace_torch.devices.names import device_name
        from headrace_torch.models import running
        from headrace_torch.models.adapter import TorchAdapter, alike_tensors, unlike_first
        from headrace_torch.requests import signature
        from headrace_torch.requests.items import Reader
        from headrace_torch.requests.tensors import dtype_name

        if options.module is not None and not context.allow_import:
            raise SetupError(
                f"module = {options.module!r} brings in code, and imports are refused here",
                hint="Load the configuration with imports allowed, or use a torch.export program.",
            )
        device, self._owner = self._place.device, self._shared(options, context)
        model = self._owner.model
        completed = signature.with_shapes(model.signature, options.shape)
        completed = signature.without_batch_axis(
            completed, options.unbatched, options.outputs, model.signature
        )
        if model.returned is not None:
            signature.refuse_other_axes(
                model.returned, options.outputs, completed, shared=context.batch.max != 1
            )
        self._options, self._signature, self._logger = options, completed, context.logger
        self._limit = context.batch.max
        self._keys = choose_keys(completed, options.inputs)
        self._dtype = running.DTYPES.get(options.dtype or "")
        self.min, self.max = completed.low_rows, completed.high_rows
        if completed.rows is not None:
            self.min = self.max = completed.rows
        elif completed.one_at_a_time:
            self.min = self.max = 1
        self._runner = running.Runner(
            model,
            device,
            outputs=options.outputs,
            whole=completed.whole,
            channels_last=options.channels_last,
            compile_mode=options.compile_mode,
        )
        self._sizes = context.batch.sizes, self._most(context)
        self._adapter = TorchAdapter(
            self._runner, completed, self._place, halve=options.halve_on_oom
        )
        reader = Reader(
            completed,
            self._keys,
            place=self._place,
            dtype=self._dtype,
            strict=device.type == "cpu",
        )
        keys = {port.name: self._keys[port.name] for port in completed.inputs if port.batched}
        unlike = partial(unlike_first, keys=keys, padded=options.ragged == "pad")
        self._rows = RowRunner(
            self._adapter,
            reader.read,
            signature.as_run(completed, model.returned, options, self._dtype),
            self._keys,
            options,
            context,
            alike=alike_tensors,
            unfit=None if options.ragged == "group" else unlike,
            note=self._place.note_axis,
        )
        reader.pads = self._rows.padding.values
        self.reads = self._rows.reads
        self._publish_inputs(context)
        own = self._runner.likely_dtype
        self._built = {
            "torch": torch.__version__,
            "device": str(device),
            "device_name": device_name(device),
            "kind": model.kind,
            "model": str(options.model or options.module),
            "weights": None if options.weights is None else str(options.weights),
            "dtype": options.dtype or (None if own is None else dtype_name(own)),
            "weight_bytes": model.weight_bytes,
            "shared_weights": options.share_weights,
            "compile": options.compile_mode,
            "warm_up_peak_bytes": None,
            "warm_up_rows": None,
            "cuda_graphs": [],
            "outputs": None,  # until the warm-up has run the model
            "threads": torch.get_num_threads(),
        }

    def _most(self, context: InitContext) -> int:
        """Return the largest batch of the node, in rows."""
        known = [most for most in (self.max, context.batch.max) if most is not None]
        return min(known, default=max(context.batch.sizes or (1,)))

    def _shared(self, options: TorchModuleOptions, context: InitContext) -> Any:
        """Return the model on this device: shared by the node's instances, or this instance's alone."""
        from headrace_torch.models.running import DTYPES, SharedModel, prepare_model

        device = self._place.device
        names = (options.module, repr(sorted(options.args.items())), tuple(sorted(options.inputs)))

        def make() -> SharedModel:
            model = self._loaded(options, context)
            prepared = prepare_model(
                model,
                device,
                dtype=DTYPES.get(options.dtype or ""),
                channels_last=options.channels_last,
                compile_mode=options.compile_mode,
                kind=names if options.module is not None else None,
            )
            return SharedModel(prepared, device)

        store = context.store.node if options.share_weights else context.store.instance
        how = (options.dtype, options.channels_last, options.compile_mode)
        files = [
            (str(path.resolve()), path.stat().st_mtime_ns, path.stat().st_size)
            for path in (options.model, options.weights)
            if path is not None
        ]
        own: object = None if options.share_weights else id(self)
        key = ("headrace_torch.model", str(device), *files, *names, *how, own)
        return store.get_or_create(key, make)

    def _loaded(self, options: TorchModuleOptions, context: InitContext) -> Any:
        from headrace_torch.models import loading, modules

        if options.model is not None:
            runners = context.instance_num if options.share_weights else 1
            return loading.load_model(options.model, self._place.device, runners=runners)
        return modules.load_module(
            options.module or "", options.args, options.weights, options.inputs
        )

    def _publish_inputs(self, context: InitContext) -> None:
        """Declare the model's inputs to earlier elements (FixTensor) in the scope, if all shapes are known."""
        import torch

        from headrace_torch.models.fixing import WAITING
        from headrace_torch.requests.tensors import dtype_name

        inputs: dict[str, dict[str, Any]] = {}
        for port in self._signature.inputs:
            if port.shape is None:
                inputs.clear()
                break
            dtype = port.dtype or (torch.float32 if self._dtype else self._runner.likely_dtype)
            name = None if dtype is None else dtype_name(dtype)
            inputs[port.name] = {"dtype": name, "shape": list(port.shape)}
        if inputs:
            context.store.scope.get_or_create("inputs", lambda: inputs)
        waiting = context.store.scope.get(WAITING, [])
        while waiting:
            waiting.pop().take_inputs(inputs)

    def warm_up(self) -> None:
        """Run, or capture, each batch size once, if the shapes of the inputs are known."""
        from headrace_torch.models.comparing import warn_of_batch_dependence
        from headrace_torch.models.warming import warm
        from headrace_torch.requests.tensors import as_tensor

        path, real = self._options.warm_up_input, None
        if path is not None:
            real = read_warm_up(path, self._signature, lambda value, port, key: as_tensor(value))
        with self._inference(True):
            warmed = warm(
                self._runner,
                self._signature,
                self._place,
                sizes=self._sizes,
                dtype=self._dtype,
                graphs=self._options.cuda_graph,
                halve=self._options.halve_on_oom,
                real=real,
                logger=self._logger,
                shared=self._limit != 1,
            )
            place, node = self._place, self._rows.shared_by
            if warmed.get("outputs") and node is not None:
                warn_of_batch_dependence(
                    self._runner,
                    self._signature,
                    place,
                    node,
                    self._logger,
                    sizes=(self._sizes[0], min(self._sizes[1], warmed["warm_up_rows"])),
                    dtype=self._dtype,
                    real=real,
                )
            if self._rows.padding.values is not None:
                self._prove_crops(real)
        self._built.update(warmed)

    def _prove_crops(self, real: Item | None) -> None:
        """Find how outputs follow unequal lengths, once for all instances."""
        from headrace_torch.models.padding import runs_of_lengths

        ports = self._signature.inputs
        if self._runner.compiled or any(port.shape is None for port in ports):
            why = (
                "the model is compiled"
                if self._runner.compiled
                else "`shape` says nothing of an input"
            )
            self._logger.warning(
                "ragged = 'pad' is not proven, since %s: outputs are cut where `crop` says so", why
            )
            return
        run = runs_of_lengths(
            self._runner,
            self._signature,
            self._place,
            self._rows.padding.values,
            dtype=self._dtype,
            real=real,
        )
        self._rows.prove(run, real)

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the model on all requests of the batch that are valid."""
        failure = self._run_at_once(batch)
        if failure is True:
            return None
        self._adapter.tried = failure or None
        outcomes: list[Exception | None] | None = self._rows.forward(batch)
        return outcomes

    def _run_at_once(self, batch: list[Request]) -> bool | BackendError:
        """Run samples that are the rows of one tensor, or that can be stacked to one.

        Returns:
            Whether they were run. An error if there was not enough memory for all of them.
        """
        whole, new = self._whole_of(batch)
        if whole is None:
            return False
        from headrace_torch.models.running import run_or_failure

        outputs = run_or_failure(
            lambda: self._runner.run((self._cast(whole),), len(batch), new=new), self._place.device
        )
        if isinstance(outputs, BackendError):
            return outputs
        if len(outputs) == 1:
            self._place.give(batch, next(iter(outputs.values())), hands_on=self._hands_on)
        else:
            for index, request in enumerate(batch):
                request["result"] = {name: output[index] for name, output in outputs.items()}
        return True

    def _cast(self, whole: torch.Tensor) -> torch.Tensor:
        if self._dtype is None or whole.dtype is self._dtype or not whole.is_floating_point():
            return whole
        return whole.to(self._dtype)

    def _whole_of(self, batch: list[Request]) -> tuple[torch.Tensor | None, bool]:
        """Return samples as one tensor that the model takes unchanged, and whether it is new.

        None as the tensor: the samples have to be read one by one.
        """
        if len(self._keys) != 1 or next(iter(self._keys.values())) != "data":
            return None, False
        if self._signature.one_at_a_time or not self._signature.inputs[0].batched:
            return None, False
        if self._options.ragged == "pad" or len(batch) != self._adapter.filled(len(batch)):
            return None, False  # axes may have to be padded to a multiple, or rows to be filled up
        whole = self._place.carried(batch)
        new = whole is None
        if whole is None and len(batch) > 1:
            whole = self._place.stacked(batch)
        if whole is None:
            return None, False
        from headrace_torch.requests.items import fits

        return (whole if fits(whole, self._signature.inputs[0], self._dtype) else None), new

    def describe(self) -> dict[str, Any]:
        """Return torch's version, the device, the precision, the loaded model with its options, its inputs and outputs.

        ``outputs`` is None if the warm-up could not run the model because shapes of inputs are not known.
        """
        inputs: Mapping[str, Any] = {
            port.name: {"key": self._keys[port.name], **port.describe()}
            for port in self._signature.inputs
        }
        return {**self._built, "batch": self._signature.rows, "inputs": inputs}

    def close(self) -> None:
        """Release the graphs and the model; a shared model lives until the node is closed."""
        if self._runner is not None:
            self._runner.close()
        self._runner = self._owner = self._rows = self._adapter = None
        super().close()
