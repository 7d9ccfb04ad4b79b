"""Planning all nodes of a configuration, and reporting all its problems."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace._language.config.problems import SUGGESTED, with_lines
from headrace._language.config.sections import NODE_KEYS, GlobalKeys, NodeKeys, Sections
from headrace._language.expression.nesting import MAX_DEPTH, TOO_DEEP, with_room
from headrace._language.expression.tree import Call
from headrace._language.plan.auto import settle_auto
from headrace._language.plan.checks import check_arity, check_placed, check_prefixes
from headrace._language.plan.declared import narrow, no_batch, static_range
from headrace._language.plan.element import Element, Named, Source, elements_of, place_of
from headrace._language.plan.links import plan_links
from headrace._language.plan.nodes import NodePlan, Plan
from headrace._language.plan.options_reader import OptionsReader, plan_policies, plan_probes
from headrace._language.plan.parameters import (
    Parameters,
    check_keys,
    read_expression_of,
    report_keys,
)
from headrace._language.plan.ways import called_in_other_threads, edges, give_thread, way_through
from headrace._language.plan.word import Scope, Use, core_word, why_not_callable, word_of
from headrace._language.registry.discovery import KNOWN_ELSEWHERE, SYNONYMS
from headrace._language.registry.registry import Offer, registry
from headrace._texts import nearest, starting
from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace._language.config.problems import Problems
    from headrace._language.contract.backend import Backend
    from headrace._language.contract.options import Options
    from headrace._language.plan.nodes import NamedPlan
    from headrace._language.registry.registry import Files


MAX_TEXTS = 1000
"""How many parameters one expression may use, those in each other counted as often as they are
written out."""


@dataclass(eq=False)
class Planner:
    """Plans the nodes of one configuration, each when it is first named, else in file order.

    It gives the names in expressions their meaning. A problem is reported at its own place only:
    an element that depends on a wrong one is left out without another report. The bracket of a
    wrong name is planned all the same, to find other problems.

    Args:
        shape: The configuration.
        files: The files that it imports, and what each has registered.
        problems: Takes the problems that are found.
        all_names: Whether all names are known. False when an import has failed.
        refused: Why code that the configuration names may not be imported. None when it may.

    Attributes:
        reported: All problems that are an error. ``problems`` are others while a branch is only
            tried.
        registered: The nodes, as ``node.NAME``. One that is wrong has no element.
        nodes: The nodes that are planned.
        all_parameters: By node, the keys of those whose planning has begun, finished or not.
        parameters: The parameters of the present node.
    """

    shape: Sections
    files: Files
    problems: Problems
    all_names: bool = True
    refused: str | None = None
    registered: dict[str, Named] = field(default_factory=dict)
    nodes: dict[str, NodePlan] = field(default_factory=dict)
    all_parameters: dict[str, Parameters] = field(default_factory=dict)
    parameters: Parameters = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = Parameters("global", self.shape)

    def pipeline(self) -> Plan:
        """Plan everything."""
        nodes = self.shape.nodes
        for name in nodes:
            if name not in self.all_parameters:
                self.plan_node(name)
        keys, probes = self._global_keys()
        links = plan_links(self.shape, self.nodes, self.problems)
        parameters = [*self.all_parameters.values()]
        warnings = with_lines(report_keys(parameters, self.shape, self.problems))
        planned = {name: self.nodes[name] for name in nodes if name in self.nodes}
        about = (self.files, probes, self.refused is None, warnings)
        plan = Plan(planned, tuple(self.nodes), keys, *about)
        settle_auto(plan)
        for name, node in planned.items():
            node._settle(links=links[name])
        return plan

    def _global_keys(self) -> tuple[GlobalKeys, tuple[NamedPlan, ...]]:
        """Read the keys of the whole pipeline, and plan its probes."""
        keys, _ = check_keys(GlobalKeys, "global", self.shape, self.problems)
        for key, written in self.shape.globals.items():  # also what every node has of its own
            check_keys(NodeKeys, "global", Sections(globals={key: written}), self.problems)
        parameters = self.all_parameters["global"] = Parameters("global", self.shape)
        with self.within(parameters):
            return keys, plan_probes(self)

    def plan_node(self, name: str) -> None:
        """Plan one node.

        When it is wrong, its name is registered as wrong, so that uses are no errors.
        """
        keys, origins = check_keys(NodeKeys, name, self.shape, self.problems)
        parameters = self.all_parameters[name] = Parameters(name, self.shape, keys, origins)
        before = len(self.problems)
        with self.within(parameters):
            plan = self._plan_present()
            if plan is not None and len(self.problems) == before:
                self.nodes[name] = plan
            tree = None if plan is None else plan.tree
            self.registered[f"node.{name}"] = Named(f"node.{name}", tree, name)

    # One node.

    def _plan_present(self) -> NodePlan | None:
        """Plan the present node."""
        parameters, plugin_keys = self.parameters, tuple(filter(None, self._keys_of_plugins()))
        stated = (getattr(options, "batch_sizes", None) for options in plugin_keys)
        for sizes in filter(None, stated):
            parameters.keys = parameters.keys.model_copy(update={"batch_sizes": sizes})
            parameters.origins["batch_sizes"] = "node"
        if (policies := plan_policies(self)) is not None:
            parameters.take_keys_of(policies[0], self.problems)
        init, tree = self.at_key("init"), self.at_key("backend")
        if parameters.key("backend") is None:
            self._report_no_backend()
        if tree is None or policies is None:
            return None
        keys, origins = parameters.keys, parameters.origins
        plan = NodePlan(self.node, keys, origins, tree, *policies, init, plugin_keys)
        for root in plan.trees:
            give_thread(root)
            for name in called_in_other_threads(root):
                message = f"{name.name} owns its thread, and is called here in another one"
                hint = "Leave out the BackgroundThread: the whole instance has a thread."
                self.add("thread", message, name.call, hint=hint)
        if (why := why_not_callable(tree)) is not None:
            message = f"{tree.name} {why} and cannot be called"
            self.add("not_callable", message, tree.call, hint="It belongs in the init of a node.")
        self._check_range(plan)
        self._check_places(plan)
        self._check_instances(plan)
        return plan

    def _keys_of_plugins(self) -> Iterator[Options | None]:
        """Read the keys of the present node that belong to plugins, once for each class."""
        written = (o for o in registry.offers("node_keys") if self.parameters.key(o.name))
        for offer in {offer.path: offer for offer in written}.values():
            call = Call(offer.name, source=Source(self.node))
            if (cls := self.load(call, [offer], "key")) is not None:
                yield OptionsReader(call, cls, self).read()[0]

    def at_key(self, key: str) -> Element | None:
        """Plan the expression under a key of the present node. None where the key is missing."""
        written = self.parameters.key(key)
        call = None if written is None else self.read(written.value, written.source)
        return None if call is None else self.plan(call, Scope(reflecting=(f"{self.node}.{key}",)))

    def _report_no_backend(self) -> None:
        """Report a node without ``backend``, unless the key is there and misspelt."""
        if all(nearest(key, NODE_KEYS) != "backend" for key in self.parameters.unused_keys()):
            message, hint = f"node {self.node!r} needs the key 'backend'", 'Write backend = "..."'
            place = {"file": self.shape.file_of(self.node), "path": self.node}
            self.problems.add("missing_option", message, hint=f"{hint} in the node.", **place)

    def _check_places(self, plan: NodePlan) -> None:
        """Check that what may stand only outermost in a node, or last in it, does."""
        placed = [e for e in elements_of(plan.trees) if e.cls.place.stands != "anywhere"]
        if not placed:
            return
        ways = [*zip(way_through(plan.tree, 0), way_through(plan.tree, -1))]  # noqa: B905
        alone = [first for first, last in ways if first is last and first.named is None][-1:]
        for element in placed:
            allowed, where = alone, "outermost in its node"
            why = "what it resumes runs through the node again"
            hint = "Put what comes before or after it into a node of its own, linked by next."
            if element.cls.place.stands == "last":
                allowed, where = edges(plan.tree), "where its node ends"
                why = "a request that goes on elsewhere leaves its node"
                hint = "That is outermost, last in an S there, or in a branch of HasKey there."
            if element not in allowed:
                message = f"{element.name} stands {where} or nowhere: {why}"
                self.add("word", message, element.call, hint=hint)

    def _check_instances(self, plan: NodePlan) -> None:
        """Check that no backend in this process refuses as many instances."""
        count = plan.instance_num
        here = plan.tree.walk(lambda element: not element.cls.builds_elsewhere)
        for element in here if count > 1 else ():
            most = None if element.named else element.cls.most_instances(element.options)
            if most is not None and most < count:
                allows = f"{element.name} allows no more than {most} instances in one process"
                message = f"{allows}: instance_num is {count}"
                self.add("instances", message, element.call, hint=f"Write instance_num = {most}.")

    def _check_range(self, plan: NodePlan) -> None:
        """Check that some weight fits the keys of the node and the range of its expression."""
        tree = plan.tree
        low, high = narrow(tree.range, plan.keys, alias=plan.alias_of is not None)
        if high is None or low <= high:
            return
        keys = map(self.parameters.key, ("batch_policy", "min", "max", "batch_sizes"))
        *_, last = filter(None, keys)
        self.problems.add("range", no_batch(tree.name, tree.range, plan.keys), **last.place())

    # Names in expressions.

    def plan(self, call: Call, scope: Scope) -> Element | None:
        """Plan one element and all below it; None when something in it is wrong."""
        if scope.depth > MAX_DEPTH:
            self.add("nesting", TOO_DEEP, call)
            self.parameters.unresolved += 1
            return None
        if (named := self.instance_named(call.name, scope)) is not None:
            return self.reference(call, named, scope)
        if self.refuse_cycle(call):
            return None
        offers = registry.find(call.name, self.files)
        if not offers:
            self._report_unknown(call, scope)
        cls = self.load(call, offers) if offers else None
        if cls is None:
            # The bracket of a misspelt word that takes names, as of `Forwrad[node.x]`, holds names:
            # these are no backends that could be planned.
            suggestion = self._nearest(call, scope) if call.phases else None
            inside = call.children[core_word(suggestion or "")._names :]
            self.plan_all((child for child in inside if child.name not in self.shape.nodes), scope)
            return None
        return self._backend(call, offers[0], cls, scope)

    # Names of instances.

    def reference(self, call: Call, named: Named, scope: Scope) -> Element | None:
        """Plan a name that stands for an instance."""
        before, target = len(self.problems), named.element
        if len(call.args):
            message = f"{call.name!r} is an instance here and takes no args"
            self.add("args", message, call, hint="Write them where it is built.")
        if call.phases:
            message = f"{call.name!r} is an instance here and takes nothing in brackets"
            self.add("arity", message, call)
        if named.depth > MAX_DEPTH:
            self.add("nesting", f"calls nested more than {MAX_DEPTH} names deep", call)
        self.plan_all(call.children, scope)
        if target is None or len(self.problems) != before:
            return None
        if named.registered:  # its queue takes any weight, as for `Forward`
            (offer,) = registry.find("headrace:Forward", self.files)
            return Element(call.name, call, offer, offer.load(), named=named)
        return Element(call.name, call, target.offer, target.cls, named=named, range=target.range)

    # Names of backends.

    def _backend(
        self, call: Call, offer: Offer, cls: type[Backend], scope: Scope
    ) -> Element | None:
        word = word_of(cls)
        reader = OptionsReader(call, cls.Options, self, offer.plugin)
        options, origins = reader.read()
        owns = cls.owns_thread or self._needs_thread(cls, options)
        element = Element(call.name, call, offer, cls, options, origins, owns_thread=owns)
        if cls.bracket.left_out_option is not None:
            self.parameters.excused += bool(getattr(options, cls.bracket.left_out_option, None))
        phases = call.phases
        if word._in_turn:
            phases = tuple(self._join(phase, scope) for phase in phases)
        use = Use(self, element, scope, phases)
        good = check_arity(use) and all(map(use.is_name, use.children[: word._names]))
        check_prefixes(use)
        if not good:
            self.plan_all(use.children[word._names :], scope)
            return None
        planned = word._plan(use) if phases else element
        if planned is not element or options is None:
            return None if options is None else planned
        try:
            element._settle(range=static_range(element))
        except ValueError as error:
            self.add("range", f"{element.name}: {error}", element.call)
            return None
        before = len(self.problems)
        check_placed(use)
        word._check(use)
        return element if len(self.problems) == before else None

    def _join(self, phase: tuple[Call, ...], scope: Scope) -> tuple[Call, ...]:
        """Return the elements of a phase, with those of a plain sequence in its place."""
        row: list[Call] = []
        for call in phase:
            plain = call.prefix is None and not len(call.args) and len(call.phases) == 1
            joins = plain and core_word(call.name)._in_turn and call.phases[0][0].prefix is None
            if joins and self.instance_named(call.name, scope) is None:
                row += self._join(call.phases[0], scope)
            else:
                row.append(call)
        return tuple(row)

    def _needs_thread(self, cls: type[Backend], options: Options | None) -> bool:
        """Ask a class whether it needs a thread of its own on one of the devices of the node."""
        device = self.parameters.keys.device
        devices = device if isinstance(device, tuple) else (device,)
        return options is not None and any(cls.needs_thread(options, device) for device in devices)

    def _report_unknown(self, call: Call, scope: Scope) -> None:
        """Report an unknown name, whose options may be any."""
        self.parameters.unresolved += 1
        if self.all_names:
            problem = registry.unknown(call.name, (), self._nearest(call, scope))
            empty = [file for file, registered in self.files if not registered]
            if empty and problem.suggestion is None:
                does = f"headrace.register({call.name!r}, ...) in it does"
                hint = f"{empty[0]} registers nothing: {does}."
                problem = replace(problem, hint=hint)
            self.problems.add_all([replace(problem, **place_of(call))])

    def _nearest(self, call: Call, scope: Scope) -> str | None:
        """Return the known name that is most like an unknown one."""
        if len(self.problems) >= SUGGESTED:
            return None  # after so many problems the names are not even listed, which takes time
        local = [name for frame in scope.frames for name in frame]
        here = [*self.registered, *registry.names(self.files)]
        known = [*local, *here]
        name = SYNONYMS.get(call.part.lower()) or starting(call.part, known)
        name = name or self.problems.nearest(call.part, [*known, *KNOWN_ELSEWHERE])
        ways = [f"{offer.plugin}:{name}" for offer in registry.find(name or "", self.files)]
        return (self.problems.nearest(call.name, ways) if call.plugin else None) or name

    # Names of instances, and reading.

    def plan_all(self, calls: Iterable[Call], scope: Scope) -> None:
        """Plan the bracket of a wrong name, so that the problems in it are reported as well."""
        for call in calls:
            self.plan(call, scope.within())

    # The node that is being planned, called the present node.

    @contextmanager
    def within(self, parameters: Parameters) -> Iterator[None]:
        """Make a node the present one inside the ``with``. Others may be entered in turn."""
        outer, self.parameters = self.parameters, parameters
        try:
            yield
        finally:
            self.parameters = outer

    @property
    def node(self) -> str:
        """The name of the present node."""
        return self.parameters.node

    @property
    def known_node(self) -> str | None:
        """The name of the present node; None for ``[global]``."""
        return None if self.node == "global" else self.node

    # Reporting problems.

    def add(
        self, code: str, message: str, call: Call, which: int | str | None = None, **more: Any
    ) -> None:
        """Report a problem at ``call``, or at one of its args."""
        self.problems.add(code, message, **{**place_of(call, which), **more})

    def load(self, call: Call, offers: Sequence[Offer], noun: str = "backend") -> type[Any] | None:
        """Give the class that a name means.

        None where two offer it or it cannot be imported, which is reported.
        """
        if len(offers) > 1:
            ways = [f"{offer.plugin}:{call.part}" for offer in offers]
            hint = f"Write {' or '.join(ways)}."
            if len(set(ways)) < len(ways):
                hint = "Give one of them another name, or import only one."
            message = f"{call.name!r} is offered by {' and '.join(o.distribution for o in offers)}"
            self.add("ambiguous", message, call, hint=hint)
        else:
            try:
                return offers[0].load(noun)
            except PluginError as error:
                self.add(error.code, error.what, call, hint=error.hint)
        self.parameters.unresolved += 1
        return None

    def read(self, text: Any, source: Source) -> Call | None:
        """Parse an expression and replace its placeholders.

        None when it is wrong, which is reported.
        """
        self.parameters.texts += 1
        if self.parameters.texts > MAX_TEXTS:
            self.parameters.unresolved += 1
            if self.parameters.texts == MAX_TEXTS + 1:
                message = f"its parameters are used more than {MAX_TEXTS} times"
                twice = "Parameters that use each other twice double with each level"
                hint = f"{twice}: build less, or write it out."
                self.problems.add("nesting", message, hint=hint, file=source.file, path=source.path)
            return None
        call = read_expression_of(text, source, self.known_node, self.problems)
        self.parameters.unresolved += call is None
        if call is None or call.prefix is None:
            return call
        message = "nobody understands the prefix of the outermost name"
        hint = "A prefix belongs to a child in [ ]."
        self.add("prefix", message, call, span=call.prefix.span, hint=hint)
        return call.replace(prefix=None)

    def refuse_cycle(self, call: Call) -> bool:
        """Report the name of a node that is being planned: it needs itself. False for any other."""
        node = call.name.removeprefix("node.")
        if node == call.name or node not in self.all_parameters or call.name in self.registered:
            return False
        begun = [name for name in self.all_parameters if f"node.{name}" not in self.registered]
        chain = [*begun[begun.index(node) :], node]
        shown = f": {' needs '.join(chain)}" if len(chain) > 2 else ""
        self.add("cycle", f"node {node!r} is needed to build itself{shown}", call)
        return True

    def instance_named(self, name: str, scope: Scope) -> Named | None:
        """Return the instance of an ``IoC`` that ``name`` means, or the node, planned first."""
        for frame in reversed(scope.frames):
            if name in frame:
                return frame[name]
        node = name.removeprefix("node.")
        if node != name and node in self.shape.nodes and node not in self.all_parameters:
            # Nodes that name each other may be a long chain.
            with_room(lambda: self.plan_node(node))
        return self.registered.get(name)
