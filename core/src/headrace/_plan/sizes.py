"""How many elements an expression becomes when its definitions are put in.

Definitions that double each other, ``b = "S[a,a]"``, ``c = "S[b,b]"``, are short to write and become
more elements than any memory holds. So they are counted first, each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._config.nesting import MAX_DEPTH

if TYPE_CHECKING:
    from headrace._expression import Call
    from headrace._plan.definitions import Definition, Definitions

__all__ = ["MAX_ELEMENTS", "Sizes"]

MAX_ELEMENTS = 10_000
"""Most elements that an expression may become through definitions and parameters."""


class Sizes:
    """Counts the elements of expressions.

    Args:
        definitions: All definitions.
    """

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._counted: dict[tuple[str, str | None], int] = {}

    def why_too_large(self, call: Call, node: str | None, definition: str = "") -> str | None:
        """Say why an expression becomes too large, None when it does not.

        Args:
            call: The expression.
            node: The node that it is used in.
            definition: The definition that it is, if it is one.

        Returns:
            A sentence; empty where it is told of a definition that is used.
        """
        count, largest = self.of(call, node, (definition,) if definition else ())
        if count <= MAX_ELEMENTS or largest is None:
            return None
        if not largest.distribution and self.of_definition(largest, node) > MAX_ELEMENTS:
            return ""
        what = f"the definition {definition!r}" if definition else "the expression"
        return (
            f"{what} becomes more than {MAX_ELEMENTS} elements when its definitions are put in, most "
            f"of them through {largest.name!r}"
        )

    def of(
        self, call: Call, node: str | None, using: tuple[str, ...] = ()
    ) -> tuple[int, Definition | None]:
        """Count the elements of an expression.

        Args:
            call: The expression.
            node: The node that it is used in.
            using: The definitions that it stands in, outermost first.

        Returns:
            How many it becomes, and the largest definition that it uses.
        """
        count, largest, most = 0, None, 0
        todo = [call]
        while todo:
            one = todo.pop()
            todo.extend(one.children)
            found = self._definitions.find(one)
            # A circle, and what is nested too deep, is reported where it is put in.
            if not found or found[-1].name in using or len(using) > MAX_DEPTH:
                count += 1
                continue
            size = self.of_definition(found[-1], node, using)
            count += size
            if size > most:
                largest, most = found[-1], size
        return count, largest

    def of_definition(
        self, definition: Definition, node: str | None, using: tuple[str, ...] = ()
    ) -> int:
        """Count the elements that a definition becomes, as of `of`."""
        key = (definition.layer.path, node)
        if key not in self._counted:
            tree = self._definitions.tree(definition, node)
            more = (*using, definition.name)
            self._counted[key] = 1 if tree is None else self.of(tree, node, more)[0]
        return self._counted[key]
