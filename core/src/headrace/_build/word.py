"""What the builder asks a class of itself: the building half of what makes a backend a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace._plan.word import PlannedWord

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._build.at import At, Commons
    from headrace._build.parts import Parts
    from headrace._build.standing import InThread
    from headrace._plan.element import Element, NodePlan, PipelinePlan
    from headrace.errors import SetupError


class Building(Protocol):
    """What the builder does for words.

    Attributes:
        plan: The whole pipeline.
        node: The node; None for the pipeline's front.
        name: Its name.
        threads: How many threads one instance may use.
        commons: What belongs to all nodes.
        instances: The instances of the node that are built so far.
        instance_parts: Per instance, what was built for it.
    """

    plan: PipelinePlan
    node: NodePlan | None
    name: str
    threads: int
    commons: Commons
    instances: list[Backend]
    instance_parts: list[Parts]

    def element(self, element: Element, at: At) -> Backend:
        """Build one element and all below it."""

    def child(self, element: Element, at: At) -> Backend:
        """Build an element for one that will call it."""

    def backend(self, element: Element, children: tuple[Backend, ...], at: At) -> Backend:
        """Make the backend that an element means, and let it begin."""

    def bound(self, element: Element, at: At) -> Backend:
        """Build a name that stands for an instance, with what it depends on."""

    def in_thread(
        self, element: Element, inner: Element, build: Callable[[Element, At], Backend], at: At
    ) -> InThread:
        """Build ``inner`` with ``build`` in a thread that will run and close it."""

    def shared_out(self, element: Element, at: At) -> Backend:
        """Build, outside of any instance, what several of them may call."""

    def guarded(self, built: Backend) -> Backend:
        """Let one thread at a time call a backend, unless it can take more."""

    def register(self, name: str, built: Backend) -> Backend:
        """Make an instance known to the whole pipeline; give what is to be called."""

    def schedule(self, backends: list[Backend]) -> Backend:
        """Put the queue of the node before its instances."""

    def failed(self, what: str, backend: str, at: At, hint: str | None = None) -> SetupError:
        """Make the error that says where something could not be built."""


class Word(PlannedWord):
    """A backend that says how it is planned and built; the defaults are those of a plain one."""

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build an element and all below it.

        Args:
            building: The builder.
            element: What to build: the word, or a name for an instance of it with a bracket.
            at: Where the builder stands.
        """
        if element.named is not None:
            return building.bound(element, at)
        children = tuple([building.child(child, at) for child in element.children])
        return building.backend(element, children, at)

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Take what only the builder can give, after the children are built and before ``init``."""

    @classmethod
    def _expect(cls, element: Element, commons: Commons) -> None:
        """Prepare what all nodes share, before any node is built."""


def building_word(cls: type[Backend]) -> type[Word]:
    """Give what answers for a class: itself, or the default for a plain one."""
    return cls if issubclass(cls, Word) else Word
