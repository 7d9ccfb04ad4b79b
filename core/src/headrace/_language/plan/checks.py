"""Checks of one element where it stands.

Its bracket, its prefixes, the nodes and keys that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._language.expression.tree import EMPTY, Args
from headrace._language.plan.key_use import keys_read_in
from headrace._language.registry.backends import source_of
from headrace._texts import nearest

if TYPE_CHECKING:
    from headrace._language.plan.word import Use


# Before the children are planned.


def check_arity(use: Use) -> bool:
    """Check the number of children; report it if it is wrong."""
    call, cls, phases = use.element.call, use.element.cls, use.phases
    count = len(use.children)
    least, most = (cls.takes, cls.takes) if isinstance(cls.takes, int) else cls.takes
    right = not phases or len(phases) == cls.bracket.phases
    if right and least <= count and (most is None or count <= most):
        return True
    demand, got, hint = f"takes {least}", f", got {count}", None
    if most == 0:
        demand, got = "takes nothing", ""
        if getattr(cls.Options, "positional", ()):
            written = ",".join(map(str, use.children))
            hint = f"What is no backend stands in ( ): {call.name}({written})"
    elif not right:
        expected = cls.bracket.phases
        phase = "one phase" if expected == 1 else f"{expected} phases"
        demand, got = f"has {phase}", f", separated by ';', got {len(phases)}"
    elif least != most:
        demand += " or more" if most is None else f" to {most}"
    if not count and call.args.positional:
        hint = f"Write {call.name}[{','.join(map(str, call.args.positional))}]."
    use.add("arity", f"{call.name} {demand} in brackets{got}", hint=hint)
    return False


def check_prefixes(use: Use) -> None:
    """Report the prefixes before the children that their container does not understand."""
    understood = use.element.cls.bracket.prefixes
    for child in use.children:
        prefix, hint, suggestion = child.prefix or EMPTY, None, None
        unknown = [str(Args((v,))) for v in prefix.positional if {"*", v}.isdisjoint(understood)]
        unknown += [f"({key}=)" for key, _ in prefix.named if f"{key}=" not in understood]
        if unknown:
            knows = ", ".join("any flag" if p == "*" else f"({p})" for p in understood)
            hint = f"It understands {knows or 'none'}."
            suggestion = nearest(unknown[0][1:-1], understood)
            message = f"{use.element.name} does not understand the prefix {unknown[0]}"
        elif any(not isinstance(value, str) for key, value in prefix.named if key == "key"):
            message = "(key=...) takes the name of a key"
        else:
            continue
        use.add("prefix", message, child, span=prefix.span, hint=hint, suggestion=suggestion)


# Once they are.


def check_placed(use: Use) -> None:
    """Check whether a planned element may stand where it stands."""
    if use.element.named is None:
        _check_calls(use)
        _check_keys(use)
        if use.element.cls.builds_elsewhere:
            _check_stands_alone(use)


def _check_calls(use: Use) -> None:
    """Report nodes that do not exist, and that a backend would call or send requests to."""
    element, nodes = use.element, use.planning.shape.nodes
    for name in element.nodes_called:
        if name not in nodes:
            suggestion = use.planning.problems.nearest(name, nodes)
            does = "lets requests go on at" if element._goes_on_at else "calls"
            message = f"{element.name} {does} the node {name!r}, and there is none of that name"
            hint = None if suggestion else f"There is {', '.join(nodes)}."
            use.add("unknown_instance", message, suggestion=suggestion, hint=hint)


def _check_keys(use: Use) -> None:
    """Report a container that has to know all keys read inside, where a child does not say."""
    element, option = use.element, use.element.cls.bracket.keys_option
    if option is None or getattr(element.options, option, None) is not None:
        return
    silent = keys_read_in(element.children, {}).get(None)
    if silent is not None:
        asks = f"{element.name} has to know which keys of a request are read inside"
        named = f"Name them, as {option}=[language]; {option}=[] where that is data alone."
        hint = f"{named} A class says it by reads."
        use.add("missing_option", f"{asks}, and {silent} does not say", hint=hint)


def _check_stands_alone(use: Use) -> None:
    """Report elements in a container that builds elsewhere which another process cannot have."""
    inside = [element for child in use.element.children for element in child.walk()]
    inside_ids = {id(element) for element in inside}
    for element in inside:
        hint, target = None, element._referent
        texts = [value for _, value in element.options or () if isinstance(value, str)]
        outer = element.named is not None and (target is None or id(target) not in inside_ids)
        if outer or element.cls.uses_pipeline:
            why = "it reaches for something of the pipeline, which another process does not have"
        elif getattr(source_of(element.cls), "__module__", None) == "__main__":
            why = "it is registered by the program itself, which another process does not run"
            hint = "Put it into a file, and name that under `import`."
        elif any(text.startswith("__main__:") for text in texts):
            why = "it names something of the program itself, which another process does not run"
            hint = "Put that into a module of its own."
        else:
            continue
        message = f"{element.name} cannot stand in {use.element.name}: {why}"
        use.add("elsewhere", message, element.call, hint=hint)
