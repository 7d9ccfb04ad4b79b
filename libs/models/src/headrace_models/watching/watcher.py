"""Watches the files of models: what changes is built again, what is deleted is unloaded, what is new is loaded."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, HeadraceError
from headrace.plugins import library
from headrace_models.fetching.cache import addresses_of
from headrace_models.sources import (
    entries_of,
    files_of,
    own_entries,
    read_aliases,
    read_folder,
    stamp,
)
from headrace_models.version import first_line
from headrace_models.watching.whole_files import WholeFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace_models.operations import Operations
    from headrace_models.sources import Entries, Source
    from headrace_models.version import Version

__all__ = ["Watching"]

_log = logging.getLogger("headrace.models")

_AGAIN_S = 5.0
"""Seconds after which it is tried again to watch."""
_SOON_MS = 1_000
"""Milliseconds after which the files are looked at again while one of them is being written, or is missing."""
_ASK_S = 300.0
"""Seconds after which addresses that may change are asked again."""
_LOOK_MS = 10_000
"""Milliseconds after which the files are looked at without an event, for folders that tell nothing."""


class Watching:
    """Keeps models as their files are.

    The file system only says that something has changed in a folder. `look` then compares the files themselves
    with what was built from them, so that no order and no loss of events matters.

    Attributes:
        reason: Why ``aliases.toml`` or the folder could not be read. ``""`` if all is well.
        trouble: Why the system does not tell of changes. ``""`` if it does.
    """

    def __init__(self, models: Operations, given: Any) -> None:
        """Make it, without watching yet.

        Args:
            models: The models.
            given: What they were made of. If it is a folder, new files in it are loaded.

        Raises:
            MissingDependencyError: watchfiles is not installed.
        """
        self._watchfiles = library("watchfiles", "headrace-models[watch]", "watch=True")
        self._models = models
        self._folder = Path(given) if isinstance(given, (str, os.PathLike)) else None
        self._aliases: dict[str, Any] = {}
        self._own: Entries = {}
        self._whole_files = WholeFiles(models._clock)
        self._asked_s = models._clock()
        self._asking: threading.Thread | None = None
        if self._folder is not None:
            with contextlib.suppress(ConfigError):
                self._aliases = read_aliases(self._folder)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reason = self.trouble = ""

    def start(self) -> None:
        """Watch in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="headrace-models-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; an update that is being built ends by itself."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except Exception as error:  # noqa: BLE001 - whatever it is, the models go on, and it is tried again
                self.trouble = f"not watched: {first_line(error)}"
                self._stop.wait(_AGAIN_S)

    def _watch(self) -> None:
        """Look at each change, until other folders are to be watched, or more or less often."""
        folders, soon = self.folders(), self._whole_files.waits
        changes = self._watchfiles.watch(
            *folders,
            stop_event=self._stop,
            recursive=False,
            watch_filter=None,
            raise_interrupt=False,
            rust_timeout=_SOON_MS if soon else _LOOK_MS,
            yield_on_timeout=True,
        )
        self.look()
        while (self.folders(), self._whole_files.waits) == (folders, soon):
            if self._stop.is_set():
                return
            next(changes, None)
            self.look()
            self.trouble = ""

    def folders(self) -> list[str]:
        """Return the folders that hold the files of the models, and the folder of models with those in it."""
        folders = {path.parent for version in self._versions() for path in version.seen}
        if self._folder is not None:
            folders.add(self._folder)
            with contextlib.suppress(OSError):
                below = [path for path in self._folder.iterdir() if path.is_dir()]
                folders.update(below)
                if self._own:  # a version is copied into a folder of its own
                    folders.update(at for each in below for at in each.iterdir() if at.is_dir())
        return sorted(str(folder.absolute()) for folder in folders if folder.is_dir())

    def _versions(self) -> list[Version]:
        models = list(self._models._models.values())
        return [version for model in models for version in [*model.versions.values()]]

    def look(self) -> None:
        """Compare all files with what was built from them, and do what has changed; it raises nothing."""
        self._whole_files.begin()
        self._ask_sometimes()
        if self._folder is not None:
            self._look_for_new(self._folder)
        for version in self._versions():
            if self._stop.is_set():
                return
            with contextlib.suppress(HeadraceError):  # the version says so in its reason
                self._look_at(version)

    def _ask_sometimes(self) -> None:
        now_s, asking = self._models._clock(), self._asking
        if now_s - self._asked_s >= _ASK_S and (asking is None or not asking.is_alive()):
            self._asked_s = now_s
            name = "headrace-models-ask"
            self._asking = threading.Thread(target=self.ask, name=name, daemon=True)
            self._asking.start()

    def ask(self) -> None:
        """Ask the addresses of the models that may change, and fetch what has. The next look sees it."""
        for place in addresses_of({path for version in self._versions() for path in version.seen}):
            with contextlib.suppress(HeadraceError):  # it has said so
                place.refresh()

    def _look_for_new(self, folder: Path) -> None:
        reasons = []
        try:
            own = own_entries(folder)
            if own is None:
                self._add(read_folder(folder))
            else:
                self._follow(own)
        except ConfigError as error:
            reasons.append(first_line(error))
            others = getattr(error, "others", None)
            if others is not None:  # some models are wrong, and the others change as ever
                self._follow(entries_of(others), getattr(error, "refused", ()))
        try:
            self._take_aliases(read_aliases(folder))
        except HeadraceError as error:
            reasons.append(first_line(error))
        reason = "; ".join(reasons)
        if reason not in ("", self.reason):
            _log.warning("what has changed in %s waits: %s", folder, reason)
        self.reason = reason

    def _follow(self, own: Entries, refused: Collection[str] = ()) -> None:
        """Take what a plugin says of the folder, where it says something else than before.

        Args:
            own: What the folder has.
            refused: The names of models that cannot be read now, and stay as they are.
        """
        changed = self._changed(own)
        self._own.update(changed)
        left = self._left(own, refused)
        for place in self._models._follow(own, changed, left, f"{self._folder} has it no more"):
            del self._own[place]

    def _there(self) -> dict[tuple[str, str], Version]:
        return {(version.name, version.number): version for version in self._versions()}

    def _changed(self, own: Entries) -> Entries:
        """Return what is new or has another configuration than before, and whose files are whole."""
        there, changed = self._there(), {}
        for place, source in own.items():
            version = there.get(place)
            if self._stop.is_set() or self._own.get(place) == source:
                continue
            kept = version is not None and not version.deleted
            if kept and there[place].source.config == source.config:
                self._own[place] = source
            elif self._whole_files.are_whole(self._files_of(source)):
                changed[place] = source
        return changed

    def _left(self, own: Entries, refused: Collection[str]) -> dict[tuple[str, str], bool]:
        """Return what the folder has no more, and whether somebody has deleted it, or its policy drops it."""
        there, left = self._there(), {}
        heirs = {name for name, _ in own}
        for place in self._own.keys() - own.keys():
            version = there.get(place)
            if place[0] in refused:
                continue
            is_here = version is not None and any(path.exists() for path in version.seen)
            if is_here and place[0] in heirs:
                left[place] = False
            elif self._whole_files.is_gone(place):
                left[place] = True
        return left

    def _files_of(self, source: Source) -> set[Path]:
        """Return the files of a source that is not read yet, with those beside them."""
        files = source.files() | getattr(source.config, "files", set())
        with contextlib.suppress(HeadraceError):  # the build says why
            config = source.load(allow_import=self._models._rules.allow_import)[0]
            files |= {*config.files, *files_of(headrace.explain(config)["nodes"].values())}
        return self._with_beside(files)

    def _with_beside(self, files: Iterable[Path]) -> set[Path]:
        """Return files with all in their folders, such as weights, but not with other models of the watched folder."""
        paths = {*files}
        root = None if self._folder is None else self._folder.absolute()
        for folder in {path.parent for path in paths} - {root}:
            paths |= _files_in(folder)
        return paths

    def _take_aliases(self, aliases: dict[str, Any]) -> None:
        if aliases != self._aliases:
            for alias, target in aliases.items():
                self._models.alias(alias, target)
            self._models._drop_aliases({*self._aliases} - {*aliases})
            self._aliases = aliases

    def _add(self, entries: Entries) -> None:
        known = {version.source.path for version in self._versions()}
        for (name, number), source in entries.items():
            if source.path in known or self._stop.is_set():
                continue
            if not self._whole_files.are_whole(self._files_of(source)):
                continue
            beside = {file: stamp(file) for file in _files_beside(source)}
            self._models._follow({}, {(name, number): source}, {}, "")
            model = self._models._models.get(name)
            version = None if model is None else model.versions.get(number)
            if version is not None and version.state == "failed":
                version.seen = {**beside, **version.seen}

    def _look_at(self, version: Version) -> None:
        model, path = self._models._models[version.name], version.source.path
        if path is None and version.deleted:
            return
        if path is not None and not path.exists():
            if not version.deleted and self._whole_files.is_gone(path):
                place = version.name, version.number
                self._models._follow({}, {}, {place: True}, f"{path} was deleted")
            return
        if version.state not in {"ready", "failed"} and not version.deleted:
            return
        # After a failure new files beside it count, because the one that was missing may be named only by what
        # could not be read.
        late = version.reason and not version.seen.keys() >= _files_beside(version.source)
        # What failed may succeed with the same files: a device or a server was away.
        failed = version.state == "failed" and not version.lazy
        again = failed and self._models._clock() >= version.retry_at
        if not (version.deleted or late or again or version.changed()):
            return
        beside = {file: stamp(file) for file in _files_beside(version.source)}
        if not self._whole_files.are_whole(
            self._with_beside({*version.seen, *(beside if late else ())})
        ):
            return
        version.seen = {file: stamp(file) for file in version.seen}
        try:
            if version.state == "ready":
                model.update(version.number if version.source.pinned else None)
            else:
                model.load(version.number)
        except HeadraceError:
            version.seen = {**beside, **version.seen}
            raise


def _files_beside(source: Source) -> set[Path]:
    """Return all files in the folder of a configuration."""
    return set() if source.path is None else _files_in(source.path.parent.absolute())


def _files_in(folder: Path) -> set[Path]:
    with contextlib.suppress(OSError):
        return {path for path in folder.iterdir() if path.is_file()}
    return set()
