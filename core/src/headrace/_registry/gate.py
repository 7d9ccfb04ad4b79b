"""One run of each imported file and module at a time, and an error where waiting would never end.

The code under ``import`` is the user's: it may load a configuration that imports it again, in its own
thread or in one that it waits for. Python would run a file within itself until memory is used up, and
its locks would wait for ever.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Gate"]

LOOK_S = 1.0
"""How often a thread that waits looks at the one that imports."""

PATIENCE_S = 60.0
"""How long the importing thread may stand still outside of `threading`: libraries take long to load."""


class _Run:
    """One import that is under way.

    Attributes:
        thread: The identity of the thread that imports.
        before: The threads that there were when it began.
        ended: Set when it is over.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.before = {one.ident for one in threading.enumerate()}
        self.ended = threading.Event()


class Gate:
    """Lets one thread at a time run what is called ``name``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._waiting: dict[int, str] = {}

    @contextmanager
    def passing(self, name: str) -> Iterator[None]:
        """Run the body while no other thread runs one of this name.

        Raises:
            PluginLoadError: This thread runs it already; or a thread does that waits for this one.
        """
        me = threading.get_ident()
        run = _Run()
        while True:
            with self._lock:
                other = self._runs.setdefault(name, run)
                if other is run:
                    break
                if self._waits_for(me, name):
                    raise _circle(name, "what it runs loads a configuration that imports it")
                self._waiting[me] = name
            try:
                self._wait(other, name, me)
            finally:
                with self._lock:
                    del self._waiting[me]
        try:
            yield
        finally:
            with self._lock:
                del self._runs[name]
            run.ended.set()

    def _waits_for(self, thread: int, name: str | None) -> bool:
        """Tell whether the thread that runs ``name`` is ``thread``, or waits for it at this gate."""
        while name is not None:
            run = self._runs.get(name)
            if run is None:
                return False
            if run.thread == thread:
                return True
            name = self._waiting.get(run.thread)
        return False

    def _wait(self, run: _Run, name: str, me: int) -> None:
        """Wait for the end of a run.

        A thread that the imported code has started may be one that it waits for. Where it waits is
        not known, so a thread that is younger than the run looks whether the importing one stands
        still; a thread that is older waits for as long as it takes.
        """
        if me in run.before:
            run.ended.wait()
            return
        place, still_s = None, 0.0
        while not run.ended.wait(LOOK_S):
            frame = sys._current_frames().get(run.thread)
            now = None if frame is None else (id(frame), frame.f_lasti)
            still_s = still_s + LOOK_S if now == place else 0.0
            place = now
            waits = frame is not None and frame.f_globals.get("__name__") == "threading"
            if still_s >= (LOOK_S if waits else PATIENCE_S):
                raise _circle(name, "what it runs waits for a thread that loads it again")


def _circle(name: str, why: str) -> PluginLoadError:
    return PluginLoadError(
        f"import = [{name!r}] is being imported already: {why}",
        hint="Code under 'import' registers backends; load and build configurations elsewhere.",
    )
