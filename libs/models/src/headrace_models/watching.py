"""Watches the files of models: what changes is built again, what is deleted is unloaded, what is new is loaded."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, MissingDependencyError
from headrace_models.sources import read_folder, stamp
from headrace_models.version import first_line

if TYPE_CHECKING:
    from headrace_models.operations import Operations
    from headrace_models.sources import Entries
    from headrace_models.version import Version

__all__ = ["Watching"]


class Watching:
    """Keeps models as their files are.

    The file system only says that something has changed in a folder; `look` then compares the files themselves
    with what was built from them, so that no order and no loss of events matters.

    Attributes:
        reason: Why ``aliases.toml`` or the folder could not be read; ``""`` if all is well.
    """

    def __init__(self, models: Operations, given: Any) -> None:
        """Make it, without watching yet.

        Args:
            models: The models.
            given: What they were made of; if it is a folder, new files in it are loaded.

        Raises:
            MissingDependencyError: watchfiles is not installed.
        """
        try:
            import watchfiles
        except ImportError as error:
            hint = "Run: pip install 'headrace-models[watch]'"
            raise MissingDependencyError("watch=True needs watchfiles", hint=hint) from error
        self._watchfiles = watchfiles
        self._models = models
        self._folder = Path(given) if isinstance(given, (str, os.PathLike)) else None
        self._aliases: dict[str, Any] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reason = ""

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
            folders = self.folders()
            self.look()  # what has changed before these folders were watched
            if not folders:
                self._stop.wait()
                return
            changes = self._watchfiles.watch(
                *folders,
                stop_event=self._stop,
                recursive=False,
                watch_filter=None,
                raise_interrupt=False,
                rust_timeout=1000,
                yield_on_timeout=True,
            )
            with contextlib.suppress(
                OSError, RuntimeError
            ):  # a folder is gone: they are listed again
                for _ in changes:
                    self.look()
                    if self.folders() != folders:
                        break

    def folders(self) -> list[str]:
        """Return the folders that hold the files of the models, and the folder of models with those in it."""
        found = {path.parent for version in self._versions() for path in version.seen}
        if self._folder is not None:
            found.add(self._folder)
            with contextlib.suppress(OSError):
                found.update(one for one in self._folder.iterdir() if one.is_dir())
        return sorted(str(one.absolute()) for one in found if one.is_dir())

    def _versions(self) -> list[Version]:
        models = list(self._models._models.values())
        return [one for model in models for one in [*model.versions.values()]]

    def look(self) -> None:
        """Compare all files with what was built from them, and do what has changed; it raises nothing."""
        if self._folder is not None:
            self._look_for_new(self._folder)
        for version in self._versions():
            if self._stop.is_set():
                return
            with contextlib.suppress(HeadraceError):  # the version says so in its reason
                self._look_at(version)

    def _look_for_new(self, folder: Path) -> None:
        try:
            entries, aliases = read_folder(folder)
            self.reason = ""
        except ConfigError as error:
            self.reason = first_line(error)
            return
        self._add(entries)
        if aliases != self._aliases:
            try:
                for alias, target in aliases.items():
                    self._models.alias(alias, target)
                self._models._drop_aliases({*(self._aliases or {})} - {*aliases})
                self._aliases = aliases
            except HeadraceError as error:
                self.reason = first_line(error)

    def _add(self, entries: Entries) -> None:
        known = {version.source.path for version in self._versions()}
        for (name, number), source in entries.items():
            if source.path in known or self._stop.is_set():
                continue
            with contextlib.suppress(HeadraceError):
                self._models._load_new(name, number, source)

    def _look_at(self, version: Version) -> None:
        model, path = self._models._models[version.name], version.source.path
        if path is not None and not path.exists():
            if not version.deleted:
                model.unload(version.number, f"{path} was deleted")
                model.versions[version.number].deleted = True
            return
        tries = version.state in ("ready", "failed")
        if not (version.deleted or (tries and version.changed())):
            return
        # After a failure all files beside it count, because the one that is missing may be named only by what could
        # not be read.
        beside = {} if path is None else _stamps_in(path.parent.absolute())
        version.seen = {file: stamp(file) for file in version.seen}
        try:
            if version.state == "ready":
                model.update(version.number if version.source.pinned else None)
            else:
                model.load(version.number)
        except HeadraceError:
            version.seen = {**beside, **version.seen}
            raise


def _stamps_in(folder: Path) -> dict[Path, Any]:
    with contextlib.suppress(OSError):
        return {one: stamp(one) for one in folder.iterdir() if one.is_file()}
    return {}
