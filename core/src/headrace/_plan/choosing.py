"""Containers that use one of their branches: ModelLoader and Fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._config.problems import UNBUILDABLE, Problems
from headrace._plan.brackets import prefix_values
from headrace._plan.wiring import check_callable
from headrace.words.choice import Fallback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._expression import Call
    from headrace._plan.brackets import Phases
    from headrace._plan.element import Element
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["label_of", "plan_branches"]

_UNAVAILABLE = ("unknown_backend", "missing_plugin", "plugin", "missing_dependency", UNBUILDABLE)
"""Beginnings of the codes of problems that mean: it cannot be built here."""

_OF_VALUES = ("missing_option", "option")
"""Codes of problems that a branch has with values that were written for another one."""


def plan_branches(
    resolver: Resolver, element: Element, phases: Phases, inner: Scope, scope: Scope
) -> list[list[Element]] | None:
    """Plan the children of a container that uses one of them; None when that is wrong."""
    children = phases[0] if phases else ()
    below = inner.within(wraps=scope.wraps, entry=scope.entry)
    last = inner.within(last=True, wraps=scope.wraps, entry=scope.entry)
    scopes = {id(child): last if child is children[-1] else below for child in children}
    if element.cls is Fallback:
        return _plan_fallback(resolver, element, children, scopes, scope)
    model = getattr(element.options, "model", None)
    chosen = None
    if _have_suffixes(resolver, element, children, inner) and model is not None:
        chosen = _by_suffix(resolver, element, children, str(model), inner)
    row: list[Element] = []
    for child in children:
        if child is chosen:
            planned = resolver.plan(child, scopes[id(child)])
        else:
            planned = _plan_apart(resolver, element, child, scopes[id(child)], other=_OF_VALUES)
        if planned is not None and (child is chosen or (chosen is None and scope.lenient)):
            if not check_callable(resolver, planned, element, inner):
                return None
            row.append(planned)
            element.prefixes.append(prefix_values(child.prefix))
        elif child is not chosen and chosen is not None:
            element.unavailable.setdefault(label_of(child, children), f"the model is {model}")
    return [row] if row else None


def label_of(child: Call, children: Iterable[Call]) -> str:
    """Give the name of a branch; its whole text where others have the same name."""
    alike = [other for other in children if other.name == child.name]
    return child.name if len(alike) <= 1 else str(child)


def _plan_fallback(
    resolver: Resolver,
    element: Element,
    children: tuple[Call, ...],
    scopes: dict[int, Scope],
    scope: Scope,
) -> list[list[Element]] | None:
    before = len(resolver.problems)
    row = []
    for child in children:
        planned = _plan_apart(resolver, element, child, scopes[id(child)])
        if planned is not None and check_callable(resolver, planned, element, scopes[id(child)]):
            row.append(planned)
            element.prefixes.append(((), {}))
    if children and not row and not scope.lenient and len(resolver.problems) == before:
        reasons = "; ".join(f"{name}: {why}" for name, why in element.unavailable.items())
        resolver.add(
            UNBUILDABLE,
            f"nothing in {element.name} can be built here: {reasons}",
            element.call,
            scope,
        )
    return [row] if row or scope.lenient else None


def _plan_apart(
    resolver: Resolver,
    element: Element,
    child: Call,
    scope: Scope,
    *,
    other: tuple[str, ...] = (),
) -> Element | None:
    """Plan a branch that need not be buildable; why it is not goes into ``unavailable``.

    Args:
        resolver: The resolver.
        element: The container.
        child: The branch.
        scope: Where it stands.
        other: Codes of further problems that do not matter.
    """
    outer, resolver.problems = resolver.problems, Problems()
    incomplete, unresolved = resolver.parameters.incomplete, resolver.unresolved
    try:
        planned = resolver.plan(child, scope)
        found = list(resolver.problems)
    finally:
        resolver.problems = outer
    away = [problem for problem in found if problem.code.startswith(_UNAVAILABLE)]
    hard = [p for p in found if p not in away and p.code not in other]
    outer.extend(hard)
    resolver.parameters.incomplete = incomplete or bool(hard)
    resolver.unresolved = unresolved + bool(hard)
    if away:
        # Nobody can tell which keys belong to what is not here.
        resolver.parameters.excused = True
        label = label_of(child, element.call.children)
        element.unavailable[label] = "; ".join(problem.message for problem in away)
    return None if found else planned


def _have_suffixes(
    resolver: Resolver, element: Element, children: tuple[Call, ...], scope: Scope
) -> bool:
    good = True
    for child in children:
        flags = child.prefix.positional if child.prefix is not None else ()
        if not flags or not all(isinstance(flag, str) and flag for flag in flags):
            message = f"a branch of {element.name} begins with suffixes: (.onnx){child.name}"
            resolver.add("prefix", message, child, scope)
            good = False
    return good


def _by_suffix(
    resolver: Resolver,
    element: Element,
    children: tuple[Call, ...],
    model: str,
    scope: Scope,
) -> Call | None:
    """Give the first branch with a suffix that ends the model's name."""
    suffixes: list[str] = []
    for child in children:
        own = [str(one) for one in child.prefix.positional] if child.prefix is not None else []
        if model.lower().endswith(tuple(suffix.lower() for suffix in own)):
            return child
        suffixes += own
    message = f"{element.name} has no branch for the model {model!r}: it has {', '.join(suffixes)}"
    resolver.add("suffix", message, element.call, scope)
    return None
