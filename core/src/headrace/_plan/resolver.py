"""What a name in brackets means: an instance in scope, a definition, or a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._containers.background import BackgroundThread
from headrace._containers.choice import Fallback, ModelLoader
from headrace._containers.scheduling import Batching, InstanceDispatcher
from headrace._containers.sequential import Sequential
from headrace._containers.wiring import Wiring
from headrace._plan import words
from headrace._plan.definitions import Definitions
from headrace._plan.element import Element, Prefix
from headrace._plan.options import check_options, plain_value
from headrace._plan.ranges import static_range
from headrace._plan.scope import MAX_DEPTH, Graft, Layer, Scope, ScopedArgs
from headrace._registry import registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._config.problems import Problems
    from headrace._expression import Args, Call
    from headrace._plan.element import Named
    from headrace._plan.parameters import Parameters
    from headrace._plan.planner import Files, Pipeline
    from headrace._registry import BackendSpec

__all__ = ["Resolver", "place_of"]


def place_of(call: Call, scope: Scope) -> dict[str, Any]:
    """Give where ``call`` was written, for a problem."""
    layer = scope.layer
    span = call.name_span or call.span
    return {"file": layer.file, "path": layer.path, "span": span, "text": call.text}


class Resolver:
    """Plans expressions of one pipeline, a node at a time."""

    def __init__(self, pipeline: Pipeline, files: Files, problems: Problems) -> None:
        self.pipeline = pipeline
        self.files = files
        self.problems = problems
        self.definitions = Definitions(pipeline, files, problems)
        self._classes: dict[str, type[Backend] | None] = {}
        self._nodes: list[tuple[str, NodeKeys | None, Parameters]] = []

    # The node that is being planned.

    def enter(self, node: str, keys: NodeKeys | None, parameters: Parameters) -> None:
        """Begin a node; nodes that it names may be planned in between."""
        self._nodes.append((node, keys, parameters))

    def leave(self, node: str) -> None:
        """End the node that was begun last."""
        while self._nodes.pop()[0] != node:
            pass

    @property
    def node(self) -> str:
        """Name of the node that is being planned."""
        return self._nodes[-1][0]

    @property
    def keys(self) -> NodeKeys | None:
        """Keys of that node; None for the pipeline's front."""
        return self._nodes[-1][1]

    @property
    def parameters(self) -> Parameters:
        """Parameters of that node."""
        return self._nodes[-1][2]

    def add(self, code: str, message: str, call: Call, scope: Scope, **more: Any) -> None:
        """Report a problem at ``call``."""
        self.problems.add(code, message, **{**place_of(call, scope), **more})

    # Names.

    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""
        if scope.depth > MAX_DEPTH:
            self.add("nesting", f"nested more than {MAX_DEPTH} levels deep", call, scope)
            return None
        named = scope.lookup(call.name) or self.pipeline.named(call.name)
        if named is not None:
            return self.reference(call, named, scope)
        if call.name in self.definitions:
            return self._expand(call, scope)
        circular = self.pipeline.being_planned(call.name)
        if circular is not None:
            self.circle(call, circular, scope)
            return None
        spec = self._spec(call, scope)
        cls = self._class(spec, call, scope) if spec is not None else None
        if spec is None or cls is None:
            return None
        return self._backend(call, spec, cls, scope)

    def circle(self, call: Call, node: str, scope: Scope) -> None:
        """Report a node that needs itself."""
        self.add("circle", f"node {node!r} is needed to build itself", call, scope)

    def _spec(self, call: Call, scope: Scope) -> BackendSpec | None:
        specs = registry.find(call.name, self.files)
        if len(specs) == 1:
            return specs[0]
        if not specs:
            known = self.known_names(scope)
            problem = registry.unknown(call.name, known)
            self.problems.extend([problem_at(problem, call, scope)])
            return None
        offers = " and ".join(spec.distribution for spec in specs)
        self.add(
            "ambiguous",
            f"{call.name!r} is offered by {offers}",
            call,
            scope,
            hint=f"Write {' or '.join(f'{s.plugin}:{call.part}' for s in specs)}.",
        )
        return None

    def known_names(self, scope: Scope) -> list[str]:
        """Give every name that may stand here."""
        local = [name for frame in scope.frames for name in frame]
        registered = list(self.pipeline.registered)
        return [*local, *registered, *self.definitions.names(), *registry.names(self.files)]

    def _class(self, spec: BackendSpec, call: Call, scope: Scope) -> type[Backend] | None:
        try:
            return spec.load()
        except PluginError as error:
            message = error.what
            self.add(error.code, message, call, scope, hint=error.hint)
            return None

    # An instance.

    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance."""
        target = named.element
        if len(call.args):
            self.add("args", f"{call.name!r} is an instance here and takes no args", call, scope)
            return None
        element = Element(call.name, call, target.spec, target.cls, named=named)
        element.range = target.range
        phases = self._bracket(call, scope)
        if phases is None:
            if needs_dependency(target) and not scope.named:
                self.add(
                    "dependency",
                    f"{call.name!r} needs what it depends on: {call.name}[...]",
                    call,
                    scope,
                )
                return None
            return self._refuse_dispatcher(element, call, scope)
        children, inner = phases
        if not takes_dependency(target.cls) or target.children:
            self.add(
                "arity",
                f"{call.name!r} is an instance here and takes nothing in brackets",
                call,
                scope,
                hint="Only an instance of a class with forward_with_dep does.",
            )
            return None
        if len(children) != 1 or len(children[0]) != 1:
            self.add("arity", f"{call.name!r} depends on one child", call, scope)
            return None
        batched = target.cls is Batching
        child = self.plan(children[0][0], inner.within(batched=batched))
        if child is None:
            return None
        element.phases = [[child]]
        return element

    def _refuse_dispatcher(self, element: Element, call: Call, scope: Scope) -> Element | None:
        if element.cls is InstanceDispatcher and not (scope.batched or scope.named):
            self.add(
                "scheduling",
                "InstanceDispatcher stands in Batching[InstanceDispatcher] only",
                call,
                scope,
            )
            return None
        return element

    # A definition.

    def _expand(self, call: Call, scope: Scope) -> Element | None:
        definition = self.definitions[call.name]
        if call.name in scope.expanding:
            chain = " uses ".join((*scope.expanding, call.name))
            self.add("circle", f"the definition {call.name!r} uses itself: {chain}", call, scope)
            return None
        if call.args.positional:
            self.add(
                "args",
                f"{call.name!r} is a definition and takes no positional args",
                call,
                scope,
                span=call.args.span_of(0) or call.name_span,
            )
            return None
        tree = self.definitions.tree(call.name, self.node)
        if tree is None:
            return None
        scoped = ScopedArgs(
            call, scope.layer, {key: plain_value(value) for key, value in call.args.named}
        )
        layer = Layer(
            definition.layer.path,
            definition.layer.file,
            definition.layer.base,
            scope.layer.depth + 1,
            (*scope.layer.scoped, scoped),
        )
        # A bracket of its own goes to the open slot; one that is on its way goes on through it.
        graft = Graft(call, scope.same(graft=None)) if call.phases else scope.graft
        inner = scope.within(
            layer=layer,
            graft=graft,
            expanding=(*scope.expanding, call.name),
            named=scope.named,
            batched=scope.batched,
        )
        if call.phases and scope.graft is not None:
            inner = inner.same(graft=Graft(call, scope))
        before = len(self.problems)
        element = self.plan(tree, inner)
        for key in scoped.values:
            if key not in scoped.used and len(self.problems) == before:
                self.add(
                    "unknown_option",
                    f"no backend of the definition {call.name!r} has an option {key!r}",
                    call,
                    scope,
                    span=call.args.span_of(key) or call.name_span,
                )
        return element

    # A backend.

    def _backend(
        self, call: Call, spec: BackendSpec, cls: type[Backend], scope: Scope
    ) -> Element | None:
        options, origins = check_options(call, cls, scope, self.parameters, self.problems)
        element = Element(call.name, call, spec, cls, options, origins)
        if issubclass(cls, Wiring):
            return words.plan_word(self, element, scope)
        bracket = self._bracket(call, scope)
        phases, inner = bracket if bracket is not None else ((), scope)
        if cls is Sequential:
            phases = self._joined(phases)
        if not self._check_arity(element, phases, scope):
            return None
        if cls in (ModelLoader, Fallback):
            planned = self._branches(element, phases, inner, scope)
        else:
            planned = self._children(element, phases, inner, scope)
        if planned is None or (options is None and not scope.lenient):
            return None
        element.phases = planned
        chosen = words.choose_branches(self, element, scope)
        if chosen is None:
            return None
        try:
            element.range = static_range(chosen)
        except ValueError as error:
            self.add("range", f"{call.name}: {error}", call, scope)
            return None
        return self._refuse_dispatcher(chosen, call, scope)

    def _bracket(
        self, call: Call, scope: Scope
    ) -> tuple[tuple[tuple[Call, ...], ...], Scope] | None:
        """Give what stands in the bracket of ``call`` and the scope it was written in.

        The bracket of a definition's use goes to the innermost last name without one.
        """
        if call.phases:
            return call.phases, scope
        if scope.graft is not None:
            graft = scope.graft
            inner = graft.scope.same(depth=max(scope.depth, graft.scope.depth), frames=scope.frames)
            return graft.call.phases, inner
        return None

    def _joined(self, phases: tuple[tuple[Call, ...], ...]) -> tuple[tuple[Call, ...], ...]:
        """Join ``S`` directly in ``S``, to any depth, without recursion."""
        joined = []
        for phase in phases:
            flat: list[Call] = []
            todo = list(reversed(phase))
            while todo:
                call = todo.pop()
                if self._is_plain_sequence(call):
                    todo.extend(reversed(call.phases[0]))
                else:
                    flat.append(call)
            joined.append(tuple(flat))
        return tuple(joined)

    def _is_plain_sequence(self, call: Call) -> bool:
        names = ("S", "Sequential", "headrace:S", "headrace:Sequential")
        if call.name not in names or call.prefix is not None or len(call.args):
            return False
        if call.name in self.definitions or len(call.phases) != 1:
            return False
        return call.phases[0][0].prefix is None

    def _check_arity(
        self, element: Element, phases: tuple[tuple[Call, ...], ...], scope: Scope
    ) -> bool:
        call, cls = element.call, element.cls
        count = sum(len(phase) for phase in phases)
        if takes_dependency(cls) and cls.takes == 0:
            least, most = (0 if scope.named or scope.lenient else 1), 1
        else:
            takes = cls.takes
            least = takes if isinstance(takes, int) else takes[0]
            most = takes if isinstance(takes, int) else takes[1]
        if scope.lenient and not phases:
            return True
        if scope.graft is not None and not call.phases and most == 0:
            self.add(
                "arity",
                f"{scope.graft.call.name}[...] goes to {call.name}, which takes nothing in brackets",
                scope.graft.call,
                scope.graft.scope,
            )
            return False
        if not least <= count or (most is not None and count > most):
            wanted = f"{least}" if least == most else f"{least} to {most or 'any number'}"
            self.add(
                "arity",
                f"{call.name} takes {wanted} in brackets, got {count}"
                if most != 0
                else f"{call.name} takes nothing in brackets",
                call,
                scope,
            )
            return False
        if phases and len(phases) != cls.phases:
            self.add(
                "arity",
                f"{call.name} has {cls.phases} phase{'s' if cls.phases > 1 else ''} in brackets, "
                f"separated by ';', got {len(phases)}",
                call,
                scope,
            )
            return False
        return True

    def _children(
        self,
        element: Element,
        phases: tuple[tuple[Call, ...], ...],
        inner: Scope,
        scope: Scope,
    ) -> list[list[Element]] | None:
        """Plan the children; None when one is wrong. All are looked at, so all errors are found."""
        planned: list[list[Element]] = []
        good = True
        last = phases[-1][-1] if phases else None
        wraps = scope.wraps and element.cls is not BackgroundThread
        for phase in phases:
            row = []
            for index, child in enumerate(phase):
                prefix = self.prefix(element, child, inner, first=index == 0)
                below = inner.within(
                    graft=scope.graft if child is last and inner is scope else None,
                    entry=False if element.cls is not Batching else scope.entry,
                    wraps=wraps,
                    batched=element.cls is Batching,
                )
                planned_child = self.plan(child, below)
                if planned_child is None or prefix is None:
                    good = False
                    continue
                row.append(planned_child)
                element.prefixes.append(prefix)
            planned.append(row)
        return planned if good else None

    def _branches(
        self,
        element: Element,
        phases: tuple[tuple[Call, ...], ...],
        inner: Scope,
        scope: Scope,
    ) -> list[list[Element]] | None:
        """Plan the children of a container that uses one of them."""
        children = phases[0] if phases else ()
        below = inner.within(wraps=scope.wraps)
        if element.cls is Fallback:
            found = [words.plan_branch(self, element, child, below) for child in children]
            row = [child for child in found if child is not None]
            element.prefixes = [((), {}) for _ in row]
            return [row]
        if element.options is None:
            return None
        chosen = words.suffix_branch(self, element, children, inner)
        for child in children:
            if child is not chosen:
                words.plan_branch(self, element, child, below)
        planned = self.plan(chosen, below) if chosen is not None else None
        element.prefixes = [((), {})]
        return None if planned is None else [[planned]]

    def prefix(
        self, element: Element, child: Call, scope: Scope, *, first: bool = False
    ) -> Prefix | None:
        """Check the prefix before ``child`` against what its container understands."""
        if child.prefix is None:
            return (), {}
        understood = element.cls.prefixes
        wrong = [
            value
            for value in child.prefix.positional
            if "*" not in understood and value not in understood
        ]
        wrong += [key for key, _ in child.prefix.named if f"{key}=" not in understood]
        if not wrong and first and element.cls is Sequential and "or" in child.prefix.positional:
            self.problems.add(
                "prefix",
                f"(or) cannot stand before the first element of {element.name}",
                file=scope.layer.file,
                path=scope.layer.path,
                span=child.prefix.span,
                text=child.text,
            )
            return None
        if wrong:
            knows = ", ".join(f"({p})" if p != "*" else "any flag" for p in understood)
            self.problems.add(
                "prefix",
                f"{element.name} does not understand the prefix ({wrong[0]})",
                file=scope.layer.file,
                path=scope.layer.path,
                span=child.prefix.span,
                text=child.text,
                hint=f"It understands {knows}." if knows else "It understands none.",
            )
            return None
        return _prefix_values(child.prefix)


def _prefix_values(prefix: Args) -> Prefix:
    positional = tuple(plain_value(value) for value in prefix.positional)
    return positional, {key: plain_value(value) for key, value in prefix.named}


def takes_dependency(cls: type[Backend]) -> bool:
    """Tell whether a class is given its only child at each call."""
    return callable(getattr(cls, "forward_with_dep", None))


def needs_dependency(element: Element) -> bool:
    """Tell whether an instance was built without what it depends on."""
    return takes_dependency(element.cls) and not element.children and element.cls.takes == 0


def problem_at(problem: Any, call: Call, scope: Scope) -> Any:
    """Give ``problem`` with its place filled in."""
    from dataclasses import replace

    return replace(problem, **place_of(call, scope))
