"""From backends and the keys of a node to instances and a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._build.door import InThread
from headrace._plan.ranges import narrowed
from headrace._scheduling.instance import Instance
from headrace._scheduling.probing import ProbedScheduler
from headrace._scheduling.scheduler import Limits, Scheduler
from headrace.errors import HeadraceError, SetupError
from headrace.policies import BestFit, Greedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._plan.element import NodePlan, PolicyPlan
    from headrace._scheduling.probing import Probes
    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["device_of", "front_scheduler", "node_scheduler"]

FRONT_WIDTH = 256
"""How many requests may be inside a front of the pipeline's own at a time."""


def node_scheduler(
    node: NodePlan, backends: list[Backend], *, shortcut: bool, probes: Probes | None = None
) -> Scheduler:
    """Make the scheduler of a node over its instances.

    Raises:
        SetupError: The ranges that ``init`` has set leave no batch, or a hole.
    """
    keys = node.keys
    instances = [_instance(index, backend, keys) for index, backend in enumerate(backends)]
    _check_coverage(instances, node.name)
    batch = _policy(node.batch_policy, node.name)
    if node.dispatch_policy.cls is node.batch_policy.cls:
        dispatch = batch
    else:
        dispatch = _policy(node.dispatch_policy, node.name)
    stated = node.batch_policy.options  # args of the policy win over the keys of the node
    limits = Limits(
        queue_size=keys.queue_size,
        queue_full=keys.queue_full,
        timeout_ms=keys.timeout_ms,
        batching_timeout_ms=getattr(stated, "batching_timeout", keys.batching_timeout),
        batch_sizes=getattr(stated, "batch_sizes", keys.batch_sizes) or (),
        pad=getattr(stated, "pad", keys.pad),
        shortcut=shortcut and _may_skip(batch, dispatch),
    )
    if probes is not None:
        return ProbedScheduler(node.name, instances, batch, dispatch, limits, probes=probes)
    return Scheduler(node.name, instances, batch, dispatch, limits)


def _may_skip(batch: BatchPolicy, dispatch: DispatchPolicy) -> bool:
    """Tell whether the policies know nothing better than sending at once where nothing waits.

    What a class says of its ``cut`` does not hold for that of a subclass which says nothing.
    """
    if type(dispatch).choose is not BestFit.choose:
        return False
    classes = type(batch).__mro__
    says = next(one for one in classes if "sends_when_idle" in vars(one))
    cuts = next(one for one in classes if "cut" in vars(one))
    return "sends_when_idle" in vars(batch) or issubclass(says, cuts)


def _policy(plan: PolicyPlan, node: str) -> Any:
    try:
        return plan.cls(plan.options)
    except HeadraceError:
        raise
    except Exception as error:
        what = f"the policy {plan.cls.__name__} could not be made: {type(error).__name__}: {error}"
        raise SetupError(what, node=node) from error


def front_scheduler(front: Backend, entries: Sequence[NodeKeys], *, shortcut: bool) -> Scheduler:
    """Make the scheduler of a front of the pipeline, which calls nodes and does not batch.

    Args:
        front: What stands before the nodes.
        entries: The keys of the nodes at which requests enter behind it. Each holds its own bound;
            who finds the front taken meets the widest of them.
        shortcut: Whether a caller that finds the front idle may skip its queue.
    """
    instances = [Instance(i, front, least=1, most=1) for i in range(FRONT_WIDTH)]
    rules = {keys.queue_full for keys in entries}
    limits = Limits(
        queue_size=max(keys.queue_size for keys in entries),
        queue_full=rules.pop() if len(rules) == 1 else "wait",
        shortcut=shortcut,
    )
    return Scheduler("entrypoint", instances, Greedy(), BestFit(), limits)


def device_of(keys: NodeKeys | None, index: int) -> str | None:
    """Give the device of one instance: a list is spread over them."""
    if keys is None or keys.device is None or isinstance(keys.device, str):
        return None if keys is None else keys.device  # type: ignore[return-value]
    return keys.device[index % len(keys.device)]


def _instance(index: int, backend: Backend, keys: NodeKeys) -> Instance:
    """Make an instance of a node; the node's range narrows that of the backend."""
    low, high = narrowed((backend.min, backend.max), keys)
    if high is not None and low > high:
        raise SetupError(
            f"no batch fits: {backend._label()} takes {backend.min} to "
            f"{backend.max or 'any number'}, the node leaves {low} to {high}",
            node=backend._node,
            backend=backend._label(),
            instance=index,
            hint="Change the node's min and max.",
        )
    thread = None
    if isinstance(backend, InThread):
        thread, backend = backend.thread, backend.child
    return Instance(
        index, backend, least=low, most=high, device=device_of(keys, index), thread=thread
    )


def _check_coverage(instances: list[Instance], node: str) -> None:
    """Refuse instances whose ranges leave a hole between them."""
    if not instances:
        raise SetupError("the node has no instances", node=node)
    spans = sorted((i.min, i.max if i.max is not None else 2**63) for i in instances)
    reached = spans[0][1]
    for low, high in spans[1:]:
        if low > reached + 1:
            raise SetupError(
                f"no instance takes a weight of {_span(reached + 1, low - 1)}",
                node=node,
                hint="Let the ranges of the instances touch.",
            )
        reached = max(reached, high)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
