"""Source lines and instructions of chosen files as points."""

from __future__ import annotations

import dis
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.world import world

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    Files = Mapping[str, Sequence[str] | None]
    """Files whose lines are points, each with the names of the functions that count; None for all."""

_INTERRUPTED_AFTER = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "JUMP_ABSOLUTE")
"""Beginnings of the names of instructions after which CPython raises Ctrl-C."""

_codes = {code for name, code in dis.opmap.items() if name.startswith(_INTERRUPTED_AFTER)}


class Lines:
    """The trace function.

    Args:
        files: The files.
        opcodes: Whether each instruction is a point.
    """

    def __init__(self, files: Files, *, opcodes: bool = False) -> None:
        self._files, self._opcodes = files, opcodes
        # Per frame of the main thread the instruction before; a call of a Python function is taken out.
        self._before: dict[FrameType | None, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Decide whether the lines of a function count."""
        interrupts = world.interrupts > 0 and world.current is world.all[0]
        if interrupts:
            self._before.pop(frame.f_back, None)
        names = self._files.get(frame.f_code.co_filename, ())
        if names is not None and frame.f_code.co_name not in names:
            return None
        if self._opcodes or interrupts:
            frame.f_trace = self._line  # Python 3.13 wants it first
            frame.f_trace_opcodes = True
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not world.runs:
            return None
        file = frame.f_code.co_filename
        if event == "line":
            world.point("", file)
        elif event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            if before is not None and world.interrupts and frame.f_code.co_code[before] in _codes:
                world.point("after a call", file)
            elif self._opcodes:
                world.point("", file)
        elif event == "return":
            self._before.pop(frame, None)
        return self._line

    def forget(self) -> None:
        """Forget all frames: one that an interrupt has left would keep alive what it refers to."""
        self._before.clear()

    def begin(self, frame: FrameType | None) -> None:
        """Trace the current thread from here on, with a frame and all that have called it."""
        if self._opcodes or world.interrupts:
            sys._getframe().f_trace_opcodes = True  # Python 3.12 wants it before `sys.settrace`
        while frame is not None:
            frame.f_trace = self(frame, "call", None)
            frame = frame.f_back
        sys.settrace(self)


def files_of(chosen: Sequence[str]) -> dict[str, list[str] | None]:
    """Return the files of modules and packages, each with the functions that count.

    Args:
        chosen: Each a module, a package or a path, and after it names of functions: ``package.module:function:function``.

    Raises:
        ValueError: There is no such module.
    """
    files: dict[str, list[str] | None] = {}
    for choice in chosen:
        name, *functions = choice.split(":")
        files.update((path, functions or None) for path in _paths(name))
    return files


def _paths(name: str) -> Iterator[str]:
    if name.endswith(".py"):
        yield str(Path(name).resolve())
        return
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ValueError(f"lines: no module is called {name!r}")
    if spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            yield from map(str, Path(folder).rglob("*.py"))
    elif spec.origin:
        yield spec.origin
