"""The pages to look things up have all that there is: keys, commands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    for name in (
        *("headrace_serve", "headrace_observe", "headrace_vision", "headrace_triton"),
        "prometheus_client",
    ):
        pytest.importorskip(name)
    import look_up

    return {path.name: text for path, text in look_up.pages().items()}


def test_every_key_of_a_node_that_the_schema_has_is_on_its_page(texts):
    told = run_process([sys.executable, "-m", "headrace", "schema"], check=True)
    node = json.loads(told.stdout)["$defs"]["node"]["properties"]
    shown = set(re.findall(r"^\| `([^`]+)` \|", texts["keys.md"], re.MULTILINE))
    assert {"backend", "max", "queue_full", "next", "extends"} <= shown
    assert shown - {*node} - {"extends", "ignore", "import", "global"} == set()


def test_every_field_of_tritons_configurations_is_on_its_page(texts):
    messages = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    shown = texts["triton.md"].partition("## ModelConfig\n")[2].partition("\n## ")[0]
    fates = dict(re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", shown, re.MULTILINE))
    assert {*fates} == {*messages.ModelConfig.DESCRIPTOR.fields_by_name}
    assert (fates["input"], fates["runtime"]) == ("obeyed", "refused")


def test_commands_and_options_are_those_of_the_surface_that_is_kept(texts):
    surface = json.loads((ROOT / "scripts" / "public_names.json").read_text(encoding="utf-8"))
    text = "".join(texts[name] for name in sorted(texts) if name.endswith("commands.md"))
    for command, options in surface["commands"].items():
        inside = {name: taken for name, taken in options.items() if isinstance(taken, dict)}
        for name, taken in (
            {f"{command} {name}": taken for name, taken in inside.items()} or {command: options}
        ).items():
            (part,) = re.findall(
                rf"^###? headrace {name}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL
            )
            assert [one for one in taken if one.startswith("-") and one not in part] == []


def test_every_file_key_and_value_of_a_folder_is_on_its_page(texts):
    from headrace_text import table

    page = texts["folders_of_texts.md"]
    names = {*table.FILES, *table.MODULES, *table.TOKENIZERS}
    names |= {key for rows in table.TABLE.values() for key in rows} - {"*"}
    assert {name for name in names if f"`{name}`" not in page} == set()
    rows = [
        row for part in (table.FILES, table.MODULES, *table.TABLE.values()) for row in part.values()
    ]
    assert [row for row in rows if row.why not in page] == []
