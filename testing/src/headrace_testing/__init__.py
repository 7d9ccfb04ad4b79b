"""For tests of backends: the conformance kit, and fakes.

A subclass of `BackendConformance` has an expression and a factory of requests. pytest collects it with one
test per rule of the backend contract, and ``headrace conformance NAME`` prints a certificate.

A subclass of `PolicyConformance` names a batch policy. `play` lets one serve requests on a virtual clock.

The fakes, which Headrace's own tests use as well, are a clock, and backends that record, block, are slow or
fail. The test that needs such a backend registers it::

    headrace.register("Recording", headrace_testing.Recording)

In `virtual_time` a pipeline with its backends' sleeps and timeouts takes as long as the Python code in it.

Nothing is imported until it is used: ``import headrace_testing`` loads neither pytest nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_testing.conformance import BackendConformance, Certificate, certify
    from headrace_testing.fakes import Blocking, Failing, FakeClock, Recording, Slow
    from headrace_testing.policies import Played, PolicyConformance, PolicyQueue, Sent, play
    from headrace_testing.virtual import virtual_time

__version__ = "0.1.0"

__all__ = [
    "BackendConformance",
    "Blocking",
    "Certificate",
    "Failing",
    "FakeClock",
    "Played",
    "PolicyConformance",
    "PolicyQueue",
    "Recording",
    "Sent",
    "Slow",
    "__version__",
    "certify",
    "play",
    "virtual_time",
]

_HOME = {
    "BackendConformance": "conformance",
    "Blocking": "fakes",
    "Certificate": "conformance",
    "Failing": "fakes",
    "FakeClock": "fakes",
    "Played": "policies",
    "PolicyConformance": "policies",
    "PolicyQueue": "policies",
    "Recording": "fakes",
    "Sent": "policies",
    "Slow": "fakes",
    "certify": "conformance",
    "play": "policies",
    "virtual_time": "virtual",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace_testing' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"headrace_testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
