"""``python -m headrace``, with and without the distribution that brings the command."""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from loading import python

import headrace

WITHOUT = "import sys; sys.modules['headrace_cli'] = None; import headrace.__main__ as m; m.main()"


def test_without_the_command_line_it_says_what_to_install():
    done = python("-c", WITHOUT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "headrace: the command line is a distribution of its own, which is not installed. "
        'Install it: pip install "headrace[cli]", or in a clone of Headrace: pip install ./cli\n'
    )


@pytest.mark.parametrize("module", ["headrace", "headrace_cli"])
def test_with_it_the_command_runs(module):
    pytest.importorskip("headrace_cli")
    done = python("-m", module, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("headrace ")


def test_python_that_drops_docstrings_runs_a_pipeline():
    code = (
        "import headrace; print(headrace.pipe({'backend': 'S[Identity]'})({'data': 1})['result'])"
    )
    done = python("-OO", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


WORDS = "import headrace; print(headrace.__file__, headrace.plugins.core().backends)"


def test_a_program_that_is_an_archive_has_all_words(tmp_path):
    package = Path(headrace.__file__).parent
    archive = tmp_path / "program.pyz"
    with ZipFile(archive, "w") as made:
        for file in (one for one in package.rglob("*") if one.suffix in (".py", ".json")):
            made.write(file, file.relative_to(package.parent))
    done = python("-c", WORDS, path=str(archive))
    module = archive / "headrace" / "__init__.py"
    assert done.stdout == f"{module} {headrace.plugins.core().backends}\n", done


def test_a_tree_of_compiled_files_alone_runs_a_pipeline(tmp_path):
    """As a frozen program, or a wheel without sources, has it: `compileall -b`, and every .py deleted."""
    tree = tmp_path / "headrace"
    shutil.copytree(
        Path(headrace.__file__).parent, tree, ignore=shutil.ignore_patterns("__pycache__")
    )
    assert compileall.compile_dir(tree, quiet=1, legacy=True)
    for source in tree.rglob("*.py"):
        source.unlink()
    code = (
        "import headrace\n"
        "assert headrace.__file__.endswith('__init__.pyc')\n"
        "line = {'a': {'backend': 'S[Identity,Call(math:sqrt)]', 'next': 'b'},\n"
        "        'b': {'backend': 'S[Identity,BackgroundThread[Identity]]'}}\n"
        "with headrace.pipe(line) as pipe:\n"
        "    print(pipe({'data': 9})['result'], pipe.submit({'data': 16}).result()['result'])\n"
        "try:\n"
        "    headrace.pipe({'backend': 'Identitty'})\n"
        "except headrace.errors.ConfigError as error:\n"
        "    print('Identity' in str(error))\n"
    )
    done = python("-c", code, path=str(tmp_path), cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("3.0 4.0\nTrue\n", "")
