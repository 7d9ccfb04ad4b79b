"""What keys name as ``Name`` or ``Name(a=1)``: the policies of a node, the probes of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._config.document import Written
from headrace._config.nodekeys import NodeKeys
from headrace._config.problems import key_place
from headrace._options import Options
from headrace._plan.element import NamedPlan
from headrace._plan.options import OptionsReader
from headrace._plan.scope import Source
from headrace._problem import nearest
from headrace._registry.discovery import (
    CORE_POLICIES,
    KNOWN_PROBES,
    PROBE_METHODS,
    found,
    how_to_install,
    load,
)
from headrace._registry.registry import registry
from headrace.errors import PluginError
from headrace.policies import BatchPolicy, DispatchPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace._expression.tree import Call
    from headrace._plan.planning import Planning
    from headrace._registry.registry import Offer


class Kind(NamedTuple):
    """What a key may name, as ``Name`` or ``Name(a=1)``.

    Attributes:
        noun: What it is called.
        hook: The table of hooks in which plugins offer it.
        wanted: What its class has to be.
        base: The class that it derives from; None for a probe, which has some of `PROBE_METHODS`.
    """

    noun: str
    hook: str
    wanted: str
    base: type[Any] | None = None

    def has(self, cls: Any) -> bool:
        """Tell whether a class is of this kind."""
        if not isinstance(cls, type) or self.base is not None:
            return isinstance(cls, type) and issubclass(cls, self.base or cls)
        return any(callable(getattr(cls, method, None)) for method in PROBE_METHODS)


BATCH_POLICY = Kind("policy", "batch_policies", "BatchPolicy", BatchPolicy)
DISPATCH_POLICY = Kind("policy", "dispatch_policies", "DispatchPolicy", DispatchPolicy)
PROBE = Kind("probe", "probes", f"probe: a class with {' or '.join(PROBE_METHODS)}")


def _named(
    planning: Planning,
    kind: Kind,
    written: Written,
    source: Source,
    given: Mapping[str, tuple[Any, str]] | None = None,
) -> NamedPlan | None:
    """Find the class that is named, and check its options; report what is in the way."""
    call = planning.read(written, source)
    found = None if call is None else _class(planning, kind, call)
    if call is None or found is None:
        planning.parameters.unresolved += 1
        return None
    cls, offer = found
    by = (
        ("", "", "")
        if offer is None
        else (offer.by.plugin, offer.by.distribution, offer.by.version)
    )
    model = getattr(cls, "Options", None)
    options, _ = OptionsReader(call, model or Options, planning, by[0]).read(given)
    if options is None:
        return None
    options = None if model is None else options
    return NamedPlan(written.value.strip(), call.args, cls, options, *by[1:])


def _class(planning: Planning, kind: Kind, call: Call) -> tuple[type[Any], Offer | None] | None:
    try:
        cls, offer = _find(planning, kind, call.name)
    except PluginError as error:
        planning.add(error.code, error.what, call, hint=error.hint)
        return None
    if call.phases:
        planning.add("arity", f"the {kind.noun} {call.name} takes nothing in [ ]", call)
    if kind.has(cls):
        return cls, offer
    if cls is not None:
        what = repr(call.name) if offer is None else f"{offer.path!r} of {offer.by.distribution}"
        planning.add(kind.noun, f"{what} is no {kind.wanted}", call)
    elif kind is PROBE or planning.all_names:
        _report_unknown(planning, kind, call)
    return None


def _find(planning: Planning, kind: Kind, name: str) -> tuple[Any, Offer | None]:
    """Find what should be the class of a name, and the plugin that offers it; None for an unknown one.

    Raises:
        PluginError: Two plugins offer the name, or its class cannot be imported.
    """
    if kind.base is not None:
        for known, cls in _without_plugins(planning):
            if name in (known, f"headrace:{known}" if known in CORE_POLICIES else known):
                return cls, None
    offer = registry.find_offer(kind.hook, kind.noun, name)
    if offer is None:
        return None, None
    brings = offer.by.distribution
    return load(offer.path, brings, f"the {kind.noun} {offer.name!r} of {brings}"), offer


def _without_plugins(planning: Planning) -> Iterator[tuple[str, Any]]:
    """Give what core, imported files and the program itself have registered, in this order."""
    yield from ((name, found(path)) for name, path in CORE_POLICIES.items())
    for table in (*(table for _, table in planning.files), registry.local):
        yield from table.items()


def _report_unknown(planning: Planning, kind: Kind, call: Call) -> None:
    known = {offer.name for offer in registry.offers(kind.hook)}
    if kind.base is not None:
        known.update(name for name, cls in _without_plugins(planning) if kind.has(cls))
    unusable = [
        f"{one.distribution} cannot be used: {one.reason}."
        for one in registry.plugins()
        if not one.usable
    ]
    brings = KNOWN_PROBES.get(call.part) if kind is PROBE else None
    if brings is not None and brings not in {one.distribution for one in registry.plugins()}:
        unusable.append(f"It comes with {brings}. {how_to_install(brings)}.")
    are = f"There are: {', '.join(sorted(known))}." if known else f"No plugin offers a {kind.noun}."
    planning.add(
        f"unknown_{kind.noun}",
        f"unknown {kind.noun} {call.name!r}",
        call,
        suggestion=nearest(call.part, sorted(known)),
        hint=" ".join([are, *unusable]),
    )


# Policies.


def plan_policies(planning: Planning) -> tuple[NamedPlan, NamedPlan] | None:
    """Plan the two policies of the node that was entered; None when one is wrong."""
    batch = _policy(planning, "batch_policy", BATCH_POLICY)
    dispatch = _policy(planning, "dispatch_policy", DISPATCH_POLICY)
    if batch is None or dispatch is None:
        return None
    if batch.cls is not dispatch.cls:
        return batch, dispatch
    found = planning.parameters.key("dispatch_policy")  # it is made once, with the args of either
    if found is not None and len(batch.args) and len(dispatch.args) and batch.args != dispatch.args:
        what = f"{dispatch.text!r} stands for both policies and is made once, with other args in batch_policy"
        hint = "Write its args at one of the two."
        planning.problems.add("policy", what, hint=hint, **found.place())
    one = batch if len(batch.args) else dispatch
    return one, one


def _policy(planning: Planning, key: str, kind: Kind) -> NamedPlan | None:
    """Plan a policy: what its options may be are keys of the node as well."""
    parameters = planning.parameters
    found, default = parameters.key(key), Written(NodeKeys.model_fields[key].default, Path())
    origins = {name: origin for name, origin in parameters.origins.items() if origin != "default"}
    given = {name: (getattr(parameters.keys, name), origin) for name, origin in origins.items()}
    if found is None:
        return _named(planning, kind, default, Source(f"{planning.node}.{key}"), given)
    return _named(planning, kind, found.written, found.source, given)


# Probes.


def plan_probes(planning: Planning, table: Mapping[str, Written]) -> tuple[NamedPlan, ...]:
    """Plan what ``[global] probes`` lists, whose keys were entered; what is wrong is left out."""
    written = table.get("probes")
    if written is None or written.value is None:
        return ()
    source = Source.of(written, "global.probes")
    value = [written.value] if isinstance(written.value, str) else written.value
    place = key_place(written.file, source.path, "probes", value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        hint = 'Write probes = ["Name"] or ["Name(a=1)"].'
        planning.problems.add("type", "probes is a list of texts", hint=hint, **place)
        return ()
    planned: dict[str, NamedPlan] = {}
    for text in value:
        found = _named(planning, PROBE, replace(written, value=text), source)
        if found is None:
            continue
        if found.text in planned:
            planning.problems.add("twice", f"the probe {found.text} is listed twice", **place)
        planned[found.text] = found
    return tuple(planned.values())
