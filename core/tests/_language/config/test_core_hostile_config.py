"""Configurations as an enemy, or an accident, would write them: each is told, none hangs or crashes."""

from __future__ import annotations

import difflib
import os
import sys
import threading

import loading
import pytest
from loading import load, write
from pydantic import Field, field_validator

import headrace
from headrace.errors import ConfigError

BIG = "1" * 5000
PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no such files")


def problems(source, **arguments):
    found = loading.problems(source, **arguments)
    assert len(str(ConfigError(found))) < 20_000 or len(found) > 10
    return found


# Numbers without end.


@pytest.mark.parametrize("value", [-(10**5000), [1, [10**640]], {"a": 10**5000}], ids=range(3))
def test_a_number_of_too_many_digits_is_told_by_its_key(value):
    (found,) = problems({"node": {"backend": "Identity", "max": value}})
    assert (found.code, found.path) == ("key", "node.max")


def test_the_longest_number_there_may_be_is_no_problem():
    (found,) = problems({"backend": "Identity", "instance_num": 10**640 - 1})
    assert found.path == "main.instance_num"


def test_a_key_that_is_such_a_number_is_no_text():
    (found,) = problems({"backend": "Identity", 10**5000: 1})
    assert "keys are texts" in found.message


@pytest.mark.parametrize("number", [BIG, f"-{BIG}", "1_" * 5000 + "1"], ids=range(3))
def test_such_a_number_in_toml_is_told(number, tmp_path):
    path = write(tmp_path / "c.toml", f'backend = "Identity"\nmax = {number}\n')
    (found,) = problems(path)
    assert found.file == str(path)


@pytest.mark.parametrize("before", ["", "function="], ids=["positional", "named"])
def test_such_a_number_in_an_expression_is_told_with_its_place(before):
    (found,) = problems({"backend": f"Call({before}{BIG})"})
    assert found.text[slice(*found.span)] == BIG


def test_such_a_number_in_the_environment_is_told(monkeypatch):
    monkeypatch.setenv("BIG", BIG)
    assert problems({"backend": "Identity", "max": "${BIG}"})[0].path == "main.max"
    assert problems({"backend": "Call(k=${BIG})"})[0].path == "main.backend"


# Files that are none.


@PIPES
@pytest.mark.parametrize("how", ["itself", "extends"])
def test_a_pipe_is_refused_without_waiting_for_who_writes_into_it(how, tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    path = tmp_path / "pipe.toml"
    if how == "extends":
        path = write(tmp_path / "c.toml", 'extends = "pipe.toml"\nbackend = "Identity"\n')
    (found,) = problems(path)
    assert found.code == "unreadable"
    assert "pipe or a device" in found.message
    assert found.path == ("extends" if how == "extends" else None)


@pytest.mark.parametrize("name", ["made.py", "made.onnx"])
@pytest.mark.parametrize("kind", [pytest.param("a pipe or a device", marks=PIPES), "a folder"])
def test_what_is_no_file_is_refused_as_import_and_as_an_option(name, kind, tmp_path):
    class Reads(headrace.Backend):
        class Options(headrace.Options):
            path: headrace.FilePath

        def forward(self, batch):
            pass

    headrace.register("Reads", Reads, replace=True)
    path = tmp_path / name
    path.mkdir() if kind == "a folder" else os.mkfifo(path)
    wrong = {"import": [str(path)]} if name == "made.py" else {"path": str(path)}
    (found,) = problems({"backend": "Identity" if name == "made.py" else "Reads", **wrong})
    assert f"is {kind}, not a" in found.message
    assert found.suggestion is None


@PIPES
def test_a_pipe_whose_link_leads_to_no_path_is_refused_as_a_pipe():
    reading, writing = os.pipe()
    try:
        (found,) = problems(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)
    assert "pipe or a device" in found.message
    assert found.suggestion is None


@PIPES
def test_a_device_that_never_ends_is_refused():
    assert "pipe or a device" in problems("/dev/zero")[0].message


def test_a_picture_is_no_configuration(tmp_path):
    path = write(tmp_path / "photo.jpg", b"\xff\xd8\xff\xe0" + b"\x00\x80" * 100)
    assert "no text, so no TOML file" in problems(path)[0].message
    (found,) = problems({"extends": str(path), "backend": "Identity"})
    assert found.path == "extends"


# What classes of options raise.


class Raises(headrace.Backend):
    class Options(headrace.Options):
        what: str = ""

        @field_validator("what")
        @classmethod
        def _raise(cls, what):
            if what in RAISED:
                raise RAISED[what]
            return what

    def forward(self, batch):
        """Never called."""


class OddTextError(ValueError):
    def __str__(self):
        raise RuntimeError("boom")


RAISED = {
    "runtime": RuntimeError("boom"),
    "key": KeyError("boom"),
    "exit": SystemExit("boom"),
    "odd": OddTextError(),
    "interrupt": KeyboardInterrupt(),
}


class DefaultRaises(headrace.Backend):
    class Options(headrace.Options):
        number: int = Field(default_factory=lambda: 1 // 0)

    forward = Raises.forward


@pytest.mark.parametrize("what", ["runtime", "key", "exit", "odd"])
def test_what_a_validator_raises_is_a_problem_that_names_the_class(what):
    headrace.register(Raises, replace=True)
    first, second = problems({"backend": f"S[Raises(what={what}),Raises]", "max": 0})
    assert {first.code, second.code} == {"option", "key"}
    found = first if first.code == "option" else second
    assert "boom" in found.message
    assert "Raises.Options" in found.hint
    assert found.path == "main.backend"


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "DefaultRaises"},
    ],
)
def test_what_a_default_raises_is_a_problem_that_names_the_class(config):
    headrace.register(DefaultRaises, replace=True)
    (found,) = problems(config)
    assert "ZeroDivisionError" in found.message
    assert "DefaultRaises.Options" in found.hint


def test_ctrl_c_in_a_validator_is_no_problem_of_the_configuration():
    headrace.register(Raises, replace=True)
    with pytest.raises(KeyboardInterrupt):
        load({"backend": "Raises(what=interrupt)"})


# Growth.


@pytest.mark.parametrize(
    "source",
    [
        {"backend": f"S[{','.join(f'Unknown{i}' for i in range(10_000))}]"},
        {"backend": "Identity", **{f"unknown_{i}": i for i in range(10_000)}},
        {"backend": f"Call(math:sqrt,{','.join(f'k{i}=1' for i in range(10_000))})"},
        {"a": {"backend": "Identity", "next": [f"n{i}" for i in range(10_000)]}},
        {"a": {"backend": "Identity"}, "global": {f"unknown_{i}": i for i in range(10_000)}},
    ],
    ids=["backends", "keys", "args", "next", "global"],
)
def test_ten_thousand_wrong_names_are_all_told(source, monkeypatch):
    """How many are compared with known names is what takes the time."""
    compared = []
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda name, *_, **__: compared.append(name) or []
    )
    assert len(problems(source)) == 10_000
    assert 0 < len(compared) <= 400


@pytest.mark.parametrize(
    "make",
    [
        lambda name: {"backend": name},
        lambda name: {"backend": f"S[Identity,{name}]"},
        lambda name: {"backend": "Identity", name: 1},
        lambda name: {name: {"backend": "Nope"}},
        lambda name: {"a": {"backend": "Identity", "next": name}},
        lambda name: {"backend": f"Identity({name}=1)"},
        lambda name: {"backend": "Identity", "queue_full": name},
        lambda name: {"backend": f"Forward[{name}]"},
        lambda name: {"backend": "Identity", "batch_policy": name},
        lambda name: {"backend": "${%s}" % name},  # noqa: UP031 - braces on both sides
        lambda name: {"extends": name},
        lambda name: {"backend": "Identity", "import": [name]},
        lambda name: {"backend": "Identity", "import": [f"{name}.py"]},
        lambda name: {"backend": f"Reflect[{name}]"},
        lambda name: {"backend": f"Call({name}:x)"},
    ],
)
def test_a_name_of_a_million_characters_is_shortened(make):
    with pytest.raises(ConfigError) as caught:
        load(make("x" * 1_000_000))
    assert len(str(caught.value)) < 3000
    for problem in caught.value.problems:
        assert len(problem.message) < 1000
    assert "xx…" in str(caught.value) or "File name too long" in str(caught.value)


# A placeholder as the whole value.


def test_the_default_of_a_placeholder_that_is_all_may_be_any_expression(monkeypatch):
    source = {"backend": " ${HR_NONE:-S[Identity,(key=k)Identity]} "}
    with headrace.pipe(source) as pipe:
        assert pipe({"data": 3})["result"] == 3
    monkeypatch.setenv("HR_NONE", "Nope")
    assert problems(source)[0].message == "unknown backend '${HR_NONE}'"


def test_what_is_wrong_in_such_a_default_is_told():
    (found,) = problems({"backend": "${HR_NONE:-S[Identity,]}"})
    assert "in the value of ${HR_NONE:-" in found.message
    assert problems({"backend": "${HR_NONE}"})[0].code == "placeholder"


def test_a_ghost_in_a_map_is_told_beside_a_cycle():
    second = {"backend": "Identity", "next": "a", "map": "ghost[result:data]"}
    found = problems({"a": {"backend": "Identity", "next": "b"}, "b": second})
    assert ["ghost" in one.message for one in found].count(True) == 1
    assert any("cycle" in one.message for one in found)


def test_a_misspelt_name_imports_nothing(site):
    site.backend("headrace-far", "ResizeFar", "hrt_far")
    (found,) = problems({"backend": "ResizeFr", "factor": 2})
    assert found.suggestion == "ResizeFar"
    assert "hrt_far" not in sys.modules


# Imports.


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_a_clear_yes_lets_imports_run(value, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_IMPORT", value)
    write(tmp_path / "code.py", "")
    load({"backend": "Identity", "import": ["code.py"]}, base=tmp_path)


@pytest.mark.parametrize("value", [None, "0", "false", "No", "off", " 0", "", "maybe", "2", "ja"])
def test_what_is_no_clear_yes_refuses_imports(value, tmp_path, monkeypatch):
    how = {"allow_import": False} if value is None else {}
    monkeypatch.setenv("HEADRACE_IMPORT", "1" if value is None else value)
    write(tmp_path / "code.py", "raise AssertionError('it ran')")
    source = {"backend": "Identity", "import": ["code.py"]}
    (found,) = problems(source, base=tmp_path, **how)
    assert found.code == "import_refused"
    assert "refuses it" in found.message
    assert {p.code for p in problems({**source, "max": 0}, base=tmp_path, **how)} == {
        found.code,
        "key",
    }
    load({"backend": "Identity"})


LOADS = "import headrace\nheadrace.PipelineConfig.load({!r})\n"


@pytest.mark.parametrize("kind", ["file", "module"])
def test_code_that_loads_its_own_configuration_is_told_so(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_loads_{kind}"
    item = f"{name}.py" if kind == "file" else name
    path = write(tmp_path / "c.toml", f'import = ["{item}"]\nbackend = "Identity"\n')
    write(tmp_path / f"{name}.py", LOADS.format(str(path)))
    (found,) = problems(path)
    assert found.code == "import"
    assert "is being imported already" in found.message
    write(tmp_path / f"{name}.py", "")
    load(path)  # nothing is left of the attempt


def test_two_files_that_load_each_others_configuration_are_told_so(tmp_path):
    found = {}
    for name, other in (("a", "b"), ("b", "a")):
        write(tmp_path / f"{name}.toml", f'import = ["{name}.py"]\nbackend = "Identity"\n')
        code = LOADS.format(str(tmp_path / f"{other}.toml"))
        write(tmp_path / f"{name}.py", code)

    def load_it(name):
        found[name] = problems(tmp_path / f"{name}.toml")[0].message

    threads = [threading.Thread(target=load_it, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("is being imported already" in found[name] for name in "ab")


def test_a_file_is_run_once_for_threads_that_ask_at_the_same_time(tmp_path):
    module = sys.modules["hrt_count"] = type(sys)("hrt_count")
    module.began, module.go, module.runs = threading.Event(), threading.Event(), []
    write(
        tmp_path / "slow.py",
        "import hrt_count\nhrt_count.runs.append(1)\nhrt_count.began.set()\nhrt_count.go.wait(60)\n",
    )
    source = {"backend": "Identity", "import": ["slow.py"]}
    loaded = []

    def load_it():
        loaded.append(load(source, base=tmp_path))

    asked = threading.Event()
    # The second thread is there before the import begins: it waits for as long as it takes.
    late = threading.Thread(target=lambda: (asked.wait(60), load_it()))
    late.start()
    first = threading.Thread(target=load_it)
    first.start()
    assert module.began.wait(60)
    asked.set()
    module.go.set()
    for thread in (first, late):
        thread.join(60)
    del sys.modules["hrt_count"]
    assert (len(loaded), module.runs) == (2, [1])


def test_parameters_that_double_each_other_are_refused():
    texts = {f"p{n}": f"S[Reflect[p{n + 1}],Reflect[p{n + 1}]]" for n in range(30)}
    found = problems({"backend": "Reflect[p0]", **texts, "p30": "Identity"})
    assert any("1000 times" in one.message for one in found)
