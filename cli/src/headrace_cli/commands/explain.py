"""``headrace explain``: shows what a configuration or an expression asks for, as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import Problem
from headrace_cli.arguments import Json, NoImport, Settings
from headrace_cli.console import OK, WrongArgument, counted, print_data, print_drawing
from headrace_cli.graph import FORMATS
from headrace_cli.lint.warnings import explained
from headrace_cli.names import LEFT
from headrace_cli.printing import as_json, escaped, print_json, shown
from headrace_cli.source import hinting_at_a_file, source_of

if TYPE_CHECKING:
    from rich.tree import Tree


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|EXPRESSION",
            help="A TOML file, or a quoted expression.",
            show_default=False,
        ),
    ],
    json: Json = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show defaults too; --json always has them.")
    ] = False,
    settings: Settings = None,
    no_import: NoImport = False,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="|".join(FORMATS),
            autocompletion=lambda: list(FORMATS),
            help="Print the graph of the nodes in this language instead.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show what a configuration or expression asks for.

    A tree of the backends with their options and where each value comes from, batch ranges,
    threads, who runs each node, and the distributions needed. What is left at its default is
    hidden without --all. Nothing is built and no heavy library is loaded. With --json what `headrace.explain` gives, with --graph too: {"format": ...,
    "graph": ...}.

    \b
    Examples:
      headrace explain line.toml
      headrace explain "S[DecodeMat,ResizeMat(224,224)]"
      headrace explain page.toml --graph dot | dot -Tsvg > page.svg
    """  # noqa: D301 - typer keeps the lines after a backspace character
    if graph is not None and graph not in FORMATS:
        if cure := LEFT.get(f"explain --graph {graph}"):
            raise WrongArgument(f"--graph {graph} is gone. {cure}")
        raise WrongArgument(f"--graph: expected one of {', '.join(FORMATS)}, got {graph!r}")
    with hinting_at_a_file(what):
        source = source_of(what, settings or ())
        config = headrace.PipelineConfig.load(source, allow_import=not no_import)
        plan = headrace.explain(config) if json else explained(config)
    if graph is not None:
        picture = FORMATS[graph](plan)
        if json:
            print_json({"format": graph, "graph": picture})
        else:
            print_data(picture)
    elif json:
        print_json(plan)
    else:
        drawing = _Drawing(every=every)
        print_drawing(drawing.pipeline(what, plan), width=100_000, emoji=False, markup=False)
        if drawing.hidden:
            verb = "is" if drawing.hidden == 1 else "are"
            print_data(f"{counted(drawing.hidden, 'default')} {verb} hidden: --all shows them.")
    return OK


class _Drawing:
    """The tree that is printed.

    Args:
        every: Whether it has the defaults too.

    Attributes:
        hidden: How many defaults were left out.
    """

    def __init__(self, *, every: bool) -> None:
        self.hidden = 0
        self._every = every

    def pipeline(self, path: str, plan: dict[str, Any]) -> Tree:
        """Draw what a configuration asks for."""
        threads = counted(plan["threads"], "thread")
        tree = _tree(f"{path}  (headrace {plan['headrace']}, {threads})", "bold")
        for name, node in plan["nodes"].items():
            branch = tree.add(_text((name, "bold cyan"), f"  {_about(node)}"))
            for key, value in node["links"].items():
                branch.add(_text((f"{key} = {shown(value)}", "magenta")))
            self._add_values(
                branch, {key: v for key, v in node["keys"].items() if key != "backend"}
            )
            if "auto" in node:
                branch.add(_text((f"auto: {node['auto']}", "magenta")))
            _add_processes(branch, node)
            self._add(branch, node["tree"])
            self._add_under("init", branch, node)
        for probe in plan.get("probes", []):
            tree.add(_text(("probe ", "bold cyan"), probe))
        _add_needs(tree, plan)
        for warning in plan["warnings"]:
            first, *rest = Problem(**{**warning, "text": None}).render().splitlines()
            shown_warning = tree.add(_text(("warning ", "bold yellow"), first))
            for line in rest:
                shown_warning.add(_text(line.strip()))
        return tree

    def _add_under(self, key: str, branch: Tree, table: dict[str, Any]) -> None:
        """Add the expression under a key, if there is one."""
        if key in table:
            self._add(branch.add(_text((key, "bold cyan"))), table[key])

    def _add(self, branch: Tree, element: dict[str, Any], prefix: list[Any] | None = None) -> None:
        """Add one backend and all below it to a branch of the tree."""
        before = f"({','.join(map(shown, prefix))})" if prefix else ""
        brought = f"{element['distribution']} {element['version']}".strip()
        named = f", the instance {element['instance']!r}" if "instance" in element else ""
        named += f", goes on at node {element['target']!r}" if "target" in element else ""
        here = branch.add(
            _text(
                before, (element["name"], "bold"), f"  {brought}, {_range(element['range'])}{named}"
            )
        )
        self._add_values(here, element["options"])
        if "waits" in element:
            here.add(_text((element["waits"], "yellow")))
        prefixes = element.get("prefixes", [])
        for index, child in enumerate(element["children"]):
            self._add(here, child, prefixes[index] if index < len(prefixes) else None)

    def _add_values(self, branch: Tree, values: dict[str, dict[str, Any]]) -> None:
        """Add keys or options with their values; count those that are left out."""
        for key, entry in values.items():
            if entry["origin"] == "default" and not self._every:
                self.hidden += 1
            else:
                branch.add(_option(key, entry))


def _about(node: dict[str, Any]) -> str:
    instances = counted(node["instance_num"], "instance")
    if node["alias_of"] is not None:
        instances = f"an alias of {node['alias_of']!r}, {instances}"
    each = "" if node["instance_num"] == 1 else " each"
    return (
        f"{instances}, {_range(node['range'])}{_picked(node)}, run by {_runner(node['run_by'])}, "
        f"{counted(node['threads'], 'thread')}{each}"
    )


def _add_processes(branch: Tree, node: dict[str, Any]) -> None:
    """Add the processes that a node starts to its branch of the tree."""
    processes = node.get("processes")
    if processes is not None:
        branch.add(_text((f"processes = {processes['count']}", "magenta")))
        for file, times in processes["loads"].items():
            branch.add(_text((f"{file} is loaded once per process, {times} times", "magenta")))


def _option(key: str, entry: dict[str, Any]) -> Any:
    value = as_json(entry["value"])
    return _text(f"{key} = {value}", (f"  ({entry['origin']})", "dim"))


def _range(pair: list[int | None]) -> str:
    least, most = pair
    if most is None:
        return f"batches of {least} or more"
    return f"batches of {least}" if least == most else f"batches of {least} to {most}"


def _picked(node: dict[str, Any]) -> str:
    return f" picked by {node['picked_by']}" if "picked_by" in node else ""


def _runner(run_by: str) -> str:
    texts = {"caller": "its callers", "worker": "workers", "own thread": "a thread of its own"}
    return texts.get(run_by, run_by)


def _add_needs(tree: Tree, plan: dict[str, Any]) -> None:
    branch = tree.add(_text(("asks for", "bold cyan")))
    for need in plan["asks_for"]:
        brought = f"{need['distribution']} {need['version']}".strip()
        branch.add(_text((brought, "bold"), f"  {', '.join(need['backends'])}".rstrip()))


def _text(*parts: str | tuple[str, str]) -> Any:
    from rich.text import Text

    plain = (escaped(p) if isinstance(p, str) else (escaped(p[0]), p[1]) for p in parts)
    return Text.assemble(*plain)


def _tree(label: str, style: str) -> Tree:
    from rich.tree import Tree

    return Tree(_text((label, style)), highlight=False)
