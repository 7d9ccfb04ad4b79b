"""Compares an engine with ONNX Runtime on the CPU, and finds the first layer whose values differ."""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from headrace.errors import HeadraceError, SetupError
from headrace_trt.image_input import fold_image_input
from headrace_trt.onnx_model import infer_types, load_model, port_of, save_model
from headrace_trt.onnx_runtime import import_runtime
from headrace_trt.profiles import NetworkInput, choose_profiles, parse_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace_trt.settings import BuildSettings

__all__ = ["Difference", "compare", "differences", "random_inputs", "reference"]


@dataclass(frozen=True)
class Difference:
    """How one tensor differs.

    Attributes:
        name: The name of the tensor.
        absolute: The largest difference.
        relative: The largest difference, divided by the largest value of the reference.
        ok: Whether ``relative`` is within the limit.
    """

    name: str
    absolute: float
    relative: float
    ok: bool


def random_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Make inputs of a model: normally distributed numbers, small integers; a dynamic axis has length 1.

    Args:
        model: The model.
        shapes: Shapes of inputs by name, which win over those of the model.
        seed: The same seed gives the same inputs.

    Raises:
        SetupError: An input has a type for which no random values are made, or ``shapes`` names one that is not there.
    """
    ports = [value.name for value in model.graph.input]
    unknown = [name for name in shapes or () if name not in ports]
    if unknown:
        raise SetupError(
            f"a shape names input {unknown[0]!r}, which the model does not have",
            hint=f"It has: {', '.join(ports)}.",
        )
    random = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    made: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        port = port_of(value)
        axes = port["shape"] or []
        shape = tuple(
            (shapes or {}).get(value.name, [n if isinstance(n, int) else 1 for n in axes])
        )
        kind = port["dtype"]
        if kind in ("float32", "float16", "float64"):
            made[value.name] = random.standard_normal(shape).astype(kind)
        elif kind in ("uint8", "int8", "int32", "int64"):
            made[value.name] = random.integers(0, 100, shape).astype(kind)
        elif kind == "bool":
            made[value.name] = random.integers(0, 2, shape).astype(bool)
        else:
            raise SetupError(f"input {value.name!r} is {kind}: give inputs in a file")
    return made


def reference(
    model: onnx.ModelProto, feeds: Mapping[str, Any], tensors: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Run a model with ONNX Runtime on the CPU; give its outputs, and inner ``tensors`` too.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        SetupError: ONNX Runtime cannot run the model on these inputs.
    """
    onnxruntime = import_runtime("comparing")
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    outputs = {value.name for value in marked.graph.output}
    for name in tensors:
        if name not in outputs:
            marked.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-trt-") as folder:
            path = Path(folder, "model.onnx")
            save_model(marked, path)
            session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            values = session.run(None, dict(feeds))
    except Exception as error:  # its error classes share no base but Exception
        raise SetupError(f"ONNX Runtime cannot run the model: {error}") from error
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, values, strict=True))


def differences(
    got: Mapping[str, Any], expected: Mapping[str, Any], *, limit: float
) -> list[Difference]:
    """Compare tensors by name, in the order of ``got``; a NaN on one side only counts as an infinite difference."""
    found = []
    for name, value in got.items():
        a, b = np.asarray(value, np.float64), np.asarray(expected[name], np.float64)
        if a.shape != b.shape:
            found.append(Difference(name, float("inf"), float("inf"), False))
            continue
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.where(same, 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        absolute = float(apart.max(initial=0.0))
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max(initial=0.0)) or 1.0
        found.append(Difference(name, absolute, absolute / scale, absolute / scale <= limit))
    return found


def compare(
    settings: BuildSettings,
    *,
    run: Callable[[BuildSettings, Mapping[str, Any]], Mapping[str, Any]],
    feeds: Mapping[str, Any] | None = None,
    limit: float = 1e-3,
    seed: int = 0,
    look_inside: bool = True,
) -> dict[str, Any]:
    """Compare an engine with ONNX Runtime; if outputs differ, find the first layer whose values differ.

    ONNX Runtime runs the model with ``mean``, ``std`` and ``image_input`` folded into it, so both take the same inputs.

    Args:
        settings: The settings of the build, whose profiles must take the inputs.
        run: Builds settings and runs the engine once: ``run(settings, feeds) -> outputs``.
        feeds: Inputs of the engine by name; None: random ones at the ``opt`` (else ``max``) of the first profile.
        limit: The largest allowed difference, divided by the largest value of the reference.
        seed: The seed of the random inputs.
        look_inside: Whether to look for the first layer that differs, which takes another build.

    Returns:
        ``same``, ``outputs`` (a dict per output); and if outputs differ and ``look_inside`` is set, ``first`` (the first inner
        tensor in the order of the graph that differs, with its node), ``inner`` (a dict per compared inner
        tensor), and if no such tensor can be found, ``note`` with the reason.

    Raises:
        ValueError: ``limit`` is negative or NaN.
        SetupError: There is no model, or it cannot be run.
    """
    if not limit >= 0:
        raise ValueError(f"limit is at least 0, not {limit!r}")
    if settings.model is None:
        raise SetupError("only an ONNX model can be compared")
    model = fold_image_input(
        load_model(settings.model),
        mean=settings.mean,
        std=settings.std,
        image_input=settings.image_input,
    )
    _refuse_open_axes(model, settings)
    given = dict(feeds) if feeds is not None else _drawn(settings, model, seed)
    expected = reference(model, given)
    outputs = differences(run(settings, given), expected, limit=limit)
    report: dict[str, Any] = {
        "model": str(settings.model),
        "precision": settings.precision,
        "limit": limit,
        "same": all(found.ok for found in outputs),
        "outputs": [asdict(found) for found in outputs],
    }
    if look_inside and not report["same"]:
        report.update(_first_difference(settings, model, given, run, limit))
    return report


def _refuse_open_axes(model: onnx.ModelProto, settings: BuildSettings) -> None:
    """Refuse a model whose shapes only the caller knows, before anything is run.

    A dynamic first axis is the batch axis, which has a range even without shapes.
    """
    if settings.profiles:
        return
    for value in model.graph.input:
        axes = port_of(value)["shape"] or []
        if all(isinstance(n, int) and n >= 0 for n in axes[1:]):
            continue
        text = "x".join(str(n) if isinstance(n, int) and n >= 0 else "1" for n in axes)
        raise SetupError(
            f"input {value.name!r} [{', '.join(map(str, axes))}] has dynamic axes and no shapes",
            hint=f"Give --max-shapes (and --min-shapes), such as {value.name}:{text}; in Python,"
            " `profiles`.",
        )


def _drawn(settings: BuildSettings, model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Make random inputs at the best shapes of the first profile, or at a batch of 1.

    The profile may leave out an input whose range follows from the other inputs. For an input that decides shapes the
    profile has values instead.
    """
    if not settings.profiles:
        return random_inputs(model, seed=seed)
    first = settings.profiles[0]
    best = parse_shapes(first.get("opt") or first["max"])
    inputs, values = [], {}
    for value in model.graph.input:
        port = port_of(value)
        shape = tuple(n if isinstance(n, int) and n >= 0 else -1 for n in port["shape"] or [])
        best_shape = best.get(value.name, shape)
        is_shape = "int" in port["dtype"] and -1 not in shape and best_shape != shape
        is_shape = is_shape and len(shape) <= 1 and len(best_shape) == math.prod(shape)
        inputs.append(NetworkInput(value.name, shape, is_shape))
        if is_shape:
            values[value.name] = np.asarray(best_shape, port["dtype"]).reshape(shape)
    chosen = choose_profiles(inputs, [first])
    shapes = {name: found.opt for profile in chosen for name, found in profile.ranges.items()}
    others = {name: shape for name, shape in shapes.items() if name not in values}
    return {**random_inputs(model, others, seed), **values}


_FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def inner_tensors(model: onnx.ModelProto) -> list[str]:
    """Give the floating tensors between the nodes of a graph that depend on its inputs, in the order of the graph.

    The others are constants, which an engine does not compute.
    """
    typed = infer_types(model).graph
    floats = {v.name for v in typed.value_info if v.type.tensor_type.elem_type in _FLOATS}
    weights = {tensor.name for tensor in typed.initializer}
    varying = {value.name for value in typed.input} - weights
    found = []
    for node in typed.node:
        if varying.intersection(node.input):
            varying.update(node.output)
            found += [name for name in node.output if name in floats]
    return found


def _first_difference(
    settings: BuildSettings,
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    run: Callable[[BuildSettings, Mapping[str, Any]], Mapping[str, Any]],
    limit: float,
) -> dict[str, Any]:
    """Mark every floating inner tensor as an output, and compare these tensors in the order of the graph."""
    maker = {name: node for node in model.graph.node for name in node.output}
    inner = inner_tensors(model)
    try:
        got = run(settings.with_(mark_outputs=tuple(inner)), feeds)
        expected = reference(model, feeds, inner)
    except HeadraceError as error:
        why = str(error).splitlines()[0]
        return {"inner": [], "first": None, "note": f"layers cannot be compared: {why}"}
    ordered = {name: got[name] for name in [*inner, *got] if name in got and name in expected}
    found = differences(ordered, expected, limit=limit)
    first = next((entry for entry in found if not entry.ok), None)
    report: dict[str, Any] = {"inner": [asdict(entry) for entry in found], "first": None}
    if first is not None:
        node = maker.get(first.name)
        report["first"] = {
            **asdict(first),
            "node": node.name if node is not None else "",
            "operator": node.op_type if node is not None else "",
        }
    else:
        report["note"] = (
            "with all inner tensors as outputs there is no difference: it comes from a fusion"
        )
    return report


def run_built(
    settings: BuildSettings, feeds: Mapping[str, Any], *, device: str | None = None, **where: Any
) -> dict[str, Any]:
    """Build settings (or take them from the cache) and run the engine once.

    Args:
        settings: The settings of the build.
        feeds: Inputs by name.
        device: The device, as ``"cuda:1"``; None: ``"cuda:0"``.
        where: More arguments of `engine_of_settings`.
    """
    from headrace_trt.tools.opening import engine_of_settings
    from headrace_trt.tools.profiling import run_once

    engine, cuda = engine_of_settings(settings, device=device, **where)
    try:
        return run_once(engine, cuda, feeds)
    finally:
        engine.close()
