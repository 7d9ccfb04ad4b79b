"""The inputs and outputs of a session on a device: bound in place, and bound again only where they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_ort.device_memory import in_place
from headrace_tensors import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_ort.device_memory import DeviceMemory
    from headrace_tensors import Item, Port, Signature

__all__ = ["Binding", "outputs_last"]


def outputs_last() -> bool:
    """Return whether a binding's outputs outlast it: before ONNX Runtime 1.30 they are references into it."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (1, 30)


class Binding:
    """Binds the rows of batches to the inputs of one session, and new memory to its outputs.

    Args:
        session: The session, on a CUDA or TensorRT provider.
        signature: Inputs and outputs of the session.
        memory: The instance's memory on the device.
        owners: Gets the objects that must live until the stream has done its work.
        kind: ONNX Runtime's name of the kind of device.
        ordinal: The number of the device.
        to_cpu: Whether outputs are bound to the CPU.
    """

    def __init__(
        self,
        session: Any,
        signature: Signature,
        memory: DeviceMemory,
        owners: list[Any],
        *,
        kind: str,
        ordinal: int,
        to_cpu: bool,
    ) -> None:
        self._session, self._signature = session, signature
        self._memory, self._kept = memory, owners
        self._device = kind, ordinal
        self._outputs_on = ("cpu", 0) if to_cpu else self._device
        self._optional = any(port.optional for port in signature.inputs)
        self._lasting = outputs_last()
        self._binding: Any = None
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}

    def bind(self, items: Sequence[Item], rows: int) -> Any:
        """Bind the rows of items, filled up to a number of rows. Return ONNX Runtime's binding for a run."""
        binding = self._binding
        if binding is None:
            binding = self._binding = self._session.io_binding()
            self._bind_outputs()
        if self._optional:
            binding.clear_binding_inputs()  # one that an earlier run brought would stay bound
            self._bound.clear()
        there = [port for port in self._signature.inputs if port.name in items[0].tensors]
        for port in there:
            self._bind_rows(port, items, rows)
        return binding

    def _bind_rows(self, port: Port, items: Sequence[Item], rows: int) -> None:
        """Bind the rows of an input: in place if they are together on the device, else in memory of the instance."""
        arrays = [item.tensors[port.name] for item in items]
        if not port.batched:
            self._binding.bind_cpu_input(port.name, np.ascontiguousarray(arrays[0]))
            return
        shape = (rows, *arrays[0].shape[1:])
        if in_place(arrays, rows):
            self._bind_input(port, arrays[0].pointer, shape)
            self._kept.append(arrays)
        else:
            value = self._memory.staged(port, shape)
            self._memory.fill(value, arrays, port, rows)
            self._bind_input(port, value.data_ptr(), shape)

    def _bind_input(self, port: Port, pointer: int, shape: tuple[int, ...]) -> None:
        """Bind an input to memory on the device, unless it already is, with the same shape."""
        if self._bound.get(port.name) != (pointer, shape):
            dtype = numpy_dtype(port.dtype)
            self._binding.bind_input(port.name, *self._device, dtype, shape, pointer)
            self._bound[port.name] = pointer, shape

    def _bind_outputs(self) -> None:
        """Bind the outputs of the next run to new memory, on the CPU or on the device."""
        for port in self._signature.outputs:
            self._binding.bind_output(port.name, *self._outputs_on)

    def outputs(self) -> list[Any]:
        """Return the outputs of a run on the device."""
        outputs = list(self._binding.get_outputs())
        if not self._lasting:
            for output in outputs:
                output.binding = self._binding  # it owns them, so it must live as long as they do
            self._binding, self._bound = None, {}
        return outputs

    def renew_outputs(self) -> None:
        """Bind the outputs again after a run, since those that were bound belong to the requests, or to a failed run.

        This is not done before the next run, because the device still computes and the host's time costs nothing.
        """
        if self._binding is not None:
            self._binding.clear_binding_outputs()
            self._bind_outputs()

    def close(self) -> None:
        """Drop the session, and what is bound."""
        self._session = self._binding = None
