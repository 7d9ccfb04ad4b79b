"""Operations on models by name: load, update, roll back, move, unload, aliases, state."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import ClosedError, ConfigError, HeadraceError, Problem
from headrace_models.errors import UnknownModelError
from headrace_models.exchange.phase import check_exchange
from headrace_models.model import Model
from headrace_models.prepared import Prepared
from headrace_models.requests import Requests
from headrace_models.shares import Shares
from headrace_models.sources import Source, check_name, read_entries, split
from headrace_models.unchanged import is_unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from os import PathLike

    from headrace import Pipeline, PipelineConfig
    from headrace_models.changes import Change
    from headrace_models.exchange.options import Exchange
    from headrace_models.memory.holding import Holding
    from headrace_models.model import ModelRules
    from headrace_models.sources import Entries
    from headrace_models.version import Place, Version

    Config = str | PathLike[str] | Mapping[str, Any] | PipelineConfig
    Others = bool | Collection[str]

__all__ = ["Operations", "kept_first"]


class Operations(Requests):
    """The part of `headrace_models.Models` that changes which models serve, and says how they are."""

    def __init__(self, rules: ModelRules, draw: Callable[[], float], *, preload: bool) -> None:
        super().__init__(rules.clock)
        self._rules = rules
        if rules.memory is not None:
            rules.memory.called = lambda name: _called(name, self._models, self._shares)
        self._draw = draw
        self._preload = preload
        self._adding = threading.Lock()
        self._left: list[Model] = []

    def _check_all(self, models: Collection[Model], shares: Mapping[str, Shares]) -> None:
        """Check all configurations, of models and their aliases; one error has the problems of all of them."""
        problems: list[Problem] = []
        for model in models:
            for version in model.versions.values():
                try:
                    version.read(self._rules)
                except ConfigError as error:
                    title = version.title if len(model.versions) > 1 else version.name
                    problems += [_placed(problem, title) for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        if self._rules.memory is not None and models:
            known = {**self._models, **{model.name: model for model in models}}
            versions = [each for model in models for each in model.versions.values()]
            called = partial(_called, models=known, shares=shares)
            self._rules.memory.check(known, [version.holding for version in versions], called)

    def _load_what_fits(self, model: Model) -> None:
        """Build the versions of a model for which no other must leave. Requests build the others."""
        for number, version in [*model.versions.items()]:
            if self._fits(version):
                model.load(number, read=False)
            else:
                model.defer(version)

    def _fits(self, version: Version) -> bool:
        memory, holding = self._rules.memory, version.holding
        return memory is None or holding.keep or memory.has_room(holding)

    def _added(self, name: str, number: str, source: Source) -> Version:
        model = self._models.get(name) or Model(name, self._rules)
        version = model.add(number, source, on_demand=not self._preload)
        self._models[name] = model
        if model.place is not None:
            self._places[name] = model.place
        return version

    def load(
        self,
        name: str,
        config: Config | None = None,
        *,
        keep_failed: bool = False,
        may_evict: bool = True,
    ) -> None:
        """Build all versions of a model without a pipeline, or ``"detect:3"`` alone.

        Args:
            name: The model, with ``config`` a new model, or a new version of one.
            config: The configuration of a new model or version. To change a model that exists, call `update`.
            keep_failed: Whether a new one stays that could not be built.
            may_evict: Whether others leave for a new one. If not, a request builds it where it has no room now.

        Raises:
            UnknownModelError: There is no such model, and no configuration is given.
            ConfigError: A configuration is wrong, or the model exists already.
            SetupError, PluginError: A pipeline could not be built. The model is ``failed``, and a request tries it
                again as without ``preload``. One that was new is not added, unless ``keep_failed``.
        """
        short, number = split(name)
        if config is None:
            return self._model(name).load(number)
        with self._adding:
            self._check_open()
            if name in self:
                text, hint = f"model {name!r} exists already", f"Call update({name!r}, ...)."
                raise ConfigError(Problem("models", text, hint=hint))
            entries, _ = read_entries({name: config})
            if not entries:
                text, hint = f"{name!r} is given shares, not a configuration", "Call alias()."
                raise ConfigError(Problem("models", text, hint=hint))
            (source,) = entries.values()
            version = self._added(short, number or "1", source)
        model = self._models[short]
        if not may_evict:
            with contextlib.suppress(HeadraceError):  # the build raises it
                version.read(self._rules)
            if not self._fits(version):
                return model.defer(version)
        try:
            model.load(version.number)
        except BaseException:
            if not keep_failed:
                self._forget(version)
            raise
        return None

    def _load_new(self, name: str, number: str, source: Source) -> None:
        """Load what has appeared in a watched folder, unless there is one; if it cannot be built, its state says so."""
        with self._adding:
            model = self._models.get(name)
            if self._closed or (
                model is not None and (not source.pinned or number in model.places)
            ):
                return
            version = self._added(name, number, source)
        if self._preload:
            self._models[name].load(version.number)

    def _follow(
        self,
        wanted: Entries,
        changed: Entries,
        left: Mapping[tuple[str, str], bool],
        reason: str,
    ) -> set[tuple[str, str]]:
        """Let models be as their files are: first load what is new, then drop what a successor has replaced.

        A version whose files are there, and which the policy of its folder drops, leaves once each version serves that the
        folder has of its model. A deleted one leaves if the folder has no other version of its model, or one that serves.
        What cannot be built takes nothing away: its state says why.

        Args:
            wanted: All that the folder has.
            changed: Those of them that are new or have another configuration.
            left: The versions that the folder has no more, and whether somebody has deleted them.
            reason: Why these leave.

        Returns:
            Those that have left.
        """
        for (name, number), source in changed.items():
            model = self._models.get(name)
            with contextlib.suppress(HeadraceError):  # the version says so in its reason
                if model is None or number not in model.versions:
                    self._load_new(name, number, source)
                else:
                    self.update(f"{name}:{number}", source.config)
        dropped = set()
        for (name, number), deleted in left.items():
            model = self._models.get(name)
            heirs = [heir for short, heir in wanted if short == name]
            serving = {*self.versions().get(name, ())}.intersection(heirs)
            leaves = not heirs or bool(serving) if deleted else len(serving) == len(heirs)
            if leaves and model is not None and number in model.versions:
                model.unload(number, reason, deleted=True)
            if leaves:
                dropped.add((name, number))
        return dropped

    def _drop_aliases(self, aliases: set[str]) -> None:
        self._shares = {key: self._shares[key] for key in self._shares if key not in aliases}

    def _forget(self, version: Version) -> None:
        model = self._models[version.name]
        if model.remove(version) and self._models.get(model.name) is model:
            del self._models[model.name], self._places[model.name]

    def update(
        self, name: str, config: Config | None = None, *, exchange: Exchange | None = None
    ) -> str:
        """Build a new version aside, warm. Let it take the requests. Drain and close the old one.

        With an exchange it returns once both are built, and the new version has to prove itself first. A further change of the
        model ends the exchange, and the old version stays.

        Args:
            name: ``"detect"``: the new version has the next number, and `rollback` brings the old one back.
                ``"detect:3"``: that version is built again under its number.
            config: The new configuration. None: the same one, read again, for example with a new model file.
            exchange: How the new version proves itself. The same configuration with the same files begins none.

        Returns:
            The number of the new version.

        Raises:
            UnknownModelError: There is no such model.
            ConfigError, SetupError, PluginError: It is wrong, or could not be built. Nothing has changed, and the
                old version serves on. Its ``reason`` in `status` says why.
        """
        check_exchange(exchange)
        if config is not None:
            read_entries({split(name)[0]: config})
        model, number = self._model(name), split(name)[1]
        if exchange is not None and (same := model.exchanging.same(model.chosen(number), config)):
            return same
        return model.update(number, config, exchange=exchange)

    def end_exchange(self, name: str, *, take: bool = False) -> None:
        """End the exchange of a model before its verdict.

        Args:
            name: The model.
            take: Whether the new version takes the requests. If not, the old one stays.

        Raises:
            UnknownModelError: There is no such model.
            ConfigError: No exchange of it goes on.
        """
        self._model(name).exchanging.end_by_hand(take=take)

    def replace(
        self,
        models: Mapping[str, Any] | str | PathLike[str],
        *,
        keep_others: Others = False,
        lazy: Collection[str] = (),
    ) -> None:
        """Let these be the models: check all, build aside what has changed, let all take the requests at once, close the old ones.

        It is `prepare`, `Prepared.switch` and a wait of at most ``drain_s`` seconds. Arguments and errors are those of
        `prepare`. After an error nothing has changed.
        """
        with self.prepare(models, keep_others=keep_others, lazy=lazy) as prepared:
            prepared.switch()
        prepared.wait(self._rules.drain_s)

    def prepare(
        self,
        models: Mapping[str, Any] | str | PathLike[str],
        *,
        keep_others: Others = False,
        lazy: Collection[str] = (),
        anew: bool = False,
    ) -> Prepared:
        """Check all configurations, and build pipelines aside, for one switch. Until then nothing changes.

        A model stays as it is if it was built from the same configurations and the same files, by their contents up to
        1 MiB and else by size and times: files of configurations, code that they import, what options name, weights that
        a model of ONNX names, and code beside code. One that serves by an update, or whose update has failed, is built.
        Versions that were brought by `update` or `move` are among what is replaced, and cannot be brought back.

        Args:
            models: As `headrace_models.Models` takes them, with their aliases.
            keep_others: Whether models and aliases that are not among these stay as they are, or the names of the models that do.
                The others are unloaded.
            lazy: Models, or versions as ``"detect:3"``, that the first request builds. Where the models
                are not preloaded, only those that are ready now are built.
            anew: Whether models are built, too, that have not changed.

        Returns:
            What was built. It must be switched to, or closed.

        Raises:
            ConfigError: A name or configuration is wrong. All are checked before any pipeline is built.
            SetupError, PluginError: A pipeline could not be built. The pipelines built before it are closed.
            UnknownModelError: An alias names no model.
            ClosedError: The models are closed.
        """
        read, shares = self._checked(models, keep_others=keep_others, lazy=lazy)
        memory, there = self._rules.memory, self._models
        stays = {
            name: there[name]
            for name, model in read.items()
            if not anew and name in there and is_unchanged(there[name], model, self._fits)
        }
        fresh = {name: model for name, model in read.items() if name not in stays}

        def put() -> list[Model]:
            old = self._put(fresh, shares, stays, keep_others=keep_others)
            for name, model in stays.items():
                model.set_as(read[name])
            return old

        fit = (lambda: None) if memory is None else memory.fit
        prepared = Prepared(fresh, stays, put, fit)
        try:
            before: dict[Version, Version | None] = {}
            for model in kept_first(fresh.values()):
                present = self._models.get(model.name)
                for number, new in model.versions.items():
                    before[new] = None if present is None else present.versions.get(number)
            was_built = [new for new, old in before.items() if old and old.state == "ready"]
            heirs = [new for new in was_built if not (new.on_demand and self._preload)]
            prepared._stay(*heirs, *(before[new] for new in heirs))
            if memory is not None:
                memory.check_room(*(new.holding for new in heirs))
            for new, old in before.items():
                if not (new.on_demand or new in was_built or self._fits(new)):
                    fresh[new.name].defer(new)
                if not new.on_demand or new in heirs:
                    prepared._build(new, old)
        except BaseException:
            prepared.close()
            raise
        return prepared

    def check(self, models: Mapping[str, Any] | str | PathLike[str]) -> None:
        """Check all that `replace` checks before it builds.

        Raises:
            ConfigError: A name or configuration is wrong. It has the problems of all of them.
            UnknownModelError: An alias names no model.
            ClosedError: The models are closed.
        """
        self._checked(models)

    def _checked(
        self, models: Any, *, keep_others: Others = False, lazy: Collection[str] = ()
    ) -> tuple[dict[str, Model], dict[str, Shares]]:
        """Return new models and aliases, checked and not built."""
        self._check_open()
        entries, targets = read_entries(models)
        fresh: dict[str, Model] = {}
        for (name, number), source in entries.items():
            model = fresh.setdefault(name, Model(name, self._rules))
            late = not self._preload or not {name, f"{name}:{number}"}.isdisjoint(lazy)
            model.add(number, source, on_demand=late)
        stay = {name: own for name, own in self._models.items() if _stays(name, keep_others)}
        known = {**stay, **fresh}
        shares = {name: self._shares_of(name, target, known) for name, target in targets.items()}
        self._check_all(fresh.values(), shares)
        return fresh, shares

    def _put(
        self,
        fresh: dict[str, Model],
        shares: dict[str, Shares],
        unchanged: dict[str, Model],
        *,
        keep_others: Others,
    ) -> list[Model]:
        """Put new models in the place of old ones, and return the old ones."""
        with self._adding:
            self._check_open()
            before = self._models
            for name, model in unchanged.items():
                if before.get(name) is not model:
                    text = f"model {name!r}, which had not changed, was replaced meanwhile"
                    raise ConfigError(Problem("models", text, hint="Prepare them again."))
            stay = {name for name in before if _stays(name, keep_others)} | {*unchanged}
            old = [model for name, model in before.items() if name in fresh or name not in stay]
            kept = {name: model for name, model in before.items() if name in stay or name in fresh}
            self._models = {**kept, **fresh}
            self._places = {name: at for name, model in self._models.items() if (at := model.place)}
            self._shares = {**self._shares, **shares} if keep_others is True else shares
            self._left = [*(model for model in self._left if model.leaving), *old]
            return old

    def rollback(self, name: str) -> str:
        """Build the previous version of a model again, from the configuration that it had. Let it take the requests.

        The last 16 replaced versions can be brought back. Files that options name, such as model files, are read as
        they are now.

        Returns:
            The number of that version.

        Raises:
            UnknownModelError: There is no such model.
            ConfigError: It has no previous version.
            SetupError, PluginError: It could not be built. Nothing has changed.
        """
        return self._model(name).rollback()

    def move(self, name: str, device: str) -> None:
        """Build a version on another device, let it take the requests, drain and close the old one.

        Args:
            name: ``"detect"`` or ``"detect:3"``.
            device: As in a configuration, ``"cuda:0"`` or ``"cpu"``. All nodes go there, also those that name a
                device themselves. Later updates stay there.

        Raises:
            UnknownModelError: There is no such model.
            ConfigError: The file has changed since it was loaded, or the model is a `headrace.PipelineConfig`, which
                does not tell the folders of its paths.
            SetupError, PluginError: It could not be built there. Nothing has changed.
        """
        self._model(name).update(split(name)[1], device=device)

    def unload(self, name: str) -> None:
        """Refuse requests, let the others end, and close all versions of a model, or ``"detect:3"`` alone.

        Requests get `UnloadedError` until `load` is called, also where requests build models.

        Raises:
            UnknownModelError: There is no such model.
        """
        self._model(name).unload(split(name)[1])

    def alias(self, alias: str, target: str | Mapping[str, float]) -> None:
        """Let a name stand for a model, or for several by their shares, from the next request on.

        Args:
            alias: The name.
            target: ``"detect"``, ``"detect:3"``, or shares, ``{"detect:3": 0.9, "detect:4": 0.1}``.

        Raises:
            ConfigError: A model has this name, or the target is neither a name nor shares.
            UnknownModelError: The target names no model.
        """
        self._check_open()
        self._shares = {**self._shares, alias: self._shares_of(alias, target, self._models)}

    def _shares_of(self, alias: str, target: Any, models: Mapping[str, Model]) -> Shares:
        """Return the shares of an alias of some models, checked as `alias` says."""
        check_name(alias)
        if alias in models:
            raise ConfigError(Problem("models", f"the alias {alias!r} is the name of a model"))
        shares = Shares(alias, target, self._draw)
        for name in shares.shares:
            short, number = split(name)
            if short not in models or (number is not None and number not in models[short].places):
                places = [f"{key}:{n}" for key, model in models.items() for n in model.places]
                raise UnknownModelError(name, [*models, *places], alias=alias)
        return shares

    def _model(self, name: str) -> Model:
        self._check_open()
        short = split(name)[0]
        if name in self._shares:
            text, hint = (
                f"{name!r} is an alias",
                f"Name one of: {', '.join(self._shares[name].shares)}.",
            )
            raise ConfigError(Problem("models", text, hint=hint))
        if short not in self._models:
            raise UnknownModelError(name, self._models)
        return self._models[short]

    def versions(self) -> dict[str, list[str]]:
        """Return the versions of each model that take requests, or that a request builds, the smallest first."""
        return {
            name: sorted(
                (each.number for each in [*model.versions.values()] if each.serves), key=int
            )
            for name, model in list(self._models.items())
        }

    def pipeline(self, name: str, version: str) -> Pipeline:
        """Return the pipeline of a version, for a server that holds pipelines itself. Build it if a request would.

        It is closed when the version is replaced or unloaded. A function given to `subscribe` is told before.

        Raises:
            HeadraceError: As `__call__` does.
        """
        while True:
            with self.lease(f"{name}:{version}") as pipe:
                now = self._models[name].chosen(version)
                now.holding.is_lent = True
                stays = now.pipe is pipe  # else it has begun to leave
                if stays:
                    return pipe

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call a function at each change of a version's state, in the thread that makes the change.

        It is called with ``ready`` after requests go to the new pipeline, and before the old one, which it
        ``replaces``, is drained and closed. Its errors are logged, and change nothing.

        Returns:
            A function that ends the subscription.
        """
        return self._rules.listeners.add(listener)

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the state of every model and alias."""
        told = {name: model.status() for name, model in list(self._models.items())}
        for alias, shares in self._shares.items():
            states, reasons = [], []
            for name in shares.shares:
                model, number = split(name)
                state = told.get(model, {})
                state = state if number is None else state.get("versions", {}).get(number, {})
                states.append(state.get("state", "unloaded"))
                if states[-1] != "ready":
                    reasons.append(f"{name!r} is {states[-1]}")
            worst = next((each for each in states if each != "ready"), "ready")
            told[alias] = {
                "state": worst,
                "reason": "; ".join(reasons),
                "shares": dict(shares.shares),
            }
        return told

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the models are closed")


def kept_first(models: Iterable[Model]) -> list[Model]:
    """Return models in the order of their builds: those that never leave first, so that none leaves for them."""

    def stays(model: Model) -> bool:
        return any(version.holding.keep for version in model.versions.values())

    return sorted(models, key=stays, reverse=True)


def _called(name: str, models: Mapping[str, Model], shares: Mapping[str, Shares]) -> list[Holding]:
    """Return what the versions take that a name means, of an alias each."""
    holdings = []
    for title in shares[name].shares if name in shares else [name]:
        short, number = split(title)
        model = models.get(short)
        place = model and (model.place if number is None else model.places.get(number))
        holdings += [_holding_at(model, place)] if model and place else []
    return holdings


def _holding_at(model: Model, place: Place) -> Holding:
    """Return what the version of a place takes, or the one that is built to replace it, if it has left before."""
    holding, coming = place.version.holding, model.coming
    replaced = None if coming is None else coming.holding.replaces
    if coming is None or replaced is None or place.version.pipe is not None:
        return holding
    return coming.holding if replaced.title == holding.title else holding


def _stays(name: str, keep_others: Others) -> bool:
    return keep_others if isinstance(keep_others, bool) else name in keep_others


def _placed(problem: Problem, title: str) -> Problem:
    """Name the model in a problem that has no file."""
    if problem.file is not None:
        return problem
    where = f"{title}.{problem.path}" if problem.path else f"model {title!r}"
    return Problem(**{**problem.to_dict(), "path": where, "span": problem.span})
