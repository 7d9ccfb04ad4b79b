"""The base classes of policies with options, and the default policies."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from headrace._language.contract.options import Options as _Options
from headrace._run.contract import policies as _run


class _HasOptions:
    """Base of both kinds of policies, which keeps their options."""

    Options: ClassVar[type[_Options]] = _Options

    def __init__(self, options: Any = None) -> None:
        self.options: Any = type(self).Options() if options is None else options


class BatchPolicy(_HasOptions, _run.BatchPolicy):
    """Decides when a batch is formed.

    A subclass defines `cut` and perhaps ``Options``, kept as ``self.options``. `cut` is called
    under the lock of the node: it must be quick, change nothing but its own object, and call
    nothing of the pipeline. An error fails all waiting requests with a ContractError. No batch
    leaves the range of its instance. ::

        class Pairs(BatchPolicy):  # two at a time, and a single one after a second
            def cut(self, queue, instance, now):
                if len(queue) >= 2 or now >= queue[0].arrival + 1.0:
                    return Cut(min(len(queue), 2))
                return Cut(0, wake_at=queue[0].arrival + 1.0)

    Attributes:
        Options: Its options. Their names are keys of the node.
        sends_when_idle: True when a request may skip the queue if it finds a free instance, an
            empty queue and nothing to wait for. It speaks of the `cut` of this class: a subclass
            with a `cut` of its own has to state it again. With a dispatch policy other than the
            default no request skips. The policy is not asked for a request that skips, whether it
            was called, submitted or awaited.
        picks: True when the policy picks the requests of a batch, not only their number. `cut` then
            sees the first 256 requests, each with its ``trait``. None skips the queue.
    """


class DispatchPolicy(_HasOptions, _run.DispatchPolicy):
    """Decides which free instance takes the next batch.

    Locks, errors and options are as for `BatchPolicy`. ::

        class LeastLoaded(DispatchPolicy):
            def choose(self, weight, free):
                return min(free, key=lambda instance: instance.batches)

    Attributes:
        Options: Its options. Their names are keys of the node.
    """


class BestFit(DispatchPolicy, _run.BestFit):
    """The default dispatch policy: the instance that fits best, and the least loaded among equals.

    Of the free instances whose range holds the waiting weight it chooses the wide one, else the one
    with the smallest ``max``. If more waits than any of them takes, the one with the largest
    ``max``. If less waits than any of them takes, the one with the smallest ``min``.
    """


class Sized(BatchPolicy, _run.Sized):
    """Base of policies that take no more than an instance takes, in the sizes that the node allows.

    Attributes:
        Options: ``batch_sizes`` and ``pad`` of the node.
    """

    class Options(_Options):
        """Keys of the node that the policy reads.

        Attributes:
            batch_sizes: The weights a batch may have; None allows all.
            pad: Fill a batch that is too small with copies of its last item.
        """

        batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
        pad: bool = False

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        _run.Sized.__init__(self, self.options.batch_sizes or (), pad=self.options.pad)


class Greedy(Sized, _run.Greedy):
    """The default batch policy.

    An idle node sends at once, and batches grow while instances are busy.

    While another instance runs, a free one waits for more requests until its ``max`` is reached,
    the oldest request has waited ``batching_timeout``, or the pipeline closes. With ``batch_sizes``
    it cuts the largest size that is filled, with ``pad`` the smallest size that holds all waiting
    requests. Its name is ``batch_policy = "greedy"``.

    Attributes:
        spreads: Whether free instances wait for no more than they need, and share what waits.
            ``instance_num = "auto"`` sets it.
    """

    class Options(Sized.Options):
        """Keys of the node that the policy reads.

        Attributes:
            batching_timeout: How long the oldest request waits for others, in milliseconds.
        """

        batching_timeout: float = Field(0, ge=0)

    def __init__(self, options: Any = None) -> None:
        BatchPolicy.__init__(self, options)
        keys = self.options
        _run.Greedy.__init__(
            self, keys.batch_sizes or (), pad=keys.pad, batching_timeout_ms=keys.batching_timeout
        )
