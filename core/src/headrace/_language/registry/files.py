"""What plugins make of a path or an address: the hooks ``headrace_readers`` and ``headrace_fetchers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace._language.contract.addresses import is_address, places
from headrace._language.registry.discovery import KNOWN_READERS, how_to_install
from headrace._language.registry.registry import Offer, registry
from headrace._problem import Problem
from headrace._run.tracebacks import without_locals
from headrace._texts import error_text
from headrace.errors import ConfigError, PluginError, SetupError, among


def _only(offers: list[Offer], what: str, file: str | None = None) -> Offer | None:
    """Return the one offer, None where there is none."""
    for other in offers:
        if other.plugin != offers[0].plugin:
            first, second = (f"{one.distribution} ({one.name})" for one in (offers[0], other))
            hint, what = (
                "Disable one of them with HEADRACE_PLUGINS.",
                f"{what} by {first} and by {second}",
            )
            raise ConfigError(Problem("plugin", what, file=file, hint=hint))
    return offers[0] if offers else None


# Paths.


def _reader_of(path: Path) -> Offer | None:
    """Return what reads a path; of several suffixes that its name ends with, the longest counts."""
    offers = registry.offers("readers") if path.suffix != ".toml" else []
    ends = [one for one in offers if path.name.lower().endswith(one.name) and _is_suffix(one)]
    longest = max((len(one.name) for one in ends), default=0)
    found = [one for one in ends if len(one.name) == longest and path.is_file()]
    found += [
        one for one in offers if not _is_suffix(one) and path.is_dir() and any(path.glob(one.name))
    ]
    return _only(found, "it is read", str(path))


def _is_suffix(offer: Offer) -> bool:
    return offer.name.startswith(".")


def reads(path: str | Path) -> bool:
    """Return whether a plugin reads this path, as ``headrace-ort`` reads ``m.onnx``: it may stand where a TOML file may.

    Raises:
        ConfigError: Two plugins read it.
    """
    return _reader_of(Path(path).absolute()) is not None


def tables_of(path: str | Path) -> dict[str, Any] | None:
    """Return the tables of the TOML file that a path stands for, by its plugin; see `headrace.hookspecs.headrace_readers`.

    Returns:
        None where no plugin reads it. A relative path in the tables starts from the folder of the file, or from the
        folder itself.

    Raises:
        ConfigError: Its plugin refuses it or fails, or two plugins read it.
        PluginError: What reads it cannot be imported.
    """
    path = Path(path).absolute()
    offer = _reader_of(path)
    if offer is None:
        return None
    try:
        tables = offer.load("reader")(path)
        if isinstance(tables, dict):
            return tables
        what, cause = f"gave {tables!r:.80}, not the tables of a TOML file", None
    except (ConfigError, PluginError):
        raise
    except Exception as error:  # noqa: BLE001 - of a plugin, which may raise anything
        what, cause = f"cannot read it: {error_text(error)}", without_locals(error)
    what = f"{offer.distribution} (headrace_readers, {offer.name!r}) {what}"
    raise ConfigError(Problem("reader", what, file=str(path))) from cause


def what_is_read(path: Path) -> str:
    """Say what a path may be, for one that is nothing of it: who would read it, or all that is read here."""
    for name, distribution in KNOWN_READERS.items():
        if path.name.lower().endswith(name) and not path.is_dir():
            return f"{how_to_install(distribution)}. It reads {name}."
    names = sorted({f"{one.name} ({one.distribution})" for one in registry.offers("readers")})
    return f"A configuration is a TOML file, or what a plugin reads: {', '.join(names) or 'none is installed'}."


# Addresses.


def find_place(address: str) -> Path:
    """Return where the file of an address lies, or will lie, by the plugin of its scheme. Nothing is fetched.

    Raises:
        ConfigError: The plugin refuses it, or there is none, or two.
        PluginError: The plugin cannot be imported.
    """
    offers, scheme = registry.offers("fetchers"), address.partition(":")[0]
    offer = _only([one for one in offers if one.name == scheme], f"{scheme}:// is fetched")
    if offer is None:
        is_here = any(one.distribution == "headrace-models" for one in offers)
        install = None if is_here else how_to_install("headrace-models")
        hint = among(scheme, [one.name for one in offers], install)
        what = f"nothing installed fetches {scheme}:// ({address})"
        raise ConfigError(Problem("fetch", what, hint=hint))
    fetcher: Any = offer.load("fetcher")
    found = fetcher(str(address))
    path: Path = found.path
    places[str(path)] = found
    return path


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
