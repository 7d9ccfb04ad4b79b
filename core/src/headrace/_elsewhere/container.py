"""The base of containers whose part lives elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headrace._backend import InitContext
from headrace._checked import Liveness, batch_alone
from headrace._elsewhere.running import RunningBatch
from headrace._plan.declared import Needs, keys_named
from headrace._plan.word import Word, needs_of
from headrace.errors import InstanceLostError
from headrace.keys import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._backend import Backend
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._plan.element import Element

T = TypeVar("T")


class Isolated(Word):
    """Base of a container whose only child is built elsewhere, and may be lost there and come back.

    ``context.children[0]`` of ``init`` is the plan of the child. ``init`` sets ``reads`` to what the built child
    ``needs``, and ``min`` and ``max`` to its range.

    Attributes:
        alike: How many instances of the node are built with this one, whose parts may be started with its own;
            0 where this one is built alone.
    """

    takes = 1
    builds_elsewhere = True
    alike: int = 0
    _liveness: Liveness  # the builder has set it before `init`

    @classmethod
    def _needs(cls, element: Element, built: Mapping[Element, Backend]) -> Needs:
        """Return the keys that the child needs: once it is built, those that it has reported."""
        made = built.get(element)
        if made is None:
            return needs_of(element.children[0], built)
        return dict.fromkeys(keys_named(made, None, "reads"), element.name)

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Keep the element: the instances of one container find each other by it."""
        self._word = element
        # An instance that is built later has the same element, unless `init` of another backend asks for it.
        first = at.index is not None and not building.asking
        self.alike = building.keys.instance_num if first else 0

    def _last_label(self, request: Request) -> str:
        return self._word.children[0].name

    @property
    def liveness(self) -> Liveness:
        """Whether the instance to which this container belongs can serve; see `Liveness`."""
        return self._liveness

    def siblings(self, context: InitContext, make: Callable[[], T]) -> T:
        """Return what the instances of this container share, made by the first with ``make()``."""
        return context.shared.get_or_create(("isolated", self._word), make)

    def running(self) -> RunningBatch:
        """Return the batch that the instance runs now; for `forward`, in the thread that runs it."""
        return RunningBatch(self._liveness.entries(), may_leave=bool(self._whole))

    def has_emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given (``context.emit``): then nothing runs the request once more."""
        return self._emitted(request)

    def alone(self, request: Request) -> list[Request] | None:
        """Return the batch of one item alone, filled up with copies where the node says ``pad``.

        None where no such batch fits the range, and for an item that is itself such a copy.
        """
        return batch_alone(self, request)

    def lose(self, error: InstanceLostError) -> None:
        """Mark the instance as lost, unless the error has a node: then it ends its batch alone."""
        self._lose(error)

    def located(self, error: InstanceLostError) -> InstanceLostError:
        """Write node and instance into an error that ends its batch, and not the instance; return the error.

        An error without a node, raised by `forward` or among its outcomes, says that the instance itself is lost.
        """
        error.node, error.instance = self._node, self._index
        return error
