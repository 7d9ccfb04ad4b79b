"""What docs/when_it_fails.md says of a breakpoint in `forward`, and of memory that runs out."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from pages import Page
from processes import run_process

import headrace
from headrace.errors import DeadlineExceededError, NoMemoryError, RequestsFailed
from headrace_testing import virtual_time

PAGE = Page("docs/when_it_fails.md")


@pytest.mark.parametrize("backend", ["Stop", "Process[Stop]"])
@pytest.mark.parametrize(("typed", "status"), [("p len(data)\nc\n", 0), ("p len(data)\nq\n", 1)])
def test_pdb_shows_the_data_and_goes_on_or_fails_the_request(typed, status, backend, tmp_path):
    assert f"`{backend}`" in PAGE.text or backend == "Stop"
    config = PAGE.write(tmp_path).joinpath("stop.toml")
    config.write_text(config.read_text().replace('backend = "Stop"', f'backend = "{backend}"'))
    (tmp_path / "photo.jpg").write_bytes(b"x" * 71)
    (command,) = re.findall(r"`headrace (run stop\.toml .*?)`", PAGE.text)
    done = run_process(
        [sys.executable, "-m", "headrace", *command.split()], cwd=tmp_path, input=typed
    )
    assert "(Pdb) 71\n" in done.stdout
    assert done.returncode == status, done.stderr
    assert ("photo.jpg\t71" in done.stdout) == (status == 0)


def test_a_stopped_thread_leaves_other_instances_alone_and_a_deadline_ends_its_request(monkeypatch):
    stopped, go_on = threading.Event(), threading.Event()

    def stop_first():
        if not stopped.is_set():
            stopped.set()
            go_on.wait()

    monkeypatch.setattr(sys, "breakpointhook", stop_first)
    exec(PAGE.files["stop.py"], {})
    with virtual_time(), headrace.pipe({"backend": "Stop", "instance_num": 2}) as pipe:
        held = pipe.submit({"data": "held"}, timeout=60.0)
        stopped.wait()
        assert [pipe({"data": "x" * k})["result"] for k in range(3)] == [0, 1, 2]
        with pytest.raises(DeadlineExceededError):
            held.result()
        go_on.set()


def test_a_batch_without_memory_runs_again_in_parts_and_later_requests_go_on():
    """Of a backend with `rerun`. That of torch, which halves a batch, has tests of its own."""

    class Hungry(headrace.Backend):
        rerun = True

        def forward(self, batch):
            if len(batch) > 1 or batch[0]["data"] == "too large":
                raise RuntimeError("CUDA failure 2: out of memory")
            batch[0]["result"] = "fits"

    headrace.register("Hungry", Hungry)
    with headrace.pipe({"backend": "Hungry", "max": 4}) as pipe:
        asked = [{"data": data} for data in ("a", "too large", "b")]
        with pytest.raises(RequestsFailed) as caught:
            pipe(asked)
        one, lost, other = caught.value.errors
        assert (one, other, type(lost), lost.code) == (None, None, NoMemoryError, "memory")
        assert "out of memory" in str(lost.__cause__)
        assert pipe.ready
        assert pipe({"data": "c"})["result"] == "fits"
