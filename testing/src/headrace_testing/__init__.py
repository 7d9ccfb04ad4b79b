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

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

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
    "conformance": "BackendConformance Certificate certify",
    "fakes": "Blocking Failing FakeClock Recording Slow",
    "policies": "Played PolicyConformance PolicyQueue Sent play",
    "virtual": "virtual_time",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
