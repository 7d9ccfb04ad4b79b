"""What plugins make of a path or an address: configurations, records, files from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from headrace._language.contract.addresses import Fetched, is_address, places
from headrace._language.registry.discovery import ELSEWHERE, REPLACED, how_to_install
from headrace._language.registry.registry import Offer, registry
from headrace._problem import Problem
from headrace._run.steps.tracebacks import without_locals
from headrace._texts import error_text
from headrace.errors import ConfigError, PluginError, SetupError, among


def _only(offers: list[Offer], done: str, file: str | None = None) -> Offer | None:
    """Return the one offer, None where there is none."""
    if len({offer.plugin for offer in offers}) > 1:
        by = " and ".join(f"by {offer.distribution} ({offer.name})" for offer in offers)
        hint = "Disable one of them with HEADRACE_PLUGINS."
        raise ConfigError(Problem("plugin", f"{done} {by}", file=file, hint=hint))
    return offers[0] if offers else None


# Paths.


def _ending(offers: Sequence[Offer], path: Path) -> list[Offer]:
    """Return the offers of the longest suffix with which the name of a path ends."""
    name = path.name.lower()
    ends = [offer for offer in offers if offer.name.startswith(".") and name.endswith(offer.name)]
    longest = max((len(offer.name) for offer in ends), default=0)
    return [offer for offer in ends if len(offer.name) == longest]


def records_of(path: str | Path) -> Iterator[Any] | None:
    """Read the records of a file as dicts, one after the other; see `headrace.hookspecs`.

    Args:
        path: The file.

    Returns:
        None where no plugin reads records of this suffix. In place of a record that is none comes
        an exception that says why.

    Raises:
        ConfigError: Two plugins read them.
        PluginError: What reads them cannot be imported.
        Exception: While it is read: what the plugin raises.
    """
    offer = _only(_ending(registry.offers("records"), Path(path)), "its records are read")
    return None if offer is None else iter(offer.load("reader of records")(Path(path)))


def _reader_of(path: Path) -> Offer | None:
    """Return what reads a path; of several suffixes that its name ends with, the longest counts."""
    if path.suffix == ".toml":
        return None
    is_folder, read = path.is_dir(), registry.offers("readers")
    offers = _ending(read, path) if path.is_file() else []
    holds = [
        offer for offer in read if offer.name[0] != "." and is_folder and any(path.glob(offer.name))
    ]
    return _only(offers + holds, "it is read", str(path))


def reads(path: str | Path) -> bool:
    """Return whether a plugin reads this path, as ``m.onnx``: it may stand for a TOML file.

    Raises:
        ConfigError: Two plugins read it.
    """
    return _reader_of(Path(path).absolute()) is not None


def tables_of(path: str | Path, ignore: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the tables of the TOML file that a path stands for; see `headrace.hookspecs`.

    Args:
        path: The path.
        ignore: Names in the format of the plugin that it shall not look at.

    Returns:
        None where no plugin reads it. A relative path in the tables starts from the folder of the
        file, or from the folder itself.

    Raises:
        ConfigError: Its plugin refuses it or fails, or two plugins read it.
        PluginError: What reads it cannot be imported.
    """
    path = Path(path).absolute()
    offer = _reader_of(path)
    if offer is None:
        return None
    try:
        reader = offer.load("reader")
        tables = reader(path, **_ignore_argument(reader, ignore, offer, path))
        if isinstance(tables, dict):
            return tables
        message, cause = f"gave {tables!r:.80}, not the tables of a TOML file", None
    except (ConfigError, PluginError):
        raise
    except Exception as error:  # noqa: BLE001 - of a plugin, which may raise anything
        message, cause = f"cannot read it: {error_text(error)}", without_locals(error)
    message = f"{offer.distribution} (headrace.readers, {offer.name!r}) {message}"
    raise ConfigError(Problem("reader", message, file=str(path))) from cause


def _ignore_argument(
    reader: Any, ignore: Sequence[str], offer: Offer, path: Path
) -> dict[str, Any]:
    """Return the argument that tells a reader what it shall not look at, if anything."""
    if not ignore:
        return {}
    if "ignore" not in signature(reader).parameters:
        message = f"ignore: {offer.distribution} reads all that there is"
        raise ConfigError(Problem("reader", message, file=str(path), hint="Leave it out."))
    return {"ignore": ignore}


def what_is_read(path: Path) -> str:
    """Say who would read a path that nobody reads, or else all that is read here."""
    for name, advice in REPLACED.items():
        if "." in name and (path.match(name) or (path / name).is_file()):
            return advice
    for name, distribution in ELSEWHERE["readers"].items():
        if path.name.lower().endswith(name) and not path.is_dir():
            return f"{how_to_install(distribution)}. It reads {name}."
    offers = registry.offers("readers")
    names = sorted({f"{offer.name} ({offer.distribution})" for offer in offers})
    read = ", ".join(names) or "none is installed"
    return f"A configuration is a TOML file, or what a plugin reads: {read}."


# Addresses.


def find_place(address: str) -> Path:
    """Return where the file of an address lies, or will lie. Nothing is fetched.

    Raises:
        ConfigError: The plugin refuses it, or there is none, or two.
        PluginError: The plugin cannot be imported.
    """
    offers, scheme = registry.offers("fetchers"), address.partition(":")[0]
    fetching = [offer for offer in offers if offer.name == scheme]
    if (offer := _only(fetching, f"{scheme}:// is fetched")) is None:
        brings = ELSEWHERE["fetchers"].get(scheme)
        hint = among(scheme, [offer.name for offer in offers], brings and how_to_install(brings))
        message = f"nothing installed fetches {scheme}:// ({address.partition('?')[0]})"
        raise ConfigError(Problem("fetch", message, hint=hint))
    fetcher: Any = offer.load("fetcher")
    place: Fetched = fetcher(str(address))
    places[str(place.path)] = place
    return place.path


def located(source: Any) -> Any:
    """Return the path of a source that is an address, once it is here; any other source as it is.

    Raises:
        ConfigError: The address is wrong, or it cannot be fetched.
    """
    if not is_address(source):
        return source
    place = find_place(source)
    try:
        places[str(place)].fetch()
    except SetupError as error:
        raise ConfigError(Problem("fetch", error.what, hint=error.hint)) from error
    return place
