"""The image of `headrace new app`: built as its README says, on a small Debian, started as process 1, asked, and stopped."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from headrace_cli.app import app

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
TOOLS = ("buildah", "debootstrap", "unshare", "nsenter")
ASKS = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
"""
INDEX = ("index-url", "extra-index-url", "trusted-host", "cert", "proxy", "retries", "timeout")
"""Settings of pip that say how it comes to a package index from here."""


def run(*command: object, **options):
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def pip_mounts(folder: Path) -> list[str]:
    """Return options that show a build how pip is set up on this machine, and leave nothing of it in the image."""
    said = run(sys.executable, "-m", "pip", "config", "list").stdout
    found = dict(re.findall(r"^(?:global|user|site|:env:)\.([\w-]+)=(.*)$", said, re.MULTILINE))
    known = {name: ast.literal_eval(found[name]) for name in INDEX if name in found}
    text = "".join(f"{name} = {value}\n" for name, value in known.items())
    (folder / "pip.conf").write_text(f"[global]\n{text}", encoding="utf-8")
    mounts = {folder / "pip.conf": "/etc/pip.conf"}
    if "cert" in known:
        mounts[known["cert"]] = known["cert"]
    return [f"--volume={here}:{there}:ro" for here, there in mounts.items()]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder that goes, for images take a gigabyte."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (apt-get install buildah debootstrap)")
    if os.geteuid() != 0:
        pytest.skip("needs to be root, which debootstrap and namespaces ask for")
    if run("unshare", "--net", "--mount", "--pid", "--fork", "true").returncode != 0:
        pytest.skip("needs namespaces of networks, mounts and processes, which this system refuses")
    folder = tmp_path_factory.mktemp("image")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def buildah(work):
    """Return a function that runs buildah, with images of its own, and gives what it prints."""
    settings = f'[storage]\ndriver = "vfs"\ngraphroot = "{work}/images"\nrunroot = "{work}/run"\n'
    (work / "storage.conf").write_text(settings, encoding="utf-8")
    environ = {
        **os.environ,
        "PATH": PATH,
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_STORAGE_CONF": str(work / "storage.conf"),
    }

    def call(*command: object, **options) -> str:
        done = run("buildah", *command, env=environ, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return call


@pytest.fixture(scope="module")
def base(buildah, work) -> str:
    """The name of an image with nothing but Debian's Python and its module venv."""
    root = work / "debian"
    bootstrap = ("debootstrap", "--variant=minbase", "--include=python3-venv", "bookworm", root)
    done = run(*bootstrap, env={**os.environ, "PATH": PATH})
    if "Failed getting release file" in done.stdout + done.stderr:
        pytest.skip("needs a mirror of Debian, and none can be reached")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    buildah("commit", "--quiet", "--rm", container, "localhost/debian")
    shutil.rmtree(root)
    return "localhost/debian"


@pytest.fixture(scope="module")
def service(work, wheels) -> Path:
    """What `headrace new app` has made, with the wheels of this repository and a lock, as the README says."""
    made = CliRunner().invoke(app, ["new", "app", "word-count", "--dir", str(work)])
    assert made.exit_code == 0, made.stderr
    folder = work / "word-count"
    (folder / "wheels").mkdir()
    for wheel in wheels.values():
        shutil.copy(wheel, folder / "wheels")
    done = run("bash", "-c", command(folder, "uv"), cwd=folder, env={**os.environ, "PATH": PATH})
    assert done.returncode == 0, done.stderr
    return folder


def command(folder: Path, *begins: str) -> str:
    """Return the command of the README that begins so."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\$ ({' '.join(begins)} .*)$", readme, re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def image(buildah, base, service, work) -> tuple[Path, dict]:
    """The files of the image, and its configuration, as Docker has it."""
    options = shlex.split(command(service, "docker", "build"))[2:]
    how = ["--format=docker", f"--build-arg=BASE={base}", *pip_mounts(work)]
    buildah("build", *how, *options, cwd=service)
    told = json.loads(buildah("inspect", "--type=image", "word-count"))["Docker"]["config"]
    return Path(buildah("mount", buildah("from", "word-count"))), told


@pytest.fixture
def container(image, service):
    """The id of the process that the image starts: process 1, in a network of its own, as an engine does it."""
    root, told = image
    begin = f'ip link set lo up && mount -t proc proc {root}/proc && exec chroot --userspec={told["User"]} {root} env -C {told["WorkingDir"]} "$@"'
    alone = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
    process = subprocess.Popen(
        [*alone, "sh", "-c", begin, "sh", *told["Cmd"]],
        env=dict(one.split("=", 1) for one in told["Env"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = ""
        while "serving http" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        yield process, int(children.read_text())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_image_serves_is_healthy_and_ends_in_time(image, container, service):
    root, told = image
    process, served = container
    kind, *health = told["Healthcheck"]["Test"]
    environ = dict(one.split("=", 1) for one in told["Env"])
    enter = ("nsenter", f"--target={served}", "--net", "--mount", "--pid", "chroot", root)

    assert kind == "CMD"
    assert run(*enter, *health, env=environ).returncode == 0
    assert run("unshare", "--net", "chroot", root, *health, env=environ).returncode != 0
    users = re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{served}/status").read_text(), re.MULTILINE)
    assert users[1] == "65534"

    asked = shlex.split(command(service, "curl"))
    url = next(word for word in asked if word.startswith("localhost"))
    done = run(*enter, "python", "-c", ASKS, f"http://{url}", asked[-1], env=environ)
    assert f"\n{done.stdout}" in (service / "README.md").read_text(encoding="utf-8"), done.stderr

    grace_s = re.search(r"--stop-timeout (\d+)", command(service, "docker", "run"))[1]
    os.kill(served, signal.SIGTERM)
    assert process.wait(int(grace_s)) == 0


def test_the_image_holds_the_versions_of_the_lock(image, service):
    root, told = image
    environ = dict(one.split("=", 1) for one in told["Env"])
    listed = json.loads(run("chroot", root, "pip", "list", "--format=json", env=environ).stdout)
    lock = (service / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE))
    installed = {(canonicalize_name(one["name"]), one["version"]) for one in listed}
    assert {name for name, _ in installed - locked} == {"pip", "setuptools"}


def test_the_image_holds_nothing_of_how_pip_is_set_up_here(image):
    root, _ = image
    left = root / "etc" / "pip.conf"
    assert not left.exists() or left.read_bytes() == b""
