"""What else than a TOML file a path may be: a model file or a folder that a plugin reads, by its hook ``headrace_readers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace._portable import Problem, error_text, without_locals
from headrace._registry.discovery import KNOWN_READERS, how_to_install
from headrace._registry.registry import Offer, registry
from headrace.errors import ConfigError, PluginError


def reader_of(path: Path) -> Offer | None:
    """Return what reads a path; None where no plugin does, or it is a TOML file.

    Of several suffixes that a name ends with, the longest counts.

    Raises:
        ConfigError: Two plugins read it.
    """
    offers = registry.offers("readers") if path.suffix != ".toml" else []
    of_files = [one for one in offers if path.name.lower().endswith(one.name) and _is_suffix(one)]
    longest = max((len(one.name) for one in of_files), default=0)
    found = [one for one in of_files if len(one.name) == longest and path.is_file()]
    found += [one for one in offers if not _is_suffix(one) and path.is_dir() and _holds(path, one)]
    others = [one for one in found if one.plugin != found[0].plugin]
    if others:
        first, other = (f"{one.distribution} ({one.name})" for one in (found[0], others[0]))
        hint = "Disable one of them with HEADRACE_PLUGINS."
        what = f"it is read by {first} and by {other}"
        raise ConfigError(Problem("plugin", what, file=str(path), hint=hint))
    return found[0] if found else None


def tables_of(path: Path) -> dict[str, Any] | None:
    """Return the tables of the TOML file that a path stands for; None where no plugin reads it.

    Raises:
        ConfigError: Its reader refuses it or fails, or two plugins read it.
        PluginError: The reader cannot be imported.
    """
    offer = reader_of(path)
    if offer is None:
        return None
    by = f"{offer.distribution} (headrace_readers, {offer.name!r})"
    try:
        tables = offer.load("reader")(path)
    except (ConfigError, PluginError):
        raise
    except Exception as error:  # noqa: BLE001 - of a plugin, which may raise anything
        what = f"{by} cannot read it: {error_text(error)}"
        raise ConfigError(Problem("reader", what, file=str(path))) from without_locals(error)
    if isinstance(tables, dict):
        return tables
    what = f"{by} gave {tables!r:.80}, not the tables of a TOML file"
    hint = "Report it to its author."
    raise ConfigError(Problem("reader", what, file=str(path), hint=hint))


def what_is_read(path: Path) -> str:
    """Say what a path may be, for one that is nothing of it: who would read it, or all that is read here."""
    for name, distribution in KNOWN_READERS.items():
        if path.name.lower().endswith(name) and not path.is_dir():
            return f"{how_to_install(distribution)}. It reads {name}."
    names = sorted({f"{one.name} ({one.distribution})" for one in registry.offers("readers")})
    return f"A configuration is a TOML file, or what a plugin reads: {', '.join(names) or 'none is installed'}."


def _is_suffix(offer: Offer) -> bool:
    return offer.name.startswith(".")


def _holds(folder: Path, offer: Offer) -> bool:
    return next(folder.glob(offer.name), None) is not None
