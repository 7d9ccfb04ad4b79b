"""Runs the rows of requests through a module: the `EngineAdapter` of torch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_tensors import cropped, padded_shapes
from headrace_torch.models.padding import gathered
from headrace_torch.models.running import halved
from headrace_torch.requests.items import refuse_ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.errors import BackendError, InputError
    from headrace_tensors import Item, Padding
    from headrace_torch.devices.place import Place
    from headrace_torch.models.running import Runner
    from headrace_torch.requests.signature import Signature

__all__ = ["TorchAdapter", "alike_tensors", "unlike_first"]


class TorchAdapter:
    """Runs rows with one `Runner`, in halves where memory runs out.

    Args:
        runner: Runs the model.
        signature: The inputs.
        place: Device and stream of the instance.
        halve: Whether a batch for which memory runs out is tried again in halves.

    Attributes:
        tried: The error of an earlier run of the batch, for which memory was not enough. None: there was none.
    """

    cut_axes = settle = None

    def __init__(self, runner: Runner, signature: Signature, place: Place, *, halve: bool) -> None:
        self._runner, self._signature, self._place = runner, signature, place
        self._halve = halve
        self.tried: BackendError | None = None

    def filled(self, rows: int) -> int:
        """Return with how many rows to run ``rows`` rows: the model's fixed number, or at least its smallest."""
        return self._signature.rows or max(rows, self._signature.low_rows)

    def run(self, items: Sequence[Item], padding: Padding) -> list[Any]:
        """Run items that fit together. Return a result or an exception for each."""
        once = partial(self._once, padding=padding)
        return halved(once, items, self._place.device, halve=self._halve, tried=self.tried)

    def _once(self, items: Sequence[Item], padding: Padding) -> list[Any]:
        """Run items in one batch, and give each its rows."""
        signature, (values, multiple, crops) = self._signature, padding
        rows = self.filled(sum(item.rows for item in items))
        tensors = [
            gathered(port, items, rows, self._place, pads=values, pad_multiple=multiple)
            for port in signature.inputs
        ]
        outputs = self._runner.run(tensors, rows, new=len(items) > 1)
        shapes = padded_shapes(items, signature, multiple) if crops else {}
        results = []
        start = 0
        for item in items:
            place = slice(start, start + item.rows)
            own = {}
            for name, output in outputs.items():
                if signature.whole & {name, "all"}:
                    own[name] = output
                    continue
                part = cropped(output[place], crops.get(name, ()), item, shapes)
                own[name] = part[0] if item.sample else part
            results.append(next(iter(own.values())) if len(own) == 1 else own)
            start += item.rows
        return results


def alike_tensors(tensor: Any) -> tuple[Any, ...]:
    """Return what tensors that share a run have in common."""
    return tensor.shape[1:], tensor.dtype


def unlike_first(
    items: Sequence[Item], keys: Mapping[str, str], *, padded: bool
) -> dict[int, InputError]:
    """Return the errors of items that cannot run with the first of them, by their places. See `refuse_ragged`."""
    refused = [refuse_ragged(items[0], item, keys, padded=padded) for item in items]
    return {place: error for place, error in enumerate(refused) if error is not None}
