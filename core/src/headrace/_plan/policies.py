"""The policies of a node: ``batch_policy = "Name(a=1)"``, checked like a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def plan_policies(
    resolver: Resolver, origins: dict[str, str]
) -> tuple[PolicyPlan, PolicyPlan] | None:
    """Plan the two policies of the node that the resolver has entered; None when one is wrong."""
    batch = _plan(resolver, "batch_policy", BatchPolicy, origins)
    dispatch = _plan(resolver, "dispatch_policy", DispatchPolicy, origins)
    return None if batch is None or dispatch is None else (batch, dispatch)


def _plan(
    resolver: Resolver, key: str, kind: type[Any], origins: dict[str, str]
) -> PolicyPlan | None:
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
    if call.phases:
        resolver.add("arity", f"the policy {call.name} takes nothing in [ ]", call, scope)
    reader = OptionsReader(
        call,
        cls.Options,
        scope,
        resolver.parameters,
        resolver.problems,
        resolver.moved,
        tuple(dict.fromkeys((call.name, call.part))),
    )
    keys = resolver.keys or NodeKeys()
    stated = [name for name in NodeKeys.model_fields if origins.get(name, "default") != "default"]
    options, _ = reader.read({name: (getattr(keys, name), origins[name]) for name in stated})
    return None if options is None or call.phases else PolicyPlan(cls, options)


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
