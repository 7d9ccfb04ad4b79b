"""Files that X needs: read at the same path, or sent there; on a node that has none of the files of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray_programs import built, until

import headrace
from headrace.errors import SetupError
from headrace_ray.files import files_among, place

FILE = """
import headrace

@headrace.register("RayReads")
class RayReads(headrace.Backend):
    class Options(headrace.Options):
        model: headrace.FilePath
    def init(self, options, context):
        self.text = options.model.read_text()
    def forward(self, batch):
        for one in batch:
            one["result"] = self.text
"""


@pytest.fixture
def reading(tmp_path):
    """Return the keys of a node that needs two files."""
    (tmp_path / "reads.py").write_text(FILE)
    (tmp_path / "model.txt").write_text("one")
    config = {"import": [str(tmp_path / "reads.py")], "model": str(tmp_path / "model.txt")}
    return {**config, "num_cpus": 0.1, "backend": "RayActor[RayReads]"}


@pytest.fixture
def bare_node(cluster, tmp_path):
    """Start a node for which the folder of the test is empty; it has the resource ``bare``."""
    alone = shutil.which("unshare")
    if alone is None or subprocess.run([alone, "-m", "true"], check=False).returncode:
        pytest.skip("a node with a view of its own on the files needs unshare, and root")
    script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    start = [
        Path(sys.executable).parent / "ray",
        "start",
        "--block",
        f"--address={cluster.address}",
    ]
    start += ["--resources", '{"bare": 1}', "--num-cpus=1", f"--object-store-memory={80 << 20}"]
    with subprocess.Popen(
        [alone, "-m", "sh", "-c", script, "sh", tmp_path, *start],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "RAY_TMPDIR": os.environ["RAY_TMPDIR"]},
    ) as node:
        try:
            until(lambda: ray.available_resources().get("bare") or node.poll() is not None)
            assert node.poll() is None, "the node did not start"
            yield
        finally:
            node.terminate()
            node.wait(60)


def test_files_are_sent_to_a_node_that_has_none(bare_node, reading, tmp_path):
    config = {**reading, "resources": {"bare": 1}}
    with pytest.raises((SetupError, headrace.errors.PluginError), match="no such file"):
        headrace.pipe(config)
    for text in ("one", "two"):  # the second time the node has the first version
        (tmp_path / "model.txt").write_text(text)
        with headrace.pipe({**config, "files": "ship"}) as pipe:
            assert pipe({"data": 1})["result"] == text
            assert built(pipe)["process"] != os.getpid()


def test_files_that_are_there_are_left_as_they_are(reading, tmp_path):
    def written():
        return [(one.st_ino, one.st_mtime_ns) for one in map(Path.stat, sorted(tmp_path.iterdir()))]

    before = written()
    with headrace.pipe({**reading, "files": "ship"}) as pipe:
        assert pipe({"data": 1})["result"] == "one"
    assert written() == before  # and nothing new


def test_a_file_that_was_not_sent_is_never_replaced(tmp_path):
    path = tmp_path / "deep" / "model.txt"
    place(path, b"one", 0o640)
    place(path, b"two", 0o640)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o640)
    path.write_bytes(b"of somebody")
    with pytest.raises(SetupError, match="the node has another file there"):
        place(path, b"three", 0o640)
    assert path.read_bytes() == b"of somebody"
    with pytest.raises(SetupError, match="cannot be written there"):
        place(path / "below", b"four", 0o640)


def test_folders_are_sent_with_all_that_they_hold(tmp_path):
    for name in ("b/c", "a", "b/d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    values = [{"x": 1, "y": [tmp_path / "b"]}, "text", (tmp_path / "a", None), tmp_path / "none"]
    found = files_among(values)
    assert found == [tmp_path / "b" / "c", tmp_path / "b" / "d" / "e", tmp_path / "a"]
