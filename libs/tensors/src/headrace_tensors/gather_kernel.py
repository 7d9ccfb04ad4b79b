"""A CUDA kernel that gathers rows from anywhere in device memory to consecutive rows, 64 rows per launch.

A copy of the driver costs the host some 5 us, also inside of ``cuMemcpyBatchAsync``. A launch costs it 11 us, however
many rows it copies (an H200 with driver 580). It copies eight rows of 600 kB in 18 us, where single copies took 49.

The kernel is text in PTX, the assembly language of NVIDIA's virtual machine, which every driver compiles for its own
devices. So no compiler and no binary for each kind of device is needed here. The driver's functions are those of its
"library management", which came with CUDA 12: a kernel that was loaded once can be launched on any device.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Gather: TypeAlias = Callable[[int, Sequence[int], int, int], int]
    """Takes the target, the addresses of the rows, the bytes of a row and the stream; gives the driver's error number."""

__all__ = ["load_gather"]

_ROWS: Final = 64
"""The most rows of one launch: the kernel has so many addresses as parameters."""

_THREADS: Final = 256
"""Most threads of a block."""

_UNITS: Final = {
    16: ("v4.u32", "{%v0, %v1, %v2, %v3}", 4),
    4: ("u32", "%v0", 2),
    1: ("u8", "%v0", 0),
}
"""Bytes that one thread copies: type and registers of the copy, and the logarithm of the bytes.

A thread copies 16 bytes where all addresses and the row are multiples of that, else 4, else one.
"""

_ENTRY: Final = """
.visible .entry gather_BYTES(
    .param .u64 target,                  // the address of the first row
    .param .u64 units,                   // the length of a row, in units
    .param .align 8 .b8 sources[SIZE]    // the addresses from which the rows are copied
)
{
    .reg .pred %outside;
    .reg .b32 %r<5>;
    .reg .b32 %v<4>;
    .reg .b64 %d<9>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    cvt.u64.u32 %d0, %r3;                // d0: which unit of the row
    ld.param.u64 %d1, [units];
    setp.ge.u64 %outside, %d0, %d1;
    @%outside bra done;
    mov.u32 %r4, %ctaid.y;               // r4: which row
    mov.b64 %d2, sources;
    mul.wide.u32 %d3, %r4, 8;
    add.s64 %d2, %d2, %d3;
    ld.param.u64 %d4, [%d2];
    cvta.to.global.u64 %d4, %d4;
    shl.b64 %d5, %d0, SHIFT;
    add.s64 %d4, %d4, %d5;
    ld.global.TYPE VALUES, [%d4];
    cvt.u64.u32 %d6, %r4;
    mad.lo.u64 %d7, %d6, %d1, %d0;
    shl.b64 %d7, %d7, SHIFT;
    ld.param.u64 %d8, [target];
    cvta.to.global.u64 %d8, %d8;
    add.s64 %d8, %d8, %d7;
    st.global.TYPE [%d8], VALUES;
done:
    ret;
}
"""


def ptx() -> str:
    """Return the text of the kernels, one for each number of bytes that a thread copies."""
    text = ".version 6.4\n.target sm_50\n.address_size 64\n"
    for nbytes, (kind, values, shift) in _UNITS.items():
        entry = _ENTRY.replace("BYTES", str(nbytes)).replace("SIZE", str(8 * _ROWS))
        text += entry.replace("TYPE", kind).replace("VALUES", values).replace("SHIFT", str(shift))
    return text


def load_gather() -> Gather | None:
    """Return a function that queues the kernel. None where the driver is too old, or cannot compile it.

    The function keeps the interpreter lock, because getting it back from other threads would take longer than the
    launch. A device must have been made current in this process before.
    """
    try:
        driver = ctypes.PyDLL("libcuda.so.1")
        load, find, launch = (
            driver.cuLibraryLoadData,
            driver.cuLibraryGetKernel,
            driver.cuLaunchKernel,
        )
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    load.argtypes = (pointer, ctypes.c_char_p, pointer, pointer, number, pointer, pointer, number)
    find.argtypes = (pointer, pointer, ctypes.c_char_p)
    launch.argtypes = (pointer, *[number] * 7, pointer, pointer, pointer)
    library, kernels = pointer(), {}
    if load(ctypes.byref(library), ptx().encode(), None, None, 0, None, None, 0):
        return None
    for unit in _UNITS:
        kernel = pointer()
        if find(ctypes.byref(kernel), library, f"gather_{unit}".encode()):
            return None
        kernels[unit] = kernel.value

    def gather(target: int, sources: Sequence[int], row_bytes: int, stream: int) -> int:
        together = target | row_bytes
        for source in sources:
            together |= source
        unit = 1 if together & 3 else 4 if together & 15 else 16
        units = row_bytes // unit
        threads = min(_THREADS, -(-units // 32) * 32)
        for first in range(0, len(sources), _ROWS):
            rows = sources[first : first + _ROWS]
            words = array("Q", (target + first * row_bytes, units, *rows))
            words.frombytes(bytes(8 * (_ROWS - len(rows))))  # the driver copies all parameters
            begin, _ = words.buffer_info()
            parameters = array("Q", (begin, begin + 8, begin + 16))
            grid = (-(-units // threads), len(rows), 1)
            error: int = launch(
                kernels[unit], *grid, threads, 1, 1, 0, stream, parameters.buffer_info()[0], None
            )
            if error:
                return error
        return 0

    return gather
