"""``headrace plugins list`` and ``doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.plugins import installed
from headrace_cli.arguments import Json, group, names_beginning
from headrace_cli.certificates import outdated, row, sentence
from headrace_cli.console import FAILED, OK, columns, counted, print_data, print_message, wrapped
from headrace_cli.findings import findings, with_states
from headrace_cli.names import COMMANDS
from headrace_cli.printing import print_json
from headrace_cli.reporting import Command, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSTALL = (
    "No plugin is installed. Install them: pip install headrace-cv headrace-ort, "
    "or in a clone of Headrace, after ./dev wheels: pip install --find-links dist headrace-cv headrace-ort"
)

_LEAST_COLUMNS = 24
"""The narrowest column of backends beside the others; where it finds no room, they stand below."""


class _Plugins(Group):
    """The commands of ``headrace plugins``, which without one of them is ``headrace plugins list``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        listed = args[0] == "--json" if args else not ctx.resilient_parsing
        return super().parse_args(ctx, ["list", *args] if listed else args)


plugins = group(COMMANDS["plugins"], _Plugins)


@plugins.command("list", cls=Command)
def list_(json: Json = False) -> int:
    """List the installed plugins (also without this word).

    Version, the range of headrace that each requires, its backends, its state with the reason, its certificate.
    No backend is imported, only the light modules with hooks.
    """
    wrong = [*findings(), *outdated(installed())]
    found = with_states(installed(), wrong)
    for slip in wrong:
        if slip.kind == "unknown_plugin":
            print_message(f"warning: HEADRACE_PLUGINS: {slip.reason}. {slip.remedy}")
    if json:
        print_json([row(plugin) for plugin in found])
        return OK
    if not found:
        print_message(_INSTALL)
        return OK
    table = [("DISTRIBUTION", "VERSION", "RANGE", "STATE", "BACKENDS")]
    table += [
        (one.distribution, one.version, one.range or "-", one.state, ", ".join(one.backends))
        for one in found
    ]
    widths = [max(len(cells[i]) for cells in table) for i in range(4)]
    _print_row(table[0], widths)
    for cells, plugin in zip(table[1:], found, strict=True):
        _print_row(cells, widths)
        for text in filter(None, (plugin.reason, plugin.remedy, sentence(plugin))):
            print_data(wrapped(text, " " * 4))
    return OK


def _print_row(row: Sequence[str], widths: Sequence[int]) -> None:
    start = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  "
    rest = row[len(widths)]
    if columns() - len(start) >= _LEAST_COLUMNS:
        print_data(wrapped(rest, " " * len(start), start).rstrip())
    else:
        print_data(wrapped("  ".join(row[: len(widths)]), "  ", ""))
        print_data(wrapped(rest, " " * 4))


@plugins.command(cls=Command)
def info(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A backend (ResizeMat, cv:ResizeMat), a plugin (cv), a distribution (headrace-cv), or "
            "what hooks of a plugin offer; `headrace` is what comes with the core.",
            show_default=False,
            autocompletion=names_beginning,
        ),
    ],
    json: Json = False,
) -> int:
    """Show what a plugin brings, or what a backend does and takes.

    \b
    Examples:
      headrace plugins info headrace-cv
      headrace plugins info ResizeMat
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace_cli.plugin_info import show_info

    show_info(name, json=json)
    return OK


@plugins.command(cls=Command)
def doctor(json: Json = False) -> int:
    """Import every plugin and report problems.

    Broken and incompatible plugins, missing libraries, names offered twice, names of core. The objects that their
    hooks name are imported and checked. Each finding has a reason and a remedy. Exit status 1 if there is a problem.
    A module that changed after it was certified is one. Another major version of a library is only reported.
    """
    from headrace_cli.doctor import HARMLESS, examined

    found, known = examined()
    wrong = [finding for finding in found if finding.kind not in HARMLESS]
    if json:
        print_json(
            {
                "ok": not wrong,
                "headrace": headrace.__version__,
                "findings": [finding.to_dict() for finding in found],
                "plugins": [row(plugin) for plugin in known],
            }
        )
        return FAILED if wrong else OK
    for finding in found:
        about = f"{finding.distribution} {finding.version}"
        if finding.distribution is None:
            about = "HEADRACE_PLUGINS"
        name = f": {finding.backend}" if finding.backend else ""
        print_data(f"{about}{name}: {finding.kind}: {finding.reason}")
        if finding.remedy:
            print_data(f"  {finding.remedy}")
    backends = sum(len(plugin.backends) for plugin in known)
    brought = f"{counted(len(known), 'plugin')} with {counted(backends, 'backend')}"
    looked = f"{brought}, headrace {headrace.__version__}"
    disabled = sum(plugin.state == "disabled" for plugin in known)
    if disabled:
        looked += f"; {disabled} of them disabled by HEADRACE_PLUGINS"
    if not known:
        print_message(_INSTALL)
    if wrong:
        print_message(f"{len(wrong)} wrong: {looked}")
        return FAILED
    print_data(f"ok: {looked}")
    return OK
