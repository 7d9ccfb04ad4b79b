"""Writes the expression that TensorrtTensor is short for in its place."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, Problem, among

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TENSORRT_TENSOR", "written_out"]

TENSORRT_TENSOR = (
    "IoC[Onnx2Tensorrt,TensorrtInferTensor;"
    "CatSplit[TensorrtCat,"
    "S[Reflect[pre_processor,Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],"
    "TensorrtSplit]]"
)
"""The expression that ``TensorrtTensor`` is short for: it builds or loads an engine, and runs tensors."""

NAME = "TensorrtTensor"
SUFFIXES = (".trt", ".engine", ".plan")


def written_out(
    tables: dict[str, dict[str, Any]], parse: Callable[[str, str], Any]
) -> dict[str, dict[str, Any]]:
    """Write the expression in place of each TensorrtTensor; see `headrace.hookspecs`.

    Raises:
        ConfigError: It has something in brackets.
    """
    for name, table in tables.items():
        for key, value in table.items():
            tree = parse(name, key) if isinstance(value, str) and NAME in value else value
            if hasattr(tree, "phases"):  # perhaps of a rewriter before this one
                table[key] = _changed(tree, _is_engine(table, tables["global"]))
    return tables


def _is_engine(table: dict[str, Any], shared: dict[str, Any]) -> bool:
    """Tell whether the keys of a node name an engine, and no model to build one of."""
    model = table.get("model") or shared.get("model") or ""
    return os.path.expandvars(str(model)).lower().rstrip("}").endswith(SUFFIXES)


def _changed(call: Any, is_engine: bool) -> Any:
    if call.part == NAME:
        return _in_place_of(call, is_engine)
    phases = tuple(tuple(_changed(part, is_engine) for part in phase) for phase in call.phases)
    return call.replace(phases=phases) if phases else call


def _in_place_of(call: Any, is_engine: bool) -> Any:
    """Return the expression with the args of the word at each backend that has an option of that name."""
    place = {"file": call.source.file, "path": call.source.path, "text": call.text}
    if call.phases or call.args.positional:
        why = f"{NAME} takes options by name, and nothing in [ ]"
        raise ConfigError([Problem("arity", why, span=call.name_span, **place)])
    model = dict(call.args.named).get("model")
    is_engine = is_engine if model is None else str(model).lower().endswith(SUFFIXES)
    text = (
        TENSORRT_TENSOR.replace("Onnx2Tensorrt", "LoadTensorrtEngine")
        if is_engine
        else TENSORRT_TENSOR
    )
    tree = headrace.parse(text)
    known = sorted(_known(tree))
    for index, (key, _) in enumerate(call.args.named):
        if key not in known:
            why, near = f"{NAME} has no option {key!r}", among(key, known)
            span = call.args.spans[index] if call.args.spans else call.name_span
            raise ConfigError([Problem("unknown_option", why, hint=near, span=span, **place)])
    whole = _placed(call, tree)
    return whole.replace(prefix=call.prefix)


def _placed(at: Any, call: Any) -> Any:
    """Return a part of the expression as if it were written where the word stands."""
    named, known = dict(at.args.named), _options_of(call.part)
    positions = [index for index, key in enumerate(named) if key in known]
    args = at.args.__class__(
        named=tuple((key, named[key]) for key in named if key in known),
        spans=tuple(at.args.spans[index] for index in positions) if at.args.spans else (),
    )
    phases = tuple(tuple(map(partial(_placed, at), phase)) for phase in call.phases)
    return at.replace(name=call.name, args=args, phases=phases, prefix=call.prefix)


def _known(tree: Any) -> set[str]:
    return {*_options_of(tree.part)}.union(*map(_known, tree.children))


def _options_of(name: str) -> frozenset[str]:
    """Return the options of a backend of this plugin; none of a word of core."""
    import headrace_trt

    cls = getattr(headrace_trt, name, None)
    return frozenset(cls.Options.model_fields if cls is not None else ())
