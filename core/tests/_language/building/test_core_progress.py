"""Progress of long work in ``init``: silent, or shown by whoever builds the pipeline."""

from __future__ import annotations

import contextlib

import pytest

import headrace


@pytest.fixture(autouse=True)
def builders(nothing_registered):
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


@pytest.mark.parametrize("backend", ["Builder", "OwnThread", "BackgroundThread[Builder]"])
def test_whoever_builds_hears_of_the_progress(backend):
    heard = []

    @contextlib.contextmanager
    def progress(total, unit):
        heard.append((total, unit))
        yield heard.append
        heard.append("end")

    config = {"backend": backend, "instance_num": 2}
    with headrace.pipe(config, progress=progress) as pipe:
        assert heard == [(3, "layers"), 1, 1, 1, "end"] * 2
        assert pipe({"data": 1})["result"] == 1
    headrace.pipe(config).close()
    assert len(heard) == 10
