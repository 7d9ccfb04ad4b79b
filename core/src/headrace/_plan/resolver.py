"""What a name in brackets means: an instance in scope, a definition, or a backend."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._config.problems import MAX_DEPTH, SUGGESTED, key_place
from headrace._expression.parser import read_expression
from headrace._plan import brackets
from headrace._plan.declared import depending_range, static_range
from headrace._plan.element import Element, Named
from headrace._plan.options import OptionsReader
from headrace._plan.planning import MAX_ELEMENTS, Definition, Planning
from headrace._plan.scope import Graft, Layer, Scope, ScopedArgs, bracket_of, plain_value
from headrace._plan.word import Use, why_not_callable, word_of
from headrace._registry.registry import registry
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.document import Written
    from headrace._expression.tree import Call
    from headrace._plan.parameters import Found
    from headrace._registry.backends import BackendSpec


class Resolver(Planning):
    """Gives the names in expressions their meaning.

    A name that is wrong is reported where it stands, and everything else in its bracket is still
    looked at.
    """

    def fits(self, call: Call, layer: Layer, definition: str = "") -> bool:
        """Tell whether an expression is no deeper and no larger than is allowed; report it if not.

        Args:
            call: The expression.
            layer: Where it was written.
            definition: The definition that it is, if it is one.
        """
        wrong = brackets.too_deep(call)
        if wrong is not None:
            message = f"nested more than {MAX_DEPTH} levels deep"
            place = {**layer.place(call), "span": wrong.name_span or wrong.span}
            self.problems.add("nesting", message, **place)
            return False
        why = self.definitions.why_too_large(call, self.known_node, definition)
        if why:
            self.problems.add("definition", why, **layer.place(call))
        return why is None

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
                call = self.without_prefix(call, layer)
                if self.fits(call, layer):
                    return call
        except ConfigError as error:
            self.problems.extend(error.problems, file=written.file, path=path)
        self.parameters.incomplete = True
        return None

    def without_prefix(self, call: Call, layer: Layer) -> Call:
        """Refuse a prefix before the outermost name."""
        if call.prefix is None:
            return call
        place = {**layer.place(call), "span": call.prefix.span}
        message = "nobody understands the prefix of the outermost name"
        self.problems.add("prefix", message, hint="A prefix belongs to a child in [ ].", **place)
        return call.replace(prefix=None)

    def check_called(self, element: Element, layer: Layer) -> bool:
        """Check that what a node or the pipeline is called through can be called."""
        why = why_not_callable(element)
        if why is not None:
            message = f"{element.name} {why} and cannot be called"
            self.problems.add("not_callable", message, **layer.place(element.call))
        return why is None

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
            self.unresolved += 1
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
            element.range = depending_range(target.cls, child.range)
        if len(self.problems) > before:
            return None
        use = Use(self, element, bracket, scope)
        return element if word_of(target.cls)._check(use) else None

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
            self.parameters.incomplete = True
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
        unknown = self.unresolved
        element = self.plan(tree, inner)
        if self.unresolved == unknown:
            self._report_unused(call, scoped, scope)
        if element is not None:
            element.definition = call.name
        return None if call.args.positional else element

    def _report_definition_cycle(self, call: Call, scope: Scope) -> None:
        """Report a definition that uses itself, once per cycle."""
        chain = scope.expanding[scope.expanding.index(call.part) :]
        self.unresolved += 1
        self.parameters.incomplete = True
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
        return element if word._check(use) else None

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
        local = [name for frame in scope.frames for name in frame]
        other = [*self.registered, *self.definitions.names(), *registry.names(self.files)]
        return self.problems.nearest(call.part, [*local, *other])

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
