"""From the plan of a node to what its scheduler needs: policies, limits, instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace._build.standing import InThread
from headrace._plan.ranges import narrowed
from headrace._scheduling.instance import Instance, Limits
from headrace.errors import HeadraceError, SetupError
from headrace.policies import BestFit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._plan.element import NodePlan, PolicyPlan


FRONT_WIDTH = 256
"""How many requests may be inside a front of the pipeline's own at a time."""


@dataclass(frozen=True)
class PolicyFactory:
    """Makes a policy of a node."""

    plan: PolicyPlan
    node: str

    def __call__(self) -> Any:
        """Make it.

        Raises:
            SetupError: Its class raised.
        """
        name = self.plan.cls.__name__
        try:
            return self.plan.cls(self.plan.options)
        except HeadraceError:
            raise
        except Exception as error:
            what = f"the policy {name} could not be made: {type(error).__name__}: {error}"
            raise SetupError(what, node=self.node) from error


def limits_of(node: NodePlan) -> Limits:
    """Give the queue keys of a node; args of its batch policy win over them."""
    keys, stated = node.keys, node.batch_policy.options
    return Limits(
        queue_size=keys.queue_size,
        queue_full=keys.queue_full,
        timeout_ms=keys.timeout_ms,
        batching_timeout_ms=getattr(stated, "batching_timeout", keys.batching_timeout),
        batch_sizes=getattr(stated, "batch_sizes", keys.batch_sizes) or (),
        pad=getattr(stated, "pad", keys.pad),
        shortcut=_may_skip(node.batch_policy.cls, node.dispatch_policy.cls),
    )


def _may_skip(batch: type[Any], dispatch: type[Any]) -> bool:
    """Tell whether the policies know nothing better than sending at once where nothing waits.

    What a class says of its ``cut`` does not hold for that of a subclass which says nothing.
    """
    if dispatch.choose is not BestFit.choose:
        return False
    says = next(one for one in batch.__mro__ if "sends_when_idle" in vars(one))
    cuts = next(one for one in batch.__mro__ if "cut" in vars(one))
    return "sends_when_idle" in vars(batch) or issubclass(says, cuts)


def front_limits(entries: Sequence[NodeKeys]) -> Limits:
    """Give the queue keys of a front of the pipeline.

    Args:
        entries: The keys of the nodes at which requests enter behind it. Each holds its own bound;
            a request that finds the front taken meets the widest of them.
    """
    rules = {keys.queue_full for keys in entries}
    return Limits(
        queue_size=max(keys.queue_size for keys in entries),
        queue_full=rules.pop() if len(rules) == 1 else "wait",
    )


def device_of(keys: NodeKeys | None, index: int) -> str | None:
    """Give the device of one instance: a list is spread over them."""
    if keys is None or keys.device is None or isinstance(keys.device, str):
        return None if keys is None else keys.device  # type: ignore[return-value]
    return keys.device[index % len(keys.device)]


def instances_of(node: NodePlan, backends: Sequence[Backend]) -> list[Instance]:
    """Make the instances of a node, whose range narrows those of the backends.

    Raises:
        SetupError: The ranges that ``init`` has set leave no batch.
    """
    return [_instance(index, backend, node.keys) for index, backend in enumerate(backends)]


def _instance(index: int, backend: Backend, keys: NodeKeys) -> Instance:
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
    backend._whole = True
    return Instance(
        index, backend, least=low, most=high, device=device_of(keys, index), thread=thread
    )
