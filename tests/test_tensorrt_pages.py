"""The pages about TensorRT: every file is written and every command run, in the order of the pages.

A block whose first line says ``gpu`` needs a device: a test marked `gpu` follows all of every page,
the others what is left without.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from distributions import tomllib
from following import Needs, follow
from pages import Page, run, shell

pytestmark = pytest.mark.slow

PAGES = {
    name: Page(f"docs/tensorrt/{name}.md")
    for name in ("README", "running", "building", "finding_faults")
}


def polygraphy(command: str):
    """Run a command of Polygraphy in the folder of today, over TensorRT for RTX."""
    return shell(command, Path.cwd(), POLYGRAPHY_USE_TENSORRT_RTX="1")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The model that the first page makes."""
    folder = tmp_path_factory.mktemp("model")
    run(f"python {PAGES['README'].write(folder, 'make_model.py') / 'make_model.py'}", folder)
    return folder / "net.onnx"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_without_a_device(page, model, tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    shutil.copyfile(model, "net.onnx")
    if recipes(device=False, pages=[page]):
        pytest.importorskip("polygraphy")
    monkeypatch.setenv("POLYGRAPHY_USE_TENSORRT_RTX", "1")
    follow(PAGES[page], tmp_path, Needs(mark="gpu", here=True))


def recipes(device: bool, pages: Iterable[str] = ("finding_faults",)) -> list[str]:
    return [
        command
        for page in pages
        for block in PAGES[page].all_blocks
        for command, _ in block.commands
        if command.startswith("polygraphy ") and (block.mark == "gpu") == device
    ]


def test_the_comparison_of_the_page_finds_the_first_wrong_tensor(model, tmp_path, monkeypatch):
    """ONNX Runtime stands in for the plan: once as it should be, once with a wrong matrix."""
    pytest.importorskip("polygraphy")
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(model, "net.onnx")
    wrong = onnx.load("net.onnx")
    (matrix,) = [tensor for tensor in wrong.graph.initializer if tensor.name == "m"]
    values = onnx.numpy_helper.to_array(matrix)
    matrix.CopyFrom(onnx.numpy_helper.from_array(1.5 * values, "m"))
    onnx.save(wrong, "wrong.onnx")
    expected, *_ = recipes(device=False)
    compared, *_ = recipes(device=True)
    assert polygraphy(expected).returncode == 0
    for file, status, failed in (("net", 0, []), ("wrong", 1, ["y"])):
        stand_in = f"{file}.onnx --onnxrt --onnx-outputs mark all"
        done = polygraphy(compared.replace("compared.plan --trt", stand_in))
        assert done.returncode == status, done.stdout + done.stderr
        printed = done.stdout + done.stderr
        assert re.findall(r"FAILED \| Output: '(\w+)'", printed) == failed
        assert re.findall(r"PASSED \| Output: '(\w+)'", printed)[:4] == ["c", "r", "p", "f"]


def test_polygraphy_knows_the_flags_of_what_needs_a_device():
    pytest.importorskip("polygraphy")
    seen = set()
    for command in recipes(device=True, pages=PAGES):
        words = shlex.split(command)
        tool = words[:2] if words[1] == "run" else words[:3]
        helped = polygraphy(shlex.join([*tool, "--help"]))
        assert helped.returncode == 0, helped.stderr
        known = set(re.findall(r"--[a-z][\w-]*", helped.stdout))
        assert {word for word in words if word.startswith("--")} <= known, command
        seen.add(" ".join(tool[1:]))
    assert seen == {"run", "inspect model"}


def test_every_option_of_a_page_exists():
    from headrace._language.config.sections import NodeKeys
    from headrace_trt.backends.options import BuildOptions, LoadOptions
    from headrace_trt.running.options import InferOptions

    classes = (BuildOptions, InferOptions, LoadOptions, NodeKeys)
    known = {name for cls in classes for name in cls.model_fields}
    known |= {field.alias for field in NodeKeys.model_fields.values() if field.alias}
    for page in PAGES.values():
        for table in page.blocks("toml"):
            assert set(tomllib.loads(table)) <= known
        written = re.findall(r"`([a-z_0-9]+) = [^`]+`", page.text)
        assert set(written) <= known, page.path


def test_programs_that_need_a_device_are_python():
    programs = {**PAGES["README"].files, **PAGES["building"].files}
    assert len([compile(programs[name], name, "exec") for name in programs if ".py" in name]) >= 4


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_a_device(page, model, tmp_path, monkeypatch):
    for needed in ("onnxruntime", "typer", "rich"):
        pytest.importorskip(needed)
    from headrace_trt.libraries.cuda import load_cuda
    from headrace_trt.libraries.tensorrt import find_library

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path / "cache"))
    if find_library().is_rtx:
        monkeypatch.setenv("POLYGRAPHY_USE_TENSORRT_RTX", "1")
    if recipes(device=False, pages=[page]) or recipes(device=True, pages=[page]):
        pytest.importorskip("polygraphy")
    shutil.copyfile(model, tmp_path / "net.onnx")
    # nsys starts the installed command
    here = {
        "nsys": shutil.which("nsys") and shutil.which("headrace"),
        "trtexec": shutil.which("trtexec"),
    }
    missing = [f"^{tool} " for tool, path in here.items() if not path]
    follow(PAGES[page], tmp_path, Needs(left_out="|".join(missing)))
    if "trtexec" in PAGES[page].text and not here["trtexec"]:  # all other commands were run
        pytest.skip("trtexec is not installed")
