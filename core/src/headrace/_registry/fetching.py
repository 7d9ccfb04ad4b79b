"""Fetches files that are named by an address, by the hook ``headrace_fetchers``: once per machine, and whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace._contract.addresses import address_of, is_address, origin_of, place_of
from headrace._portable import error_text, nearest, without_locals
from headrace._registry.discovery import how_to_install
from headrace._registry.registry import Offer, registry
from headrace.errors import HeadraceError, SetupError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


def located(source: Any) -> Any:
    """Return the path of a source that is an address, once it is here; any other source as it is."""
    return fetch(place_of(source)) if is_address(source) else source


def fetch_all(options: Any) -> None:
    """Have all files here that options name by addresses."""
    for path in _paths_in([options]):
        fetch(path)


def origins_of(options: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the origins of all files that were fetched for some options; see `headrace.plugins.origin_of`."""
    return [origin for path in _paths_in(options) if (origin := origin_of(path))]


def _paths_in(options: Iterable[Any]) -> list[Path]:
    from headrace._contract.options import map_leaves  # imports pydantic

    found: dict[Path, None] = {}
    # Past their class: one may have a field `keys`, and this reads no option for whom it is meant.
    of_all = [object.__getattribute__(one, "__dict__") for one in options if one is not None]
    map_leaves(of_all, lambda one: found.setdefault(one) if isinstance(one, Path) else None)
    return list(found)


def fetch(place: Path) -> Path:
    """Have the file of an address here. While another process or thread fetches it, wait.

    Raises:
        SetupError: It cannot be had.
    """
    address = address_of(place)
    if address is None or place.exists():
        return place
    if os.environ.get("HEADRACE_OFFLINE", "") not in ("", "0"):
        hint = "Fetch it once without HEADRACE_OFFLINE or --no-fetch: headrace check CONFIG --build"
        raise SetupError(f"{address} is not here, and nothing may be fetched", hint=hint)
    offer, folder = _offer_of(address), place.parent.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _hold_lock(folder / "lock"):
            if not place.exists():
                _fetch(offer, address, place)
    except HeadraceError:
        raise
    except Exception as error:  # noqa: BLE001 - of a plugin or of the disk
        hint = f"It was to lie below {folder}; HEADRACE_CACHE names another cache."
        what = f"{address} cannot be fetched: {error_text(error)}"
        raise SetupError(what, hint=hint) from without_locals(error)
    return place


def _offer_of(address: str) -> Offer:
    offers, scheme = registry.offers("fetchers"), address.partition(":")[0]
    found = [one for one in offers if one.name == scheme]
    if len(found) > 1:
        both = f"{found[0].distribution} and {found[1].distribution}"
        hint = "Disable one of them with HEADRACE_PLUGINS."
        raise SetupError(f"{scheme}:// is fetched by {both}", hint=hint)
    if not found:
        near = nearest(scheme, [one.name for one in offers])
        hint = f"Did you mean {near}://?" if near else how_to_install("headrace-models")
        raise SetupError(f"nothing installed fetches {scheme}:// ({address})", hint=hint)
    return found[0]


@contextmanager
def _hold_lock(file: Path) -> Iterator[None]:
    if fcntl is None:
        raise SetupError("files are not fetched on Windows yet", hint="Name a file that lies here.")
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        yield


def _fetch(offer: Offer, address: str, place: Path) -> None:
    """Fetch into a folder beside the place, and move it there when it is whole."""
    whole, part, new = place.parent, place.parent.with_name("part"), place.parent.with_name("new")
    part.mkdir(exist_ok=True)
    found: Any = offer.load("fetcher")(address, part)
    path, revision = found if isinstance(found, tuple) else (found, None)
    digest = None
    if path.is_file():
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    said = {"address": address, "revision": revision, "sha256": digest and digest.hexdigest()}
    whole.with_name("origin.json").write_text(json.dumps(said), "utf-8")
    new.unlink(missing_ok=True)
    if whole.is_symlink():  # to what is gone from another cache
        whole.unlink()
    shutil.rmtree(whole, ignore_errors=True)
    if path.parent == part:
        path.replace(part / place.name)
        part.replace(whole)
        return
    if path.name != place.name:  # a link to it, under the name of the address
        (part / place.name).unlink(missing_ok=True)
        (part / place.name).symlink_to(path)
        path = part / place.name
    else:
        part.rmdir()
    new.symlink_to(path.parent)
    new.replace(whole)
