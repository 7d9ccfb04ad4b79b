"""The served models: built from their entries, and found by name and version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_serve.errors import NotBuiltError, UnavailableError, UnknownModelError
from headrace_serve.models.entries import read_entries
from headrace_serve.models.held import Held, check_keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace_models import Memory, Prepared
    from headrace_serve.admission.keys import Keys
    from headrace_serve.models.entries import ModelEntry
    from headrace_serve.models.model import Model

__all__ = ["Catalogue", "build_models"]


class Catalogue:
    """All models that are served.

    Attributes:
        held: The pipelines that the server builds itself.
        loading: Names and versions of models that are built for the first time, and are not served yet.
        lazy: What is known of models that the first request builds.

    Args:
        models: The models that take requests.
        held: See the attribute, as for the next two.
        prepared: What was built for this catalogue, and takes no requests before `switch`.
        entries: What is served under each name and version, of those that were built for it.
        loading, lazy: See the attributes.
    """

    def __init__(
        self,
        models: Iterable[Model],
        *,
        held: Held | None = None,
        prepared: Prepared | None = None,
        entries: Mapping[tuple[str, str], ModelEntry] | None = None,
        loading: Iterable[tuple[str, str]] = (),
        lazy: Mapping[tuple[str, str], ModelEntry] | None = None,
    ) -> None:
        self.held = held or Held()
        self.loading = set(loading)
        self.lazy = dict(lazy or {})
        self._prepared, self._entries = prepared, entries or {}
        self._models: dict[str, dict[str, Model]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model
        places = {place: (0, int(place[1])) for place in self.loading}
        gone = {
            (each.name, each.version): each.failed or each.unloaded > each.absent for each in self
        }
        places |= {place: (2 - left, int(place[1])) for place, left in gone.items()}
        places |= {place: (2, int(place[1])) for place in self.lazy}
        self._greatest = dict(sorted(places, key=places.__getitem__))

    def __iter__(self) -> Iterator[Model]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: str = "") -> Model:
        """Return a model, without a version, the greatest one that takes requests, else the greatest.

        Raises:
            UnknownModelError: There is no such model or version.
            NotBuiltError: It is built by a request, and not built yet.
            UnavailableError: It is being loaded for the first time.
        """
        chosen = version or self._greatest.get(name, "")
        model = self._models.get(name, {}).get(chosen)
        if model is not None:
            return model
        if (name, chosen) in self.lazy:
            raise NotBuiltError(name, chosen)
        if (name, chosen) in self.loading:
            raise UnavailableError(f"model {name!r} is being loaded")
        if name not in self._greatest:
            raise UnknownModelError(name, served=self._greatest)
        raise UnknownModelError(name, version, self.versions(name))

    def chosen(self, name: str, version: str = "") -> str:
        """Return the version that `find` looks for."""
        return version or self._greatest.get(name, "")

    def named(self, name: str, version: str = "") -> list[Model]:
        """Return all versions of a model that are built, or the one that is asked for.

        Raises:
            UnknownModelError, UnavailableError: As `find` raises them.
        """
        model = self.find(name, version)
        built = self._models[name]
        return [model] if version else [built[n] for n in self.versions(name) if n in built]

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name, built or not."""
        return name in self._greatest

    @property
    def names(self) -> list[str]:
        """The names of all models, built or not."""
        return list(self._greatest)

    def is_loading(self, name: str) -> bool:
        """Return whether a version of a model is being loaded for the first time."""
        return any(name == loading for loading, _ in self.loading)

    def get(self, name: str, version: str) -> Model | None:
        """Return a version of a model; None if there is no such version, or it is not built."""
        return self._models.get(name, {}).get(version)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, the smallest first."""
        late = {version for known, version in (*self.loading, *self.lazy) if known == name}
        return sorted({*self._models.get(name, {}), *late}, key=int)

    def replaced(self, name: str, by: Catalogue) -> Catalogue:
        """Return a catalogue in which the versions of one model are those of another catalogue."""
        kept = [model for model in self if model.name != name]
        lazy = {place: entry for place, entry in self.lazy.items() if place[0] != name}
        return Catalogue(
            [*kept, *by], held=self.held, loading=self.loading, lazy={**lazy, **by.lazy}
        )

    def extended(self, model: Model) -> Catalogue:
        """Return a catalogue that also has a model, in the place of the one of its version."""
        place, kept = (model.name, model.version), self.without(model)
        lazy = {other: entry for other, entry in self.lazy.items() if other != place}
        return Catalogue([*kept, model], held=self.held, loading=self.loading - {place}, lazy=lazy)

    def postponed(self, entries: Mapping[tuple[str, str], ModelEntry]) -> Catalogue:
        """Return a catalogue in which a request builds these models, whose first build has failed."""
        loading, lazy = self.loading.difference(entries), {**self.lazy, **entries}
        return Catalogue(self, held=self.held, loading=loading, lazy=lazy)

    def without(self, model: Model) -> Catalogue:
        """Return a catalogue without a version of a model."""
        kept = [each for each in self if (each.name, each.version) != (model.name, model.version)]
        return Catalogue(kept, held=self.held, loading=self.loading, lazy=self.lazy)

    @property
    def ready(self) -> bool:
        """Whether all models are built that the server begins with, and `unready` names none."""
        return not self.loading and not self.unready

    @property
    def unready(self) -> dict[str, str]:
        """Why models have no version that takes requests, though they had one, by name.

        Models do not count that requests build, that others have no room for, that somebody has unloaded, or whose files were deleted.
        """
        reasons: dict[str, str] = {}
        lazy = {place for place, entry in [*self.held.entries.items()] if entry.lazy}
        for name, versions in self._models.items():
            lost = [model for model in versions.values() if model.failed or not model.unloaded]
            lost = [model for model in lost if model.code != "memory"]
            lost = [model for model in lost if (model.name, model.version) not in lazy]
            if lost and not any(model.serves for model in versions.values()):
                reasons[name] = lost[-1].reason or f"it is {lost[-1].pipe.stats()['state']}"
        return reasons

    @property
    def live(self) -> bool:
        """Whether no process of a model ends more often than its ``restart_limit``."""
        told = (child for model in self for child in model.stats().get("processes", {}).values())
        return not any(process["failing"] for process in told)

    def switch(self, before: Iterable[Model] = ()) -> None:
        """Let what was built take the place of what is held until now, whose pipelines close when their requests have ended.

        Args:
            before: The models that are served no more. Their requests are measured no more.
        """
        for model in before:  # while their pipelines still give leases
            if self.get(model.name, model.version) is not model:
                model.leave()
        if self._prepared is not None:
            self.held.entries.update(self._entries)
            self._prepared.switch()

    def wait(self, timeout: float) -> None:
        """Wait after `switch` until the pipelines of before are closed, at most ``timeout`` seconds."""
        if self._prepared is not None:
            self._prepared.wait(timeout)

    def drop(self) -> None:
        """Close what was built, if it was not switched to."""
        if self._prepared is not None:
            self._prepared.close()

    def close(self, timeout: float) -> None:
        """Close the pipelines that the server built, at the same time, within ``timeout`` seconds."""
        self.drop()
        for model in self:
            model.stats()  # what it advises is logged at the latest now
        self.held.models.close(timeout=timeout)
        for model in self:
            model.measured.close()


def build_models(
    models: Any,
    before: Catalogue | None = None,
    *,
    only: str | None = None,
    keys: Keys | None = None,
    allow_import: bool = True,
    may_be_none: bool = False,
    workers: bool = False,
    memory: Memory | None = None,
) -> Catalogue:
    """Read, check and build all models. If one cannot be built, close the others again.

    Args:
        models: See `headrace_serve.models.entries.read_entries`.
        before: The catalogue that is served until now. The new one takes its place by `Catalogue.switch`. A pipeline that is
            in both keeps its counts.
        only: The name of the one model whose versions are built, all of them now. None: all models.
        keys: The keys of clients, which may name no other models than these. None: that is not checked.
        allow_import: Whether configurations may import code.
        may_be_none: Whether there may be no model, as in a watched folder, which gets them later.
        workers: Whether several processes answer, so that a model that keeps a state is refused. For the first catalogue.
        memory: The memory that all models may take together. None: as ``before`` has it.

    Raises:
        ConfigError: A model, its configuration or a key is wrong. All are checked before any model is built.
        SetupError, PluginError: A pipeline could not be built.
        UnknownModelError: An alias names no model.
    """
    entries, aliases = read_entries(models, only, may_be_none=may_be_none)
    check_keys_of(keys, entries, aliases)
    how: Any = {"allow_import": allow_import, "workers": workers, "memory": memory}
    held = Held(**how) if before is None else before.held
    try:
        built, prepared = held.prepare(
            entries,
            aliases,
            None if before is None else before.get,
            others=only is not None,
            lazy=only is None,
            memory=None if before is None else memory,
        )
        lazy = _lazy(entries, built)
        catalogue = Catalogue(built, held=held, prepared=prepared, entries=entries, lazy=lazy)
    except BaseException:
        if before is None:
            held.models.close(timeout=2.0)
        raise
    if before is None:
        catalogue.switch()
    return catalogue


def _lazy(
    entries: Mapping[tuple[str, str], ModelEntry], built: Iterable[Model]
) -> dict[tuple[str, str], ModelEntry]:
    there = {(model.name, model.version) for model in built}
    return {place: entry for place, entry in entries.items() if place not in there}
