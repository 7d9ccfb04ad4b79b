"""Reads the tensors of one request, converts them if ``dtype`` asks for it, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace_tensors as tensors
from headrace_tensors import Item, padding_fits
from headrace_torch.devices.inputs import input_tensor
from headrace_torch.requests.python_numbers import PLAIN, tensor_of_numbers
from headrace_torch.requests.rows import Row
from headrace_torch.requests.tensors import described, dtype_name, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from headrace_torch.devices.place import Place
    from headrace_torch.requests.signature import Port, Signature

__all__ = ["Reader"]


class Reader:
    """Reads requests for one instance.

    Args:
        signature: What the model takes.
        keys: The key of the request for each input name.
        place: Device and stream of the instance.
        dtype: The dtype to which floating inputs are cast. None: they are not cast.
        strict: Whether arrays in the memory of the host are refused by an instance on another device.

    Attributes:
        pads: The value with which axes may be padded, by input, which each tensor must be able to hold. None: no axis
            is padded.
    """

    pads: Mapping[str, float] | None = None

    def __init__(
        self,
        signature: Signature,
        keys: Mapping[str, str],
        *,
        place: Place,
        dtype: torch.dtype | None = None,
        strict: bool = True,
    ) -> None:
        self._signature, self._keys, self._place = signature, keys, place
        self._dtype, self._strict = dtype, strict

    def read(self, request: Mapping[str, Any]) -> Item:
        """Read the inputs of a model from a request.

        Args:
            request: A request. ``request_size`` (default 1) is the number of rows it must have.

        Returns:
            The item. Its tensors are on the instance's device, or all on the CPU.

        Raises:
            InputError: A key is missing, or its value has another dtype, shape or device.
        """
        item = tensors.read_item(
            request,
            self._signature,
            self._keys,
            self._tensor,
            is_sample=self._place.is_sample,
            text=described,
        )
        if self._dtype is None:
            return item
        # An error shows the request's own dtype, so they are cast only now.
        return item._replace(
            tensors={name: self._cast(tensor) for name, tensor in item.tensors.items()}
        )

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _tensor(self, value: Any, port: Port, key: str) -> torch.Tensor:
        if type(value) is Row:
            value = value.tensor()
        elif isinstance(value, PLAIN) and not hasattr(value, "dtype"):
            value = tensor_of_numbers(value, port, key, self._place.device)
        accepts = port.accepts()
        tensor = input_tensor(value, self._place, key, accepts, strict=self._strict)
        _check_dtype(tensor, port, key, self._dtype)
        own = (
            self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype
        )
        pad_value = None if self.pads is None else self.pads[port.name]
        if pad_value is not None and not padding_fits(dtype_name(own), pad_value):
            expected = f"a dtype that holds pad_value = {pad_value}"
            raise refused("this cannot be padded", expected, tensor, key)
        return tensor


def _check_dtype(tensor: torch.Tensor, port: Port, key: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and tensor.is_floating_point():
        if port.dtype is None or port.dtype.is_floating_point:
            return
    elif port.dtype is None and not tensor.is_complex():
        return
    if tensor.dtype != port.dtype:
        raise refused("wrong dtype", port.accepts(), tensor, key)
