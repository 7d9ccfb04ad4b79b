"""The drawn pictures are what their script draws, and the one of batches shows what the rule gives."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import picture
import pytest


@pytest.mark.parametrize("name", picture.PICTURES)
def test_a_picture_is_what_its_script_draws(name):
    drawn = (picture.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == picture.PICTURES[name](), "run: python scripts/picture.py"
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_the_batches_it_shows_follow_the_rule():
    found = picture.batches()
    for batch in found:
        assert 1 <= len(batch.requests) <= picture.MAX
        assert all(at <= batch.begin_ms for _, at in batch.requests)
        others = [other for other in found if other is not batch]
        same = [other for other in others if other.instance == batch.instance]
        assert all(
            other.end_ms <= batch.begin_ms or batch.end_ms <= other.begin_ms for other in same
        )
        # No instance that is free lets a request wait.
        for _, at in batch.requests:
            busy = {o.instance for o in others if o.begin_ms <= at < o.end_ms}
            assert at == batch.begin_ms or len(busy) == picture.INSTANCES
    assert max(len(batch.requests) for batch in found) == picture.MAX


def test_every_request_is_drawn_as_a_dot_and_as_a_square():
    root = ET.fromstring(picture.batching())
    space = "{http://www.w3.org/2000/svg}"
    sent = sum(len(batch.requests) for batch in picture.batches())
    squares = [r for r in root.iter(f"{space}rect") if r.get("fill") in picture.COLORS]
    assert len(list(root.iter(f"{space}circle"))) == len(squares) == sent
