"""``headrace plugins``: ``list`` and ``info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.plugins import installed
from headrace_cli.arguments import Json, group, names_beginning
from headrace_cli.console import FAILED, OK, columns, counted, print_data, print_message, wrapped
from headrace_cli.installed.certificates import outdated, row, sentence
from headrace_cli.installed.findings import HARMLESS, findings, with_states
from headrace_cli.names import COMMANDS
from headrace_cli.printing import print_json
from headrace_cli.reporting import Command, Group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.plugins import Plugin
    from headrace_cli.installed.findings import Finding

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
        listed = args[0] in ("--check", "--json") if args else not ctx.resilient_parsing
        return super().parse_args(ctx, ["list", *args] if listed else args)


plugins = group(COMMANDS["plugins"], _Plugins)


@plugins.command("list", cls=Command)
def list_(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Import every plugin too, and report all problems: status 1 for any."
        ),
    ] = False,
    json: Json = False,
) -> int:
    """List the installed plugins (also without this word).

    Version, the range of headrace that each requires, its backends, its state, its problems, its certificate.
    No backend is imported, only the light modules with hooks.

    With --check all that plugins offer is imported: broken plugins, missing libraries, names offered
    twice, names of core. Each problem has a reason and a remedy. A module that changed after it was certified is one.
    Another major version of a library is only reported.
    """
    if check:
        from headrace_cli.installed.diagnosis import examined

        slips, known = examined()
    else:
        slips = [*findings(), *outdated(installed())]
        known = with_states(installed(), slips)
    wrong = [f for f in slips if check and f.kind not in HARMLESS]
    for slip in slips:
        if slip.kind == "unknown_plugin":
            print_message(f"warning: HEADRACE_PLUGINS: {slip.reason}. {slip.remedy}")
    if json:
        about = {"ok": not wrong, "headrace": headrace.__version__}
        problems = [finding.to_dict() for finding in slips]
        print_json({**about, "findings": problems, "plugins": [row(plugin) for plugin in known]})
    elif known:
        _print_plugins(known, slips)
    else:
        print_message(_INSTALL)
    if check and not json:
        looked = f"{_counted_plugins(known)}, headrace {headrace.__version__}"
        disabled = sum(plugin.state == "disabled" for plugin in known)
        if disabled:
            looked += f"; {disabled} of them disabled by HEADRACE_PLUGINS"
        if wrong:
            print_message(f"{len(wrong)} wrong: {looked}")
        else:
            print_data(f"ok: {looked}")
    return FAILED if wrong else OK


def _counted_plugins(known: Sequence[Plugin]) -> str:
    backends = sum(len(plugin.backends) for plugin in known)
    return f"{counted(len(known), 'plugin')} with {counted(backends, 'backend')}"


def _print_plugins(known: Sequence[Plugin], slips: Sequence[Finding]) -> None:
    """Print a table with a row per plugin, and below each its problems and who certified it."""
    table = [("DISTRIBUTION", "VERSION", "RANGE", "STATE", "BACKENDS")]
    table += [
        (p.distribution, p.version, p.range or "-", p.state, ", ".join(p.backends)) for p in known
    ]
    widths = [max(len(cells[i]) for cells in table) for i in range(4)]
    _print_row(table[0], widths)
    for cells, plugin in zip(table[1:], known, strict=True):
        _print_row(cells, widths)
        for text in (*_problems_of(plugin, slips), sentence(plugin)):
            if text:
                print_data(wrapped(text, " " * 4))


def _problems_of(plugin: Plugin, findings: Sequence[Finding]) -> Iterator[str | None]:
    for finding in findings:
        if plugin.distribution in (finding.distribution, *finding.others):
            about = f"{finding.backend}: " if finding.backend else ""
            yield f"{about}{finding.kind}: {finding.reason}"
            yield finding.remedy


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
            "what else a plugin offers; `headrace` is what comes with the core.",
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
    from headrace_cli.commands.plugin_info import show_info

    show_info(name, json=json)
    return OK
