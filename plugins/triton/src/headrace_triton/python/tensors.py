"""Tensors as a ``model.py`` sees them, and the names of their datatypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import ContractError, InputError
from headrace_triton.ports import DTYPES
from headrace_triton.schema import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "NUMPY", "Port", "Tensor", "TritonModelException", "as_bytes", "outputs_of", "ports_seen",
    "tensors_of",
]  # fmt: skip

NUMPY: dict[str, Any] = {
    name: np.object_ if kind == "BYTES" else np.dtype(DTYPES[kind]).type
    for name, kind in DATATYPES.items()
    if kind != "BF16"
}
"""The types of numpy by the names of datatypes. Their numbers are their places, from 1."""

_ON_CPU = (1, 3)
"""Device types of DLPack: memory of the CPU, and memory of the CPU that is pinned for CUDA."""


class TritonModelException(Exception):  # noqa: N818 - models know it by this name
    """An error of a model, or of what it does with this module."""

    def message(self) -> str:
        """Return the text."""
        return str(self)


class _Capsule:
    """A DLPack capsule of the CPU, as numpy takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Tensor:
    """An input or an output: a name, and an array.

    Args:
        name: The name.
        array: A numpy array. Text is of dtype ``object``, with ``bytes`` or ``str`` in it.

    Raises:
        TritonModelException: The array is none, or of numpy's fixed-width text.
    """

    def __init__(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray) and not isinstance(array, np.generic):
            got = type(array).__name__
            raise TritonModelException(f"tensor {name!r}: a numpy array is expected, got {got}")
        if array.dtype.kind in "UV":
            problem = f"tensor {name!r} is of dtype {array.dtype}: text needs dtype object"
            raise TritonModelException(problem)
        self._name, self._array = name, np.asarray(array)

    @classmethod
    def from_dlpack(cls, name: str, given: Any) -> Tensor:
        """Return the tensor of an array of another library, or of a DLPack capsule of the CPU."""
        owner = given if hasattr(given, "__dlpack__") else _Capsule(given)
        if owner.__dlpack_device__()[0] in _ON_CPU:
            owner = np.array(np.from_dlpack(owner))
        return cls._of(name, owner)

    @classmethod
    def _of(cls, name: str, array: Any) -> Tensor:
        """Return the tensor of an array of the CPU, or of another library on a GPU."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._array = name, array
        return tensor

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the array.

        Raises:
            TritonModelException: It lies on a GPU.
        """
        if not self.is_cpu():
            raise TritonModelException(f"tensor {self._name!r} lies on a GPU: use to_dlpack()")
        return self._array

    def on_cpu(self) -> np.ndarray[Any, Any]:
        """Return the array, copied from where it lies."""
        array: Any = self._array
        return array if self.is_cpu() else np.from_dlpack(array.cpu())

    def is_cpu(self) -> bool:
        """Return whether it lies in memory of the CPU."""
        return isinstance(self._array, np.ndarray)

    def shape(self) -> tuple[int, ...]:
        """Return the length of each axis."""
        return tuple(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the number of the datatype."""
        kinds = [*NUMPY.values()]
        kind = self.as_numpy().dtype.type
        return 1 + kinds.index(np.object_ if kind is np.bytes_ else kind)

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule."""
        return self.__dlpack__()

    def __dlpack__(self, **settings: Any) -> Any:
        return self._array.__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def as_bytes(array: Any) -> np.ndarray[Any, Any]:
    """Return an input as a model takes it: elements of text are ``bytes``."""
    values = np.asarray(array)
    if values.dtype.kind not in "OSU":
        return values
    texts = np.empty(values.shape, object)
    texts.reshape(-1)[:] = [x.encode() if isinstance(x, str) else x for x in values.flat]
    return texts


class Port(NamedTuple):
    """An input or output as the model sees it.

    Attributes:
        kind: The type of numpy. None for any.
        dims: The length of each axis, -1 for any, with the axis of the batch.
        optional: Whether requests may lack it.
        expected: What it is, in words.
    """

    kind: Any
    dims: tuple[int, ...]
    optional: bool
    expected: str

    def fits(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether an array has this datatype and shape."""
        dtype, kind, dims = array.dtype, self.kind, self.dims
        if (
            kind is not None
            and dtype.type is not kind
            and (kind is not np.object_ or dtype.kind != "S")
        ):
            return False
        shape = array.shape
        return shape == dims or (
            len(shape) == len(dims)
            and all(want in (-1, has) for want, has in zip(dims, shape, strict=True))
        )

    def converted(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return numbers of another width in this datatype; an array that would lose more than digits as it is."""
        kind = self.kind
        if kind in (None, np.object_) or not np.can_cast(array.dtype, kind, "same_kind"):
            return array
        with np.errstate(over="ignore"):
            cast = array.astype(kind)
        same = cast == array if cast.dtype.kind in "iu" else np.isfinite(cast) | ~np.isfinite(array)
        return cast if same.all() else array


def ports_seen(config: Mapping[str, Any], side: str) -> dict[str, Port]:
    """Return the ports of a configuration by name: those of ``input``, or of ``output``."""
    ports = {}
    for port in config[side]:
        dims = port["reshape"].get("shape", ()) if "reshape" in port else port["dims"]
        shape = [-1] * (config["max_batch_size"] > 0) + [*map(int, dims)]
        expected = f"{port['data_type']} {shape}"
        kind = NUMPY.get(port["data_type"])
        ports[port["name"]] = Port(kind, tuple(shape), bool(port.get("optional")), expected)
    return ports


def tensors_of(ports: Mapping[str, Port], request: Mapping[str, Any]) -> list[Tensor]:
    """Return the inputs of a request.

    Raises:
        InputError: One is missing, or has another datatype or shape.
    """
    tensors = []
    for name, port in ports.items():
        if name in request:
            array = as_bytes(request[name])
            if not port.fits(array):
                got = f"{array.dtype} {[*array.shape]}"
                raise InputError(key=name, expected=port.expected, got=got)
            if not array.flags.writeable:  # bytes of a client; a model may work in place
                array = array.copy()
            tensors.append(Tensor._of(name, array))  # its array is one that `Tensor` takes
        elif not port.optional:
            raise InputError(key=name, expected="an array", got="nothing")
    return tensors


def outputs_of(ports: Mapping[str, Port], tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Return the arrays of a response by name.

    Raises:
        ContractError: One is not among the outputs, or has another datatype or shape.
    """
    outputs = {}
    for tensor in tensors:
        name, array = tensor.name(), tensor.on_cpu()
        port = ports.get(name)
        if port is None:
            hint = f"The configuration has {', '.join(ports) or 'none'}."
            raise ContractError(f"the model gave an output {name!r}", hint=hint)
        if not port.fits(array) and not port.fits(array := port.converted(array)):
            problem = f"the output {name!r} is {array.dtype} {[*array.shape]}"
            raise ContractError(problem, hint=f"The configuration says {port.expected}.")
        outputs[name] = _as_text(array) if array.dtype.kind == "O" else array
    return outputs


def _as_text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an output of text, in which other elements are told as ``str`` tells them."""
    if {*map(type, array.flat)} <= {bytes, str}:
        return array
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [x if isinstance(x, (bytes, str)) else str(x) for x in array.flat]
    return texts
