"""What a notebook shows: graphs and tables as plain HTML, and text where nothing draws."""

from __future__ import annotations

import importlib.metadata
import json
import re
from xml.etree import ElementTree as ET

import headrace

CONFIG = {
    "first": {"backend": "Identity", "next": "second"},
    "second": {"backend": "Identity", "instance_num": 2},
}


def parsed(html: str) -> list[ET.Element]:
    """Read HTML that is XML too, as what a notebook shows must be, to be sure that it is whole."""
    return list(ET.fromstring(f"<all>{html}</all>").iter())


def rows(html: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(html) if row.tag == "tr"]


def test_a_pipeline_and_a_configuration_show_their_graph():
    with headrace.pipe(CONFIG) as pipe:
        shown = pipe._repr_html_()
        assert repr(pipe) in "".join(parsed(shown)[0].itertext())
    for html in (shown, headrace.PipelineConfig.load(CONFIG)._repr_html_()):
        (graph,) = ["".join(one.itertext()) for one in parsed(html) if one.tag == "pre"]
        assert graph.splitlines()[0] == "flowchart LR"
        assert 'n0["first<br/>Identity"]' in graph
        assert 'n1["second (2 instances)<br/>Identity"]' in graph
        assert graph.splitlines()[-1] == "  n0 --> n1"
        assert not re.search("script|https?://", html)


def test_without_the_command_they_show_their_text(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    with headrace.pipe(CONFIG) as pipe:
        shown = [one._repr_html_() for one in (pipe, pipe.config, pipe.stats())]
    assert shown == [None, None, None]  # with None a notebook shows the repr


def test_what_a_configuration_holds_is_text_and_no_html():
    config = headrace.PipelineConfig.load({"backend": 'S[(key="<b>")Identity]'})
    elements = parsed(config._repr_html_())
    assert {element.tag for element in elements} == {"all", "p", "code", "pre"}
    # Mermaid reads HTML in a label.
    assert "S[(key=&quot;&lt;b&gt;&quot;)Identity]" in "".join(elements[-1].itertext())


def test_statistics_are_the_dict_that_they_were_and_show_tables():
    with headrace.pipe(CONFIG) as pipe:
        for _ in range(3):
            pipe({"data": 1})
        stats = pipe.stats()
    assert isinstance(stats, dict)
    assert json.loads(json.dumps(stats)) == stats
    (heading, first, second, instances, *each) = rows(stats._repr_html_())
    assert dict(zip(heading, first, strict=False))["submitted"] == "3"
    assert (first[0], second[0]) == ("first", "second")
    assert instances[:2] == ["node", "instance"]
    assert [row[:2] for row in each] == [["first", "0"], ["second", "0"], ["second", "1"]]
    assert sum(int(row[3]) for row in each[1:]) == 3
