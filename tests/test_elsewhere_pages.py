"""What headrace-process and headrace-remote say of themselves: READMEs, their pages, sections of docstrings."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
import headrace_process
import headrace_remote
from headrace import PipelineConfig
from headrace.errors import ConfigError
from headrace_cli.app import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGES = {
    "process": ROOT / "plugins" / "process" / "README.md",
    "remote": ROOT / "plugins" / "remote" / "README.md",
    "machines": ROOT / "docs" / "machines.md",
}


def blocks(language):
    """Return the blocks of code in a language, with the page and the place on it as their names.

    What needs a cluster of Ray is run by the tests of headrace-ray.
    """
    block_of = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [
        pytest.param(block, id=f"{name}-{place}")
        for name, page in PAGES.items()
        for place, block in enumerate(
            block_of.findall(page.read_text("utf-8").partition("\n## On a Ray cluster\n")[0])
        )
    ]


@pytest.mark.parametrize("program", blocks("python"))
def test_the_programs_run_and_print_what_they_say(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)


@pytest.mark.parametrize("file", blocks("toml"))
def test_the_configurations_are_valid(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DECODE_KEY", "a key")
    for name in ("ca.pem", "model.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "page.toml").write_text(file)
    assert PipelineConfig.load(tmp_path / "page.toml").to_dict()


@pytest.mark.parametrize("package", [headrace_process, headrace_remote])
def test_all_names_resolve_and_are_listed(package):
    assert sorted(package.__all__) == package.__all__ == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "nonsense")


@pytest.mark.parametrize("word", [headrace_process.Process, headrace_remote.Remote])
def test_the_docstring_has_all_sections(word):
    for section in ("Reads", "Writes", "Batch", "Raises", "Source"):
        assert f"\n{section}:\n" in inspect.cleandoc(word.__doc__)


# What is gone: Host and `headrace worker`.


def said_of_host(text):
    """Tell whether a text names both of what there is in place of Host."""
    plain = " ".join(text.split())
    both = ("RayActor on a Ray cluster (headrace-ray)", "(headrace-remote)")
    return all(
        one in plain for one in (*both, "Remote to any server of the Open Inference Protocol")
    )


def test_the_page_has_both_forms_of_what_host_did():
    text = PAGES["machines"].read_text(encoding="utf-8")
    part = text.partition("## From Host\n")[2].partition("\n## ")[0]
    forms = [tomllib.loads(one) for one in re.findall(r"```toml\n(.*?)```", part, re.DOTALL)]
    words = [re.split(r"\W", one["decode"]["backend"])[0] for one in forms]
    assert words == ["RayActor", "Remote"]


@pytest.mark.parametrize(
    "expression",
    ["Host[Identity]", "process:Host[Identity]", "S[Identity,Host(at=['gpu1:7000'])[Identity]]"],
)
def test_host_is_refused_with_what_there_is_in_its_place(expression, tmp_path):
    file = tmp_path / "page.toml"
    options = 'at = ["gpu1:7000"]\nsecret_file = "secret"\n'
    file.write_text(f'backend = "{expression}"\n{options}')
    with pytest.raises(ConfigError) as refused:
        PipelineConfig.load(file)
    (problem,) = refused.value.problems
    assert said_of_host(problem.message)
    assert problem.text[slice(*problem.span)].endswith("Host")
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code != 0
    assert said_of_host(done.output)


@pytest.mark.parametrize("name", ["Host", "process:Host"])
def test_commands_say_so_as_well(name):
    done = CliRunner().invoke(app, ["plugins", "info", name])
    assert done.exit_code != 0
    assert said_of_host(done.output)


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker"],
        ["worker", "--help"],
        ["worker", "--listen", "0.0.0.0:7000", "--secret-file", "secret"],
        ["process:worker"],
    ],
)
def test_the_command_worker_ends_with_2_and_what_there_is_in_its_place(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert said_of_host(done.output)


@pytest.mark.parametrize("name", ["Host", "Worker"])
def test_programs_that_import_them_are_told(name):
    program = f"from headrace_process import {name}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert said_of_host(done.stderr)


def test_a_backend_of_your_own_may_be_called_host(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import headrace\n@headrace.register('Host')\ndef host(data):\n    return data + 1\n"
    )
    with headrace.pipe({"import": [str(file)], "backend": "Host"}) as pipe:
        assert pipe({"data": 1})["result"] == 2
    with headrace.pipe({"define": {"Host": "Identity"}, "main": {"backend": "Host"}}) as pipe:
        assert pipe({"data": 1})["result"] == 1
