"""What left and may still be typed: each answer names the cure that `docs/policies.md` has."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.names import LEFT

POLICIES = Path(__file__).resolve().parents[2] / "docs" / "policies.md"


@pytest.mark.parametrize("typed", [*LEFT])
def test_what_left_names_its_cure(typed):
    command, *rest = typed.split()
    if command in ("observe", "trt"):
        pytest.importorskip(f"headrace_{command}")
    done = CliRunner().invoke(app, [command, *(["Identity"] if "--graph" in rest else []), *rest])
    assert done.exit_code == 2
    assert "is gone. " in done.stderr
    words = " ".join(done.stderr.replace("│", " ").split())
    assert LEFT[typed] in words


@pytest.mark.parametrize("typed", [*LEFT])
def test_the_policies_have_its_cure_too(typed):
    assert f"`headrace {typed}` is gone" in " ".join(POLICIES.read_text(encoding="utf-8").split())
