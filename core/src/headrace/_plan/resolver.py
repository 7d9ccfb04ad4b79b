"""What a name in brackets means: an instance in scope, a definition, or a backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._config.nesting import MAX_DEPTH
from headrace._config.problems import SUGGESTED
from headrace._plan import brackets, choosing, scheduling, wiring
from headrace._plan.definitions import Definitions, expand
from headrace._plan.element import Element
from headrace._plan.functions import check_function
from headrace._plan.options import OptionsReader
from headrace._plan.ranges import depending_range, static_range
from headrace._plan.sizes import MAX_ELEMENTS, Sizes
from headrace._registry import registry
from headrace.errors import PluginError
from headrace.words._wiring import Wiring
from headrace.words.batching import Batching
from headrace.words.call import Call as CallFunction
from headrace.words.choice import Fallback, ModelLoader
from headrace.words.sequential import Sequential

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._config.problems import Problems
    from headrace._expression import Call
    from headrace._plan.brackets import Phases
    from headrace._plan.element import Named
    from headrace._plan.layer import Layer
    from headrace._plan.parameters import Parameters
    from headrace._plan.planner import Files, Pipeline
    from headrace._plan.scope import Scope
    from headrace._registry import BackendSpec

__all__ = ["Resolver"]


class Resolver:
    """Plans expressions of one pipeline, a node at a time.

    A name that is wrong is reported where it stands, and everything else in its bracket is still
    looked at. What depends on something wrong is left out in silence.

    Attributes:
        pipeline: The planner of the nodes.
        files: The files that the configuration imports, and what each has registered.
        problems: Where what is wrong goes.
        definitions: The definitions.
        sizes: Counts what expressions become.
        unresolved: How many names have no class so far.
        all_names: Whether all names can be known; False when an import has failed.
    """

    def __init__(
        self, pipeline: Pipeline, files: Files, problems: Problems, *, all_names: bool = True
    ) -> None:
        self.pipeline = pipeline
        self.files = files
        self.problems = problems
        self.definitions = Definitions(pipeline, files, problems)
        self.sizes = Sizes(self.definitions)
        self.unresolved = 0
        self.all_names = all_names
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
    def known_node(self) -> str | None:
        """Name of that node; None for the pipeline's front."""
        return None if self.keys is None else self.node

    @property
    def keys(self) -> NodeKeys | None:
        """Keys of that node; None for the pipeline's front."""
        return self._nodes[-1][1]

    @property
    def parameters(self) -> Parameters:
        """Parameters of that node."""
        return self._nodes[-1][2]

    # Problems.

    def add(self, code: str, message: str, call: Call, scope: Scope, **more: Any) -> None:
        """Report a problem at ``call``."""
        self.problems.add(code, message, **{**scope.layer.place(call), **more})

    def fits(self, call: Call, layer: Layer, definition: str = "") -> bool:
        """Tell whether an expression is no deeper and no larger than is allowed; report it if not.

        Args:
            call: The expression.
            layer: Where it was written.
            definition: The definition that it is, if it is one.
        """
        wrong = brackets.too_deep(call)
        if wrong is None:
            return self._is_small(call, layer, definition)
        message = f"nested more than {MAX_DEPTH} levels deep"
        place = {**layer.place(call), "span": wrong.name_span or wrong.span}
        self.problems.add("nesting", message, **place)
        return False

    def _is_small(self, call: Call, layer: Layer, definition: str) -> bool:
        why = self.sizes.why_too_large(call, self.known_node, definition)
        if why:
            self.problems.add("definition", why, **layer.place(call))
        return why is None

    # Names.

    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""
        if not self._goes_on(call, scope):
            return None
        named = scope.lookup(call.name) or self.pipeline.named(call.name)
        if named is not None:
            return self.reference(call, named, scope)
        definitions = self.definitions.find(call)
        circular = None if definitions else self.pipeline.being_planned(call.name)
        if circular is not None:
            self.circle(call, circular, scope)
            return None
        specs = registry.find(call.name, self.files)
        shipped = [d for d in definitions if d.distribution]
        if len(shipped) + (len(specs) if shipped else 0) > 1:
            self._ambiguous(call, scope, [(d.plugin, d.distribution) for d in shipped], specs)
            return None
        if definitions:
            return expand(self, call, definitions[-1], scope)
        cls = self._class(specs, call, scope)
        if cls is None:
            self.unresolved += 1
            self._plan_below_unknown(call, scope)
            return None
        return self._backend(call, specs[0], cls, scope)

    def _goes_on(self, call: Call, scope: Scope) -> bool:
        """Tell whether an element stands neither too deep nor below too much; report it if it does.

        Parameters that are reflected in others may double each other, so what they bring is counted.
        """
        if scope.depth > MAX_DEPTH:
            self.add("nesting", f"nested more than {MAX_DEPTH} levels deep", call, scope)
            self.parameters.incomplete = True
            return False
        if len(scope.reflecting) < 2:
            return True
        self.parameters.reflected += 1
        if self.parameters.reflected <= MAX_ELEMENTS:
            return True
        self.parameters.incomplete = True
        self.unresolved += 1
        if self.parameters.reflected == MAX_ELEMENTS + 1:
            names = " and ".join(repr(one.partition(".")[2]) for one in scope.reflecting[-2:])
            message = f"the parameters {names} bring more than {MAX_ELEMENTS} elements"
            self.add("definition", message, call, scope)
        return False

    def plan_all(self, phases: Phases, scope: Scope, *, words: int = 0) -> None:
        """Plan what stands in a bracket nobody understands, for what is wrong in it."""
        children = [child for phase in phases for child in phase]
        for child in children[words:]:
            self.plan(child, scope.within(entry=scope.entry, named=True, batched=True))

    def circle(self, call: Call, node: str, scope: Scope) -> None:
        """Report a node that needs itself."""
        chain = self.pipeline.chain_to(node)
        shown = f": {' needs '.join(chain)}" if len(chain) > 2 else ""
        self.add("circle", f"node {node!r} is needed to build itself{shown}", call, scope)

    def _class(self, specs: list[BackendSpec], call: Call, scope: Scope) -> type[Backend] | None:
        """Give the class behind a name; report what is in the way."""
        if not specs:
            self._unknown(call, scope)
            return None
        if len(specs) > 1:
            self._ambiguous(call, scope, [], specs)
            return None
        try:
            return specs[0].load()
        except PluginError as error:
            self.parameters.incomplete = True
            self.add(error.code, error.what, call, scope, hint=error.hint)
            return None

    def _unknown(self, call: Call, scope: Scope) -> None:
        if not self.all_names:
            self.parameters.incomplete = True
            return
        near = self._nearest(call, scope)
        problem = registry.unknown(call.name, [near] if near else [])
        self.problems.extend([replace(problem, **scope.layer.place(call))])
        if problem.code != "unknown_backend":
            self.parameters.incomplete = True
        elif near is not None:
            self._know_options_of(call, near)

    def _nearest(self, call: Call, scope: Scope) -> str | None:
        """Give the known name that is most like an unknown one."""
        if len(self.problems) >= SUGGESTED:
            return None  # the names are not even listed then
        return self.problems.nearest(call.part, self.known_names(scope))

    def _know_options_of(self, call: Call, suggestion: str) -> None:
        """Let the options of what was probably meant count as known: they are no second error.

        A name that is wrong imports nothing: of a class that is not there yet any key may be.
        """
        for spec in registry.find(suggestion, self.files):
            if not spec.is_loaded:
                self.parameters.incomplete = True
                continue
            try:
                keys = list(spec.load().Options.model_fields)
            except (PluginError, AttributeError):
                continue
            for key in keys:
                self.parameters.find((call.name, suggestion), key)

    def _ambiguous(
        self, call: Call, scope: Scope, offers: list[tuple[str, str]], specs: list[BackendSpec]
    ) -> None:
        offers = [*offers, *((spec.plugin, spec.distribution) for spec in specs)]
        ways = [f"{plugin}:{call.part}" for plugin, _ in offers]
        hint = f"Write {' or '.join(ways)}."
        if len(set(ways)) < len(ways):
            hint = "Give one of them another name, or import only one."
        self.unresolved += 1
        self.parameters.incomplete = True
        self.add(
            "ambiguous",
            f"{call.name!r} is offered by {' and '.join(d for _, d in offers)}",
            call,
            scope,
            hint=hint,
        )
        self._plan_below_unknown(call, scope)

    def _plan_below_unknown(self, call: Call, scope: Scope) -> None:
        """Look into the bracket of a name without a class; some of it may be words."""
        phases, inner = brackets.bracket_of(call, scope)
        near = registry.find(self._nearest(call, scope) or "") if phases else ()
        words = 0
        for spec in near:
            if spec.distribution == "headrace":
                words = getattr(spec.load(), "words", 0)
        self.plan_all(phases, inner, words=words)

    def known_names(self, scope: Scope) -> list[str]:
        """Give every name that may stand here."""
        local = [name for frame in scope.frames for name in frame]
        registered = list(self.pipeline.registered)
        return [*local, *registered, *self.definitions.names(), *registry.names(self.files)]

    # An instance.

    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance."""
        named.used = True
        target = named.element
        before = len(self.problems)
        if len(call.args):
            self.add("args", f"{call.name!r} is an instance here and takes no args", call, scope)
        phases, inner = brackets.bracket_of(call, scope)
        if target is None:
            self.unresolved += 1
            self.plan_all(phases, inner)
            return None
        element = Element(call.name, call, target.spec, target.cls, named=named)
        element.range = target.range
        if not phases:
            if brackets.is_bare(target) and not (scope.named or scope.open_slot):
                message = f"{call.name!r} needs what it depends on: {call.name}[...]"
                self.add("dependency", message, call, scope)
            scheduling.check_dispatcher(self, element, scope)
            return element if len(self.problems) == before else None
        if not brackets.is_bare(target):
            self.add(
                "arity",
                f"{call.name!r} is an instance here and takes nothing in brackets",
                call,
                scope,
                hint="Only an instance of a class with forward_with_dep, built without one, does.",
            )
            self.plan_all(phases, inner)
            return None
        if len(phases) != 1 or len(phases[0]) != 1:
            self.add("arity", f"{call.name!r} depends on one child", call, scope)
            self.plan_all(phases, inner)
            return None
        batched = target.cls is Batching
        child = self.plan(phases[0][0], inner.within(last=True, batched=batched, entry=scope.entry))
        if child is None or len(self.problems) > before:
            return None
        element.phases = [[child]]
        element.range = depending_range(target.cls, child.range)
        return element if scheduling.check_batching(self, element, scope) else None

    # A backend.

    def _backend(
        self, call: Call, spec: BackendSpec, cls: type[Backend], scope: Scope
    ) -> Element | None:
        options, origins = OptionsReader(
            call, cls.Options, scope, self.parameters, self.problems, spec.plugin
        ).read()
        element = Element(call.name, call, spec, cls, options, origins, frames=scope.frames)
        phases, inner = brackets.bracket_of(call, scope)
        if cls is Sequential:
            phases = brackets.joined(self, phases, inner)
        good = brackets.check_arity(self, element, phases, scope)
        good &= brackets.check_prefixes(self, element, phases, inner)
        good &= options is not None or scope.lenient
        if issubclass(cls, Wiring):
            return wiring.plan_word(self, element, phases, inner, scope, good=good)
        if cls in (ModelLoader, Fallback):
            planned = choosing.plan_branches(self, element, phases, inner, scope)
        else:
            planned = self._children(element, phases, inner, scope)
        if planned is None or not good:
            return None
        element.phases = planned
        return element if self._check(element, scope) else None

    def _check(self, element: Element, scope: Scope) -> bool:
        """Check an element whose children are planned, and give it its range."""
        try:
            element.range = static_range(element)
        except ValueError as error:
            self.add("range", f"{element.name}: {error}", element.call, scope)
            return False
        if element.cls is Batching:
            return scheduling.check_batching(self, element, scope)
        if element.cls is CallFunction:
            return check_function(self, element, scope)
        if not scheduling.check_walker(self, element, scope):
            return False
        return scheduling.check_dispatcher(self, element, scope)

    def _children(
        self, element: Element, phases: Phases, inner: Scope, scope: Scope
    ) -> list[list[Element]] | None:
        """Plan the children; None when one is wrong. All are looked at, so all errors are found."""
        last = phases[-1][-1] if phases else None
        good = True
        planned: list[list[Element]] = []
        for phase in phases:
            row = []
            for call in phase:
                child = self.plan(
                    call,
                    inner.within(
                        last=call is last,
                        entry=scope.entry,
                        wraps=scope.wraps and not brackets.owns_its_thread(element.cls),
                        batched=element.cls is Batching,
                    ),
                )
                if child is None or not wiring.check_callable(self, child, element, inner):
                    good = False
                    continue
                row.append(child)
                element.prefixes.append(brackets.prefix_values(call.prefix))
            planned.append(row)
        return planned if good else None
