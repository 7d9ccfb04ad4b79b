"""Whatever a user can name is used in an example, a document, a benchmark or another distribution."""

from __future__ import annotations

import re

from unused import all_uses, uses

KEPT = {
    r"option (PadTensor|Tiles)\((pad|tile)_[hw]\)": "torchpipe's names, which its users write",
    r"option Tokenize\((lowercase|padding_token)\)": "written by the reader of folders of texts",
    r"option TritonTensors\(first_states\)": "written by headrace triton",
}
"""What has no use so far and stays, by a pattern of its name, and why."""


def test_what_can_be_named_is_used():
    unused = [name for name, where in all_uses().items() if not where]
    assert [one for one in unused if not any(re.fullmatch(kept, one) for kept in KEPT)] == []
    for kept in KEPT:
        assert any(re.fullmatch(kept, one) for one in unused), f"{kept} is used now: take it out"


def test_an_option_that_is_used_elsewhere_is_found_and_one_that_is_nowhere_is_not():
    assert "README.md" in uses("instance_num", "given", "core")
    assert uses("a_word_that_" + "nobody_writes", "words", "core") == []
