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
from headrace._plan.scope import Layer, Scope
from headrace._problem import nearest
from headrace._registry.backends import found, is_policy, load
from headrace._registry.discovery import CORE_POLICIES
from headrace._registry.hooks import PROBE_METHODS, Offer, find_offer, offers, unusable_hooks
from headrace._registry.registry import registry
from headrace.errors import PluginError
from headrace.policies import BatchPolicy, DispatchPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._config.document import Written
    from headrace._plan.planning import Planning

    Files = Iterable[tuple[str, dict[str, type[Any]]]]


class _Named(NamedTuple):
    """What a key names."""

    kind: Kind
    call: Call
    scope: Scope
    cls: type[Any]
    offer: Offer | None


def _read(planning: Planning, kind: Kind, call: Call | None, layer: Layer) -> _Named | None:
    """Find the class that is named; report what is in the way."""
    if call is None:
        return None
    scope = Scope(layer)
    try:
        found = find_named(kind, call.name, planning.files)
    except PluginError as error:
        planning.add(error.code, error.what, call, scope, hint=error.hint)
        return None
    if found is None:
        if kind is PROBE or planning.all_names:
            _report_unknown(planning, kind, call, scope)
        return None
    why = kind.why_not(found[0], call.name, found[1])
    if why is not None:
        planning.add(kind.noun, why, call, scope)
        return None
    if call.phases:
        message = f"the {kind.noun} {call.name} takes nothing in [ ]"
        planning.add("arity", message, call, scope)
    return _Named(kind, call, scope, *found)


def _report_unknown(planning: Planning, kind: Kind, call: Call, scope: Scope) -> None:
    known = names_of(kind, planning.files)
    are = f"There are: {', '.join(known)}." if known else f"No plugin offers a {kind.noun}."
    planning.add(
        f"unknown_{kind.noun}",
        f"unknown {kind.noun} {call.name!r}",
        call,
        scope,
        suggestion=nearest(call.part, known),
        hint=" ".join([are, *unusable_hooks()]),
    )


def _options(
    planning: Planning, found: _Named, given: Mapping[str, tuple[Any, str]] | None = None
) -> Options | None:
    """Check the options of what is named; None when something is wrong."""
    options, _ = OptionsReader(
        found.call,
        getattr(found.cls, "Options", Options),
        found.scope,
        planning.parameters,
        planning.problems,
        "" if found.offer is None else found.offer.record.plugin,
    ).read(given)
    return options


# Policies.


def plan_policies(
    planning: Planning, origins: dict[str, str]
) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan the two policies of the node that was entered; None when one is wrong."""
    batch = _policy(planning, "batch_policy", BATCH_POLICY)
    dispatch = _policy(planning, "dispatch_policy", DISPATCH_POLICY)
    if batch is not None and dispatch is not None and batch.cls is dispatch.cls:
        one = _one_for_both(planning, batch, dispatch)
        plan = None if one is None else _planned(planning, one, origins)
        return None if plan is None else (plan, plan)
    plans = [found and _planned(planning, found, origins) for found in (batch, dispatch)]
    return None if plans[0] is None or plans[1] is None else (plans[0], plans[1])


def _policy(planning: Planning, key: str, kind: Kind) -> _Named | None:
    found = planning.parameters.key(key)
    if found is None:
        call: Call | None = Call(NodeKeys.model_fields[key].default)
        layer = Layer(f"{planning.node}.{key}")
    else:
        layer = found.layer
        call = planning.read(found.written, layer.path)
    named = _read(planning, kind, call, layer)
    planning.parameters.incomplete |= named is None
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
        dispatch.scope,
        hint="Write its args at one of the two.",
    )
    return None


def _planned(planning: Planning, found: _Named, origins: dict[str, str]) -> PolicyPlan | None:
    """Plan a policy: what its options may be are keys of the node as well."""
    keys = planning.keys or NodeKeys()
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
    layer = Layer.of(written, "global.probes")
    value = [written.value] if isinstance(written.value, str) else written.value
    place = key_place(written.file, layer.path, "probes", value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        hint = 'Write probes = ["Name"] or ["Name(a=1)"].'
        planning.problems.add("type", "probes is a list of texts", hint=hint, **place)
        return ()
    planned: dict[str, ProbePlan] = {}
    for text in value:
        call = planning.read(replace(written, value=text), layer.path)
        found = _read(planning, PROBE, call, layer)
        options = None if found is None else _options(planning, found)
        if found is None or found.offer is None or options is None:
            planning.parameters.incomplete = True
            continue
        name, record = text.strip(), found.offer.record
        if name in planned:
            planning.problems.add("twice", f"the probe {name} is listed twice", **place)
        given = options if hasattr(found.cls, "Options") else None
        planned[name] = ProbePlan(name, found.cls, given, record.distribution, record.version)
    return tuple(planned.values())


class Kind(NamedTuple):
    """What a key may name, as ``Name`` or ``Name(a=1)``.

    Attributes:
        noun: What it is called.
        hook: The hook through which plugins offer it.
        base: The class that it derives from; None for a probe, which has some of `PROBE_METHODS`.
    """

    noun: str
    hook: str
    base: type[Any] | None

    def why_not(self, cls: Any, name: str, offer: Offer | None) -> str | None:
        """Say why a class is none of this kind, None when it is."""
        if self.base is not None:
            good = isinstance(cls, type) and issubclass(cls, self.base)
            return None if good else f"{name!r} is no {self.base.__name__}"
        if isinstance(cls, type) and any(callable(getattr(cls, m, None)) for m in PROBE_METHODS):
            return None
        whose = f"{offer.path!r} of {offer.record.distribution}" if offer else repr(name)
        return f"{whose} is no probe: a class with {' or '.join(PROBE_METHODS)}"


BATCH_POLICY = Kind("policy", "headrace_batch_policies", BatchPolicy)
DISPATCH_POLICY = Kind("policy", "headrace_dispatch_policies", DispatchPolicy)
PROBE = Kind("probe", "headrace_probes", None)


def find_named(kind: Kind, name: str, files: Files = ()) -> tuple[Any, Offer | None] | None:
    """Find what a key names; None for an unknown name.

    Args:
        kind: What the key names. It need not be what is found: see `Kind.why_not`.
        name: As written, perhaps ``plugin:Name``.
        files: The files that the configuration imports, and what each has registered.

    Returns:
        What should be its class, and the plugin that offers it, None where none does.

    Raises:
        PluginError: Two plugins offer the name, or its class cannot be imported.
    """
    if kind.base is not None:
        core = name.removeprefix("headrace:")
        if core in CORE_POLICIES:
            return found(CORE_POLICIES[core]), None
        for table in (*(table for _, table in files), registry.local):
            if name in table:
                return table[name], None
    offer = find_offer(kind.hook, kind.noun, name)
    if offer is None:
        return None
    brings = offer.record.distribution
    return load(offer.path, brings, f"the {kind.noun} {offer.name!r} of {brings}"), offer


def names_of(kind: Kind, files: Files = ()) -> list[str]:
    """Give the names of all of one kind that can be known without an import."""
    names = {offer.name for offer in offers(kind.hook)}
    if kind.base is not None:
        names.update(n for n, path in CORE_POLICIES.items() if issubclass(found(path), kind.base))
        for table in (registry.local, *(table for _, table in files)):
            known = {name: cls for name, cls in table.items() if is_policy(cls)}
            names.update(name for name, cls in known.items() if issubclass(cls, kind.base))
    return sorted(names)
