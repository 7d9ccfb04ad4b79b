"""``headrace serve`` as process 1 of a container: it reaps what it adopts, and passes signals on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import httpx
import pytest
from serve_helpers import until

from headrace_serve.operating.init_process import below_init

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def may_unshare():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


needs_unshare = pytest.mark.skipif(
    sys.platform != "linux" or not may_unshare(), reason="needs a namespace of processes"
)

ORPHANS = r"""
import os, subprocess, sys

import headrace


@headrace.register("Orphans")
def orphans(data):
    reading, writing = os.pipe()
    # The grandchild ends once its parent has ended; its number goes through the pipe.
    code = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    while os.getppid() != 1: pass\n"
        f"    os.write({writing}, str(os.getpid()).encode())\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=[writing], check=True)
    os.close(writing)
    with os.fdopen(reading) as found:
        return found.read()


@headrace.register("Exists")
def exists(data):
    return os.path.exists(f"/proc/{data.decode()}")
"""


@needs_unshare
@pytest.mark.parametrize("workers", [1, 2])
def test_process_1_reaps_the_children_that_it_adopts_and_ends_with_sigterm(tmp_path, workers):
    (tmp_path / "orphans.py").write_text(ORPHANS)
    for name in ("orphans", "exists"):
        text = f'import = ["orphans.py"]\nbackend = "{name.title()}"'
        (tmp_path / f"{name}.toml").write_text(text)
    serve = [sys.executable, "-m", "headrace", "serve", "orphans.toml", "exists.toml"]
    command = [*UNSHARE, *serve, "--port", "0", "--workers", str(workers)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        url = re.match(r"serving (\S+)", process.stderr.readline())[1]
        numbers = [httpx.post(f"{url}/run/orphans").json()["result"] for _ in range(3)]
        for number in numbers:
            until(lambda n=number: not httpx.post(f"{url}/run/exists", content=n).json()["result"])
        children = subprocess.run(
            ["ps", "--ppid", str(process.pid), "-o", "pid="],
            capture_output=True,
            text=True,
            check=True,
        )
        os.kill(int(children.stdout), 15)  # process 1 of the namespace
        assert process.wait(300) == 0
        assert "draining" in process.stderr.read()
    finally:
        process.kill()
        process.wait(300)
        process.stderr.close()


def test_another_process_than_1_serves_itself():
    assert below_init(os.getpid) == os.getpid()
