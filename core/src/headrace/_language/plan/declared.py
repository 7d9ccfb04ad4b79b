"""What backend classes declare.

The range of an element follows from it, and the keys it reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._language.config.problems import format_value

if TYPE_CHECKING:
    from headrace._language.config.sections import NodeKeys
    from headrace._language.contract.backend import Backend
    from headrace._language.plan.element import Element, Prefix, Range


def static_range(element: Element) -> Range:
    """Give the range of an element whose children have their ranges already.

    Raises:
        ValueError: The range is empty, or a branch of a container asks for more than one item.
    """
    if element._referent is not None:
        return element._referent.range
    cls = element.cls
    if not element.phases:
        return cls.min, cls.max
    children = [(child.name, child.range) for child in element.children]
    return of_children(cls, children, element.prefixes) or (cls.min, cls.max)


def of_children(
    cls: type[Backend], children: Sequence[tuple[str, Range]], prefixes: Sequence[Prefix]
) -> Range | None:
    """Return the range that children make for a container. None where the class states its own.

    Raises:
        ValueError: The range is empty, or a branch asks for more than one item.
    """
    combine = cls.bracket.combine_ranges
    states_range = cls.min != 1 or cls.max is not None
    if not children or (combine is None and states_range):
        return None
    conditional = [any(prefix) for prefix in prefixes] or [False] * len(children)
    ranged = [Ranged(*child, part) for child, part in zip(children, conditional, strict=True)]
    result: Range = (combine or (_of_divided if cls.bracket.divides else inside))(ranged)
    return result


def narrow(range_: Range, keys: NodeKeys, *, alias: bool = False) -> Range:
    """Return the range of a node: its keys narrow the range of its backend.

    Without any max the max is 1. An alias has none then, since another node runs what comes to it.
    """
    low, high = range_
    least, most, sizes = keys.min, keys.max, keys.batch_sizes
    if sizes:
        least = sizes[0] if least is None else least
        most = sizes[-1]  # no batch weighs more, so no request may
    low = max(low, least or 1)
    if most is not None:
        high = most if high is None else min(high, most)
    if sizes and not any(low <= size <= (high or size) for size in sizes):
        high = 0
    if high is None and not alias:
        high = max(1, low)
    return low, high


def no_batch(name: str, range_: Range, keys: NodeKeys) -> str:
    """Say that no weight fits both the range of a backend and the keys of its node."""
    written = {key: getattr(keys, key) for key in ("min", "max", "batch_sizes")}
    keys_here = (f"{key} = {format_value(v)}" for key, v in written.items() if v is not None)
    says = ", ".join(keys_here)
    takes = f"{range_[0]} to {range_[1] or 'any number'}"
    return f"no batch fits: {name} takes {takes}, and the node says {says}"


# How the ranges of children make the range of a container: planning and building use the same
# functions.


class Ranged(NamedTuple):
    """A child of a container.

    Attributes:
        name: Its name, for errors.
        range: Its range.
        conditional: Whether a condition stands before it, so that it may get a part of a batch
            only.
    """

    name: str
    range: Range
    conditional: bool = False


def combine_ranges(children: Sequence[Ranged]) -> tuple[int, int | None]:
    """Return the range (min, max) of a container that runs its children with `run_child`.

    Max None is unbounded.

    A class says so with ``bracket = Bracket(combine_ranges=combine_ranges)``. Planning and building
    use it. Children with a max of 1 are run item by item, so they do not count, unless all have a
    max of 1.

    Args:
        children: The children, each with its ``name``, its ``range``, and whether it is
            ``conditional``. A prefix stands before such a child, so it may get a part of the batch.

    Raises:
        ValueError: The range is empty, or a child that may get a single item has a min above 1. The
            text names the children. The user gets it as an error of the configuration.
    """
    _refuse_min([child for child in children if child.conditional])
    counted = [child for child in children if child.range[1] != 1]
    if counted:
        return inside(counted)
    return (1, 1) if children else (1, None)


def _of_divided(children: Sequence[Ranged]) -> Range:
    """Return the range of a container that gives each item to one child."""
    _refuse_min(children)
    return 1, min((c.range[1] for c in children if c.range[1] not in (None, 1)), default=None)


def _refuse_min(ranges: Sequence[Ranged]) -> None:
    for child in ranges:
        least = child.range[0]
        if least > 1:
            message = f"{child.name} needs at least {least}, and a branch may get a single item"
            raise ValueError(message)


def inside(ranges: Sequence[Ranged]) -> Range:
    """Give the range of a container that hands its whole batch to each child.

    The weights that all take.

    Raises:
        ValueError: The range is empty. The text names the two children.
    """
    lowest = max(ranges, key=lambda child: child.range[0])
    low_name, low = lowest.name, lowest.range[0]
    bounded = [(child.name, child.range[1]) for child in ranges if child.range[1] is not None]
    if not bounded:
        return low, None
    high_name, high = min(bounded, key=lambda item: item[1])
    if low > high:
        raise ValueError(f"{low_name} needs at least {low}, {high_name} takes at most {high}")
    return low, high


def range_of(place: int) -> Any:
    """Return the ``combine_ranges`` of a container that has the range of its child at one place."""
    return lambda ranges: ranges[place].range


# The keys that backends read and write.

ReadKeys = dict["str | None", str]
"""The keys on which an answer may depend, each with the name of a backend that reads it; None
where one does not say which."""

RequiredKeys = dict[str, str]
"""The keys that every request needs somewhere, each with the name of a backend that reads it."""


def keys_named(
    backend: type[Backend] | Backend, options: Any, attribute: str, *, optional: bool = False
) -> Iterable[str]:
    """Return the keys that a backend names in ``reads``, ``writes`` or ``bracket.gives``.

    Args:
        backend: The class, or an instance, whose `init` may have named other keys.
        options: Its checked options, from which the key of ``{option}`` is taken. None for none.
        attribute: ``"reads"``, ``"writes"`` or ``"bracket.gives"``.
        optional: Whether the optional keys of a TypedDict count.
    """
    named: Any = attrgetter(attribute)(backend)
    if isinstance(named, property):  # of the class: only the built backend tells them
        return []
    if isinstance(named, str):
        named = (named,)
    if isinstance(named, type):
        return _keys_of_type(named, optional=optional)
    keys: list[str] = []
    for key in named:
        if not (key.startswith("{") and key.endswith("}")):
            keys.append(key)
            continue
        value: Any = getattr(options, key[1:-1], None)
        if isinstance(value, dict):
            value = list(value.values())
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        keys += [part for part in values if isinstance(part, str)]
    return keys


def _keys_of_type(named: type, *, optional: bool) -> list[str]:
    """Return the keys of a TypedDict, with ``optional`` also those that may be missing."""
    required: Iterable[str] = getattr(named, "__required_keys__", ())
    every = list(getattr(named, "__annotations__", {}))
    if optional:
        return [*dict.fromkeys([*every, *required, *getattr(named, "__optional_keys__", ())])]
    return [key for key in required if not _may_be_missing(named, key)]


def _may_be_missing(named: type, key: str) -> bool:
    """Tell whether a key is ``NotRequired`` by its annotation, where that is still a text."""
    for cls in (named, *getattr(named, "__orig_bases__", ())):
        annotation = getattr(cls, "__annotations__", {}).get(key)
        text = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(text, str) and "NotRequired" in text:
            return True
    return False
