"""The pytest plugin: every conformance class is collected, one test per rule.

pytest loads this module through its entry point in every run, so it imports only the standard library
until there is a conformance class.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption", "pytest_pycollect_makeitem"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that makes the long rules of the kit shorter."""
    parser.getgroup("headrace").addoption(
        "--conformance-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="what share of their requests and time the rules same-later, requests-released and instances-agree take, "
        "0.2 for quick tests beside full ones elsewhere (default: 1, as certificates do)",
    )


def pytest_pycollect_makeitem(
    collector: Any, name: str, obj: object
) -> list[pytest.Collector] | None:
    """Collect a subclass of `headrace_testing.BackendConformance`, whatever its name: rules, and its own tests."""
    base = sys.modules.get("headrace_testing.conformance.base")
    if base is None or not isinstance(obj, type) or not issubclass(obj, base.BackendConformance):
        return None
    from headrace_testing.conformance.collecting import ConformanceCollector

    if not getattr(obj, "expression", "") or not getattr(obj, "__test__", True):
        return None  # the class is only a base of other conformance classes
    collectors: list[pytest.Collector] = [
        ConformanceCollector.from_parent(collector, name=name, conformance=obj)
    ]
    if any(collector.funcnamefilter(member) for member in dir(obj)):
        import pytest

        collectors.append(pytest.Class.from_parent(collector, name=name, obj=obj))
    return collectors
