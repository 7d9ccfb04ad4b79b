"""The conformance kit: rules of the backend contract, each checked against a real backend.

It needs neither pytest nor any array library: rules are plain functions, which ``headrace
conformance`` and the pytest plugin both run.
"""

from headrace_testing.conformance.base import BackendConformance
from headrace_testing.conformance.certificate import Certificate
from headrace_testing.conformance.outcome import Verdict
from headrace_testing.conformance.own_process import certify_apart
from headrace_testing.conformance.rule import Rule
from headrace_testing.conformance.run import ConformanceRun, certify, rules

__all__ = [
    "BackendConformance",
    "Certificate",
    "ConformanceRun",
    "Rule",
    "Verdict",
    "certify",
    "certify_apart",
    "rules",
]
