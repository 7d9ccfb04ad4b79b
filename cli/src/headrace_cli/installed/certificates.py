"""Certificates in the metadata of installed plugins: made by ``headrace conformance --write``, read by ``plugins``."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_cli.console import WrongArgument, counted
from headrace_cli.installed.findings import finding_about, required, version_of
from headrace_formats import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.plugins import Plugin
    from headrace_cli.installed.findings import Finding

FILE = "certificate.json"
"""The name of a certificate in a source folder, and in the folder ``extra_metadata`` of a wheel's metadata."""


def source_file(name: str) -> str:
    """Return the path of the certificate in the folder from which a distribution is installed.

    Raises:
        WrongArgument: It is installed from elsewhere.
    """
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # it loads a client of HTTP, which no listing needs

    origin = _origin(name)
    if "dir_info" not in origin:
        raise WrongArgument(
            f"--write: {name} is not installed from its source folder. "
            f"Install it from there, or name the file: --certificate FOLDER/{FILE}"
        )
    return str(Path(url2pathname(urlsplit(origin["url"]).path)) / FILE)


def _origin(name: str) -> dict[str, Any]:
    """Return from where pip installed a distribution: empty where that is an index or a file of links."""
    origin: dict[str, Any] = read_json(distribution(name).read_text("direct_url.json") or "{}")
    return origin


def judged_here(plugins: Iterable[Plugin]) -> dict[str, Any]:
    """Return what judges here, and of each distribution the digests of its modules and its libraries' versions."""
    return {
        "kit": version("headrace-testing"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "distributions": {
            plugin.distribution: {"modules": _modules(plugin), "libraries": _libraries(plugin)}
            for plugin in {plugin.distribution: plugin for plugin in plugins}.values()
        },
    }


def without_places(certificates: str, plugins: Iterable[Plugin]) -> str:
    """Return the JSON of certificates without the folders in which plugins lie here: a wheel goes to others."""
    for _, top in {place for plugin in plugins for place in _places(plugin)}:
        for folder in (f"{top}{os.sep}", f"{top.as_posix()}/"):
            certificates = certificates.replace(json.dumps(folder, ensure_ascii=False)[1:-1], "")
    return certificates


def _places(plugin: Plugin) -> set[tuple[Path, Path]]:
    """Return the outermost packages or files beside the backends of a plugin, and the folder from which each is imported."""
    places = {_place(path.partition(":")[0]) for path in plugin.backends.values()}
    return {(place, place.parents[depth]) for place, depth in filter(None, places)}


def _modules(plugin: Plugin) -> dict[str, str]:
    """Return the SHA-256 of each module beside the backends of a plugin, by its path in a wheel. Import none."""
    from hashlib import sha256  # it loads OpenSSL, which most listings do not need

    digests = {}
    for place, top in _places(plugin):
        for file in [place] if place.is_file() else place.rglob("*"):
            if file.suffix in (".py", ".so", ".pyd"):
                path = file.relative_to(top).as_posix()
                digests[path] = sha256(file.read_bytes()).hexdigest()
    return dict(sorted(digests.items()))


def _place(module: str) -> tuple[Path, int] | None:
    """Return the outermost package of a module, or its file, and how many namespaces it is in. None: it is missing."""
    parts = module.split(".")
    with contextlib.suppress(ImportError, ValueError):
        for depth in range(len(parts)):
            spec = importlib.util.find_spec(".".join(parts[: depth + 1]))
            if spec is not None and spec.origin is not None:
                file = Path(spec.origin)
                return file if spec.submodule_search_locations is None else file.parent, depth
    return None


def _libraries(plugin: Plugin) -> dict[str, str]:
    """Return the versions of the installed libraries that a plugin requires, with any of its extras."""
    extras = distribution(plugin.distribution).metadata.get_all("Provides-Extra") or ()
    names = sorted({need.name for need in required(plugin.requires, extras)})
    return {name: have for name in names if (have := _installed(name)) is not None}


def _installed(name: str) -> str | None:
    dist = next(iter(distributions(name=name)), None)
    return None if dist is None else version_of(dist)


def certificate_of(plugin: Plugin) -> tuple[dict[str, Any] | None, Finding | None]:
    """Return the certificate that a plugin's metadata carry, in short, or the finding that it does not hold here.

    Both are None where there is none.
    """
    try:
        text = distribution(plugin.distribution).read_text(f"extra_metadata/{FILE}")
        if text is None:
            return None, None
        document = read_json(text)
        own = document["distributions"][plugin.distribution]
        difference = _difference(plugin, own["modules"], own["libraries"])
        if difference is not None:
            return None, difference
        ran = {key: str(document[key]) for key in ("kit", "headrace", "python", "platform", "date")}
        good = {c["backend"] for c in document["certificates"] if c["certified"]}
        return {**ran, "backends": sorted(good & {*plugin.backends})}, None
    except PackageNotFoundError:
        return None, None
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return None, _outdated(
            plugin, f"its certificate cannot be read: {type(error).__name__}: {error}"
        )


def _difference(
    plugin: Plugin, modules: dict[str, str], libraries: dict[str, str]
) -> Finding | None:
    """Report how what is installed differs from what was certified."""
    here = _modules(plugin)
    changed = sorted(path for path in {*here, *modules} if here.get(path) != modules.get(path))
    if changed:
        more = f" and {counted(len(changed) - 1, 'more module')}" if changed[1:] else ""
        reason = f"{changed[0]}{more} changed after it was certified"
        if _origin(plugin.distribution).get("dir_info", {}).get("editable"):
            return _outdated(plugin, reason)  # by whoever develops it
        remedy = f"Install it again: pip install --force-reinstall {plugin.distribution}"
        return finding_about(plugin, "modified", reason, remedy)
    for name, was in libraries.items():
        have = _installed(name)
        if have is not None and have.split(".")[0] != was.split(".")[0]:
            return _outdated(plugin, f"it was certified with {name} {was}, installed is {have}")
    return None


def _outdated(plugin: Plugin, reason: str) -> Finding:
    remedy = f"Certify it as it is here: headrace conformance {plugin.distribution}"
    return finding_about(plugin, "outdated_certificate", reason, remedy)


def outdated(plugins: Iterable[Plugin]) -> Iterator[Finding]:
    """Report certificates that do not hold here."""
    for plugin in plugins:
        _, row = certificate_of(plugin)
        if row is not None:
            yield row


def row(plugin: Plugin) -> dict[str, Any]:
    """Return a plugin as plain data for JSON, with its certificate if that holds."""
    return {**plugin.to_dict(), "certificate": certificate_of(plugin)[0]}


def sentence(plugin: Plugin) -> str | None:
    """Say who certified a plugin, if anybody did."""
    facts, _ = certificate_of(plugin)
    if facts is None:
        return None
    good, every = len(facts["backends"]), len(plugin.backends)
    some = "" if good == every else f"{good} of {counted(every, 'backend')} "
    where = f"Python {facts['python']}, {facts['platform']}"
    return f"{some}certified by headrace-testing {facts['kit']} on {facts['date']} ({where})"
