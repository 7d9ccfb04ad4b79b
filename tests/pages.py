"""Documents as tests read them: the blocks, files, commands and tables of a page, and how each of them is run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from processes import run_process, run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^( *)```(\w+)(?: (\w+))?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_PRINTED = re.compile(r"^ *print\(.*\)(?:  # (.*)|((?:\n *# .*)+))$", re.MULTILINE)
HERE = (
    f'python() {{ "{sys.executable}" "$@"; }}; headrace() {{ python -m headrace "$@"; }}; '
    'pytest() { python -m pytest "$@"; }; '
    'polygraphy() { python -c "import polygraphy.tools as p, sys; sys.exit(p.main())" "$@"; }; '
)
"""What the commands mean, also where the packages are not installed but on PYTHONPATH."""


class Block(NamedTuple):
    """A block of a page: its language, the word beside it, as in ``console gpu``, and its text."""

    language: str
    mark: str
    text: str

    @property
    def file(self) -> str:
        """The path in the comment that is the first line; empty where there is none."""
        named = re.match(r"# (\S*\w\.\w+)\n", self.text)
        return named[1] if named else ""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command behind a ``$`` of a console, and the lines below it, which it prints."""
        if self.language != "console":
            return []
        return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", self.text, re.MULTILINE)


class Page:
    """A document, or what stands in it below a heading."""

    def __init__(self, path: str | Path, title: str = "", text: str = "") -> None:
        self.path = ROOT / path
        self.text = text or self.path.read_text(encoding="utf-8")
        if title:
            heading = re.search(rf"^(#+) {re.escape(title)}\n", self.text, re.MULTILINE)
            next_heading = re.compile(rf"^#{{2,{len(heading[1])}}} ", re.MULTILINE)
            self.text = next_heading.split(self.text[heading.end() :], maxsplit=1)[0]

    @cached_property
    def all_blocks(self) -> list[Block]:
        """Every block, in order."""
        return [
            Block(language, mark, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
            for indent, language, mark, text in _BLOCK.findall(self.text)
        ]

    def blocks(self, language: str, holding: str = "") -> list[str]:
        """Return the texts of the blocks in a language that hold this."""
        return [
            block.text
            for block in self.all_blocks
            if block.language == language and holding in block.text
        ]

    def block(self, language: str, holding: str = "") -> str:
        """Return the only block in a language that holds this."""
        (text,) = self.blocks(language, holding)
        return text

    @property
    def programs(self) -> list[str]:
        """The programs of Python that are no files."""
        return [one.text for one in self.all_blocks if one.language == "python" and not one.file]

    @property
    def files(self) -> dict[str, str]:
        """The text of each block that is a file, by its path."""
        return {block.file: block.text for block in self.all_blocks if block.file}

    def write(self, folder: Path, *names: str) -> Path:
        """Write the files of the page, or those of these names, into a folder, and return that."""
        for name in names or self.files:
            path = folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.files[name], encoding="utf-8")
        return folder

    @property
    def commands(self) -> list[str]:
        """The commands of all consoles, in order."""
        return [command for block in self.all_blocks for command, _ in block.commands]

    def command(self, holding: str) -> str:
        """Return the only command that holds this."""
        (command,) = (command for command in self.commands if holding in command)
        return command

    def rows(self) -> list[list[str]]:
        """Return the cells of each row of the first table, without its head."""
        table = re.search(r"^\|[-|: ]+\|\n((?:\|.*(?:\n|$))+)", self.text, re.MULTILINE)[1]
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def copy_examples(root: Path, *names: str) -> Path:
    """Copy examples, without what they have made, to their places in a folder, and return that."""
    left_out = shutil.ignore_patterns("made", "__pycache__")  # where others may write meanwhile
    for name in names:
        shutil.copytree(ROOT / "examples" / name, root / "examples" / name, ignore=left_out)
    return root


def check_printed(program: str, printed: str) -> None:
    """Compare with what stands behind or below each ``print`` as a comment, where any has one."""
    said = [
        line.strip().removeprefix("# ")
        for behind, below in _PRINTED.findall(program)
        for line in (below.strip() or behind).splitlines()
    ]
    if said or "print(" not in program:
        assert printed.splitlines() == said


def run_program(program: str, folder: Path) -> str:
    """Run a program as a process of its own, with every warning an error; return and compare what it prints."""
    done = run_python(program, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    check_printed(program, done.stdout)
    return done.stdout


def shell(
    command: str, folder: Path, limit_s: float = 400, here: str = HERE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and give what it printed.

    Raises:
        AssertionError: It ran for longer than its limit; with what it had printed until then, and
            where each of its threads was.
    """
    with subprocess.Popen(
        ["bash", "-c", here + command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **environ},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            for end in (signal.SIGABRT, signal.SIGKILL):  # the first lets Python print its stacks
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, end)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=300)
                    break
            raise AssertionError(
                f"more than {limit_s:g} s: {command}\n{out[-3000:]}\n{err[-6000:]}"
            ) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run(command: str, folder: Path, **environ: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = shell(command, folder, **environ)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def succeed(*command: object, **options: Any) -> str:
    """Run a command that must succeed, and give what it prints."""
    done = run_process(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def serving(command: str, folder: Path = ROOT) -> Iterator[str]:
    """Run ``headrace serve`` of a page at ports of its own until the block ends, and give its address."""
    words = shlex.split(re.sub(r"\b800[01]\b", "0", command))
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = process.stdout.readline()
        try:
            address = re.match(r"serving (https?://[\w.]+:\d+)", said)
            assert address, f"{command}\n{said}{process.stdout.read()}"
            yield address[1]
        finally:
            process.terminate()
            rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said + rest


def at_address(command: str, address: str) -> str:
    """Return a command that asks the server of a page, with its address here, if it has one."""
    for there in ("http://localhost:8000", "localhost:8000") if address else ():
        command = command.replace(there, address)
        address = address.removeprefix("http://")
    return command


def asked(command: str, address: str, folder: Path = ROOT) -> str:
    """Run a command that asks the server of a page, at its address here, and return what it printed."""
    return run(at_address(command, address), folder)
