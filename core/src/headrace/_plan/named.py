"""What keys name as ``Name`` or ``Name(a=1)``: the policies of a node, the probes of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._config.nodekeys import NodeKeys
from headrace._config.problems import key_place
from headrace._expression.tree import Call
from headrace._options import Options
from headrace._plan.element import PolicyPlan, ProbePlan
from headrace._plan.options import OptionsReader
from headrace._plan.scope import Source
from headrace._problem import nearest
from headrace._registry.discovery import CORE_POLICIES, PROBE_METHODS, found, load
from headrace._registry.registry import registry
from headrace.errors import PluginError
from headrace.policies import BatchPolicy, DispatchPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace._config.document import Written
    from headrace._plan.planning import Planning
    from headrace._registry.registry import Offer


class Kind(NamedTuple):
    """What a key may name, as ``Name`` or ``Name(a=1)``.

    Attributes:
        noun: What it is called.
        hook: The table of hooks in which plugins offer it.
        base: The class that it derives from; None for a probe, which has some of `PROBE_METHODS`.
    """

    noun: str
    hook: str
    base: type[Any] | None

    def has(self, cls: Any) -> bool:
        """Tell whether a class is of this kind."""
        if not isinstance(cls, type) or self.base is not None:
            return isinstance(cls, type) and issubclass(cls, self.base or cls)
        return any(callable(getattr(cls, method, None)) for method in PROBE_METHODS)


BATCH_POLICY = Kind("policy", "batch_policies", BatchPolicy)
DISPATCH_POLICY = Kind("policy", "dispatch_policies", DispatchPolicy)
PROBE = Kind("probe", "probes", None)


class _Named(NamedTuple):
    """What a key names."""

    call: Call
    cls: type[Any]
    offer: Offer | None


def _read(planning: Planning, kind: Kind, call: Call | None) -> _Named | None:
    """Find the class that is named; report what is in the way."""
    if call is None:
        return None
    try:
        cls, offer = _find(planning, kind, call.name)
    except PluginError as error:
        planning.add(error.code, error.what, call, hint=error.hint)
        return None
    if cls is None:
        if kind is PROBE or planning.all_names:
            _report_unknown(planning, kind, call)
        return None
    if not kind.has(cls):
        what = f"{call.name!r} is no {kind.base.__name__}" if kind.base else ""
        if offer is not None and not what:
            methods = " or ".join(PROBE_METHODS)
            whose = f"{offer.path!r} of {offer.by.distribution}"
            what = f"{whose} is no probe: a class with {methods}"
        planning.add(kind.noun, what, call)
        return None
    if call.phases:
        message = f"the {kind.noun} {call.name} takes nothing in [ ]"
        planning.add("arity", message, call)
    return _Named(call, cls, offer)


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
    are = f"There are: {', '.join(sorted(known))}." if known else f"No plugin offers a {kind.noun}."
    planning.add(
        f"unknown_{kind.noun}",
        f"unknown {kind.noun} {call.name!r}",
        call,
        suggestion=nearest(call.part, sorted(known)),
        hint=" ".join([are, *unusable]),
    )


def _options(
    planning: Planning, found: _Named, given: Mapping[str, tuple[Any, str]] | None = None
) -> Options | None:
    """Check the options of what is named; None when something is wrong."""
    cls = getattr(found.cls, "Options", Options)
    plugin = "" if found.offer is None else found.offer.by.plugin
    return OptionsReader(found.call, cls, planning, plugin).read(given)[0]


# Policies.


def plan_policies(planning: Planning) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan the two policies of the node that was entered; None when one is wrong."""
    batch = _policy(planning, "batch_policy", BATCH_POLICY)
    dispatch = _policy(planning, "dispatch_policy", DISPATCH_POLICY)
    if batch is not None and dispatch is not None and batch.cls is dispatch.cls:
        batch = dispatch = _one_for_both(planning, batch, dispatch)
    first = batch and _planned(planning, batch)
    second = first if batch is dispatch else dispatch and _planned(planning, dispatch)
    return (first, second) if first is not None and second is not None else None


def _policy(planning: Planning, key: str, kind: Kind) -> _Named | None:
    found = planning.parameters.key(key)
    if found is None:
        source = Source(f"{planning.node}.{key}")
        call: Call | None = Call(NodeKeys.model_fields[key].default, source=source)
    else:
        call = planning.read(found.written, found.source)
    named = _read(planning, kind, call)
    planning.parameters.unresolved += named is None
    return named


def _one_for_both(planning: Planning, batch: _Named, dispatch: _Named) -> _Named | None:
    """Give which key has the args of a class that stands for both, and is made once."""
    if not len(dispatch.call.args) or batch.call.args == dispatch.call.args:
        return batch
    if not len(batch.call.args):
        return dispatch
    planning.add(
        "policy",
        f"{dispatch.call.name!r} stands for both policies and is made once, with other args in "
        "batch_policy",
        dispatch.call,
        hint="Write its args at one of the two.",
    )
    return None


def _planned(planning: Planning, found: _Named) -> PolicyPlan | None:
    """Plan a policy: what its options may be are keys of the node as well."""
    origins, keys = planning.parameters.origins, planning.parameters.keys
    stated = {
        name: (getattr(keys, name), origins[name])
        for name in NodeKeys.model_fields
        if origins.get(name, "default") != "default"
    }
    options = _options(planning, found, stated)
    return None if options is None else PolicyPlan(found.cls, options)


# Probes.


def plan_probes(planning: Planning, table: Mapping[str, Written]) -> tuple[ProbePlan, ...]:
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
    planned: dict[str, ProbePlan] = {}
    for text in value:
        found = _read(planning, PROBE, planning.read(replace(written, value=text), source))
        options = None if found is None else _options(planning, found)
        if found is None or found.offer is None or options is None:
            planning.parameters.unresolved += 1
            continue
        name, record = text.strip(), found.offer.by
        if name in planned:
            planning.problems.add("twice", f"the probe {name} is listed twice", **place)
        given = options if hasattr(found.cls, "Options") else None
        planned[name] = ProbePlan(name, found.cls, given, record.distribution, record.version)
    return tuple(planned.values())
