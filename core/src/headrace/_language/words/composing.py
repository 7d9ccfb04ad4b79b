"""The words that put others together: S and BackgroundThread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._language.building.children import child_call, run_child, select
from headrace._language.contract.groups import Bracket
from headrace._language.plan.declared import combine_ranges, keys_named
from headrace._language.plan.word import Use, Word, way_to_called
from headrace._run.steps.tracebacks import none_if_all_ok
from headrace.errors import NoResultError
from headrace.keys import RESULT, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._language.building.elements import ElementBuilder
    from headrace._language.building.parts import BuildSite
    from headrace._language.contract.backend import Backend, InitContext
    from headrace._language.plan.element import Element
    from headrace._run.contract.checked import Answers, Outcomes

__all__ = ["BackgroundThread", "S", "Sequential"]


class Sequential(Word):
    """Run one backend after the other, the ``result`` of one as ``data`` of the next.

    An item is *ready* at the start and after it got a ``result``. A plain element takes the ready
    items, with ``result`` moved to ``data``. Items that are not ready fail there. ``(or)X`` takes
    the items that are not ready, with their present ``data``. ``(key=k)X`` takes the ready items
    with the key ``k``. ``(or,key=k)X`` takes the items with the key that are not ready. An element
    leaves all other items unchanged. An item ready at the end without a ``result`` gets its
    ``data`` as ``result``.

    Reads:
        data: The inputs of the first element.
    Writes:
        result: The output of the last element.
    Batch:
        The largest min and the smallest max of the elements. An element with a max of 1 is run item
        by item and does not count, unless all have a max of 1. An element with a condition must
        have a min of 1.

    Raises:
        NoResultError: The element before gave an item no ``result``.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "S[Upper,Reverse]"

        ``{"data": "abcd"}`` gives ``"dcba"``::

            backend = "S[Short,(or)Reverse]"

        ``{"data": "abc", "loud": 1}`` gives ``"ABC"``::

            backend = "S[Identity,(key=loud)Upper]"
    """

    takes = (1, None)
    bracket = Bracket(prefixes=("or", "key="), combine_ranges=combine_ranges)
    _in_turn = True

    @classmethod
    def _plan(cls, use: Use) -> Element | None:
        """Plan the elements; refuse ``(or)`` before the first."""
        first = use.children[0]
        if first.prefix is not None and "or" in first.prefix.positional:
            message = f"(or) cannot stand before the first element of {use.element.name}"
            hint = "It means: if the element before gave no result."
            use.add("prefix", message, first, span=first.prefix.span, hint=hint)
        planned = super()._plan(use)
        for silent, after in _without_data(planned) if planned is not None else ():
            keys = ", ".join(keys_named(silent.cls, silent.options, "writes")) or "nothing"
            name, before = after.name, silent.name
            message = f"{name} gets the result of {before}, which writes {keys} and no 'result'"
            hint = (
                f"Write (or){name} to run it on the data that {before} had, or let that write a "
                "result too."
            )
            use.add("no_result", message, after.call, hint=hint)
        return planned

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the children."""
        self._steps = [
            _Step(child, "or" in flags, named.get("key"))
            for child, (flags, named) in zip(
                context.children, context.expression.prefixes, strict=True
            )
        ]
        self._silent: dict[int, Backend] = {}
        self._plain = [*enumerate(child_call(step.child, pad=self._pad) for step in self._steps)]
        if any(step.otherwise or step.key is not None for step in self._steps):
            self._plain = []

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the elements one after the other."""
        if not self._plain:
            return none_if_all_ok(self._run(0, batch, [None] * len(batch)))
        for index, call in self._plain:
            if index:
                moving = iter(batch)
                try:
                    for request in moving:
                        request["data"] = request.pop("result")
                except Exception:  # a request has no result, or its dict raises
                    # `_run` moves the result of every item: the earlier items get theirs back.
                    for earlier in batch[: -1 - len([*moving])]:
                        earlier["result"] = earlier["data"]
                    return self._run(index, batch, [None] * len(batch))
            outcomes = call(batch)
            if outcomes is not None:
                try:
                    return self._run(index + 1, batch, outcomes)
                finally:
                    del outcomes  # see `Entry.take_error`
        return None

    def _run(self, start: int, batch: list[Request], before: Answers) -> Answers:
        """Run the elements from ``start`` on the items that have not failed in those before."""
        outcomes, ready = [*before], [start == 0 or "result" in request for request in batch]
        self._silent = {}
        for index in range(start, len(self._steps)):
            taken = self._take_items(index, batch, outcomes, ready)
            run_child(self._steps[index].child, batch, taken, outcomes, pad=self._pad)
            for i in taken:
                ready[i] = "result" in batch[i]
            self._silent |= {id(batch[i]): self._steps[index].child for i in taken if not ready[i]}
        select(batch, (i for i, is_ready in enumerate(ready) if is_ready), _pass_by, outcomes)
        return outcomes

    def _take_items(
        self, index: int, batch: list[Request], outcomes: Answers, ready: list[bool]
    ) -> list[int]:
        """Return the places of the items that an element takes, and move their results to ``data``.

        An item that should be taken and is not ready fails.
        """
        step = self._steps[index]
        taken: list[int] = []
        for i, request in enumerate(batch):
            if outcomes[i] is not None:
                continue
            try:
                if not step.wants(request, ready[i]):
                    continue
                if not ready[i] and not step.otherwise:
                    after = step.child._label()
                    before = self._last_label(request, index)
                    message = f"{before} wrote no 'result' for the next element, {after}"
                    outcomes[i] = NoResultError(message, backend=before)
                    continue
                if ready[i] and "result" in request:
                    request["data"] = request.pop("result")
            except Exception as odd:  # the dict is the user's
                outcomes[i] = odd
            else:
                taken.append(i)
        return taken

    def _last_label(self, request: Request, before: int | None = None) -> str:
        last = self._steps[:before][-1].child
        silent = last if self._plain else self._silent.get(id(request), last)
        return silent._last_label(request)


class _Step(NamedTuple):
    """One element of an ``S``, and the conditions of its prefix."""

    child: Backend
    otherwise: bool
    key: str | None

    def wants(self, request: Request, ready: bool) -> bool:
        """Tell whether the conditions before the element let an item in."""
        if self.otherwise and ready:
            return False
        return self.key is None or (self.key in request and (self.otherwise or ready))


def _without_data(element: Element) -> Iterator[tuple[Element, Element]]:
    """Return each element that writes no ``result``, with the next one, which needs it."""
    called = [way_to_called(child)[-1] for child in element.children]
    row = [*zip(called, element.prefixes, strict=True)]
    for place, (silent, _) in enumerate(row):
        # An element with another condition than `or` does not take every item.
        later = (pair for pair in row[place + 1 :] if "or" in pair[1][0] or not pair[1][1])
        after, (flags, _) = next(later, (silent, (("or",), {})))
        if "or" in flags or isinstance(silent.cls.writes, property):
            continue
        if RESULT not in keys_named(silent.cls, silent.options, "writes"):
            yield silent, after


def _pass_by(request: Request) -> None:
    """Make ``data`` the ``result`` of an item that has none."""
    if "result" not in request:
        request["result"] = request["data"]


S = Sequential


class BackgroundThread(Word):
    """Let one thread own X: ``init``, every ``forward`` and ``close`` of X happen in it.

    Around a whole instance it costs one hand-over per batch. Inside an expression the thread that
    runs the expression waits for it.

    Reads:
        The inputs of X.
    Writes:
        The outputs of X.
    Batch:
        The range of X.

    Raises:
        The errors of X.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "S[Upper,BackgroundThread[Reverse]]"
    """

    takes = 1
    _threaded = True
    bracket = Bracket(keys_of_child=0)

    @classmethod
    def _build(cls, building: ElementBuilder, element: Element, at: BuildSite) -> Backend:
        """Build X in the thread that will run and close it."""
        return building.in_thread(element, element.children[0], at)
