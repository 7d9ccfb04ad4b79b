"""The words of init and node_entrypoint: Register, InstancesRegister, List, Batching, InstanceDispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from headrace._build.callees import NotCallable
from headrace._options import Options as _Options
from headrace._plan.element import Element, Named, Range
from headrace._plan.word import Use, Word
from headrace.errors import ContractError
from headrace.words.composing import Wiring

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._plan.declared import Ranged
    from headrace.keys import Request

__all__ = ["Batching", "InstanceDispatcher", "InstancesRegister", "List", "Register"]


class _Registering(Wiring):
    """Base of the words that register names for the whole pipeline."""

    _registers_names = True
    _reaches_out = True


class _Building(_Registering):
    """Base of the words that only build instances: the instances are called, the word itself is not."""

    reads = ()
    writes = ()
    not_callable = "only builds others"
    _not_callable_hint = None


class Register(_Registering):
    """Register an instance for the whole pipeline, as ``node.{node_name}`` or a name of its own.

    Belongs in ``init`` or ``node_entrypoint``. The name stands in ``( )`` only: a key ``name`` of the node is
    meant for its backends.

    Reads:
        What the instance reads.
    Writes:
        What the instance writes.
    Batch:
        The range of the instance.

    Raises:
        What the instance raises.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            init = "List[InstancesRegister[Upper],Register[DI[Batching,InstanceDispatcher]]]"
    """

    class Options(_Options):
        """Options of Register."""

        positional = ("name",)
        name: str | None = Field(
            None,
            pattern="^[A-Za-z_][A-Za-z0-9_.:/-]*$",
            description="The name to register under; default: node.{node_name}.",
        )

    takes = 1

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the instance and let the pipeline know its name."""
        allowed = _may_stand(use)
        child = use.plan(*use.children, gets_name=True)
        _register(use, _name_of(use.element, use.planning.node), child)
        return use.holding([child]) if allowed else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the instance and register it."""
        built = building.build_shared(element.children[0], at)
        return building.register(_name_of(element, building.name), built)


class InstancesRegister(_Building):
    """Build ``instance_num`` copies and register them as ``{node_name}.0``, ``{node_name}.1``, ...

    Belongs in ``init`` or ``node_entrypoint``. It cannot be called.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        None: it cannot be called.

    Raises:
        ContractError: It was called.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            instance_num = 2
            init = "List[InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]]]"
    """

    takes = 1

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan one instance, and let the pipeline know the names of all copies."""
        allowed = _may_stand(use)
        child = use.plan(*use.children, may_register=False)
        keys = use.planning.parameters.keys
        for index in range(keys.instance_num if keys is not None else 1):
            _register(use, f"{use.planning.node}.{index}", child, index)
        planned = use.holding([child]) if allowed else None
        return planned if child is not None and use.may_call(child) else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the instances, each with stores of its own, and register them."""
        (child,) = element.children
        building.instances(child, at)
        return NotCallable(element.name)


class List(_Building):
    """Build several backends, in order. It cannot be called.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        None: it cannot be called.

    Raises:
        ContractError: It was called.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            node_entrypoint = "List[InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]]]"
    """

    takes = (1, None)

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Return any range: it is never called."""
        return 1, None

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the children, which need not be callable."""
        return use.holding([use.plan(child) for child in use.children])


def _name_of(element: Element, node: str) -> str:
    """Return the name under which a ``Register`` registers."""
    wanted = getattr(element.options, "name", None)
    return f"node.{node}" if wanted is None else str(wanted)


def _may_stand(use: Use, code: str = "place") -> bool:
    if not use.scope.may_register:
        where = "belongs in init or node_entrypoint, not in what is built per instance"
        use.add(code, f"{use.element.name} {where}")
    return use.scope.may_register


def _register(use: Use, name: str, child: Element | None, index: int | None = None) -> None:
    if use.scope.may_register and not use.scope.lenient:
        named = Named(name, child, use.planning.node, index)
        use.planning.register(named, use.element.call)


class _Scheduling(Word):
    """Base of the words that end in the queue of a node."""

    _wrong_unused = "ends in no Batching[InstanceDispatcher] and no Batching[X]"


class Batching(_Scheduling):
    """Gather the requests of all callers into batches for the instances in its bracket.

    ``Batching[InstanceDispatcher]`` gathers for the instances of the node, ``Batching[X]`` for one
    instance. The keys of the node say when a batch is cut: ``max``, ``batching_timeout``,
    ``batch_sizes``, ``batch_policy``.

    Reads:
        What the instances read.
    Writes:
        What the instances write.
    Batch:
        1 or more.

    Raises:
        What the instances raise, and OverloadedError, DeadlineExceededError, BatchRangeError.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            node_entrypoint = "Register[Batching[Reflect[backend]]]"
    """

    _gathers = True
    _reaches_out = True

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check that Batching stands in ``init`` or ``node_entrypoint``, after InstancesRegister."""
        element = use.element
        if use.scope.lenient or (element.named is not None and not element.children):
            return
        if not _may_stand(use, "scheduling"):
            return
        instances = f"{use.planning.node}.0" in use.planning.registered
        for child in element.children:
            if child.cls is InstanceDispatcher and not instances:
                message = f"{child.name} finds no instances: InstancesRegister[...] comes before it"
                use.add("scheduling", message, child.call)

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Put the queue of the node before its instances, or before the one instance in the bracket."""
        if not element.children:
            return NotCallable(element.name)
        (child,) = element.children
        if child.cls is InstanceDispatcher:
            names = (f"{building.name}.{i}" for i in range(building.keys.instance_num))
            return building.schedule([building.build.registered[name] for name in names])
        return building.schedule([building.build_shared(child, at)])

    def forward_with_dep(self, batch: list[Request], dependency: Backend) -> None:
        """Refuse: in a node the scheduler is called in place of this word."""
        raise ContractError("Batching was called outside of a node")


class InstanceDispatcher(_Scheduling):
    """Choose the instance of the node that takes a batch; stands in ``Batching[...]`` only.

    The key ``dispatch_policy`` of the node says how.

    Reads:
        What the instances read.
    Writes:
        What the instances write.
    Batch:
        From the least min to the greatest max of the instances.

    Raises:
        What the instances raise.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            instance_num = 2
            node_entrypoint = "List[InstancesRegister[Reflect[backend]],Register[Batching[InstanceDispatcher]]]"
    """

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check that InstanceDispatcher stands in ``Batching[...]``."""
        parent = use.scope.parent
        if not (use.scope.gets_name or (parent is not None and issubclass(parent, Batching))):
            use.add("scheduling", "InstanceDispatcher stands in Batching[InstanceDispatcher] only")

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build nothing: the word only says for which instances the queue is."""
        return NotCallable(element.name)
