"""What ``--allow`` names: parts of the protocol that are off where nobody asks for them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, Problem
from headrace_serve.shared_memory import AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALLOWABLE", "check_allowed"]

ALLOWABLE: Final = ("repository", "shared-memory")


def check_allowed(names: Iterable[str]) -> frozenset[str]:
    """Check what is to be allowed.

    Args:
        names: ``repository``: requests load and unload models. ``shared-memory``: tensors lie in
            shared memory of the system.

    Raises:
        ConfigError: One is unknown, or is not to be had on this platform.
    """
    found = frozenset([names] if isinstance(names, str) else names)
    problems = []
    for name in sorted(found - set(ALLOWABLE)):
        near = difflib.get_close_matches(name, ALLOWABLE, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(ALLOWABLE)}."
        problems.append(Problem("serve", f"--allow {name!r} is unknown", hint=hint))
    if "shared-memory" in found and not AVAILABLE:
        problems.append(Problem("serve", "--allow shared-memory: it can be used on Linux only"))
    if problems:
        raise ConfigError(problems)
    return found
