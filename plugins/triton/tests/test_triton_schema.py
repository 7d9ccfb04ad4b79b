"""The table of fields: what becomes of each here. That it is that of Triton: test_triton_pbtxt.py."""

from __future__ import annotations

import pytest

from headrace_triton.reading import read_model
from headrace_triton.schema import MESSAGES

MARKS = {"obeyed", "refused", "left out", "harmless"}


def reached(kind="ModelConfig"):
    """Yield the fields to which fields that are obeyed lead."""
    for name, field in MESSAGES[kind].items():
        yield f"{kind}.{name}", field
        if field.row.mark == "obeyed" and field.type in MESSAGES:
            yield from reached(field.type)


def test_each_field_has_a_mark_and_each_that_is_not_obeyed_a_reason():
    found = dict(reached())
    assert {field.row.mark for field in found.values()} == MARKS
    assert [
        name for name, field in found.items() if bool(field.row.why) is (field.row.mark == "obeyed")
    ] == []


def value_of(field):
    """Return a value that is not the default, as the text of a configuration has it."""
    if field.type in MESSAGES:
        return " {} "
    return {"text": ': "x"', "bool": ": true", "int": ": 1", "uint": ": 1"}.get(field.type, ": 1")


@pytest.mark.parametrize(
    "name", [name for name, one in MESSAGES["ModelConfig"].items() if one.row.mark != "obeyed"]
)
def test_a_field_meets_its_fate(repository, name):
    field = MESSAGES["ModelConfig"][name]
    value = ' { key: "a" value: "b" }' if field.mapped else value_of(field)
    repository.write("add", f'backend: "onnxruntime"\nmax_batch_size: 4\n{name}{value}\n')
    if field.row.mark == "refused":
        with pytest.raises(Exception, match=f"config.pbtxt:3:.*`{name}` has no counterpart here"):
            read_model(repository.folder / "add")
    else:
        (said,) = read_model(repository.folder / "add").warnings
        assert (said.line, f"`{name}` is left out: {field.row.why}") == (3, said.message)


def test_what_is_written_and_says_nothing_is_no_matter(repository):
    text = 'backend: "onnxruntime"\nresponse_cache { enable: false }\nruntime: ""\n'
    repository.write("add", text)
    assert read_model(repository.folder / "add").warnings == []
