"""The plugins of third parties: they install, pass the kit, and compose with cv and ort."""

from __future__ import annotations

import json
import shlex
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pages
import pytest
from pages import ROOT, Page, copy_examples

FOLDER = ROOT / "examples" / "third_party"
PLUGINS = {
    "headrace-denoise": "Denoise",
    "headrace-file-type": "FileType",
    "headrace-retry": "Retry",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("magika") and find_spec("skimage")), reason="needs both"),
]


def run(*command, cwd=ROOT, status=0, **environ):
    done = pages.shell(shlex.join(["python", "-m", *map(str, command)]), cwd, **environ)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> str:
    """A folder for PYTHONPATH with all, built and installed; the environment stays as it is."""
    folder = tmp_path_factory.mktemp("site")
    for name in PLUGINS:
        out = tmp_path_factory.mktemp("wheel")
        source = tmp_path_factory.mktemp("source") / name
        shutil.copytree(FOLDER / name, source)
        run("build", "--wheel", "--no-isolation", "-o", out, source)
        (wheel,) = out.iterdir()
        zipfile.ZipFile(wheel).extractall(folder)
    return str(folder)


@pytest.fixture(scope="module")
def example(ocr_made, tmp_path_factory) -> Path:
    """A copy of the configuration and of the example it extends, prepared."""
    folder = copy_examples(tmp_path_factory.mktemp("root"), "ocr") / "examples"
    shutil.copytree(ocr_made, folder / "ocr" / "made")
    (folder / "third_party").mkdir()
    shutil.copyfile(FOLDER / "line.toml", folder / "third_party" / "line.toml")
    return folder


@pytest.mark.parametrize("name", PLUGINS)
def test_it_was_made_from_the_template(name, tmp_path):
    run("headrace", "new", "backend", PLUGINS[name], cwd=tmp_path)
    made = tmp_path / name
    paths = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert all((FOLDER / name / path).is_file() for path in paths)
    for path in (".github/workflows/ci.yml", "tests/test_conformance.py", "tests/test_pipeline.py"):
        assert (FOLDER / name / path).read_bytes() == (made / path).read_bytes()


@pytest.mark.parametrize("name", PLUGINS)
def test_its_own_tests_pass(name, site, tmp_path):
    shutil.copytree(FOLDER / name, tmp_path / name)
    # The rules of the kit are what `headrace conformance` runs below.
    apart = "--ignore tests/test_conformance.py"
    command = Page(FOLDER / name / "README.md").command("pytest")
    pages.run(f"{command} -q {apart}", tmp_path / name, PYTHONPATH=site)


def test_all_are_certified(site, tmp_path):
    certificate = tmp_path / "certificate.json"
    command = Page("examples/third_party/README.md").command("headrace conformance")
    pages.run(f"{command} --certificate {certificate}", ROOT, PYTHONPATH=site)
    text = certificate.read_text(encoding="utf-8")
    assert json.loads(text)
    for backend in PLUGINS.values():
        assert backend in text


def test_nothing_heavy_is_loaded_to_check_a_configuration(site):
    code = (
        "import headrace, sys;"
        "headrace.explain({'backend': 'S[FileType,DecodeMat,Denoise,Mat2Tensor]'});"
        "assert 'headrace_denoise.backend' in sys.modules;"
        "assert not {'skimage', 'magika', 'numpy', 'onnxruntime'} & set(sys.modules)"
    )
    pages.run(f"python -c {shlex.quote(code)}", ROOT, PYTHONPATH=site)


def test_a_configuration_composes_them_with_cv_and_ort(site, example):
    # As the command of the page, with other pictures.
    command = Page("examples/third_party/README.md").command("third_party/line.toml")
    lines = example / "ocr" / "made" / "lines"
    names = [path.name for path in sorted(lines.glob("default-*"))]
    (lines.parent / "mixed").mkdir()
    for name in names:
        shutil.copyfile(lines / name, lines.parent / "mixed" / name)
    (lines.parent / "mixed" / "page.jpg").write_text("# No picture\n\nBut *Markdown*.\n" * 20)
    command = command.replace("examples/", f"{example}/").replace("made/lines", "made/mixed")
    done = pages.shell(f"{command} --json", example, PYTHONPATH=site)
    assert done.returncode == 1, done.stderr
    answers = {Path(row["path"]).name: row for row in map(json.loads, done.stdout.splitlines())}
    table = (lines.parent / "expected.tsv").read_text(encoding="utf-8")
    expected = dict(row.split("\t") for row in table.splitlines())
    right = [name for name in names if answers[name]["result"]["text"] == expected[name]]
    assert len(names) >= 12
    assert len(right) >= len(names) - 1
    refused = answers["page.jpg"]["error"]
    assert refused["code"] == "input"
    assert "expected jpeg or png or webp" in refused["message"]
    assert "FileType" in refused["message"]


def test_a_name_of_a_type_that_magika_does_not_know_ends_the_setup(site, example):
    config = example / "third_party" / "wrong.toml"
    config.write_text("backend = 'FileType'\nallowed = ['jpgg']\n")
    done = run("headrace", "run", config, ROOT / "README.md", status=2, PYTHONPATH=site)
    assert "'jpeg'" in done.stderr
