"""The elements of a plan: every name of an expression, with its class, options and bracket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._language.contract.options import keys_of, map_leaves
from headrace._language.expression.tree import Args, Call
from headrace._language.plan.data import Data, Value, plain_copy, to_dict
from headrace._language.plan.declared import keys_named
from headrace._language.registry.backends import source_of
from headrace._texts import error_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._language.contract.backend import Backend
    from headrace._language.contract.options import Options
    from headrace._language.registry.registry import Offer
else:  # for who asks what the annotations mean
    Backend = Offer = Options = Any

Range = tuple[int, "int | None"]
"""The least and the greatest weight of a batch, both included; None for no bound."""

Place = dict[str, Any]
"""A place in the configuration: ``file``, ``path``, ``span`` and ``text`` of a problem."""

Prefix = tuple[tuple[Any, ...], dict[str, Any]]
"""The prefix before a child: its positional values and its named ones."""


@dataclass(frozen=True, eq=False)
class Source:
    """The text in which a name was written. Every `Call` of a configuration has its ``source``.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds the text, None for a dict.
        base: The folder from which relative paths in the text start.
    """

    path: str
    file: str | None = None
    base: Path = Path()


def place_of(call: Call, argument: int | str | None = None) -> Place:
    """Return the place of a name, or of one of its args, for a problem."""
    span = call.name_span or call.span
    if argument is not None:
        span = call.args.span_of(argument) or span
    return {"file": call.source.file, "path": call.source.path, "span": span, "text": call.text}


@dataclass(frozen=True, eq=False)
class Element(Data):
    """One name of an expression, with its meaning. Nothing of it is built.

    Attributes:
        name: The name, as written.
        call: The part of the expression that it was made of.
        offer: The backend that the name means. For a name of an instance, that of the instance.
        cls: The class of that backend.
        options: The checked options, an object of ``cls.Options``. None for a name of an instance.
        origins: Where the value of each option comes from, as in `values`.
        phases: The elements in its bracket, by phase.
        prefixes: The prefix before each child: its positional values and its named ones.
        named: The instance for which the name stands, or None when it means a backend.
        range: The range that the classes state, in weights. ``init`` may narrow it.
        owns_thread: Whether its backend must run in a thread of its own, with these options on
            the node's devices.
        own_thread: Whether a thread of its own is put around it.
    """

    name: str
    call: Call
    offer: Offer
    cls: type[Backend]
    options: Options | None = None
    origins: dict[str, Any] = field(default_factory=dict)
    phases: list[list[Element]] = field(default_factory=list)
    prefixes: list[Prefix] = field(default_factory=list)
    named: Named | None = None
    range: Range = (1, None)
    owns_thread: bool = False
    own_thread: bool = False

    # Who brings it.

    @property
    def backend(self) -> str:
        """The name of the backend, without the qualifier of its plugin."""
        return self.offer.name

    @property
    def distribution(self) -> str:
        """The distribution that brings it. For a registered class its module or file."""
        return self.offer.distribution

    @property
    def version(self) -> str:
        """The version of the distribution. Empty for a registered class."""
        return self.offer.version

    @property
    def registered(self) -> bool:
        """Whether code has registered the class, so that no metadata name it."""
        return self.offer.cls is not None

    @property
    def made_of(self) -> Any:
        """The function or the plain class of which its class was made, else its class."""
        return source_of(self.cls)

    # What is written of it.

    @property
    def children(self) -> list[Element]:
        """The elements in its bracket, all phases one after the other."""
        return list(chain.from_iterable(self.phases))

    @property
    def values(self) -> Mapping[str, Value]:
        """Its options by key, each with its origin."""
        fields = keys_of(self.cls.Options)
        values = {key: getattr(self.options, fields.get(key, key), None) for key in self.origins}
        return {key: Value(plain_copy(values[key]), self.origins[key]) for key in values}

    @property
    def prefix_texts(self) -> tuple[tuple[Any, ...], ...]:
        """The prefix before each child, as written. Empty where there is none."""
        texts = tuple(
            (*map(plain_copy, flags), *(f"{key}={value}" for key, value in named.items()))
            for flags, named in self.prefixes
        )
        return texts if any(texts) else ()

    @property
    def instance(self) -> str | None:
        """The name of its instance: of an ``IoC``, or of a node, as ``node.x``."""
        return None if self.named is None else self.named.name

    @property
    def _referent(self) -> Element | None:
        """The element of the instance of an ``IoC`` for which its name stands; else None."""
        return None if self.named is None or self.named.registered else self.named.element

    # What its class says.

    @cached_property
    def nodes_called(self) -> tuple[str, ...]:
        """The nodes to which its backend sends requests; see `headrace.Backend.nodes_called`."""
        known = self.options is not None and self.named is None
        return tuple(dict.fromkeys(self.cls.nodes_called(self.options))) if known else ()

    @property
    def _goes_on_at(self) -> tuple[str, ...]:
        """Those of `nodes_called` at which its backend lets requests go on."""
        return self.nodes_called if self.cls.place.stands == "last" else ()

    @property
    def target(self) -> str | None:
        """The node it sends requests on to, as `headrace_flow.repost.Repost` does."""
        return next(iter(self._goes_on_at), None)

    @property
    def waits(self) -> str | None:
        """The reason why it may wait while it holds its instance."""
        state, options = self.cls.place.waits_while, self.options
        if state is None or options is None:
            return None
        return f"holds its instance while {state.format_map(dict(options))}"

    @property
    def stateful(self) -> bool:
        """Whether its answers depend on earlier requests to the same process."""
        return self.cls.stateful

    @property
    def writes(self) -> tuple[str, ...]:
        """The keys that its class says it writes, also those of an option or a TypedDict."""
        return tuple(keys_named(self.cls, self.options, "writes", optional=True))

    def walk(self, into: Callable[[Element], bool] | None = None) -> list[Element]:
        """Return this element and all below it, parents first.

        Args:
            into: Tells whether the children of an element are given as well, asked of each before
                its children. None for always.
        """
        walked, todo = [], [self]
        while todo:
            element = todo.pop()
            walked.append(element)
            if into is None or into(element):
                for phase in reversed(element.phases):
                    todo.extend(reversed(phase))
        return walked

    def to_dict(
        self,
        backends: Mapping[Element, Backend] | None = None,
        there: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return it and all below it as plain data for JSON.

        Args:
            backends: The built backends by element, which say more of themselves.
            there: The same element as another process has described it.
        """
        backends, there = backends or {}, there or {}
        answer, range_ = there.get("built", {}), [*there.get("range", self.range)]
        below = there.get("children", ())
        if (backend := backends.get(self)) is not None:
            answer, range_ = _answer_of(backend), [backend.min, backend.max]
            if self.cls.builds_elsewhere and isinstance(answer, dict):
                below = answer.pop("children", ())
        children = self.children
        pairs = zip_longest(children, below[: len(children)])
        described = [child.to_dict(backends, inner) for child, inner in pairs]
        return to_dict(self, {"built": answer, "range": range_, "children": described})


def _answer_of(backend: Backend) -> Any:
    """Return what a backend says of itself, or the error that it raises."""
    try:
        return plain_copy(backend.describe())
    except Exception as error:  # noqa: BLE001 - the other backends must be described as well
        return {"error": error_text(error)}


@dataclass(eq=False)
class Named:
    """What a name stands for: an instance of an enclosing ``IoC``, or a node.

    Attributes:
        name: The name, ``node.x`` for the node ``x``.
        element: The element from which it is built. None when that is wrong, which has been
            reported.
        node: The node, whose queue calls wait in. None for an element of an ``IoC``.
        depth: How many names lead on from one to the next until an instance that names none: calls
            nest as deep.
    """

    name: str
    element: Element | None
    node: str | None = None

    @cached_property
    def depth(self) -> int:
        """See the attributes."""
        inside = [] if self.element is None else self.element.walk()
        names = [element.named for element in inside if element.named is not None]
        return 1 + max((name.depth for name in names), default=0)

    @property
    def registered(self) -> bool:
        """Whether it is a node."""
        return self.node is not None


def elements_of(roots: Iterable[Element]) -> list[Element]:
    """Return the elements of several expressions, one expression after the other."""
    return [element for root in roots for element in root.walk()]


# Values of args.


def prefix_values(prefix: Args | None) -> Prefix:
    """Return a prefix in the form that containers read."""
    if prefix is None:
        return (), {}
    positional = tuple(value_of_expression(value) for value in prefix.positional)
    return positional, {key: value_of_expression(value) for key, value in prefix.named}


def value_of_expression(value: Any) -> Any:
    """Return a value of an expression in the form that options read.

    An expression becomes its text.
    """
    return map_leaves(value, lambda part: str(part) if isinstance(part, Call) else part)
