"""The instances of a node: which are free, which end their last batch, and how others take their place. All of it is steps.

An instance is in exactly one place: in `Instances.free`, or with who runs it, or out of service. Callers take free ones without
a step (`headrace._running.shortcut`): taking one is one call into C, and who puts one back looks at the queue afterwards.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._checked import largest_size
from headrace._running.box import ask
from headrace._running.refusals import unfit
from headrace.errors import InstanceLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._running.box import Box
    from headrace._running.instance import Instance, Limits


class Instances:
    """The part of a node that knows its instances.

    Attributes:
        instances: The instances in service; `retiring` those whose last batch has not ended; `every` both.
        free: The instances that nobody runs.
        special: Whether who puts an instance back has to look here: closing, a reload, an instance away or lost.
        min, max, lost: The least and the greatest weight that a living instance takes; whether none lives.
    """

    box: Box
    name: str
    limits: Limits

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.instances: list[Instance] = list(instances)
        self.retiring: list[Instance] = []
        self.every: list[Instance] = self.instances
        self.free: list[Instance] = list(instances)
        self.lost = self.special = False

    if TYPE_CHECKING:  # what the node brings
        queue: Any
        room: Any
        pending: Any
        decision: Any
        short_cut: Any
        reporter: Any
        refusing: Any
        counts: Any

        def touch(self) -> None: ...
        def fail_waiting(self, error: Any, entries: Any) -> None: ...

    def measure(self, living: Sequence[Instance]) -> None:
        """Set the range of the node to the weights that the living instances take."""
        for instance in self.instances:
            instance.limits = self.limits
        maxima = [largest_size(self.limits.batch_sizes, i.max) for i in living] or [None]
        self.max = None if None in maxima else max(maxima)  # type: ignore[type-var]
        self.min = min((i.min for i in living), default=1)

    def give_back(self, instance: Instance) -> None:
        """Take an instance back from who ran it: it becomes free, unless it is retired, away or lost."""
        instance.entries = None
        instance.running_weight = instance.ident = 0
        instance.holder = None
        if instance.adopted is not None:
            self.pending.left(instance)
        instance.away = instance.liveness.pauses
        if instance.retired is not None:
            instance.over = True
            self.box.later(instance.retired.wake)
        elif instance.liveness.lost:
            self.lose(instance)
        elif not instance.away:
            self.free.append(instance)

    def collect(self) -> None:
        """Take out of the free instances those that are retired, away or lost."""
        for instance in [*self.free]:
            leaves = instance.retired is not None or not (instance.serves and instance.living)
            if leaves and self.claimed(instance):
                self.give_back(instance)

    def claimed(self, instance: Instance) -> bool:
        """Take a free instance; False where a caller was quicker."""
        try:
            self.free.remove(instance)
        except ValueError:
            return False
        return True

    def lose(self, instance: Instance) -> None:
        """Take a lost instance out of service, and fail the entries that no other instance takes."""
        self.special = True
        if self.reporter is not None:
            self.box.later(self.reporter.changed, "lost", [instance])
        self.pending.let_go([instance])
        living = [one for one in self.instances if one.living]
        self.measure(living)
        self.lost = not living
        entries = [*self.queue, *self.room.outside]
        if living:
            entries = [one for one in entries if self.max is not None and one.weight > self.max]
        self.fail_waiting(self.no_instance(), entries)

    def no_instance(self) -> InstanceLostError:
        """Make the error of requests for which no living instance is left."""
        why = "no instance that could take the request is left: it was lost"
        hint = f"Pipeline.reload({self.name!r}, {{}}) brings new instances."
        return InstanceLostError(why, node=self.name, hint=hint)

    def watch(self) -> None:
        """Hear of the instances in service whose backend is away, or lost; some may be already."""
        for instance in self.instances:
            instance.liveness.node = self
            instance.liveness.changed = partial(ask, self.box, self._look_at, instance)
            instance.away = instance.liveness.pauses
            if not instance.ready:
                instance.liveness.changed()

    def _look_at(self, instance: Instance) -> None:
        """Take an instance out of service, or back into it, after its `Liveness` has changed."""
        self.special = True
        if instance.away and instance.holder is None and instance.retired is None:
            self.give_back(instance)
        self.collect()
        self.special = not self.is_usual
        self.touch()

    @property
    def is_usual(self) -> bool:
        """Whether who puts an instance back has nothing to look at but the queue."""
        serve = all(one.serves for one in self.instances)
        return serve and not self.retiring and self.refusing is None

    def exchange(self, new: Any, retired: Any, *, keeps_policies: bool) -> list[Instance]:
        """Put the instances of a new node in place of those in service, which are returned."""
        old, self.special = self.instances, True
        for instance in old:
            instance.retired, instance.over = retired, instance.away and instance.holder is None
        self.pending.let_go(old)
        self.retiring = [*self.retiring, *old]
        self.instances = list(new.instances)
        self.every = [*self.instances, *self.retiring]
        self.collect()
        self.limits, self.lost = new.limits, False
        self.watch()
        self.measure(self.instances)
        if not keeps_policies:
            self.decision.use(new.decision.policy, new.decision.chooser)
        self.free.extend(one for one in self.instances if not one.away)
        self.short_cut.measure()
        for entry in [*self.queue, *self.room.outside]:
            error = unfit(self, entry)
            if error is not None:
                self.fail_waiting(error, [entry])
        self.touch()
        if self.reporter is not None:
            for state, instances in (("retired", old), ("ready", self.instances)):
                self.box.later(self.reporter.changed, state, instances)
        return old

    def take_retired(self, among: Sequence[Instance]) -> list[Instance]:
        """Return the old instances whose last batch has ended, each once; the node keeps their counts."""
        ended = [one for one in self.retiring if one in among and (one.over or not one.living)]
        for instance in ended:
            self.counts.absorb(instance)
        self.retiring = [one for one in self.retiring if one not in ended]
        self.every = [*self.instances, *self.retiring]
        self.special = not self.is_usual
        return ended
