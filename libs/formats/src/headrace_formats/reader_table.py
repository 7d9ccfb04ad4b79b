"""The table of a reader of foreign files: what becomes of each file, key or field, so that nothing is guessed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

__all__ = ["Mark", "Row", "rows"]

Mark = Literal["obeyed", "harmless", "left out", "refused", ""]


class Row(NamedTuple):
    """What becomes of a file, a key or a field.

    Attributes:
        mark: Whether it is obeyed, changes nothing, is left out with a warning, or is refused. ``""``: it shares the fate of
            what it is in.
        why: Why it is not obeyed, or why other values are refused.
        values: Of what is obeyed the only values that are known, of what is refused those that ask for nothing.
    """

    mark: Mark = ""
    why: str = ""
    values: tuple[Any, ...] = ()

    def takes(self, value: object) -> bool:
        """Return whether a reader takes a value."""
        if self.mark == "refused":
            return value in self.values
        return self.mark != "obeyed" or not self.values or value in self.values


def rows(mark: Mark, why: str, names: str) -> dict[str, Row]:
    """Return one row for several names, which are given with spaces between them."""
    return dict.fromkeys(names.split(), Row(mark, why))
