"""Each rule of Headrace's conformance kit is a test here."""

from headrace_retry.conformance import RetryConformance

__all__ = ["RetryConformance"]
