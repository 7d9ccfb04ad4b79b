"""The pipelines that the server builds itself: they are named models of `headrace_models`, which swaps and drains them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import headrace
from headrace_models import Models
from headrace_serve.access_log import logger as access_logger
from headrace_serve.models.entries import ModelEntry, read_served
from headrace_serve.models.manager import Later
from headrace_serve.models.model import Model
from headrace_serve.run_times import with_probe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace import Pipeline, PipelineConfig
    from headrace_models import Prepared
    from headrace_serve.keys import Keys
    from headrace_serve.models.catalogue import Catalogue

    Entries = Mapping[tuple[str, str], ModelEntry]

__all__ = ["Held", "check_keys_of", "check_models"]


class Held:
    """Builds what clients are told of each pipeline, before it takes requests.

    Attributes:
        models: The pipelines, by name and version.
        entries: What is served under each name and version; a version that is not among them is served as it
            describes itself.
    """

    def __init__(self, *, allow_import: bool = True) -> None:
        self.models = Models({}, check=self._check, adapt=_adapted, allow_import=allow_import)
        self.entries: dict[tuple[str, str], ModelEntry] = {}
        self._here = _Here()

    def prepare(
        self,
        entries: Entries,
        aliases: Mapping[str, Any],
        before: Catalogue | None = None,
        *,
        others: bool = False,
        lazy: bool = True,
    ) -> tuple[list[Model], Prepared]:
        """Check all configurations, then build all pipelines that no request builds; nothing takes requests yet.

        Args:
            entries: What is served.
            aliases: The shares of each alias.
            before: The catalogue that is served until now.
            others: Whether the other models stay.
            lazy: Whether those that a request builds stay so, unless they are built already; if not, they are built now.

        Returns:
            The models, and what `Prepared.switch` lets take the requests.

        Raises:
            ConfigError, SetupError, PluginError, UnknownModelError: As `headrace_models.Models.prepare` raises them.
        """
        late = [
            f"{name}:{version}"
            for (name, version), entry in entries.items()
            if lazy and entry.lazy and (before is None or before.get(name, version) is None)
        ]
        self._here.entries, self._here.before = entries, before
        try:
            configs = {**_configs(entries), **aliases}
            prepared = self.models.prepare(configs, keep_others=others, lazy=late)
            try:
                made = []
                for place, entry in entries.items():
                    if place in prepared.pipelines:
                        made.append(self.made(*place, prepared.pipelines[place]))
                    elif isinstance(entry.config, headrace.Pipeline):
                        now = None if before is None else before.get(*place)
                        made.append(Model(*place, entry, now))
            except BaseException:
                prepared.close()
                raise
        finally:
            self._here.entries = self._here.before = None
        self.entries = {**self.entries, **entries} if others else dict(entries)
        return made, prepared

    def load(self, entries: Entries, aliases: Mapping[str, Any]) -> Iterator[Model]:
        """Build models one after the other; who follows `models` serves each as soon as it is built.

        Args:
            entries: What is served, checked by `check_models`; those that a request builds are not built.
            aliases: The shares of each alias.

        Yields:
            The models whose pipelines are given, and not built here.

        Raises:
            SetupError, PluginError, ClosedError: A pipeline could not be built, or `models` are closed.
        """
        self.prepare({place: one for place, one in entries.items() if one.lazy}, {})[1].switch()
        self.entries = dict(entries)
        for (name, version), entry in entries.items():
            if isinstance(entry.config, headrace.Pipeline):
                yield Model(name, version, entry)
            elif not entry.lazy:
                self.models.load(f"{name}:{version}", entry.config)
        for alias, shares in aliases.items():
            self.models.alias(alias, shares)

    def made(self, name: str, version: str, pipe: Pipeline) -> Model:
        """Return the model of a pipeline that this thread has built."""
        model = self._here.made.pop((name, version), None)
        if model is not None and model.pipe is pipe:
            return model
        return Model(
            name, version, self._entry(name, version, pipe), self._before(name, version), pipe
        )

    def _check(self, name: str, version: str, pipe: Pipeline) -> None:
        """Read the signature of a pipeline, which fails its build if clients could not be told of it."""
        entry = self._entry(name, version, pipe)
        model = Model(name, version, entry, self._before(name, version), pipe)
        self._here.made[name, version] = model

    def _entry(self, name: str, version: str, pipe: Pipeline) -> ModelEntry:
        entries = self.entries if self._here.entries is None else self._here.entries
        return entries.get((name, version)) or ModelEntry(config=pipe, version=version)

    def _before(self, name: str, version: str) -> Model | None:
        before = self._here.before
        return None if before is None else before.get(name, version)


class _Here(threading.local):
    """What belongs to the build in one thread: its entries, the catalogue of before, the models that it has made."""

    def __init__(self) -> None:
        self.entries: Entries | None = None
        self.before: Catalogue | None = None
        self.made: dict[tuple[str, str], Model] = {}


def _adapted(given: Any, config: PipelineConfig) -> PipelineConfig:
    """Add the probe that times each request, if the access log shows the times."""
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


def check_models(
    models: Any, *, keys: Keys | None = None, allow_import: bool = True
) -> tuple[dict[tuple[str, str], ModelEntry], dict[str, Any]]:
    """Check all models as `headrace_serve.models.catalogue.build_models` does, and build none.

    Returns:
        Their entries, and the shares of each alias.

    Raises:
        ConfigError: A model, its configuration or a key is wrong.
        UnknownModelError: An alias names no model.
    """
    entries, aliases = read_served(models)
    check_keys_of(keys, entries, aliases)
    with Models({}, adapt=_adapted, allow_import=allow_import) as checked:
        checked.check({**_configs(entries), **aliases})
    return entries, aliases


def check_keys_of(keys: Keys | None, entries: Entries, aliases: Collection[str]) -> None:
    """Check that the keys of clients name only models and aliases that are served.

    Raises:
        ConfigError: A key names another model.
    """
    if keys is not None:
        keys.check_models({*(name for name, _ in entries), *aliases})
