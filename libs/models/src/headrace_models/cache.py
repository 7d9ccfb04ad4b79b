"""The cache of this machine, in which each file that a configuration names by an address lies once, and whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.errors import HeadraceError, SetupError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Cached", "digest_of"]

Fetcher: TypeAlias = Callable[[str, Path], "Path | tuple[Path, str | None]"]

_FOLDERS: Final = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}


class Cached:
    """The file or folder of one address in the cache; what `headrace.hookspecs.headrace_fetchers` asks for.

    Attributes:
        address: The address.
        path: Where its file lies, or will lie: in a folder of its own below ``HEADRACE_CACHE``.
    """

    def __init__(self, address: str, fetcher: Fetcher) -> None:
        """Name the place of an address. Nothing is fetched.

        Args:
            address: The address.
            fetcher: A function ``f(address, folder)`` that puts the file, or a whole folder, into ``folder``, and returns its
                path. It may return the path of a file that another cache holds, and the path together with the revision
                that it got. Files beside it, such as weights, come with it. ``folder`` holds what an earlier call has left
                that was broken off. No other process fetches the address meanwhile.
        """
        self.address, self._fetcher = address, fetcher
        own = os.environ.get("XDG_CACHE_HOME") or _FOLDERS.get(sys.platform, "~/.cache")
        named = os.environ.get("HEADRACE_CACHE") or os.path.join(own, "headrace")  # noqa: PTH118 - with ~
        root = Path(os.path.abspath(os.path.expanduser(named)))  # noqa: PTH100, PTH111 - links keep their names
        last = re.split(r"[?#]", address)[0].rstrip("/").rpartition("/")[2].partition("@")[0]
        name = re.sub(r"[^\w.+-]", "_", last).lstrip(".") or "file"
        self._folder = root / "fetched" / hashlib.sha256(address.encode()).hexdigest()[:32]
        self.path = self._folder / "whole" / name

    def origin(self) -> dict[str, Any]:
        """Return address, revision and digest; of what is not here yet the address alone."""
        if self.path.exists():
            with suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads((self._folder / "origin.json").read_bytes())
                return found
        return {"address": self.address}

    def fetch(self) -> None:
        """Have it here. While another process or thread fetches it, wait.

        Raises:
            SetupError: It cannot be had.
        """
        if self.path.exists():
            return
        if os.environ.get("HEADRACE_OFFLINE", "") not in ("", "0"):
            hint = "Fetch it once without HEADRACE_OFFLINE or --no-fetch: headrace check CONFIG --build"
            raise SetupError(f"{self.address} is not here, and nothing may be fetched", hint=hint)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _hold_lock(self._folder / "lock"):
                if not self.path.exists():
                    self._fetch()
        except HeadraceError:
            raise
        except Exception as error:
            hint = f"It was to lie below {self._folder}; HEADRACE_CACHE names another cache."
            what = f"{self.address} cannot be fetched: {type(error).__name__}: {error}"
            raise SetupError(what, hint=hint) from error

    def _fetch(self) -> None:
        """Fetch into a folder beside the place, and move it there when it is whole."""
        whole, part, new = self.path.parent, self._folder / "part", self._folder / "new"
        part.mkdir(exist_ok=True)
        found = self._fetcher(self.address, part)
        path, revision = found if isinstance(found, tuple) else (found, None)
        digest = digest_of(path) if path.is_file() else None
        said = {"address": self.address, "revision": revision, "sha256": digest}
        (self._folder / "origin.json").write_text(json.dumps(said), "utf-8")
        new.unlink(missing_ok=True)
        if whole.is_symlink():  # to what is gone from another cache
            whole.unlink()
        shutil.rmtree(whole, ignore_errors=True)
        if path.parent == part:
            path.replace(part / self.path.name)
            part.replace(whole)
            return
        if path.name != self.path.name:  # a link to it, under the name of the address
            link = part / self.path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
            path = link
        else:
            part.rmdir()
        new.symlink_to(path.parent)
        new.replace(whole)


@contextmanager
def _hold_lock(file: Path) -> Iterator[None]:
    if fcntl is None:
        raise SetupError("files are not fetched on Windows yet", hint="Name a file that lies here.")
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        yield


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
