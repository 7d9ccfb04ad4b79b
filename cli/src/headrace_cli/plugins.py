"""``headrace plugins list`` and ``doctor``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import headrace
from headrace.plugins import findings, installed
from headrace_cli.console import FAILED, OK, counted, say, tell
from headrace_cli.doctor import HARMLESS, examined

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["doctor", "list_plugins"]

_INSTALL = (
    "No plugin is installed. Install them: pip install headrace-cv headrace-ort, "
    "or in a clone of Headrace: pip install ./plugins/cv ./plugins/ort"
)


def list_plugins(*, json: bool) -> int:
    """List the installed plugins, of which only hooks are loaded; give the exit status."""
    found = installed()
    rows = [plugin.to_dict() for plugin in found]
    for slip in findings():
        if slip.kind == "unknown_plugin":
            tell(f"warning: HEADRACE_PLUGINS: {slip.reason}. {slip.remedy}")
    if json:
        _say_json(rows)
        return OK
    if not found:
        tell(_INSTALL)
        return OK
    table = [("DISTRIBUTION", "VERSION", "RANGE", "STATE", "BACKENDS")]
    table += [
        (
            r["distribution"],
            r["version"],
            r["range"] or "-",
            r["state"],
            ", ".join(r["backends"]),
        )
        for r in rows
    ]
    widths = [max(len(cells[i]) for cells in table) for i in range(4)]
    _say_row(table[0], widths)
    for cells, row in zip(table[1:], rows, strict=True):
        _say_row(cells, widths)
        for text in (row["reason"], row["remedy"]):
            if text is not None:
                say(f"    {text}")
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
    found, plugins = examined()
    wrong = [finding for finding in found if finding.kind not in HARMLESS]
    if json:
        _say_json(
            {
                "ok": not wrong,
                "headrace": headrace.__version__,
                "findings": [finding.to_dict() for finding in found],
                "plugins": [plugin.to_dict() for plugin in plugins],
            }
        )
        return FAILED if wrong else OK
    for finding in found:
        about = f"{finding.distribution} {finding.version}"
        if finding.distribution is None:
            about = "HEADRACE_PLUGINS"
        name = f": {finding.backend}" if finding.backend else ""
        say(f"{about}{name}: {finding.kind}: {finding.reason}")
        if finding.remedy:
            say(f"  {finding.remedy}")
    backends = sum(len(plugin.backends) for plugin in plugins)
    brought = f"{counted(len(plugins), 'plugin')} with {counted(backends, 'backend')}"
    looked = f"{brought}, headrace {headrace.__version__}"
    if not plugins:
        tell(_INSTALL)
    if wrong:
        tell(f"{len(wrong)} wrong: {looked}")
        return FAILED
    say(f"ok: {looked}")
    return OK


def _say_json(value: Any) -> None:
    from headrace_cli.printing import as_json

    say(as_json(value))
