"""A bare engine as a configuration; nothing of TensorRT is needed."""

from __future__ import annotations

import json

import pytest

import headrace


def engine(folder, profile=None, name="m.plan"):
    path = folder / name
    path.write_bytes(b"ftrt\x00\xff")
    if profile is not None:
        (folder / f"{name}.json").write_text(json.dumps({"profiles": [profile]}))
    return path


def rows(low, high):
    return {"min": [low, 3], "opt": [high, 3], "max": [high, 3]}


@pytest.mark.parametrize("name", ["m.plan", "m.engine"])
def test_an_engine_alone_runs_a_request_at_a_time(tmp_path, name):
    path = engine(tmp_path, name=name)
    assert headrace.plugins.tables_of(path) == {"backend": "TensorrtTensor", "model": name}
    found = headrace.explain(path)["nodes"]["main"]
    assert found["range"][1] == 1


@pytest.mark.parametrize(
    ("profile", "sizes"),
    [
        ({"x": rows(1, 8), "y": rows(1, 8)}, {"max": 8}),
        ({"x": rows(4, 16)}, {"min": 4, "max": 16}),
        ({"x": rows(1, 1)}, {}),
        ({"x": rows(1, 8), "y": rows(1, 4)}, {}),
        ({"x": {"min": [], "opt": [], "max": []}}, {}),
        ({}, {}),
        ([], {}),
        ("no profile", {}),
    ],
)
def test_its_sidecar_tells_the_sizes_of_batches(tmp_path, profile, sizes):
    tables = headrace.plugins.tables_of(engine(tmp_path, profile))
    assert tables == {"backend": "TensorrtTensor", "model": "m.plan", **sizes}
