"""Which keys of a request an element needs, and on which ones its answer depends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._language.contract.backend import Backend
from headrace._language.plan.declared import ReadKeys, RequiredKeys, keys_named
from headrace._language.plan.word import word_of
from headrace.keys import DATA, RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._language.plan.element import Element

    Built = Mapping[Element, Backend]
    """The backends that are built, by element. A built backend may say more than its class."""


def required_keys(root: Element, built: Built) -> tuple[str, ...]:
    """Return the keys without which a request is refused on entry.

    That is ``data`` wherever a backend may read it. Otherwise it is what the first backend reads: a
    model with several inputs reads the keys that have the names of the inputs.
    """
    keys = keys_required_by(root, built)
    return (DATA,) if DATA in keys else tuple(sorted(keys))


def keys_required_by(element: Element, built: Built) -> RequiredKeys:
    """Return the known keys that every request needs when it comes to an element."""
    if element._referent is not None:
        return keys_required_by(element._referent, built)
    if element.named is not None:
        return {DATA: element.name}
    in_turn = word_of(element.cls)._in_turn
    return (_keys_required_in_turn if in_turn else _keys_required)(element, built)


def _keys_required(element: Element, built: Built) -> RequiredKeys:
    """Return what the class, or the built backend, reads, and what all its children need.

    A container has to say so in ``init`` (``self.reads = ()`` for just the keys that all its
    children need). What its `bracket` gives to them no request has to bring.
    """
    children, bracket = element.children, element.cls.bracket
    if (child := _child_read(element, built)) is not None:
        return keys_required_by(child, built)
    needs = getattr(built.get(element), "needs", None)
    if element.cls.builds_elsewhere and needs is not None:
        return dict.fromkeys(needs, element.name)  # as what was built there has said
    item = built.get(element, element.cls)
    if children and not _says_reads(item):
        return {DATA: element.name}  # a container that does not say which keys it needs
    reads = keys_named(item, element.options, "reads")
    read_here = {key: element.name for key in reads if key == DATA or key not in RESERVED}
    if not children or (len(children) == 1 and bracket.divides):
        return read_here  # an item may pass by the only child
    keys_given = {*keys_named(item, element.options, "bracket.gives")}
    first, *others = [keys_required_by(child, built) for child in children]
    shared = {key: first[key] for key in first if all(key in other for other in others)}
    return {**{key: name for key, name in shared.items() if key not in keys_given}, **read_here}


def _keys_required_in_turn(element: Element, built: Built) -> RequiredKeys:
    """Return the keys that the first of children needs, where each gets the last result."""
    first, *rest = element.children
    if any(element.prefixes[0]):
        return {DATA: element.name}  # an item that passes by ends with its data as result
    for child, (flags, _) in zip(rest, element.prefixes[1:], strict=True):
        if "or" in flags and DATA in keys_required_by(child, built):
            return {DATA: child.name}  # (or) runs on the data of an item that has no result
    return keys_required_by(first, built)


def keys_read_by(element: Element, built: Built) -> ReadKeys:
    """Return all keys of a request on which what an element writes may depend.

    None is among them where a backend does not say.
    """
    if element._referent is not None:
        return keys_read_by(element._referent, built)
    if element.named is not None:
        return {None: element.name}
    in_turn = word_of(element.cls)._in_turn
    return (_keys_read_in_turn if in_turn else _keys_read)(element, built)


def _keys_read(element: Element, built: Built) -> ReadKeys:
    """Return what the class, or the built backend, reads, and what its children read."""
    keys = keys_read_in(element.children, built)
    if _child_read(element, built) is not None:
        return keys
    option = element.cls.bracket.keys_option
    if option is not None:
        if (more := getattr(element.options, option, None)) is None:
            return keys
        keys = {DATA if key is None else key: name for key, name in keys.items()}
        return {**keys, **dict.fromkeys(more, element.name)}
    item = built.get(element, element.cls)
    if not _says_reads(item):
        return {**keys, None: element.name}
    compared = [values["key"] for _, values in element.prefixes if "key" in values]
    read_here = keys_named(item, element.options, "reads", optional=True)
    return {**keys, **dict.fromkeys([*read_here, *compared], element.name)}


def keys_read_in(elements: Iterable[Element], built: Built) -> ReadKeys:
    """Return all keys on which what any of several elements writes may depend."""
    return {key: name for element in elements for key, name in keys_read_by(element, built).items()}


def _keys_read_in_turn(element: Element, built: Built) -> ReadKeys:
    """Return what children read, where each gets the last result or an item passes by."""
    keys: ReadKeys = {}
    passes = True  # whether `data` may still be that of the request
    for child, (flags, named) in zip(element.children, element.prefixes, strict=True):
        inner = keys_read_by(child, built)
        keys |= {key: name for key, name in inner.items() if key != DATA or passes or "or" in flags}
        keys |= dict.fromkeys(named.values(), element.name)
        passes = passes and bool(flags or named)
    return {**keys, DATA: element.name} if passes else keys


def _child_read(element: Element, built: Built) -> Element | None:
    """Return the child whose keys are those of an element, as its class or the built backend says.

    None for none.
    """
    place = element.cls.bracket.keys_of_child
    if place is None and element in built:
        place = built[element].bracket.keys_of_child
    return element.children[place] if element.children and place is not None else None


def _says_reads(backend: type[Backend] | Backend) -> bool:
    """Tell whether a class, or a built backend, says what it reads.

    The default of `Backend` stands for no word of it.
    """
    cls = backend if isinstance(backend, type) else type(backend)
    named = (vars(base) for base in (backend, *cls.__mro__) if base is not Backend)
    return any("reads" in names for names in named)
