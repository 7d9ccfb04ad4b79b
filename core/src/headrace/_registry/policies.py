"""Policies by name: the defaults, registered ones, and those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._registry.hooks import call_hook, load
from headrace._registry.registry import registry
from headrace.errors import SetupError
from headrace.policies import BatchPolicy, BestFit, DispatchPolicy, Greedy

if TYPE_CHECKING:
    from headrace._config.nodekeys import NodeKeys

__all__ = ["make_policies"]


def make_policies(keys: NodeKeys | None, node: str) -> tuple[BatchPolicy, DispatchPolicy]:
    """Make the two policies of a node; a class named for both keys is made once."""
    if keys is None:
        return Greedy(), BestFit()
    options = {
        "batching_timeout": keys.batching_timeout,
        "batch_sizes": keys.batch_sizes,
        "pad": keys.pad,
    }
    batch = _make(keys.batch_policy, "headrace_batch_policies", BatchPolicy, options, node)
    if keys.dispatch_policy == keys.batch_policy and isinstance(batch, DispatchPolicy):
        return batch, batch
    dispatch = _make(keys.dispatch_policy, "headrace_dispatch_policies", DispatchPolicy, {}, node)
    return batch, dispatch


def _make(name: str, hook: str, kind: type[Any], options: dict[str, Any], node: str) -> Any:
    built_in: dict[str, type[Any]] = {"greedy": Greedy, "best_fit": BestFit}
    cls = built_in.get(name) or registry.policies.get(name)
    if cls is None:
        for record, answer in call_hook(registry.plugins(), hook):
            if name in answer:
                cls = load(answer[name], record.distribution)
    if cls is None or not issubclass(cls, kind):
        what = "no policy" if cls is None else f"no {kind.__name__}"
        raise SetupError(f"{name!r} is {what}", node=node)
    fitting = {k: v for k, v in options.items() if k in cls.Options.model_fields}
    return cls(cls.Options(**fitting))
