"""``headrace conformance``: judge backends and print their certificates."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace
from headrace.errors import MissingDependencyError, PluginError
from headrace_cli.arguments import Json, names_beginning
from headrace_cli.console import (
    FAILED,
    OK,
    WrongArgument,
    counted,
    error_text,
    print_data,
    print_drawing,
    print_message,
)
from headrace_cli.installed.certificates import judged_here, source_file, without_places
from headrace_cli.installed.findings import NOUNS
from headrace_cli.names import all_names, all_plugins, backends_named, plugins_named, unknown
from headrace_cli.printing import as_json, print_json

if TYPE_CHECKING:
    from types import ModuleType

    from headrace.plugins import Plugin
    from headrace_testing.conformance import BackendConformance, Certificate, Verdict

_HOW = (
    "its distribution offers no conformance class for it: subclass "
    "headrace_testing.BackendConformance and name it in the entry-point group headrace.conformance"
)
_OFFERED_BY = {"headrace": "headrace-testing"}
"""The distribution that offers the conformance classes of another one: core's come with the kit."""
_MARKS = {
    "passed": "ok",
    "failed": "FAILED",
    "not_applicable": "n/a",
    "blocked": "blocked",
    "not_judged": "not judged",
    "expected_failure": "excepted",
    "unexpected_pass": "FAILED",
}


def conformance(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A backend (ResizeMat, cv:ResizeMat), or a plugin (cv) or distribution "
            "(headrace-cv) for all its backends.",
            show_default=False,
            autocompletion=names_beginning,
        ),
    ],
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            metavar="OUT.JSON",
            help="Write the certificates to this file, as JSON.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write certificate.json into the source folder of the distribution, for its wheel.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Judge backends by the rules of the backend contract, and print a certificate.

    Every backend is judged through the conformance class that its distribution offers in the
    entry-point group `headrace.conformance`. One without is reported as not certified, which is
    exit status 1, as is a rule that is broken. Rules that its author excepts are shown with the
    reason. With --json the certificates go to stdout.

    With --write hatchling puts them into the wheel: [tool.hatch.build.targets.wheel.extra-metadata].
    `headrace plugins list` shows who certified a plugin.

    \b
    Examples:
      headrace conformance ResizeMat
      headrace conformance headrace-cv headrace-ort --certificate certificate.json
      headrace conformance headrace-cv --write
    """  # noqa: D301 - typer keeps the lines after a backspace character
    kit = _kit()
    named = [pair for name in names for pair in _named(name)]
    chosen = {(plugin.distribution, name): plugin for name, plugin in named}
    files = [] if certificate is None else [certificate]
    if write:
        files.append(_file_for_the_wheel({distribution for distribution, _ in chosen}))
    for file in files:
        _check_writable(file)
    classes = _conformance_classes()
    paths = {key: classes.get((_OFFERED_BY.get(key[0], key[0]), key[1])) for key in chosen}
    jobs_by_key = {key: _job(kit, key[1], plugin, paths[key]) for key, plugin in chosen.items()}
    jobs = [j for j in jobs_by_key.values() if not isinstance(j, str)]
    judged = judged_here(chosen.values())
    certificates: list[Certificate] = []
    with closing(kit.certify_apart(jobs)) as verdicts:
        for key, plugin in chosen.items():
            job = jobs_by_key[key]
            result = job if isinstance(job, str) else next(verdicts)
            if isinstance(result, Exception):
                result = f"{paths[key]} cannot be judged: {error_text(result)}"
            if isinstance(result, str):
                result = _none(kit, key[1], plugin, result)
            certificates.append(result)
            if not json:
                _show(result)
    whole = {
        "headrace": headrace.__version__,
        **judged,
        "certified": all(c.certified for c in certificates),
        "certificates": [c.to_dict() for c in certificates],
    }
    text = without_places(as_json(whole), chosen.values()) if files else ""
    for file in files:
        _write(file, text)
    if json:
        print_json(whole)
    failed = sum(not c.certified for c in certificates)
    if failed and not json:
        print_message(f"{failed} of {counted(len(certificates), 'backend')} not certified")
    return FAILED if failed else OK


def _file_for_the_wheel(distributions: set[str]) -> str:
    """Return the path of the certificate of a distribution in its source folder."""
    if len(distributions) > 1:
        names = " and ".join(sorted(distributions))
        raise WrongArgument(f"--write: name one distribution, not {names}")
    return source_file(*distributions)


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        error.filename = file  # a full disk names no file
        raise


def _check_writable(certificate: str) -> None:
    """Refuse a file that cannot be written before anything is judged, which may take minutes.

    Raises:
        WrongArgument: There is no folder for the file, it is a folder, or it may not be written.
    """
    path = Path(certificate)
    if not path.absolute().parent.is_dir():
        raise WrongArgument(f"there is no folder for the certificate {certificate!r}")
    if path.is_dir():
        raise WrongArgument(f"--certificate {certificate}: this is a folder, name a file in it")
    why = None
    if path.exists():
        why = None if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
    else:
        try:
            tempfile.TemporaryFile(dir=path.absolute().parent).close()
        except OSError as error:
            why = error.strerror
    if why is not None:
        raise WrongArgument(f"the certificate {certificate!r} cannot be written: {why}")


def _kit() -> ModuleType:
    """Return the conformance kit, which is a distribution of its own."""
    if importlib.util.find_spec("headrace_testing") is None:
        raise MissingDependencyError(
            "the conformance kit is a distribution of its own, which is not installed",
            distribution="headrace-testing",
            hint='Install it: pip install "headrace[testing]", or in a clone of Headrace: pip install ./testing',
        )
    return importlib.import_module("headrace_testing.conformance")


def _named(name: str) -> list[tuple[str, Plugin]]:
    """Give the backends that a name means: all of a plugin or distribution, or a single one."""
    plugins = plugins_named(name)
    pairs = [(backend, plugin) for plugin in plugins for backend in sorted(plugin.backends)]
    pairs = pairs or backends_named(name)
    if plugins and not pairs:
        raise WrongArgument(
            f"{plugins[0].distribution} brings no backends, so there is none to judge"
        )
    if not pairs:
        _refuse_what_is_no_backend(name)
        raise unknown(name, all_names())
    return pairs


def _refuse_what_is_no_backend(name: str) -> None:
    """Say what a name is, if it is that of a policy, a probe or a command."""
    for plugin in all_plugins():
        for kind, noun in NOUNS.items():
            if name.rpartition(":")[2] in plugin.offers[kind]:
                raise WrongArgument(
                    f"{name!r} is a {noun} of {plugin.distribution}, and only backends are judged"
                )


def _conformance_classes() -> dict[tuple[str, str], str]:
    """Return the import path of each conformance class, by the distribution and name of its backend."""
    from importlib.metadata import entry_points

    points = entry_points(group="headrace.conformance")
    # A value may be written `module : Class [extra]`, as that of a backend.
    paths = [re.sub(r"\s|\[.*\]", "", point.value) for point in points]
    pairs = zip(points, paths, strict=True)
    return {(point.dist.name, point.name): path for point, path in pairs if point.dist}


def _job(
    kit: ModuleType, name: str, plugin: Plugin, path: str | None
) -> tuple[type[BackendConformance], type[headrace.Backend]] | str:
    """Return the conformance class of a backend and the class promised, or the reason why it cannot be judged."""
    if not plugin.usable:
        return f"{plugin.distribution} cannot be used: {plugin.reason}"
    if path is None:
        return _HOW
    try:
        promised = plugin.backend(name)
    except PluginError as error:
        return error.what
    try:
        cls = plugin.load(path)
    except PluginError as error:
        why = error_text(error.__cause__ or error)
        return f"its conformance class {path} cannot be imported: {why}"
    if not isinstance(cls, type) or not issubclass(cls, kit.BackendConformance):
        return f"{path} is no subclass of headrace_testing.BackendConformance"
    return _of(name, plugin, cls), promised


def _of(name: str, plugin: Plugin, cls: type[BackendConformance]) -> type[BackendConformance]:
    """Qualify the name in the expression where another distribution has a backend of the same name."""
    text = cls.expression.lstrip() if isinstance(cls.expression, str) else ""
    alone = backends_named(name) == [(name, plugin)]
    bare = re.match(rf"{re.escape(name)}(?![\w.:/-])", text)
    if alone or bare is None:
        return cls
    return type(cls.__name__, (cls,), {"expression": f"{plugin.plugin}:{text}"})


def _none(kit: ModuleType, name: str, plugin: Plugin, problem: str) -> Certificate:
    import platform

    certificate: Certificate = kit.Certificate(
        backend=name,
        distribution=plugin.distribution,
        version=plugin.version,
        expression=name,
        options={},
        headrace=headrace.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        problem=problem,
    )
    return certificate


def _show(certificate: Certificate) -> None:
    """Print one certificate as a table."""
    from rich.table import Table
    from rich.text import Text

    state = "certified" if certificate.certified else "NOT CERTIFIED"
    title = f"{certificate.backend} ({certificate.distribution} {certificate.version}): {state}"
    if certificate.unavailable is not None:
        title += f", {certificate.unavailable}"
    if certificate.problem is not None:
        print_data(f"{title}\n  {certificate.problem}\n")
        return
    table = Table(
        title=Text(title),
        title_justify="left",
        caption=Text(_caption(certificate)),  # an expression has brackets, which are no markup
        caption_justify="left",
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("detail", overflow="fold")
    for verdict in certificate.rules:
        # The number of the others stands beside the broken rule that blocks them.
        if verdict.outcome == "blocked" and verdict.blocked_by not in certificate.expected_failures:
            continue
        style = "" if verdict.good else "bold red"
        detail = Text(_detail(verdict, certificate.blocked.get(verdict.id, 0)))
        table.add_row(verdict.id, _MARKS[verdict.outcome], detail, style=style)
    print_drawing(table, width=120)
    print_data("")


def _detail(verdict: Verdict, blocked: int) -> str:
    if not verdict.good:
        rest = (
            f"\n{counted(blocked, 'further rule')} cannot be judged before it holds"
            if blocked
            else ""
        )
        return f"{verdict.detail}\n{verdict.reason}{rest}"
    return verdict.detail if verdict.expected is None else f"{verdict.expected}: {verdict.detail}"


def _caption(certificate: Certificate) -> str:
    outcomes = Counter(_MARKS[verdict.outcome] for verdict in certificate.rules)
    marks = ("FAILED", "blocked", "not judged", "excepted")
    counts = ", ".join(f"{outcomes[mark]} {mark.lower()}" for mark in marks)
    ran = f"headrace {certificate.headrace}, Python {certificate.python}, {certificate.platform}"
    return f"{certificate.expression}: {counted(len(certificate.rules), 'rule')}, {counts}; {ran}"
