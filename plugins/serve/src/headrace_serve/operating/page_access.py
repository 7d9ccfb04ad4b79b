"""Who may be served a live page, checked before anything is built."""

from __future__ import annotations

from headrace.errors import ConfigError, Problem
from headrace_serve.operating.listening import reaches_others

__all__ = ["check_ui"]


def check_ui(host: str, *, served: bool, keyed: bool) -> None:
    """Check that not everybody who reaches a server may use its live page.

    Args:
        host: The address on which the server listens.
        served: Whether there is a live page at all.
        keyed: Whether clients need keys.

    Raises:
        ConfigError: Other machines reach the address, and need no key.
    """
    if served and not keyed and reaches_others(host):
        what = f"the live page on {host!r} without keys: everybody who reaches this address could run its load test"
        hint = "Give --keys, or leave --host at 127.0.0.1 and reach the page through a tunnel."
        raise ConfigError(Problem("serve", what, hint=hint))
