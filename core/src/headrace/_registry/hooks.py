"""What plugins give through hooks: definitions, policies and the expression of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import PluginLoadError

if TYPE_CHECKING:
    from headrace._registry.discovery import PluginRecord

__all__ = ["call_hook"]

_managers: dict[str, Any] = {}


def _manager(path: str) -> Any:
    """Load one hook module into a plugin manager of its own, so that one cannot stop another."""
    if path not in _managers:
        import importlib

        import pluggy

        from headrace import hookspecs

        manager = pluggy.PluginManager("headrace")
        manager.add_hookspecs(hookspecs)
        module, _, attribute = path.partition(":")
        found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
        manager.register(found)
        manager.check_pending()
        _managers[path] = manager
    return _managers[path]


def call_hook(records: list[PluginRecord], name: str) -> list[tuple[PluginRecord, Any]]:
    """Call one hook of every usable plugin; a plugin that raises becomes ``broken``.

    Returns:
        Per plugin that implements the hook, what it gave.
    """
    answers: list[tuple[PluginRecord, Any]] = []
    for record in records:
        if record.state != "ok":
            continue
        for path in record.hooks:
            try:
                results = getattr(_manager(path).hook, name)()
            except Exception as error:  # noqa: BLE001 - one plugin must not stop the others
                record.state = "broken"
                record.reason = f"its hooks in {path!r} failed: {type(error).__name__}: {error}"
                record.remedy = (
                    f"Install it again: pip install --force-reinstall {record.distribution}"
                )
                continue
            answers += [(record, result) for result in results if result is not None]
    return answers


def load(path: str, distribution: str) -> Any:
    """Import ``module:attribute`` of a plugin.

    Raises:
        PluginLoadError: It cannot be imported.
    """
    import importlib

    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise PluginLoadError(
            f"cannot import {path!r}: {type(error).__name__}: {error}", distribution=distribution
        ) from error
    return found
