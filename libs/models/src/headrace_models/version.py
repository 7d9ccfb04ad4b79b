"""One version of a model: its source, its pipeline while there is one, its state."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, HeadraceError, Problem, SetupError, code_of
from headrace_formats import back_off
from headrace_models.calling import Beside, building_for, called_by
from headrace_models.leases import Leases
from headrace_models.memory.holding import Holding
from headrace_models.sources import files_of, stamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace import Pipeline, PipelineConfig
    from headrace_models.builds import Build
    from headrace_models.changes import Listeners, State
    from headrace_models.memory.budget import Memory
    from headrace_models.sources import Source

__all__ = [
    "Place",
    "Rules",
    "Version",
    "again",
    "as_headrace_error",
]

_FIRST_RETRY_S = 1.0
"""Seconds after a failed build in which requests get its error; they double with each further failure."""
_LONGEST_RETRY_S = 60.0


@dataclass(frozen=True)
class Rules:
    """What holds for all versions.

    Attributes:
        clock: Returns the time in seconds.
        drain_s: The most seconds for which an operation waits for the requests of an old pipeline.
        check: Called with name, version and the new pipeline before it takes requests. Its errors fail the build.
        allow_import: Whether configurations may import code.
        listeners: They are told each change of a state.
        adapt: Called with the given configuration of a model and the checked one. Returns the configuration to build.
        models: Gives the models, for backends that call others.
        memory: The budget of memory, None for no bound.
        draw: Returns a random number in [0, 1).
    """

    clock: Callable[[], float]
    drain_s: float
    check: Callable[[str, str, Pipeline], None] | None
    allow_import: bool
    listeners: Listeners
    adapt: Callable[[Any, PipelineConfig], PipelineConfig] | None = None
    models: Callable[[], Any] = lambda: None
    memory: Memory | None = None
    draw: Callable[[], float] = random.random


@dataclass(frozen=True)
class _Configured:
    """A configuration as it was read and checked.

    Attributes:
        written: As it is written.
        config: On its device. None: it is to be read again.
        nodes: Its nodes, as `headrace.explain` gives them.
    """

    written: PipelineConfig
    config: PipelineConfig | None
    nodes: list[dict[str, Any]]

    @property
    def device(self) -> str:
        keys_of_nodes = [node["keys"] for node in self.nodes if node["alias_of"] is None]
        written = [keys["device"]["value"] or "cpu" for keys in keys_of_nodes]
        every = {key for value in written for key in ([value] if isinstance(value, str) else value)}
        return ", ".join(sorted(every))


class Version:
    """One version of a model.

    Attributes:
        name: The name of its model.
        number: The version, digits.
        source: Where its configuration comes from.
        pipe: The pipeline, None while it is not built.
        watch: The probe that looks whether the pipeline has instances left, while it is attached.
        leases: The requests inside the pipeline. Without a pipeline there are no leases to take.
        state: See `headrace_models.changes.State`.
        reason: The reason of the state, or of the failure of the last update.
        on_demand: Whether a request builds it, as without ``preload`` or after a failed build.
        lazy: Whether only a request builds it.
        deleted: Whether it is unloaded because its file is gone.
        last_use: When the last request came, by the clock of the models. None: there was none.
        building: The outcome of the build that is going on: None, or the error.
        holding: What it takes of the budget of memory.
        error, failures, retry_at: The error of the last build, how many have failed in a row, and when a
            request may try again.
        seen: The stamps of its files when it was built, or when it was last tried.
    """

    def __init__(self, name: str, number: str, source: Source, *, on_demand: bool = False) -> None:
        self.name = name
        self.number = number
        self.source = source
        self._configured: _Configured | None = None
        self.pipe: Any = None
        self.watch: AbstractContextManager[None] = nullcontext()
        self.leases = Leases()
        self.leases.end()
        self.state: State = "unloaded"
        self.reason = ""
        self.on_demand = self.lazy = on_demand
        self.deleted = False
        self.last_use: float | None = None
        self.building: Build | None = None
        self.holding = Holding(
            self.title, last_use=lambda: self.last_use or 0.0, is_busy=self._is_busy
        )
        self._memory: Memory | None = None
        self.error: HeadraceError | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.seen: dict[Path, Any] = {}

    @property
    def title(self) -> str:
        """Name and version, ``"detect:3"``."""
        return f"{self.name}:{self.number}"

    @property
    def written(self) -> PipelineConfig | None:
        """The checked configuration as it is written, None before the first check."""
        return None if self._configured is None else self._configured.written

    @property
    def config(self) -> PipelineConfig | None:
        """The checked configuration on its device, None before the first check."""
        return None if self._configured is None else self._configured.config

    @property
    def device(self) -> str:
        """The devices of its nodes, by the configuration: ``"cuda:0"``, ``"cpu, cuda:0"``. Before the first check, of the source."""
        return self.source.device or "" if self._configured is None else self._configured.device

    @property
    def serves(self) -> bool:
        """Whether it takes requests, or a request builds it."""
        return self.state == "ready" or (self.on_demand and self.state != "failed")

    def open(self, pipe: Pipeline) -> None:
        """Take requests from now on."""
        self.pipe = pipe
        self.leases = Leases()
        self.state, self.reason = "ready", ""
        self.error, self.failures, self.deleted = None, 0, False

    def note_ready(self) -> None:
        """Let it leave for another model from now on, since all know that it is ready."""
        if self._memory is not None and self.holding.since is None:
            self._memory.open(self.holding)

    def close(self, timeout: float | None) -> None:
        """Close the pipeline, and give its memory back."""
        close = partial(self.pipe.close, timeout=timeout)
        close() if self._memory is None else self._memory.give(self.holding, close)

    def _is_busy(self) -> bool:
        """Return whether requests are inside the pipeline."""
        pipe = self.pipe  # None once it has left
        nodes = [] if pipe is None else pipe.stats()["nodes"].values()
        ended = [node["ok"] + sum(node["failed"].values()) + node["cancelled"] for node in nodes]
        return bool(len(self.leases)) or [node["submitted"] for node in nodes] != ended

    @property
    def queue_size(self) -> int:
        """How many requests may wait for it, by the first node."""
        size: int = self._nodes[0]["keys"]["queue_size"]["value"] if self._nodes else 1024
        return size

    @property
    def _nodes(self) -> list[dict[str, Any]]:
        return [] if self._configured is None else self._configured.nodes

    def failed(self, error: HeadraceError, now: float) -> None:
        """Note a failed build; requests may try again later."""
        self.state, self.reason, self.error = "failed", first_line(error), error
        self.retry_at = now + back_off(
            self.failures, first_s=_FIRST_RETRY_S, most_s=_LONGEST_RETRY_S
        )
        self.failures += 1
        self.on_demand = True

    def read(self, rules: Rules) -> PipelineConfig:
        """Read and check the configuration, and return it.

        Raises:
            ConfigError, SetupError: It is wrong, or cannot be moved to the device.
        """
        self.seen = {}
        if self._configured is not None:  # if that fails, the next build reads again
            self._configured = replace(self._configured, config=None)
        self._see(self.source.files())
        written, config = self.source.load(allow_import=rules.allow_import)
        if rules.adapt is not None:
            config = rules.adapt(self.source.config, config)
        nodes = [*headrace.explain(config)["nodes"].values()]
        self._see({*self.source.files(), *files_of(nodes), *written.files})
        self._configured = _Configured(written, config, nodes)
        if rules.memory is not None:
            rules.memory.set_size(self.holding, self.name, self.device, nodes)
            self.holding.calls = called_by(config)
        return config

    def built(
        self, rules: Rules, *, read: bool, check: Callable[[Pipeline], None] | None = None
    ) -> Pipeline:
        """Build a pipeline, warm and checked.

        Args:
            rules: What holds for all models.
            read: Whether to read the configuration again. If not, only one that was never read is read.
            check: Called with the pipeline. What it raises fails the build.

        Raises:
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them, or as the check does.
        """
        config = self.read(rules) if read or self.config is None else self.config
        self._memory = memory = rules.memory
        if memory is None:
            return self._build(rules, config, check)
        return memory.build(self.holding, lambda: self._build(rules, config, check))

    def _build(
        self, rules: Rules, config: PipelineConfig, check: Callable[[Pipeline], None] | None
    ) -> Pipeline:
        try:
            models = rules.models()
            if rules.memory is not None and models is not None:
                models = Beside(models, partial(rules.memory.note_call, self.holding))
            with building_for(models):
                pipe = headrace.pipe(config)
            try:
                if (compare := getattr(self.source.config, "check_built", None)) is not None:
                    compare(pipe.describe())
                if rules.check is not None:
                    rules.check(self.name, self.number, pipe)
                if check is not None:
                    check(pipe)
            except BaseException:
                pipe.close(timeout=2.0)
                raise
        except (
            SystemExit
        ) as error:  # it would end the thread, or the process, that goes on with the old pipeline
            text = f"the code of model {self.name!r} has called sys.exit"
            raise SetupError(text) from error
        self._see({*self.seen, *files_of(self._nodes)})  # some were fetched only now
        return pipe

    def _see(self, files: set[Path]) -> None:
        """Note the stamps of files, the earlier one of those that are noted already."""
        self.seen = {path: self.seen.get(path) or stamp(path) for path in files}

    def like(self, other: Version) -> Version:
        """Take over what another version has read, and return this one; files count as seen as they are now."""
        self._configured = other._configured
        self.seen = {path: stamp(path) for path in other.seen}
        self.holding.sizes_bytes = other.holding.sizes_bytes  # the other one may leave with more
        self.holding.origin, self.holding.keep = other.holding.origin, other.holding.keep
        self.holding.calls, self.holding.key = other.holding.calls, other.holding.key
        self.holding.idle_unload_s = other.holding.idle_unload_s
        return self

    def check_same(self, other: Version) -> None:
        """Check that the configuration is that of another version, apart from the device.

        Raises:
            ConfigError: The file has changed since the other version was read from it.
        """
        if other.written is not None and self.written != other.written:
            text = f"the configuration of {self.title!r} has changed since it was loaded"
            hint = "Update the model first, and move it then."
            raise ConfigError(Problem("models", text, hint=hint))

    def changed(self) -> bool:
        """Return whether one of its files is another one than was seen."""
        return any(stamp(path) != before for path, before in self.seen.items())

    def status(self, now: float) -> dict[str, Any]:
        """Return state, device, seconds since the last request, reason, and whether its file is gone, as plain data."""
        return {
            "state": self.state,
            "device": self.device,
            "last_use_s": None if self.last_use is None else now - self.last_use,
            "reason": self.reason,
            "deleted": self.deleted,
            "retry_after_s": max(0.0, self.retry_at - now) if self.state == "failed" else None,
            "code": code_of(self.error) if self.state == "failed" and self.error else None,
            "memory": {**self.holding.sizes_bytes},
            "memory_origin": self.holding.origin if self.holding.sizes_bytes else None,
        }


class Place:
    """What a name means now: ``"detect"``, or ``"detect:3"``. A switch is one assignment.

    Attributes:
        version: The version that takes the requests.
    """

    __slots__ = ("version",)

    def __init__(self, version: Version) -> None:
        self.version = version


def as_headrace_error(error: BaseException, title: str) -> HeadraceError:
    """Return an error of a build as one of Headrace's, with the error as its cause."""
    if isinstance(error, HeadraceError):
        return error
    known = SetupError(f"model {title!r} could not be built: {type(error).__name__}: {error}")
    known.__cause__ = error
    return known


def again(error: HeadraceError) -> HeadraceError:
    """Return a copy of an error, so that each thread raises its own."""
    twin: HeadraceError = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def first_line(error: BaseException) -> str:
    """Return type and text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
