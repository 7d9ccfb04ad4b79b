"""Models by name: what users make, watch and close."""

from __future__ import annotations

import random
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_models.changes import Listeners
from headrace_models.closing import close_all
from headrace_models.memory.devices import check_devices
from headrace_models.model import ModelRules
from headrace_models.operations import Operations, kept_first
from headrace_models.sources import read_entries
from headrace_models.watching.watcher import Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from headrace import Pipeline, PipelineConfig
    from headrace_models.exchange.options import Exchange
    from headrace_models.memory.budget import Memory

__all__ = ["Models"]


class Models(Operations):
    """Named models with versions. Safe to call from any number of threads.

    A request names a model, ``"detect"``, or a version of it, ``"detect:3"``. A name without a version means the
    greatest version that takes requests. A request leases the version that serves it, so that its pipeline is closed
    only after the request has ended: no request fails through an update, a move or a rollback. At most one operation
    runs per model at a time, others wait for it. Different models do not wait for each other. Operations block. A
    coroutine calls them through ``asyncio.to_thread``.

    ``with`` closes the models at its end.
    """

    def __init__(  # noqa: PLR0913 - settings of one object, each by its name
        self,
        models: Mapping[str, Any] | str | PathLike[str],
        *,
        preload: bool = True,
        watch: bool = False,
        aliases: Mapping[str, str | Mapping[str, float]] | None = None,
        check: Callable[[str, str, Pipeline], None] | None = None,
        adapt: Callable[[Any, PipelineConfig], PipelineConfig] | None = None,
        allow_import: bool = True,
        drain_s: float = 30.0,
        memory: Memory | None = None,
        exchange: Callable[[str, str], Exchange | None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Read and check all configurations, then build all pipelines.

        Args:
            models: Configurations by ``"name"`` or ``"name:version"``, each the path of a TOML file, a dict or a
                `headrace.PipelineConfig`. A version that is not written is 1. Or the path of a folder, with
                ``NAME.toml`` and ``NAME/VERSION.toml``.
            preload: Whether to build now. If not, a model is built at its first request, once, and all requests that
                come meanwhile wait for it. If that fails, they all fail. A request tries again after 1 s,
                and after each further failure after twice the time, at most 60 s.
            watch: Whether a changed file is an update: of a configuration, one that it extends, or a file that an
                option names, such as a model file. A deleted configuration is an unload, and a new one in the folder
                a load. What is half-written or wrong changes nothing, and is the ``reason`` in `status`.
            aliases: Names that stand for a model, ``{"live": "detect:3"}``, or for several by their shares,
                ``{"live": {"detect:3": 0.9, "detect:4": 0.1}}``. A table of shares may stand in ``models`` too.
            check: Called with name, version and the new pipeline before it takes requests, and what it raises fails
                the build. It may run requests whose results are known.
            adapt: Called with a model as it was given and its checked configuration, and returns the configuration that is
                built, for example one with a probe. It must not change the devices.
            allow_import: Whether configurations may import code.
            drain_s: The most seconds for which an operation waits for requests in an old pipeline. After that
                it returns, and the pipeline is closed when its last request has ended.
            memory: The memory that the models may take together. Those that do not fit are built by a request, for which
                others leave. A pipeline that `pipeline` has given stays.
            exchange: Called with name and version before an update, also by a changed file. It returns how the new version
                proves itself, None if it need not.
            clock: Returns the time in seconds.
            draw: Returns a random number in [0, 1), for shares and exchanges.

        Raises:
            ConfigError: A name or configuration is wrong. All are checked before any pipeline is built.
            SetupError, PluginError: A pipeline could not be built. The pipelines built before it are closed. SetupError also if
                ``memory`` names a device that is not here.
            UnknownModelError: An alias names no model.
            MissingDependencyError: ``watch`` needs the extra ``watch``.
        """
        here = weakref.ref(self)
        hears = Listeners()
        rules = ModelRules(
            clock, drain_s, check, allow_import, hears, adapt, here, memory, draw, exchange
        )
        super().__init__(rules, draw, preload=preload)
        self._watching: Watching | None = None
        entries, targets = read_entries(models)
        for (name, number), source in entries.items():
            self._added(name, number, source)
        for alias, target in {**targets, **(aliases or {})}.items():
            self.alias(alias, target)
        self._check_all(self._models.values(), self._shares)
        try:
            if memory is not None and self._models:
                check_devices(memory.budget_bytes)
            if watch:
                self._watching = Watching(self, models)
            if preload:
                for model in kept_first(self._models.values()):
                    self._load_what_fits(model)
            if self._watching is not None:
                self._watching.start()
        except BaseException:
            self.close(timeout=2.0)
            raise

    def watch(self, folder: str | PathLike[str] | None = None) -> None:
        """Let changed files be updates from now on, as ``watch=True`` does. What is watched already stays so.

        Args:
            folder: A folder of models. New files in it are loaded.

        Raises:
            MissingDependencyError: It needs the extra ``watch``.
            ClosedError: The models are closed.
        """
        self._check_open()
        if self._watching is None:
            self._watching = Watching(self, folder)
            self._watching.start()

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the state of every model and alias, as a dict that can be written as JSON.

        Returns:
            By name: ``state`` (``unloaded``, ``loading``, ``ready``, ``draining``, ``failed``), ``device``,
            ``last_use_s`` (seconds since the last request, None before the first), ``reason``, ``retry_after_s`` (until
            requests may try a failed build again), ``version`` (the one that the name means), and ``versions``:
            the first five of these by number. An alias has ``state``, ``reason`` and ``shares``. If the
            file ``aliases.toml`` of a watched folder, or the folder, cannot be read or watched, ``aliases`` says why.
        """
        states = super().status()
        watching = self._watching
        if watching is not None and (reason := watching.reason or watching.trouble):
            states["aliases"] = {"state": "failed", "reason": reason, "shares": {}}
        return states

    def close(self, *, timeout: float | None = 30.0) -> None:
        """Refuse new requests, let the others end, and close all models side by side.

        Args:
            timeout: Seconds after which requests that are still open fail with ClosedError. None for never.
        """
        self._closed = True
        if self._rules.memory is not None:
            self._rules.memory.close()
        if self._watching is not None:
            self._watching.stop()
        close_all(partial(model.close, timeout) for model in [*self._models.values(), *self._left])

    def __enter__(self) -> Models:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Models {', '.join(self)}>"
