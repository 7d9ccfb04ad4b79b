"""The pages in docs/look_up, of what is installed.

Keys of a configuration come from the schema, commands from the command line, codes from the classes of errors, keys of
``stats()`` from a pipeline that has run, metrics from the text that a server answers.
"""

from __future__ import annotations

import inspect
import json
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import public_names

import headrace
from headrace import errors
from headrace_cli import app, console
from headrace_cli.commands.schema import json_schema
from headrace_cli.installed import plugin_commands
from headrace_cli.lint.codes import CODES
from headrace_cli.names import COMMANDS
from headrace_serve.http.metrics import Snapshot, encoded
from headrace_serve.models.updates import LoadCounts
from headrace_serve.monitoring.counters import Counters
from headrace_text import table as folders
from headrace_triton.schema import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "look_up"
MADE = "Made of what the code says.\n"

TRITON = """\
A field that is refused ends the start of the server, with its file, line and column. One that is left out is a warning. All \
fields of a message share the fate of the field that holds it, where none is said for them."""

HELPED = """\
Every command has `--help`; this is what that says, without the examples. Data goes to stdout, messages to stderr."""

STATS = {
    "state": "`ready`, `degraded`, `closing` or `closed`",
    "nodes": "a table for each node, by its name",
    "nodes.waiting": "requests that wait in the queue now",
    "nodes.submitted": "requests that have arrived",
    "nodes.ok": "requests that have ended well",
    "nodes.failed": "requests that have failed, by the code of the error",
    "nodes.cancelled": "requests that were cancelled",
    "nodes.batches": "batches that have run",
    "nodes.batch_size": "`mean`, and `histogram`: how many batches had each size",
    "nodes.reasons": "how many batches were formed for each reason, as `full`, `idle` or `timer`",
    "nodes.queue_ms": "milliseconds in the queue: `mean`, `p50`, `p90`, `p99` (sampled)",
    "nodes.forward_ms": "milliseconds of a batch: `mean`, `p50`, `p90`, `p99` (sampled)",
    "nodes.advice": "a text if callers waited for its instances while cores were idle, and what would change that. Else none",
    "nodes.instances": "a table for each instance",
    "nodes.instances.index": "its number",
    "nodes.instances.device": "its device",
    "nodes.instances.wide": "whether it has all threads, and runs only what finds the node idle",
    "nodes.instances.busy": "whether it runs a batch now",
    "nodes.instances.busy_s": "seconds in which it has run batches",
    "nodes.instances.utilisation": "the share of its life in which it has run batches",
    "nodes.instances.batches": "batches that it has begun",
    "nodes.instances.errors": "requests that have failed in it",
    "nodes.instances.alive": "whether it can run a batch",
}
"""What the keys of ``stats()`` mean; a key that is missing here, or is no key, is an error."""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table."""
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def type_of(about: dict[str, Any]) -> str:
    """Return the type of a property of the schema, as a reader of TOML calls it."""
    if "enum" in about:
        return ", ".join(f"`{json.dumps(one)}`" for one in about["enum"])
    if "anyOf" in about:
        kinds = [type_of(one) for one in about["anyOf"] if "pattern" not in one]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "yes or no",
    }
    kind = about.get("type", "")
    if kind == "array":
        return "list"
    bounds = [
        f"{word} {about[key]}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
        )
        if key in about and abs(about[key]) < 1e9
    ]
    return " ".join([{"null": "", "object": "table"}.get(kind, names.get(kind, "")), *bounds])


def keys_page() -> str:
    """Return the page about the keys of a configuration."""
    schemas = headrace.PipelineConfig.key_schemas()

    def rows(found: dict[str, Any]) -> list[list[str]]:
        return [
            [f"`{name}`", type_of(one), default_of(one), one.get("description", "")]
            for name, one in found.items()
        ]

    heads = ("key", "type", "default", "meaning")
    of_file = {
        "extends": "a file or a list of files that this one extends; later ones win, and this one wins over all",
        "ignore": "names, as keys or files, that the reader of a foreign file or folder under `extends` shall not look at",
        "import": "Python files and modules that register backends",
        "global": "a table: defaults of all nodes, options for all of them, and the keys below",
    }
    assert {*of_file} == {*json_schema()["properties"]}, "a key of a file has no meaning here"
    lines = ["# Keys of a configuration", "", MADE]
    lines += [
        "Options of backends stand beside them: the [catalogue](../catalogue.md) has those. `headrace schema` prints all of it as"
    ]
    lines += ["JSON Schema, for editors.", "", "## Of a file", ""]
    lines += table(("key", "meaning"), [[f"`{key}`", said] for key, said in of_file.items()])
    lines += ["## Of a node, or of all nodes in [global]", ""]
    lines += table(heads, rows(schemas["node"]))
    lines += ["## Of a node alone", ""]
    lines += table(heads, rows(schemas["node_only"]))
    lines += ["## Of [global] alone", ""]
    lines += table(heads, rows(schemas["global"]))
    return "\n".join(lines)


def default_of(about: dict[str, Any]) -> str:
    """Return the default of a property, as TOML has it; empty where there is none."""
    default = about.get("default")
    return "" if default in (None, [], "") else f"`{json.dumps(default)}`"


def commands_page() -> str:
    """Return the page about the commands of the command line itself."""
    group = app.typer.main.get_command(app.app)
    lines = ["# Commands", "", MADE, HELPED, ""]
    for name in COMMANDS:
        lines += of_command(f"headrace {name}", group.get_command(None, name))
    statuses = {
        "OK": "all went well",
        "FAILED": "requests failed, or what was asked is not so",
        "WRONG": "the configuration or the command line is wrong",
        "INTERRUPTED": "Ctrl-C",
        "BROKEN_PIPE": "whoever read the output has gone",
    }
    lines += ["## Exit statuses", ""]
    rows = [[f"`{getattr(console, name)}`", said] for name, said in statuses.items()]
    return "\n".join([*lines, *table(("status", "meaning"), rows)])


def plugin_command_pages() -> dict[Path, str]:
    """Return the page about the commands of plugins, and one for each that has commands inside."""
    lines = ["# Commands of plugins", "", MADE, HELPED, ""]
    made = {}
    for name, _ in sorted(plugin_commands.commands_of_plugins()):
        command = plugin_commands.for_completion(name)
        part = of_command(f"headrace {name}", command)
        if getattr(command, "commands", {}):
            path = FOLDER / f"{name}_commands.md"
            inside = "\n".join(part[2:]).replace("\n### ", "\n## ")
            made[path] = "\n".join([f"# Commands of headrace {name}", "", MADE, HELPED, "", inside])
            part = [*part[:3], "", f"[Its commands]({path.name}).", ""]
        lines += part
    return {FOLDER / "plugin_commands.md": "\n".join(lines), **made}


def of_command(name: str, command: Any) -> list[str]:
    """Return the part of a command, and of those inside it."""
    inner = getattr(command, "commands", {})
    said = inspect.cleandoc(command.help or "").split("\n\n")[0]
    lines = [
        f"## {name}" if name.count(" ") == 1 else f"### {name}",
        "",
        " ".join(said.split()),
        "",
    ]
    if inner:
        return lines + [
            line for key, one in inner.items() for line in of_command(f"{name} {key}", one)
        ]
    rows = []
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        option = one.opts[0].startswith("-")
        shown = (
            ", ".join([*one.opts, *one.secondary_opts]) if option else str(one.metavar or one.name)
        )
        rows.append([f"`{shown}`", one.help or ""])
    return lines + (table(("", "meaning"), rows) if rows else [])


def warnings_page() -> str:
    """Return the page about the warnings of ``check`` and ``explain``."""
    lines = ["# Warnings of check", "", MADE]
    lines += [
        '`headrace check` and `headrace explain` warn of what is allowed and hardly meant. If you mean it, write `allow = ["code"]` in the node.',
        "",
    ]
    rows = [[f"`{code}`", said] for code, said in CODES.items()]
    return "\n".join([*lines, *table(("code", "why, and what to do"), rows)])


def codes_page() -> str:
    """Return the page about the codes of errors and of problems of configurations."""
    lines = ["# Codes of errors", "", MADE]
    lines += [
        "Every error has a stable `code`, by which `stats()` and the metrics count. The classes are in `headrace.errors`, with what each has beside it:",
        "[their page](../api/headrace.errors.md). What they become over HTTP and gRPC is in [headrace-serve](../../plugins/serve/README.md).",
        "",
    ]
    classes = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one)
        and issubclass(one, errors.HeadraceError)
        and not one.__name__.startswith("_")
    ]
    rows = [
        [f"`{one.code}`", f"`{one.__name__}`", inspect.cleandoc(one.__doc__ or "").split("\n\n")[0]]
        for one in classes
    ]
    lines += table(("code", "class", "meaning"), rows)
    others = sorted(public_names.codes() - {one.code for one in classes})
    lines += [
        "## Codes of problems",
        "",
        "A `ConfigError` lists problems, each with a code; plugins and servers have some of their own. All that there are:",
        "",
    ]
    return "\n".join([*lines, ", ".join(f"`{code}`" for code in others) + ".", ""])


def stats_page() -> str:
    """Return the page about what ``stats()`` returns."""
    with headrace.pipe({"backend": "S[Identity,Identity]"}) as pipe:
        pipe({"data": 1})
        stats = pipe.stats()
    node = stats["nodes"]["main"]
    found = [*stats, *(f"nodes.{key}" for key in node)]
    found += [f"nodes.instances.{key}" for key in node["instances"][0]]
    if {*found} != {*STATS}:
        raise SystemExit(f"stats(): meanings and keys differ: {sorted({*found} ^ {*STATS})}")
    lines = ["# What stats() returns", "", MADE]
    lines += [
        "`pipe.stats()` is a dict that JSON can hold; keys are only added. Counts are exact, times are sampled (one in 16 below 1 ms). Words that keep",
        "something have a table of their own beside `nodes`: `queues`, `sessions`, `caches`, `iterate` and others, which [headrace-flow](../../plugins/flow/README.md)",
        "describes, and `probes`, by their names.",
        "",
    ]
    return "\n".join(
        [*lines, *table(("key", "meaning"), [[f"`{key}`", said] for key, said in STATS.items()])]
    )


HELP = re.compile(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\w+)$", re.MULTILINE)


def metrics_page() -> str:
    """Return the page about the metrics that a server has."""
    lines = ["# Metrics", "", MADE]
    lines += [
        "`GET /metrics` of [headrace serve](../../plugins/serve/README.md#in-operation) has all of them, those of models with the labels `model` and `model_version`. The",
        "probe [Prometheus](../../plugins/observe/README.md) of a pipeline has those whose name begins with `headrace_` and not with `headrace_serve_`.",
        "",
    ]
    config = {"probes": ["ElementTimes"], "backend": "S[Identity,Identity]"}
    with headrace.pipe(config) as pipe, ExitStack() as measured:
        model = SimpleNamespace(
            name="model",
            version="1",
            pipe=pipe,
            stats=pipe.stats,
            histograms=None,
            measured=measured,
        )
        service = SimpleNamespace(
            counters=Counters(),
            models=[model],
            connections=int,
            ready=True,
            metrics="server",
            worker=None,
            updates=SimpleNamespace(
                load_counts=LoadCounts(),
                memory_of=lambda *_: {"state": "present", "memory": {"bytes": {"host": 1}}},
            ),
        )
        for _ in range(2):  # histograms count from the first time that they are asked for
            _, text = encoded(Snapshot(cast("Any", service)), "text/plain")
            pipe({"data": 1})
    rows = [
        [f"`{name}`", kind, said]
        for name, said, kind in HELP.findall(text.decode())
        if name.startswith("headrace")
    ]
    return "\n".join([*lines, *table(("metric", "type", "meaning"), sorted(rows))])


def triton_page() -> str:
    """Return the page of the fields of Triton's configurations."""
    lines = ["# Fields of config.pbtxt", "", MADE.strip(), "", TRITON, ""]
    for kind, fields in MESSAGES.items():
        rows = [
            (f"`{name}`", one.row.mark, one.row.why) for name, one in fields.items() if one.row.mark
        ]
        if rows:
            lines += [f"## {kind}", "", *table(("field", "is", "because"), rows), ""]
    return "\n".join(lines)


def folders_page() -> str:
    """Return the page about what a folder of sentence-transformers may say."""
    lines = ["# Folders of texts", "", MADE]
    lines += [
        "What headrace-text makes of the files, keys and values of a folder of sentence-transformers or of a classifier. Others"
    ]
    lines += ['are refused by their names, unless `ignore = ["NAME"]` stands beside `extends`.', ""]
    parts = {"Files": folders.FILES, "Modules": folders.MODULES, **folders.TABLE}
    for name, rows in parts.items():
        lines += [f"## {name}", ""]
        found = []
        for key, row in rows.items():
            values = ", ".join(f"`{json.dumps(one)}`" for one in row.values)
            values = (
                {"refused": f"asks for nothing: {values}", "obeyed": f"one of {values}"}[row.mark]
                if values
                else ""
            )
            found.append([f"`{key}`" if key != "*" else "any other", row.mark, row.why, values])
        lines += table(("name", "", "why", "values"), found)
    names = ", ".join(f"`{name}`" for name in folders.TOKENIZERS)
    lines += [
        "## Tokenizers",
        "",
        f"Classes, without the ending Fast, whose tokens `tokenizer.json` gives: {names}.",
        "",
    ]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    return {
        FOLDER / "keys.md": keys_page(),
        FOLDER / "commands.md": commands_page(),
        **plugin_command_pages(),
        FOLDER / "codes.md": codes_page(),
        FOLDER / "warnings.md": warnings_page(),
        FOLDER / "stats.md": stats_page(),
        FOLDER / "metrics.md": metrics_page(),
        FOLDER / "triton.md": triton_page(),
        FOLDER / "folders_of_texts.md": folders_page(),
    }
