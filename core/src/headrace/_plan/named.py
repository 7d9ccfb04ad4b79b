"""What keys name as ``Name`` or ``Name(a=1)``: the policies of a node, the probes of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._config.nodekeys import NodeKeys
from headrace._config.problems import key_place
from headrace._expression import Call
from headrace._options import Options
from headrace._plan.element import PolicyPlan, ProbePlan
from headrace._plan.layer import Layer
from headrace._plan.options import OptionsReader
from headrace._plan.scope import Scope
from headrace._registry.named import BATCH_POLICY, DISPATCH_POLICY, PROBE, find_named, names_of
from headrace._registry.registry import nearest, registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._config.document import Written
    from headrace._plan.resolver import Resolver
    from headrace._registry.hooks import Offer
    from headrace._registry.named import Kind

__all__ = ["plan_policies", "plan_probes"]


class _Named(NamedTuple):
    """What a key names."""

    kind: Kind
    call: Call
    scope: Scope
    cls: type[Any]
    offer: Offer | None


def _read(resolver: Resolver, kind: Kind, call: Call | None, layer: Layer) -> _Named | None:
    """Find the class that is named; report what is in the way."""
    if call is None:
        return None
    scope = Scope(layer)
    try:
        found = find_named(kind, call.name, resolver.files)
    except PluginError as error:
        resolver.add(error.code, error.what, call, scope, hint=error.hint)
        return None
    if found is None:
        if kind is PROBE or resolver.all_names:
            _report_unknown(resolver, kind, call, scope)
        return None
    why = kind.why_not(found[0], call.name, found[1])
    if why is not None:
        resolver.add(kind.noun, why, call, scope)
        return None
    if call.phases:
        message = f"the {kind.noun} {call.name} takes nothing in [ ]"
        resolver.add("arity", message, call, scope)
    return _Named(kind, call, scope, *found)


def _report_unknown(resolver: Resolver, kind: Kind, call: Call, scope: Scope) -> None:
    known = names_of(kind, resolver.files)
    are = f"There are: {', '.join(known)}." if known else f"No plugin offers a {kind.noun}."
    resolver.add(
        f"unknown_{kind.noun}",
        f"unknown {kind.noun} {call.name!r}",
        call,
        scope,
        suggestion=nearest(call.part, known),
        hint=" ".join([are, *registry.unusable_hooks()]),
    )


def _options(
    resolver: Resolver, found: _Named, given: Mapping[str, tuple[Any, str]] | None = None
) -> Options | None:
    """Check the options of what is named; None when something is wrong."""
    options, _ = OptionsReader(
        found.call,
        getattr(found.cls, "Options", Options),
        found.scope,
        resolver.parameters,
        resolver.problems,
        "" if found.offer is None else found.offer.record.plugin,
    ).read(given)
    return None if found.call.phases else options


# Policies.


def plan_policies(
    resolver: Resolver, origins: dict[str, str]
) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan the two policies of the node that the resolver has entered; None when one is wrong."""
    batch = _policy(resolver, "batch_policy", BATCH_POLICY)
    dispatch = _policy(resolver, "dispatch_policy", DISPATCH_POLICY)
    if batch is not None and dispatch is not None and batch.cls is dispatch.cls:
        one = _one_for_both(resolver, batch, dispatch)
        plan = None if one is None else _planned(resolver, one, origins)
        return None if plan is None else (plan, plan)
    plans = [found and _planned(resolver, found, origins) for found in (batch, dispatch)]
    return None if plans[0] is None or plans[1] is None else (plans[0], plans[1])


def _policy(resolver: Resolver, key: str, kind: Kind) -> _Named | None:
    found = resolver.parameters.key(key)
    if found is None:
        call: Call | None = Call(NodeKeys.model_fields[key].default)
        layer = Layer(f"{resolver.node}.{key}")
    else:
        layer = found.layer
        call = resolver.pipeline.read(found.written, layer.path, resolver.known_node)
    named = _read(resolver, kind, call, layer)
    resolver.parameters.incomplete |= named is None
    return named


def _one_for_both(resolver: Resolver, batch: _Named, dispatch: _Named) -> _Named | None:
    """Give which key has the args of a class that stands for both, and is made once."""
    if not len(dispatch.call.args) or batch.call.args == dispatch.call.args:
        return batch
    if not len(batch.call.args):
        return dispatch
    resolver.add(
        "policy",
        f"{dispatch.call.name!r} stands for both policies and is made once, with other args in "
        "batch_policy",
        dispatch.call,
        dispatch.scope,
        hint="Write its args at one of the two.",
    )
    return None


def _planned(resolver: Resolver, found: _Named, origins: dict[str, str]) -> PolicyPlan | None:
    """Plan a policy: what its options may be are keys of the node as well."""
    keys = resolver.keys or NodeKeys()
    stated = {
        name: (getattr(keys, name), origins[name])
        for name in NodeKeys.model_fields
        if origins.get(name, "default") != "default"
    }
    options = _options(resolver, found, stated)
    return None if options is None else PolicyPlan(found.cls, options)


# Probes.


def plan_probes(resolver: Resolver, table: Mapping[str, Written]) -> tuple[ProbePlan, ...]:
    """Plan what ``[global] probes`` lists, in which the resolver is; what is wrong is left out."""
    written = table.get("probes")
    if written is None or written.value is None:
        return ()
    layer = Layer.of(written, "global.probes")
    value = [written.value] if isinstance(written.value, str) else written.value
    place = key_place(written.file, layer.path, "probes", value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        hint = 'Write probes = ["Name"] or ["Name(a=1)"].'
        resolver.problems.add("type", "probes is a list of texts", hint=hint, **place)
        return ()
    planned: dict[str, ProbePlan] = {}
    for text in value:
        call = resolver.pipeline.read(replace(written, value=text), layer.path, None)
        found = _read(resolver, PROBE, call, layer)
        options = None if found is None else _options(resolver, found)
        if found is None or found.offer is None or options is None:
            resolver.parameters.incomplete = True
            continue
        name, record = text.strip(), found.offer.record
        if name in planned:
            resolver.problems.add("twice", f"the probe {name} is listed twice", **place)
        given = options if hasattr(found.cls, "Options") else None
        planned[name] = ProbePlan(name, found.cls, given, record.distribution, record.version)
    return tuple(planned.values())
