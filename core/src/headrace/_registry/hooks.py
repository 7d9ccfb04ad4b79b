"""What plugins give through hooks: definitions, policies, probes, commands, a node's expression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._registry.backends import found, library_missing
from headrace._registry.discovery import CORE_BACKENDS, PluginRecord
from headrace._registry.registry import registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator


HOOK_NAMES = (
    *("definitions", "batch_policies", "dispatch_policies", "probes", "commands"),
    "node_entrypoint",
)
"""Every hook, without the ``headrace_`` in front."""

PROBE_METHODS = (
    *("batch_done", "request_done", "batch_ran"),
    *("element_began", "element_done", "span_done", "instance_changed", "pipeline_started"),
)
"""A probe is a class with any of these methods; see `headrace.hookspecs.headrace_probes`."""

_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Offer(NamedTuple):
    """One entry of what a hook gave.

    Attributes:
        record: The plugin.
        name: The name it offers.
        path: The import path behind it, or the expression.
    """

    record: PluginRecord
    name: str
    path: str


def _manager(record: PluginRecord, path: str) -> Any:
    """Load one hook module into a plugin manager of its own, so that one cannot stop another."""
    if path not in record.managers:
        import pluggy

        from headrace import hookspecs

        manager = pluggy.PluginManager("headrace")
        manager.add_hookspecs(hookspecs)
        manager.register(found(path))
        manager.check_pending()
        record.managers[path] = manager
    return record.managers[path]


def call_hook(name: str) -> list[tuple[PluginRecord, Any]]:
    """Call one hook of every usable plugin, once; a plugin that raises becomes ``broken``.

    Returns:
        Per plugin that implements the hook, what it gave.
    """
    answers: list[tuple[PluginRecord, Any]] = []
    for record in registry.plugins():
        if record.state != "ok" or not record.hooks:
            continue
        if name not in record.answers:
            try:
                record.answers[name] = _answers(record, name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - one must not stop the others
                _set_failed(record, error)
                continue
        answers += [(record, answer) for answer in record.answers[name]]
    return answers


def _set_failed(record: PluginRecord, error: BaseException) -> None:
    lacking = [library_missing(error, path) for path in record.hooks]
    reason = f"its hooks failed: {type(error).__name__}: {error}"
    if all(lacking):
        remedy = f"Install {lacking[0]!r}, or install {record.distribution} again."
        record.refuse("missing_dependency", reason, remedy)
    else:
        record.refuse("broken", reason)


def given(record: PluginRecord) -> dict[str, Any]:
    """Give what the hooks of a plugin give, by the hook's name without ``headrace_``.

    Each is a table of names to import paths or expressions; ``node_entrypoint`` a text or None. A
    plugin that cannot be used gives nothing.
    """
    for name in HOOK_NAMES:
        call_hook(f"headrace_{name}")  # all come first: a plugin whose hooks fail becomes broken
    tables: dict[str, Any] = {}
    for name in HOOK_NAMES:
        answers = record.answers.get(f"headrace_{name}", []) if record.state == "ok" else []
        if name == "node_entrypoint":
            tables[name] = answers[0] if answers else None
        else:
            tables[name] = {key: text for answer in answers for key, text in answer.items()}
    return tables


def _answers(record: PluginRecord, name: str) -> list[Any]:
    """Call one hook of all modules of a plugin, and check what it gives."""
    gave = []
    for path in record.hooks:
        for answer in getattr(_manager(record, path).hook, name)():
            if name == "headrace_node_entrypoint":
                good = isinstance(answer, str)
            else:
                good = isinstance(answer, dict) and all(
                    isinstance(text, str) for item in answer.items() for text in item
                )
            if good and name == "headrace_commands":
                good = all(_COMMAND.fullmatch(command) for command in answer)
            if not good:
                raise TypeError(f"{name}() gave {answer!r}")
            gave.append(answer)
    return gave


def definitions() -> dict[str, list[tuple[PluginRecord, str]]]:
    """Give the definitions of all plugins: per name, who offers it and its expression.

    One that is named like a word of core is never used, as a backend of that name is not.
    """
    offered: dict[str, list[tuple[PluginRecord, str]]] = {}
    for offer in offers("headrace_definitions"):
        if offer.name not in CORE_BACKENDS:
            offered.setdefault(offer.name, []).append((offer.record, offer.path))
    return offered


def node_entrypoint() -> tuple[str, str] | None:
    """Give the expression of a node that a plugin sets, with its distribution.

    Raises:
        PluginError: Two plugins set one.
    """
    answers = call_hook("headrace_node_entrypoint")
    if len(answers) > 1:
        names = " and ".join(record.distribution for record, _ in answers)
        raise PluginError(
            f"{names} both set the expression of a node",
            hint="Disable one of them with HEADRACE_PLUGINS.",
        )
    return (answers[0][1], answers[0][0].distribution) if answers else None


def unusable_hooks() -> list[str]:
    """Say of each plugin with hooks that cannot be used why not, in a sentence."""
    return [
        f"{record.distribution} cannot be used: {record.reason}."
        for record in registry.plugins()
        if record.hooks and record.state != "ok"
    ]


def offers(hook: str) -> Iterator[Offer]:
    """Give every entry that the plugins give through one hook, each once."""
    entries = {
        (record.distribution, name, path): Offer(record, name, path)
        for record, answer in call_hook(hook)
        for name, path in answer.items()
    }
    yield from entries.values()


def find_offer(hook: str, noun: str, name: str) -> Offer | None:
    """Find who offers ``name``, perhaps ``plugin:Name``, through a hook; None for an unknown name.

    Args:
        hook: The name of the hook.
        noun: What it names, for the error.
        name: As written.

    Raises:
        PluginError: Two plugins offer it.
    """
    plugin, _, part = name.rpartition(":")
    same = [
        offer
        for offer in offers(hook)
        if offer.name == part and plugin in ("", offer.record.plugin)
    ]
    if len(same) < 2:
        return same[0] if same else None
    names = " and ".join(dict.fromkeys(offer.record.distribution for offer in same))
    if len({offer.record.plugin for offer in same}) == 1:
        raise PluginError(
            f"the {noun} {part!r} is offered twice by {names}",
            hint="Ask its author for a version that offers it once.",
        )
    written = " or ".join(f"{offer.record.plugin}:{part}" for offer in same)
    raise PluginError(
        f"the {noun} {part!r} is offered by {names}",
        hint=f"Write {written}, or disable one of them with HEADRACE_PLUGINS.",
    )
