"""What a name in brackets means: an instance in scope, a definition, or a backend."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._config.problems import MAX_DEPTH, SUGGESTED, key_place
from headrace._expression.parser import read_expression
from headrace._plan import brackets
from headrace._plan.declared import states_range, static_range
from headrace._plan.element import Element, Named
from headrace._plan.options import OptionsReader
from headrace._plan.planning import MAX_ELEMENTS, Definition, Planning, without_prefix
from headrace._plan.scope import Graft, Layer, Scope, ScopedArgs, bracket_of, plain_value
from headrace._plan.word import Use, why_not_callable, word_of
from headrace._registry.registry import registry
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.document import Written
    from headrace._expression.tree import Call
    from headrace._plan.parameters import Found
    from headrace._registry.registry import BackendSpec


class Resolver(Planning):
    """Gives the names in expressions their meaning.

    A name that is wrong is reported where it stands, and everything else in its bracket is still
    looked at.
    """

    def fits(self, call: Call, layer: Layer) -> bool:
        """Tell whether an expression is no deeper than is allowed; report it if it is."""
        wrong = brackets.too_deep(call)
        if wrong is not None:
            message = f"nested more than {MAX_DEPTH} levels deep"
            place = {**layer.place(call), "span": wrong.name_span or wrong.span}
            self.problems.add("nesting", message, **place)
        return wrong is None

    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""
        if not self._goes_on(call, scope):
            return None
        named = scope.lookup(call.name) or self.named(call.name)
        if named is not None:
            return self.reference(call, named, scope)
        definitions = self.definitions.find(call)
        node = None if definitions else self.being_planned(call.name)
        if node is not None:
            self.report_cycle(call, node, scope)
            return None
        specs = registry.find(call.name, self.files)
        shipped = [d for d in definitions if d.distribution]
        if len(shipped) + (len(specs) if shipped else 0) > 1:
            self._ambiguous(call, scope, [(d.plugin, d.distribution) for d in shipped], specs)
            return None
        if definitions:
            return self._expand(call, definitions[-1], scope)
        cls = self._class(specs, call, scope)
        if cls is None:
            self._plan_below_unknown(call, scope)
            return None
        return self._backend(call, specs[0], cls, scope)

    def _goes_on(self, call: Call, scope: Scope) -> bool:
        """Tell whether an element stands neither too deep nor below too much; report it if it does.

        Definitions and reflected parameters may double each other, so what they bring is counted.
        """
        if scope.depth > MAX_DEPTH:
            self.add("nesting", f"nested more than {MAX_DEPTH} levels deep", call, scope)
            self.parameters.unresolved += 1
            return False
        if not scope.expanding and len(scope.reflecting) < 2:
            return True
        self.parameters.brought += 1
        if self.parameters.brought <= MAX_ELEMENTS and not self.too_large:
            return True
        self.parameters.unresolved += 1
        if not self.too_large:
            self.too_large = True
            kind, names = "definitions", scope.expanding[:2]
            if not names:
                kind = "parameters"
                names = tuple(one.partition(".")[2] for one in scope.reflecting[-2:])
            message = f"the {kind} {' and '.join(map(repr, names))} bring more than {MAX_ELEMENTS} elements"
            use = next(iter(scope.layer.scoped), None)  # of the outermost definition
            place = scope.layer.place(call) if use is None else use.layer.place(use.call)
            self.problems.add("definition", message, **place)
        return False

    # Expressions of the configuration.

    def expression(self, found: Found, *, entry: bool = False) -> Element | None:
        """Plan the expression under a key of the node that was entered."""
        call = self.read(found.written, found.layer.path)
        if call is None:
            return None
        return self.plan(call, Scope(found.layer, entry=entry, wraps=True))

    def read(self, written: Written, path: str) -> Call | None:
        """Parse an expression of the configuration and replace its placeholders; None when wrong."""
        layer = Layer.of(written, path)
        key = path.rpartition(".")[2]
        place = key_place(written.file, path, key, written.value)
        try:
            if not isinstance(written.value, str):
                self.problems.add("type", f"{key} is a text, an expression", **place)
            else:
                node = self.known_node
                call = read_expression(written.value, node_name=node, environ=os.environ)
                call = without_prefix(call, layer, self.problems)
                if self.fits(call, layer):
                    return call
        except ConfigError as error:
            self.problems.extend(error.problems, file=written.file, path=path)
        self.parameters.unresolved += 1
        return None

    def check_called(self, element: Element, layer: Layer) -> None:
        """Check that what a node or the pipeline is called through can be called."""
        why = why_not_callable(element)
        if why is not None:
            message = f"{element.name} {why} and cannot be called"
            self.problems.add("not_callable", message, **layer.place(element.call))

    # An instance.

    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance, perhaps with what it depends on."""
        named.used = True
        target = named.element
        before = len(self.problems)
        if len(call.args):
            self.add("args", f"{call.name!r} is an instance here and takes no args", call, scope)
        bracket = bracket_of(call, scope)
        children = bracket.children
        if target is None:
            self.plan_all(bracket)
            return None
        element = Element(call.name, call, target.spec, target.cls, named=named)
        element.range = target.range
        if not children:
            if target.is_bare and not (scope.named or scope.open_slot):
                message = f"{call.name!r} needs what it depends on: {call.name}[...]"
                self.add("dependency", message, call, scope)
        elif not target.is_bare:
            hint = "Only an instance of a class with forward_with_dep, built without one, does."
            message = f"{call.name!r} is an instance here and takes nothing in brackets"
            self.add("arity", message, call, scope, hint=hint)
            self.plan_all(bracket)
        elif len(children) != 1:
            self.add("arity", f"{call.name!r} depends on one child", call, scope)
            self.plan_all(bracket)
        else:
            child = self.plan(children[0], bracket.within(children[0], parent=target.cls))
            if child is None:
                return None
            element.phases = [[child]]
            if not states_range(target.cls):
                element.range = child.range
        word_of(target.cls)._check(Use(self, element, bracket, scope))
        return element if len(self.problems) == before else None

    # A definition.

    def _expand(self, call: Call, definition: Definition, scope: Scope) -> Element | None:
        """Plan what a definition stands for: args are defaults, the bracket goes to its open slot."""
        if definition.name in scope.expanding:
            self._report_definition_cycle(call, scope)
            return None
        if call.args.positional:
            self.add(
                "args",
                f"{call.name!r} is a definition and takes no positional args",
                call,
                scope,
                span=call.args.span_of(0) or call.name_span,
                hint="Write key=value: it goes to every backend of the definition that has the key.",
            )
        tree = self.definitions.tree(definition, self.known_node)
        if tree is None or not self.fits(tree, definition.layer):
            self.parameters.unresolved += 1
            self.plan_all(bracket_of(call, scope.same(graft=None)))
            return None
        scoped = ScopedArgs(
            call, scope.layer, {key: plain_value(value) for key, value in call.args.named}
        )
        layer = replace(
            definition.layer, depth=scope.layer.depth + 1, scoped=(*scope.layer.scoped, scoped)
        )
        inner = scope.within(
            layer=layer,
            # A bracket of its own goes to the open slot; one that is on its way goes on through it.
            graft=Graft(call, scope) if call.phases else scope.graft,
            open_slot=scope.open_slot and not call.phases,
            expanding=(*scope.expanding, definition.name),
            named=scope.named,
            parent=scope.parent,
        )
        unresolved = self.parameters.unresolved
        element = self.plan(tree, inner)
        if self.parameters.unresolved == unresolved:
            self._report_unused(call, scoped, scope)
        if element is not None:
            element.definition = call.name
        return None if call.args.positional else element

    def _report_definition_cycle(self, call: Call, scope: Scope) -> None:
        """Report a definition that uses itself, once per cycle."""
        chain = scope.expanding[scope.expanding.index(call.part) :]
        self.parameters.unresolved += 1
        if frozenset(chain) not in self.definitions.cycles:
            self.definitions.cycles.add(frozenset(chain))
            shown = " uses ".join((*chain, call.part))
            message = f"the definition {call.part!r} uses itself: {shown}"
            self.add("circle", message, call, scope)

    def _report_unused(self, call: Call, scoped: ScopedArgs, scope: Scope) -> None:
        for index, (key, _) in enumerate(call.args.named, len(call.args.positional)):
            if key not in scoped.used:
                self.add(
                    "unknown_option",
                    f"no backend of the definition {call.name!r} has an option {key!r}",
                    call,
                    scope,
                    span=call.args.span_of(index) or call.name_span,
                    suggestion=self.problems.nearest(key, scoped.asked),
                )

    # A backend.

    def _backend(
        self, call: Call, spec: BackendSpec, cls: type[Backend], scope: Scope
    ) -> Element | None:
        word = word_of(cls)
        options, origins = OptionsReader(call, cls.Options, scope, self, spec.plugin).read()
        element = Element(call.name, call, spec, cls, options, origins, frames=scope.frames)
        bracket = bracket_of(call, scope)
        if word._joins:
            bracket = brackets.joined(self, bracket)
        use = Use(self, element, bracket, scope)
        good = brackets.check_arity(use)
        brackets.check_prefixes(use)
        wrong = options is None and not scope.lenient
        if not good or (wrong and word._registers_names):
            if word._registers_names and not scope.lenient:
                self.register_wrong(self.node, 0 if self.keys is None else self.keys.instance_num)
            self.plan_all(bracket, names=word._names, is_slot=True)
            return None
        planned = word._plan(use) if bracket.phases else element
        if planned is not element or wrong:
            return None if wrong else planned
        try:
            element.range = static_range(element)
        except ValueError as error:
            self.add("range", f"{element.name}: {error}", element.call, scope)
            return None
        before = len(self.problems)
        word._check(use)
        return element if len(self.problems) == before else None

    # The class behind a name.

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
            self.parameters.unresolved += 1
            self.add(error.code, error.what, call, scope, hint=error.hint)
            return None

    def _unknown(self, call: Call, scope: Scope) -> None:
        """Report an unknown name; the options of what was probably meant are no second error."""
        if not self.all_names:
            self.parameters.unresolved += 1
            return
        near = self._nearest(call, scope)
        problem = registry.unknown(call.name, [near] if near else [])
        self.problems.extend([replace(problem, **scope.layer.place(call))])
        meant = registry.find(near or "", self.files) if problem.suggestion else []
        # A name that is wrong imports nothing: of a class that is not there yet any key may be.
        if not meant or not all(spec.is_loaded for spec in meant):
            self.parameters.unresolved += 1
            return
        with suppress(PluginError, AttributeError):
            for key in meant[0].load().Options.model_fields:
                self.parameters.find((call.name, str(near)), key, scope.layer)

    def _nearest(self, call: Call, scope: Scope) -> str | None:
        """Give the known name that is most like an unknown one."""
        if len(self.problems) >= SUGGESTED:
            return None  # the names are not even listed then
        local = [name for frame in scope.frames for name in frame]
        other = [*self.registered, *self.definitions.names(), *registry.names(self.files)]
        return self.problems.nearest(call.part, [*local, *other])

    def _ambiguous(
        self, call: Call, scope: Scope, offers: list[tuple[str, str]], specs: list[BackendSpec]
    ) -> None:
        offers = [*offers, *((spec.plugin, spec.distribution) for spec in specs)]
        ways = [f"{plugin}:{call.part}" for plugin, _ in offers]
        hint = f"Write {' or '.join(ways)}."
        if len(set(ways)) < len(ways):
            hint = "Give one of them another name, or import only one."
        self.parameters.unresolved += 1
        message = f"{call.name!r} is offered by {' and '.join(d for _, d in offers)}"
        self.add("ambiguous", message, call, scope, hint=hint)
        self._plan_below_unknown(call, scope)

    def _plan_below_unknown(self, call: Call, scope: Scope) -> None:
        """Look into the bracket of a name without a class; some of it may be names."""
        bracket = bracket_of(call, scope)
        near = registry.find(self._nearest(call, scope) or "") if bracket.phases else ()
        core = [spec.load() for spec in near if spec.distribution == "headrace"]
        names = max((word_of(cls)._names for cls in core), default=0)
        self.plan_all(bracket, names=names)
