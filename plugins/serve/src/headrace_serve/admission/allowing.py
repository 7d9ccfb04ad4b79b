"""Checks of ``--allow``, ``--allow-host`` and ``--cors-origin``: they turn on what is off by default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, Problem, among

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ALLOWABLE", "check_allowed", "check_hosts", "check_metrics", "check_origins"]

ALLOWABLE: Final = ("repository",)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")


def check_allowed(names: Iterable[str]) -> frozenset[str]:
    """Check the names of the protocol parts to turn on.

    Args:
        names: ``repository``: requests load and unload models.

    Raises:
        ConfigError: A name is unknown, or this platform does not have that part.
    """
    allowed = frozenset([names] if isinstance(names, str) else names)
    problems = []
    for name in sorted(allowed - set(ALLOWABLE)):
        problem = f"--allow {name!r} is unknown"
        problems.append(Problem("serve", problem, hint=among(name, ALLOWABLE)))
    if problems:
        raise ConfigError(problems)
    return allowed


def check_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Check origins of pages: ``https://host[:port]``, or ``*`` for all.

    Raises:
        ConfigError: A text is not an origin.
    """
    listed = (origins,) if isinstance(origins, str) else tuple(origins)
    hint = "One is https://host[:port], without a path."
    right = {text: text == "*" or bool(_ORIGIN.fullmatch(text)) for text in listed}
    _check_all(right, "origin", hint)
    return listed


def check_hosts(hosts: Sequence[str]) -> frozenset[str]:
    """Check hosts that a request may name: names or addresses, without a port. They are given back in lower case.

    Raises:
        ConfigError: A text is no host.
    """
    listed = (hosts,) if isinstance(hosts, str) else tuple(hosts)
    names = {host: host.removeprefix("[").removesuffix("]") for host in listed}
    right = {host: bool(_HOST.fullmatch(name)) for host, name in names.items()}
    _check_all(right, "host", "One is models.example, without a port.")
    return frozenset(name.lower().removesuffix(".") for name in names.values())


def _check_all(right: Mapping[str, bool], kind: str, hint: str) -> None:
    problems = [
        Problem("serve", f"{text!r} is no {kind}", hint=hint)
        for text, is_it in right.items()
        if not is_it
    ]
    if problems:
        raise ConfigError(problems)


def check_metrics(wanted: str) -> str:
    """Check which metrics a server gives.

    Raises:
        ValueError: It is neither ``default`` nor ``server``.
    """
    if wanted not in ("default", "server"):
        raise ValueError(f"metrics is 'default' or 'server', got {wanted!r}")
    return wanted
