"""One model: its versions, and the operations on them, of which one runs at a time."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import ClosedError, ConfigError, HeadraceError, Problem, SetupError
from headrace.hookspecs import attached
from headrace_models.builds import Build
from headrace_models.changes import Change
from headrace_models.closing import close_all
from headrace_models.errors import OutOfMemoryError, UnknownModelError, UnloadedError
from headrace_models.exchange.phase import Phase, check_exchange
from headrace_models.probes import InstancesProbe, MemoryProbe
from headrace_models.version import Place, Rules, Version, again, as_headrace_error, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace import Pipeline
    from headrace_models.changes import State
    from headrace_models.exchange.options import Exchange
    from headrace_models.sources import Source

__all__ = ["Model", "ModelRules"]

_KEPT = 16
"""The most replaced versions of a model that can be brought back."""


@dataclass(frozen=True)
class ModelRules(Rules):
    """What holds for all models.

    Attributes:
        exchange: Gives how an update of a model, by name and version, proves itself. None: it need not.
    """

    exchange: Callable[[str, str], Exchange | None] = lambda *_: None


class Model:
    """One model, by its name.

    Attributes:
        name: The name.
        place: What the name without a version means: the greatest version that takes requests.
        places: What each version means, by its number. The replaced ones that can be brought back are among them.
        versions: The versions that are served or can be loaded, by number.
        previous: The replaced versions, the latest last.
        coming: The version that is being built aside, else None.
        exchanging: The exchange of a version for a new one.
        left: Why the model serves no more, because other models have taken its place. ``""`` while it serves.
    """

    def __init__(self, name: str, rules: ModelRules) -> None:
        self.name = name
        self.places: dict[str, Place] = {}
        self.versions: dict[str, Version] = {}
        self.previous: list[Version] = []
        self.coming: Version | None = None
        self.place: Place | None = None
        self.closed = False
        self.left = ""
        self._rules = rules
        self._newest = 0
        self._turn = threading.Lock()
        self._operator: int | None = None
        self._guard = threading.RLock()
        self._leaving: set[Version] = set()
        self.exchanging = Phase(
            name,
            rules,
            guard=self._guard,
            operation=self._operation,
            check_open=self._check_open,
            tell=self._tell,
            switch=self._switch,
            leave=self._drained_aside,
        )

    def add(self, number: str, source: Source, *, on_demand: bool) -> Version:
        """Add a version that is not built."""
        version = Version(self.name, number, source, on_demand=on_demand)
        with self._guard:
            self._put(version)
        return version

    def remove(self, version: Version) -> bool:
        """Remove a version that could not be built; return whether the model has no other."""
        with self._guard:
            del self.versions[version.number], self.places[version.number]
            if self.versions:
                self._settle()
            return not self.versions

    def _put(self, version: Version) -> None:
        self.versions[version.number] = version
        self._newest = max(self._newest, int(version.number))
        self.places.setdefault(version.number, Place(version)).version = version
        self._settle()

    def _settle(self) -> None:
        """Let the name mean the greatest version that takes requests, else one that a request builds, else any."""

        def rank(version: Version) -> tuple[bool, bool, int]:
            return version.serves, version.serves or version.on_demand, int(version.number)

        best = max(self.versions.values(), key=rank)
        if self.place is None:
            self.place = Place(best)
        self.place.version = best

    @contextlib.contextmanager
    def _operation(self, *, changes: bool = True) -> Iterator[None]:
        """Run one operation at a time; a listener or a check cannot begin another one on its own model.

        One that changes the model ends an exchange for the old version.
        """
        if self._operator == threading.get_ident():
            raise RuntimeError(
                f"model {self.name!r} is in the middle of the operation that calls this"
            )
        with self._turn:
            self._check_open()
            self._operator = threading.get_ident()
            try:
                if changes:
                    self.exchanging.stop("stopped", "the model was changed")
                yield
            finally:
                self._operator = None

    def chosen(self, number: str | None) -> Version:
        """Return a version, without a number the one that the name means.

        Raises:
            UnknownModelError: There is no such version.
        """
        if number is None and self.place is not None:
            return self.place.version
        if number not in self.versions:
            known = [f"{self.name}:{key}" for key in self.versions]
            raise UnknownModelError(f"{self.name}:{number}", known)
        return self.versions[number]

    def load(self, number: str | None = None, *, read: bool = True) -> None:
        """Build all versions without a pipeline, or only the given version. Read their configurations again if ``read``.

        Raises:
            ConfigError, SetupError, PluginError: A configuration is wrong, or a pipeline could not be built.
        """
        with self._operation(changes=False):
            if number is not None:
                self.chosen(number)
            for version in [*self.versions.values()]:
                if version.pipe is None and number in (None, version.number):
                    self._load(version, read=read)

    def _load(self, version: Version, *, read: bool = True) -> None:
        """Build a version in place; requests that come meanwhile wait for it."""
        with self._guard:
            building = version.building = version.building or Build(
                version.title, version.queue_size
            )
        outcome: BaseException | None = None
        try:
            version.reason = ""
            self._tell(version, "loading")
            self._open(version, version.built(self._rules, read=read))
            with self._guard:
                self._settle()
            self._tell(version, "ready", pipeline=version.pipe)
        except BaseException as error:
            outcome = as_headrace_error(error, version.title)
            if isinstance(outcome, OutOfMemoryError) and outcome.passes:
                version.reason, version.on_demand = first_line(outcome), True
                self._tell(version, "unloaded")
            else:
                version.failed(outcome, self._rules.clock())
                self._tell(version, "failed")
            if isinstance(error, Exception):
                raise outcome from outcome.__cause__
            raise
        finally:
            with self._guard:
                version.building = None
            # A caller that waits for a replaced model looks for the new model.
            building.end(None if self.left else outcome)

    def _open(self, version: Version, pipe: Pipeline) -> None:
        """Let a version take requests, unless the models were closed while it was built."""
        with self._guard:
            if not self.closed:
                version.holding.leave = partial(self._evict, version)
                version.open(pipe)
                self._watch(version)
                return
        version.pipe = pipe
        version.close(timeout=2.0)
        version.pipe = None
        self._check_open()

    def update(
        self,
        number: str | None = None,
        config: Any = None,
        device: str | None = None,
        exchange: Exchange | None = None,
    ) -> str:
        """Build aside, compare, switch, drain and close the old one. Return the number of the new version.

        Args:
            number: The version that is built again under its number. None: a new version takes the place of the one
                that the name means.
            config: The new configuration. None: the same, read again.
            device: Where the same version goes, with the same configuration. None: it stays.
            exchange: How the new one proves itself, which goes on after the return. None: as the rules say.

        Raises:
            ConfigError, SetupError, PluginError: The new one could not be built. The old one is as it was.
        """
        with self._operation():
            old = self.chosen(number)
            if device is None:
                exchange = exchange or self._rules.exchange(self.name, old.number)
                check_exchange(exchange)
            if exchange is not None:
                exchange.judge(allow_import=self._rules.allow_import)
            stays = number is not None or device is not None
            source = replace(old.source, device=device or old.source.device)
            if config is not None:
                source = replace(source, config=config)
            new = Version(self.name, old.number if stays else str(self._newest + 1), source)
            new.source = replace(source, pinned=old.source.pinned and stays)
            with self._built_aside(new, old, same=device is not None, exchange=exchange):
                # One that has left, or leaves, is nothing to compare with.
                if exchange is None or old.pipe is None or old.holding.leaving:
                    self._switch(old, new, keep=not stays)
                else:
                    self.exchanging.start(exchange, old, new, keep=not stays)
            return new.number

    @contextlib.contextmanager
    def _built_aside(
        self, new: Version, old: Version, *, same: bool = False, exchange: Exchange | None = None
    ) -> Iterator[None]:
        """Build a version, and run the block. If the build fails, the old version serves on and keeps the reason.

        The old version may leave for another model until the new one has room, and stays then until the end of the block.

        Args:
            new: The version.
            old: The version in whose place it will be.
            same: Whether its configuration must be the old one's, apart from the device.
            exchange: How the new one proves itself.
        """
        new.holding.replaces = old.holding
        try:
            self._build_beside(new, old, same=same, exchange=exchange)
            yield
        finally:
            self.coming = new.holding.replaces = None
            if self._rules.memory is not None:
                self._rules.memory.wake()

    def _build_beside(
        self, new: Version, old: Version, *, same: bool, exchange: Exchange | None
    ) -> None:
        def check(pipe: Pipeline) -> None:
            if exchange is not None and old.pipe is not None:
                exchange.check_outputs(old.pipe, pipe)

        self.coming, served = new, new.number == old.number
        try:
            if not served:
                self._tell(new, "loading")
            if new.config is None:
                new.read(self._rules)
            if same:
                new.check_same(old)
            self._open(new, new.built(self._rules, read=False, check=check))
        except BaseException as error:
            known = as_headrace_error(error, new.title)
            old = self.versions.get(old.number, old)  # it may have left for another model
            old.reason = f"not updated: {first_line(known)}"
            if served:
                self._tell(old, old.state)
            else:
                self._tell(new, "failed", reason=first_line(known))
            if isinstance(error, Exception):
                raise known from known.__cause__
            raise

    def _switch(self, old: Version, new: Version, *, keep: bool, reason: str = "") -> None:
        """Let a new version take the place of an old one, and close that. The reason is told, if there is one."""
        new.last_use = old.last_use
        with self._guard:
            if not self.closed:
                old = self.versions[old.number]  # it may have left for another model meanwhile
                self._exchange(old, new, keep=keep)
        if self.closed and self.versions.get(new.number) is not new:
            new.close(timeout=2.0)
            self._check_open()
        self._tell(new, "ready", reason=reason, pipeline=new.pipe, replaces=old.number)
        self._retire(old, f"replaced by version {new.number}")

    def _exchange(self, old: Version, new: Version, *, keep: bool) -> None:
        del self.versions[old.number]
        self._put(new)
        if keep:
            self.previous.append(old)
        elif old.number != new.number:
            del self.places[old.number]
        for gone in self.previous[:-_KEPT]:
            self.places.pop(gone.number, None)
        del self.previous[:-_KEPT]
        old.on_demand = False

    def rollback(self) -> str:
        """Build the previous version again, let it take the place of the present one. Return its number.

        Raises:
            ConfigError: There is no previous version.
            SetupError, PluginError: It could not be built. The present one is as it was.
        """
        with self._operation():
            if not self.previous:
                text = f"model {self.name!r} has no replaced version that could come back"
                raise ConfigError(Problem("models", text))
            old, earlier = self.chosen(None), self.previous[-1]
            new = Version(self.name, earlier.number, earlier.source).like(earlier)
            with self._built_aside(new, old):
                self.previous.pop()
                self._switch(old, new, keep=False)
            return new.number

    def unload(
        self, number: str | None = None, reason: str = "unloaded", *, deleted: bool = False
    ) -> None:
        """Refuse requests, let the others end, and close: all versions, or the one; `load` makes it ready again."""
        with self._operation():
            with self._guard:
                chosen = [*self.versions.values()] if number is None else [self.chosen(number)]
                for version in chosen:
                    fresh = Version(self.name, version.number, version.source).like(version)
                    fresh.reason, fresh.last_use = reason, version.last_use
                    version.on_demand, version.deleted = False, deleted
                    fresh.deleted = deleted
                    self._put(fresh)
            for version in chosen:
                self._retire(version, reason)

    def _retire(self, version: Version, reason: str) -> None:
        """Give no more leases of a version; close its pipeline when the last request has ended."""
        if version.pipe is None:
            version.state, version.reason = "unloaded", reason
            return self._tell(version, "unloaded")
        self._drained_aside(version, reason).join(self._rules.drain_s)
        return None

    def _drained_aside(self, version: Version, reason: str) -> threading.Thread:
        """Give no more leases of a version; return the thread that closes its pipeline."""
        version.reason, version.holding.leaving = reason, True
        self._tell(version, "draining")
        version.leases.end()
        with self._guard:
            self._leaving.add(version)
        name = f"headrace-models-{version.title}"
        thread = threading.Thread(target=self._drain, args=(version,), name=name, daemon=True)
        thread.start()
        return thread

    def defer(self, version: Version) -> None:
        """Let a request build a version for which there is no room now."""
        with self._guard:
            version.on_demand = True
            self._settle()

    def _evict(self, version: Version) -> bool:
        """Let a version leave for another model, so that the next request builds it again. False: it is being replaced."""
        with self._guard:
            if version.holding.stays:
                return False
            if self.closed or self.versions.get(version.number) is not version:
                return True  # it leaves already
            self._put(self._absent(version, version.holding.reason))
        self._drained_aside(version, version.holding.reason)
        return True

    def _absent(self, version: Version, reason: str) -> Version:
        """Return a version as it is, not built, for requests to build."""
        fresh = Version(self.name, version.number, version.source, on_demand=True).like(version)
        fresh.reason, fresh.last_use, version.on_demand = reason, version.last_use, False
        fresh.lazy = version.lazy
        return fresh

    def set_as(self, read: Model) -> None:
        """Take over what was read anew and needs no build: sizes, and what is kept. An exchange ends for the old version."""
        for number, version in [*self.versions.items()]:
            if number in read.versions:
                version.holding.set_as(read.versions[number].holding)
        if self.exchanging.coming is not None:
            with contextlib.suppress(HeadraceError):
                self.exchanging.end_by_hand(take=False)

    def build_aside(self, version: Version) -> None:
        """Build a version of a model that is not served yet, from the configuration that was checked."""
        version.holding.leave = partial(self._evict, version)
        version.open(version.built(self._rules, read=False))
        self._watch(version)
        self._settle()

    def tell_ready(self, old: Model | None) -> None:
        """Tell the listeners that the versions that are built take requests, in the place of those of an old model."""
        before = {} if old is None else old.versions
        for version in [*self.versions.values()]:
            if version.pipe is not None:
                replaces = version.number if version.number in before else ""
                self._tell(version, "ready", pipeline=version.pipe, replaces=replaces)

    def leave(self, reason: str) -> list[threading.Thread]:
        """Run no more operations, since other models have taken the place. Return the threads that close the pipelines.

        An operation that is going on ends with an error, and closes what it has built.
        """
        with self._guard:
            self.closed, self.left = True, reason
            built = [version for version in self.versions.values() if version.pipe is not None]
            built += self.exchanging.abandon(reason)
        return [self._drained_aside(version, reason) for version in built]

    @property
    def leaving(self) -> bool:
        """Whether a pipeline is yet to be closed, because requests are in it."""
        return bool(self._leaving)

    def _watch(self, version: Version) -> None:
        """Build a version anew once all instances of one of its nodes are lost. Let others leave when it has no memory."""
        rebuild, memory = partial(self._rebuild, version), self._rules.memory
        probe = InstancesProbe(rebuild)
        if memory is not None:
            probe = MemoryProbe(rebuild, partial(memory.send_idle_away, version.holding))
        version.watch = attached(version.pipe, probe)
        version.watch.__enter__()

    def _rebuild(self, version: Version, node: str) -> None:
        """Let a new pipeline of the same configuration take the place of one that cannot serve any more.

        Requests wait for it, as for any model that is built by requests. If it cannot be built, they get its error, and one
        of them tries again later.
        """
        reason = f"all instances of the node {node!r} were lost"
        with contextlib.suppress(HeadraceError), self._operation():
            with self._guard:
                if self.versions.get(version.number) is not version or version.pipe is None:
                    return
                fresh = self._absent(version, reason)
                self._put(fresh)
            self._retire(version, reason)
            self._load(fresh, read=False)

    def _drain(self, version: Version) -> None:
        version.leases.wait()
        version.watch.__exit__(None, None, None)
        version.close(timeout=None)
        version.pipe = None
        with self._guard:
            self._leaving.discard(version)
        self._tell(version, "unloaded")

    def wanted(self, place: Place, version: Version) -> Build | None:
        """Return the build for which a request must wait. None: it is to look at its place again.

        Args:
            place: What the request has asked for.
            version: What the place meant, and what gave no lease.

        Raises:
            ClosedError: The models are closed.
            UnloadedError: The version is unloaded, and no request builds it.
            HeadraceError: It could not be built a short while ago.
        """
        with self._guard:
            known = place is self.place or place is self.places.get(version.number)
            if self.left or not known:  # others have taken this model's place meanwhile
                return None
            self._check_open()
            if version.building is not None:
                return version.building
            if place.version is not version or version.state == "ready":
                return None
            if not version.on_demand:
                replaced = self.versions.get(version.number) is not version
                raise UnloadedError(version.title, version.reason, replaced=replaced)
            if version.error is not None and self._rules.clock() < version.retry_at:
                raise again(version.error)
            building = version.building = Build(version.title, version.queue_size)
        name = f"headrace-models-{version.title}"
        try:
            threading.Thread(
                target=self._load_wanted, args=(version,), name=name, daemon=True
            ).start()
        except RuntimeError:  # there can be no more threads
            version.building = None
            building.end(SetupError(f"model {version.title!r} needs a thread to be built"))
        return building

    def _load_wanted(self, version: Version) -> None:
        building = version.building
        with (
            contextlib.suppress(HeadraceError),
            self._operation(changes=False),
        ):  # the waiting callers have the error
            if version.on_demand and version.pipe is None:
                self._load(version)
        if building is not None and not building.done():  # it was unloaded or replaced meanwhile
            version.building = None
            building.end(None)

    def close(self, timeout: float | None) -> None:
        """Refuse all requests, and close all pipelines within ``timeout`` seconds. None: any time.

        The thread that builds a pipeline closes it.
        """
        with self._guard:
            self.closed = True
            leaving = {
                *self._leaving,
                *(each for each in self.versions.values() if each.pipe is not None),
                *self.exchanging.abandon("the models are closed"),
            }
            builds = [own.building for own in self.versions.values() if own.building is not None]
        for build in builds:
            build.end(ClosedError("the models are closed"))
        for version in leaving:
            version.leases.end()
            version.watch.__exit__(None, None, None)
        pipes = [pipe for each in leaving if (pipe := each.pipe) is not None]
        close_all(partial(pipe.close, timeout=timeout) for pipe in pipes)
        for version in leaving:
            version.reason = "closed"
            self._tell(version, "unloaded")

    def _check_open(self) -> None:
        if self.left:
            raise ClosedError(f"model {self.name!r} was {self.left} meanwhile")
        if self.closed:
            raise ClosedError("the models are closed")

    def _tell(self, version: Version, state: State, *, reason: str = "", **more: Any) -> None:
        version.state = state
        if self.left and state not in {"draining", "unloaded"}:
            return  # of an operation that other models have overtaken
        told = reason or version.reason
        self._rules.listeners.tell(Change(self.name, version.number, state, reason=told, **more))
        if state == "ready":
            version.note_ready()

    def status(self) -> dict[str, Any]:
        """Return the state of the model and of each version, as plain data."""
        now = self._rules.clock()
        with self._guard:
            current = self.chosen(None)
            listed = [*self._leaving, *self.previous, *self.versions.values()]
            leaving = {version.number: version for version in self._leaving}
            coming = self.coming or self.exchanging.coming
        versions = {version.number: version.status(now) for version in listed}
        for number, version in leaving.items():
            if versions[number]["state"] == "unloaded":
                versions[number] = version.status(now)
        if coming is not None and coming.number not in self.versions:
            versions[coming.number] = coming.status(now)
        tried = self.exchanging.status(versions)
        in_order = {number: versions[number] for number in sorted(versions, key=int)}
        about = {"version": current.number, "versions": in_order, "exchange": tried}
        return {**versions[current.number], **about}
