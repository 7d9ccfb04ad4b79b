"""What stands in the bracket of a name: how many, how deep, with which prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._config.nesting import MAX_DEPTH
from headrace._expression import Call
from headrace._plan.values import plain_value
from headrace.words.background import BackgroundThread
from headrace.words.process import Process
from headrace.words.sequential import Sequential

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._expression import Args
    from headrace._plan.element import Element, Prefix
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = [
    "Phases",
    "bracket_of",
    "check_arity",
    "check_prefixes",
    "is_bare",
    "joined",
    "owns_its_thread",
    "prefix_values",
    "takes_dependency",
    "too_deep",
]

Phases = tuple[tuple[Call, ...], ...]

_SEQUENCES = ("S", "Sequential", "headrace:S", "headrace:Sequential")


def bracket_of(call: Call, scope: Scope) -> tuple[Phases, Scope]:
    """Give what stands in the bracket of ``call`` and the scope it was written in.

    The bracket of a definition's use goes to the innermost last name, which has none.
    """
    if call.phases or scope.graft is None:
        return call.phases, scope
    graft = scope.graft
    inner = graft.scope.same(depth=max(scope.depth, graft.scope.depth), frames=scope.frames)
    return graft.call.phases, inner


def takes_dependency(cls: type[Backend]) -> bool:
    """Tell whether a class is given its only child at each call."""
    return callable(getattr(cls, "forward_with_dep", None))


def is_bare(element: Element) -> bool:
    """Tell whether an instance is built without what it depends on."""
    return takes_dependency(element.cls) and not element.children


def owns_its_thread(cls: type[Backend]) -> bool:
    """Tell whether everything inside runs in a thread of its own already."""
    return cls in (BackgroundThread, Process)


# How many.


def check_arity(resolver: Resolver, element: Element, phases: Phases, scope: Scope) -> bool:
    """Check the number of children; report it if it is wrong."""
    call, cls = element.call, element.cls
    count = sum(len(phase) for phase in phases)
    try:
        least, most = _takes(cls)
    except (TypeError, ValueError):
        what = f"takes={cls.takes!r} is neither a number of children nor (least, most or None)"
        resolver.add("arity", f"the class {cls.__name__} is wrong, {what}", call, scope)
        return False
    if not phases and (scope.open_slot or (scope.named and takes_dependency(cls))):
        return True
    if phases and most != 0 and len(phases) != cls.phases:
        return _wrong_phases(resolver, element, len(phases), scope)
    if least <= count and (most is None or count <= most):
        return True
    if most == 0 and not call.phases and scope.graft is not None:
        graft = scope.graft
        resolver.add(
            "arity",
            f"{graft.call.name}[...] goes to {call.name}, which takes nothing in brackets",
            graft.call,
            graft.scope,
        )
        return False
    if most == 0:
        message = f"{call.name} takes nothing in brackets"
    else:
        wanted = f"{least}" if least == most else f"{least} or more"
        if most is not None and least != most:
            wanted = f"{least} to {most}"
        message = f"{call.name} takes {wanted} in brackets, got {count}"
    resolver.add("arity", message, call, scope)
    return False


def _takes(cls: type[Backend]) -> tuple[int, int | None]:
    if takes_dependency(cls) and cls.takes == 0:
        return 1, 1
    return (cls.takes, cls.takes) if isinstance(cls.takes, int) else cls.takes


def _wrong_phases(resolver: Resolver, element: Element, got: int, scope: Scope) -> bool:
    wanted = element.cls.phases
    if wanted == 1:
        resolver.add(
            "arity",
            f"{element.name} has one phase in brackets, got {got} separated by ';'",
            element.call,
            scope,
            hint="';' has a meaning in IoC only; write ','.",
        )
    else:
        resolver.add(
            "arity",
            f"{element.name} has {wanted} phases in brackets, separated by ';', got {got}",
            element.call,
            scope,
        )
    return False


# How deep.


def too_deep(tree: Call) -> Call | None:
    """Give an element that is nested too deep, None when there is none.

    ``S`` directly in ``S`` is one level, lists and expressions in args count.
    """
    todo: list[tuple[Any, int, Call]] = [(tree, 0, tree)]
    while todo:
        item, depth, place = todo.pop()
        if depth > MAX_DEPTH:
            return place
        if isinstance(item, tuple):
            todo.extend((part, depth + 1, place) for part in item)
        elif isinstance(item, Call):
            for args in (item.args, item.prefix):
                values = () if args is None else (*args.positional, *(v for _, v in args.named))
                nested = (value for value in values if isinstance(value, (tuple, Call)))
                todo.extend((value, depth + 1, item) for value in nested)
            for child in item.children:
                same = _is_sequence(item) and _is_plain_sequence(child)
                todo.append((child, depth if same else depth + 1, child))
    return None


def joined(resolver: Resolver, phases: Phases, scope: Scope) -> Phases:
    """Join ``S`` directly in ``S``, to any depth, without recursion."""
    meant = {
        name
        for name in _SEQUENCES
        if scope.lookup(name) is None and resolver.pipeline.named(name) is None
    }
    result = []
    for phase in phases:
        flat: list[Call] = []
        todo = list(reversed(phase))
        while todo:
            call = todo.pop()
            if call.name in meant and _is_plain_sequence(call):
                todo.extend(reversed(call.phases[0]))
            else:
                flat.append(call)
        result.append(tuple(flat))
    return tuple(result)


def _is_sequence(call: Call) -> bool:
    return call.name in _SEQUENCES


def _is_plain_sequence(call: Call) -> bool:
    """Tell whether joining an ``S`` with the one around it changes nothing but the nesting."""
    if not _is_sequence(call) or call.prefix is not None or len(call.args):
        return False
    return len(call.phases) == 1 and call.phases[0][0].prefix is None


# Prefixes.


def check_prefixes(resolver: Resolver, element: Element, phases: Phases, inner: Scope) -> bool:
    """Check the prefixes before the children against what their container understands."""
    good = True
    for phase in phases:
        for index, child in enumerate(phase):
            if child.prefix is not None:
                good &= _check_prefix(resolver, element, child, inner, first=index == 0)
    return good


def _check_prefix(
    resolver: Resolver, element: Element, child: Call, scope: Scope, *, first: bool
) -> bool:
    prefix, understood = child.prefix, element.cls.prefixes
    assert prefix is not None  # noqa: S101 - the caller has looked
    wrong = [str(v) for v in prefix.positional if "*" not in understood and v not in understood]
    wrong += [f"{key}=" for key, _ in prefix.named if f"{key}=" not in understood]
    if wrong:
        knows = ", ".join("any flag" if p == "*" else f"({p})" for p in understood)
        resolver.add(
            "prefix",
            f"{element.name} does not understand the prefix ({wrong[0]})",
            child,
            scope,
            span=prefix.span,
            hint=f"It understands {knows}." if knows else "It understands none.",
        )
    elif first and element.cls is Sequential and "or" in prefix.positional:
        resolver.add(
            "prefix",
            f"(or) cannot stand before the first element of {element.name}",
            child,
            scope,
            span=prefix.span,
            hint="It means: if the element before gave no result.",
        )
    elif any(not isinstance(value, str) for key, value in prefix.named if key == "key"):
        resolver.add("prefix", "(key=...) takes the name of a key", child, scope, span=prefix.span)
    else:
        return True
    return False


def prefix_values(prefix: Args | None) -> Prefix:
    """Give a prefix as a container reads it."""
    if prefix is None:
        return (), {}
    positional = tuple(plain_value(value) for value in prefix.positional)
    return positional, {key: plain_value(value) for key, value in prefix.named}
