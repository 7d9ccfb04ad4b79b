"""The containers that choose one of their children: ModelLoader and Fallback."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from headrace._config.problems import UNBUILDABLE, Problems
from headrace._contract.options import Options as _Options
from headrace._contract.options import path_as_text
from headrace._plan.parameters import argument
from headrace._plan.planning import prefix_values
from headrace._plan.word import Use, Word, keys_read_in, keys_required_by
from headrace._portable import error_text
from headrace.words import Bracket

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._contract.backend import Backend, InitContext
    from headrace._contract.checked import Outcomes
    from headrace._expression.tree import Call
    from headrace._plan.declared import Ranged, ReadKeys, RequiredKeys
    from headrace._plan.element import Element, Range
    from headrace.keys import Request

__all__ = ["Fallback", "ModelLoader"]

_UNAVAILABLE = ("unknown_backend", "missing_plugin", "plugin", "missing_dependency", UNBUILDABLE)
"""A problem whose code begins with one of these means that a branch cannot be built here."""

_log = logging.getLogger("headrace.build")


class _Chosen(Word):
    """Base of the containers that stand for one child once they are built."""

    takes = (1, None)

    @classmethod
    def _read_keys(cls, element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
        """Return what any child reads that may be chosen."""
        return keys_read_in(element.children, built)

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the child that was chosen, and its ``rerun``."""
        (self.child,) = context.children
        self.rerun = self.child.rerun  # type: ignore[misc]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the child that was chosen."""
        return self.child(batch)

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class ModelLoader(_Chosen):
    """Choose the child by the suffix of the option ``model``: ``ModelLoader[(.onnx)A,(.trt,.plan)B]``.

    The first child whose suffix, in any case, ends the name is chosen. `check` warns of options of the others alone.

    Reads:
        The inputs of the chosen child.
    Writes:
        The outputs of the chosen child.
    Batch:
        The range of the chosen child.

    Raises:
        The errors of the chosen child.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"onnx"``::

            backend = "ModelLoader[(.onnx)LoadOnnx,(.trt)LoadTrt]"
            model = "resnet18.onnx"
    """

    class Options(_Options):
        """Options of ModelLoader."""

        model: Annotated[str, BeforeValidator(path_as_text)] = Field(
            description="The model; its suffix chooses the child."
        )

    bracket = Bracket(prefixes=("*",))
    _keys_of_child = 0

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the child that the suffix chooses; the others for the options that they know."""
        element, children = use.element, use.children
        chosen = _by_suffix(use, model := getattr(element.options, "model", None))
        row = []
        for child in children:
            other = child is not chosen
            planned = _plan_apart(use, child, idle=True) if other else use.plan(child)
            if other and chosen is not None:
                label = _label_of(child, children)
                element.unavailable.setdefault(label, f"the model is {model}")
                continue
            if planned is None or chosen is None:
                continue
            if not use.may_call(planned):
                return None
            row.append(planned)
            element.prefixes.append(prefix_values(child.prefix))
        element.phases = [row]
        return element if row else None


def _of_any(children: list[Ranged]) -> Range:
    """Return the range that any child may have: before building nobody knows which child is chosen."""
    least, most = zip(*(child.range for child in children), strict=True)
    return min(least), None if None in most else max(most)


class Fallback(_Chosen):
    """Use the first child that can be built here: ``Fallback[TensorrtTensor,OnnxTensor]``.

    Fallback goes on to the next child when a name is not installed or not allowed, in a definition too, when a
    library is missing, and at any error of ``init`` or ``warm_up``. Wrong options are an error all the same. The
    choice, and why the others were not chosen, is logged and in ``describe()``, by instance if these differ.

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

            backend = "Fallback[NotInstalled,Upper]"
    """

    bracket = Bracket(combine_ranges=_of_any)
    choice: dict[str, Any]
    choices: dict[str, dict[str, Any]]

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the children that can be built here as far as the classes tell."""
        element, before = use.element, len(use.planning.problems)
        found = [_plan_apart(use, child) for child in use.children]
        row = [child for child in found if child is not None and use.may_call(child)]
        element.phases = [row]
        if not row and len(use.planning.problems) == before:
            use.add(UNBUILDABLE, _nothing(element.name, element.unavailable))
        return element if row else None

    @classmethod
    def _required_keys(cls, element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
        """Return the keys that the chosen child needs; before one is chosen, those that every child needs."""
        labels = [_label_of(child.call, element.call.children) for child in element.children]
        made: Any = built.get(element)
        if made is not None:
            return keys_required_by(element.children[labels.index(made.choice["chosen"])], built)
        first, *rest = [keys_required_by(child, built) for child in element.children]
        return {key: reader for key, reader in first.items() if all(key in one for one in rest)}

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the children in order, until one can be built."""
        reasons, known = dict(element.unavailable), dict(building.by_element)
        for child in element.children:
            trial = replace(at, parts=at.parts.add_inner())
            label = _label_of(child.call, element.call.children)
            try:
                with at.end.trial():
                    built = building.child(child, trial)
            except Exception as error:  # noqa: BLE001 - after any failure the next child is tried
                trial.parts.close()
                building.by_element = dict(known)  # what has failed is not to be described
                reasons[label] = error_text(error)
                continue
            for other, why in reasons.items():
                _log.info("Fallback: %s cannot be built here: %s", other, why)
            _log.info("Fallback: %s was chosen", label)
            backend: Any = building.backend(element, (built,), at)
            backend.choice, backend.choices = {"chosen": label, "not_chosen": reasons}, {}
            building.by_element[element].choices[str(at.index or 0)] = backend.choice  # type: ignore[attr-defined]
            return backend  # type: ignore[no-any-return]
        raise building.build_error(_nothing("Fallback", reasons), element.name, at)

    def describe(self) -> dict[str, Any]:
        """Return the child that was chosen, and why not the others; also of instances that have chosen otherwise."""
        others = {index: one for index, one in self.choices.items() if one != self.choice}
        return {**self.choice, **({"instances": others} if others else {})}


def _nothing(name: str, reasons: Mapping[str, str]) -> str:
    return f"nothing in {name} can be built here: {'; '.join(map(': '.join, reasons.items()))}"


def _label_of(child: Call, children: Collection[Call]) -> str:
    """Return the name of a branch as it was written; its whole text where others have the same name."""
    child = next((use.call for use in child.source.uses if use.call in children), child)
    return str(child) if [one.name for one in children].count(child.name) > 1 else child.name


def _plan_apart(use: Use, child: Call, *, idle: bool = False) -> Element | None:
    """Plan a branch, ``idle`` if it will not be built; put why it cannot be built into ``unavailable``."""
    planning, parameters = use.planning, use.planning.parameters
    outer, around = planning.problems, parameters.idle
    planning.problems, parameters.idle = Problems(outer.environ), around or idle
    planned = use.plan(child)
    found, planning.problems, parameters.idle = list(planning.problems), outer, around
    away = [one for one in found if one.code.startswith(_UNAVAILABLE)]
    theirs = ("missing_option", "option") if idle else ()  # perhaps written for the chosen branch
    outer.add_all(one for one in found if one not in away and one.code not in theirs)
    if away:
        parameters.excused += 1  # a key that is unknown here may be an option of this branch
        planning.excused.add_all(away)
        use.element.unavailable[_label_of(child, use.children)] = "; ".join(p.message for p in away)
    return None if found else planned


def _by_suffix(use: Use, model: object) -> Call | None:
    """Return the first branch with a suffix that ends the model's name; report branches without any."""
    name = use.element.name
    rows = [(one, [*map(str, one.prefix.positional)] if one.prefix else []) for one in use.children]
    bare = [child for child, suffixes in rows if not all(suffixes or [""])]
    for child in bare:
        use.add("prefix", f"a branch of {name} begins with suffixes: (.onnx){child.name}", child)
    known = [one.lower() for _, suffixes in rows for one in suffixes]
    if twice := sorted({one for one in known if known.count(one) > 1}):
        use.add("prefix", f"{name} has {', '.join(twice)} twice: only the first is ever chosen")
    if bare or twice or model is None:
        return None
    for child, suffixes in rows:
        if str(model).lower().endswith(tuple(one.lower() for one in suffixes)):
            return child
    call, parameters = use.element.call, use.planning.parameters
    own = argument(call, "model", model) if "model" in dict(call.args.named) else None
    found = parameters.find((name,), "model", call.source, own)
    what = f"{name} has no branch for the model {str(model)!r}: it has {', '.join(known)}"
    use.add("suffix", what, **(found.place() if found else {}))
    return None
