"""A model repository that tests write."""

from __future__ import annotations

import pytest
from engine_rules import write
from onnx import TensorProto

FLOAT = TensorProto.FLOAT


def add_and_subtract(path, rows="rows", shape=(4,)):
    """Write an ONNX model: SUM = A + B, DIFF = A - B, float32 ``[rows, *shape]``; without rows where these are None."""
    axes = [*([] if rows is None else [rows]), *shape]
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs, outputs = ([(name, FLOAT, axes) for name in names] for names in ("AB", ("SUM", "DIFF")))
    write(path, [("Add", "AB", ["SUM"], {}), ("Sub", "AB", ["DIFF"], {})], inputs, outputs, ())


class Repository:
    """A folder with models."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, config=None, *, versions=(1,), **model):
        """Write a model that adds and subtracts, with its configuration, if there is one."""
        for version in versions:
            add_and_subtract(self.folder / name / str(version) / "model.onnx", **model)
        if config is not None:
            self.configure(name, config)

    def configure(self, name, config, folder="."):
        """Write a configuration alone, with an empty folder of a version, if there is one."""
        (self.folder / name / folder).mkdir(parents=True, exist_ok=True)
        (self.folder / name / "config.pbtxt").write_text(config, encoding="utf-8")

    def python(self, name, config=None, code="class TritonPythonModel: pass\n"):
        """Write a model of Python."""
        (self.folder / name / "1").mkdir(parents=True, exist_ok=True)
        (self.folder / name / "1" / "model.py").write_text(code, encoding="utf-8")
        if config is not None:
            self.configure(name, config)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository")
