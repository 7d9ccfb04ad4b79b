"""Resolving names in expressions: a name means an instance in scope, a definition, or a backend."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._config.problems import MAX_DEPTH, SUGGESTED, key_place
from headrace._expression.parser import read_expression
from headrace._expression.tree import EMPTY, Args, Call
from headrace._plan.declared import states_range, static_range
from headrace._plan.element import DefinitionUse, Element, Named, Source, place_of, takes_dependency
from headrace._plan.options_reader import OptionsReader, hint_for
from headrace._plan.planning import (
    Definition,
    Planning,
    Scope,
    joined,
    open_slot,
    plain_value,
    too_deep,
    with_bracket,
)
from headrace._plan.word import Use, called, core_word, why_not_callable, word_of
from headrace._portable import nearest
from headrace._registry.discovery import KNOWN_ELSEWHERE
from headrace._registry.registry import Offer, registry
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._backend import Backend


class Resolver(Planning):
    """Gives the names in expressions their meaning.

    A wrong name is reported where it stands, and its bracket is planned all the same, to find other problems.
    """

    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""
        if scope.depth > MAX_DEPTH:
            self.add("nesting", f"nested more than {MAX_DEPTH} levels deep", call)
            self.parameters.unresolved += 1
            return None
        if (named := self.named(call.name, scope)) is not None:
            return self.reference(call, named, scope)
        known = self.definitions.get(call.part, ())
        defined = [d for d in known if call.plugin in (None, d.plugin)]
        # A definition of the configuration with the name of a backend has been reported as an error: here it
        # wins, so that its uses are not reported as ambiguous as well.
        own = any(not d.distribution for d in defined)
        backends = [] if own else registry.find(call.name, self.files)
        # Before `Register(Upper)[Upper]` is done, its node means the backend by that name.
        if not defined and not (backends and self.registers(call.name)) and self.refuse_cycle(call):
            return None
        if len(defined) == 1 and not backends:
            return self._expand(call, defined[0], scope)
        offers = [*defined, *backends]
        if not offers:
            self._unknown(call, scope)
        cls = self.load(call, offers) if offers else None
        if cls is None:
            # The bracket of a misspelt word that takes names, as of `Forwrad[node.x]`, holds names: these
            # are no backends that could be planned.
            near = self._nearest(call, scope) if call.phases else None
            self.plan_all(call.children[core_word(near or "")._names :], scope)
            return None
        return self._backend(call, backends[0], cls, scope)

    # Expressions of the configuration.

    def read(self, text: Any, source: Source) -> Call | None:
        """Parse an expression and replace its placeholders; None when it is wrong, which is reported."""
        call = self._parsed(text, source)
        self.parameters.unresolved += call is None
        if call is None or call.prefix is None:
            return call
        message = "nobody understands the prefix of the outermost name"
        hint = "A prefix belongs to a child in [ ]."
        self.add("prefix", message, call, span=call.prefix.span, hint=hint)
        return call.replace(prefix=None)

    def _parsed(self, text: Any, source: Source) -> Call | None:
        node, file, path = self.known_node, source.file, source.path
        if not isinstance(text, str):
            key = path.rpartition(".")[2]
            place = key_place(file, path, key, text)
            self.problems.add("type", f"{key} takes an expression, written as a text", **place)
            return None
        try:
            call = read_expression(text, node_name=node, environ=os.environ, source=source)
        except ConfigError as error:
            self.problems.extend(error.problems, file=file, path=path)
            return None
        if (deep := too_deep(call, _joins)) is None:
            return call
        self.add("nesting", f"nested more than {MAX_DEPTH} levels deep", deep)
        return None

    def planned(self, text: Any, source: Source, scope: Scope) -> Element | None:
        """Parse an expression and plan it; None when something in it is wrong."""
        call = self.read(text, source)
        return None if call is None else self.plan(call, scope)

    def check_called(self, element: Element) -> None:
        """Check that the element through which a node or the pipeline is called can be called."""
        bare = "needs what it depends on" if called(element).is_bare else None
        if (why := why_not_callable(element) or bare) is not None:
            message = f"{element.name} {why} and cannot be called"
            self.add("not_callable", message, element.call)

    # Names of instances.

    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance, perhaps with its dependency in a bracket."""
        named.used = True
        target, children = named.element, call.children
        before = len(self.problems)
        self._check_named(call, named)
        if target is None:
            self.plan_all(children, scope)
            return None
        element = Element(
            call.name, call, target.offer, target.cls, named=named, range=target.range
        )
        if not children:
            if target.is_bare and not (scope.gets_name or call is scope.slot):
                message = f"{call.name!r} needs what it depends on: {call.name}[...]"
                self.add("dependency", message, call)
        elif not target.is_bare or len(children) != 1:
            if target.is_bare:
                self.add("arity", f"{call.name!r} depends on one child", call)
            elif not self.refuse_bracket(call):
                message = f"{call.name!r} is an instance here and takes nothing in brackets"
                hint = "Only an instance of a class with forward_with_dep, built without one, does."
                self.add("arity", message, call, hint=hint)
            self.plan_all(children, scope)
        else:
            if (child := self.plan(children[0], scope.within(parent=target.cls))) is None:
                return None
            element.phases = [[child]]
            if not states_range(target.cls):
                element.range = child.range
        word_of(target.cls)._check(Use(self, element, scope, call.phases))
        return element if len(self.problems) == before else None

    def _check_named(self, call: Call, named: Named) -> None:
        if len(call.args):
            what = f"{call.name!r} is an instance here and takes no args"
            self.add("args", what, call, hint="Write them where it is built.")
        if named.depth > MAX_DEPTH:
            self.add("nesting", f"calls nested more than {MAX_DEPTH} names deep", call)

    # Names of definitions.

    def _expand(self, call: Call, definition: Definition, scope: Scope) -> Element | None:
        """Plan the text of a definition: args in it are defaults, the bracket goes to its open slot."""
        expanding = call.source.expanding
        if definition.name in expanding:
            self._report_definition_cycle(call, expanding[expanding.index(definition.name) :])
            return None
        if call.args.positional:
            message = f"{call.name!r} is a definition and takes no positional args"
            hint = "Write key=value: it goes to every backend of the definition that has the key."
            self.add("args", message, call, 0, hint=hint)
        use = DefinitionUse(call, {key: plain_value(value) for key, value in call.args.named})
        inside, uses = (*expanding, definition.name), (*call.source.uses, use)
        source = replace(definition.source, origin="definition", expanding=inside, uses=uses)
        if (tree := self.read(definition.path, source)) is None:
            self.plan_all(call.children, scope)
            return None
        slot = scope.slot
        if call.phases:
            tree = with_bracket(tree, call.phases)
        elif call is slot:
            slot = open_slot(tree)
        unknown = self.parameters.unresolved + self.parameters.excused
        inner = scope.within(gets_name=scope.gets_name, parent=scope.parent, slot=slot)
        element = self.plan(tree, inner)
        if self.parameters.unresolved + self.parameters.excused == unknown:
            self._report_unused(call, use)
        if element is not None:
            element.definition = call.name
        return None if call.args.positional else element

    def _report_definition_cycle(self, call: Call, chain: tuple[str, ...]) -> None:
        """Report a definition that uses itself, once per cycle."""
        self.parameters.unresolved += 1
        if frozenset(chain) not in self.cycles:
            self.cycles.add(frozenset(chain))
            shown = " uses ".join((*chain, call.part))
            self.add("cycle", f"the definition {call.part!r} uses itself: {shown}", call)

    def _report_unused(self, call: Call, use: DefinitionUse) -> None:
        for key in (key for key in use.values if key not in use.used):
            message = f"no backend of the definition {call.name!r} has an option {key!r}"
            near = self.problems.nearest(key, use.asked)
            hint = hint_for(key, sorted(use.asked))
            self.add("unknown_option", message, call, key, suggestion=near, hint=hint)

    # Names of backends.

    def _backend(
        self, call: Call, offer: Offer, cls: type[Backend], scope: Scope
    ) -> Element | None:
        word = word_of(cls)
        args_only = word._registers_names  # a node's key `name` is meant for its backends
        reader = OptionsReader(call, cls.Options, self, offer.plugin, scope.lenient, args_only)
        options, origins = reader.read()
        element = Element(call.name, call, offer, cls, options, origins, frames=scope.frames)
        phases = call.phases
        if word._joins:
            phases = joined(phases, lambda one: _joins(one) and not self.named(one.name, scope))
        use = Use(self, element, scope, phases)
        good = _check_arity(use) and all(map(use.is_name, use.children[: word._names]))
        _check_prefixes(use)
        wrong = options is None and not scope.lenient
        if not good or (wrong and word._registers_names):
            if word._registers_names and not scope.lenient:
                keys = self.parameters.keys
                self.register_wrong(self.node, 0 if keys is None else keys.instance_num)
            self.plan_all(use.children[word._names :], scope)
            return None
        planned = word._plan(use) if phases else element
        if planned is not element or wrong:
            return None if wrong else planned
        try:
            element.range = static_range(element)
        except ValueError as error:
            self.add("range", f"{element.name}: {error}", element.call)
            return None
        before = len(self.problems)
        word._check(use)
        return element if len(self.problems) == before else None

    def _unknown(self, call: Call, scope: Scope) -> None:
        """Report an unknown name, whose options may be any."""
        self.parameters.unresolved += 1
        if self.all_names:
            near = self._nearest(call, scope)
            problem = registry.unknown(call.name, [near] if near else [])
            self.problems.extend([replace(problem, **place_of(call))])

    def _nearest(self, call: Call, scope: Scope) -> str | None:
        """Return the known name that is most like an unknown one."""
        if len(self.problems) >= SUGGESTED:
            return None  # after so many problems the names are not even listed, which takes time
        local = [name for frame in scope.frames for name in frame]
        here = [*self.registered, *self.definitions, *registry.names(self.files)]
        near = self.problems.nearest(call.part, [*local, *here, *KNOWN_ELSEWHERE])
        ways = [f"{offer.plugin}:{near}" for offer in registry.find(near or "", self.files)]
        return (self.problems.nearest(call.name, ways) if call.plugin else None) or near


# Checking the bracket of a name: the number of its children, and their prefixes.


def _check_arity(use: Use) -> bool:
    """Check the number of children; report it if it is wrong."""
    call, cls, phases, scope = use.element.call, use.element.cls, use.phases, use.scope
    count = len(use.children)
    least, most = _takes(cls)
    if not phases and (call is scope.slot or (scope.gets_name and takes_dependency(cls))):
        return True
    wanted, got, hint = f"takes {least}", f", got {count}", None
    if phases and most != 0 and len(phases) != cls.phases:
        wanted, got = f"has {cls.phases} phases", f", separated by ';', got {len(phases)}"
        if cls.phases == 1:
            wanted, got = "has one phase", f", got {len(phases)} separated by ';'"
            hint = "';' has a meaning in IoC only; write ','."
    elif least <= count and (most is None or count <= most):
        return True
    elif most == 0 and use.planning.refuse_bracket(call):
        return False
    elif most == 0:
        wanted, got = "takes nothing", ""
        if getattr(cls.Options, "positional", ()):
            written = ",".join(map(str, use.children))
            hint = f"What is no backend stands in ( ): {call.name}({written})"
    elif least != most:
        wanted += " or more" if most is None else f" to {most}"
    use.add("arity", f"{call.name} {wanted} in brackets{got}", hint=hint)
    return False


def _takes(cls: type[Backend]) -> tuple[int, int | None]:
    takes = cls.takes or int(takes_dependency(cls))
    return (takes, takes) if isinstance(takes, int) else takes


def _joins(call: Call) -> bool:
    """Tell whether an ``S`` may be replaced by its children where it stands in another ``S``."""
    if call.prefix is not None or len(call.args) or not core_word(call.name)._joins:
        return False
    return len(call.phases) == 1 and call.phases[0][0].prefix is None


def _check_prefixes(use: Use) -> None:
    """Report the prefixes before the children that their container does not understand."""
    understood = use.element.cls.prefixes
    for child in use.children:
        prefix, hint, near = child.prefix or EMPTY, None, None
        wrong = [str(Args((v,))) for v in prefix.positional if {"*", v}.isdisjoint(understood)]
        wrong += [f"({key}=)" for key, _ in prefix.named if f"{key}=" not in understood]
        if wrong:
            knows = ", ".join("any flag" if p == "*" else f"({p})" for p in understood)
            hint, near = f"It understands {knows or 'none'}.", nearest(wrong[0][1:-1], understood)
            what = f"{use.element.name} does not understand the prefix {wrong[0]}"
        elif any(not isinstance(value, str) for key, value in prefix.named if key == "key"):
            what = "(key=...) takes the name of a key"
        else:
            continue
        use.add("prefix", what, child, span=prefix.span, hint=hint, suggestion=near)
