"""What pydantic finds in a table, in the words of a file."""

from __future__ import annotations

from typing import Literal

import pydantic
import pytest

from headrace_formats.mistakes import choices_of, text_of


class _Inner(pydantic.BaseModel):
    at_least: int = pydantic.Field(1, ge=1)


class _Table(pydantic.BaseModel):
    name: str
    is_open: bool = False
    mode: Literal["fast", "exact"] = "fast"
    sizes: tuple[int, ...] = ()
    labels: list[str] = []
    colors: set[str] = set()
    options: dict[str, int] = {}
    inner: _Inner = _Inner()

    @pydantic.field_validator("name")
    @classmethod
    def _check(cls, name):
        if name == "x":
            raise ValueError("x is no name")
        return name


def mistake_of(table):
    """The one mistake of a table."""
    with pytest.raises(pydantic.ValidationError) as caught:
        _Table.model_validate({"name": "a", **table}, strict=True)
    (mistake,) = caught.value.errors()
    return mistake


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"name": 3}, "Input should be a text"),
        ({"name": "x"}, "x is no name"),
        ({"is_open": "yes"}, "Input should be true or false"),
        ({"sizes": 3}, "Input should be a list"),
        ({"labels": "a"}, "Input should be a list"),
        ({"colors": "red"}, "Input should be a list"),
        ({"options": []}, "Input should be a table"),
        ({"inner": 3}, "Input should be a table"),
        ({"inner": {"at_least": 0}}, "Input should be greater than or equal to 1"),
    ],
)
def test_a_mistake_is_said_in_the_words_of_a_file(table, text):
    assert (text_of(mistake_of(table)), choices_of(mistake_of(table))) == (text, [])


def test_a_key_that_is_missing_is_said_to_be():
    with pytest.raises(pydantic.ValidationError) as caught:
        _Table.model_validate({})
    assert [text_of(mistake) for mistake in caught.value.errors()] == ["it is missing"]


def test_a_choice_has_its_choices():
    mistake = mistake_of({"mode": "exakt"})
    assert choices_of(mistake) == ["fast", "exact"]
    assert text_of(mistake) == "Input should be 'fast' or 'exact'"
