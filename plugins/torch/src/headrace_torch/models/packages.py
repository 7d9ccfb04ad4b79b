"""Reads which inputs an AOTInductor package takes, because its compiled code does not check them.

The source of that code is in the package. It has checks of dtypes, lengths and strides, which do not run unless
an environment variable asks for them. Here their error messages are read.
"""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

import torch

from headrace.errors import SetupError
from headrace_torch.requests.signature import Port, Signature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["layouts_of", "signature_of"]

_HANDLE = r"input_handles\[(\d+)\]: "
_DTYPE = re.compile(_HANDLE + r"unmatched dtype, [^;]*?\(at::k(\w+)\)")
_LENGTH = re.compile(_HANDLE + r'unmatched dim value at (\d+), "\s*<< "expected: (\d+)')
_STRIDE = re.compile(_HANDLE + r'unmatched stride value at (\d+), "\s*<< "expected: (\d+)')
_LEAST = re.compile(
    _HANDLE + r'dim value is too small at (\d+), "\s*<< "expected it to be >= (\d+)'
)
_MOST = re.compile(_HANDLE + r'dim value is too large at (\d+), "\s*<< "expected to be <= (\d+)')

_DTYPES = {
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Double": torch.float64,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
"""The dtypes by their names in C++."""


def _source(path: Path) -> str:
    """Return the C++ source of the package's code; ``""`` if the package has none."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".cpp")]
        texts = [archive.read(name).decode(errors="replace") for name in names]
    return next((text for text in texts if "input_handles[0]: " in text), "")


def _numbers(pattern: re.Pattern[str], source: str) -> list[dict[int, int]]:
    """Return, for each input, the numbers that its checks contain, by axis."""
    numbers: dict[int, dict[int, int]] = {}
    for index, axis, number in pattern.findall(source):
        numbers.setdefault(int(index), {})[int(axis)] = int(number)
    return [numbers.get(index, {}) for index in range(max(numbers, default=-1) + 1)]


def signature_of(path: Path, names: Sequence[str]) -> Signature:
    """Return a package's inputs, with the dtypes, shapes and range of the batch size that its source declares.

    Args:
        path: The package.
        names: The names of its inputs, in order.

    Raises:
        SetupError: The inputs have no common batch axis.
    """
    source = _source(path)
    dtypes = {int(index): _DTYPES.get(name) for index, name in _DTYPE.findall(source)}
    lengths, strides = _numbers(_LENGTH, source), _numbers(_STRIDE, source)
    least, most = _numbers(_LEAST, source), _numbers(_MOST, source)
    ports = []
    for index, name in enumerate(names):
        fixed = lengths[index] if index < len(lengths) else {}
        steps = strides[index] if index < len(strides) else {}
        rank = max([*fixed, *steps], default=-1) + 1
        shape = tuple(fixed.get(axis) for axis in range(rank)) or None
        ranges = [(axis, *_range(least, most, index, axis)) for axis in range(1, rank)]
        limits = tuple(limit for limit in ranges if limit[1:] != (1, None))
        ports.append(Port(name, shape, dtypes.get(index), limits))
    if any(port.shape is None for port in ports):
        return Signature(tuple(Port(port.name, None, port.dtype) for port in ports))
    first = {port.shape[0] for port in ports if port.shape}
    if len(first) > 1:
        raise SetupError(
            "the inputs of the package have no common batch axis: "
            + ", ".join(f"{port.name} {port.text()}" for port in ports),
            hint="Compile it with the same dynamic first axis in all inputs.",
        )
    batches = [_range(least, most, index, 0) for index in range(len(ports))]
    largest = [limit for _, limit in batches if limit is not None]
    return Signature(
        tuple(ports),
        rows=first.pop(),
        low_rows=max(least for least, _ in batches),
        high_rows=min(largest, default=None),
    )


def _range(
    least: Sequence[dict[int, int]], most: Sequence[dict[int, int]], index: int, axis: int
) -> tuple[int, int | None]:
    """Return the smallest and the largest length of an input's axis. None: any.

    A lower bound of 2 is ignored: torch notes it for every dynamic axis.
    """
    low = least[index].get(axis, 1) if index < len(least) else 1
    high = most[index].get(axis) if index < len(most) else None
    return low if low > 2 else 1, high


def layouts_of(path: Path, names: Sequence[str]) -> list[torch.memory_format]:
    """Return the memory layout in which the compiled code reads each input. It ignores the tensor's strides.

    Raises:
        SetupError: The package was compiled for another layout than those of contiguous or channels-last tensors.
    """
    strides = _numbers(_STRIDE, _source(path))
    layouts = []
    for index, name in enumerate(names):
        steps = strides[index] if index < len(strides) else {}
        last = max(steps, default=0)
        if steps.get(last, 1) == 1:
            layouts.append(torch.contiguous_format)
        elif last == 3 and steps.get(1) == 1:
            layouts.append(torch.channels_last)
        else:
            raise SetupError(
                f"the package was compiled for an input {name!r} whose memory is not in the order of its axes",
                hint="Compile it with contiguous example inputs.",
            )
    return layouts
