"""Describes an ONNX file or a plan, as data and as one HTML page that can be read offline."""

from __future__ import annotations

import hashlib
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, SetupError
from headrace_trt.cache import read_sidecar
from headrace_trt.layers import Layer, count_types
from headrace_trt.onnx_model import all_graphs, dtype_name, load_model, model_summary
from headrace_trt.tools.opening import is_plan, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_trt.engine import Engine

__all__ = [
    "as_page",
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


def as_page(report: Mapping[str, Any], times_ms: Mapping[str, float] | None = None) -> str:
    """Return one HTML page with a table of the layers and a drawing of the graph.

    The page is self-contained: it loads no script, style or picture.

    Args:
        report: A result of the functions of this module.
        times_ms: The time of each layer in ms, by its name. None: no times are shown.
    """
    layers = [_as_layer(entry) for entry in report.get("layers", ())]
    title = html.escape(f"{report.get('kind', '')} {report.get('file', '')}")
    facts = {
        key: value
        for key, value in report.items()
        if key not in ("layers", "asked") and value not in (None, [], {})
    }
    head = "".join(
        f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(json.dumps(value))}</td></tr>"
        for key, value in facts.items()
    )
    rows = []
    for number, layer in enumerate(layers):
        time = "" if times_ms is None else f"{times_ms.get(layer.name, 0.0):.4f}"
        cells = (
            str(number), layer.name, layer.kind, layer.precision, time, layer.tactic,
            ", ".join(layer.inputs), ", ".join(layer.outputs), ", ".join(layer.nodes),
        )  # fmt: skip
        texts = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr id='layer{number}'>{texts}</tr>")
    names = ("#", "layer", "kind", "type", "ms", "tactic", "inputs", "outputs", "nodes")
    header = "".join(f"<th>{name}</th>" for name in names)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<table>{head}</table><h2>Graph</h2>{_drawing(layers, times_ms)}"
        f"<h2>Layers</h2><table><tr>{header}</tr>{''.join(rows)}</table></body></html>\n"
    )


def _as_layer(entry: Mapping[str, Any]) -> Layer:
    known = {key: entry[key] for key in Layer.__dataclass_fields__ if key in entry}
    return Layer.from_dict(known)


_STYLE: Final = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #bbb;padding:2px 6px;text-align:left;vertical-align:top}"
    "svg{max-width:100%;height:auto}.fp32{fill:#dbe9f6}.fp16{fill:#c7e9c0}.bf16{fill:#e5f5b8}"
    ".int8{fill:#fdd0a2}.fp8{fill:#fcbba1}.none{fill:#eee}"
)
_WIDTH, _HEIGHT, _GAP = 300, 34, 22


def _drawing(layers: Sequence[Layer], times_ms: Mapping[str, float] | None) -> str:
    """Draw the layers in rows by their distance from the inputs, with a line per tensor."""
    made = {}
    for number, layer in enumerate(layers):
        for text in layer.outputs:
            made[text.partition(" ")[0]] = number
    rank: list[int] = []
    links = []
    for number, layer in enumerate(layers):
        before = [made[t.partition(" ")[0]] for t in layer.inputs if t.partition(" ")[0] in made]
        before = [other for other in before if other < number]
        rank.append(1 + max((rank[other] for other in before), default=-1))
        links += [(other, number) for other in before]
    columns: dict[int, int] = {}
    place = []
    for row in rank:
        column = columns.get(row, 0)
        columns[row] = column + 1
        place.append((10 + column * (_WIDTH + 20), 10 + row * (_HEIGHT + _GAP)))
    width = 30 + max(columns.values(), default=1) * (_WIDTH + 20)
    height = 30 + (max(rank, default=0) + 1) * (_HEIGHT + _GAP)
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>"]
    for source, target in links:
        (x1, y1), (x2, y2) = place[source], place[target]
        parts.append(
            f"<path d='M{x1 + _WIDTH // 2} {y1 + _HEIGHT} L{x2 + _WIDTH // 2} {y2}'"
            " stroke='#888' fill='none'/>"
        )
    for number, layer in enumerate(layers):
        x, y = place[number]
        text = layer.name if len(layer.name) <= 38 else f"{layer.name[:37]}…"
        if times_ms is not None and layer.name in times_ms:
            text += f" {times_ms[layer.name]:.3f} ms"
        kind = layer.precision if layer.precision in ("fp32", "fp16", "bf16", "int8", "fp8") else ""
        parts.append(
            f"<a href='#layer{number}'><rect x='{x}' y='{y}' width='{_WIDTH}' height='{_HEIGHT}'"
            f" class='{kind or 'none'}' stroke='#666'/><text x='{x + 6}' y='{y + 21}'"
            f" font-size='12'>{html.escape(text)}</text></a>"
        )
    return "".join([*parts, "</svg>"])
