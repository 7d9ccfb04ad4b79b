"""Helper modules beside the file of a model: each model has its own, and the next pipeline reads them again."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pickle
import sys
import textwrap
import typing
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import run_python

import headrace
from headrace.errors import ConfigError

MODEL = """
    import headrace
    from helper import FACTOR

    @headrace.register("Scale")
    def scale(x):
        return x * FACTOR
"""


@pytest.fixture(autouse=True)
def same_path():
    before = list(sys.path), set(sys.modules)
    yield
    assert sys.path == before[0]
    assert not {"helper", "inner", "other", "sub", "model"} & (set(sys.modules) - before[1])


@pytest.fixture
def folder(tmp_path):
    """Give a function that writes files of a folder, and returns its configuration."""

    def written(name, files, imports=("model.py",), backend="Scale"):
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        config = tmp_path / name / "pipe.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(f"import = {list(imports)}\nbackend = '{backend}'\n")
        return config

    return written


def answer(config, value=3):
    with headrace.pipe(config) as pipe:
        return pipe({"data": value})["result"]


WAYS = {
    "from": "from helper import FACTOR",
    "from dot": "from .helper import FACTOR",
    "from package": "from . import helper\nFACTOR = helper.FACTOR",
    "import": "import helper\nFACTOR = helper.FACTOR",
    "as": "import helper as h\nFACTOR = h.FACTOR",
    "star": "from helper import *",
    "dotted": "import sub.inner\nFACTOR = sub.inner.FACTOR",
    "dotted as": "import sub.inner as i\nFACTOR = i.FACTOR",
    "from dotted": "from sub.inner import FACTOR",
    "module of a package": "from sub import inner\nFACTOR = inner.FACTOR",
    "package": "from pack import FACTOR",
    "package with dots": "from .pack.deep import FACTOR",
    "importlib": "import importlib\nFACTOR = importlib.import_module('.helper', __package__).FACTOR",
}


@pytest.mark.parametrize("way", WAYS)
def test_each_model_finds_what_lies_beside_it(folder, way):
    files = [
        {
            "model.py": MODEL.replace(
                "    from helper import FACTOR", textwrap.indent(WAYS[way], "    ")
            ),
            "helper.py": f"FACTOR = {factor}",
            "sub/inner.py": "from helper import FACTOR",
            "pack/__init__.py": "from .deep import FACTOR",
            "pack/deep.py": "from sub.inner import FACTOR",
        }
        for factor in (10, 20)
    ]
    first, second = folder("v1", files[0]), folder("v2", files[1])
    with headrace.pipe(first) as one, headrace.pipe(second) as two:
        assert [pipe({"data": 3})["result"] for pipe in (one, two, one)] == [30, 60, 30]


def test_an_import_inside_of_a_function_finds_it_too(folder):
    text = """
        import headrace

        @headrace.register("Scale")
        def scale(x):
            from helper import FACTOR
            import helper
            return x * FACTOR + helper.__name__.count("helper")
    """
    configs = [folder(f"v{n}", {"model.py": text, "helper.py": f"FACTOR = {n}"}) for n in (1, 2)]
    with headrace.pipe(configs[0]) as one, headrace.pipe(configs[1]) as two:
        assert [pipe({"data": 100})["result"] for pipe in (one, two, one)] == [101, 201, 101]


def test_a_file_that_is_named_like_a_library_is_found_and_the_library_keeps_its_own(folder):
    text = (
        MODEL.replace("from helper", "from json")
        + "\n    import colorsys, email.message\n    assert colorsys.OWN\n"
    )
    config = folder("v1", {"model.py": text, "json.py": "FACTOR = 7", "colorsys.py": "OWN = 1"})
    assert answer(config) == 21
    import colorsys
    import json

    assert json.loads("[1]") == [1]
    assert not hasattr(colorsys, "OWN")


def test_in_a_file_that_is_named_like_a_library_its_name_is_the_library(folder):
    text = MODEL.replace(
        "from helper import FACTOR", "import fractions\n    FACTOR = fractions.Fraction(3)"
    )
    assert answer(folder("v1", {"fractions.py": text}, ["fractions.py"])) == 9


def test_a_folder_without_code_stands_for_no_library(folder):
    text = MODEL.replace(
        "from helper import FACTOR", "import wave\n    FACTOR = len(wave.open.__name__)"
    )
    assert answer(folder("v1", {"model.py": text, "wave/notes.txt": ""})) == 12


def test_what_the_program_has_imported_from_the_folder_is_the_same_module(folder, monkeypatch):
    text = MODEL.replace("from helper", "from program_helper")
    config = folder("v1", {"model.py": text, "program_helper.py": "FACTOR = 5\nclass Box: ..."})
    monkeypatch.syspath_prepend(str(config.parent))
    import program_helper

    monkeypatch.setattr(program_helper, "FACTOR", 6)
    assert answer(config) == 18
    del sys.modules["program_helper"]
    monkeypatch.undo()


def test_a_module_of_the_name_elsewhere_is_not_taken(folder, monkeypatch, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "shared_name.py").write_text("FACTOR = 1000")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    import shared_name

    text = MODEL.replace("from helper", "from shared_name")
    assert answer(folder("v1", {"model.py": text, "shared_name.py": "FACTOR = 2"})) == 6
    assert shared_name.FACTOR == 1000
    assert sys.modules.pop("shared_name") is shared_name
    monkeypatch.undo()


def test_a_change_of_a_helper_or_of_its_helper_is_read_at_the_next_load(folder):
    files = {"model.py": MODEL, "helper.py": "from inner import FACTOR", "inner.py": "FACTOR = 1"}
    config = folder("v1", files)
    assert answer(config) == 3
    for factor in (2, 3, 4):
        # The same size in the same second: only the content tells the versions apart.
        (config.parent / "inner.py").write_text(f"FACTOR = {factor}")
        assert answer(config) == 3 * factor
    (config.parent / "helper.py").write_text("FACTOR = 9")
    assert answer(config) == 27


def test_a_file_is_run_once_for_all_who_load_its_version(folder, tmp_path):
    note = f"with open({str(tmp_path / 'runs')!r}, 'a') as f: print(__name__, file=f)\n"
    files = {"model.py": textwrap.dedent(MODEL) + note, "helper.py": "FACTOR = 2\n" + note}
    config = folder("v1", files, ["model.py", "helper.py"])
    other = folder("v1/below", {}, ["../helper.py", "../model.py"])
    assert [answer(config), answer(other), answer(config)] == [6, 6, 6]
    names = (tmp_path / "runs").read_text().split()
    assert [name.rpartition(".")[2] for name in names] == ["helper", "model"]


def test_two_files_of_a_folder_share_a_helper_also_after_it_has_changed(folder):
    text = """
        import headrace
        import helper

        @headrace.register("{}")
        def box(x):
            return helper.Box(x){}
    """
    code = "class Box:\n    n = {}\n    def __init__(self, x): self.x = x"
    files = {
        "make.py": text.format("Make", ""),
        "look.py": text.format("Look", " if x is None else (isinstance(x, helper.Box), x.n)"),
        "helper.py": code.format(1),
    }
    config = folder("v1", files, ["make.py", "look.py"], "S[Make,Look]")
    assert answer(config) == (True, 1)
    (config.parent / "helper.py").write_text(code.format(2))
    make = folder("v1", {}, ["make.py"], "Make")
    assert answer(make).n == 2
    config = folder("v1", {}, ["look.py", "make.py"], "S[Make,Look]")
    assert answer(config) == (True, 2)
    for n in (3, 2):  # the helper that `look.py` has is an older one of the same content then
        (config.parent / "helper.py").write_text(code.format(n))
        assert answer(folder("v1", {}, ["make.py"], "Make")).n == n
    config = folder("v1", {}, ["make.py", "look.py"], "S[Make,Look]")
    assert answer(config) == (True, 2)


def test_a_file_that_did_not_change_keeps_its_classes_when_another_one_of_the_folder_did(folder):
    code = "import headrace\nclass Out: ...\n@headrace.register('{0}')\ndef f(x): return Out()\n"
    one = folder("v1", {"a.py": code.format("A"), "b.py": code.format("B")}, ["a.py"], "A")
    two = one.with_name("b.toml")
    two.write_text('import = ["b.py"]\nbackend = "B"\n')
    with headrace.pipe(one), headrace.pipe(two) as b:
        out = b({"data": 1})["result"]
        (one.parent / "a.py").write_text(code.format("A") + "# changed\n")
        assert answer(one) is not None
        assert type(pickle.loads(pickle.dumps(out))) is type(b({"data": 1})["result"]) is type(out)


def test_a_build_that_fails_leaves_the_helpers_that_run(folder):
    lazy = MODEL.replace("return x *", "import helper\n        return x * helper.FACTOR /")
    config = folder("v1", {"model.py": lazy, "helper.py": "FACTOR = 2"})
    with headrace.pipe(config) as pipe:
        (config.parent / "helper.py").write_text("FACTOR = 8\n1 / 0\n")
        with pytest.raises(
            ConfigError, match=r"in line 3 \(helper.py, line 2\): ZeroDivisionError"
        ):
            headrace.pipe(config)
        assert pipe({"data": 3})["result"] == 3
    (config.parent / "helper.py").write_text("FACTOR = 4\n")
    assert answer(config) == 3


def test_backends_of_a_helper_belong_to_who_imports_it(folder):
    helper = "import headrace\n@headrace.register('Inner')\ndef inner(x): return x + {}\n"
    files = [{"model.py": "import helper", "helper.py": helper.format(n)} for n in (1, 2)]
    first, second = (folder(f"v{n}", one, backend="Inner") for n, one in enumerate(files))
    assert [answer(first), answer(second), answer(first)] == [4, 5, 4]
    (first.parent / "helper.py").write_text(helper.format(7))
    assert [answer(first), answer(second)] == [10, 5]
    with pytest.raises(ConfigError, match="unknown backend 'Inner'"):
        headrace.pipe({"backend": "Inner"})


def test_helpers_may_import_each_other_and_the_model(folder):
    files = {
        "model.py": "import headrace\nBASE = 2\nimport helper\n@headrace.register('Scale')\ndef f(x): return x * helper.get()",
        "helper.py": "import inner\nfrom model import BASE\ndef get(): return inner.get()",
        "inner.py": "import helper\nimport model\ndef get(): return helper.BASE + model.BASE",
    }
    assert answer(folder("v1", files)) == 12


def test_many_threads_load_models_at_once(folder):
    configs = [folder(f"v{n}", {"model.py": MODEL, "helper.py": f"FACTOR = {n}"}) for n in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(answer, configs * 3)] == [3 * n for n in range(8)] * 3


def test_tools_of_python_know_the_modules(folder):
    helper = """
        from __future__ import annotations
        import dataclasses

        @dataclasses.dataclass
        class Box:
            next: Box | None = None

        def fails():
            raise ValueError("no")
    """
    text = "import headrace\nfrom helper import *\n@headrace.register('Box')\ndef box(x): return fails() if x else Box()"
    config = folder("v1", {"model.py": text, "helper.py": helper}, backend="Box")
    box = answer(config, 0)
    assert typing.get_type_hints(type(box)) == {"next": type(box) | None}
    assert inspect.getsource(type(box)).startswith("@dataclasses.dataclass\nclass Box")
    assert pickle.loads(pickle.dumps(box)) == box
    assert importlib.util.find_spec(type(box).__module__).origin == str(config.parent / "helper.py")
    with headrace.pipe(config) as pipe, pytest.raises(headrace.errors.HeadraceError) as caught:
        pipe({"data": 1})
    last = caught.value.__cause__.__traceback__
    while last.tb_next:
        last = last.tb_next
    assert last.tb_frame.f_code.co_filename == str(config.parent / "helper.py")
    assert not (config.parent / "__pycache__").exists()


def test_a_function_is_called_from_the_file_that_the_configuration_imports(folder):
    configs = [
        folder(
            f"v{n}",
            {"fractions.py": f"def scale(x): return x * {n}"},
            ["fractions.py"],
            "Call(fractions:scale)",
        )
        for n in (1, 2)
    ]
    assert [*map(answer, configs)] == [3, 6]


def test_a_configuration_names_the_files_that_were_run_for_it(folder):
    files = {
        "model.py": MODEL,
        "helper.py": "from sub.inner import *",
        "sub/inner.py": "FACTOR = 1",
    }
    config = folder("v1", {**files, "other.py": ""})
    found = headrace.PipelineConfig.load(config).files
    assert sorted(found) == sorted(config.parent / name for name in files)
    assert headrace.PipelineConfig.load({"backend": "Identity"}).files == ()


def test_a_missing_helper_is_told_with_the_line(folder):
    config = folder("v1", {"model.py": MODEL})
    with pytest.raises(
        ConfigError, match=r"failed in line 3: ModuleNotFoundError: No module named 'helper'"
    ):
        headrace.pipe(config)
    (config.parent / "helper.py").write_text("FACTOR = 2")
    assert answer(config) == 6


def test_what_no_statement_imports_is_told_how(folder):
    text = "import importlib\nimportlib.import_module('helper')\n"
    config = folder("v1", {"model.py": text, "helper.py": ""})
    with pytest.raises(ConfigError) as caught:
        headrace.pipe(config)
    assert "helper.py is beside it" in caught.value.problems[0].hint


@pytest.mark.parametrize("where", ["helper", "sub.inner", "pack.inner"])
def test_with_both_folders_on_the_path_each_model_has_its_own(folder, tmp_path, where):
    text, file = MODEL.replace("from helper", f"from {where}"), f"{where.replace('.', '/')}.py"
    configs = [
        folder(f"v{n}", {"pack/__init__.py": "", "model.py": text, file: f"FACTOR = {n}"})
        for n in (1, 2)
    ]
    program = "import sys, headrace\nfor one in sys.argv[1:]:\n with headrace.pipe(one) as p: print(p({'data': 3})['result'])"
    path = os.pathsep.join(str(one.parent) for one in configs)
    done = run_python(program, *map(str, configs), env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["3", "6"], "")
