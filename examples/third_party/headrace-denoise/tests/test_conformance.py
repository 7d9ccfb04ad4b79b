"""Each rule of Headrace's conformance kit is a test here."""

from headrace_denoise.conformance import DenoiseConformance

__all__ = ["DenoiseConformance"]
