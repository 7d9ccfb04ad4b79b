"""Calls of children by a container, with a part of its batch; public in `headrace.words`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._language.contract.backend import Backend
from headrace._run.batches.fitting import indices_to_repeat
from headrace._run.contract.checked import Answers, Filler, Outcomes, filler, weight_of
from headrace._run.steps.tracebacks import none_if_all_ok
from headrace.errors import BatchRangeError, ClosedError
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._language.building.wrappers import Forward


def run_child(
    child: Backend,
    batch: list[Request],
    places: Sequence[int],
    outcomes: Answers,
    *,
    pad: bool,
) -> None:
    """Run a child on the items at some places of a batch, and write into ``outcomes``.

    A child with a max of 1 is called item by item. A part of the batch below the child's min is
    filled up with ``pad``, otherwise each of its items fails with a BatchRangeError. No item's
    error is raised.

    Args:
        child: One of ``context.children``.
        batch: The requests.
        places: The places of the items in ``batch``, without failed ones. No places are no call.
        outcomes: One exception or None per item of ``batch``. Only those at ``places`` are written.
        pad: Whether copies may fill the part up, as ``context.batch.pad`` says.
    """
    some = _call_child(child, [batch[i] for i in places], pad=pad) if places else None
    if some is not None:
        for i, outcome in zip(places, some, strict=True):
            outcomes[i] = outcome


def child_call(child: Backend, *, pad: bool) -> Forward:
    """Return what calls ``child``: the child itself where any part of a batch fits its range."""
    fits = child.max != 1 and child.min == 1
    return child.__call__ if fits else partial(_call_child, child, pad=pad)


def _call_child(child: Backend, batch: list[Request], *, pad: bool) -> Outcomes:
    """Call a child with a part of a batch, which need not fit its range; see `run_child`."""
    if child.max == 1:
        if len(batch) == 1:
            return child(batch)
        answers = [child([request]) for request in batch]
        return none_if_all_ok([None if answer is None else answer[0] for answer in answers])
    if child.min == 1 or weight_of(batch) >= child.min:
        return child(batch)
    filled = fill_up(batch, child) if pad else None
    if filled is None:
        return [_too_few(batch, child, pad=pad) for _ in batch]
    outcomes = child(filled)
    return None if outcomes is None else outcomes[: len(batch)]


def _too_few(batch: Sequence[Request], child: Backend, *, pad: bool) -> BatchRangeError:
    """Make the error of an item of a batch below the min of ``child``.

    With ``pad`` copies do not help either.
    """
    name, weight, least, most = child._label(), weight_of(batch), child.min, child.max
    why = "the other items of the batch failed or went another way"
    also = f"; copies of what is left give no weight of {least} to {most}" if pad else ""
    message = f"only a weight of {weight} is left for {name}, whose min is {least}: {why}{also}"
    hint = "Widen its range, or send smaller weights." if pad else "Set pad = true to fill it up."
    return child._locate(BatchRangeError(message, weight=weight, min=least, max=most, hint=hint))


def fill_up(batch: Sequence[Request], child: Backend) -> list[Request] | None:
    """Return a batch with copies of its items at the end, within the range of a child.

    For a container that calls a child itself. `run_child` does so on its own. The copies have no
    ``result``. Drop their outputs.

    Args:
        batch: The items, of less weight than the child's min.
        child: The child.

    Returns:
        None where no copies bring the batch into the range.
    """
    weights = [request.get("request_size", 1) or 1 for request in batch]
    places = indices_to_repeat(weights, child)
    return None if places is None else [*batch, *(filler(batch[place]) for place in places)]


def select(
    batch: list[Request],
    places: Iterable[int],
    takes: Callable[[Request], Any],
    outcomes: Answers,
    *,
    fillers: bool = True,
) -> list[int]:
    """Return the places of the items accepted by ``takes``, without failed ones.

    An exception of ``takes`` is the outcome of its item alone.

    Args:
        batch: The requests.
        places: The places to look at, in this order.
        takes: Called with each request there, without failed ones.
        outcomes: One exception or None per item of ``batch``.
        fillers: False leaves out the copies of ``pad``. Use it in a container that does more than
            compute a ``result``, such as send the item somewhere.
    """
    taken: list[int] = []
    for i in places:
        if not fillers and isinstance(batch[i], Filler):
            continue
        try:
            if outcomes[i] is None and takes(batch[i]):
                taken.append(i)
        except Exception as odd:  # noqa: BLE001 - the dict is the user's, and may raise anything
            outcomes[i] = odd._passing() if isinstance(odd, ClosedError) else odd
    return taken
