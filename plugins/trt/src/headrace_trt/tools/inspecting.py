"""Describes an ONNX file or a plan, as data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SetupError
from headrace_trt.cache import read_sidecar
from headrace_trt.layers import count_types
from headrace_trt.onnx_model import all_graphs, dtype_name, load_model, model_summary
from headrace_trt.tools.opening import is_plan, opened

if TYPE_CHECKING:
    from headrace_trt.engine import Engine

__all__ = [
    "inspect_engine",
    "inspect_file",
    "inspect_onnx",
    "inspect_plan",
]


def inspect_file(path: Path | str, **options: Any) -> dict[str, Any]:
    """Describe a file: a plan if its suffix is that of plans, else an ONNX model.

    Args:
        path: The file.
        options: How a plan is loaded, as for `opened`.

    Raises:
        SetupError: The file cannot be read.
    """
    if is_plan(path):
        return inspect_plan(path, **options)
    return inspect_onnx(path)


def inspect_onnx(path: Path | str) -> dict[str, Any]:
    """Describe inputs, outputs and nodes of an ONNX model. Neither TensorRT nor a device is needed.

    Returns:
        The entries of `model_summary`, and ``layers``: name, operator, inputs, outputs and types of
        every node, as a list of dicts.

    Raises:
        SetupError: The file is no ONNX model.
    """
    import onnx

    model = load_model(path, weights=False)
    try:
        typed = onnx.shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001 - types are shown where they are known
        typed = model
    types = {}
    for graph in all_graphs(typed.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            types[value.name] = dtype_name(value.type.tensor_type.elem_type)
        for tensor in graph.initializer:
            types[tensor.name] = dtype_name(tensor.data_type)
    nodes = []
    for graph in all_graphs(typed.graph):
        for node in graph.node:
            outputs = [f"{name} {types.get(name, '')}".strip() for name in node.output if name]
            kinds = [types[name] for name in node.output if name in types]
            nodes.append(
                {
                    "name": node.name,
                    "kind": node.op_type,
                    "precision": kinds[0] if kinds else "",
                    "inputs": [f"{n} {types.get(n, '')}".strip() for n in node.input if n],
                    "outputs": outputs,
                }
            )
    return {"kind": "onnx", "file": str(path), **model_summary(model), "layers": nodes}


def inspect_plan(path: Path | str, **options: Any) -> dict[str, Any]:
    """Describe a plan: its profiles, its layers with type and tactic, its memory.

    On a machine with a device they are read from the loaded engine. Without one they come from the sidecar that
    Headrace writes beside its plans, if no option says how to load it. ``source`` says which.

    Args:
        path: The plan.
        options: How it is loaded, as for `opened`.

    Raises:
        SetupError: The plan cannot be loaded, and there is no sidecar that belongs to it and may be read instead.
    """
    path = Path(path)
    sidecar = _sidecar(path)
    try:
        with opened(path, **options) as (engine, _):
            about = inspect_engine(engine)
    except HeadraceError as error:
        if sidecar is None or options:
            raise SetupError(
                f"{path} cannot be inspected: {str(error).splitlines()[0]}",
                hint="Without a device only plans with their sidecar can be inspected, where"
                " no option says how to load them.",
            ) from error
        kept = ("library", "profiles", "layers_by_type", "layers", "seconds", "asked", "plan_bytes")
        facts = {key: sidecar[key] for key in kept if key in sidecar}
        return {"kind": "plan", "file": str(path), "source": "sidecar", **facts}
    found = {"kind": "plan", "file": str(path), "source": "engine", **about}
    if sidecar is not None:
        found["asked"], found["seconds"] = sidecar.get("asked"), sidecar.get("seconds")
    return found


def _sidecar(path: Path) -> dict[str, Any] | None:
    """Return the sidecar of a plan; None if it does not belong to the plan's present content."""
    try:
        found = read_sidecar(path)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, RecursionError):
        return None
    return found if found.get("plan_sha256") == content else None


def inspect_engine(engine: Engine) -> dict[str, Any]:
    """Describe inputs, outputs, profiles, layers and memory of a loaded engine."""
    from headrace_trt.signature import read_signature

    layers = engine.layers()
    profiles = []
    for index in range(max(engine.profiles, 1)):
        signature = read_signature(engine, index)
        profiles.append({port.name: port.describe() for port in signature.inputs})
    signature = read_signature(engine)
    found = engine.engine
    memory = {}
    for name in ("device_memory_size_v2", "streamable_weights_size", "num_aux_streams"):
        if hasattr(found, name):
            memory[name] = int(getattr(found, name))
    return {
        "library": engine.library.text,
        "inputs": {port.name: port.describe() for port in signature.inputs},
        "outputs": {port.name: port.describe() for port in signature.outputs},
        "profiles": profiles,
        "layers_by_type": count_types(layers),
        "layers": [layer.as_dict() for layer in layers],
        "memory": memory,
        "refittable": bool(found.refittable),
    }
