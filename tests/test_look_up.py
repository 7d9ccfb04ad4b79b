"""The pages to look things up are what the code says: keys, commands, codes, statistics, metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "look_up"


def test_the_pages_are_what_the_script_makes_of_the_code():
    for name in ("headrace_serve", "headrace_observe", "headrace_vision", "prometheus_client"):
        pytest.importorskip(name)
    script = [sys.executable, ROOT / "scripts" / "look_up.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def first_cells(page: str) -> set[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def test_every_key_of_a_node_that_the_schema_has_is_on_its_page():
    told = subprocess.run(
        [sys.executable, "-m", "headrace", "schema"], capture_output=True, text=True, check=True
    )
    node = json.loads(told.stdout)["$defs"]["node"]["properties"]
    shown = first_cells("keys.md")
    assert {"backend", "max", "queue_full", "next", "entrypoint", "extends"} <= shown
    assert shown - {*node} - {"extends", "import", "global", "define"} == set()


def test_commands_and_options_are_those_of_the_surface_that_is_kept():
    surface = json.loads((ROOT / "scripts" / "public_names.json").read_text(encoding="utf-8"))
    text = "".join(path.read_text("utf-8") for path in sorted(PAGES.glob("*commands.md")))
    for command, options in surface["commands"].items():
        inside = {name: taken for name, taken in options.items() if isinstance(taken, dict)}
        for name, taken in (
            {f"{command} {name}": taken for name, taken in inside.items()} or {command: options}
        ).items():
            (part,) = re.findall(
                rf"^###? headrace {name}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL
            )
            assert [one for one in taken if one.startswith("-") and one not in part] == []
