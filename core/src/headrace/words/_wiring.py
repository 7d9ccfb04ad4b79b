"""The base of the words that only put others together, and are gone once the pipeline is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._build.door import NotCallable
from headrace._build.word import Word

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.at import At
    from headrace._build.word import Building
    from headrace._plan.element import Element

__all__ = ["Wiring"]


class Wiring(Word):
    """A word that stands for the last thing in its bracket, once that is built."""

    _wiring = True
    _needs_of = -1

    @classmethod
    def _through(cls, element: Element, place: int) -> Element | None:
        """Give what it stands for."""
        return element.children[-1]

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build what stands in it, in order; what it stands for is called in its place."""
        built = [building.element(child, at) for child in element.children]
        return NotCallable(element.name) if cls._why_not_callable else built[-1]
