"""New instances in place of the old ones, while requests wait and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._scheduling.admission import unfit
from headrace._scheduling.node import new_racks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.crew import Crew
    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Limits, Node, Rack
    from headrace._scheduling.scheduler import Scheduler
    from headrace._scheduling.signal import Signal

__all__ = ["Exchange"]


class Exchange:
    """Exchanging the instances of a scheduler. It is never called by the main thread."""

    instances: list[Instance]
    limits: Limits
    _node: Node
    _dispatcher: Dispatcher
    _crew: Crew
    _rack: Rack
    _direct_max: int
    _linger: bool

    def exchange(
        self, new: Scheduler, retired: Signal, *, keeps_policies: bool
    ) -> tuple[list[Instance], Sequence[Entry]]:
        """Put the instances and the keys of ``new`` in place of its own.

        What waits goes to the new instances; what weighs more than any of them takes is refused.

        Args:
            new: A scheduler that nobody has called and nobody will.
            retired: Woken when the batch of an old instance ends.
            keeps_policies: Whether its own policies stay.

        Returns:
            The old instances, which are in nobody's service any more and may still run a batch;
            `take_retired` gives those that run none. And the entries to tell their outcome, with
            `tell`, once the caller holds no lock.
        """
        node = self._node
        with node.lock:
            old = node.instances
            for instance in old:
                instance.retired = retired
            node.retiring = [*node.retiring, *old]
            node.instances = self.instances = list(new.instances)
            node.every = [*node.instances, *node.retiring]
            # New racks first: who takes an old instance off an old one sees it, and gives it back.
            node.racks = new_racks()
            self._rack = node.racks[0]
            node.free, node.lays_out = list(new.instances), new._node.lays_out
            node.limits = self.limits = new.limits
            node.lost = False
            node.measure(node.instances)
            self._direct_max, self._linger = new._direct_max, new._linger
            if not keeps_policies:
                self._dispatcher.use(new._dispatcher)
            self._crew.trim(len(node.every))
            for entry in [*node.line, *node.outside]:
                error = unfit(node, entry)
                if error is not None:
                    node.settle_waiting(error, [entry])
            node.let_in()
            self._dispatcher.dispatch(None)
            return old, node.take_settled()

    def tell(self, settled: Sequence[Entry]) -> None:
        """Tell the owners of entries their outcome."""
        self._node.tell(settled)

    def take_retired(self, among: Sequence[Instance]) -> list[Instance]:
        """Give those of the old instances whose last batch has ended; each is given once.

        Their counts stay with the node.
        """
        node = self._node
        with node.lock:
            ended = [i for i in node.retiring if i in among and i.holder is None]
            for instance in ended:
                node.past.absorb(instance)
            node.retiring = [i for i in node.retiring if i not in ended]
            node.every = [*node.instances, *node.retiring]
            self._crew.trim(len(node.every))
            return ended
