"""The rules of the architecture that a program can check."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import typing

import pytest
from distributions import ROOT, folders, project
from packaging.requirements import Requirement
from processes import run_process

import headrace
import headrace_testing

FOLDERS = sorted(folders())
SOURCES = sorted(path for folder in FOLDERS for path in (folder / "src").rglob("*.py"))
HEAVY = ("numpy", "cv2", "onnxruntime", "torch", "tensorrt")

PUBLIC = [
    "Backend",
    "FilePath",
    "InitContext",
    "Options",
    "OutputPath",
    "PENDING",
    "Pipeline",
    "PipelineConfig",
    "__version__",
    "blueprint",
    "errors",
    "explain",
    "futures",
    "hookspecs",
    "isolation",
    "keys",
    "lazy",
    "parse",
    "pipe",
    "plan",
    "plugins",
    "policies",
    "register",
    "words",
]


def modules_after(code: str) -> set[str]:
    """The top-level and headrace modules that are loaded after ``code`` ran in a new process."""
    program = f"{code}\nimport sys, json\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = run_process([sys.executable, "-c", program], check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_public_names_are_these_and_no_others():
    assert sorted(headrace.__all__) == PUBLIC
    assert dir(headrace) == PUBLIC
    for name in PUBLIC:
        assert getattr(headrace, name) is not None


def functions_of(value: object) -> list[object]:
    """A public function; a class with the public functions it has; those of a module's names."""
    if inspect.ismodule(value):
        return [one for name in value.__all__ for one in functions_of(getattr(value, name))]
    if not inspect.isclass(value) or typing.get_origin(value):
        return [value] if inspect.isfunction(value) else []
    names = [name for name in dir(value) if not name.startswith("_") or name == "__call__"]
    found = [inspect.getattr_static(value, name) for name in names]
    plain = [getattr(one, "fget", None) or getattr(one, "__func__", one) for one in found]
    ours = [one for one in plain if getattr(one, "__module__", "").startswith("headrace")]
    return [value, *filter(inspect.isfunction, ours)]


@pytest.mark.parametrize("module", [headrace, headrace_testing], ids=lambda module: module.__name__)
def test_what_public_annotations_name_is_there_when_a_program_asks(module):
    found = [one for name in module.__all__ for one in functions_of(getattr(module, name))]
    assert len(found) > 5
    for one in found:
        typing.get_type_hints(one)  # NameError where a name is imported for type checkers only


def test_an_unknown_name_is_an_attribute_error_as_of_any_module():
    with pytest.raises(AttributeError, match="pip"):
        headrace.pip  # noqa: B018


def test_no_public_name_is_that_of_a_module_in_its_package():
    """Importing ``package.name`` binds the module to ``name``, in place of what stood there."""
    packages = {path.parent for path in SOURCES if path.parent.parent.name == "src"}
    packages = {path for path in packages if path.name.isidentifier()}  # not those of templates
    assert len(packages) > 8
    for package in packages - {ROOT / "core/src/headrace"}:  # whose public names are modules
        imported = importlib.import_module(package.name)
        names = set(getattr(imported, "__all__", ())) & {path.stem for path in package.iterdir()}
        others = [name for name in names if not inspect.ismodule(getattr(imported, name))]
        assert others == [], package.name


def test_the_version_of_each_package_is_that_of_its_distribution():
    assert len(FOLDERS) > 8
    for folder in FOLDERS:
        (package,) = (folder / "src").iterdir()
        version = importlib.import_module(package.name).__version__
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        assert f'\nversion = "{version}"\n' in text


def test_importing_headrace_loads_no_library_and_no_plugin():
    empty = modules_after("")
    loaded = {name.partition(".")[0] for name in modules_after("import headrace") - empty}
    allowed = {"headrace", "typing", "collections", "functools", "re", "types", "operator"}
    refused = {"pydantic", "asyncio", "importlib.metadata", "pluggy", "headrace_cv", "headrace_ort"}
    assert not loaded & {*HEAVY, *refused}
    assert "importlib.metadata" not in modules_after("import headrace") - empty
    assert {name for name in loaded if not name.startswith("_")} - allowed <= set(
        sys.stdlib_module_names
    )


ORDINARY = """
[first]
backend = "S[Identity,Call(builtins:abs)]"
instance_num = 2
max = 4
next = "second"

[second]
backend = "Call(builtins:str)"
"""


def test_what_is_logged_is_not_printed_unless_somebody_asks_for_it():
    code = (
        "import logging, headrace\n"
        "logging.getLogger('headrace.build').error('to nobody')\n"
        "assert logging.getLogger().handlers == [] and logging.getLogger('headrace').level == 0\n"
        "logging.basicConfig(format='%(name)s %(message)s')\n"
        "logging.getLogger('headrace.build').error('to somebody')\n"
    )
    done = run_process([sys.executable, "-c", code], check=True)
    assert (done.stdout, done.stderr) == ("", "headrace.build to somebody\n")


@pytest.mark.parametrize(
    "code",
    [
        "import headrace; headrace.explain({'backend': 'S[DecodeMat,ResizeMat(8,8),Mat2Tensor]'})",
        (
            "import headrace; headrace.PipelineConfig.load("
            "{'backend': 'S[DecodeMat,OnnxTensor]', 'model': 'README.md'})"
        ),
    ],
)
def test_check_and_explain_load_no_heavy_library(code):
    loaded = {name.partition(".")[0] for name in modules_after(code)}
    assert "headrace_cv" in loaded
    assert not loaded & set(HEAVY)


def test_no_module_is_too_long_to_read():
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > 600} == {}


def test_no_module_has_a_name_that_says_nothing():
    empty = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [p for p in SOURCES if p.stem.strip("_") in empty] == []


def test_every_distribution_is_typed_and_admits_this_core():
    for folder in FOLDERS:
        (package,) = (folder / "src").iterdir()
        assert (package / "py.typed").is_file()
        about = project(folder)
        for text in about["dependencies"]:
            requirement = Requirement(text)
            if requirement.name == "headrace":
                assert requirement.specifier.contains(headrace.__version__)
        assert about["version"] in (folder / "CHANGELOG.md").read_text(encoding="utf-8")
        if package.name == "headrace_serve":  # both protocols, without an extra
            names = {Requirement(text).name for text in about["dependencies"]}
            assert names >= {"uvicorn", "starlette", "hpack", "protobuf", "orjson"}


def test_each_distribution_has_a_reader_and_the_first_line_of_its_readme_names_it():
    """What nobody installs and no author of a plugin imports is a module of another."""
    assert len(FOLDERS) <= 19
    for folder in FOLDERS:
        title, _, first, *_ = (folder / "README.md").read_text(encoding="utf-8").split("\n")
        assert title.startswith("# headrace")
        assert re.match(r"For [^:.]+: ", first), folder


def test_the_files_that_the_architecture_names_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, _, table = text.partition("## Where do I change ...?")
    table, _, rest = table.partition("## Glossary")
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 13
    for row in rows:
        files = [one for one in re.findall(r"`([^`]+)`", row) if "/" in one or one.endswith(".py")]
        roots = (ROOT / "core" / "src" / "headrace", ROOT)
        assert files, row
        for file in files:
            assert any(list(root.glob(file.rstrip("/"))) for root in roots), file
    assert sum(line.startswith("| ") for line in rest.splitlines()) - 1 <= 25


def test_every_folder_of_core_is_in_the_architecture():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = text.partition("## Folders")[2].partition("## Where do I change")[0]
    named = set(re.findall(r"`([^`]+)`", folders))
    core = ROOT / "core" / "src" / "headrace"
    for path in core.iterdir():
        if any(path.glob("*.py")):  # not what a folder that is gone has left of bytecode
            assert f"{path.name}/" in named, path


MOST_ATTRIBUTES = 20
"""How many attributes a class may have: fields, and what its methods store on ``self``."""

MORE_ATTRIBUTES = {
    # Lists of options: a line each, which nobody reads but by name.
    "headrace_remote.options.RemoteOptions": 23,
    "headrace_serve.operating.options.Options": 32,
    "headrace_trt.backends.options.BuildOptions": 26,
    "headrace_trt.building.settings.BuildSettings": 24,
    "headrace_vision.options.SourceOptions": 23,
    # On the path of each request: a part of its own would be one look-up more.
    "headrace._run.batches.instance.Instance": 26,
    "headrace._run.node.Node": 38,
    "headrace._run.requests.entry.Entry": 26,
    "headrace_serve.http.protocol._LimitedProtocol": 24,
    "headrace_serve.service.Service": 28,
    # Not divided yet.
    "headrace_serve.models.model.Model": 27,
    "headrace_serve.operating.server.Server": 30,
}
"""The classes with more attributes, each under its reason. The numbers only fall."""


def attributes_of(cls: ast.ClassDef) -> set[str]:
    """The fields of a class, and the names that its methods store on ``self``."""
    fields = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return fields | {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_no_class_has_more_attributes_than_a_reader_can_hold():
    counts = {
        f"{'.'.join(path.with_suffix('').parts[path.parts.index('src') + 1 :])}.{node.name}": len(
            attributes_of(node)
        )
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert len(counts) > 1000
    many = {name: count for name, count in counts.items() if count > MOST_ATTRIBUTES}
    assert {name: n for name, n in many.items() if n > MORE_ATTRIBUTES.get(name, 0)} == {}
    assert MORE_ATTRIBUTES.keys() - many.keys() == set()  # a class that was divided leaves the list
