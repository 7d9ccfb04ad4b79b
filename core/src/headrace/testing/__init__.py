"""Fakes for testing backends and pipelines: a clock, and backends that record, block or fail.

They are what Headrace's own tests use. Each backend is registered by the test that needs it::

    headrace.register("Recording", headrace.testing.Recording)
"""

from headrace.testing.fakes import Blocking, Failing, FakeClock, Recording

__all__ = ["Blocking", "Failing", "FakeClock", "Recording"]
