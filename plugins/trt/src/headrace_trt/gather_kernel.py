"""A kernel that puts rows from anywhere on a device below each other: one launch for a whole batch.

A copy per row costs the host about 3 us each, also where the driver takes many in one call. The kernel is
written in PTX, which the driver translates for whatever device there is; nothing has to be compiled.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Gather = Callable[[int, Sequence[int], int, int], int]

__all__ = ["MOST_ROWS", "PTX", "load_gather", "make_gather"]

MOST_ROWS: Final = 64
"""Rows of one launch: their addresses are among its parameters."""

_THREADS, _MOST_BLOCKS = 128, 32
"""Threads of a block; most blocks that share a row."""

_MOVES: Final = {16: ("v4.u32", "{%w0, %w1, %w2, %w3}"), 4: ("u32", "%w0"), 1: ("u8", "%w0")}
"""What is moved at once where everything is aligned to it: so many bytes, of a type, by registers."""

# Block (x, y) copies its share of row y. A thread begins at its number among the blocks of the row
# and goes on by the number of their threads.
_ENTRY = """
.visible .entry gather%(nbytes)d(
    .param .u64 target, .param .u32 moves, .param .align 8 .b8 sources[%(room)d])
{
    .reg .pred %%done;
    .reg .u32 %%row, %%at, %%step, %%moves, %%t, %%w<4>;
    .reg .u64 %%from, %%to, %%a;
    mov.u32 %%row, %%ctaid.y;
    mov.u32 %%t, %%ntid.x;
    mov.u32 %%at, %%tid.x;
    mov.u32 %%step, %%ctaid.x;
    mad.lo.u32 %%at, %%step, %%t, %%at;
    mov.u32 %%step, %%nctaid.x;
    mul.lo.u32 %%step, %%step, %%t;
    ld.param.u32 %%moves, [moves];
    mul.wide.u32 %%to, %%row, 8;
    mov.u64 %%a, sources;
    add.u64 %%a, %%a, %%to;
    ld.param.u64 %%from, [%%a];
    mul.wide.u32 %%to, %%row, %%moves;
    mul.lo.u64 %%to, %%to, %(nbytes)d;
    ld.param.u64 %%a, [target];
    add.u64 %%to, %%to, %%a;
more:
    setp.ge.u32 %%done, %%at, %%moves;
    @%%done bra end;
    mul.wide.u32 %%a, %%at, %(nbytes)d;
    add.u64 %%a, %%a, %%from;
    ld.global.%(kind)s %(words)s, [%%a];
    mul.wide.u32 %%a, %%at, %(nbytes)d;
    add.u64 %%a, %%a, %%to;
    st.global.%(kind)s [%%a], %(words)s;
    add.u32 %%at, %%at, %%step;
    bra more;
end:
    ret;
}
"""

PTX: Final = ".version 6.3\n.target sm_75\n.address_size 64\n" + "".join(
    _ENTRY % {"nbytes": nbytes, "kind": kind, "words": words, "room": 8 * MOST_ROWS}
    for nbytes, (kind, words) in _MOVES.items()
)


def make_gather(launch: Callable[..., int], kernels: dict[int, Any]) -> Gather:
    """Give what queues a gather: of target, addresses of the rows, their bytes and the stream.

    It gives the driver's error number.

    Args:
        launch: ``cuLaunchKernel``.
        kernels: The kernel that moves so many bytes at once.
    """

    def gather(target: int, pointers: Sequence[int], row_bytes: int, stream: int) -> int:
        common = target | row_bytes
        for pointer in pointers:
            common |= pointer
        nbytes = 1 if common & 3 else 4 if common & 15 else 16
        moves = row_bytes // nbytes
        if moves >= 1 << 31:
            return -1  # they are counted in 32 bits
        blocks = min(-(-moves // _THREADS), _MOST_BLOCKS)
        for first in range(0, len(pointers), MOST_ROWS):
            rows = pointers[first : first + MOST_ROWS]
            values = (
                ctypes.c_uint64(target + first * row_bytes),
                ctypes.c_uint32(moves),
                (ctypes.c_uint64 * MOST_ROWS)(*rows),
            )
            given = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
            sizes = (blocks, len(rows), 1, _THREADS, 1, 1, 0)
            error = launch(kernels[nbytes], *sizes, stream, given, None)
            if error:
                return error
        return 0

    return gather


def load_gather() -> Gather | None:
    """Give the gather of the driver of this machine; None without one that takes the kernel.

    The driver must have been initialised: whoever has made a stream has done so. The kernel is launched with the interpreter's lock: that takes less time than getting it back.
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
    library, none = ctypes.c_void_p(), ctypes.c_void_p()
    if load(ctypes.byref(library), PTX.encode(), none, none, 0, none, none, 0):
        return None
    kernels = {}
    for nbytes in _MOVES:
        kernel = kernels[nbytes] = ctypes.c_void_p()
        if find(ctypes.byref(kernel), library, b"gather%d" % nbytes):
            return None
    number = ctypes.c_uint
    launch.argtypes = (ctypes.c_void_p, *[number] * 7, *[ctypes.c_void_p] * 3)
    launch.restype = ctypes.c_int
    return make_gather(launch, kernels)
