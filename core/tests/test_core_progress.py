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


