"""Options: what is read as what, and what is refused."""

from __future__ import annotations

import decimal
import enum
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from loading import load, problem, python, write
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator

import headrace

NAN = float("nan")


def wrong(options, **keys):
    """Return what is wrong with keys for a backend of such options."""
    cls = type("Takes", (headrace.Backend,), {"Options": options, "forward": lambda *_: None})
    headrace.register("Takes", cls, replace=True)
    return problem({"backend": "Takes", **keys})


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Inner(BaseModel):
    flag: bool = False
    size: int = 0
    real: float = 0.0


@dataclass
class Corner:
    at: tuple[int, int] = (0, 0)
    shown: bool = False
    width: float = 0.0


class Nested(headrace.Options):
    file: headrace.FilePath | None = None
    size: int = 0


class Many(headrace.Options):
    whole: int = 0
    corner: Corner | None = None
    real: float = 0.0
    maybe: int | None = None
    either: int | str = 0
    switch: bool = False
    both: bool | int = 0
    one_of: Literal[0, 1] = 0
    level: Level = Level.LOW
    exact: decimal.Decimal = decimal.Decimal(0)
    bounded: Annotated[int, Field(ge=1)] = 1
    numbers: list[int] = Field([])
    switches: list[bool] = Field([])
    pair: tuple[int, bool] = (0, False)
    by_name: dict[str, float] = Field({})
    deep: dict[str, list[int | None]] = Field({})
    anything: Any = None
    apart: set[int] = Field(set())
    wave: complex = 0j
    inner: Inner = Inner()
    inners: list[Inner] = Field([])
    nested: Nested | None = None
    text: str = ""
    from_second: Annotated[list[int], BeforeValidator(lambda given: given[1:])] = Field([])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("whole", True),
        ("real", False),
        ("maybe", True),
        ("either", True),
        ("one_of", True),
        ("level", True),
        ("exact", True),
        ("bounded", True),
        ("numbers", [1, True]),
        ("whole", np.True_),
        ("numbers", [1, np.True_]),
        ("pair", [True, True]),
        ("by_name", {"a": True}),
        ("deep", {"a": [1, True]}),
        ("inner", {"size": True}),
        ("inners", [{"size": 1}, {"size": True}]),
        ("nested", {"size": True}),
        ("corner", {"width": True}),
        ("corner", {"width": "nan"}),
        ("apart", {True}),
        ("wave", True),
        ("wave", complex(0.0, NAN)),
        ("text", True),
        ("real", NAN),
        ("real", "nan"),
        ("exact", "NaN"),
        ("by_name", {"a": NAN}),
        ("by_name", {"a": "nan"}),
        ("inner", {"real": NAN}),
        ("inners", [{"size": 1}, {"real": "nan"}]),
        ("anything", NAN),
        ("anything", [1, {"a": NAN}]),
        ("numbers", "x"),
        ("unknown", 1),
    ],
)
def test_a_bool_is_no_number_nan_is_no_value_and_unknown_keys_are_refused(key, value):
    with pytest.raises(ValidationError):
        Many(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("switch", True, True),
        ("switch", "true", True),
        ("both", True, True),
        ("switches", [True, False], [True, False]),
        ("pair", [1, True], (1, True)),
        ("anything", [True, 1], [True, 1]),
        ("inner", {"flag": True}, Inner(flag=True)),
        ("corner", {"at": [1, 2], "shown": True}, Corner((1, 2), shown=True)),
        ("inners", [{"flag": True, "size": 2}], [Inner(flag=True, size=2)]),
        ("whole", "64", 64),
        ("real", "1e3", 1000.0),
        ("real", float("inf"), float("inf")),
        ("one_of", 1, 1),
        ("level", 1, Level.HIGH),
        ("deep", {"a": [None, 3]}, {"a": [None, 3]}),
        ("maybe", None, None),
        ("either", "x", "x"),
        ("from_second", [True, 2], [2]),
    ],
)
def test_everything_else_is_read_as_pydantic_reads_it(key, value, read):
    assert getattr(Many(**{key: value}), key) == read


def test_options_are_frozen():
    with pytest.raises(AttributeError, match="options are frozen"):
        Many().whole = 3


def test_a_path_that_is_nested_is_relative_to_the_file_that_wrote_it(tmp_path):
    (tmp_path / "m.bin").write_text("x")
    context = {"bases": {"nested": tmp_path}, "of": Many}
    found = Many.model_validate({"nested": {"file": "m.bin"}}, context=context)
    assert found.nested.file == tmp_path / "m.bin"


HOME = "~no-such-user-x"


@pytest.mark.parametrize(
    ("source", "base"),
    [
        (f"{HOME}/x.toml", {}),
        ({"extends": f"{HOME}/x.toml", "backend": "Identity"}, {}),
        ({"import": [f"{HOME}/x.py"], "backend": "Identity"}, {}),
        ({"extends": "x.toml", "backend": "Identity"}, {"base": HOME}),
    ],
    ids=["file", "extends", "import", "base"],
)
def test_a_path_of_an_unknown_home_is_taken_as_written(source, base):
    """As a shell does."""
    assert f"{HOME}/x" in problem(source, **base).message


def test_a_path_of_an_unknown_home_in_an_option_is_taken_as_written():
    assert "no such file" in wrong(Nested, file=f"{HOME}/x").message
    assert f"{HOME}/x" in wrong(Nested, file=f"{HOME}/x").message


def test_a_path_may_start_at_the_home_folder(tmp_path, monkeypatch):
    file = write(tmp_path / "x.toml", 'backend = "Identity"')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert load("~/x.toml").to_dict() == {"backend": "Identity"}
    assert Nested(file="~/x.toml").file == file


@pytest.mark.parametrize("allowed", [True, False])
def test_a_validator_is_told_whether_code_may_be_brought_in(allowed):
    reported = []

    class Brings(headrace.Backend):
        class Options(headrace.Options):
            code: str = Field("", description="A module (a name).")

            @field_validator("code")
            @classmethod
            def _note(cls, value, info):
                reported.append(info.context["allow_import"])
                return value

        def forward(self, batch):
            """Do nothing."""

    headrace.register("BringsCode", Brings, replace=True)
    load({"backend": "BringsCode(code=a.b)"}, allow_import=allowed)
    assert reported == [allowed]


def test_a_positional_name_that_is_no_option_is_told_where_it_is_used():
    class Wrong(headrace.Options):
        positional = ("sise",)
        size: int = 0

    found = wrong(Wrong, backend="Takes(3)")
    assert "positional names 'sise'" in found.message
    assert found.hint == "It has size."


class Shifted(headrace.Options):
    mean: float | Annotated[tuple[float, ...], Field(min_length=1)] | None = None


NO_NUMBER = "Input should be a valid number, unable to parse string as a number"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a", f"mean: {NO_NUMBER}; or: Input"),
        ([], "mean: List should have at least 1 item after validation, not 0, got []"),
        ([1, "x"], f"mean[1]: {NO_NUMBER}, got"),
        (["x"], f"mean[0]: {NO_NUMBER}, got"),
        ({"a": 1}, "mean: Input should be a valid number; or: Input should be a list, got"),
        (True, "mean: a bool is no number, got true"),
    ],
    ids=str,
)
def test_a_value_of_none_of_several_types_is_one_problem(value, message):
    assert wrong(Shifted, mean=value).message.startswith(f"Takes: {message}")


class Listed(headrace.Options):
    names: Annotated[tuple[str, ...], Field(min_length=2)]


@pytest.mark.parametrize(
    ("names", "said"), [(["a", 5], "[1]: "), (["a"], ": List should have at least 2 items")]
)
def test_a_list_that_is_long_enough_is_not_called_too_short_for_its_wrong_parts(names, said):
    assert wrong(Listed, names=names).message.startswith(f"Takes: names{said}")


def test_what_is_no_path_is_told_without_names_of_classes():
    said = "Takes: file: Input should be a text, the path of a file"
    assert wrong(Nested, file=["a.onnx"]).message.startswith(said)


class Described(headrace.Options):
    """Size and mode: what the docstring of a class says.

    Attributes:
        positional: Never a field.
        size: Side of the result,
            in pixels: `a` or "b".

            At most 9.
        mode (str): How (a name).
        limit: The text of the section.
        gone: What no field has.
        later:
            A text below its name.

    Note:
        plain: Of another section.
    """

    positional: ClassVar[tuple[str, ...]] = ("size",)
    size: int = Field(1, ge=1, le=9)
    mode: Literal["fast", "exact"] = "fast"
    limit: Annotated[int, Field(ge=0, description="The text of the type.")] = 0
    own: int = Field(0, description="The text of the field.")
    later: list[int] = Field([])
    plain: int = 0


class Inherits(Described):
    """A class that says nothing new of what it inherits.

    Attributes:
        plain: Its own.
        size: Of no field of this class.
    """

    plain: int = 0


def descriptions(options):
    return {name: field.description for name, field in options.model_fields.items()}


def test_descriptions_are_read_from_the_docstring_of_the_class():
    texts = {
        "size": 'Side of the result, in pixels: `a` or "b". At most 9.',
        "mode": "How (a name).",
        "limit": "The text of the section.",
        "own": "The text of the field.",
        "later": "A text below its name.",
        "plain": None,
    }
    assert descriptions(Described) == texts
    assert descriptions(Inherits) == texts | {"plain": "Its own."}
    schema = Described.model_json_schema()["properties"]
    assert {name: about.get("description") for name, about in schema.items()} == texts
    assert wrong(Described, limit=-1).message.startswith("Takes: limit: Input should be greater")


def test_a_class_made_in_a_function_is_described():
    class Mode(enum.Enum):
        FAST = "fast"

    class Local(headrace.Options):
        """One mode.

        Attributes:
            mode: How (a name).
        """

        mode: Mode = Mode.FAST

    assert descriptions(Local) == {"mode": "How (a name)."}
    assert Local(mode="fast").mode is Mode.FAST


WITHOUT_DOCSTRINGS = '''
import headrace, pydantic

class Add(headrace.Backend):
    class Options(headrace.Options):
        """What is added.

        Attributes:
            size: How much (no unit).
        """

        positional = ("size",)
        size: int = pydantic.Field(1, ge=1)
        own: int = pydantic.Field(0, description="Stays.")

    def init(self, options, context):
        self.size = options.size

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"] + self.size

headrace.register("Add", Add)
print([field.description for field in Add.Options.model_fields.values()])
print(headrace.pipe({"backend": "Add(2)"})({"data": 1})["result"])
try:
    headrace.pipe({"backend": "Add(0)"})
except headrace.errors.ConfigError as error:
    print([problem.code for problem in error.problems])
'''


@pytest.mark.parametrize(("flag", "text"), [("-O", "How much (no unit)."), ("-OO", None)])
def test_python_that_drops_docstrings_drops_descriptions_alone(flag, text):
    done = python(flag, "-c", WITHOUT_DOCSTRINGS)
    assert (done.stdout.splitlines(), done.stderr) == (
        [str([text, "Stays."]), "3", "['option']"],
        "",
    )
