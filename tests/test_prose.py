"""How much there is to read, and how it reads. A bound moves only in a commit that says why."""

from __future__ import annotations

import prose
import pytest

WORDS = 63_075
"""The most words of Markdown in git."""


def read(paths):
    found = prose.Prose()
    for path in paths:
        found.add(path.read_text(encoding="utf-8"))
    return found


def test_there_is_no_more_to_read():
    words = sum(len(one.read_text(encoding="utf-8").split()) for one in prose.documents())
    assert words <= WORDS


@pytest.mark.parametrize("what", ["documents", "docstrings"])
def test_sentences_are_plain(what):
    found = prose.Prose()
    texts = prose.docstrings()
    if what == "documents":
        texts = [one.read_text(encoding="utf-8") for one in prose.documents()]
    for text in texts:
        found.add(text)
    relatives, _, semicolons, length = found.figures()
    assert relatives <= prose.RELATIVES_AT_MOST
    assert semicolons <= prose.SEMICOLONS_AT_MOST
    assert length <= prose.LENGTH_AT_MOST


def test_guides_speak_to_the_reader():
    for path in prose.guides():
        text = path.read_text(encoding="utf-8")
        assert prose.Prose().add(text).figures()[1] >= prose.YOU_AT_LEAST, path.name


def test_code_tables_and_addresses_are_no_sentences():
    text = """# A heading that is long; and which counts not

Write [what you see](docs/that.md), then `which` runs. You stop; it ends.

| what | which |
|---|---|
| that; | whose |

```python
that = which; what
```

- What stands in a list is a sentence of its own.
"""
    found = prose.Prose().add(text)
    assert sorted(found.lengths) == [4, 7, 11]
    assert (found.relatives, found.you, found.semicolons) == (2, 2, 1)
