"""What is wrong with what plugins offer through hooks, for ``headrace plugins doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._registry.hooks import HOOK_KINDS, call_hook, offers
from headrace._registry.loading import load as load_path
from headrace.errors import ConfigError, MissingDependencyError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace._registry import PluginRecord
    from headrace._registry.hooks import Offer

__all__ = ["call_hooks", "wrong_offers"]

_FIX = "Ask its author for a fix."
_NAME = "Ask its author for another name."


class Wrong(NamedTuple):
    """The plugin, the kind of what is wrong, reason and remedy, and other plugins it is about."""

    record: PluginRecord
    kind: str
    reason: str
    remedy: str | None
    others: tuple[PluginRecord, ...] = ()


def call_hooks(records: Sequence[PluginRecord]) -> None:
    """Call every hook of every usable plugin; one whose hooks fail becomes broken."""
    for hook in HOOK_KINDS:
        call_hook(list(records), hook)


def wrong_offers(records: Sequence[PluginRecord], *, load: bool) -> Iterator[Wrong]:
    """Say what is wrong with what the hooks of usable plugins name.

    Args:
        records: The plugins; those with hooks are asked.
        load: Whether to import what is named; else names alone are compared.
    """
    records = [record for record in records if record.state == "ok"]
    for hook, what in HOOK_KINDS.items():
        if hook == "headrace_node_entrypoint":
            yield from _entrypoints(records, hook)
            continue
        found = list(offers(list(records), hook))
        core = _names_of_core(hook) if found else set()
        for offer in found:
            if load and offer.name not in core:
                yield from _wrong(offer, hook, what)
        yield from _names_taken(found, core, what)
        if hook == "headrace_definitions":
            yield from _named_like_backends(found, records)


def _entrypoints(records: Sequence[PluginRecord], hook: str) -> Iterator[Wrong]:
    found = [record for record, _ in call_hook(list(records), hook)]
    if len(found) > 1:
        names = " and ".join(record.distribution for record in found)
        reason = f"{names} both set the expression of a node, which fails every configuration"
        remedy = "Disable one of them with HEADRACE_PLUGINS."
        yield Wrong(found[0], "duplicate", reason, remedy, tuple(found[1:]))


def _names_taken(found: list[Offer], core: set[str], what: str) -> Iterator[Wrong]:
    by_name: dict[str, list[Offer]] = {}
    for offer in found:
        by_name.setdefault(offer.name, []).append(offer)
    for name, same in sorted(by_name.items()):
        if name in core:
            reason = f"the {what} {name!r} is never used: headrace itself has one of that name"
            for offer in same:
                yield Wrong(offer.record, "duplicate", reason, _NAME)
        elif len(same) > 1:
            names = " and ".join(offer.record.distribution for offer in same)
            ways = " or ".join(f"{offer.record.plugin}:{name}" for offer in same)
            reason = f"the {what} {name!r} is offered by {names}"
            remedy = f"Write {ways}, or disable one with HEADRACE_PLUGINS."
            others = tuple(offer.record for offer in same[1:])
            yield Wrong(same[0].record, "duplicate", reason, remedy, others)


def _named_like_backends(found: list[Offer], records: Sequence[PluginRecord]) -> Iterator[Wrong]:
    """Report definitions that have the name of a backend: the bare name is refused then."""
    for offer in found:
        for owner in (record for record in records if offer.name in record.backends):
            ways = f"{offer.record.plugin}:{offer.name} or {owner.plugin}:{offer.name}"
            reason = (
                f"the definition {offer.name!r} is named like a backend of {owner.distribution}"
            )
            remedy = f"Write {ways}, or disable one with HEADRACE_PLUGINS."
            own = owner is offer.record
            yield Wrong(offer.record, "duplicate", reason, _NAME if own else remedy, (owner,))


def _names_of_core(hook: str) -> set[str]:
    from headrace._registry.catalogue import CORE_BACKENDS, CORE_COMMANDS, CORE_POLICIES

    if hook == "headrace_commands":
        return set(CORE_COMMANDS)
    if hook == "headrace_definitions":
        return set(CORE_BACKENDS)
    return set(CORE_POLICIES) if "policies" in hook else set()


def _wrong(offer: Offer, hook: str, what: str) -> Iterator[Wrong]:
    """Import what one offer names and check that it is what the hook is for."""
    record = offer.record
    again = f"Install it again: pip install --force-reinstall {record.distribution}"
    named = f"the {what} {offer.name!r}"
    try:
        if hook == "headrace_definitions":
            _check_definition(offer)
        else:
            _check(hook, load_path(offer.path, record.distribution), offer)
    except MissingDependencyError as error:
        yield Wrong(record, "missing_dependency", f"{named}: {error.what}", error.hint)
    except ConfigError as error:
        yield Wrong(record, "broken", f"{named}: {error.problems[0].message}", _FIX)
    except PluginError as error:
        yield Wrong(record, "broken", f"{named}: {error.what}", again)
    except TypeError as error:
        yield Wrong(record, "broken", f"{named}: {offer.path!r} {error}", _FIX)


def _check_definition(offer: Offer) -> None:
    from headrace._explain import explain_expression

    explain_expression(f"{offer.record.plugin}:{offer.name}")


def _check(hook: str, found: Any, offer: Offer) -> None:
    """Raise TypeError when something is not what its hook is for."""
    if hook == "headrace_commands":
        from headrace._cli.plugin_commands import as_command

        as_command(found, offer)
        return
    from headrace._options import Options
    from headrace._registry.named import PROBE_METHODS
    from headrace.policies import BatchPolicy, DispatchPolicy

    if hook == "headrace_probes":
        if not isinstance(found, type) or not any(hasattr(found, m) for m in PROBE_METHODS):
            raise TypeError(f"is no class with {' or '.join(PROBE_METHODS)}")
    else:
        kind = BatchPolicy if hook == "headrace_batch_policies" else DispatchPolicy
        if not isinstance(found, type) or not issubclass(found, kind):
            raise TypeError(f"is no {kind.__name__}")
    options = getattr(found, "Options", Options)
    if not isinstance(options, type) or not issubclass(options, Options):
        raise TypeError("has an Options that is no subclass of headrace.Options")
