"""The pipelines that the server builds itself: they are named models of `headrace_models`, which swaps and drains them."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ClosedError, ConfigError, HeadraceError, Problem
from headrace_models import Models
from headrace_models.memory.devices import check_devices
from headrace_serve.models.called import CalledModels
from headrace_serve.models.entries import ModelEntry, read_entries, repositories
from headrace_serve.models.manager import Later
from headrace_serve.models.model import Model
from headrace_serve.monitoring.access_log import logger as access_logger
from headrace_serve.monitoring.run_times import with_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace import Pipeline, PipelineConfig
    from headrace_models import Exchange, Memory, Prepared
    from headrace_serve.admission.keys import Keys

    Entries = Mapping[tuple[str, str], ModelEntry]

__all__ = ["Held", "check_keys_of", "check_models", "together"]


class Held:
    """Builds what clients are told of each pipeline, before it takes requests.

    Attributes:
        models: The pipelines, by name and version.
        entries: What is served under each name and version. A version that is not among them is served as it
            describes itself.

    Raises:
        SetupError: The memory names a device that is not here.
    """

    def __init__(
        self, *, allow_import: bool = True, workers: bool = False, memory: Memory | None = None
    ) -> None:
        if memory is not None:
            check_devices(memory.budget_bytes)
        self._workers, self._allow_import, self._memory = workers, allow_import, memory
        self.models = CalledModels(
            {},
            check=self._check,
            adapt=partial(_adapted, workers=workers),
            allow_import=allow_import,
            memory=memory,
            exchange=self._exchange_of,
        )
        self.entries: dict[tuple[str, str], ModelEntry] = {}
        self._here = threading.local()

    def prepare(
        self,
        entries: Entries,
        aliases: Mapping[str, Any],
        before: Callable[[str, str], Model | None] | None = None,
        *,
        others: bool = False,
        lazy: bool = True,
        memory: Memory | None = None,
    ) -> tuple[list[Model], Prepared]:
        """Check all configurations, then build all pipelines that no request builds. Nothing takes requests yet.

        Args:
            entries: What is served.
            aliases: The shares of each alias.
            before: Gives the model that is served until now under a name and a version.
            others: Whether the other models stay.
            lazy: Whether those that a request builds stay so, unless they are built already, and those that have not changed
                stay as they are. If not, all are built now.
            memory: The budget from now on. None: as it is.

        Returns:
            The models, and what `Prepared.switch` lets take the requests.

        Raises:
            ConfigError, SetupError, PluginError, UnknownModelError: As `headrace_models.Models.prepare` raises them. The memory
                is as it was. ConfigError also if ``memory`` has other devices.
        """
        budget = copy.copy(self._memory)
        try:
            if memory is not None:
                _check_same_devices(budget, memory)
            if memory is not None and self._memory is not None:
                self._memory.set_as(memory)
            return self._prepare(entries, aliases, before, others=others, lazy=lazy)
        except BaseException:
            if self._memory is not None and budget is not None:
                self._memory.set_as(budget)
            raise

    def _prepare(
        self,
        entries: Entries,
        aliases: Mapping[str, Any],
        before: Callable[[str, str], Model | None] | None,
        *,
        others: bool,
        lazy: bool,
    ) -> tuple[list[Model], Prepared]:
        late = [
            f"{name}:{version}"
            for (name, version), entry in entries.items()
            if lazy and entry.lazy and not (before and _is_here(before(name, version)))
        ]
        for entry in entries.values():
            _check_exchange(entry, workers=self._workers, allow_import=self._allow_import)
        kept = {} if before is None else _exchanged(entries, before)
        fresh = {place: each for place, each in entries.items() if place not in kept}
        _set_memory(self._memory, {**(self.entries if others else {}), **entries})
        self._here.entries = entries
        try:
            configs = {**_configs(fresh), **aliases}
            stay = others or {name for name, _ in kept}
            with _placing_keys():
                prepared = self.models.prepare(configs, keep_others=stay, lazy=late, anew=not lazy)
            try:
                self._start_exchanges(kept)
            except BaseException:
                prepared.close()
                raise
        finally:
            self._here.entries = None
        try:
            models = [model for place in kept if before is not None and (model := before(*place))]
            for place, entry in fresh.items():
                pipe, now = prepared.pipelines.get(place), before and before(*place)
                if now is not None and place[0] in prepared.unchanged:
                    if entry == self.entries.get(place):
                        models.append(now)
                        continue
                    pipe = now.pipe if _is_here(now) else None
                if pipe is not None or isinstance(entry.config, headrace.Pipeline):
                    models.append(self._model(*place, entry, now, pipe))
        except BaseException:
            prepared.close()
            raise
        return models, prepared

    def load(
        self, entries: Entries, aliases: Mapping[str, Any], failed: dict[str, HeadraceError]
    ) -> Iterator[Model]:
        """Build models one after the other. Who follows `models` serves each as soon as it is built.

        Args:
            entries: What is served, checked by `check_models`. Those that a request builds are not built.
            aliases: The shares of each alias.
            failed: Gets the errors of those that cannot be built, by ``name:version``. They stay in `models`.

        Yields:
            The models whose pipelines are given, and not built here.

        Raises:
            ClosedError: `models` are closed.
        """
        self.prepare({place: each for place, each in entries.items() if each.lazy}, {})[1].switch()
        self.entries = dict(entries)
        _set_memory(self._memory, entries)
        for (name, version), entry in sorted(entries.items(), key=lambda item: not item[1].keep):
            if isinstance(entry.config, headrace.Pipeline):
                yield self._model(name, version, entry)
            elif not entry.lazy:
                title = f"{name}:{version}"
                with _collecting(failed, title):
                    self.models.load(title, entry.config, keep_failed=True, may_evict=False)
        for alias, shares in aliases.items():
            with _collecting(failed, alias):
                self.models.alias(alias, shares)

    def _exchange_of(self, name: str, version: str) -> Exchange | None:
        entries = getattr(self._here, "entries", None) or self.entries
        entry = entries.get((name, version))
        return None if entry is None else entry.exchange

    def _start_exchanges(self, entries: Entries) -> None:
        """Begin the exchanges of models that serve: of all, or of none."""
        begun: list[str] = []
        try:
            for (name, version), entry in entries.items():
                self.models.update(f"{name}:{version}", entry.config, exchange=entry.exchange)
                begun.append(name)
        except BaseException:
            for name in begun:
                with contextlib.suppress(HeadraceError):
                    self.models.end_exchange(name)
            raise

    def made(self, name: str, version: str, pipe: Pipeline) -> Model:
        """Return the model of a pipeline that is served by itself, or by a manager."""
        entries = getattr(self._here, "entries", None) or self._now(name)
        entry = entries.get((name, version)) or ModelEntry(config=pipe, version=version)
        return self._model(name, version, entry, pipe=pipe)

    def _now(self, name: str) -> Entries:
        """Return what is served, of a model that a plugin reads as its repository says by now."""
        tables = [again(name) for again in repositories(self.entries)]
        fresh = {key: entry for each in tables for key, entry in each.items()}
        return {**self.entries, **read_entries(fresh, may_be_none=True)[0]}

    def _model(
        self,
        name: str,
        version: str,
        entry: ModelEntry,
        before: Model | None = None,
        pipe: Pipeline | None = None,
    ) -> Model:
        """Make a model, unless its pipeline, which somebody else may have built, is one that is refused."""
        model = Model(name, version, entry, before, pipe)
        model.called = self.models.counts_of(model.pipe)
        if self._workers:
            _refuse_state(model.pipe.config)
        return model

    def _check(self, name: str, version: str, pipe: Pipeline) -> None:
        """Fail the build of a pipeline of which clients could not be told what it takes and gives."""
        self.made(name, version, pipe)


def _is_here(model: Model | None) -> bool:
    return model is not None and not model.unloaded


def _exchanged(entries: Entries, before: Callable[[str, str], Model | None]) -> Entries:
    """Return the entries that serve already, and that prove themselves before they serve as they are now."""

    def is_exchanged(name: str, version: str, entry: ModelEntry) -> bool:
        now, built = before(name, version), not isinstance(entry.config, (headrace.Pipeline, Later))
        return entry.exchange is not None and built and now is not None and not now.unloaded

    others = {place[0] for place, entry in entries.items() if not is_exchanged(*place, entry)}
    return {place: entry for place, entry in entries.items() if place[0] not in others}


def _check_exchange(entry: ModelEntry, *, workers: bool, allow_import: bool) -> None:
    """Check what an exchange would find out only at the next change of a model.

    Raises:
        ConfigError: Its function cannot be imported, or several processes answer.
    """
    if entry.exchange is not None:
        entry.exchange.judge(allow_import=allow_import)
        if workers:
            text = "with --workers each process would come to a verdict of its own on an exchange"
            raise ConfigError(Problem("serve", text, hint="Serve the model with one process."))


@contextlib.contextmanager
def _collecting(failed: dict[str, HeadraceError], title: str) -> Iterator[None]:
    """Note the error of a model, unless all are closed. Without one, the model has no error any more."""
    failed.pop(title, None)
    try:
        yield
    except ClosedError:
        raise
    except HeadraceError as error:
        failed[title] = error


def together(failed: Mapping[str, HeadraceError]) -> HeadraceError:
    """Return one error that says all that is wrong with some models, by their names."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    told: list[Problem] = []
    for title, error in failed.items():
        told += getattr(error, "problems", [Problem("serve", str(error), path=title)])
    return ConfigError(told)


def _refuse_state(config: PipelineConfig) -> None:
    """Refuse what keeps a state in its process, where several processes answer.

    Raises:
        ConfigError: The pipeline has such a backend.
    """
    plan = config.plan()
    trees = [(name, tree) for name, node in plan.nodes.items() for tree in node.trees]
    for place, tree in trees:
        for backend in tree.walk():
            if backend.stateful:
                text = f"{backend.name} keeps a state in its process, and with --workers the next request may reach another one"
                hint = (
                    "Serve it with one process, or with several, each without --workers, behind a proxy that sends"
                    " all requests of a session to the same one (docs/streams.md)."
                )
                raise ConfigError(Problem("serve", text, path=place, hint=hint))


def _adapted(given: Any, config: PipelineConfig, *, workers: bool) -> PipelineConfig:
    """Check a configuration, and add the probe that times each request, if the access log shows the times."""
    if workers:
        _refuse_state(config)
    if isinstance(given, headrace.PipelineConfig) or not access_logger.isEnabledFor(logging.INFO):
        return config
    return with_probe(given, config)


def _configs(entries: Entries) -> dict[str, Any]:
    """Return the configurations of which the server builds pipelines, as `headrace_models.Models` takes them."""
    return {
        f"{name}:{version}": entry.config
        for (name, version), entry in entries.items()
        if not isinstance(entry.config, (headrace.Pipeline, Later))
    }


def _check_same_devices(now: Memory | None, new: Memory) -> None:
    """Check that a new budget bounds the devices of the one from the start.

    Raises:
        ConfigError: It does not.
    """
    before, after = [sorted(each.budget_bytes) if each else [] for each in (now, new)]
    if before != after:
        text = f"its devices were {before or 'none'} at the start, and are {after or 'none'}"
        hint = "A reload changes sizes. For other devices start the server again."
        raise ConfigError(Problem("serve", text, path="memory", hint=hint))


def _set_memory(memory: Memory | None, entries: Entries) -> None:
    """Tell the budget what the entries say of pipelines that are built here.

    Raises:
        ConfigError: A size is wrong, or there is no budget.
    """
    of_models = {title.partition(":")[0] for title in _configs(entries)}
    built = [(name, entry) for (name, _), entry in entries.items() if name in of_models]
    sizes = {name: entry.memory for name, entry in built if entry.memory is not None}
    keep = [name for name, entry in built if entry.keep]
    idle_unload_s = {name: entry.idle_unload_s for name, entry in built if entry.idle_unload_s}
    if memory is not None:
        memory.set_models(sizes, keep, idle_unload_s)
    elif named := {*sizes, *keep, *idle_unload_s}:
        text = "model {!r} has `memory`, `keep` or `idle_unload_s`, and there is no budget"
        hint = 'Add [memory] with host = "8 GiB".'
        raise ConfigError(
            [
                Problem("serve", text.format(name), path=f"models.{name}", hint=hint)
                for name in sorted(named)
            ]
        )


def check_models(
    models: Any,
    *,
    keys: Keys | None = None,
    allow_import: bool = True,
    may_be_none: bool = False,
    workers: bool = False,
    memory: Memory | None = None,
    failed: dict[str, HeadraceError],
) -> tuple[dict[tuple[str, str], ModelEntry], dict[str, Any]]:
    """Check all models as `headrace_serve.models.catalogue.build_models` does, and build none.

    Args are those of it, and ``failed``, which gets the errors of models by ``name:version``.

    Returns:
        Their entries, and the shares of each alias.

    Raises:
        ConfigError: A model, a key or the memory is wrong. ``failed`` has the errors of configurations even so.
        UnknownModelError: An alias names no model.
    """
    entries, aliases = read_entries(models, may_be_none=may_be_none, failed=failed)
    general: dict[str, HeadraceError] = {}
    with _collecting(general, "keys"):
        check_keys_of(keys, entries, {*aliases, *failed})
    adapt = partial(_adapted, workers=workers)
    with Models({}, adapt=adapt, allow_import=allow_import) as checked:
        for title, config in _configs(entries).items():
            name, _, version = title.rpartition(":")
            with _collecting(failed, title), _placing_keys():
                checked.check({title: config})
                _check_exchange(entries[name, version], workers=workers, allow_import=allow_import)
    right = {place: entry for place, entry in entries.items() if ":".join(place) not in failed}
    with _collecting(general, "memory"):
        _set_memory(memory, right)
        if memory is not None:
            checked = Models({}, adapt=adapt, allow_import=allow_import, memory=memory)
            checked.check(_configs(right))  # closing it would close the budget
    if general:
        raise together(general)
    for entry in entries.values():
        if workers and isinstance(entry.config, headrace.Pipeline):
            _refuse_state(entry.config.config)
    return entries, aliases


@contextlib.contextmanager
def _placing_keys() -> Iterator[None]:
    """Say of a key of a model, such as ``preload``, that is written in the configuration of its pipeline, where it goes.

    A serving file that is given as a configuration is one problem.
    """
    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            if (problem.path, problem.code) == ("models", "missing_option"):
                text = "[models] is a table of a serving file, and this is read as a pipeline"
                hint = f"Write --models {problem.file}."
                raise ConfigError(replace(problem, message=text, hint=hint)) from None
        error.problems = tuple(map(_placed, error.problems))
        raise


def _placed(problem: Problem) -> Problem:
    key = (problem.path or "").rpartition(".")[2]
    if problem.code != "unknown_key" or key not in ModelEntry.model_fields:
        return problem
    hint = (
        f"{key!r} is a key of the model that is served, not of its pipeline: write it into a file for --models,"
        f" as [models.NAME] with config = {(problem.file or 'FILE')!r} beside it."
    )
    return replace(problem, hint=hint, suggestion=None)


def check_keys_of(keys: Keys | None, entries: Entries, aliases: Collection[str]) -> None:
    """Check that the keys of clients name only models and aliases that are served.

    Raises:
        ConfigError: A key names another model.
    """
    if keys is not None:
        keys.check_models({*(name for name, _ in entries), *aliases})
