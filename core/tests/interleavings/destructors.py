"""Destructors that call their pipeline, at any moment and through every way in: answered or refused, and nobody waits for ever."""

from __future__ import annotations

import threading

from composed import loaded
from shared import Book

import headrace
from headrace.errors import ContractError, RequestsFailed
from headrace_testing.interleavings import check, settle


class Plain(headrace.Backend):
    def init(self, options, context):
        self.step = threading.Lock()

    def forward(self, batch):
        with self.step:  # others may go on here
            pass
        for request in batch:
            request["result"] = 0


class OwnPlain(Plain):
    owns_thread = True


headrace.register("Plain", Plain)
headrace.register("OwnPlain", OwnPlain)
PLAIN = loaded({"main": {"backend": "Plain", "max": 2}})
OWN_PLAIN = loaded({"main": {"backend": "OwnPlain", "max": 2}})
PLAIN_CHAIN = loaded(
    {"a": {"backend": "Plain", "max": 2, "next": "b"}, "b": {"backend": "Plain", "max": 2}}
)


class Data:
    """Data whose end calls its pipeline: answered, or refused where it would wait for its own thread."""

    def __init__(self, pipes, way, dead):
        self.pipes, self.way, self.dead = pipes, way, dead

    def __del__(self):
        request = {"data": None}
        try:
            if self.way == "submit":
                self.pipes[0].submit(request)
            else:
                self.pipes[0](request if self.way == "call" else [request])
        except (ContractError, RequestsFailed):
            pass
        except BaseException as error:
            check(False, f"a destructor got {error!r}")
        self.dead.append(self.way)


def _destroyed(config):
    book, dead, pipes = Book(), [], [headrace.pipe(config)]

    def sends(way):
        for later in ("call", "submit", "list"):
            request = {"data": Data(pipes, later, dead)}
            if way == "submit":
                pipes[0].submit(request)
            else:
                pipes[0](request if way == "call" else [request])
            del request

    for way in ("call", "submit", "list"):
        book.thread(sends, way)
    book.join()
    settle()
    check(len(dead) == 9, lambda: f"ended are {dead}")
    pipes[0].close()


def one_node():
    """At one node whose batches any thread runs."""
    _destroyed(PLAIN)


def own_threads():
    """At a backend with a thread of its own."""
    _destroyed(OWN_PLAIN)


def graphs():
    """In a graph of two nodes."""
    _destroyed(PLAIN_CHAIN)
