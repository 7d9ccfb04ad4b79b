"""The pages of examples/ocr, read on the cluster and in this process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import headrace

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ocr"
FILES = ("page.toml", "ctc.py", "detector.py", "page.py", "prepare.py")
NEEDED = ("rapidocr", "skimage", "PIL", "headrace_cv", "headrace_ort")


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the repository alone")
def test_pages_are_read_as_in_process(tmp_path):
    missing = [name for name in NEEDED if not find_spec(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    for name in FILES:
        shutil.copyfile(EXAMPLE / name, tmp_path / name)
    subprocess.run([sys.executable, tmp_path / "prepare.py"], check=True, capture_output=True)
    plain = (tmp_path / "page.toml").read_text(encoding="utf-8")
    on_ray = plain.replace(
        "[global]\ninstance_num = 2", "[global]\ninstance_num = 2\nnum_cpus = 0.1"
    )
    for line in plain.splitlines():
        if "OnnxTensor" in line:  # the three networks, with what stands around them
            there = line.replace('"S[', '"RayActor[S[').replace(']"', ']]"')
            on_ray = on_ray.replace(line, there)
    assert on_ray.count("RayActor") == 3
    (tmp_path / "ray.toml").write_text(on_ray, encoding="utf-8")
    page = (tmp_path / "made" / "pages" / "label.png").read_bytes()
    found = []
    for name in ("page.toml", "ray.toml"):
        with headrace.pipe(str(tmp_path / name)) as pipe:
            found.append(json.dumps(pipe({"data": page})["result"]))
    assert found[0] == found[1]
    assert len(json.loads(found[0])) > 0
