"""Runs a session on arrays in the memory of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_tensors import concatenate, named_results, padded_shapes, split_outputs

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence

    from headrace_tensors import Item, Padding, Signature

__all__ = ["CpuRunner"]


class CpuRunner:
    """Runs one session for one instance: the `EngineAdapter` of arrays on the CPU.

    Args:
        session: The session.
        signature: Inputs and outputs of the session.
        run_options: The options of a run.
        current: Entered around each run. None: nothing is.
    """

    cut_axes = settle = None

    def __init__(
        self,
        session: Any,
        signature: Signature,
        run_options: Any,
        current: contextlib.AbstractContextManager[None] | None,
    ) -> None:
        self._session, self._signature, self._options = session, signature, run_options
        self._current = current
        self._names = [port.name for port in signature.outputs]

    def run(self, items: Sequence[Item], padding: Padding) -> list[Any]:
        """Run items that fit together. Give the result of each.

        Raises:
            BackendError: An output does not have the rows of the batch.
        """
        signature, (values, multiple, crops) = self._signature, padding
        rows = signature.filled(sum([item.rows for item in items]))
        feeds = {}
        for port in signature.inputs:
            if port.name not in items[0].tensors:
                continue
            arrays = [item.tensors[port.name] for item in items]
            value = None if values is None else values[port.name]
            feeds[port.name] = (
                concatenate(arrays, port, rows=rows, pad_value=value, pad_multiple=multiple)
                if port.batched
                else arrays[0]
            )
        outputs = self._run(feeds)
        for place in signature.passed:
            outputs[place] = outputs[place].copy()
        shapes = padded_shapes(items, signature, multiple) if crops else None
        apart = split_outputs(outputs, items, signature, rows=rows, crops=crops, padded=shapes)
        return named_results(apart, signature.outputs)

    def _run(self, feeds: dict[str, Any]) -> list[Any]:
        outputs: list[Any]
        if self._current is None:
            outputs = self._session.run(self._names, feeds, self._options)
            return outputs
        with self._current:
            outputs = self._session.run(self._names, feeds, self._options)
        return outputs

    def outputs_of(self, feeds: Mapping[str, Any], rows: int) -> list[Any]:
        """Run inputs whose batch axis is in front, and return each output."""
        ports = [port for port in self._signature.inputs if port.name in feeds]
        return self._run(
            {
                port.name: concatenate([feeds[port.name]], port)
                if port.batched
                else feeds[port.name]
                for port in ports
            }
        )
