"""What keys name as ``Name`` or ``Name(a=1)``: the policies of a node, the probes of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._config.nodekeys import NodeKeys
from headrace._config.problems import key_place
from headrace._expression import Call
from headrace._options import Options
from headrace._plan.element import PolicyPlan, ProbePlan
from headrace._plan.options import OptionsReader
from headrace._plan.scope import Layer, Scope
from headrace._problem import nearest
from headrace._registry.hooks import Offer, unusable_hooks
from headrace._registry.named import BATCH_POLICY, DISPATCH_POLICY, PROBE, find_named, names_of
from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._config.document import Written
    from headrace._plan.planning import Planning
    from headrace._registry.named import Kind


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
