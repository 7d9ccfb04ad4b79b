"""What clients are told of the times of requests, by the probes ``Times`` and ``Remember`` of headrace-observe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InputError, PluginError
from headrace_serve.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["dump_of", "probe", "server_timing", "slowest_of", "times_for"]

_MOST_RUNS = 32
"""The header has no more runs than this: a list of items may have thousands."""


def probe(name: str, *methods: str) -> Any:
    """Return the class of a probe with these methods; None if it is not installed or cannot be used."""
    for plugin in headrace.plugins.installed():
        path = plugin.offers["probes"].get(name) if plugin.usable else None
        if path is not None:
            try:
                probe_class = plugin.load(path)
            except PluginError:
                continue
            if all(hasattr(probe_class, method) for method in methods):
                return probe_class
    return None


def times_for(model: Any, keys: Any, headers: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the list that the probe ``Times`` fills for a client that asks by ``X-Timing: 1``; None for any other.

    Raises:
        InputError: The model has no such probe.
        NotAllowedError: The key lacks the right to ``describe``.
    """
    if headers.get("x-timing") != "1":
        return None
    names = [text.partition("(")[0].rpartition(":")[2] for text in model.pipe.config.plan().probes]
    if "Times" not in names:
        hint = 'Whoever runs the server writes probes = ["Times"] into [global] of its file.'
        raise InputError(f"x-timing: the model {model.name!r} tells no times", hint=hint)
    if keys is not None:
        keys.check(headers, "describe", model.name)
    return []


def server_timing(times: Sequence[Mapping[str, Any]]) -> str:
    """Return what the probe has told as the value of a header ``Server-Timing``, two metrics for each run of a batch."""
    entries = []
    for run in times[:_MOST_RUNS]:
        node = re.sub(r"[^\w.-]", "_", run["node"], flags=re.ASCII)
        reason = re.sub(r"[^\w.-]", "_", run["reason"], flags=re.ASCII)
        about = f"{run['size']} in the batch, instance {run['instance']}, formed by {reason}"
        entries.append(f"{node}-wait;dur={run['waited_ms']:.3f}")
        entries.append(f'{node}-run;dur={run["ran_ms"]:.3f};desc="{about}"')
    return ", ".join(entries)


def slowest_of(model: Any, count: int) -> list[dict[str, Any]] | None:
    """Return the slowest of the last requests of a model, each explained; None where nothing remembers them."""
    slowest = probe("Remember", "slowest")
    return None if slowest is None else slowest.slowest(model.pipe, count)


def dump_of(models: Sequence[Any], request_id: str | None) -> bytes:
    """Return what the model that has run a request remembers around it, or the first model of its last ones.

    Raises:
        UnsupportedError: No model remembers anything.
        InputError: None remembers the request.
    """
    dump = probe("Remember", "dump")
    for model in models if dump is not None else ():
        lines = dump.dump(model.pipe, request_id)
        if lines:
            return "\n".join([*lines, ""]).encode()
    if all(slowest_of(model, 0) is None for model in models):
        raise UnsupportedError(
            'no model remembers its requests: whoever runs the server writes probes = ["Remember(64MiB)"] into [global]'
        )
    text = f"no request {str(request_id)[:80]!r} is remembered: it has not ended, or was forgotten"
    raise InputError(text, hint="Of several worker processes each remembers its own: ask again.")
