"""``headrace check``: shows whether a configuration is right, its warnings, and whether it can be built."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import HeadraceError, Problem
from headrace_cli.arguments import Config, Json, NoImport, Settings
from headrace_cli.building import building
from headrace_cli.console import OK, WRONG, counted, print_data, print_message
from headrace_cli.installed.findings import findings
from headrace_cli.lint.functions import misspelt
from headrace_cli.lint.warnings import explained, warnings_about
from headrace_cli.printing import print_json
from headrace_cli.reporting import error_as_dict
from headrace_cli.source import hinting_at_a_file, is_file, source_of
from headrace_formats import write_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace import PipelineConfig


def check(
    config: Config,
    json: Json = False,
    settings: Settings = None,
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Build it too, warm it up, and close it again; models run a row alone and in company.",
        ),
    ] = False,
    no_import: NoImport = False,
) -> int:
    """Check a configuration without building it.

    No model and no heavy library is loaded, unless --build asks for it. Shows all problems at once,
    with their places. Warnings do not change the exit status. With --json: {"ok": ..., "problems":
    [...], "warnings": [...]}, and "nodes" when it is right. "built", as `describe()` gives it.
    Of a model file or a folder that a plugin reads, the TOML that it stands for is printed ("stands_for").

    \b
    Examples:
      headrace check line.toml
      headrace check line.toml --no-import --json
      headrace check line.toml --build --set model=new.onnx
    """  # noqa: D301 - typer keeps the lines after a backspace character
    warnings: list[dict[str, Any]] = []
    try:
        with hinting_at_a_file(config):
            source = source_of(config, settings or ())
            loaded = headrace.PipelineConfig.load(source, allow_import=not no_import)
        here = headrace.plugins.located(config)
        tables = headrace.plugins.tables_of(here) if is_file(config) else None
        plan = explained(loaded)
        warnings = all_warnings(plan)
        for warning in [] if json else warnings:
            print_message(f"warning: {Problem(**warning).render()}")
        # What the build warns of is printed as it is logged.
        with _logged_by_backends() as logged:
            built = _built(loaded) if build else None
        known = {warning["message"] for warning in warnings}  # the plan may have told of it already
        after = [] if built is None else warnings_about(loaded, built["nodes"])
        after = [finding for finding in after if finding.message not in known]
        for finding in [] if json else after:
            print_message(f"warning: {finding.render()}")
        cut = _cut(plan["nodes"], built["nodes"]) if built is not None else ()
        warnings += [w.to_dict() for w in (*logged, *cut, *after) if w.message not in known]
    except HeadraceError as error:
        if not json:
            raise
        print_json({**error_as_dict(error), "warnings": warnings})
        return WRONG
    if json:
        report = {"ok": True, "problems": [], "warnings": warnings, "nodes": list(plan["nodes"])}
        report |= {} if tables is None else {"stands_for": tables}
        print_json(report if built is None else {**report, "built": built})
        return OK
    if tables is not None:
        print_data(write_toml(tables, f"{config} stands for"))
    for origin in _fetched(plan):
        here = f"here, sha256={origin['sha256']}" if "sha256" in origin else "not here yet"
        moves = ". It may change: two machines may run different files" if "moves" in origin else ""
        print_data(f"{origin['address']}: {here}{moves}")
    own = [node for node in plan["nodes"].values() if node["alias_of"] is None]
    instances = sum(node["instance_num"] for node in own)
    needs = ", ".join(f"{d['distribution']} {d['version']}".strip() for d in plan["asks_for"])
    text = f"ok: {counted(len(plan['nodes']), 'node')}, {counted(instances, 'instance')}"
    if built is not None:
        text += f", built and warm in {built['seconds']:.2f} s"
    print_data(f"{text}; asks for {needs}")
    return OK


def all_warnings(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings of ``explain``, those about libraries that are not installed, and about misspelt functions."""
    dists = {asked_for["distribution"] for asked_for in plan["asks_for"]}
    lacking = [
        Problem(
            finding.kind,
            f"{finding.distribution} cannot be built here: {finding.reason}",
            hint=finding.remedy,
        )
        for finding in findings()
        if finding.kind == "missing_dependency" and finding.distribution in dists
    ]
    return [*plan["warnings"], *(problem.to_dict() for problem in (*lacking, *misspelt(plan)))]


def _fetched(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is known of each file that an option names by an address."""
    left = [node["tree"] for node in plan["nodes"].values() if node["tree"]]
    while left:
        part = left.pop()
        left += part["children"]
        for option in part["options"].values():
            for value in (
                option["value"] if isinstance(option["value"], list) else [option["value"]]
            ):
                if isinstance(value, str) and (origin := headrace.plugins.origin_of(Path(value))):
                    yield origin


class _Kept(logging.Handler):
    """Keeps the warnings that backends log, such as that rows of a batch change each other's results; each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problems: dict[str, Problem] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; each instance of a node logs the same."""
        message = record.getMessage()
        self.problems[message] = Problem("backend_warning", message)


@contextlib.contextmanager
def _logged_by_backends() -> Iterator[list[Problem]]:
    """Return a list that has, at the end of the block, what backends have warned of in it."""
    problems: list[Problem] = []
    handler, logger = _Kept(), logging.getLogger("headrace.backend")
    logger.addHandler(handler)
    try:
        yield problems
    finally:
        logger.removeHandler(handler)
        problems += handler.problems.values()


def _cut(planned: dict[str, Any], built: dict[str, Any]) -> Iterator[Problem]:
    """Warn of each node whose ``max`` is cut by what was built, as by a model with a fixed number of rows."""
    for name, node in built.items():
        limit, most = planned[name]["range"][1], node["range"][1]
        if planned[name]["alias_of"] is None and limit is not None and most < limit:
            text = (
                f"batches of up to {limit} were asked for, and what is built takes at most {most}"
            )
            yield Problem(
                "max_cut", text, path=name, hint=f"Set max = {most}, or take another model."
            )


def _built(config: PipelineConfig) -> dict[str, Any]:
    """Build a configuration, warm it up and close it; give its description and how long that took."""
    started = time.perf_counter()
    with building(config) as pipeline:
        seconds = time.perf_counter() - started
        return {"seconds": round(seconds, 3), "nodes": pipeline.describe()["nodes"]}
