"""An instance in which backends are started and run, as a pipeline does, and pictures for them."""

from __future__ import annotations

import importlib.util

import pytest

import headrace

WITHOUT_TORCH = ["test_torch_light.py"]
"""What runs where torch is not installed; everything else is not even collected there."""

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_[!l]*.py"]


class Bench:
    """One instance: backends started in it share its place, and its batches end."""

    def __init__(self, **context):
        self.ends = []
        self.instance = headrace.InitContext().instance
        self.context = {"threads": 1, "at_batch_end": self.ends.append, **context}
        self.started = []

    def start(self, cls, *children, **options):
        backend = cls()
        context = headrace.InitContext(instance=self.instance, children=children, **self.context)
        backend._start(cls.Options(**options), context)
        backend._warm()
        self.started.append(backend)
        return backend

    def outcomes(self, backend, *requests):
        found = backend(list(requests))
        for end in self.ends:
            end()
        return [None] * len(requests) if found is None else found

    def run(self, backend, *requests):
        """Run requests that are right, and give their results."""
        for outcome in self.outcomes(backend, *requests):
            if outcome is not None:
                raise outcome
        return [request["result"] for request in requests]

    def error(self, backend, request):
        (found,) = self.outcomes(backend, request)
        assert found is not None, "it is accepted"
        return found

    def close(self):
        for backend in reversed(self.started):
            backend._stop()
        self.instance.close()


@pytest.fixture
def bench():
    """Make benches that are closed at the end; called without arguments it computes on the CPU."""
    made = []

    def make(**context):
        made.append(Bench(**{"device": "cpu", **context}))
        return made[-1]

    yield make
    for one in made:
        one.close()
