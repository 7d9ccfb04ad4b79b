"""`GpuTensor`, `CpuTensor` and `FixTensor` bring arrays to a device, and into the form that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import TensorBackend, read_key
from headrace_torch.backends.fields import DtypeName, Shapes
from headrace_torch.requests.each import any_has, of_each, put_in_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["CpuTensor", "FixTensor", "GpuTensor"]


class GpuTensor(TensorBackend):
    """Put an array onto the instance's device: a GPU, or the node's ``device``.

    Shape and dtype stay: an image ``[H, W, C]`` of headrace-cv stays ``[H, W, C]``
    (`FixTensor` reorders the axes). An array on the CPU is copied through pinned memory, several of one shape
    in one copy. A tensor on the device is passed on unchanged. With ``device = "cpu"``
    nothing is copied: the tensor shares the memory of the array.

    Reads:
        data: An array of any shape and any dtype that torch has: torch, DLPack, numpy, a buffer.

    Writes:
        result: A tensor of the same dtype and shape on the device.

    Batch:
        1 or more. A bad item fails alone.

    Raises:
        InputError: ``data`` is missing, or torch cannot read it.

    Source:
        Own.
    """

    span_name = "copy in"
    default_device = "cuda:0"
    takes_from = None

    def build(self, options: Any, context: InitContext) -> None:
        """Prepare the memory for copies."""
        from headrace_torch.devices.staging import Staging

        self._staging = Staging(self._place)

    def close(self) -> None:
        """Give that memory back."""
        self._staging.close()
        super().close()

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Move the arrays that are not on the device yet."""
        from headrace_torch.devices.transfer import moved_in, moved_together
        from headrace_torch.requests.tensors import ARRAY, as_tensor

        if len(batch) > 1 and not any_has(batch, "request_size"):
            rows = self._staging.moved_arrays(of_each(batch, "data"))
            if rows is not None:
                self._place.give(batch, rows, hands_on=self._hands_on)
                return None
        outcomes: list[Exception | None] = [None] * len(batch)
        tensors: dict[int, torch.Tensor] = {}
        for index, request in enumerate(batch):
            try:
                value = read_key(request, "data", ARRAY)
                tensors[index] = as_tensor(value)
                if tensors[index] is not value:
                    self._place.keep(value)
            except InputError as error:
                outcomes[index] = error
        if len(tensors) > 1 and not any("request_size" in batch[i] for i in tensors):
            whole = moved_together(list(tensors.values()), self._place)
            if whole is not None:
                self._place.give([batch[i] for i in tensors], whole, hands_on=self._hands_on)
                tensors = {}
        for index, tensor in tensors.items():
            batch[index]["result"] = moved_in(tensor, self._place)
        return outcomes if any(outcomes) else None


class CpuTensor(TensorBackend):
    """Bring a tensor from any device to the CPU, and wait until the copy is done.

    All tensors of a batch are copied with one wait. A tensor on the CPU is passed on unchanged.

    Reads:
        data: An array of any shape and any dtype that torch has, or a table of them by name.

    Writes:
        result: A tensor of the same dtype and shape on the CPU, or with ``numpy`` a numpy array; for
            a table a table. Its values are there, so it may be read at once.

    Batch:
        1 or more. A bad item fails alone.

    Raises:
        InputError: ``data`` is missing, torch cannot read it, or with ``numpy`` it has a dtype
            that numpy lacks.

    Source:
        Own.
    """

    span_name = "copy out"
    takes_from = None
    leaves_on = "cpu"

    class Options(headrace.Options):
        """The kind of the result.

        Attributes:
            numpy: Give a numpy array in place of a tensor (true or false).
        """

        numpy: bool = False

        positional = ("numpy",)

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the kind, and prepare the memory for copies."""
        from headrace_torch.devices.staging import Staging

        self._numpy = options.numpy
        self._staging = Staging(self._place)

    def close(self) -> None:
        """Give that memory back."""
        self._staging.close()
        super().close()

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Copy the tensors that are not on the CPU yet, device by device."""
        from headrace_torch.requests.tensors import ARRAY, as_tensor

        whole = self._place.carried(batch)
        if whole is not None and self._rows_back(batch, whole):
            return None
        outcomes: list[Exception | None] = [None] * len(batch)
        moved: dict[int, dict[str, torch.Tensor]] = {}
        for index, request in enumerate(batch):
            try:
                value = read_key(request, "data", ARRAY)
                parts = value if isinstance(value, dict) and value else {"": value}
                moved[index] = {name: as_tensor(part) for name, part in parts.items()}
            except InputError as error:
                outcomes[index] = error
        self._all_back(moved)
        for index, parts in moved.items():
            try:
                batch[index]["result"] = self._result(parts)
            except InputError as error:
                outcomes[index] = error
        return outcomes if any(outcomes) else None

    def _rows_back(self, batch: list[Request], whole: torch.Tensor) -> bool:
        """Copy the rows of one tensor back in one copy; return False if the requests have to be read one by one."""
        pinned, here = self._place.stream is not None, whole.device.type == "cpu"
        if here and not self._numpy:
            return False  # the tensors are on the CPU, and are passed on unchanged
        back = whole
        if not here:
            back = self._staging.copied_out(whole) if pinned else self._back([whole])[0]
        if not self._numpy:
            put_in_each(batch, "result", (back.clone() if pinned else back).unbind(0))
            return True
        array = self._staging.array_of(back)
        if array is None:
            return False  # numpy lacks the dtype; when they are read one by one, each request gets that error
        array = array.copy() if pinned else array
        put_in_each(batch, "result", [array[index, ...] for index in range(len(batch))])
        return True

    def _all_back(self, outputs: dict[int, dict[str, torch.Tensor]]) -> None:
        """Replace tensors on devices by copies on the CPU."""
        elsewhere: dict[torch.device, list[tuple[int, str]]] = {}
        for index, parts in outputs.items():
            for name, part in parts.items():
                if part.device.type != "cpu":
                    elsewhere.setdefault(part.device, []).append((index, name))
        for places in elsewhere.values():
            tensors = self._back([outputs[index][name] for index, name in places])
            for (index, name), tensor in zip(places, tensors, strict=True):
                outputs[index][name] = tensor

    def _back(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        from headrace_torch.devices.transfer import copied_back

        return copied_back(tensors, self._place.beside(tensors[0].device))

    def _result(self, parts: dict[str, torch.Tensor]) -> Any:
        from headrace_torch.devices.transfer import as_numpy

        arrays = {name: as_numpy(part) if self._numpy else part for name, part in parts.items()}
        return arrays[""] if list(arrays) == [""] else arrays


class FixTensor(TensorBackend):
    """Give a tensor the form for the next model: device, axes, batch axis, and with ``cast`` the dtype.

    The model declares its inputs in ``context.store.scope`` under ``"inputs"`` (TorchModule and engines do so). The options
    fill in the rest. An image ``[H, W, C]`` becomes ``[C, H, W]`` if the model's channels ask for it,
    and a sample gets its batch axis. The next element of this plugin knows about the new axis, even if no rank is
    declared. Values do not change.

    Reads:
        data: An array of the model's dtype (with ``cast`` of another, convertible one): one
            sample, or rows; with the model's axes, or with the channels last.

    Writes:
        result: A tensor on the instance's device with the model's dtype and axes, batch axis
            included: new memory, or that of ``data`` if nothing had to be changed.

    Batch:
        1 or more. A bad item fails alone.

    Raises:
        InputError: ``data`` is missing, torch cannot read it, it has other axes than the model, or
            another dtype while ``cast`` is false.
        BackendError: The model has several inputs, and the option ``input`` names none of them.

    Source:
        Own.
    """

    takes_from = None

    class Options(headrace.Options):
        """The inputs of the model, if it does not declare them, and whether dtypes are converted.

        Attributes:
            cast: Convert to the model's dtype, without scaling (true or false).
            dtype: The dtype, as 'float32', where the model declares none.
            shape: Shape of one sample, '3x224x224' (-1: any length) or 'uint8:3x224x224', or a table by input, where
                the model declares none.
            input: Name of the model's input that `data` is for, if it has several.
        """

        cast: bool = False
        dtype: DtypeName | None = None
        shape: Shapes = None
        input: str | None = Field(default=None, min_length=1)

        positional = ("dtype", "shape")

        @model_validator(mode="after")
        def _one_input(self) -> Self:
            if self.input is None and isinstance(self.shape, dict) and len(self.shape) > 1:
                raise ValueError(
                    f"shape describes {', '.join(self.shape)}: name the one that `data` is for in `input`"
                )
            return self

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the scope: the model behind this element will declare its inputs there.

        A `TorchModule` also calls `take_inputs` of the elements before it, because the scope keeps only the inputs of
        the first of two models.
        """
        from headrace_torch.models import fixing

        self._fixing = fixing
        self._options = options
        self._scope = context.store.scope
        self._inputs: Any = None
        self._target: Any = None
        waiting: list[FixTensor] = context.store.scope.get_or_create(fixing.WAITING, list)
        waiting.append(self)

    def take_inputs(self, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the inputs that the model behind this element declares."""
        self._inputs = inputs

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Fix each request on its own."""
        if self._target is None:
            inputs = self._scope.get("inputs") if self._inputs is None else self._inputs
            self._target = self._fixing.target_of(inputs, self._options)
        outcomes: list[Exception | None] = [None] * len(batch)
        for index, request in enumerate(batch):
            try:
                value = read_key(request, "data", self._target.text)
                fixed = request["result"] = self._fixing.fixed(
                    value,
                    self._target,
                    self._place,
                    rows=request.get("request_size"),
                    cast=self._options.cast,
                )
                self._place.note_axis(request, fixed)
            except InputError as error:
                outcomes[index] = error
        return outcomes if any(outcomes) else None
