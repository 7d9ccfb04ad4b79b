"""No error shows the value of an environment variable that a configuration names: it may be a secret, and errors are logged."""

from __future__ import annotations

import pytest

import headrace

SECRET = "s3cr3t-Value"
WRONG = [
    'backend = "Identity"\nmax = "${TOKEN}"',
    'backend = "${TOKEN}"',
    'backend = "S[Identity,${TOKEN}]"',
    "backend = \"Call('${TOKEN}')\"",
    'backend = "Identity"\nextends = "${TOKEN}"',
    'backend = "Identity"\nextends = "folder/${TOKEN}.toml"',
    'backend = "Identity"\nbatch_policy = "${TOKEN}"',
    'backend = "Identity"\nnext = "${TOKEN}"',
    'backend = "Reflect[x]"\nx = "${TOKEN}"',
    'backend = "Identity"\nimport = ["${TOKEN}.py"]',
]


@pytest.mark.parametrize("text", WRONG)
def test_an_error_shows_the_placeholder_in_its_place(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(headrace.errors.ConfigError) as caught:
        headrace.PipelineConfig.load(file)
    (problem,) = caught.value.problems
    told = f"{caught.value}{problem.text}{problem.hint}{problem.message}"
    assert SECRET not in told
    assert "${TOKEN}" in told
    line = text.splitlines()[problem.line - 1]
    if "extends" not in text and "import" not in text:  # the caret is below the placeholder
        marked = problem.text[slice(*problem.span)]
        assert "${TOKEN}" in marked
        assert line[problem.column - 1 :].lstrip("\"'").startswith(marked.strip("\"'"))
