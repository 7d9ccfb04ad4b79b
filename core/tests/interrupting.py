"""Interrupts where Python may raise them: at the begin of a function, after a call, at a jump back."""

from __future__ import annotations

import dis
import gc
import opcode
import sys

CALLS = {n for name, n in opcode.opmap.items() if name.startswith("CALL")} - {
    opcode.opmap.get("CALL_INTRINSIC_1"),
    opcode.opmap.get("CALL_INTRINSIC_2"),
}
JUMPS_BACK = {n for name, n in opcode.opmap.items() if "JUMP_BACKWARD" in name}

_tables = {}


def _handlers(code, offset):
    """Give the handlers that an exception raised at an instruction comes to."""
    table = _tables.get(code)
    if table is None:
        table = _tables[code] = dis._parse_exception_table(code)
    return [(one.target, one.depth) for one in table if one.start <= offset < one.end]


class Interrupts:
    """Calls a function in the calling thread, and ``action`` at one point inside of headrace.

    Args:
        action: What a signal handler would do, such as to raise KeyboardInterrupt.
        points: At which points, counted from 1.
    """

    def __init__(self, action, *points):
        self.action = action
        self.points = points
        self.count = 0
        self.where = []
        self._last = {}
        self._paused = False

    def run(self, function):
        """Give what the function gives, or the exception that it raises.

        The garbage collector does not run meanwhile: when it does is chance, and with threads that are
        traced it may crash CPython 3.11 (python/cpython#101975).
        """
        gc.disable()
        sys.settrace(self._trace)
        try:
            return function()
        except BaseException as error:
            return error
        finally:
            sys.settrace(None)
            gc.enable()

    def pause(self, function):
        """Call a function without interrupting it."""
        self._paused = True
        try:
            return function()
        finally:
            self._paused = False

    def _trace(self, frame, event, _):
        if "/headrace/" not in frame.f_code.co_filename or self._paused:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._point(frame)
        elif event == "opcode":
            before, self._last[id(frame)] = self._last.get(id(frame)), frame.f_lasti
            if before is not None:
                done = frame.f_code.co_code[before]
                same = _handlers(frame.f_code, before) == _handlers(frame.f_code, frame.f_lasti)
                if done in JUMPS_BACK or (done in CALLS and same):
                    self._point(frame)
        elif event == "return":
            self._last.pop(id(frame), None)
        return self._trace

    def _point(self, frame):
        self.count += 1
        if self.count in self.points:
            self.where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            self.pause(self.action)
