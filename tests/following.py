"""Documents that are followed: in order, files are written, commands run, and what they print is compared."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pages import HERE, Page, at_address, run_program, serving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

ELSEWHERE = {
    r"\./dev (demo|page|page --open|install|install serve)": "test_dev, test_followed_pages",
    r"\./dev (env|test|test all)|\. \.venv/bin/activate": "they run this test",
    r"\./dev docs": "test_site",
    r"(python -m )?pip install .*": "test_packaging, of our own",
    r"python \S+/prepare_torch.py|headrace run \S+/torch(vision)?.toml .*": "plugins/torch: test_torch_example",
    r"python examples/ocr/prepare.py": "the fixture ocr_made",
    r"headrace video camera:0 .*": "plugins/vision: test_vision_arguments",
    r"headrace serve hf://.*": "test_doors, with a hub of its own",
    r"headrace new backend Scale": "test_packaging",
    r"headrace conformance OnnxTensor": "test_conformance, with all of its distribution",
}
"""The patterns of commands that run where they are tested, in no environment of this one, and where that is."""
NOTHING: Mapping[str, str] = MappingProxyType({})
_VARIES = re.compile(r"(\.\.\.|(?<![\w.])-?\d+\.\d+(?:e-?\d+)?(?![\w.]))")
_SERVES = re.compile(r"headrace (serve|ui) (?!.* & )")
_NUMBER = r"(-?\d+\.\d+(?:e-?\d+)?)"


def runs_elsewhere(command: str) -> bool:
    """Tell whether a command of a document runs where it is tested."""
    return any(re.fullmatch(pattern, command) for pattern in ELSEWHERE)


def is_like(shown: str, printed: str) -> bool:
    """Tell whether this was printed as shown: ``...`` stands for anything, and floats differ by a hundredth at most."""
    parts = _VARIES.split(shown.strip())
    numbers = [float(part) for part in parts[1::2] if part != "..."]
    pattern = "".join(
        (".*?" if part == "..." else _NUMBER) if place % 2 else re.escape(part)
        for place, part in enumerate(parts)
    )
    found = re.fullmatch(pattern, printed.strip(), re.DOTALL)
    return found is not None and all(
        abs(float(text) - number) <= 0.01
        for text, number in zip(found.groups(), numbers, strict=True)
    )


def run_here(command: str) -> str:
    """Run a program of Python or a command of headrace in this process; return what it printed."""
    from typer.testing import CliRunner

    from headrace_cli.app import app

    line, _, into = command.partition(" > ")
    program, *words = shlex.split(line)
    if program == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(words[0], run_name="__main__")
        return printed.getvalue()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{command}\n{done.output}"
    if into:
        Path(into).write_text(done.stdout, encoding="utf-8")
    return done.stdout


class Needs(NamedTuple):
    """What a document needs to be followed, beside its own blocks."""

    folder: str = "tmp_path"
    """The fixture that gives the folder, or the folder and more `changes`."""
    changes: Mapping[str, str] = NOTHING
    """Patterns in files, commands and programs, and the text in their place."""
    left_out: str = ""
    """A pattern of commands that do not run here."""
    fails: str = ""
    """A pattern of commands that end with 1."""
    prints: Mapping[str, str] = NOTHING
    """By a piece of a command, a pattern of its output, in place of what the document shows."""
    writes: Sequence[str] = ()
    """Files that are there in the end, JSON with something in it."""
    environ: str = ""
    """The fixture that gives the variables of another environment."""
    programs: bool = False
    """Whether programs run in the folder, in their turn. All others run alone."""
    here: bool = False
    """Whether what can runs in this process, in its folder: nothing is started."""
    mark: str = ""
    """The word behind the language of blocks that are left out, as in ``console gpu``."""
    marks: Sequence[pytest.MarkDecorator] = ()


class _Bash:
    """A shell in which commands run one after another, as a reader types them."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None) -> None:
        self.folder = folder
        self._errors = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.process.stdin.write("set -o pipefail\n" if environ else f"set -o pipefail; {HERE}\n")

    def run(self, command: str) -> tuple[int, str, str]:
        """Run a command, and return its status, what it printed, and its errors."""
        self.process.stdin.write(
            f"{{ {command}\n}} < /dev/null 2> '{self._errors.name}'\n"
            "printf '\\n== %s %s ==\\n' $? \"$PWD\"\n"
        )
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if end := re.fullmatch(r"== (\d+) (.+) ==\n", line):
                self.folder = Path(end[2])
                return int(end[1]), printed[:-1], Path(self._errors.name).read_text("utf-8")
            printed += line
        raise AssertionError(f"it ended the shell: {command}\n{printed}")

    def close(self) -> None:
        """End it, with what it has started."""
        self.process.communicate("kill $(jobs -p) 2> /dev/null\n", timeout=300)
        self._errors.close()


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with other texts in place of patterns."""
    for pattern, other in changes.items():
        text = re.sub(pattern, other, text, flags=re.MULTILINE)
    return text


def follow(
    page: Page, folder: Path, needs: Needs | None = None, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Follow a document in a folder.

    What a command prints is compared with the lines below it, or with the block of ``text`` that comes next.

    Args:
        page: The document.
        folder: Where the shell begins.
        needs: What it needs beside its blocks.
        environ: The variables of an environment in which commands are found; else those here run.

    Returns:
        What each command and program printed, without those that serve until the next one.
    """
    needs = needs or Needs()
    printed: list[str] = []
    last = address = ""

    def compare(command: str, shown: str, *outputs: str) -> None:
        for pattern in (text for piece, text in needs.prints.items() if piece in command):
            assert any(re.search(pattern, one) for one in outputs), f"{command}\n{outputs}"
            return
        both = (outputs[0], "".join(outputs))
        same = not shown.strip() or any(is_like(shown, output) for output in both)
        assert same, f"{command}\n{both[1]}is not\n{shown}"

    with contextlib.ExitStack() as ends, contextlib.ExitStack() as server:
        bash = _Bash(folder, environ)
        ends.callback(bash.close)
        for block in page.all_blocks:
            if needs.mark and block.mark == needs.mark:
                continue
            if block.file:
                path = bash.folder / block.file.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(changed(block.text, needs.changes), encoding="utf-8")
            elif block.language == "python" and needs.programs:
                last = "the program"
                printed.append(run_program(changed(block.text, needs.changes), folder))
            elif block.language == "text" and printed:
                compare(last, block.text, printed[-1])
            for command, shown in block.commands:
                last = changed(command, needs.changes)
                if needs.left_out and re.search(needs.left_out, command):
                    continue
                if environ is None and runs_elsewhere(command):
                    continue
                if _SERVES.match(command):
                    server.close()
                    port = "" if "--port" in command else " --port 0"
                    address = server.enter_context(serving(last + port, folder))
                    continue
                if needs.here and last.startswith(("headrace ", "python ")):
                    output, error = run_here(last), ""
                else:
                    status, output, error = bash.run(at_address(last, address))
                    fails = bool(needs.fails and re.search(needs.fails, command))
                    assert status == fails, f"{last}\n{output[-3000:]}\n{error[-3000:]}"
                printed.append(output)
                compare(last, changed(shown, needs.changes), output, error)
    for name in needs.writes:
        text = (bash.folder / name).read_text("utf-8")
        assert text
        if name.endswith((".json", ".jsonl")):
            assert json.loads(text if name.endswith(".json") else text.partition("\n")[0])
    return printed


def variables(environment: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a shell that finds the programs of an environment first, and nothing of this one."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "HEADRACE_ENV", "PYTHON")
    kept = {name: value for name, value in environ.items() if name not in left_out}
    return kept | {"PATH": os.pathsep.join([str(environment), os.environ["PATH"]])}
