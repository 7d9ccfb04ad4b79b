"""Taking a walk back, all of it or nothing, and where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._scheduling.admission import inside
from headrace._scheduling.entry import DONE, ENTERED, NEW, NOBODY, OUTSIDE, QUEUED, RUNNING
from headrace._scheduling.submission import cancel_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._graph.graph import Graph
    from headrace._graph.steps import Leg
    from headrace._graph.turn import Turn
    from headrace._scheduling.entry import Entry, Owner
    from headrace._scheduling.node import Node
    from headrace._scheduling.scheduler import Scheduler

__all__ = ["TakingBack"]

_WAITING = (NEW, QUEUED, OUTSIDE, ENTERED)


class TakingBack:
    """What a walk does for those who look where it is, and for those who want it no more."""

    _turn: Turn
    _graph: Graph
    _home: Scheduler
    _legs: list[Leg]
    _open: dict[int, tuple[Scheduler, Entry]]
    _over: bool
    _abandoned: bool
    _owner: Owner
    _give_back: Callable[[], None]
    _forget: Callable[[], None]
    _go_on: Callable[[], None]

    @property
    def state(self) -> str:
        """QUEUED while all of it that is open waits, RUNNING while a backend runs, DONE."""
        if self._over:
            return DONE
        states = {entry.state for _, entry in list(self._open.values())}
        return QUEUED if states and states.issubset(_WAITING) else RUNNING

    def check_wait(self, entry: object = None) -> None:
        """Refuse to let this thread wait for the walk while it holds what the walk needs.

        Args:
            entry: Not used, as in `cancel`.

        Raises:
            ContractError: It would wait for ever.
        """
        held = self._held_here()
        if held is not None:
            raise inside(held)

    def _held_here(self) -> str | None:
        """Give a node which the walk has yet to visit and whose instance this thread holds."""
        legs = [] if self._over else list(self._legs)
        for leg in legs:
            for station in leg.route.stations:
                if station.name not in leg.ends and station.scheduler.held_by_this_thread():
                    return station.name
        return None

    def places(self) -> list[tuple[Node, object]]:
        """Give the nodes at which it is, and those that it has yet to visit."""
        if self._over:
            return []
        found = [scheduler.place(entry) for scheduler, entry in list(self._open.values())]
        for leg in list(self._legs):
            stations = [one for one in leg.route.stations if one.name not in leg.ends]
            found += [station.scheduler.place(None) for station in stations]
        return found

    def cancel(self, entry: object = None) -> bool:
        """Take the request back where it waits; False while a backend runs on it, or it is done.

        Args:
            entry: Not used; a walk is cancelled as an entry is.
        """
        if not self._turn.take():
            return False  # between two nodes
        with self._turn.had():
            waiting = [] if self._over else list(self._open.values())
            settled = cancel_all(waiting) if waiting else None
            if settled is not None:
                self._over = True
                self._give_back()
                self._forget()
                self._owner = NOBODY
        if settled is not None:
            self._let_on(settled)
        self._go_on()
        return settled is not None

    def give_up(self) -> bool:
        """Cancel what waits; tell whether a backend still runs on something.

        When it is back nothing of the walk begins any more.
        """
        with self._turn.waited_for():
            over = self._over
            self._over = True
            abandoned = self._abandoned
            for scheduler, entry in list(self._open.values()):
                if not scheduler.cancel(entry):
                    abandoned = scheduler.abandon(entry) or abandoned
            if not over:
                self._owner = NOBODY
                if not abandoned:
                    self._give_back()
            self._forget()
        self._let_on()
        self._go_on()
        return abandoned

    def _let_on(self, settled: Sequence[tuple[Node, Sequence[Entry]]] = ()) -> None:
        """Tell others what has become of them now that the walk is over, and let in who waits."""
        for node, entries in settled:
            node.tell(entries)
        if self._home.outside:
            self._home.let_in()
        self._graph.ended(self)
