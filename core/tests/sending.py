"""What tests of graphs share: backends of one function, and the ways in which one request is sent."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import RequestsFailed
from headrace.words import Place


def backend(name, function, **attributes):
    """Register a backend that computes ``result`` from the whole request, or gives none."""

    def forward(self, batch):
        for request in batch:
            result = function(request)
            if result is not None:
                request["result"] = result

    body = {"forward": forward, **attributes}
    headrace.register(name, type(name, (headrace.Backend,), body), replace=True)


class Leaves(headrace.Backend):
    """Lets each request go on at another node: ``Leaves(node=x)``."""

    keeps = True

    class Options(headrace.Options):
        node: str

    place = Place(stands="last")

    @classmethod
    def nodes_called(cls, options):
        return [options.node]

    def init(self, options, context):
        self.context, self.target = context, options.node

    def forward(self, batch):
        for request in batch:
            self.context.request.resume(self.context.request.keep(request), self.target)
        return [headrace.PENDING for _ in batch]


def send_in_list(pipe, request):
    """Send a request as the only one of a list; raise its own error."""
    try:
        return pipe([request])[0]
    except RequestsFailed as failed:
        (error,) = failed.errors
    raise error  # outside, for its own cause stays


WAYS = {
    "call": lambda pipe, request: pipe(request),
    "timeout": lambda pipe, request: pipe(request, timeout=60),
    "list": send_in_list,
    "submit": lambda pipe, request: pipe.submit(request).result(60),
    "async": lambda pipe, request: asyncio.run(pipe.call_async(request)),
}


def read(pipe, request, **more):
    """Return all that a stream gives."""
    return list(pipe.stream(request, **more))


def read_async(pipe, request, **more):
    """Return all that an asynchronous stream gives."""

    async def run():
        return [part async for part in pipe.stream_async(request, **more)]

    return asyncio.run(run())


both_readers = pytest.mark.parametrize("read", [read, read_async])


class Sender:
    """Sends one request to a pipeline of its own.

    Attributes:
        stats: The statistics of each node afterwards.
    """

    def __init__(self, way):
        self.way = WAYS[way]

    def __call__(self, config, data, **keys):
        sent = {"data": data, **keys}
        with headrace.pipe(config) as pipe:
            try:
                self.way(pipe, sent)
            finally:
                assert sent["data"] is data
                self.stats = pipe.stats()["nodes"]
        return sent

    @property
    def counts(self):
        """Return of each node how many requests came, how many were answered, and how many failed of what."""
        return {
            name: (node["submitted"], node["ok"], node["failed"])
            for name, node in self.stats.items()
        }
