"""Conformance classes of the words of core that run requests, for ``headrace conformance headrace``.

Words that only wire a node (`IoC`, `DI`, `Batching`, ...) are gone once it is built, those of
graphs and queues need a pipeline around them, and `CatSplit` parts that fit each other; so there is
none for these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = [
    "BackgroundThreadConformance",
    "CallConformance",
    "FallbackConformance",
    "HasKeyConformance",
    "IdentityConformance",
    "LoopConformance",
    "ModelLoaderConformance",
    "NotHasKeyConformance",
    "ProcessConformance",
    "RandomConformance",
    "RestartConformance",
    "SequentialConformance",
]

_ASKS = "whether the key is there is what it asks: a request without it goes the other way"


class IdentityConformance(BackendConformance):
    """`Identity`: any value comes back."""

    expression = "Identity"

    def make_item(self, k: int) -> Request:
        """Give a request with numbers of its own."""
        return {"data": [k, k + 1], "mask": k + 2}


class CallConformance(IdentityConformance):
    """`Call`: a function that is named."""

    expression = "Call(copy:copy)"


class ProcessConformance(IdentityConformance):
    """`Process`: what is inside lives in a process of its own."""

    expression = "Process[Identity]"


class SequentialConformance(IdentityConformance):
    """`S`, also named `Sequential`: one after the other, with an alternative."""

    expression = "S[Identity,S[Identity,Identity],(or)Identity]"


class BackgroundThreadConformance(IdentityConformance):
    """`BackgroundThread`: one thread owns what is inside."""

    expression = "BackgroundThread[Identity]"


class FallbackConformance(IdentityConformance):
    """`Fallback`: the first that can be built."""

    expression = "Fallback[Identity,S[Identity,Identity]]"


class ModelLoaderConformance(IdentityConformance):
    """`ModelLoader`: chosen by the suffix of a file."""

    expression = "ModelLoader(model=network.onnx)[(.onnx)Identity]"


class HasKeyConformance(IdentityConformance):
    """`HasKey`: two ways."""

    expression = "HasKey(mask)[S[Identity],Identity]"
    expected_failures = {"missing-key": _ASKS}  # noqa: RUF012 - a class of this kind is a table


class NotHasKeyConformance(HasKeyConformance):
    """`NotHasKey`: two ways."""

    expression = "NotHasKey(mask)[S[Identity],Identity]"


class RandomConformance(IdentityConformance):
    """`Random`: two ways, drawn for each request."""

    expression = "Random(0.5)[S[Identity],Identity]"


class LoopConformance(IdentityConformance):
    """`Loop`: until the key is there, which it is."""

    expression = "Loop(until=mask,limit=2)[Identity]"


class RestartConformance(IdentityConformance):
    """`Restart`: once, where no request asks for more."""

    expression = "Restart[Identity]"
    expected_failures = {  # noqa: RUF012 - a class of this kind is a table
        "reads": "`restart` is what a request may ask for: one without it is done"
    }
