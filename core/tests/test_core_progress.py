"""Progress of long work in ``init``: silent, or shown by whoever builds the pipeline."""

from __future__ import annotations

import contextlib

import pytest

import headrace
from headrace._registry.registry import registry


@pytest.fixture(autouse=True)
def builders(monkeypatch):
    monkeypatch.setattr(registry, "local", {})

    @headrace.register("Builder")
    class Builder(headrace.Backend):
        def init(self, options, context):
            with context.progress(3, "layers") as advance:
                for _ in range(3):
                    advance(1)

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("OwnThread", type("OwnThread", (Builder,), {"owns_thread": True}))


def build(backend, **how):
    with headrace.pipe({"backend": backend, "instance_num": 2}, **how) as pipe:
        assert pipe({"data": 1})["result"] == 1


@pytest.mark.parametrize("backend", ["Builder", "OwnThread", "BackgroundThread[Builder]"])
def test_whoever_builds_hears_of_the_progress(backend):
    heard = []

    @contextlib.contextmanager
    def progress(total, unit):
        heard.append((total, unit))
        yield heard.append
        heard.append("end")

    build(backend, progress=progress)
    assert heard == [(3, "layers"), 1, 1, 1, "end"] * 2
    build(backend)
    assert len(heard) == 10


def test_a_reload_shows_nothing_to_whoever_built_the_pipeline():
    heard = []

    @contextlib.contextmanager
    def progress(total, unit):
        heard.append((total, unit))
        yield heard.append

    with headrace.pipe({"backend": "Builder"}, progress=progress) as pipe:
        built = list(heard)
        pipe.reload("main", {"instance_num": 2})
        assert pipe({"data": 1})["result"] == 1
    assert heard == built == [(3, "layers"), 1, 1, 1]
