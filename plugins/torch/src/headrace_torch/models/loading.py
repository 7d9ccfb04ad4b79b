"""Loads files that hold whole models: recognizes their kind by content, and reads their signature."""

from __future__ import annotations

import inspect
import tempfile
import threading
import warnings
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from headrace.errors import SetupError
from headrace_torch.models.packages import layouts_of, signature_of
from headrace_torch.requests.signature import Port, Signature, lengths_of, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Model", "first_line", "kind_of", "load_model"]

_warnings = threading.Lock()

_ONNX_TAGS = [bytes([tag]) for tag in b"\x12\x1a\x22\x28\x32\x3a\x42\x72"]
"""The tags of the fields that can follow the version of the format in an ONNX file."""


@dataclass
class Model:
    """A model that can be called, of any kind.

    Attributes:
        kind: ``"TorchScript"``, ``"torch.export"``, ``"AOTInductor"`` or ``"module"``.
        call: Runs the model. It takes the inputs in the order of the signature.
        signature: The inputs.
        module: The module, whose weights can be cast and moved. None for AOTInductor.
        weight_bytes: The bytes of all parameters and buffers. For AOTInductor, of the package.
        memory: The addresses of parameters and buffers. An output at one of them is a view of a weight.
        returned: What the model returns, with tensors that have shapes, but no values. None: only a run shows it.
    """

    kind: str
    call: Callable[..., Any]
    signature: Signature
    module: torch.nn.Module | None = None
    weight_bytes: int = 0
    memory: frozenset[int] = field(default_factory=frozenset)
    returned: Any = None

    def count(self) -> None:
        """Set ``weight_bytes`` and ``memory``, once the weights are on the device on which they stay."""
        if self.module is not None:
            tensors = [*self.module.parameters(), *self.module.buffers()]
            self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.memory = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def kind_of(path: str | Path) -> str:
    """Recognize the kind of a file by its content.

    Returns:
        ``"TorchScript"``, ``"torch.export"``, ``"AOTInductor"``, ``"state dict"``,
        ``"safetensors"``, ``"ONNX"`` or ``"unknown"``.
    """
    path = Path(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = ["/".join(name.split("/")[1:]) or name for name in archive.namelist()]
            names += archive.namelist()
        if any(name.startswith("data/aotinductor/") for name in names):
            return "AOTInductor"
        if any(name.startswith(("models/", "serialized_exp")) for name in names):
            return "torch.export"
        if "constants.pkl" in names and any(name.startswith("code/") for name in names):
            return "TorchScript"
        return "state dict" if "data.pkl" in names else "unknown"
    with path.open("rb") as file:
        start = file.read(16)
    length = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 2 <= length <= path.stat().st_size - 8:
        return "safetensors"
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "state dict"
    # An ONNX file begins with the version of its format, one byte, and the tag of another field of the model.
    onnx = start[:1] == b"\x08" and start[1:2] < b"\x20" and start[2:3] in _ONNX_TAGS
    return "ONNX" if onnx and len(start) > 3 else "unknown"


def load_model(path: str | Path, device: torch.device, *, runners: int = 1) -> Model:
    """Load a file that holds a whole model.

    Args:
        path: TorchScript, a ``torch.export`` program or an AOTInductor package.
        device: The device on which the model will run.
        runners: The most threads that may run an AOTInductor package at the same time.

    Raises:
        SetupError: The file holds something else, or cannot be loaded.
    """
    path = Path(path)
    kind = kind_of(path)
    try:
        if kind == "TorchScript":
            return _load_script(path, device)
        if kind == "torch.export":
            return _load_program(path, device)
        if kind == "AOTInductor":
            return _load_package(path, device, runners)
    except SetupError:
        raise
    except Exception as error:  # whatever torch raises for a file that is broken or too new
        raise SetupError(
            f"torch {torch.__version__} cannot load {str(path)!r} ({kind}): "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    hints = {
        "state dict": "It holds weights without a model, or a whole module, which is not loaded because that"
        " runs code: name the model's code in `module` = 'package.mod:factory', and its state dict in"
        " `weights`.",
        "safetensors": "It holds weights without a model: name the model's code in `module`"
        " = 'package.mod:factory', and this file in `weights`.",
        "ONNX": "It is an ONNX model: OnnxTensor of headrace-ort runs it.",
    }
    raise SetupError(
        f"{str(path)!r} holds no model that torch can run (it looks like: {kind})",
        hint=hints.get(
            kind, "Write it with torch.export.save; TorchScript and AOTInductor are read too."
        ),
    )


def first_line(error: BaseException) -> str:
    """Give the text of an error in one line of at most 400 characters, since texts of torch may be pages long."""
    return " ".join(str(error).split())[:400]


def _load_script(path: Path, device: torch.device) -> Model:
    load = getattr(torch.jit, "load", None)
    if load is None:
        raise SetupError(
            f"torch {torch.__version__} reads no TorchScript any more ({str(path)!r})",
            hint="Export the model with torch.export.export and torch.export.save.",
        )
    # One thread at a time, since `catch_warnings` changes the state of the whole process.
    with _warnings, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load(str(path), map_location=device)
    module.eval()
    needed = [a for a in module.forward.schema.arguments[1:] if not a.has_default_value()]
    strange = [a.name for a in needed if str(a.type) != "Tensor"]
    if strange or not needed:
        raise SetupError(
            f"the model's forward takes {strange[0]!r}, no tensor"
            if strange
            else "the model's forward takes no tensor",
            hint="Wrap it in a module whose forward takes tensors.",
        )
    return Model("TorchScript", module, Signature(tuple(Port(a.name) for a in needed)), module)


def _children(spec: Any) -> Any:
    """Return the parts of a tree of arguments; older versions of torch have them as an attribute."""
    return spec.children() if hasattr(spec, "children") else spec.children_specs


def _load_program(path: Path, device: torch.device) -> Model:
    with path.open(
        "rb"
    ) as file:  # as a file, because torch warns about a path that does not end in .pt2
        program = torch.export.load(file)
    training = _training_in(program)
    if training is not None:
        raise SetupError(
            f"{str(path)!r} was exported in training mode: {training} is on, and cannot be switched off",
            hint="Call eval() on the model before torch.export.export.",
        )
    if _devices_of(program) - {device}:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module = program.module()
    leaves = program.graph_signature.user_inputs
    values = {
        node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"
    }
    ports = [_port(program, leaf, values.get(leaf)) for leaf in leaves if isinstance(leaf, str)]
    spec = program.call_spec.in_spec

    def call(*tensors: torch.Tensor) -> Any:
        inputs = iter(tensors)
        flat = [next(inputs) if isinstance(leaf, str) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(flat, spec)
        return module(*args, **kwargs)

    args_spec, kwargs_spec = _children(spec)
    plain = spec.num_leaves == len(ports) and not kwargs_spec.num_leaves
    plain = plain and all(child.is_leaf() for child in _children(args_spec))
    signature = _signature(ports)
    batch = values[ports[0].name].shape[0]
    least, most = _range_of(program, batch)
    symbols = None if isinstance(batch, int) else frozenset(batch.node.expr.free_symbols)
    signature = replace(signature, low_rows=least, high_rows=most, symbols=symbols)
    return Model(
        "torch.export", module if plain else call, signature, module, returned=_returned(program)
    )


def _returned(program: Any) -> Any:
    """Return what a program returns, with tensors whose lengths are numbers or symbols of the program."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    leaves = program.graph_signature.user_outputs
    returned = [values.get(leaf) if isinstance(leaf, str) else leaf for leaf in leaves]
    spec = program.call_spec.out_spec
    untold = any(isinstance(leaf, str) and values.get(leaf) is None for leaf in leaves)
    return None if spec is None or untold else pytree.tree_unflatten(returned, spec)


def _training_in(program: Any) -> str | None:
    """Return an operation that works in a program as only training needs it: dropout, or a batch norm that learns."""
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        names = [argument.name for argument in schema.arguments]
        values = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        dropped = values.get("p", values.get("dropout")) if values.get("train") is True else None
        learns = values.get("training") is True and values.get("running_mean") is not None
        if dropped or values.get("dropout_p") or learns:
            return str(schema.name.removeprefix("aten::"))
    return None


def _range_of(program: Any, length: Any) -> tuple[int, int | None]:
    """Return the smallest and the largest length of an axis that a program was exported for. None: no limit.

    A lower bound of 2 is ignored: torch notes it for every dynamic axis, and does not check it.
    """
    bounds = None if isinstance(length, int) else program.range_constraints.get(length.node.expr)
    if bounds is None:
        return 1, None
    least = int(bounds.lower) if bounds.lower > 2 else 1
    infinite = not bounds.upper < 1 << 62  # torch's infinity is no number
    return least, None if infinite else int(bounds.upper)


def _devices_of(program: Any) -> set[torch.device]:
    """Return the devices of the weights of a program, and those on which its operations make tensors."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    written = [node.kwargs.get("device") for node in program.graph.nodes]
    devices = {torch.device(device) for device in written if device is not None}
    return devices.union(part.device for part in tensors if isinstance(part, torch.Tensor))


def _port(program: Any, name: str, value: Any) -> Port:
    if not isinstance(value, torch.Tensor):
        raise SetupError(f"the model's input {name!r} is no tensor")
    shape = lengths_of(value.shape)
    ranges = [(axis, *_range_of(program, value.shape[axis])) for axis in range(1, len(shape))]
    limits = tuple(limit for limit in ranges if limit[1:] != (1, None))
    return Port(name, shape, value.dtype, limits, names=names_of(value.shape))


def _signature(ports: Sequence[Port]) -> Signature:
    """Return the signature for ports with known shapes, which must all have the batch axis first."""
    first = {port.shape[0] if port.shape else 0 for port in ports}
    if not ports or 0 in first or len(first) > 1:
        shapes = ", ".join(f"{port.name} {port.text()}" for port in ports) or "none"
        raise SetupError(
            f"the inputs of the model have no common batch axis: {shapes}",
            hint="Export it with the same dynamic first axis in all inputs.",
        )
    return Signature(tuple(ports), rows=next(iter(first)))


def _load_package(path: Path, device: torch.device, runners: int) -> Model:
    index = -1 if device.index is None else device.index
    with tempfile.TemporaryDirectory() as folder:
        # torch warns about a path with another suffix. It unpacks the file, so the link may be removed afterwards.
        named = Path(folder, "model.pt2")
        named.symlink_to(path.resolve())
        load = torch._inductor.aoti_load_package
        takes = inspect.signature(load).parameters  # torch 2.6 takes neither
        if index > 0 and "device_index" not in takes:
            raise SetupError(
                f"torch {torch.__version__} loads AOTInductor packages for the first device only",
                hint="`pip install --upgrade torch`, or give the model as a torch.export program.",
            )
        options = {"num_runners": runners, "device_index": index}
        model = load(str(named), **{key: options[key] for key in options if key in takes})
    made_for = model.get_metadata().get("AOTI_DEVICE_KEY", device.type)
    if made_for != device.type:
        raise SetupError(
            f"{str(path)!r} was compiled for {made_for}, the node's device is {device}",
            hint="Compile it for that device with torch._inductor.aoti_compile_and_package.",
        )
    loader = model.loader
    spec, result_spec = map(pytree.treespec_loads, loader.get_call_spec())
    args, kwargs = _children(spec)
    names = [f"input_{index}" for index in range(args.num_leaves)] + list(kwargs.context or ())
    run: Callable[[list[torch.Tensor]], Any] = getattr(loader, "boxed_run", None) or loader.run

    layouts = layouts_of(path, names)

    def call(*tensors: torch.Tensor) -> Any:
        pairs = zip(tensors, layouts, strict=True)
        inputs = [tensor.contiguous(memory_format=layout) for tensor, layout in pairs]
        return pytree.tree_unflatten(run(inputs), result_spec)

    signature = signature_of(path, names)
    return Model("AOTInductor", call, signature, weight_bytes=path.stat().st_size)
