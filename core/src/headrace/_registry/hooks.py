"""What plugins give through hooks: definitions, policies and the expression of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import PluginLoadError

if TYPE_CHECKING:
    from headrace._registry.discovery import PluginRecord

__all__ = ["call_hook"]


def _manager(record: PluginRecord, path: str) -> Any:
    """Load one hook module into a plugin manager of its own, so that one cannot stop another."""
    if path not in record.managers:
        import pluggy

        from headrace import hookspecs

        manager = pluggy.PluginManager("headrace")
        manager.add_hookspecs(hookspecs)
        manager.register(_found(path))
        manager.check_pending()
        record.managers[path] = manager
    return record.managers[path]


def _found(path: str) -> Any:
    """Import ``module`` or ``module:attribute``."""
    import importlib

    module, _, attribute = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


def call_hook(records: list[PluginRecord], name: str) -> list[tuple[PluginRecord, Any]]:
    """Call one hook of every usable plugin, once; a plugin that raises becomes ``broken``.

    Returns:
        Per plugin that implements the hook, what it gave.
    """
    answers: list[tuple[PluginRecord, Any]] = []
    for record in records:
        if record.state != "ok" or not record.hooks:
            continue
        if name not in record.answers:
            try:
                record.answers[name] = _answers(record, name)
            except Exception as error:  # noqa: BLE001 - one plugin must not stop the others
                record.state = "broken"
                record.reason = f"its hooks failed: {type(error).__name__}: {error}"
                record.remedy = (
                    f"Install it again: pip install --force-reinstall {record.distribution}"
                )
                continue
        answers += [(record, answer) for answer in record.answers[name]]
    return answers


def _answers(record: PluginRecord, name: str) -> list[Any]:
    """Call one hook of all modules of a plugin, and check what it gives."""
    found = []
    for path in record.hooks:
        for answer in getattr(_manager(record, path).hook, name)():
            if name == "headrace_node_entrypoint":
                good = isinstance(answer, str)
            else:
                good = isinstance(answer, dict) and all(
                    isinstance(text, str) for item in answer.items() for text in item
                )
            if not good:
                raise TypeError(f"{name}() gave {answer!r}")
            found.append(answer)
    return found


def load(path: str, distribution: str) -> Any:
    """Import ``module:attribute`` of a plugin.

    Raises:
        PluginLoadError: It cannot be imported.
    """
    try:
        return _found(path)
    except Exception as error:
        raise PluginLoadError(
            f"cannot import {path!r}: {type(error).__name__}: {error}", distribution=distribution
        ) from error
