"""S: one backend after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._build.standing import caller_of, run_some
from headrace._plan.declared import Ranged, sequence
from headrace._plan.word import Word
from headrace.errors import NoResultError
from headrace.keys import DATA, REPOST, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend, InitContext
    from headrace._checked import Outcomes
    from headrace._expression.tree import Call
    from headrace._plan.declared import Needs
    from headrace._plan.element import Element, Range

__all__ = ["S", "Sequential"]


class Sequential(Word):
    """Run one backend after the other, the ``result`` of one as ``data`` of the next.

    An item is *ready* at the start and after an element that gave it a ``result``. A plain element
    takes the ready items, with ``result`` moved to ``data``; items that are not ready fail there.
    ``(or)X`` takes the items that are not ready, on the ``data`` they have; ``(key=k)X`` the ready
    ones that have the key ``k``; ``(or,key=k)X`` needs both. Who is passed by stays as it is. An
    item that is ready at the end without a ``result`` gets its ``data`` as ``result``.

    Reads:
        data: What the first element reads.
    Writes:
        result: What the last element writes.
    Batch:
        The largest min and the smallest max of the elements; those with a max of 1 are run item by
        item and do not count, unless all are. One with a condition takes single items, too.

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

    _reentrant = True

    takes = (1, None)
    prefixes = ("or", "key=")
    _joins = True

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Give the range of the elements together."""
        return sequence(children)

    @classmethod
    def _check_prefix(
        cls, element: Element, child: Call, *, first: bool
    ) -> tuple[str, str | None] | None:
        """Refuse ``(or)`` before the first element."""
        if not first or child.prefix is None or "or" not in child.prefix.positional:
            return None
        return (
            f"(or) cannot stand before the first element of {element.name}",
            "It means: if the element before gave no result.",
        )

    @classmethod
    def _through(cls, element: Element, place: int) -> Element | None:
        """Give the first element or the last one."""
        return element.children[place]

    @classmethod
    def _needs(
        cls, element: Element, inner: Callable[[Element], Needs], built: Backend | None
    ) -> Needs:
        """Give what the first element needs, if none is passed by."""
        first, *rest = element.children
        prefixes = element.prefixes or [((), {}) for _ in element.children]
        if any(prefixes[0]):
            return {DATA: element.name}  # passed by, an item has its data as result
        for child, (flags, _) in zip(rest, prefixes[1:], strict=True):
            if "or" in flags and DATA in inner(child):
                return {DATA: child.name}  # it runs on the data of an item without a result
        return inner(first)

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the children."""
        children = context.children
        prefixes = context.prefixes or tuple(((), {}) for _ in children)
        self._steps = [
            _Step(child, "or" in positional, named.get("key"), pad=self._pad)
            for child, (positional, named) in zip(children, prefixes, strict=True)
        ]
        self._plain = [step.run for step in self._steps]
        if self._reposts or any(step.otherwise or step.key is not None for step in self._steps):
            self._plain = []

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the elements one after the other."""
        if not self._plain:
            ended = self._run(0, batch, [None] * len(batch))
            return ended if any(ended) else None
        first = True
        for index, call in enumerate(self._plain):
            if not first:
                for item, request in enumerate(batch):
                    if "result" not in request:
                        for earlier in batch[:item]:  # they have been moved on already
                            earlier["result"] = earlier["data"]
                        return self._run(index, batch, [None] * len(batch))
                    request["data"] = request.pop("result")
            first = False
            outcomes = call(batch)
            if outcomes is not None:
                try:
                    return self._run(index + 1, batch, outcomes)
                finally:
                    del outcomes  # see `Entry.take_error`
        return None

    def _run(
        self, start: int, batch: list[Request], before: list[Exception | None]
    ) -> list[Exception | None]:
        """Run the elements from ``start`` on the items that have not failed in those before."""
        outcomes, ready = [*before], [start == 0 or "result" in request for request in batch]
        for index in range(start, len(self._steps)):
            taken = self._taken(index, batch, outcomes, ready)
            if not taken:
                continue
            run_some(self._steps[index].run, batch, taken, outcomes)
            for i in taken:
                ready[i] = "result" in batch[i]
        for i, request in enumerate(batch):
            if outcomes[i] is None and ready[i] and "result" not in request:
                request["result"] = request["data"]
        return outcomes

    def _taken(
        self, index: int, batch: list[Request], outcomes: list[Exception | None], ready: list[bool]
    ) -> list[int]:
        """Give the items that an element takes, made ready for it; fail those it cannot take."""
        step = self._steps[index]
        taken: list[int] = []
        for i, request in enumerate(batch):
            if outcomes[i] is not None or not step.wants(request, ready[i]):
                continue
            if self._reposts and REPOST in request:
                continue
            if not ready[i] and not step.otherwise:
                outcomes[i] = self._nothing_before(index, request)
                continue
            if ready[i] and "result" in request:
                request["data"] = request.pop("result")
            taken.append(i)
        return taken

    def _last_label(self, request: Request, before: int | None = None) -> str:
        steps = self._steps[:before]
        ran = [step for step in steps if step.key is None or step.key in request]
        return (ran or steps)[-1].child._last_label(request)

    def _nothing_before(self, index: int, request: Request) -> NoResultError:
        before = self._last_label(request, index)
        return NoResultError(
            f"{before} wrote no 'result' for the next element, {self._steps[index].child._label()}",
            node=self._node,
            backend=before,
            instance=self._index,
        )


class _Step:
    """One element with its conditions."""

    __slots__ = ("child", "key", "otherwise", "run")

    def __init__(self, child: Backend, otherwise: bool, key: str | None, *, pad: bool) -> None:
        self.child = child
        self.run: Callable[[list[Request]], Outcomes] = caller_of(child, pad=pad).__call__
        self.otherwise = otherwise
        self.key = key

    def wants(self, request: Request, ready: bool) -> bool:
        """Tell whether the conditions before the element let an item in."""
        if self.otherwise and ready:
            return False
        return self.key is None or (self.key in request and (self.otherwise or ready))


S = Sequential
