"""`Fallback`, which builds the first child that can be built here; and `ModelLoader`, which is translated into the child that the model's suffix names."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, PluginError, Problem, SetupError
from headrace.isolation import error_text
from headrace.plugins import KNOWN_BACKENDS, core, installed, resolve
from headrace.words import Bracket
from headrace_flow.wiring.trees import changed, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.keys import Request
    from headrace_flow.wiring.trees import Tables

__all__ = ["Fallback", "choose"]

_log = logging.getLogger("headrace.build")
_WORD = re.compile(r"\b(?:Fallback|ModelLoadd?er)\s*[\[(]")
_LOADERS = ("ModelLoader", "ModelLoadder")
_VARIABLE = re.compile(r"\$\$\{|\$\{(\w+)(?::-([^{}]*))?\}")


def _of_any(children: Sequence[Any]) -> tuple[int, int | None]:
    """Return the range that any child may have: before building nobody knows which child is chosen."""
    least, most = zip(*(child.range for child in children), strict=True)
    return min(least), None if None in most else max(most)


class Fallback(headrace.Backend):
    """Use the first child that can be built here: ``Fallback[TensorrtTensor,OnnxTensor]``.

    Fallback goes on to the next child when a name is not installed, when a library is missing, and at any error of
    ``init`` or ``warm_up``. Wrong options are an error all the same. The choice, and why the others were not chosen, is
    logged and in ``describe()``, by instance if these differ.

    Reads:
        The inputs of the chosen child.
    Writes:
        The outputs of the chosen child.
    Batch:
        The range of the chosen child.

    Raises:
        The errors of the chosen child. SetupError with every reason when none can be built.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Fallback[TensorrtTensor,Upper]"
    """

    class Options(headrace.Options):
        """What was left out before it was planned.

        Attributes:
            absent: Why branches were left out, a text each.
        """

        absent: tuple[str, ...] = ()

    takes = (0, None)
    rerun = False
    reads = ()
    bracket = Bracket(late=True, left_out_option="absent", combine_ranges=_of_any)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Build the children in order, until one can be built."""
        reasons = list(options.absent)
        for place, child in enumerate(context.children):
            try:
                self.child = child.build()  # type: ignore[attr-defined]
            except Exception as error:  # noqa: BLE001 - after any failure the next child is tried
                reasons.append(f"{child.name}: {error_text(error)}")  # type: ignore[attr-defined]
                continue
            for why in reasons:
                _log.info("Fallback: %s", why)
            _log.info("Fallback: %s was chosen", child.name)  # type: ignore[attr-defined]
            self.min, self.max, self.rerun = self.child.min, self.child.max, self.child.rerun  # type: ignore[misc]
            self.bracket = replace(self.bracket, keys_of_child=place)
            self._choice = {"chosen": child.name, "not_chosen": reasons}  # type: ignore[attr-defined]
            names = tuple(child.name for child in context.children)  # type: ignore[attr-defined]
            self._all = context.store.node.get_or_create(("headrace_flow.fallback", names), dict)
            self._all[str(context.instance_index)] = self._choice
            return
        raise SetupError(f"nothing in Fallback can be built here: {'; '.join(reasons)}")

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the child that was chosen."""
        outcomes: list[Exception | None] | None = self.child(batch)
        return outcomes

    def describe(self) -> dict[str, Any]:
        """Return the child that was chosen, and why not the others; also of instances that have chosen otherwise."""
        others = {index: child for index, child in self._all.items() if child != self._choice}
        return {**self._choice, **({"instances": others} if others else {})}


def choose(tables: Tables, parse: Callable[[str, str], Any]) -> Tables:
    """Leave out of each ``Fallback`` what is not installed, and put its branch in place of each ``ModelLoader``.

    Raises:
        ConfigError: A ``ModelLoader`` has no branch for its model, or wrong branches.
    """
    shared, left = tables["global"], dict[str, list[Any]]()
    for name, table in tables.items():
        own = {key for key, value in table.items() if _has_word(value)}
        if name == "global":  # these are read as each node has them
            own -= {"backend", "init"}
        above = {
            key for key in ("backend", "init") if key not in table and _has_word(shared.get(key))
        }
        for key in own if name == "global" else own | above:
            unchosen = left.setdefault(name, [])
            table[key] = changed(parse(name, key), partial(_chosen, table, shared, unchosen))
    for name, unchosen in left.items():
        _drop_options(tables, name, unchosen, parse)
    return tables


def _has_word(value: Any) -> bool:
    if isinstance(value, str):
        return _WORD.search(value) is not None
    names = ("Fallback", *_LOADERS)
    return _is_tree(value) and any(call.name in names for call in walk(value))


def _is_tree(value: Any) -> bool:
    return hasattr(value, "phases")


def _chosen(table: Any, shared: Any, unchosen: list[Any], call: Any) -> Any:
    if call.name in _LOADERS:
        return _by_suffix(call, table, shared, unchosen)
    if call.name != "Fallback":
        return call
    reasons = [(child, _why_absent(child)) for child in call.children]
    absent = tuple(f"{child.name}: {why}" for child, why in reasons if why is not None)
    if not absent:
        return call
    row = tuple(child for child, why in reasons if why is None)
    named = (*(pair for pair in call.args.named if pair[0] != "absent"), ("absent", absent))
    return call.replace(
        args=replace(call.args, named=named, spans=()), phases=(row,) if row else ()
    )


def _refused(code: str, message: str, call: Any, span: Any = None) -> ConfigError:
    place = {"file": call.source.file, "path": call.source.path, "text": call.text}
    return ConfigError([Problem(code, message, span=span or call.name_span, **place)])


def _by_suffix(call: Any, table: Any, shared: Any, unchosen: list[Any]) -> Any:
    rows = [(c, [*map(str, c.prefix.positional)] if c.prefix else []) for c in call.children]
    known = [suffix.lower() for _, suffixes in rows for suffix in suffixes]
    for child, suffixes in rows:
        if not suffixes or not all(suffixes):
            text = f"a branch of ModelLoader begins with suffixes: (.onnx){child.name}"
            raise _refused("prefix", text, child)
    if twice := sorted({suffix for suffix in known if known.count(suffix) > 1}):
        raise _refused("prefix", f"ModelLoader has {', '.join(twice)} twice", call)
    args, model = dict(call.args.named), None
    places = [
        (args, "model"),
        *((where, key) for where in (table, shared) for key in ("ModelLoader::model", "model")),
    ]
    path = next((where[key] for where, key in places if where.get(key) is not None), None)
    if path is None:
        raise _refused("missing_option", "ModelLoader needs the option 'model'", call)
    model = _VARIABLE.sub(_value_of, os.fspath(path))
    chosen = next(
        (c for c, ends in rows if model.lower().endswith(tuple(map(str.lower, ends)))), None
    )
    if chosen is None:
        text = f"ModelLoader has no branch for the model {model!r}: it has {', '.join(known)}"
        raise _refused("suffix", text, call)
    table.pop("ModelLoader::model", None)
    unchosen += [c for c, _ in rows if c is not chosen] or [chosen]
    return chosen.replace(prefix=call.prefix)


def _value_of(match: re.Match[str]) -> str:
    return "${" if match[0] == "$${" else os.environ.get(match[1]) or match[2] or ""


def _drop_options(
    tables: Tables, name: str, unchosen: Iterable[Any], parse: Callable[[str, str], Any]
) -> None:
    """Take out of a table the keys that only branches have which were not chosen."""
    table = tables[name]
    if not unchosen:
        return
    theirs = {"model"}.union(*map(_options, unchosen))
    written = {key: table.get(key, tables["global"].get(key)) for key in ("backend", "init")}
    here = [
        value if _is_tree(value) else parse(name, key)
        for key, value in written.items()
        if value is not None
    ]
    keys = {key for tree in here for key in _options(tree)}
    for key in [*(theirs - keys) & table.keys()]:
        _log.info("node %r: nothing uses %r: what has this option is not chosen", name, key)
        del table[key]


def _options(tree: Any) -> Iterator[str]:
    for call in walk(tree):
        offered = [p for p in (core(), *installed()) if p.usable and call.part in p.backends]
        with suppress(ConfigError, PluginError):
            if offered:
                yield from offered[0].backend(call.part).Options.model_fields
            else:
                yield from resolve({"backend": call.part}).cls.Options.model_fields


def _why_absent(tree: Any) -> str | None:
    """Say why an expression cannot be had here; None where it can, or where a name is unknown, which is an error."""
    for part in walk(tree):
        plugins = [
            p for p in installed() if part.part in p.backends and part.plugin in (None, p.plugin)
        ]
        for plugin in plugins:
            if not plugin.usable:
                return f"{plugin.distribution} cannot be used: {plugin.reason}"
            try:
                plugin.backend(part.part)
            except PluginError as error:
                return str(error.what)
        brings = KNOWN_BACKENDS.get(part.part)
        if not plugins and brings is not None and part.part not in core().backends:
            known = next((p for p in installed() if p.distribution == brings), None)
            if known is None:
                return f"{part.part!r} comes with {brings}, which is not installed"
            if not known.usable:
                return f"{brings} cannot be used: {known.reason}"
    return None
