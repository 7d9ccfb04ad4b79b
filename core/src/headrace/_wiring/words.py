"""The words of wiring.

`IoC`, `DI` (also `Aspect`) and `With` make instances and what these depend on. `Proxy` and `InstanceFromParam` stand for an
instance. `Register`, `InstancesRegister`, `List`, `Batching` and `InstanceDispatcher` belong in `init` and `node_entrypoint`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from headrace._build.callees import NodeCall
from headrace._contract.options import Options as _Options
from headrace._contract.shared import Shared
from headrace._plan.declared import range_of
from headrace._plan.element import Element, Named, Range
from headrace._plan.word import Use, Word, word_of
from headrace._portable import nearest
from headrace._wiring.building import NotCallable, build_shared
from headrace.errors import ContractError, SetupError
from headrace.words.naming import Forward, Wiring, parameter, stand_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._contract.backend import Backend
    from headrace._plan.declared import Ranged
    from headrace._plan.planning import Planning
    from headrace.keys import Request

__all__ = [
    "DI",
    "Aspect",
    "Batching",
    "InstanceDispatcher",
    "InstanceFromParam",
    "InstancesRegister",
    "IoC",
    "List",
    "Proxy",
    "Register",
    "With",
]


class IoC(Wiring):
    """Build the first phase in order, then the expression after ``;``, in which its names mean the instances just built.

    ``IoC[A,B;S[A,B,A]]`` holds one A and one B per copy. In the first phase an element may name the
    earlier ones. The names have this meaning inside this ``IoC`` only.

    Reads:
        The inputs of the expression after ``;``.
    Writes:
        Its outputs.
    Batch:
        Its range.

    Raises:
        Its errors.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "IoC[Upper,Reverse;S[Upper,Reverse]]"
    """

    takes = (2, None)
    phases = 2
    combine_ranges = range_of(-1)

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the first phase, each with the names before it in scope, then the expression after ``;``."""
        first, last = use.phases
        if len(last) > 1:
            message, hint = "IoC has one expression after ';'", "S[...] puts several together."
            use.add("arity", message, last[1], hint=hint)
        frame: dict[str, Named] = {}
        frames = (*use.scope.frames, frame)
        named: list[Element | None] = []
        for child in first:
            if child.name in frame:
                use.add("twice", f"{child.name!r} stands twice before ';'", child)
            one = use.plan(child, frames=frames, gets_name=True)
            named.append(one)
            if one is None or one.named or not word_of(one.cls)._registers_names:
                frame[child.name] = Named(child.name, one)
        body, *_ = [use.plan(child, frames=frames) for child in last]
        planned = use.holding(named, [body])
        if body is None or planned is None:
            return None
        check_used(use.planning, frame.values())
        return planned if use.may_call(body) else None

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the first phase, then the expression after it, which is called in place of the word."""
        scope = Shared(at.scope)
        parts = at.parts.add_inner(scope, at.thread)
        inner = replace(at, local=dict(at.local), scope=scope, parts=parts)
        of_instance = at.index is not None
        build = building.element if of_instance else partial(build_shared, building)
        for child in element.phases[0]:
            built = build(child, inner)
            # What is built outside of any instance may be called by several instances at a time, so it is
            # guarded. In the entrypoint of the pipeline `ElementBuilder.backend` has guarded it already.
            bare = child.named is None and child.is_bare
            if not of_instance and building.node is not None and not bare:
                built = building.guard(built)
            inner.local[child] = built
        return building.element(element.phases[1][0], inner)


class DI(Word):
    """Let each element depend on the next: ``DI[a,b,c]`` is ``a[b[c]]``.

    Each element may be the name of an instance. Each but the last has the next one as its only child.

    Reads:
        What the first reads.
    Writes:
        What the first writes.
    Batch:
        The range of the first.

    Raises:
        What the first raises.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"'ABC'"``::

            backend = "DI[Quote,Upper]"
    """

    takes: ClassVar[int | tuple[int, int | None]] = (2, None)

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan ``a[b[c]]``."""
        *outer, nested = use.children
        for child in reversed(outer):
            if child.phases:
                name, on = child.name, nested.name
                message = f"{name} is to depend on {on}, and has a bracket of its own"
                use.add("arity", message, child)
                use.planning.plan_all(use.children, use.scope)
                return None
            nested = child.replace(phases=((nested,),))
        return use.plan(nested, gets_name=use.scope.gets_name, parent=use.scope.parent)


Aspect = DI


class With(DI):
    """Put W around X: ``With[W,X]`` is ``W[X]``.

    Reads:
        The inputs of W and X.
    Writes:
        The outputs of W and X.
    Batch:
        The range of W.

    Raises:
        The errors of W and X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"'cba'"``::

            backend = "With[Quote,Reverse]"
    """

    takes = 2


class Proxy(Forward):
    """Stand for a named instance: ``Proxy[x.0]`` is the first instance of node ``x``.

    An instance that several threads can reach this way is called by one thread at a time, until what it depends
    on has ended. Instances and nodes that could so wait for each other are an error.

    Reads:
        The inputs of the instance.
    Writes:
        The outputs of the instance.
    Batch:
        The range of the instance.

    Raises:
        The errors of the instance.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            node_entrypoint = "IoC[InstancesRegister[Reflect[backend]];Proxy[{node_name}.0]]"
    """


class InstanceFromParam(Forward):
    """Use the instance whose name stands in a parameter: ``InstanceFromParam[key]``.

    Reads:
        The inputs of the instance.
    Writes:
        The outputs of the instance.
    Batch:
        The range of the instance.

    Raises:
        The errors of the instance.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"cba"``::

            backend = "IoC[Upper,Reverse;InstanceFromParam[which]]"
            which = "Reverse"
    """

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Read the parameter and find the instance that it names."""
        (child,) = use.children
        key = child.name
        if (found := parameter(use, key)) is None:
            if use.scope.lenient:
                return use.element
            message = f"{use.element.name} needs the parameter {key!r}"
            hint = f"Write {key} = ... in the node, with the name of an instance."
            near = nearest(key, use.planning.parameters.unused_keys())
            use.add("missing_option", message, child, suggestion=near, hint=hint)
            return None
        if (call := use.planning.read(found.value, found.source)) is None:
            return None
        if len(call.args) or call.phases:
            use.add("word", f"{key!r} is to be the name of an instance", call)
            return None
        return stand_for(use, call)


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

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build the children, which are called by their names alone."""
        super()._build(building, element, at)
        return NotCallable(element.name)


class Register(_Registering):
    """Register an instance for the whole pipeline, as ``node.{node_name}`` or a name of its own.

    Belongs in ``init`` or ``node_entrypoint``. The name stands in ``( )`` only: a key ``name`` of the node is
    meant for its backends.

    Reads:
        The inputs of the instance.
    Writes:
        The outputs of the instance.
    Batch:
        The range of the instance.

    Raises:
        The errors of the instance.
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
        built = build_shared(building, element.children[0], at)
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

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build nothing: the word only says where and for which instances the queue is."""
        return NotCallable(element.name)


def check_used(planning: Planning, names: Iterable[Named]) -> None:
    """Report words that end in the queue of a node where they have a name that no expression uses."""
    for named in names:
        element = named.element
        if element is None or named.used or element.named is not None or element.children:
            continue
        if issubclass(element.cls, _Scheduling):
            what = f"{named.name} ends in no Batching[InstanceDispatcher] and no Batching[X]"
            planning.add("scheduling", what, element.call)


class Batching(_Scheduling):
    """Collect the requests of all callers into batches for the instances in its bracket.

    ``Batching[InstanceDispatcher]`` collects for the instances of the node, ``Batching[X]`` for one
    instance. The keys of the node say when a batch is formed: ``max``, ``batching_timeout``,
    ``batch_sizes``, ``batch_policy``.

    Reads:
        The inputs of the instances.
    Writes:
        The outputs of the instances.
    Batch:
        1 or more.

    Raises:
        The errors of the instances, and OverloadedError, DeadlineExceededError, BatchRangeError.
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
        is_name = element.named is not None and not element.children
        if use.scope.lenient or is_name or not _may_stand(use, "scheduling"):
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
            return super()._build(building, element, at)
        if building.put_queue is None:
            raise SetupError("there is no node here that could have a queue")
        (child,) = element.children
        if child.cls is InstanceDispatcher:
            names = (f"{building.name}.{i}" for i in range(building.keys.instance_num))
            behind = [building.build.registered[name] for name in names]
        else:
            behind = [build_shared(building, child, at)]
        return NodeCall(building.put_queue(behind))

    def forward_with_dep(self, batch: list[Request], dependency: Backend) -> None:
        """Refuse: in a node the scheduler is called in place of this word."""
        raise ContractError("Batching was called outside of a node")


class InstanceDispatcher(_Scheduling):
    """Choose the instance of the node that takes a batch. Stands in ``Batching[...]`` only.

    The key ``dispatch_policy`` of the node says how.

    Reads:
        The inputs of the instances.
    Writes:
        The outputs of the instances.
    Batch:
        From the least min to the greatest max of the instances.

    Raises:
        The errors of the instances.
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
