"""The command ``./dev``, in a copy of the repository: what it makes, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import urllib.request
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import distributions
import made_pages
import pytest
from packaging.requirements import Requirement
from processes import run_process

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("HEADRACE_", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PYTHON", "VIRTUAL_ENV")

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"
)


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    """The variables of a shell of a user who has set nothing, with a home that is empty."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return {**kept, "HOME": str(home)}


def run(command: object, *args: object, folder: Path, environ: dict[str, str]):
    """Run a command as a user does who stands in a folder."""
    return run_process([str(command), *args], cwd=folder, env=environ)


def everything(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


# What it refuses.


@pytest.mark.parametrize("command", ["demo", "page", "install", "env", "wheels", "test", "docs"])
def test_a_folder_that_dev_has_not_made_is_refused_and_stays_as_it_is(
    command, checkout, environ, tmp_path
):
    theirs = tmp_path / "theirs"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work", encoding="utf-8")
    before = everything(theirs)
    name = "HEADRACE_DOCS_ENV" if command == "docs" else "HEADRACE_ENV"
    done = run(checkout / "dev", command, folder=tmp_path, environ={**environ, name: str(theirs)})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "dev: 'theirs' is there, and ./dev has not made it; name a folder that is empty or does not exist yet: "
        f"{name}=FOLDER ./dev"
    )
    assert everything(theirs) == before


def test_clean_leaves_a_folder_that_dev_has_not_made(checkout, environ, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work", encoding="utf-8")
    named = {**environ, "HEADRACE_ENV": "theirs"}  # relative to where the user stands
    done = run(checkout / "dev", "clean", folder=tmp_path, environ=named)
    assert done.returncode == 0
    assert f"{theirs} stays: ./dev has not made it" in done.stdout
    assert (theirs / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_an_environment_of_somebody_else_is_refused_and_clean_removes_it(checkout, environ):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    done = run("./dev", "wheels", folder=checkout, environ=environ)
    assert done.returncode == 2
    assert "'.venv' is there, and ./dev has not made it; remove it: ./dev clean" in done.stderr
    assert run("./dev", "clean", folder=checkout, environ=environ).returncode == 0
    assert not (checkout / ".venv").exists()


def test_clean_removes_the_pages_that_are_made_and_no_others(checkout, environ):
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8")
    names = re.findall(r"^/(docs/.*[^/\n])(/?)$", ignored, re.MULTILINE)
    made = [
        f"{name.replace('*', 'x')}/x.md" if inside else name.replace("*", "x")
        for name, inside in names
    ]
    assert len(made) > 10
    kept = ["docs/start.md", "docs/gallery/page.txt", "docs/words_backends.py"]
    for name in [*made, *kept]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    assert run("./dev", "clean", folder=checkout, environ=environ).returncode == 0
    assert [
        name for name in made if (checkout / name).exists() or not made_pages.is_made(ROOT / name)
    ] == []
    assert [
        name for name in kept if not (checkout / name).exists() or made_pages.is_made(ROOT / name)
    ] == []


def test_a_python_that_is_too_old_is_named_and_no_other_is_taken(checkout, environ, tmp_path):
    old = tmp_path / "old-python"
    old.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c '
        "'import sys; sys.version_info = (3, 9, 18); exec(sys.argv[1])' \"$2\"\n"
    )
    old.chmod(0o755)
    done = run("./dev", "wheels", folder=checkout, environ={**environ, "PYTHON": str(old)})
    assert done.returncode == 2
    assert (
        done.stderr
        == f"dev: PYTHON names '{old}', which is Python 3.9; Headrace needs 3.10 or newer\n"
    )
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there_is_named_and_no_other_is_taken(checkout, environ):
    done = run("./dev", "demo", folder=checkout, environ={**environ, "PYTHON": "python3.999"})
    assert done.returncode == 2
    assert "PYTHON names 'python3.999', which does not start" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_unknown_extra_is_told_which_there_are(checkout, environ):
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text("utf-8"))["project"]
    done = run("./dev", "install", "cli", "vison", folder=checkout, environ=environ)
    assert done.returncode == 2
    extras = " ".join(project["optional-dependencies"])
    assert done.stderr == f"dev: unknown extra 'vison'; there are: {extras}\n"
    assert not (checkout / ".venv").exists()


def test_a_picture_that_is_not_there_is_told_before_anything_is_made(checkout, environ, tmp_path):
    done = run(checkout / "dev", "demo", "holiday.jpg", folder=tmp_path, environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"dev: there is no file 'holiday.jpg' in {tmp_path}\n"
    assert not (checkout / ".venv").exists()


# What it makes.


def test_pip_reads_the_index_of_the_wheels(wheels, tmp_path):
    folder = wheels["headrace"].parent
    index = f"{folder.as_uri()}/simple/"
    names = re.findall(r'href="(.+?)/"', (folder / "simple" / "index.html").read_text("utf-8"))
    assert sorted(name.replace("-", "_") for name in names) == sorted(wheels)
    pip = [sys.executable, "-m", "pip", "--isolated"]
    download = [*pip, "download", "--no-deps", "--index-url", index, "--dest", tmp_path, *names]
    subprocess.run(download, check=True, capture_output=True)
    fetched = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert fetched == {wheel.name: wheel.read_bytes() for wheel in wheels.values()}


def test_the_extra_vision_brings_one_opencv():
    """Two of them overwrite each other's files. What others require is looked up as it is installed here."""
    ours = {table["name"]: table for table in map(distributions.project, distributions.folders())}
    seen, waiting = set(), [("headrace", "vision")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name in ours:
            extras = ours[name].get("optional-dependencies", {})
            required = [*ours[name]["dependencies"], *extras.get(extra, ())]
        else:
            required = distribution(name).requires or []
        for wanted in map(Requirement, required):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                waiting += [(wanted.name.lower(), one) for one in ("", *wanted.extras)]
    names = {name for name, _ in seen}
    assert {"headrace-cli", "headrace-cv", "headrace-ort", "headrace-vision"} <= names
    assert {name for name in names if "opencv" in name} == {"opencv-python-headless"}
    # `./dev install vision` adds the library of Track without what it requires: the rest of that is there.
    wanted = map(Requirement, distribution("trackers").requires or [])
    tracker = {one.name.lower() for one in wanted if one.marker is None}
    assert tracker - names == {"opencv-python"}
    text = (ROOT / "dev").read_text(encoding="utf-8")
    (line,) = re.findall(r'pip install --no-deps "(trackers.*)"', text)
    assert line == ours["headrace-vision"]["optional-dependencies"]["track"][0]


@pytest.fixture
def settled(environ, pip_environ, tmp_path) -> dict[str, str]:
    """A user whose pip takes what others made from a folder, by a setting of his own, and asks no index."""
    packed = pip_environ["PIP_FIND_LINKS"].split()[1]
    (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nno-index = true\nfind-links = {packed}\n", encoding="utf-8"
    )
    return environ


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a file of settings", "a variable of the shell"])
def test_what_was_installed_works_in_a_new_shell_and_follows_the_sources(
    place, checkout, settled, pip_environ, tmp_path
):
    if place == "a variable of the shell":
        (tmp_path / "home" / ".config" / "pip" / "pip.conf").unlink()
        packed = pip_environ["PIP_FIND_LINKS"].split()[1]
        settled = {**settled, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": packed}
    here = tmp_path / "projects"
    here.mkdir()
    named = {**settled, "HEADRACE_ENV": "mine"}
    done = run(checkout / "dev", "install", folder=here, environ=named)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "\n  . mine/bin/activate\n" in done.stdout

    def shell(lines: str) -> str:
        found = run("bash", "-ec", f". mine/bin/activate\n{lines}", folder=here, environ=settled)
        assert found.returncode == 0, found.stderr
        assert "WARNING" not in found.stderr
        return found.stdout

    listed = json.loads(shell("headrace plugins list --json"))
    assert {"headrace-cv", "headrace-ort"} <= {row["distribution"] for row in listed["plugins"]}
    # Another distribution of the clone, without a word on where it is.
    shell("pip install --quiet headrace-flow")
    assert json.loads(shell("headrace plugins info headrace-flow --json"))
    # The same version with other sources.
    source = checkout / "plugins" / "cv" / "src" / "headrace_cv" / "__init__.py"
    source.write_text(source.read_text("utf-8") + "\nCHANGED = 'since then'\n", encoding="utf-8")
    again = run(checkout / "dev", "install", folder=here, environ=named)
    assert again.returncode == 0, again.stderr
    assert shell("python -c 'import headrace_cv; print(headrace_cv.CHANGED)'") == "since then\n"


# Ctrl-C.


def interrupt_when(ready, command: list[object], folder: Path, environ: dict[str, str]):
    """Press Ctrl-C in the terminal of a command once ``ready`` returns; give its status and what it said."""
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a terminal sends the signal to a group of processes
    ) as process:
        try:
            ready(process)
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=300)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


@pytest.fixture
def silent_index() -> Iterator[tuple[str, threading.Event]]:
    """The address of a package index that never answers, and what tells that somebody asks it."""
    asked = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        kept = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])
                    asked.set()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple/", asked
        listener.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


@pytest.mark.slow
def test_ctrl_c_while_pip_installs_ends_the_command_and_the_environment_is_made_anew(
    checkout, settled, silent_index
):
    index, asked = silent_index
    hanging = {**settled, "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*"}
    status, said = interrupt_when(lambda _: asked.wait(), ["./dev", "wheels"], checkout, hanging)
    assert status == 130, said
    assert "Traceback" not in said
    (checkout / ".venv" / "half of a package").touch()
    done = run("./dev", "wheels", folder=checkout, environ=settled)
    assert done.returncode == 0, done.stderr
    assert "making the environment .venv anew, for it was left unfinished" in done.stderr
    assert not (checkout / ".venv" / "half of a package").exists()
    assert len([*(checkout / "dist").glob("*.whl")]) == len(
        [*(checkout / "dist" / "simple").glob("*/")]
    )
    again = run("./dev", "wheels", folder=checkout, environ=settled)
    assert "making the environment" not in again.stderr


@pytest.mark.slow
def test_ctrl_c_while_the_environment_is_made_leaves_one_that_is_made_anew(
    checkout, settled, tmp_path
):
    """A Python whose venv has no pip yet, and takes its time: what it says comes through a pipe."""
    slow, pipe = tmp_path / "slow-python", tmp_path / "pipe"
    os.mkfifo(pipe)
    slow.write_text(
        f"""#!/bin/sh
case "$*" in
  *_base_executable*) echo "$0" ;;
  "-m venv "*) "{sys.executable}" -m venv --without-pip "$3"; echo made >"{pipe}"; exec tail -f /dev/null ;;
  *) exec "{sys.executable}" "$@" ;;
esac
"""
    )
    slow.chmod(0o755)
    status, said = interrupt_when(
        lambda _: pipe.read_text("utf-8"),
        ["./dev", "wheels"],
        checkout,
        {**settled, "PYTHON": str(slow)},
    )
    assert status == 130, said
    assert (checkout / ".venv" / "bin" / "python").exists()
    done = run("./dev", "wheels", folder=checkout, environ=settled)
    assert done.returncode == 0, done.stderr
    pip = [checkout / ".venv" / "bin" / "python", "-m", "pip", "--version"]
    assert subprocess.run(pip, check=False, capture_output=True).returncode == 0


# The example, in an environment that has all that it needs.


@pytest.fixture
def ready(checkout, environ) -> dict[str, str]:
    """An environment of ``./dev`` that sees what is installed here, so that nothing is fetched."""
    folder = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (folder / ".headrace-environment").write_text(str(folder), encoding="utf-8")
    where = {"base": str(folder), "platbase": str(folder)}
    site = Path(
        sysconfig.get_path("purelib", "venv" if sys.version_info >= (3, 11) else None, where)
    )
    (site / "here.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8"
    )
    return {**environ, "PIP_NO_INDEX": "1"}


@pytest.mark.slow
def test_the_demo_reads_the_pictures_and_says_how_to_see_it_live(ready, checkout):
    done = run("./dev", "demo", folder=checkout, environ=ready)
    assert done.returncode == 0, done.stderr
    texts = dict(line.split("\t")[:2] for line in done.stdout.splitlines())
    assert texts["examples/ocr/made/lines/default-10.png"] == "Yes"
    assert "requests per second" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(": ./dev page")


@pytest.mark.slow
def test_the_demo_reads_pictures_from_where_the_user_stands(ready, checkout, ocr_made, tmp_path):
    here = tmp_path / "my photos"
    here.mkdir()
    shutil.copy(ocr_made / "pages" / "label.png", here / "a label.png")
    (here / "none.jpg").write_bytes(b"no picture")
    done = run(checkout / "dev", "demo", "a label.png", "none.jpg", folder=here, environ=ready)
    assert done.returncode == 1
    assert done.stdout == "a label.png\n  FRAGILE\n\n"
    assert "none.jpg: error: input: " in done.stderr


@pytest.mark.slow
def test_a_reader_of_the_demo_that_leaves_early_makes_no_noise(ready, checkout):
    first = 'set -o pipefail; ./dev demo | head -n 1; echo "${PIPESTATUS[0]}"'
    done = run("bash", "-c", first, folder=checkout, environ=ready)
    line, status = done.stdout.splitlines()
    assert line.startswith("examples/ocr/made/lines/")
    assert status == "141"
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.slow
def test_the_page_opens_in_the_browser_of_the_user_and_ends_at_ctrl_c(ready, checkout, tmp_path):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\necho "$1" >"{opened}"\n')
    browser.chmod(0o755)
    pages = []

    def look(process) -> None:
        for line in process.stdout:
            if line.startswith("live page at "):
                break
        else:
            pytest.fail("it ended before there was a page")
        address = opened.read_text("utf-8").strip()
        with urllib.request.urlopen(address) as page:
            pages.append((address, page.read().decode()))

    status, said = interrupt_when(
        look,
        ["./dev", "page", "--port", "0", "--open"],
        checkout,
        {**ready, "BROWSER": f"{browser} %s"},
    )
    assert status == 130, said
    ((address, page),) = pages
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ui", address)
    assert "<html" in page
    assert "draining\n" in said
    assert "Traceback" not in said, said


# It is said what takes long, and where each thing goes.


def test_the_usage_names_each_command(checkout, environ):
    source = (checkout / "dev").read_text("utf-8").rpartition("\ncase ")[2]
    commands = re.findall(r"^  ([a-z]+)\)", source, re.MULTILINE)
    said = run("./dev", folder=checkout, environ=environ).stdout
    assert "install" in commands
    assert [one for one in commands if not re.search(rf"^  {one}\b", said, re.MULTILINE)] == []
