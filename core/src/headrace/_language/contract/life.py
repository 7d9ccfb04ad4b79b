"""The life of a backend, from `init` to `close`: what the builder calls, with errors that say where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace._language.contract.addresses import fetch_all
from headrace._run.checked import Checked, range_problem
from headrace._texts import error_text
from headrace.errors import MissingDependencyError, SetupError


class Living(Checked):
    """A backend that is built, warmed up and closed once."""

    if TYPE_CHECKING:  # see `headrace.Backend`

        def init(self, options: Any, context: Any) -> None: ...
        def warm_up(self) -> None: ...
        def close(self) -> None: ...

    def _start(self, options: Any, context: Any) -> None:
        """Run `init` once; its errors say which backend and node failed."""
        if self._state != "new":
            raise SetupError(f"{self._label()} was initialised twice", backend=self._label())
        self._node, self._index = context.node_name, context.instance_index
        try:
            with self._setting_up():
                fetch_all(options)
                self.init(options, context)
                self._note_range()
        except Exception:
            self._state = "failed"
            raise
        self._state = "ready"

    def _warm(self) -> None:
        """Run `warm_up`, with errors like those of `_start`."""
        with self._setting_up("warm_up failed: "):
            self.warm_up()

    @contextmanager
    def _setting_up(self, failed: str = "") -> Iterator[None]:
        try:
            yield
        except (MissingDependencyError, SetupError) as error:
            self._locate(error)
            raise
        except ImportError as error:
            what = f"{self._label()} needs a library that cannot be imported: {error}"
            hint = "Install it, or look at what `headrace plugins doctor` says."
            raise self._locate(MissingDependencyError(what, hint=hint)) from error
        except Exception as error:
            raise self._locate(SetupError(failed + error_text(error))) from error

    def _note_range(self) -> None:
        problem = range_problem(self.min, self.max)
        if problem is not None:
            raise SetupError(problem, hint="min is an int above 0, max None or at least min.")
        self._bounded = self.max is not None or self.min > 1
        self._takes_one = self.min == 1

    def _stop(self) -> None:
        """Run `close` once, and only after an `init` that succeeded."""
        if self._state == "ready":
            self._state = "closed"
            self.close()
