"""``headrace conformance``: judge backends and print their certificates."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace._cli.plugin_info import all_plugins
from headrace._cli.printing import as_json
from headrace._cli.reporting import FAILED, OK, WrongArgument, counted, say, tell
from headrace._registry import BackendSpec, conformance_classes, normalised_plugin, registry
from headrace.errors import ConfigError, PluginError
from headrace_testing.conformance import BackendConformance, Certificate, Verdict, certify

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["conformance"]

_HOW = (
    "its distribution offers no conformance class for it: subclass "
    "headrace_testing.BackendConformance and name it in the entry-point group headrace.conformance"
)
_OFFERED_BY = {"headrace": "headrace-testing"}
"""Core's own classes come with the kit."""
_MARKS = {
    "passed": "ok",
    "failed": "FAILED",
    "not_applicable": "n/a",
    "blocked": "blocked",
    "not_judged": "not judged",
    "expected_failure": "excepted",
    "unexpected_pass": "FAILED",
}


def conformance(names: Sequence[str], *, certificate: str | None, json: bool) -> int:
    """Judge backends by name; give the exit status.

    Raises:
        ConfigError: A name is no backend, plugin or distribution.
        WrongArgument: The certificate cannot be written where it is asked for.
    """
    wanted = {(spec.distribution, spec.name): spec for name in names for spec in _specs(name)}
    if certificate is not None and not Path(certificate).absolute().parent.is_dir():
        raise WrongArgument(f"there is no folder for the certificate {certificate!r}")
    classes = conformance_classes()
    certificates = []
    for (distribution, name), spec in wanted.items():
        found = _certificate(spec, classes.get((_OFFERED_BY.get(distribution, distribution), name)))
        certificates.append(found)
        if not json:
            _show(found)
    whole = {
        "headrace": headrace.__version__,
        "certified": all(one.certified for one in certificates),
        "certificates": [one.to_dict() for one in certificates],
    }
    text = as_json(whole)
    if certificate is not None:
        Path(certificate).write_text(text + "\n", encoding="utf-8")
    if json:
        say(text)
    failed = sum(not one.certified for one in certificates)
    if failed and not json:
        tell(f"{failed} of {counted(len(certificates), 'backend')} not certified")
    return FAILED if failed else OK


def _specs(name: str) -> list[BackendSpec]:
    """Give the backends that a name means: those of a plugin or distribution, or one."""
    plugins = all_plugins()
    records = [r for r in plugins if name in (r.distribution, r.plugin)]
    found = [] if records else registry.find(name)
    if not found and not records:
        records = [r for r in plugins if normalised_plugin(name) == r.plugin]
    found += [
        BackendSpec(one, record.plugin, record.distribution, record.version, path)
        for record in records
        for one, path in sorted(record.backends.items())
    ]
    if not found:
        known = [*registry.names(), *(record.distribution for record in plugins)]
        raise ConfigError(registry.unknown(name, known))
    return found


def _certificate(spec: BackendSpec, path: str | None) -> Certificate:
    """Judge one backend; whatever keeps it from being judged is in the certificate."""
    for record in registry.plugins():
        if record.distribution == spec.distribution and record.state != "ok":
            return _none(spec, f"{record.distribution} cannot be used: {record.reason}")
    if path is None:
        return _none(spec, _HOW)
    try:
        promised = spec.load()
    except PluginError as error:
        return _none(spec, error.what)
    try:
        module, _, attribute = path.partition(":")
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        what = f"{type(error).__name__}: {error}"
        return _none(spec, f"its conformance class {path} cannot be imported: {what}")
    if not isinstance(cls, type) or not issubclass(cls, BackendConformance):
        return _none(spec, f"{path} is no subclass of headrace_testing.BackendConformance")
    try:
        return certify(_of(spec, cls), promised=promised)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        return _none(spec, f"{path} cannot be judged: {type(error).__name__}: {error}")


def _of(spec: BackendSpec, cls: type[BackendConformance]) -> type[BackendConformance]:
    """Let the expression mean this backend where another distribution has one of the same name."""
    text = cls.expression.lstrip() if isinstance(cls.expression, str) else ""
    alone = [one.path for one in registry.find(spec.name)] == [spec.path]
    bare = re.match(rf"{re.escape(spec.name)}(?![\w.:/-])", text)
    if alone or bare is None:
        return cls
    return type(cls.__name__, (cls,), {"expression": f"{spec.plugin}:{text}"})


def _none(spec: BackendSpec, problem: str) -> Certificate:
    import platform

    return Certificate(
        backend=spec.name,
        distribution=spec.distribution,
        version=spec.version,
        expression=spec.name,
        options={},
        headrace=headrace.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        problem=problem,
    )


def _show(found: Certificate) -> None:
    """Print one certificate as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    state = "certified" if found.certified else "NOT CERTIFIED"
    title = f"{found.backend} ({found.distribution} {found.version}): {state}"
    if found.unavailable is not None:
        title += f", {found.unavailable}"
    if found.problem is not None:
        say(f"{title}\n  {found.problem}\n")
        return
    table = Table(
        title=Text(title),
        title_justify="left",
        caption=Text(_caption(found)),  # an expression has brackets, which are no markup
        caption_justify="left",
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("detail", overflow="fold")
    for verdict in found.rules:
        style = "" if verdict.good else "bold red"
        table.add_row(verdict.id, _MARKS[verdict.outcome], Text(_detail(verdict)), style=style)
    terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if terminal else 120, highlight=False).print(table)
    say("")


def _detail(verdict: Verdict) -> str:
    if verdict.good:
        return (
            verdict.detail if verdict.expected is None else f"{verdict.expected}: {verdict.detail}"
        )
    return f"{verdict.detail}\n{verdict.reason}"


def _caption(found: Certificate) -> str:
    counted_rules = counted(len(found.rules), "rule")
    excepted = len(found.expected_failures)
    bad = [verdict.outcome for verdict in found.rules if not verdict.good]
    blocked, unjudged = bad.count("blocked"), bad.count("not_judged")
    failed = len(bad) - blocked - unjudged
    told = [counted_rules, f"{failed} failed", f"{blocked} blocked"]
    told += [f"{unjudged} not judged", f"{excepted} excepted"]
    ran = f"headrace {found.headrace}, Python {found.python}, {found.platform}"
    return f"{found.expression}: {', '.join(told)}; {ran}"
