"""The served models: built from their entries, found by name and version, counted."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_serve.access_log import logger as access_logger
from headrace_serve.counters import Counts
from headrace_serve.entries import read_entries
from headrace_serve.errors import UnavailableError, UnknownModelError, among
from headrace_serve.fields import check_keys, read_fields
from headrace_serve.outlines import Outlines
from headrace_serve.planned import described, entry_node, queue_size
from headrace_serve.run_times import is_timed, with_probe
from headrace_serve.signature import read_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace import Pipeline
    from headrace.errors import Problem
    from headrace_serve.entries import ModelEntry
    from headrace_serve.keys import Keys
    from headrace_serve.outlines import Outline
    from headrace_serve.signature import Signature

__all__ = [
    "Catalogue",
    "Model",
    "build_loaded",
    "build_models",
    "check_models",
    "close_models",
    "load_models",
]


_ASKED_S = 0.02


class Model:
    """One version of a model.

    Attributes:
        name, version: The name and version by which requests name the model.
        pipe: The pipeline.
        owned: Whether the server built the pipeline, and so closes it.
        signature: The inputs and outputs.
        counts: The counters of answered requests.
        unloaded: Whether a request has unloaded the model, so that it takes no requests.
        loading: Whether a new pipeline is being built to take the place of this one.
        reason: Why the model is unloaded; ``""`` if it is not.
        limits: Limits of this model, by name; the smaller of these and the server's limits counts.
        entry: The name of the node at which requests enter; of several the first.
        entry_keys: The keys of that node, empty if there are several.
        queue_size: The most requests that may wait; None: the server refuses none early, because there are several
            entry nodes, or new requests shed the oldest.
        timed: Whether the pipeline has the probe that times each request.
        outlines, messages: The outlines of earlier inferences over REST, and over gRPC.
        labels: The labels of the classes of outputs, by the outputs' names.
        queries: The queries of earlier requests of the plain route.
        fields: The fields of its bodies of JSON; None: it has none.
        takes_json: Whether a body of the plain route is JSON, and its value the key ``data``.
        inside: The number of requests that this server has admitted and not answered.
        receiving: The number of these requests whose bodies are still being received.
        clock: Gives the time in seconds.
        histograms: What counts the times of requests for ``/metrics``; None before the metrics were asked for.
        measured: Attaches it to the pipeline until `close`.
    """

    counts: Counts
    unloaded = loading = False
    reason = ""
    inside = receiving = 0
    histograms: Any = None
    clock = staticmethod(time.monotonic)
    _asked_s = float("-inf")
    _not_waiting = 0

    def __init__(
        self, name: str, version: str, entry: ModelEntry, before: Model | None = None
    ) -> None:
        """Build the pipeline, unless the entry holds one.

        Args:
            name: The name of the model.
            version: Its version.
            entry: What is served, and how.
            before: The model of this name and version that is served until now. If its pipeline is this one, the counters go
                on; else all begin with 0, as those of a new pipeline do.
        """
        self.name = name
        self.version = version
        self.measured = ExitStack()
        self.owned = not isinstance(entry.config, headrace.Pipeline)
        self.pipe: Pipeline = headrace.pipe(entry.config) if self.owned else entry.config
        try:
            plan = self.pipe.config.plan()
            found = described(self.pipe, plan)
            self.signature = read_signature(found, entry)
            self.entry, self.entry_keys = entry_node(plan.nodes, found)
            self.queue_size = queue_size(self.entry_keys)
            self.timed = is_timed(self.pipe)
            self.fields = read_fields(entry, self.pipe.config, self.entry)
            _check_labels(name, entry, self.signature)
            if entry.inputs is not None and not found["front"]:
                check_keys(name, self.signature.inputs, self.pipe.config, self.entry)
        except BaseException:
            self.close(timeout=2.0)
            raise
        self.limits = entry.limits
        self.takes_json = entry.body == "json"
        self.labels = entry.labels or {}
        self.outlines: Outlines[Outline] = Outlines()
        self.messages: Outlines[Outline] = Outlines()
        self.queries: Outlines[Any] = Outlines()
        same = before is not None and before.pipe is self.pipe
        self.counts = before.counts if before is not None and same else Counts()

    def waiting(self) -> int:
        """Return how many requests wait in the pipeline, or are being received for it.

        Reading the pipeline's statistics costs more than refusing a request, so they are read at most every 20 ms. In
        between the number is an estimate: each request that this server admits adds one, each answer subtracts one.
        """
        now_s = self.clock()
        if now_s - self._asked_s >= _ASKED_S:
            nodes = self.pipe.stats()["nodes"].values()
            waiting = sum(int(node["waiting"]) for node in nodes) + self.receiving
            self._not_waiting = self.inside - waiting
            self._asked_s = now_s
        return max(0, self.inside - self._not_waiting)

    @property
    def threads(self) -> int:
        """The number of threads that the instances and their libraries may run at a time."""
        nodes = self.pipe.config.plan().nodes.values()
        return sum(node.instance_num * node.threads for node in nodes if node.alias_of is None)

    @property
    def ready(self) -> bool:
        """Whether the model takes requests."""
        return self.pipe.ready and not self.unloaded

    def close(self, *, timeout: float) -> None:
        """Close the pipeline if the server built it, and count its requests no more."""
        self.measured.close()
        if self.owned:
            self.pipe.close(timeout=timeout)


def _check_labels(name: str, entry: ModelEntry, signature: Signature) -> None:
    for output in entry.labels or ():
        if output not in signature.outputs:
            what = f"model {name!r} has labels for an output {output!r}, which it does not have"
            raise SetupError(what, hint=among(output, signature.outputs))


class Catalogue:
    """All models that are served.

    Attributes:
        loading: Names and versions of models that are built for the first time, and are not served yet.

    Args:
        models: The models.
        loading: See the attribute.
    """

    def __init__(self, models: list[Model], loading: Iterable[tuple[str, str]] = ()) -> None:
        self.loading = set(loading)
        self._models: dict[str, dict[str, Model]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model
        self._greatest = {
            name: versions[max(versions, key=int)] for name, versions in self._models.items()
        }

    def __iter__(self) -> Iterator[Model]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: str = "") -> Model:
        """Return a model; without a version, its greatest version.

        Raises:
            UnknownModelError: There is no such model or version.
            UnavailableError: It is being loaded for the first time.
        """
        found = self._models.get(name, {}).get(version) if version else self._greatest.get(name)
        if found is None and self.loading and self.is_loading(name, version):
            raise UnavailableError(f"model {name!r} is being loaded")
        if found is None:
            if name not in self._models:
                raise UnknownModelError(name, served=self._models)
            raise UnknownModelError(name, version, self._models[name])
        return found

    def named(self, name: str, version: str = "") -> list[Model]:
        """Return all versions of a model, or the one that is asked for.

        Raises:
            UnknownModelError: There is no such model or version.
        """
        found = self.find(name, version)
        return [found] if version else [self._models[name][one] for one in self.versions(name)]

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name, or one is being loaded."""
        return name in self._models or self.is_loading(name)

    def is_loading(self, name: str, version: str = "") -> bool:
        """Return whether a version of a model, or for ``""`` any, is being loaded for the first time."""
        return any(name == one and version in ("", other) for one, other in self.loading)

    def get(self, name: str, version: str) -> Model | None:
        """Return a version of a model; None if there is no such version."""
        return self._models.get(name, {}).get(version)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, the smallest first."""
        return sorted(self._models[name], key=int)

    def replaced(self, name: str, by: Catalogue) -> Catalogue:
        """Give a catalogue in which the versions of one model are those of another catalogue.

        Args:
            name: The model.
            by: The catalogue with only its new versions.
        """
        return Catalogue([one for one in self if one.name != name] + list(by), self.loading)

    def extended(self, model: Model) -> Catalogue:
        """Return a catalogue that also has a model which was loading until now."""
        return Catalogue([*self, model], self.loading - {(model.name, model.version)})

    @property
    def ready(self) -> bool:
        """Whether every model is ready, except those that requests have unloaded."""
        return not self.loading and all(model.ready for model in self if not model.unloaded)

    def close(self, timeout: float) -> None:
        """Close the pipelines that the server built, at the same time, within ``timeout`` seconds."""
        close_models(self, timeout)


def close_models(models: Iterable[Model], timeout: float) -> None:
    """Close the pipelines of models that the server built, at the same time, within ``timeout`` seconds."""
    threads = [
        threading.Thread(target=one.close, kwargs={"timeout": timeout}, daemon=True)
        for one in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def build_models(
    models: Any,
    before: Catalogue | None = None,
    *,
    only: str | None = None,
    keys: Keys | None = None,
    allow_import: bool = True,
) -> Catalogue:
    """Read, check and build all models; if one cannot be built, close the others again.

    Args:
        models: See `headrace_serve.entries.read_entries`.
        before: The catalogue that is served until now; a pipeline that is in both keeps its counts.
        only: The name of the one model whose versions are built; None: all models.
        keys: The keys of clients, which may name no other models than these; None: that is not checked.
        allow_import: Whether configurations may import code.

    Raises:
        ConfigError: A model, its configuration or a key is wrong; all are checked before any model is built.
        SetupError, PluginError: A pipeline could not be built.
    """
    loaded = load_models(models, only=only, keys=keys, allow_import=allow_import)
    return Catalogue(build_loaded(loaded, before))


def load_models(
    models: Any, *, only: str | None = None, keys: Keys | None = None, allow_import: bool = True
) -> dict[tuple[str, str], ModelEntry]:
    """Read and check all models, for `build_loaded`; arguments and errors are those of `build_models`."""
    entries = read_entries(models, only)
    timed = access_logger.isEnabledFor(logging.INFO)
    loaded = _all_loaded(entries, allow_import, timed=timed)
    if keys is not None:
        keys.check_models({name for name, _ in entries})
    return loaded


def build_loaded(
    loaded: Mapping[tuple[str, str], ModelEntry],
    before: Catalogue | None = None,
    each: Callable[[Model], None] | None = None,
) -> list[Model]:
    """Build models that `load_models` has checked; if one cannot be built, close the others again.

    Args:
        loaded: The models.
        before: The catalogue that is served until now.
        each: Called with each model once it is built.

    Raises:
        SetupError, PluginError: A pipeline could not be built.
    """
    built: list[Model] = []
    try:
        for (name, version), entry in loaded.items():
            try:
                now = None if before is None else before.get(name, version)
                built.append(Model(name, version, entry, now))
            except (
                SystemExit
            ) as error:  # it would end the server, which continues with the old model
                raise SetupError(f"the code of model {name!r} has called sys.exit") from error
            if each is not None:
                each(built[-1])
    except BaseException:
        for model in built:
            model.close(timeout=2.0)
        raise
    return built


def check_models(models: Any, *, keys: Keys | None = None, allow_import: bool = True) -> None:
    """Check all models as `build_models` does, and build none.

    Raises:
        ConfigError: A model, its configuration or a key is wrong.
    """
    entries = read_entries(models)
    _all_loaded(entries, allow_import)
    if keys is not None:
        keys.check_models({name for name, _ in entries})


def _all_loaded(
    entries: Mapping[tuple[str, str], ModelEntry], allow_import: bool, *, timed: bool = False
) -> dict[tuple[str, str], ModelEntry]:
    """Check all configurations; one ConfigError has the problems of all of them."""
    loaded: dict[tuple[str, str], ModelEntry] = {}
    problems: list[Problem] = []
    for place, entry in entries.items():
        try:
            loaded[place] = _loaded(entry, allow_import, timed=timed)
        except ConfigError as error:
            # A problem of a file names the file, one of a dict only the node, and a missing file is neither's.
            for one in error.problems:
                where = f"{place[0]}.{one.path}" if one.path else f"model {place[0]!r}"
                problems.append(one if one.file else replace(one, path=where))
    if problems:
        raise ConfigError(problems)
    return loaded


def _loaded(entry: ModelEntry, allow_import: bool, *, timed: bool = False) -> ModelEntry:
    """Check the configuration of an entry without building it."""
    if isinstance(entry.config, (headrace.Pipeline, headrace.PipelineConfig)):
        return entry
    config = headrace.PipelineConfig.load(entry.config, allow_import=allow_import)
    if timed:
        config = with_probe(entry.config, config)
    return entry.model_copy(update={"config": config})
