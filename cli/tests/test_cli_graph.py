"""``headrace explain --graph``: the same nodes and edges in every format."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_cli.graph import FORMATS

CONFIG = """
[read]
backend = "Identity"
next = "find,lines"

[find]
backend = "Identity"
next = "lines"
instance_num = 2

[lines]
backend = "S[Identity,Identity]"
map = "read[result:data],find[result:boxes]"
each = "boxes:box"
"""


@pytest.fixture
def found(tmp_path):
    path = tmp_path / "page.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return headrace.explain(path)


def test_mermaid_has_every_node_and_edge(found):
    text = FORMATS["mermaid"](found)
    assert text.splitlines()[0] == "flowchart LR"
    edges = re.findall(r'n\d (?:-- "(.*)" )?--> n\d', text)
    assert edges == ["", "result:data", "result:boxes"]
    assert "find (2 instances)" in text
    assert "lines (each boxes:box)" in text


def test_mermaid_quotes_what_keys_contain(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text(
        CONFIG.replace('"read[result:data],', "'read[a\"<b&#lt;:data],").replace(
            'find[result:boxes]"', "find[result:boxes]'"
        ),
        encoding="utf-8",
    )
    text = FORMATS["mermaid"](headrace.explain(path))
    assert '-- "a&quot;&lt;b&amp;#35;lt;:data" -->' in text


def test_dot_quotes_names_and_labels(found):
    text = FORMATS["dot"](found)
    assert '"read" -> "find"' in text
    assert '"find" -> "lines" [label="result:boxes"]' in text
    assert text.count("->") == 3


def test_a_picture_may_stand_in_json(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('backend = "Identity"\n', encoding="utf-8")
    command = ["explain", str(path), "--graph", "dot"]
    plain = CliRunner().invoke(app, command).stdout
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found == {"format": "dot", "graph": plain.rstrip("\n")}


def test_an_expression_is_drawn_as_the_node_it_would_be(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('backend = "S[Identity,Identity]"\n', encoding="utf-8")
    for form in FORMATS:
        drawn = [
            CliRunner().invoke(app, ["explain", what, "--graph", form])
            for what in ("S[Identity,Identity]", str(path))
        ]
        assert [done.exit_code for done in drawn] == [0, 0]
        assert drawn[0].stdout == drawn[1].stdout
        assert "main" in drawn[0].stdout


@pytest.fixture
def reposting(tmp_path):
    config = {
        "check": {"backend": "S[Identity,(or)Repost[repair]]", "next": "done"},
        "repair": {"backend": "S[Identity,Repost[check]]"},
        "done": {"backend": "Identity"},
    }
    return headrace.explain(config)


def test_where_a_walk_may_go_on_is_a_dashed_arrow(reposting):
    text = FORMATS["mermaid"](reposting)
    assert re.findall(r'(n\d) -. "Repost" .-> (n\d)', text) == [("n0", "n1"), ("n1", "n0")]
    text = FORMATS["dot"](reposting)
    assert '"check" -> "repair" [label="Repost", style=dashed];' in text


def test_a_node_that_an_expression_calls_is_a_dashed_arrow_once():
    config = {
        "lines": {
            "backend": "S[Forward[node.words],(key=k)S[Forward[node.words],Identity]]",
            "next": "done",
        },
        "words": {"backend": "Identity"},
        "done": {"backend": "Forward[node.words]"},
    }
    text = FORMATS["dot"](headrace.explain(config))
    called = re.findall(r'"(\w+)" -> "(\w+)" \[label="Forward", style=dashed\]', text)
    assert called == [("lines", "words"), ("done", "words")]


def test_the_tree_says_where_a_walk_may_go_on(tmp_path):
    path = tmp_path / "page.toml"
    text = '[a]\nbackend = "S[Identity,Repost[b]]"\n[b]\nbackend = "Identity"\n'
    path.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["explain", str(path)])
    assert done.exit_code == 0
    assert "Repost" in done.stdout
    assert "goes on at node 'b'" in done.stdout
