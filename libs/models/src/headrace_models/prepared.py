"""Models that are built aside, and take the place of others all at once."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from headrace_models.closing import close_all
from headrace_models.version import as_headrace_error, first_line

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection

    from headrace import Pipeline
    from headrace_models.model import Model
    from headrace_models.version import Version

__all__ = ["Prepared"]


class Prepared:
    """What `Models.prepare` has built: nobody sends it requests until `switch`.

    ``with`` closes it at the end of the block, unless it was switched to.

    Attributes:
        pipelines: The pipelines by name and version. Those that a request builds are not among them.
        unchanged: The names of the models that stay as they are.
    """

    def __init__(
        self,
        fresh: dict[str, Model],
        unchanged: Collection[str],
        put: Callable[[], list[Model]],
        wake: Callable[[], None],
    ) -> None:
        """Hold models that are checked.

        Args:
            fresh: The new models by name.
            unchanged: See the attribute.
            put: Puts them in the place of others, and returns those that have left.
            wake: Lets models look again that wait for memory.
        """
        self._fresh, self._put, self._wake = fresh, put, wake
        self.unchanged = frozenset(unchanged)
        self._switched = False
        self._draining: list[threading.Thread] = []
        self._staying: list[Version] = []
        self.pipelines: dict[tuple[str, str], Pipeline] = {}

    def _build(self, version: Version, replaced: Version | None) -> None:
        """Build a version; if that fails, the one that it was to replace says so."""
        self._stay(version, replaced)
        try:
            self._fresh[version.name].build_aside(version)
        except BaseException as error:
            known = as_headrace_error(error, version.title)
            if replaced is not None:
                replaced.reason = f"not updated: {first_line(known)}"
            if isinstance(error, Exception):
                raise known from known.__cause__
            raise
        self.pipelines[version.name, version.number] = version.pipe

    def _stay(self, *versions: Version | None) -> None:
        """Let none of them leave for another model before the end of `switch` or `close`."""
        for version in versions:
            if version is not None:
                version.holding.prepared.add(self)
                self._staying.append(version)

    def _end_stay(self) -> None:
        for version in self._staying:
            version.holding.prepared.discard(self)
        self._wake()

    def switch(self) -> None:
        """Let all new models take the requests, in one step. It waits for no request.

        Listeners are told of each new version before the old pipelines are drained, which goes on in threads. See `wait`.

        Raises:
            ClosedError: The models are closed.
            RuntimeError: It was switched to, or closed, before.
        """
        if self._switched:
            raise RuntimeError("prepared models can be switched to once")
        left = self._put()
        self._switched = True
        old = {model.name: model for model in left}
        for name, model in self._fresh.items():
            model.tell_ready(old.get(name))
        for model in left:
            reason = "replaced" if model.name in self._fresh else "not among the models any more"
            self._draining += model.leave(reason)
        self._end_stay()

    def wait(self, timeout_s: float) -> None:
        """Wait after `switch` until the replaced pipelines are closed, at most ``timeout_s`` seconds."""
        until = time.monotonic() + timeout_s
        for thread in self._draining:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self, *, timeout: float = 2.0) -> None:
        """Close what was built, if it was not switched to.

        Args:
            timeout: The most seconds until the pipelines are closed.
        """
        if not self._switched:
            self._switched = True
            built = [self._fresh[name].versions[number] for name, number in self.pipelines]
            close_all(partial(version.close, timeout) for version in built)
            self._end_stay()

    def __enter__(self) -> Prepared:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
