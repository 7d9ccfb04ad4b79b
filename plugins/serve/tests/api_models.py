"""The models that clients of other servers ask: vectors of texts, and texts in parts."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace.errors import InputError

TEXTS = ["a", "bcd", "Zoë", "ab " * 20]
WIDTH = 4
VOCABULARY = 256


def vector_of(tokens):
    """Return what `Vectors` gives for tokens: sums of their powers, of length 1."""
    sums = [float(sum(token**power for token in tokens)) for power in range(WIDTH)]
    return np.array(sums, np.float32) / np.float32(np.linalg.norm(sums))


@headrace.register("ApiVectors")
class Vectors(headrace.Backend):
    """Gives a vector for the UTF-8 of a text, or for a list of tokens below 256."""

    rerun = True
    max = 8
    writes = ("result", "tokens")
    sizes: ClassVar[list[int]] = []

    def forward(self, batch):
        """Write the vectors."""
        self.sizes.append(len(batch))
        outcomes = []
        for request in batch:
            data, error = request["data"], None
            tokens = [*data.encode()] if isinstance(data, str) else data
            if any(not 0 <= token < VOCABULARY for token in tokens):
                error = InputError("data", expected="tokens of the vocabulary")
            else:
                request["result"], request["tokens"] = vector_of(tokens), len(tokens)
            outcomes.append(error)
        return outcomes


class Asked(TypedDict):
    """The keys that `Words` reads."""

    data: list | str
    temperature: NotRequired[float]


@headrace.register("ApiWords")
class Words(headrace.Backend):
    """Gives the words of the last message one by one, and then its temperature if it has one."""

    reads = Asked

    def init(self, options, context):
        """Keep the function that gives a part."""
        self._asks = context.request

    def forward(self, batch):
        """Give the parts."""
        for request in batch:
            data = request["data"]
            text = data if isinstance(data, str) else data[-1]["content"]
            for word in text.split(" "):
                self._asks.emit(self._asks.keep(request), f"{word} ")
            if "temperature" in request:
                self._asks.emit(self._asks.keep(request), str(request["temperature"]))
            request["result"] = None


@headrace.register("ApiEndless")
class Endless(headrace.Backend):
    """Gives one part, and waits until nobody wants the request."""

    begun, left = threading.Event(), threading.Event()
    rerun = True

    def init(self, options, context):
        """Keep the functions of requests."""
        self._request = context.request

    def forward(self, batch):
        """Give the part, and wait."""
        (request,) = batch
        self._request.emit(self._request.keep(request), "first ")
        self.begun.set()
        poll = threading.Event()
        while not self._request.unwanted(self._request.keep(request)):
            poll.wait(0.002)
        self.left.set()
        request["result"] = None


@headrace.register("ApiShout")
class Shout(headrace.Backend):
    """Gives a text, without parts."""

    def forward(self, batch):
        """Write the text in capital letters."""
        for request in batch:
            request["result"] = request["data"].upper()


MODELS = {
    "vectors": {"backend": "ApiVectors"},
    "words": {"backend": "ApiWords"},
    "endless": {"backend": "ApiEndless"},
    "shout": {"backend": "ApiShout"},
}
