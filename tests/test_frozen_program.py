"""The recipe of docs/production.md for PyInstaller, followed: the program runs without Python and sees the plugins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from pages import Page
from processes import run_process

PAGE = Page("docs/production.md")

SERVICE = """
import numpy as np
import headrace

if __name__ == "__main__":
    line = {"backend": "S[Identity,OnnxTensor]", "model": "model.onnx", "max": 4}
    with headrace.pipe(line) as pipe:
        print(pipe({"data": np.float32([1, 2, 3])})["result"].tolist())
    print(*(plugin.distribution for plugin in headrace.plugins.installed()))
    try:
        headrace.pipe({"backend": "Process[Identity]"})
    except (headrace.errors.ConfigError, headrace.errors.SetupError):
        print("no Process")
"""
# What the environment of the tests has besides, and programs that are frozen elsewhere have not, is left out.
REST = """
besides = ["IPython", "pytest", "setuptools"]
found = Analysis(["service.py"], hiddenimports=hiddenimports, datas=datas, excludes=besides)
start = EXE(PYZ(found.pure), found.scripts, [], exclude_binaries=True, name="service")
COLLECT(start, found.binaries, found.datas, name="service")
"""


@pytest.mark.peers
@pytest.mark.skipif(sys.platform == "win32", reason="the program has another name there")
def test_the_recipe_of_the_page_freezes_a_program_that_finds_core_and_plugins(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("headrace_ort")
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in "xy"
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:]
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "model.onnx"
    )
    assert "Analysis(..., hiddenimports=hiddenimports, datas=datas)" in PAGE.text
    (tmp_path / "service.spec").write_text(
        PAGE.block("text", "# service.spec") + REST, encoding="utf-8"
    )
    (tmp_path / "service.py").write_text(SERVICE, encoding="utf-8")
    tool = str(tmp_path / "tool")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tool, "pyinstaller"]
    subprocess.run(pip, check=True, capture_output=True, timeout=600)
    frozen = run_process(
        [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "service.spec"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": tool},
        timeout=1200,
    )
    assert frozen.returncode == 0, frozen.stderr
    done = run_process(
        [tmp_path / "dist" / "service" / "service"], cwd=tmp_path, env={}, timeout=300
    )
    assert done.stdout.splitlines() == [
        "[-1.0, -2.0, -3.0]",
        "headrace-cv headrace-ort",
        "no Process",
    ], done.stderr
    for folder in ("build", "dist", "tool"):  # half a gigabyte
        shutil.rmtree(tmp_path / folder)
