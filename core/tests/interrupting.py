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

_read = {}


def _instructions(code):
    """Return the bytecode and the table of handlers of a function: Python makes both anew each time."""
    found = _read.get(id(code))
    if found is None:
        # The function is kept as well: another one would else be made where it was.
        found = _read[id(code)] = (code.co_code, dis._parse_exception_table(code), code)
    return found[:2]


def _handlers(table, offset):
    """Return the handlers that an exception raised at an instruction comes to."""
    return [(one.target, one.depth) for one in table if one.start <= offset < one.end]


class Interrupts:
    """Calls a function in the calling thread, and ``action`` at one point inside of headrace.

    Args:
        action: What a signal handler would do, such as to raise KeyboardInterrupt.
        points: BuildSite which points, counted from 1.
    """

    def __init__(self, action, *points):
        self.action = action
        self.points = points
        self.count = 0
        self.where = []
        self._paused = False

    def run(self, function):
        """Return what the function gives, or the exception that it raises.

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
            self._paused = True  # what is let go of here may run functions of headrace
            sys.setprofile(None)
            sys.settrace(None)
            gc.enable()

    def pause(self, function):
        """Call a function without interrupting it."""
        self._paused = True
        try:
            return function()
        finally:
            self._paused = False

    def _trace(self, frame, *_):
        """Follow a function of headrace that begins."""
        if self._paused or "/headrace/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._point(frame)
        return self._inside(frame.f_code)

    def _inside(self, code):
        """Return what follows the instructions of one call of a function."""
        instructions, table = _instructions(code)
        before = None

        def each(frame, event, _):
            nonlocal before
            if event == "opcode":
                done, before = before, frame.f_lasti
                if done is not None:
                    kind = instructions[done]
                    if kind in JUMPS_BACK or (
                        kind in CALLS and _handlers(table, done) == _handlers(table, before)
                    ):
                        self._point(frame)
            return each

        return each

    def _point(self, frame):
        if self._paused:
            return
        self.count += 1
        if self.count in self.points:
            self.where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            sys.setprofile(self._resume)
            self.pause(self.action)
            sys.setprofile(None)

    def _resume(self, frame, event, _):
        """Trace again: Python ends the trace when the action raises. Called at the next call or return in the thread."""
        if frame.f_code.co_filename == __file__:
            return
        sys.setprofile(None)
        sys.settrace(self._trace)
        while frame is not None:
            if "/headrace/" in frame.f_code.co_filename:
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
                frame.f_trace = self._inside(frame.f_code)
            frame = frame.f_back
