"""The questions that planner and builder ask a backend class: its answers make it a word.

Planner and builder name no word. They ask the class behind a name. For a plain backend `Word` answers. A word
of `headrace.words` overrides what is different for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from headrace._language.contract.backend import Backend
from headrace._language.expression.tree import EMPTY, Args, Call
from headrace._language.plan.declared import OPTIONAL, ReadKeys, RequiredKeys, keys_named
from headrace._language.plan.planning import Phases, Planning, Scope, prefix_values
from headrace._language.registry.backends import source_of
from headrace._language.registry.discovery import CORE_BACKENDS, load
from headrace._run.checked import Outcomes
from headrace._texts import nearest
from headrace.errors import ContractError
from headrace.keys import DATA, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace._language.plan.element import Element, NodePlan


class Word(Backend):
    """A backend that says how it is planned and built. The defaults are those of a plain backend.

    Attributes:
        _names: How many of its children are names, and no backends. `_plan` is only called when they are.
        _wiring: Whether it runs nothing itself: once it is built, its last child is called in its place.
        _joins: Whether it may be replaced by its children where it stands, without prefix, in another one.
        _threaded: Whether its children run in a thread of their own already.
        _in_turn: Whether each child gets the result of the one before as its ``data``.
        _reaches_out: Whether it uses something of the pipeline that another process does not have.
        _not_callable_hint: What to do where it is `not_callable`.
    """

    writes: tuple[str, ...] | type = ("result",)  # stated, so that it can be relied on
    _names: ClassVar[int] = 0
    _wiring: ClassVar[bool] = False
    _joins: ClassVar[bool] = False
    _threaded: ClassVar[bool] = False
    _in_turn: ClassVar[bool] = False
    _reaches_out: ClassVar[bool] = False
    _not_callable_hint: ClassVar[str | None] = "It belongs in the init of a node."

    # Questions of the planner.

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the bracket of the word, which is not empty. None when something in it is wrong.

        The default plans each child as a backend that is called. It plans all children, so that all
        errors are found.

        Returns:
            ``use.element`` with its ``phases``, or another element, when the word only stands for that.
        """
        use.element.prefixes = [prefix_values(child.prefix) for child in use.children]
        late = use.scope.late or use.element.cls.bracket.late
        return use.holding(*([use.child(one, late=late) for one in row] for row in use.phases))

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check whether a planned element, or a name for an instance, may stand where it stands."""
        if use.element.cls.builds_elsewhere:
            _check_stands_alone(use)
        _check_calls(use)
        _check_keys(use)

    @classmethod
    def _waits(cls, element: Element) -> str | None:
        """Say for what it waits while it holds its instance; None for a word that waits for nothing."""
        state, options = element.cls.place.waits_while, element.options
        if state is None or options is None:
            return None
        return f"holds its instance while {state.format_map(dict(options))}"

    # Questions about what a batch meets in it.

    @classmethod
    def _through(cls, element: Element, place: int) -> Element | None:
        """Return the child that a whole batch passes first (``place`` 0) or last (-1).

        None for a word that runs something of its own before or after its children.
        """
        return element.children[-1] if cls._wiring else None

    @classmethod
    def _required_keys(cls, element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
        """Return the keys that every request needs when it comes here, as far as they are known.

        The default is what the class, or the built backend, says that it reads. A container has to say
        so in ``init`` (``self.reads = ()`` for just the keys that all its children need). What its `bracket` gives to
        them no request has to bring.

        Args:
            element: The word.
            built: The built backends by element, for calls of `keys_required_by`.
        """
        children = element.children
        if (child := _child_read(element, built)) is not None:
            return keys_required_by(child, built)
        needs = getattr(built.get(element), "needs", None)
        if element.cls.builds_elsewhere and needs is not None:
            return dict.fromkeys(needs, element.name)  # as what was built there has said
        if len(children) == 1 and element.cls.bracket.keys_option is not None:
            return keys_required_by(children[0], built)  # what it compares need not be there
        made = built.get(element, element.cls)
        if children and not _says_reads(made):
            return {DATA: element.name}  # a container that does not say which keys it needs
        keys = keys_named(made, element.options, "reads")
        own = {key: element.name for key in keys if key == DATA or key not in OPTIONAL}
        if not children or (len(children) == 1 and element.cls.bracket.divides):
            return own  # an item may pass by the only child
        given = {*keys_named(made, element.options, "bracket.gives")}
        needs = [keys_required_by(child, built) for child in children]
        inner = {k: needs[0][k] for k in needs[0] if k not in given and all(k in o for o in needs)}
        return {**inner, **own}

    @classmethod
    def _read_keys(cls, element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
        """Return the keys of a request, as it comes here, on which what the element writes may depend.

        The default is what the class, or the built backend, says that it reads, and what its children read.
        """
        if cls._in_turn:
            return _keys_read_in_turn(element, built)
        found = keys_read_in(element.children, built)
        if _child_read(element, built) is not None:
            return found
        option = element.cls.bracket.keys_option
        if option is not None:
            if (more := getattr(element.options, option, None)) is None:
                return found
            found = {DATA if key is None else key: one for key, one in found.items()}
            return {**found, **dict.fromkeys(more, element.name)}
        made = built.get(element, element.cls)
        if not _says_reads(made):
            return {**found, None: element.name}
        named = [one["key"] for _, one in element.prefixes if "key" in one]
        own = keys_named(made, element.options, "reads", optional=True)
        return {**found, **dict.fromkeys([*own, *named], element.name)}

    # Questions of the builder.

    @classmethod
    def _build(cls, building: Any, element: Element, at: Any) -> Backend:
        """Build an element and all below it.

        Args:
            building: The `headrace._language.build.elements.ElementBuilder`.
            element: The word, or a name with a bracket that stands for an instance of it.
            at: The `headrace._language.build.parts.BuildSite`, where the builder stands.
        """
        built: Backend = building.build_plain(element, at)
        return built

    def _prepare(self, building: Any, element: Element, at: Any) -> None:
        """Take what only the builder can give; called after the children are built and before ``init``."""

    # The answer to a batch.

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse: a word that a batch comes to, once it is built, has a ``forward`` of its own."""
        raise ContractError(f"{self._label()} cannot be called", hint=self._not_callable_hint)


def word_of(cls: type[Backend]) -> type[Word]:
    """Return the class that answers for a backend class: itself, or `Word` for a plain one."""
    return cls if issubclass(cls, Word) else Word


def core_word(name: str) -> type[Word]:
    """Return the word of core called ``name``; `Word` itself when there is none."""
    plugin, _, part = name.rpartition(":")
    path = CORE_BACKENDS.get(part) if plugin in ("", "headrace") else None
    return Word if path is None else _load_word(path)


@cache
def _load_word(path: str) -> type[Word]:
    return word_of(load(path, "headrace"))


def required_keys(root: Element, built: Mapping[Element, Backend]) -> tuple[str, ...]:
    """Return the keys without which a request is refused on entry.

    That is ``data`` wherever a backend may read it. Otherwise it is what the first backend reads: a model
    with several inputs reads the keys that have the names of the inputs.

    Args:
        root: The expression of an instance.
        built: The backends built from its elements, by element.
    """
    found = keys_required_by(root, built)
    return (DATA,) if DATA in found else tuple(sorted(found))


def keys_required_by(element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
    """Return the keys that every request needs at an element, as far as they are known."""
    if element.named is not None:
        inner = None if element.named.registered else element.named.element
        return {DATA: element.name} if inner is None else keys_required_by(inner, built)
    return word_of(element.cls)._required_keys(element, built)


def keys_read_by(element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
    """Return all keys on which what an element writes may depend; None is among them where a backend does not say."""
    named = element.named
    if named is None:
        return word_of(element.cls)._read_keys(element, built)
    if named.registered or named.element is None:
        return {None: element.name}
    return keys_read_by(named.element, built)


def keys_read_in(elements: Iterable[Element], built: Mapping[Element, Backend]) -> ReadKeys:
    """Return all keys on which what any of several elements writes may depend."""
    return {key: one for each in elements for key, one in keys_read_by(each, built).items()}


def _keys_read_in_turn(element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
    """Return what children read of which each gets the result of the one before, unless a prefix lets an item pass by."""
    found: ReadKeys = {}
    passes = True  # whether `data` may still be that of the request
    for child, (flags, named) in zip(element.children, element.prefixes, strict=True):
        inner = keys_read_by(child, built)
        found |= {key: one for key, one in inner.items() if key != DATA or passes or "or" in flags}
        found |= dict.fromkeys(named.values(), element.name)
        passes = passes and bool(flags or named)
    return {**found, DATA: element.name} if passes else found


def _child_read(element: Element, built: Mapping[Element, Backend]) -> Element | None:
    """Return the child whose keys are those of an element, as its class or the built backend says; None for none."""
    place = element.cls.bracket.keys_of_child
    if place is None and element in built:
        place = built[element].bracket.keys_of_child
    return element.children[place] if element.children and place is not None else None


def _says_reads(backend: type[Backend] | Backend) -> bool:
    """Tell whether a class, or a built backend, says what it reads: the default of `Backend` stands for no word of it."""
    cls = backend if isinstance(backend, type) else type(backend)
    said = (vars(one) for one in (backend, *cls.__mro__) if one is not Backend)
    return any("reads" in one for one in said)


# What a word is given while it is planned.


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a word in an expression, as its class sees it while it is planned.

    Attributes:
        planning: The planner.
        element: The word, with its options.
        scope: Where the word stands.
        phases: The content of its bracket, by phase.
    """

    planning: Planning
    element: Element
    scope: Scope
    phases: Phases = ()

    @cached_property
    def children(self) -> list[Call]:
        """The content of its bracket, all phases one after the other."""
        return list(chain.from_iterable(self.phases))

    def add(self, code: str, message: str, at: Call | None = None, **more: Any) -> None:
        """Report a problem at the word, or at another call."""
        self.planning.add(code, message, at or self.element.call, **more)

    def plan(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child, in the scope of the word with ``changes``."""
        return self.planning.plan(child, self.scope.within(**changes))

    def child(self, child: Call, **changes: Any) -> Element | None:
        """Plan a child that the word will call."""
        planned = self.plan(child, **changes)
        return planned if planned is not None and self.may_call(planned) else None

    def holding(self, *phases: list[Element | None]) -> Element | None:
        """Give the word with its planned children; None where one of them is wrong."""
        rows = [[child for child in phase if child is not None] for phase in phases]
        self.element.phases = rows
        return self.element if list(map(len, rows)) == list(map(len, phases)) else None

    def may_call(self, child: Element) -> bool:
        """Check that an element which the word will call can be called; report it if not."""
        if (why := why_not_callable(child)) is not None:
            message = f"{child.name} {why}: {self.element.name} cannot call it"
            hint = word_of(child.cls)._not_callable_hint
            self.add("not_callable", message, child.call, hint=hint)
        return why is None

    def is_name(self, child: Call) -> bool:
        """Check that a child is a plain name; report it if not."""
        plain = not len(child.args) and not child.phases
        if not plain:
            self.add("word", f"{self.element.name} takes a name here, without ( ) and [ ]", child)
        return plain


def _check_calls(use: Use) -> None:
    """Report the nodes that a backend would call, or at which it would let a request go on, and that do not exist."""
    element, nodes = use.element, use.planning.shape.nodes
    if element.options is None or element.named is not None:
        return
    calls = element.cls.nodes_called(element.options) or ()
    for name in dict.fromkeys([*calls, *element.goes_on_at]):
        if name not in nodes:
            near = use.planning.problems.nearest(name, nodes)
            does = "calls" if name in calls else "lets requests go on at"
            what = f"{element.name} {does} the node {name!r}, and there is none of that name"
            hint = None if near else f"There is {', '.join(nodes)}."
            use.add("unknown_instance", what, suggestion=near, hint=hint)


def _check_keys(use: Use) -> None:
    """Report a container that has to know all keys which its children read, where one of them does not say."""
    element, option = use.element, use.element.cls.bracket.keys_option
    if option is None or element.named is not None:
        return
    silent = keys_read_in(element.children, {}).get(None)
    if silent is not None and getattr(element.options, option, None) is None:
        what = f"{element.name} has to know which keys of a request are read inside, and {silent} does not say"
        hint = f"Name them, as {option}=[language]; {option}=[] where that is data alone. A class says it by reads."
        use.add("missing_option", what, hint=hint)


def _check_stands_alone(use: Use) -> None:
    """Report elements in a container that builds elsewhere which another process cannot have."""
    inside = [one for child in use.element.children for one in child.walk()]
    own = {id(one) for one in inside}
    for one in inside:
        named, hint = one.named, None
        texts = [value for _, value in one.options or () if isinstance(value, str)]
        outer = named is not None and (named.registered or id(named.element) not in own)
        if outer or one.cls.uses_pipeline or word_of(one.cls)._reaches_out:
            why = "it reaches for something of the pipeline, which another process does not have"
        elif getattr(source_of(one.cls), "__module__", None) == "__main__":
            why = "it is registered by the program itself, which another process does not run"
            hint = "Put it into a file, and name that under `import`."
        elif any(text.startswith("__main__:") for text in texts):
            why = "it names something of the program itself, which another process does not run"
            hint = "Put that into a module of its own."
        else:
            continue
        message = f"{one.name} cannot stand in {use.element.name}: {why}"
        use.add("elsewhere", message, one.call, hint=hint)


def callee_of(element: Element) -> Element:
    """Follow names and wiring words to the element that is called in the end."""
    return way_to_called(element)[-1]


def way_to_called(element: Element) -> list[Element]:
    """Return an element, the names and wiring words that are followed from it, and the element called in the end.

    The way ends at a name whose calls wait in a queue: a node is called there.
    """
    way = [element]
    while True:
        element = way[-1]
        word, children = word_of(element.cls), element.children
        if element.named is not None and element.named.registered:
            return way
        if element.named is None and word._wiring and element.cls.place.not_callable is None:
            inner = children[-1] if children else None
        else:
            inner = element.named.element if element.named else None
        if inner is None:
            return way
        way.append(inner)


def way_through(root: Element, place: int, *, threads: bool = True) -> Iterator[Element]:
    """Return the elements that a whole batch passes first (``place`` 0) or last (-1), the outermost first.

    The way ends at a name, with ``threads`` False also at the first element inside that has a thread of its own.
    """
    element: Element | None = root
    while element is not None:
        yield element
        if element.named is not None or not (threads or element is root or not element.own_thread):
            return
        word = word_of(element.cls)
        inside = threads and word._threaded
        element = element.children[0] if inside else word._through(element, place)


def edges(root: Element) -> list[Element]:
    """Return the elements of an expression that give items their outcome there: the outermost, the last of an S, ..."""
    *_, last = found = [*way_through(root, -1)]
    if last.cls.bracket.divides and last.named is None:
        found += [one for child in last.children for one in edges(child)]
    return [one for one in found if one.named is None]


def why_not_callable(element: Element) -> str | None:
    """Tell why the backend of an element cannot be called; None when it can."""
    return callee_of(element).cls.place.not_callable


# Elements that own a thread.


def give_thread(root: Element) -> None:
    """Put a thread around an expression if a backend in it owns one, and no thread or process is around that yet."""
    root.own_thread |= _needs_thread(root)


def called_in_other_threads(root: Element) -> Iterator[Element]:
    """Find the names inside a thread that stand for instances outside of it which own theirs."""
    for thread in (one for one in root.walk() if word_of(one.cls)._threaded):
        todo = list(thread.walk())
        made = set(map(id, todo))
        for one in todo:  # and what it names
            target = None if one.named is None or one.named.registered else one.named.element
            if target is None or id(target) in made:
                continue
            made.add(id(target))
            todo += target.walk()
            if _needs_thread(target):
                yield one


def _needs_thread(root: Element) -> bool:
    inside = root.walk(_runs_inside)
    return any(one.owns_thread and one.named is None and _runs_here(one) for one in inside)


def _runs_here(element: Element) -> bool:
    return not (element.own_thread or word_of(element.cls)._threaded)


def _runs_inside(element: Element) -> bool:
    """Tell whether the children of an element run in the thread that runs the element's parent."""
    return _runs_here(element) and not element.cls.builds_elsewhere


def owns_thread(node: NodePlan) -> bool:
    """Tell whether the instances of a node have a thread of their own."""
    return any(not _runs_here(one) for one in way_to_called(node.instance))


# Checking the bracket of a name: the number of its children, and their prefixes.


def check_arity(use: Use) -> bool:
    """Check the number of children; report it if it is wrong."""
    call, cls, phases = use.element.call, use.element.cls, use.phases
    count = len(use.children)
    least, most = _takes(cls)
    right = not phases or len(phases) == cls.bracket.phases
    if right and least <= count and (most is None or count <= most):
        return True
    wanted, got, hint = f"takes {least}", f", got {count}", None
    if most == 0:
        wanted, got = "takes nothing", ""
        if getattr(cls.Options, "positional", ()):
            written = ",".join(map(str, use.children))
            hint = f"What is no backend stands in ( ): {call.name}({written})"
    elif not right:
        expected = cls.bracket.phases
        phase = "one phase" if expected == 1 else f"{expected} phases"
        wanted, got = f"has {phase}", f", separated by ';', got {len(phases)}"
    elif least != most:
        wanted += " or more" if most is None else f" to {most}"
    if not count and call.args.positional:
        hint = f"Write {call.name}[{','.join(map(str, call.args.positional))}]."
    use.add("arity", f"{call.name} {wanted} in brackets{got}", hint=hint)
    return False


def _takes(cls: type[Backend]) -> tuple[int, int | None]:
    return (cls.takes, cls.takes) if isinstance(cls.takes, int) else cls.takes


def joins(call: Call) -> bool:
    """Tell whether an ``S`` may be replaced by its children where it stands in another ``S``."""
    if call.prefix is not None or len(call.args) or not core_word(call.name)._joins:
        return False
    return len(call.phases) == 1 and call.phases[0][0].prefix is None


def check_prefixes(use: Use) -> None:
    """Report the prefixes before the children that their container does not understand."""
    understood = use.element.cls.bracket.prefixes
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
