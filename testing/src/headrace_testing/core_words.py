"""Conformance classes of the words of core that run requests, for ``headrace conformance headrace``.

Words that only wire instances (`IoC`, `DI`, `With`) are gone once a node is built, `Forward` needs a
pipeline around it, and `CatSplit` needs parts that fit each other: these have no
conformance class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = [
    "BackgroundThreadConformance",
    "CallConformance",
    "IdentityConformance",
    "SequentialConformance",
]


class IdentityConformance(BackendConformance):
    """`Identity`, which gives any value back."""

    expression = "Identity"

    def make_item(self, k: int) -> Request:
        """Return a request whose numbers no other request has."""
        return {"data": [k, k + 1], "mask": k + 2}

    def expected(self, k: int) -> Any:
        """Return what came."""
        return self.make_item(k)["data"]


class CallConformance(IdentityConformance):
    """`Call`, with a function that the expression names."""

    expression = "Call(copy:copy)"


class SequentialConformance(IdentityConformance):
    """`S`, also named `Sequential`, with an element that has the prefix `(or)`."""

    expression = "S[Identity,S[Identity,Identity],(or)Identity]"


class BackgroundThreadConformance(IdentityConformance):
    """`BackgroundThread`, whose child one thread owns."""

    expression = "BackgroundThread[Identity]"
