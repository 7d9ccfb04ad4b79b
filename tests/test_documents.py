"""Every program and command in a document is run; every table is what the code says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import address
import made_pages
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace import PipelineConfig, errors
from headrace._language.config.sections import NodeKeys
from headrace._language.registry.discovery import CORE_BACKENDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "core" / "README.md",
    ROOT / "cli" / "README.md",
    ROOT / "testing" / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "ocr" / "README.md",
    ROOT / "examples" / "detect" / "README.md",
    ROOT / "examples" / "classify" / "README.md",
    ROOT / "examples" / "video" / "README.md",
    ROOT / "examples" / "third_party" / "README.md",
    ROOT / "examples" / "serve" / "README.md",
    ROOT / "templates" / "README.md",
    ROOT / "docs" / "README.md",
    ROOT / "docs" / "internals.md",
    ROOT / "docs" / "options.md",
    ROOT / "docs" / "batching.md",
    ROOT / "docs" / "threads_and_streams.md",
    ROOT / "docs" / "functions.md",
    ROOT / "docs" / "streams.md",
    ROOT / "docs" / "from_torchpipe.md",
    ROOT / "docs" / "production.md",
    ROOT / "docs" / "several_inputs.md",
    ROOT / "docs" / "testing.md",
    ROOT / "docs" / "when_it_fails.md",
    ROOT / "docs" / "instances_and_cores.md",
    ROOT / "examples" / "functions" / "README.md",
    ROOT / "examples" / "decoder" / "README.md",
]
# Not here: what the README shows runs in test_readme. first_backend.md is followed by test_first_backend, hooks.md and policies.md by
# test_followed_pages, the files of streams.md by test_streams_page, operating.md by test_operating_page and others, start.md by test_start_page,
# kubernetes.md by test_kubernetes and test_kubernetes_balancer, machines.md by
# test_elsewhere_pages and plugins/ray: test_ray_pages,
# interleavings.md by test_interleavings_page, why.md by test_why_page,
# models.md by libs/models: test_models_pages; other_tools.md by
# test_other_tools, from_triton.md by test_from_triton. What scripts/made_pages.py makes is not here either: test_reference,
# test_conformance and test_gallery run what it shows.
BY_DETECT = "test_example_detect, those that run the engine on a device"
RUN_ELSEWHERE = {
    "python examples/video/prepare.py": "plugins/vision: test_vision_example",
    "headrace video examples/video/video.toml": "plugins/vision: test_vision_example",
    "python examples/video/evaluate.py": "plugins/vision: test_vision_example",
    "headrace video examples/video/plates.toml": "plugins/vision: test_vision_example",
    "headrace video examples/video/tiles.toml": "plugins/vision: test_vision_example",
    "headrace video examples/video/vectors.toml": "plugins/vision: test_vision_example",
    "./dev demo": "test_dev",
    "./dev page": "test_dev",
    "./dev install": "test_dev",
    "./dev install serve": "test_start_page",
    "./dev test": "it is what runs this test",
    "./dev test all": "it is what .ci/run runs beside this test",
    "./dev env": "it is the first step of ./dev test",
    "./dev docs": "test_site, in ./dev test docs",
    ". .venv/bin/activate": "it is of the shell",
    "headrace run examples/ocr/line.toml examples/ocr/made/lines": "test_example_ocr",
    "headrace run examples/ocr/line.toml examples/ocr/made/broken": "test_example_ocr",
    "python examples/ocr/prepare.py": "test_example_ocr",
    "python examples/ocr/compare.py": "test_example_ocr",
    "headrace run examples/ocr/page.toml examples/ocr/made/pages/label.png": "test_example_ocr_page",
    "headrace run examples/ocr/page_script.toml examples/ocr/made/pages/label.png": "test_example_ocr_page",
    "headrace run --json examples/ocr/page.toml examples/ocr/made/pages > "
    "examples/ocr/made/pages.jsonl": "test_example_ocr_page",
    "python examples/ocr/draw.py examples/ocr/made/pages.jsonl": "test_example_ocr_page",
    "python examples/ocr/compare_pages.py --rounds 1 --passes 1": "test_example_ocr_page",
    "python examples/ocr/prepare.py --into examples/detect/made": BY_DETECT,
    "headrace trt build examples/detect/made/models/det.onnx -o examples/detect/made/det.plan "
    "--set image_input=true --set mean=127.5 --set std=127.5 --min-shapes x:1x32x32x3 "
    "--opt-shapes x:1x992x992x3 --max-shapes x:1x2944x2944x3": BY_DETECT,
    "headrace check examples/detect/detect.toml": BY_DETECT,
    "headrace explain examples/detect/detect.toml": BY_DETECT,
    "headrace run --json examples/detect/detect.toml examples/detect/made/pages > "
    "examples/detect/made/boxes.jsonl": BY_DETECT,
    "python examples/detect/draw.py examples/detect/made/boxes.jsonl": BY_DETECT,
    "python examples/detect/compare_boxes.py": BY_DETECT,
    "headrace check examples/ocr/page_trt.toml": BY_DETECT,
    "python examples/ocr/compare_pages.py --config examples/ocr/page_trt.toml --against "
    "examples/ocr/page.toml": BY_DETECT,
    "python examples/functions/prepare.py": "test_example_functions",
    "python examples/embeddings/prepare.py examples/embeddings/made/encoder": "test_example_embeddings",
    "headrace check examples/embeddings/made/encoder": "test_example_embeddings",
    "headrace serve examples/embeddings/made/encoder --api openai --port 8000": "test_example_embeddings",
    "python examples/embeddings/client.py http://localhost:8000": "plugins/serve: test_serve_apis",
    "python examples/decoder/train.py": "test_example_decoder",
    "python examples/decoder/write.py": "test_example_decoder",
    "headrace run examples/functions/digits.toml examples/functions/made": "test_example_functions",
    "python examples/classify/prepare.py": "test_example_classify",
    "headrace run examples/classify/classify.toml examples/classify/made/digits": "the same",
    "headrace serve examples/classify/classify.toml --port 8000": "the same",
    "curl -s --data-binary @examples/classify/made/digits/000.png "
    "localhost:8000/run/classify": "the same",
    "python examples/classify/prepare_torch.py": "plugins/torch: test_torch_example",
    "headrace run examples/classify/torch.toml examples/classify/made/digits": "the same",
    "headrace run examples/classify/torchvision.toml PICTURES": "the same",
    "headrace serve examples/serve/models --port 8000": "test_example_serve",
    "headrace models examples/serve/models": "test_example_serve",
    "headrace serve examples/ocr/page.toml --port 8000 --cors-origin "
    "http://localhost:8080": "test_example_serve",
    "curl -s --data-binary @examples/ocr/made/pages/letter.png "
    "http://localhost:8000/run/page": "test_example_serve",
    "curl -s -F a=@examples/ocr/made/pages/letter.png -F "
    "b=@examples/ocr/made/pages/label.png http://localhost:8000/run/page": "test_example_serve",
    "python examples/serve/read_page.py localhost:8000 examples/ocr/made/pages/letter.png "
    "examples/ocr/made/pages/label.png": "test_example_serve",
    "python -m http.server 8080 --directory examples/serve": "test_example_serve",
    'curl -s -H "Accept: image/jpeg" --data-binary @photo.jpg http://localhost:8000/run/thumbnail '
    "-o small.jpg": "test_example_serve",
    "curl -s http://localhost:8000/v2/models/thumbnail": "test_example_serve",
    "python examples/serve/client.py localhost:8000 photo.jpg photo.jpg": "test_example_serve",
    "headrace serve examples/serve/embed.toml --models examples/serve/iris_serve.toml "
    "--port 8000": "test_example_serve",
    """curl -s --json '{"data": [5.1, 3.5, 1.4, 0.2]}' http://localhost:8000/run/iris""": "test_example_serve",
    """curl -s --json '{"text": "the lazy dog"}' http://localhost:8000/run/embed""": "test_example_serve",
    "headrace new backend Scale": "test_packaging",
    "headrace conformance OnnxTensor": "test_conformance, with all of its distribution",
    "headrace conformance Denoise FileType Retry": "test_third_party",
    "headrace run examples/third_party/line.toml examples/ocr/made/lines": "test_third_party",
    f"git clone {address.CLONE}": "test_readme",
    "cd headrace": "test_readme",
    "./dev page --open": "test_dev",
    "pip download --no-deps --only-binary :all: --dest voice silero-vad": "test_streams_page",
    "python -m zipfile -e voice/silero_vad-*.whl voice": "test_streams_page",
    "python voice.py": "test_streams_page",
    "python served.py": "test_streams_page",
}
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]


def commands() -> list[str]:
    lines = [
        line
        for document in DOCUMENTS
        for block in blocks(document, "console")
        for line in block.splitlines()
    ]
    return sorted({line.strip()[2:].strip() for line in lines if line.strip().startswith("$ ")})


OF_PROGRAMS = [
    *(ROOT / "libs" / name / "README.md" for name in ("formats", "models", "process")),
    *(ROOT / "plugins" / name / "README.md" for name in ("flow", "remote", "serve")),
    ROOT / "docs" / "models.md",
    ROOT / "docs" / "machines.md",
]
"""Documents of which the programs run here, but those of Ray, and the commands elsewhere."""

THEIRS = ("# voice.py\n", "# served.py\n", "# wsgi.py\n", "# views.py\n")
"""Programs that need more than is here: test_streams_page and test_production_page run them, where that can be installed."""
PROGRAMS = [
    pytest.param(body, id=f"{document.parent.name}-{document.name}-{index}")
    for document in [*DOCUMENTS, *OF_PROGRAMS]
    if "examples" not in document.parts and document != ROOT / "README.md"
    for index, body in enumerate(blocks(document, "python"))
    if not body.startswith(THEIRS) and "import ray" not in body
]


@pytest.fixture(scope="module")
def run_program():
    """Give a function that runs a program as a process of its own, with every warning an error."""
    interpreter = [sys.executable, "-W", "error"]

    def run_anew(program, folder):
        done = subprocess.run(
            [*interpreter, "-c", program], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr, done.stdout

    if not hasattr(os, "fork"):
        yield run_anew
        return
    command = [*interpreter, Path(__file__).with_name("forked_programs.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:

        def run(program, folder):
            process.stdin.write(json.dumps({"program": program, "folder": str(folder)}) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            return status, *((folder / name).read_text("utf-8") for name in ("stderr", "stdout"))

        yield run


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_a_document_runs_as_printed(program, run_program, tmp_path):
    status, wrong, printed = run_program(program, tmp_path)
    assert (status, wrong) == (0, "")
    said = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    if said or "print(" not in program:
        assert printed.splitlines() == said


LINK = re.compile(r"\[[^\]]*\]\(([^)#:]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Return the text of each document: of those that are made, as they are made now."""
    written = {*DOCUMENTS, *(ROOT / "docs").rglob("*.md")}
    found = {
        path: path.read_text(encoding="utf-8") for path in written if not made_pages.is_made(path)
    }
    return found | made_pages.pages()


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


def documents_of_the_clone() -> list[Path]:
    found = []
    for folder, inside, files in os.walk(ROOT):
        # Not the environments and caches, in which other tests may write meanwhile.
        inside[:] = [name for name in inside if not name.startswith(".") and name != "build"]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return found


def test_no_page_of_a_clone_links_to_a_page_that_is_made():
    pages = [page for page in documents_of_the_clone() if not made_pages.is_made(page)]
    assert {*DOCUMENTS} <= {*pages}
    lost = [
        (page.relative_to(ROOT).as_posix(), target)
        for page in pages
        for target, _ in LINK.findall(without_blocks(page.read_text(encoding="utf-8")))
        if (there := Path(os.path.normpath(page.parent / target))).is_relative_to(ROOT)
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
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    made = {str(path): text for path, text in texts.items() if made_pages.is_made(path)}
    assert json.loads(done.stdout) == made


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
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return {ROOT / name for name in done.stdout.splitlines()}

    made = {path for path in texts if made_pages.is_made(path)}
    assert len(made) > 100
    assert told("check-ignore", "--no-index", *map(str, made)) == made
    assert not made & told("ls-files", "docs")


def test_who_is_told_to_install_headrace_is_told_from_where():
    pages = documents_of_the_clone()
    assert {*DOCUMENTS} <= {*pages}
    installs = re.compile(r"pip install [^`\n]*(?<![/.\w-])headrace\b(?!-watch)")
    silent = [
        page.relative_to(ROOT).as_posix()
        for page in pages
        if page.name != "CHANGELOG.md"
        and installs.search(text := page.read_text(encoding="utf-8"))
        and not re.search(r"\./dev install|#install|In a clone", text)
    ]
    assert silent == []


def test_the_policies_say_how_stable_the_version_is_that_is_here():
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    (minor,) = re.findall(r"^## How stable is (\d+\.\d+)$", text, re.MULTILINE)
    assert version("headrace").startswith(f"{minor}.")
    major, number = minor.split(".")
    said = text.partition(f"## How stable is {minor}\n")[2].partition("\n## ")[0]
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
    assert words in (ROOT / "docs" / "when_it_fails.md").read_text(encoding="utf-8")
    with pytest.raises(errors.ConfigError) as caught:
        PipelineConfig.load(SAYS[words])
    assert words in str(caught.value)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_document_is_run_by_some_test(command):
    if command in RUN_ELSEWHERE or re.match(r"(python -m )?pip install ", command):
        return  # what pip installs, test_packaging installs
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr


def test_dev_alone_lists_its_commands():
    done = subprocess.run([str(ROOT / "dev")], capture_output=True, text=True, check=True, cwd=ROOT)
    for command in ("demo", "test", "docs", "check", "env", "wheels", "bench"):
        assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE)


def test_dev_refuses_an_unknown_command():
    done = subprocess.run([str(ROOT / "dev"), "tst"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tst" in done.stderr


def test_the_shell_scripts_parse():
    bash = shutil.which("bash")
    assert bash is not None
    for script in ("dev", "scripts/check", ".ci/run"):
        subprocess.run([bash, "-n", str(ROOT / script)], check=True)


def codes_in(text: str) -> dict[str, str]:
    found = {}
    for line in text.partition("## Errors")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            names, codes = (re.findall(r"`(\w+)`", cell) for cell in cells[:2])
            found.update(zip(names, codes, strict=True))
    return found


def test_the_table_of_errors_is_that_of_the_module():
    table = codes_in((ROOT / "core" / "README.md").read_text(encoding="utf-8"))
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
    text = (ROOT / "core" / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert set(NodeKeys.model_fields) <= named


def test_every_word_of_core_stands_in_the_documentation():
    text = (ROOT / "core" / "README.md").read_text(encoding="utf-8")
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
