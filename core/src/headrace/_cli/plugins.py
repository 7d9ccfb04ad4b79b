"""``headrace plugins list`` and ``doctor``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import headrace
from headrace._cli.reporting import FAILED, OK, counted, say, tell
from headrace._registry import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace._registry import PluginRecord

__all__ = ["doctor", "list_plugins"]

_INSTALL = "No plugin is installed. Install some: pip install headrace-cv headrace-ort"


def list_plugins(*, json: bool) -> int:
    """List the installed plugins without importing any; give the exit status."""
    records = registry.plugins()
    if json:
        _say_json([record.to_dict() for record in records])
        return OK
    if not records:
        tell(_INSTALL)
        return OK
    rows = [("DISTRIBUTION", "VERSION", "REQUIRES", "STATE", "BACKENDS")]
    rows += [
        (r.distribution, r.version, r.requires or "-", r.state, ", ".join(sorted(r.backends)))
        for r in records
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for index, row in enumerate(rows):
        _say_row(row, widths)
        record = records[index - 1] if index else None
        if record is not None and record.reason is not None:
            say(f"    {record.reason}")
            if record.remedy is not None:
                say(f"    {record.remedy}")
    return OK


def _say_row(row: Sequence[str], widths: Sequence[int]) -> None:
    start = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  "
    rest = row[len(widths)]
    if sys.stdout.isatty():
        room = max(20, shutil.get_terminal_size().columns - len(start))
        rest = ("\n" + " " * len(start)).join(textwrap.wrap(rest, room))
    say((start + rest).rstrip())


def doctor(*, json: bool) -> int:
    """Import every plugin, each guarded, and report what is wrong; give the exit status."""
    records = registry.plugins()
    findings = list(_findings(records))
    wrong = [finding for finding in findings if finding["kind"] != "disabled"]
    if json:
        plugins = [record.to_dict() for record in records]
        _say_json(
            {
                "ok": not wrong,
                "headrace": headrace.__version__,
                "findings": findings,
                "plugins": plugins,
            }
        )
        return FAILED if wrong else OK
    for finding in findings:
        about = f"{finding['distribution']} {finding['version']}".strip()
        name = f": {finding['backend']}" if finding["backend"] else ""
        say(f"{about}{name}: {finding['kind']}: {finding['reason']}")
        if finding["remedy"]:
            say(f"  {finding['remedy']}")
    backends = sum(len(record.backends) for record in records)
    brought = f"{counted(len(records), 'plugin')} with {counted(backends, 'backend')}"
    looked = f"{brought}, headrace {headrace.__version__}"
    if not records:
        tell(_INSTALL)
    if wrong:
        tell(f"{len(wrong)} wrong: {looked}")
        return FAILED
    say(f"ok: {looked}")
    return OK


def _findings(records: Sequence[PluginRecord]) -> Iterator[dict[str, Any]]:
    from headrace._cli.offers import call_hooks, wrong_offers

    usable = [record for record in records if record.state == "ok"]
    # A plugin whose hooks fail becomes broken, which is reported with the others.
    call_hooks(usable)
    for record in records:
        if record.state != "ok":
            yield _finding(record, record.state, record.reason, record.remedy)
        if record.state in ("ok", "broken"):
            yield from _missing(record)
            yield from _not_importable(record)
    yield from _names_taken(usable)
    for record, kind, reason, remedy in wrong_offers(usable):
        yield _finding(record, kind, reason, remedy)


def _finding(
    record: PluginRecord,
    kind: str,
    reason: str | None,
    remedy: str | None,
    backend: str | None = None,
) -> dict[str, Any]:
    return {
        "plugin": record.plugin,
        "distribution": record.distribution,
        "version": record.version,
        "backend": backend,
        "kind": kind,
        "reason": reason,
        "remedy": remedy,
    }


def _missing(record: PluginRecord) -> Iterator[dict[str, Any]]:
    """Compare what the distribution requires with what is installed, importing nothing."""
    from importlib.metadata import PackageNotFoundError, distribution, version

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requires = distribution(record.distribution).requires or []
    except PackageNotFoundError:
        return
    for text in requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue  # the record itself says that its metadata cannot be read
        if wanted.name.lower() == "headrace" or (
            wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})
        ):
            continue
        plain = f"{wanted.name}{wanted.specifier}"
        remedy = f'Install it: pip install "{plain}"'
        try:
            installed = version(wanted.name)
        except PackageNotFoundError:
            reason = f"it requires {plain}, which is not installed"
            yield _finding(record, "missing_dependency", reason, remedy)
            continue
        if not wanted.specifier.contains(installed, prereleases=True):
            reason = f"it requires {plain}, installed is {installed}"
            yield _finding(record, "missing_dependency", reason, remedy)


def _not_importable(record: PluginRecord) -> Iterator[dict[str, Any]]:
    from headrace._registry import BackendSpec
    from headrace.errors import MissingDependencyError, PluginError

    for name, path in sorted(record.backends.items()):
        spec = BackendSpec(name, record.plugin, record.distribution, record.version, path)
        try:
            spec.load()
        except MissingDependencyError as error:
            yield _finding(record, "missing_dependency", error.what, error.hint, name)
        except PluginError as error:
            again = f"Install it again: pip install --force-reinstall {record.distribution}"
            yield _finding(record, "broken", error.what, again, name)
        except SystemExit as error:
            reason = f"its module ends the program: SystemExit: {error}"
            yield _finding(record, "broken", reason, "Ask its author for a fix.", name)


def _names_taken(records: Sequence[PluginRecord]) -> Iterator[dict[str, Any]]:
    """Report names that two plugins offer, or that belong to core."""
    from headrace._registry.catalogue import CORE_BACKENDS, WORDS_TO_COME

    offered: dict[str, list[PluginRecord]] = {}
    for record in records:
        for name in record.backends:
            offered.setdefault(name, []).append(record)
    for name, owners in sorted(offered.items()):
        if name in CORE_BACKENDS or name in WORDS_TO_COME:
            reason = f"the name {name!r} belongs to headrace itself, so this one is never used"
            for record in owners:
                yield _finding(
                    record, "duplicate", reason, "Ask its author for another name.", name
                )
        elif len(owners) > 1:
            names = " and ".join(owner.distribution for owner in owners)
            written = " or ".join(f"{owner.plugin}:{name}" for owner in owners)
            reason = f"{name!r} is offered by {names}"
            remedy = f"Write {written}, or disable one with HEADRACE_PLUGINS."
            yield _finding(owners[0], "duplicate", reason, remedy, name)


def _say_json(value: Any) -> None:
    from headrace._cli.printing import as_json

    say(as_json(value))
