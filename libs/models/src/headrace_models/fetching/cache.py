"""The cache of this machine, in which each file that a configuration names by an address lies once, and whole."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from headrace.errors import HeadraceError, SetupError
from headrace_formats import write_whole
from headrace_models.fetching.digests import Digests, digest_of

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Cached", "Got", "addresses_of", "cache_folder", "shown"]


@dataclass(frozen=True)
class Got:
    """What a fetcher has got.

    Attributes:
        path: The file or folder.
        revision: Its revision. None: it has none.
        files: The files that are loaded of it, where it lies in another cache. None: all.
    """

    path: Path
    revision: str | None = None
    files: tuple[Path, ...] | None = None


Fetcher: TypeAlias = Callable[[str, Path], "Path | tuple[Path, str | None] | Got"]

_log = logging.getLogger("headrace.models")

_FOLDERS: Final = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}
_NAME_BYTES: Final = 200
"""The most bytes of the name of a file; file systems take 255."""
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

_by_path: WeakValueDictionary[str, Cached] = WeakValueDictionary()


def addresses_of(files: Iterable[Path]) -> list[Cached]:
    """Return the addresses to which some files belong, and whose contents may change."""
    paths = {str(at) for file in files for at in (file, *file.parents)}
    candidates = (_by_path.get(path) for path in paths)
    return [cached for cached in candidates if cached is not None and cached.moves]


def cache_folder() -> Path:
    """Return the folder of the cache, which ``HEADRACE_CACHE`` may name."""
    own = os.environ.get("XDG_CACHE_HOME") or _FOLDERS.get(sys.platform, "~/.cache")
    named = os.environ.get("HEADRACE_CACHE") or os.path.join(own, "headrace")  # noqa: PTH118 - with ~
    return Path(os.path.abspath(os.path.expanduser(named)))  # noqa: PTH100, PTH111 - links keep their names


def shown(address: str) -> str:
    """Return an address without its query, which may be a secret."""
    url, mark, digest = address.partition("#")
    return url.partition("?")[0] + mark + digest


class Cached:
    """The file or folder of one address in the cache; what `headrace.hookspecs` asks for.

    Each `fetch` hashes the files that are here, and those that have changed are fetched again. An address whose contents
    may change is asked for its revision once.

    Attributes:
        address: The address, without its query.
        path: Where its file lies, or will lie: in a folder of its own below ``HEADRACE_CACHE``.
        moves: Whether its contents may change.
    """

    def __init__(
        self,
        address: str,
        fetcher: Fetcher,
        *,
        key: str | None = None,
        name: str | None = None,
        sha256: str | None = None,
        revision: Callable[[], str] | None = None,
        within: Callable[[], Path] | None = None,
    ) -> None:
        """Name the place of an address. Nothing is fetched.

        Args:
            address: The address.
            fetcher: A function ``f(address, folder)`` that puts the file, or a whole folder, into ``folder``, and returns its
                path. It may return the path of a file that another cache holds, and the path together with the revision
                that it got. Files beside it, such as weights, come with it. ``folder`` holds what an earlier call has left
                that was broken off. No other process fetches the address meanwhile.
            key: What addresses of the same contents share. None: the address.
            name: The name of the file. None: the last part of the address.
            sha256: The digest that the file has. None: any.
            revision: Gives the revision that the address has now. None: its contents never change.
            within: Gives the folder of the other cache, where all files are that the fetcher finds there. None: anywhere.
        """
        self.address, self.moves = shown(address), revision is not None
        self._asked, self._fetcher = address, fetcher
        self._sha256, self._revision, self._within = sha256, revision, within
        self._root = cache_folder()
        last = name or re.split(r"[?#]", address)[0].rstrip("/").rpartition("/")[2]
        digest = hashlib.sha256((key or address).encode()).hexdigest()
        self._folder = self._root / "fetched" / digest[:32]
        self.path = self._folder / "whole" / _file_name(last)
        self._turn = threading.Lock()
        self._digests: Digests | None = None
        self._now: str | None = None
        self._digest: str | None = None
        self._told: tuple[Any, str] | None = None
        _by_path[str(self.path)] = self

    def origin(self) -> dict[str, Any]:
        """Return address, revision, digest of the file as it is, and ``moves`` if it may change; of what is not here no digest."""
        moves = {"moves": True} if self.moves else {}
        if self._digests is None and not self.path.exists():
            return {"address": self.address, **moves}
        digest = self._digest
        if self._digests is None and self.path.is_file():
            digest = digest_of(self.path)
        revision = self._said().get("revision")
        return {"address": self.address, "revision": revision, "sha256": digest, **moves}

    def fetch(self) -> None:
        """Have it here. While another process or thread fetches it, wait.

        Raises:
            SetupError: It cannot be had.
        """
        with self._turn:
            if self._digests is None or self._digests.changed():
                self._have()

    def check(self) -> None:
        """Check that the file is still the one that `fetch` has hashed, once it is loaded.

        Raises:
            SetupError: It is another one.
        """
        changed = self._digests.changed() if self._digests is not None else []
        if changed:
            names = ", ".join(changed)
            text = f"{self.address}: {names} was written while it was loaded"
            raise SetupError(text, hint="Try again, and see who writes there.")

    def refresh(self) -> None:
        """Ask for the revision of an address whose contents may change, and have it here if it is another one.

        Raises:
            SetupError: It cannot be had.
        """
        with self._turn:
            self._now = None
            if self._digests is None or self._digests.changed():
                self._have()
                return
            why = self._ask()
            if self._now in (None, self._said().get("revision")):
                self._tell(why)
            else:
                self._have()

    def _have(self) -> None:
        self._check_folders()
        why = self._ask()
        if not self._is_right():
            try:
                self._fetch_locked()
            except HeadraceError as error:
                self._now = None  # what it was before runs, if it is here
                if not (self.moves and self._is_right()):
                    raise
                why = str(error).replace("\n", " ")
        self._tell(why)

    def _fetch_locked(self) -> None:
        """Fetch it, unless another process has done so meanwhile.

        Raises:
            SetupError: It cannot be had.
        """
        if _is_offline():
            hint = "Fetch it once without HEADRACE_OFFLINE or --no-fetch: headrace check CONFIG --build"
            state = "has changed in the cache" if self.path.exists() else "is not here"
            raise SetupError(f"{self.address} {state}, and nothing may be fetched", hint=hint)
        try:
            for folder in (self._root, self._root / "fetched", self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folders()
            with _hold_lock(self._folder / "lock"):
                if not self._is_right():
                    self._fetch()
        except HeadraceError:
            raise
        except Exception as error:
            hint = f"It was to lie below {self._folder}; HEADRACE_CACHE names another cache."
            text = f"{self.address} cannot be fetched: {type(error).__name__}: {error}"
            raise SetupError(text.replace(self._asked, self.address), hint=hint) from error

    def _ask(self) -> str:
        """Ask once for the revision; return why there is none."""
        if self._revision is None or self._now is not None:
            return ""
        if _is_offline():
            return "nothing may be fetched"
        try:
            self._now = self._revision()
        except HeadraceError as error:
            if not self.path.exists():
                raise
            return str(error).replace("\n", " ")
        return ""

    def _tell(self, why: str) -> None:
        """Log what runs of an address whose contents may change."""
        runs = self._said().get("revision")
        if self.moves and self._told != (runs, why):
            self._told = runs, why
            if why:
                _log.warning(
                    "%s: revision %s of the cache runs, because %s", self.address, runs, why
                )
            else:
                _log.warning("%s may change, and is revision %s now", self.address, runs)

    def _said(self) -> dict[str, Any]:
        """Return what was noted as it was fetched."""
        with suppress(OSError, ValueError):
            noted = json.loads((self._folder / "origin.json").read_bytes())
            if isinstance(noted, dict):
                return noted
        return {}

    def _is_right(self) -> bool:
        """Hash what is here; return whether it is what the address promises, and what was fetched."""
        self._digests = None
        said = self._said()
        files = said.get("files") or (self._sha256 and {self.path.name: self._sha256})
        moved = self._now is not None and said.get("revision") != self._now
        if moved or not self.path.exists() or not isinstance(files, dict):
            return False
        digests, whole = Digests(), self.path.parent
        try:
            present = {name: digests.sha256(self._inside(whole / name)) for name in files}
            main = digests.sha256(self.path) if self.path.is_file() else None
        except (OSError, SetupError):
            return False
        if present != files or main not in (self._sha256 or main, None):
            _log.warning("%s is not what was fetched: it is fetched again", self.address)
            return False
        self._digests, self._digest = digests, main
        return True

    def _inside(self, path: Path) -> Path:
        """Return a path, unless it leads out of this cache and the other one.

        Raises:
            SetupError: It does.
        """
        places = [self._folder.resolve()]
        if self._within is not None:
            places.append(self._within().resolve())
        lies = path.resolve()
        if self._within is not None and not any(lies.is_relative_to(folder) for folder in places):
            raise SetupError(f"{self.address}: {path.name} lies outside of the cache, in {lies}")
        return path

    def _fetch(self) -> None:
        """Fetch into a folder beside the place, and let the place lead there when it is whole."""
        before, whole = self._said(), self.path.parent
        part, new = self._folder / "part", self._folder / "new"
        if part.is_symlink():
            part.unlink()
        part.mkdir(mode=0o700, exist_ok=True)
        for path in [*part.rglob("*")]:
            if path.is_symlink():
                path.unlink()
        fetched = self._fetcher(self._asked, part)
        got = fetched if isinstance(fetched, Got) else Got(*_pair(fetched))
        names = self._names_of(got)
        kept = self._folder / f"got-{secrets.token_hex(4)}"
        self._keep(got, part, kept)
        digests = Digests()
        said: dict[str, Any] = {
            "address": self.address,
            "revision": got.revision,
            "files": {name: digests.sha256(self._inside(kept / name)) for name in names},
        }
        self._check_got(got.revision, said["files"], before, kept / self.path.name)
        write_whole(self._folder / "origin.json", json.dumps(said), mode=0o600)
        if whole.is_dir() and not whole.is_symlink():
            shutil.rmtree(whole)
        new.unlink(missing_ok=True)
        new.symlink_to(kept.name)
        new.replace(whole)
        self._digests, self._digest = digests, said["files"].get(self.path.name)
        for old in {*self._folder.glob("got-*")} - {kept}:
            if old.is_symlink():
                old.unlink()
            else:
                shutil.rmtree(old, ignore_errors=True)

    def _names_of(self, got: Got) -> list[str]:
        """Return the files that count of what was got, as they will be called beside `path`."""
        files = got.files
        if files is None and got.path.is_file() and not got.path.is_relative_to(self._folder):
            files = (got.path,)
        if files is None:
            folder = got.path if got.path.is_dir() else got.path.parent
            files = tuple(path for path in folder.rglob("*") if path.is_file())
        places = [path.relative_to(got.path.parent) for path in files]
        own = got.path.name
        return [
            str(Path(self.path.name, *place.parts[1:]) if place.parts[0] == own else place)
            for place in places
        ]

    def _keep(self, got: Got, part: Path, kept: Path) -> None:
        """Have what was got in a folder of its own, or lead there."""
        if got.path.is_relative_to(part):
            if got.path.parent == part:
                got.path.replace(part / self.path.name)
            part.replace(kept)
        elif got.path.name == self.path.name:
            kept.symlink_to(got.path.parent)
        else:  # a link to it, under the name of the address
            kept.mkdir(mode=0o700)
            (kept / self.path.name).symlink_to(got.path)

    def _check_got(
        self, revision: str | None, files: dict[str, str], before: dict[str, Any], path: Path
    ) -> None:
        """Check what was fetched against what the address promises, and what the same revision was before.

        Raises:
            SetupError: It is something else.
        """
        main = files.get(self.path.name)
        if self._sha256 not in (None, main):
            raise SetupError(f"{self.address}: what came has the digest sha256={main}")
        known = before.get("files") if before.get("revision") == revision is not None else None
        if known is not None and known.keys() == files.keys() and known != files:
            text = f"{self.address} is not what it was before at revision {revision}"
            raise SetupError(text, hint=f"Remove {path.resolve()}, and it is fetched again.")

    def _check_folders(self) -> None:
        """Check that nobody else can write in the cache.

        Raises:
            SetupError: Somebody can.
        """
        if not hasattr(os, "geteuid"):
            return
        for folder in (self._root, self._root / "fetched", self._folder):
            try:
                status = folder.stat() if folder == self._root else folder.lstat()
            except FileNotFoundError:
                return
            wrong = ""
            if not stat.S_ISDIR(status.st_mode):
                wrong = "is no folder"
            elif status.st_uid not in (os.geteuid(), 0):
                wrong = f"belongs to the user {status.st_uid}, who may change what you run"
            elif status.st_mode & 0o022:
                wrong = (
                    f"has the mode {stat.S_IMODE(status.st_mode):o}: others may change what you run"
                )
            if wrong:
                hint = (
                    f"Name a folder of your own as HEADRACE_CACHE, or type `chmod go-w {folder}`."
                )
                raise SetupError(f"the cache {folder} {wrong}", hint=hint)


def _is_offline() -> bool:
    return os.environ.get("HEADRACE_OFFLINE", "") not in ("", "0")


def _pair(fetched: Path | tuple[Path, str | None]) -> tuple[Path, str | None]:
    return fetched if isinstance(fetched, tuple) else (fetched, None)


def _file_name(text: str) -> str:
    """Return a name that every file system takes, and that leads nowhere else; its suffix stays."""
    name = re.sub(r"[^\w.+@ =,()-]", "_", text).strip().lstrip(".") or "file"
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a text, no path
    suffix = suffix if len(suffix.encode()) <= _NAME_BYTES // 2 else ""
    room = _NAME_BYTES - len(suffix.encode())
    return stem.encode()[:room].decode(errors="ignore") + suffix


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    if fcntl is None:
        raise SetupError("files are not fetched on Windows yet", hint="Name a file that lies here.")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
    with open(descriptor, "r+b") as lock:  # noqa: PTH123 - a descriptor
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        yield
