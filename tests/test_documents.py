"""Every program and command in a document is run; every table is what the code says."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import made_pages
import pytest
from following import Needs, runs_elsewhere
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pages import ROOT, Page, check_printed, run, run_program, shell
from test_followed_pages import NEEDS

from headrace import PipelineConfig, errors
from headrace._language.config.sections import NodeKeys
from headrace._language.registry.discovery import CORE_BACKENDS
from headrace_vision.file import vision

FOLLOWED = {
    r"README": "tests/test_readme.py",
    r"docs/first_backend": "tests/conftest.py",
    r"docs/(interleavings|streams)": r"tests/test_\1_page.py",
    r"docs/kubernetes": "tests/test_kubernetes.py",
    r"docs/other_apis": "plugins/serve/tests/test_serve_apis_page.py",
    r"docs/tensorrt/\w+": "tests/test_tensorrt_pages.py",
    r"examples/(classify|decoder|detect|embeddings|functions|ocr|serve)/README": r"tests/test_example_\1.py",
    r"examples/third_party/[\w/-]*README": "tests/test_third_party.py",
    r"examples/video/README": "plugins/vision/tests/test_vision_example.py",
    r"plugins/observe/README": "plugins/observe/tests/test_observe_examples.py",
}
"""The modules that run the commands of a document, beside more that they test. All others run by `NEEDS`, or here."""
PROGRAMS_ELSEWHERE = {
    r"README|examples/\w+/README": "its example is prepared",
    r"docs/(i_have-[02]|kubernetes|other_apis)": "they go on with names of yours",
    r"docs/machines-1|plugins/(ray|torch)/README": "needs their libraries",
}
"""The patterns of programs that `FOLLOWED`, or tests of a distribution, run, and why."""
FIRST = {
    "libs/tensors/README": [pytest.mark.first("requests become tensors as the README shows it")],
    "plugins/cv/README": [
        pytest.mark.first("decode, resize and crop pictures: as the README shows it")
    ],
    "plugins/ort/README": [pytest.mark.first("run ONNX models: as the README shows it")],
    "plugins/vision/README": [
        pytest.mark.first("read videos and cameras: the programs of the README")
    ],
}


def documents_of_the_clone() -> list[Path]:
    pages = []
    for folder, inside, files in os.walk(ROOT):
        # Not the environments and caches, in which other tests may write meanwhile.
        inside[:] = [name for name in inside if not name.startswith(".") and name != "build"]
        pages += [Path(folder, name) for name in files if name.endswith(".md")]
    return [page for page in pages if not made_pages.is_made(page) and "{{" not in str(page)]


def name_of(page: Page) -> str:
    """Return the path of a document, without its suffix."""
    return page.path.relative_to(ROOT).with_suffix("").as_posix()


def follower(page: Page) -> str:
    """Return the module that follows a document; nothing for `NEEDS` and for this one."""
    matches = (re.fullmatch(pattern, name_of(page)) for pattern in FOLLOWED)
    modules = zip(matches, FOLLOWED.values(), strict=True)
    return next((match.expand(module) for match, module in modules if match), "")


PAGES = sorted(map(Page, documents_of_the_clone()), key=lambda page: page.path)
PROGRAMS = [
    pytest.param(program, id=name, marks=FIRST.get(name_of(page), ()))
    for page in PAGES
    for number, program in enumerate(page.programs)
    for name in [f"{name_of(page)}-{number}"]
    if not NEEDS.get(f"{name_of(page)}.md", Needs()).programs
    if not any(re.fullmatch(f"({pattern})(-.*)?", name) for pattern in PROGRAMS_ELSEWHERE)
]


def test_who_follows_a_document_runs_all_of_it():
    lost = []
    for page in PAGES:
        if not (module := follower(page)):
            continue
        text = (ROOT / module).read_text("utf-8")
        assert name_of(page).removesuffix("/README").rpartition("/")[2] in text
        pieces = re.findall(r"command\(\n?\s*['\"](.*?)['\"]\n?\s*\)", text)
        if not re.search(r"\.commands|follow\(", text):
            lost += [
                (name_of(page), command)
                for command in page.commands
                if not runs_elsewhere(command) and not any(piece in command for piece in pieces)
            ]
        runs_programs = re.search(r"\.blocks?\(|\.programs|\.files|\.write\(|follow\(", text)
        if page.programs and name_of(page) in PROGRAMS_ELSEWHERE and not runs_programs:
            lost.append((name_of(page), "its programs"))
    assert lost == []


@pytest.fixture(scope="module")
def run_forked():
    """Give a function that runs a program as a process of its own, with every warning an error."""
    if not hasattr(os, "fork"):
        yield run_program
        return
    command = [sys.executable, "-W", "error", Path(__file__).with_name("forked_programs.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:

        def run(program, folder):
            process.stdin.write(json.dumps({"program": program, "folder": str(folder)}) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            assert (status, (folder / "stderr").read_text("utf-8")) == (0, "")
            check_printed(program, (folder / "stdout").read_text("utf-8"))

        yield run


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_a_document_runs_as_printed(program, run_forked, tmp_path):
    run_forked(program, tmp_path)


CONFIGURATIONS = [
    pytest.param(text, reader, id=f"{path}-{number}")
    for path, reader in (
        *(
            (f"{name}/README.md", PipelineConfig.load)
            for name in ("libs/process", "plugins/remote")
        ),
        ("docs/machines.md", PipelineConfig.load),
        ("plugins/vision/README.md", vision.load),
    )
    # test_ray_pages loads those that need Ray.
    for number, text in enumerate(Page(path).blocks("toml"))
    if "Ray" not in text
]


@pytest.mark.parametrize(("text", "reader"), CONFIGURATIONS)
def test_a_configuration_of_a_document_is_valid(text, reader, tmp_path, monkeypatch):
    monkeypatch.setenv("DECODE_KEY", "a key")
    (tmp_path / "photos").mkdir()
    for name in ("ca.pem", *re.findall(r"\w+\.(?:onnx|mp4)", text)):
        (tmp_path / name).touch()
    for name in re.findall(r"\w+\.toml", text):
        (tmp_path / name).write_text('backend = "Identity"\n')
    (tmp_path / "page.toml").write_text(text)
    config = reader(tmp_path / "page.toml")
    assert config.sources if reader is vision.load else config.to_dict()


LINK = re.compile(r"\[[^\]]*\]\(([^)#:]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Return the text of each document: of those that are made, as they are made now."""
    return {page.path: page.text for page in PAGES} | made_pages.pages()


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors_of(text: str) -> set[str]:
    """Return the names under which links find the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE)
    texts = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-") for text in texts}


def test_what_a_document_links_to_is_there(texts):
    lost = []
    for page, text in texts.items():
        for target, anchor in LINK.findall(without_blocks(text)):
            if "`" in target:
                continue
            there = Path(os.path.normpath(page.parent / target)) if target else page
            if there not in texts and (made_pages.is_made(there) or not there.exists()):
                lost.append((page.relative_to(ROOT).as_posix(), target))
            elif anchor:
                aim = texts.get(there) or there.read_text(encoding="utf-8")
                if anchor not in anchors_of(aim):
                    lost.append((page.relative_to(ROOT).as_posix(), f"{target}#{anchor}"))
    assert lost == []


def test_no_page_of_a_clone_links_to_a_page_that_is_made():
    assert len(PAGES) > 60
    lost = [
        (page.path.relative_to(ROOT).as_posix(), target)
        for page in PAGES
        for target, _ in LINK.findall(without_blocks(page.text))
        if (there := Path(os.path.normpath(page.path.parent / target))).is_relative_to(ROOT)
        and made_pages.is_made(there)
    ]
    assert lost == []


@pytest.mark.slow
def test_pages_are_made_without_the_libraries_of_backends(texts):
    """`./dev docs` has an environment without them."""
    program = (
        "import sys\n"
        "lost = ('numpy', 'cv2', 'onnxruntime', 'uvicorn', 'starlette', 'grpc', 'av', 'torch', 'PIL')\n"
        "sys.modules.update(dict.fromkeys(lost))\n"
        "import json, made_pages\n"
        "print(json.dumps({str(path): text for path, text in made_pages.pages().items()}))"
    )
    printed = run_program(program, ROOT / "scripts")
    made = {str(path): text for path, text in texts.items() if made_pages.is_made(path)}
    assert json.loads(printed) == made


def test_no_page_is_too_long_to_read(texts):
    lines = {
        path.relative_to(ROOT / "docs"): text.count("\n")
        for path, text in texts.items()
        if ROOT / "docs" in path.parents and path.suffix == ".md"
    }
    assert len(lines) > 100
    assert {path: count for path, count in lines.items() if count > 600} == {}


@pytest.mark.skipif(
    not shutil.which("git") or not (ROOT / ".git").exists(), reason="needs a checkout of git"
)
def test_what_is_made_is_not_kept_by_git(texts):
    def told(*command):
        return {
            ROOT / name for name in shell(f"git {shlex.join(command)}", ROOT).stdout.splitlines()
        }

    made = {path for path in texts if made_pages.is_made(path)}
    assert len(made) > 100
    assert told("check-ignore", "--no-index", *map(str, made)) == made
    assert not made & told("ls-files", "docs")


def test_who_is_told_to_install_headrace_is_told_from_where():
    installs = re.compile(r"pip install [^`\n]*(?<![/.\w-])headrace\b(?!-watch)")
    silent = [
        page.path.relative_to(ROOT).as_posix()
        for page in PAGES
        if page.path.name != "CHANGELOG.md"
        and installs.search(page.text)
        and not re.search(r"\./dev install|#install|In a clone", page.text)
    ]
    assert silent == []


def test_the_policies_say_how_stable_the_version_is_that_is_here():
    text = Page("docs/policies.md").text
    (minor,) = re.findall(r"^## How stable is (\d+\.\d+)$", text, re.MULTILINE)
    assert version("headrace").startswith(f"{minor}.")
    major, number = minor.split(".")
    said = Page("docs/policies.md", f"How stable is {minor}").text
    for later in (1, 2):
        assert f"{major}.{int(number) + later}" in said


SAYS = {
    "unknown backend 'X'": {"backend": "X"},
    "no backend in node 'n' has an option 'k'": {"n": {"backend": "Identity", "k": 1}},
    "no such file: 'S[": "S[Identity]",
    "Options stand in ( ), backends in [ ]": {"backend": "ResizeMat[64,64]"},
    "and has no map": {
        **{name: {"backend": "Identity", "next": "c"} for name in "ab"},
        "c": {"backend": "Identity"},
    },
}


@pytest.mark.parametrize("words", SAYS)
def test_what_the_page_about_failures_quotes_is_what_the_error_says(words):
    assert words in Page("docs/when_it_fails.md").text
    with pytest.raises(errors.ConfigError) as caught:
        PipelineConfig.load(SAYS[words])
    assert words in str(caught.value)


COMMANDS = sorted(
    {
        command
        for page in PAGES
        if not follower(page) and f"{name_of(page)}.md" not in NEEDS
        for command in page.commands
    }
)


@pytest.mark.parametrize("command", [*itertools.filterfalse(runs_elsewhere, COMMANDS)])
def test_a_command_of_a_document_that_nobody_follows_runs(command):
    run(command, ROOT)


def test_dev_alone_lists_its_commands():
    listed = run("./dev", ROOT)
    for command in ("demo", "test", "docs", "check", "env", "wheels", "bench"):
        assert re.search(rf"^  {command} ", listed, re.MULTILINE)


def test_dev_refuses_an_unknown_command():
    done = shell("./dev tst", ROOT)
    assert done.returncode == 2
    assert "tst" in done.stderr


def test_the_shell_scripts_parse():
    for script in ("dev", "scripts/check", ".ci/run"):
        run(f"bash -n {script}", ROOT)


def test_the_table_of_errors_is_that_of_the_module():
    words = re.compile(r"`(\w+)`").findall
    rows = Page("core/README.md", "Errors").rows()
    table = {name: code for row in rows for name, code in zip(*map(words, row[:2]), strict=True)}
    classes = [
        getattr(errors, name)
        for name in errors.__all__
        if isinstance(getattr(errors, name), type)
        and issubclass(getattr(errors, name), errors.HeadraceError)
    ]
    bases = {errors.HeadraceError, errors.RequestError}
    assert table == {cls.__name__: cls.code for cls in classes if cls not in bases}


def test_every_error_stands_in_the_tree_of_its_module():
    for name in errors.__all__:
        if name[0].isupper() and name != "Problem":
            assert re.search(rf"\b{name}\b", errors.__doc__ or "")


def test_every_key_of_a_node_stands_in_the_documentation():
    text = Page("core/README.md").text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert set(NodeKeys.model_fields) <= named


def test_every_word_of_core_stands_in_the_documentation():
    text = Page("core/README.md").text
    for name in CORE_BACKENDS:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", text), name


@pytest.mark.slow
def test_generated_cases_are_the_same_whatever_else_has_been_loaded(tmp_path, monkeypatch):
    """As CONTRIBUTING says of `./dev test`. Other cases would be drawn of the numbers of that module."""

    def cases():
        drawn = []

        @settings(derandomize=True, max_examples=100, phases=[Phase.generate])
        @given(st.integers(0, 10**30 + 7))
        def draw(number):
            drawn.append(number)

        draw()
        return drawn

    before = cases()
    loaded = ModuleType("of_numbers")
    loaded.__file__ = str(tmp_path / "of_numbers.py")
    Path(loaded.__file__).write_text(f"NUMBERS = {list(range(10**20, 10**20 + 999))}\n")
    monkeypatch.setitem(sys.modules, "of_numbers", loaded)
    assert cases() == before
