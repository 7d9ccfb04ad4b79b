"""Reads the layers that TensorRT has built, counts them by type, and verifies the precision."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Layer", "count_types", "layers_from_json", "layers_from_log", "verify_precision"]

_TYPES: Final = (
    # The texts of several versions of the inspector; the first pattern that matches counts.
    ("bf16", r"bfloat16|\bbf16\b"),
    ("fp8", r"\bfp8\b|float8"),
    ("fp4", r"\bfp4\b|float4"),
    ("fp16", r"\bhalf\b|\bfp16\b|float16"),
    ("fp32", r"\bfloat\b|\bfp32\b|float32"),
    ("uint8", r"\buint8\b"),
    ("int8", r"\bint8\b"),
    ("int4", r"\bint4\b"),
    ("int64", r"\bint64\b"),
    ("int32", r"\bint32\b"),
    ("bool", r"\bbool(ean)?\b"),
)
_PATTERNS: Final = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _TYPES)
_BITS: Final = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
"""The types in which layers compute, with their bits, without the integer types for shapes and indices."""

OF_TENSORRT: Final = {
    "FLOAT": "fp32",
    "HALF": "fp16",
    "BF16": "bf16",
    "FP8": "fp8",
    "INT8": "int8",
    "FP4": "fp4",
    "INT4": "int4",
}


@dataclass(frozen=True)
class Layer:
    """One layer of an engine.

    Attributes:
        name: The name of the layer.
        kind: TensorRT's type of layer: ``"gemm"``, ``"CaskConvolution"``, ...
        precision: The narrowest type with which the layer computes: ``"fp32"``, ``"fp16"``, ``"bf16"``,
            ``"int8"``, ``"fp8"``. ``""`` if it only moves data or computes shapes.
        inputs, outputs: Tensors as ``"name type [dims]"``.
        tactic: The chosen kernel, if the inspector reports it, else ``""``.
        nodes: The names of the model's nodes that the layer computes.
    """

    name: str
    kind: str
    precision: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tactic: str = ""
    nodes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the layer as JSON has it."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


def type_of(text: str) -> str:
    """Return the short name of the type that a text of the inspector names, or ``""``."""
    for name, pattern in _PATTERNS:
        if pattern.search(text):
            return name
    return ""


def layers_from_json(text: str) -> list[Layer]:
    """Read the layers of ``EngineInspector.get_engine_information(JSON)``.

    For engines that were built without detail the layers have only names, and no types.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return []
    listed = document.get("Layers", []) if isinstance(document, dict) else []
    layers = []
    for entry in listed:
        if not isinstance(entry, dict):
            layers.append(Layer(str(entry), "", ""))
            continue
        layers.append(
            _layer(
                entry.get("Name", ""),
                entry.get("LayerType", ""),
                [_tensor(part) for part in entry.get("Inputs", []) if isinstance(part, dict)],
                [_tensor(part) for part in entry.get("Constants", []) if isinstance(part, dict)],
                [_tensor(part) for part in entry.get("Outputs", []) if isinstance(part, dict)],
                str(entry.get("TacticName") or entry.get("TacticValue") or ""),
                str(entry.get("Metadata", "")),
            )
        )
    return layers


def _tensor(part: dict[str, Any]) -> tuple[str, str, str]:
    kind = part.get("Datatype") or part.get("DataType") or part.get("Format/Datatype") or ""
    return str(part.get("Name", "")), type_of(str(kind)), str(part.get("Dimensions", ""))


_LISTS: Final = ("inputs", "constants", "outputs")
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: (<.*?>)(.*?)\}")
_LINE = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>.*?), Inputs: \[(?P<inputs>.*?)\]"
    r"(?:, Constants: \[(?P<constants>.*?)\])?, Outputs: \[(?P<outputs>.*?)\](?P<rest>,.*)?$"
)


def layers_from_log(text: str) -> list[Layer]:
    """Read the layers that the builder logs at its end, one per line.

    It is the inspector's listing, but is also available on a machine that cannot load the engine.
    """
    layers = []
    for line in text.partition("\nI/O Tensors:")[0].partition("\nBindings:")[0].splitlines():
        # Lists are nested: the brackets of dimensions are replaced by <>, so that `_LINE` matches the outer ones.
        flat = re.sub(r"\[([-\d,x ]+)\]", r"<\1>", line.replace("Dimensions: []", "Dimensions: <>"))
        matched = _LINE.match(flat.strip())
        if matched is None:
            continue
        inputs, constants, outputs = (_tensors(matched[key]) for key in _LISTS)
        rest = matched["rest"] or ""
        tactic = re.search(r"TacticName: ([^,]*)", rest)
        metadata = re.search(r"Metadata: (.*)$", rest)
        layers.append(
            _layer(
                matched["name"],
                matched["kind"],
                inputs,
                constants,
                outputs,
                tactic[1].strip() if tactic else "",
                metadata[1] if metadata else "",
            )
        )
    return layers


def _tensors(text: str | None) -> list[tuple[str, str, str]]:
    return [
        (name, type_of(rest), dims.replace("<", "[").replace(">", "]"))
        for name, dims, rest in _TENSOR.findall(text or "")
    ]


def _layer(
    name: str,
    kind: str,
    inputs: list[tuple[str, str, str]],
    constants: list[tuple[str, str, str]],
    outputs: list[tuple[str, str, str]],
    tactic: str,
    metadata: str,
) -> Layer:
    types = [dtype for _, dtype, _ in (*inputs, *constants, *outputs) if dtype in _BITS]
    narrowest = min(types, key=lambda dtype: _BITS[dtype], default="")
    return Layer(
        name,
        kind,
        narrowest,
        tuple(" ".join(filter(None, part)) for part in inputs),
        tuple(" ".join(filter(None, part)) for part in outputs),
        tactic,
        tuple(re.findall(r"\[ONNX Layer: (.*?)\]", metadata)),
    )


def count_types(layers: Iterable[Layer]) -> dict[str, int]:
    """Count layers by the type in which they compute; layers that compute nothing are left out."""
    return dict(Counter(layer.precision for layer in layers if layer.precision))


def verify_precision(
    layers: Sequence[Layer], precision: str, network_types: Iterable[str], *, label: str
) -> None:
    """Refuse an engine that was not built in the precision that the settings ask for.

    Args:
        layers: The layers of the engine. If their types are not known, nothing is refused.
        precision: ``"model"``, or the type that the settings ask for.
        network_types: TensorRT's names of the types of the network's tensors.
        label: The name of the model, for the message.

    Raises:
        SetupError: A layer computes in a narrower type than any tensor of the network has, or no layer computes in
            the type that the settings ask for.
    """
    counts = count_types(layers)
    if not counts:
        return
    allowed = {OF_TENSORRT[name] for name in network_types if name in OF_TENSORRT} or {"fp32"}
    narrowest = min(_BITS[name] for name in allowed)
    lower = [layer for layer in layers if layer.precision and _BITS[layer.precision] < narrowest]
    if lower:
        names = ", ".join(f"{layer.name} ({layer.precision})" for layer in lower[:5])
        raise SetupError(
            f"{label}: {len(lower)} layers were built in a lower precision than asked: {names}",
            hint="Headrace never accepts another precision; is this engine from elsewhere?",
        )
    if precision != "model" and precision not in counts:
        raise SetupError(
            f"{label}: precision = {precision!r} was asked for, and no layer was built in it:"
            f" {', '.join(f'{n} in {kind}' for kind, n in counts.items())}",
            hint="The Q/DQ nodes of the graph say what is quantized and to which type; the device may lack it."
            if precision in ("int8", "fp8")
            else "The device may lack that type, `keep_fp32` covers the whole network, or all of it is fused into"
            " layers from inputs to outputs, which keep their types: then precision = 'model' is the same.",
        )
