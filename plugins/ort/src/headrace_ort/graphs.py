"""The captured CUDA graphs of one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Graph", "Graphs"]


class Graph:
    """A captured batch size: its binding, and the memory that it reads and writes."""

    def __init__(
        self, rows: int, binding: Any, options: Any, inputs: dict[str, Any], outputs: list[Any]
    ) -> None:
        self.rows, self.binding, self.options = rows, binding, options
        self.inputs, self.outputs = inputs, outputs


class Graphs(dict[int, Graph]):
    """The captured graphs by their numbers of rows."""

    def fitting(self, rows: int, tensors: Mapping[str, Any]) -> Graph | None:
        """Return the smallest graph with at least ``rows`` rows that reads these inputs; None if there is none."""
        fitting = [size for size in self if size >= rows]
        graph = self[min(fitting)] if fitting else None
        return graph if graph is not None and graph.inputs.keys() == tensors.keys() else None
