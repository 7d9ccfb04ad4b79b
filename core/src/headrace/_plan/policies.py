"""The policies of a node: ``batch_policy = "Name(a=1)"``, checked like a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._config.nodekeys import NodeKeys
from headrace._expression import Call
from headrace._plan.element import PolicyPlan
from headrace._plan.options import OptionsReader
from headrace._plan.scope import Layer, Scope
from headrace._registry.policies import find_policy, policy_names
from headrace._registry.registry import nearest, registry
from headrace.errors import PluginError
from headrace.policies import BatchPolicy, DispatchPolicy

if TYPE_CHECKING:
    from headrace._plan.resolver import Resolver

__all__ = ["plan_policies"]


class _Named(NamedTuple):
    """What a key names."""

    call: Call
    scope: Scope
    cls: type[Any]


def plan_policies(
    resolver: Resolver, origins: dict[str, str]
) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan the two policies of the node that the resolver has entered; None when one is wrong."""
    batch = _named(resolver, "batch_policy", BatchPolicy)
    dispatch = _named(resolver, "dispatch_policy", DispatchPolicy)
    if batch is not None and dispatch is not None and batch.cls is dispatch.cls:
        return _one_for_both(resolver, batch, dispatch, origins)
    plans = [
        None if found is None else _plan(resolver, found, origins) for found in (batch, dispatch)
    ]
    return None if plans[0] is None or plans[1] is None else (plans[0], plans[1])


def _one_for_both(
    resolver: Resolver, batch: _Named, dispatch: _Named, origins: dict[str, str]
) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan a class that stands for both keys and is made once: its args stand at one of them."""
    stated = [found for found in (batch, dispatch) if len(found.call.args)]
    if len(stated) == 2 and batch.call.args != dispatch.call.args:
        resolver.add(
            "policy",
            f"{dispatch.call.name!r} stands for both policies and is made once, with other args in "
            "batch_policy",
            dispatch.call,
            dispatch.scope,
            hint="Write its args at one of the two.",
        )
        return None
    for found in (batch, dispatch):
        _check_bracket(resolver, found)
    plan = _plan(resolver, stated[0] if stated else batch, origins)
    return None if plan is None else (plan, plan)


def _named(resolver: Resolver, key: str, kind: type[Any]) -> _Named | None:
    """Read a key and find the class that it names; report what is in the way."""
    found = resolver.parameters.key(key)
    if found is None:
        call: Call | None = Call(NodeKeys.model_fields[key].default)
        layer = Layer(f"{resolver.node}.{key}")
    else:
        _, written, path = found
        layer = Layer(path, written.file, str(written.base), written=written)
        call = resolver.pipeline.read(written, path, resolver.known_node)
    if call is None:
        return None
    scope = Scope(layer)
    cls = _class(resolver, call, kind, scope)
    if cls is None:
        resolver.parameters.incomplete = True
        return None
    return _Named(call, scope, cls)


def _check_bracket(resolver: Resolver, found: _Named) -> None:
    if found.call.phases:
        message = f"the policy {found.call.name} takes nothing in [ ]"
        resolver.add("arity", message, found.call, found.scope)


def _plan(resolver: Resolver, found: _Named, origins: dict[str, str]) -> PolicyPlan | None:
    _check_bracket(resolver, found)
    call = found.call
    reader = OptionsReader(
        call,
        found.cls.Options,
        found.scope,
        resolver.parameters,
        resolver.problems,
        tuple(dict.fromkeys((call.name, call.part))),
    )
    keys = resolver.keys or NodeKeys()
    stated = [name for name in NodeKeys.model_fields if origins.get(name, "default") != "default"]
    options, _ = reader.read({name: (getattr(keys, name), origins[name]) for name in stated})
    return None if options is None or call.phases else PolicyPlan(found.cls, options)


def _class(resolver: Resolver, call: Call, kind: type[Any], scope: Scope) -> type[Any] | None:
    """Give the class behind the name of a policy; report what is in the way."""
    try:
        cls = find_policy(call.name, kind, resolver.files)
    except PluginError as error:
        resolver.add(error.code, error.what, call, scope, hint=error.hint)
        return None
    if cls is None:
        if not resolver.all_names:
            return None
        known = policy_names(kind, resolver.files)
        resolver.add(
            "unknown_policy",
            f"unknown policy {call.name!r}",
            call,
            scope,
            suggestion=nearest(call.part, known),
            hint=" ".join([f"There are: {', '.join(known)}.", *registry.unusable_hooks()]),
        )
    elif not issubclass(cls, kind):
        resolver.add("policy", f"{call.name!r} is no {kind.__name__}", call, scope)
        return None
    return cls
