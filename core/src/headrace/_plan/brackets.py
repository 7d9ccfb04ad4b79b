"""What stands in the bracket of a name: how many, how deep, with which prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._config.problems import MAX_DEPTH
from headrace._expression.tree import Args, Call
from headrace._plan.element import Element, takes_dependency
from headrace._plan.scope import use_behind
from headrace._plan.word import core_word, word_of

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._plan.planning import Planning
    from headrace._plan.scope import Phases, Scope
    from headrace._plan.word import Use


# How many.


def check_arity(use: Use) -> bool:
    """Check the number of children; report it if it is wrong."""
    call, cls, phases, scope = use.element.call, use.element.cls, use.phases, use.scope
    count = len(use.children)
    least, most = _takes(cls)
    if not phases and (call is scope.slot or (scope.named and takes_dependency(cls))):
        return True
    if phases and most != 0 and len(phases) != cls.phases:
        has = f"{cls.phases} phases in brackets, separated by ';', got {len(phases)}"
        hint = None
        if cls.phases == 1:
            has = f"one phase in brackets, got {len(phases)} separated by ';'"
            hint = "';' has a meaning in IoC only; write ','."
        use.add("arity", f"{call.name} has {has}", hint=hint)
        return False
    if least <= count and (most is None or count <= most):
        return True
    if most == 0 and use_behind(call) is not None:
        use.refuse_bracket(call)
    elif most == 0:
        use.add("arity", f"{call.name} takes nothing in brackets")
    else:
        wanted = f"{least}" if least == most else f"{least} or more"
        if most is not None and least != most:
            wanted = f"{least} to {most}"
        use.add("arity", f"{call.name} takes {wanted} in brackets, got {count}")
    return False


def _takes(cls: type[Backend]) -> tuple[int, int | None]:
    if takes_dependency(cls) and cls.takes == 0:
        return 1, 1
    return (cls.takes, cls.takes) if isinstance(cls.takes, int) else cls.takes


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
            joins = core_word(item.name)._joins
            todo.extend(
                (child, depth if joins and _joins(child) else depth + 1, child)
                for child in item.children
            )
    return None


def joined(planning: Planning, phases: Phases, scope: Scope) -> Phases:
    """Join ``S`` directly in ``S``, to any depth, without recursion."""
    result = []
    for phase in phases:
        flat: list[Call] = []
        todo = list(reversed(phase))
        while todo:
            call = todo.pop()
            named = _joins(call) and (scope.lookup(call.name) or planning.named(call.name))
            if _joins(call) and not named:
                todo.extend(reversed(call.phases[0]))
            else:
                flat.append(call)
        result.append(tuple(flat))
    return tuple(result)


def _joins(call: Call) -> bool:
    """Tell whether joining an ``S`` with the one around it changes nothing but the nesting."""
    if call.prefix is not None or len(call.args) or not core_word(call.name)._joins:
        return False
    return len(call.phases) == 1 and call.phases[0][0].prefix is None


# Prefixes.


def check_prefixes(use: Use) -> None:
    """Report the prefixes before the children that their container does not understand."""
    for phase in use.phases:
        for index, child in enumerate(phase):
            wrong = child.prefix and _wrong(use.element, child, child.prefix, first=index == 0)
            if wrong and child.prefix is not None:
                message, hint = wrong
                use.add("prefix", message, child, span=child.prefix.span, hint=hint)


def _wrong(
    element: Element, child: Call, prefix: Args, *, first: bool
) -> tuple[str, str | None] | None:
    """Say what is wrong with the prefix of a child, and what to do; None for nothing."""
    understood = element.cls.prefixes
    wrong = [str(v) for v in prefix.positional if "*" not in understood and v not in understood]
    wrong += [f"{key}=" for key, _ in prefix.named if f"{key}=" not in understood]
    if wrong:
        knows = ", ".join("any flag" if p == "*" else f"({p})" for p in understood)
        hint = f"It understands {knows}." if knows else "It understands none."
        return f"{element.name} does not understand the prefix ({wrong[0]})", hint
    found = word_of(element.cls)._check_prefix(element, child, first=first)
    if found is not None:
        return found
    if any(not isinstance(value, str) for key, value in prefix.named if key == "key"):
        return "(key=...) takes the name of a key", None
    return None
