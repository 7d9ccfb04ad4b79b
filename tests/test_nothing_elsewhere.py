"""Nothing is written into the user's home, and no name is looked up: the demo, the examples, the commands.

What is told to a child process is only where its home and its programs are, so it gets nothing of what keeps
libraries quiet in the environment of the tests, and none of what tells them that they are tested.
"""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import certifi
import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {"python": [sys.executable], "headrace": [sys.executable, "-m", "headrace"]}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="homes are named otherwise elsewhere"),
]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return what a child is told: where its home and its programs are, and no XDG folder."""
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "PATH": os.environ["PATH"], **more}


def tree(folder: Path) -> dict[str, int]:
    """Return everything in a folder with its time of change."""
    return {
        str(path.relative_to(folder)): path.lstat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


@pytest.fixture(scope="module")
def repository(ocr_made, tmp_path_factory) -> Path:
    """A copy of the examples, with the models and pictures of the first."""
    folder = tmp_path_factory.mktemp("repository")
    made = shutil.ignore_patterns("made", "__pycache__")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=made)
    shutil.copytree(ocr_made, folder / "examples" / "ocr" / "made")
    (folder / "examples" / "detect" / "made").symlink_to(folder / "examples" / "ocr" / "made")
    return folder


OF_VISION = """
from headrace_vision import detect
print(next(iter(detect("examples/video/made/detector.onnx", "examples/video/made/easy.mp4"))))
"""

OF_TENSORRT = """
import numpy, onnx
from headrace_trt import quantize
model = onnx.load("examples/ocr/made/models/cls.onnx")
numpy.savez("samples.npz", **{model.graph.input[0].name: numpy.zeros((1, 3, 48, 192), "float32")})
print(len(quantize(model, "int8", "samples.npz").graph.node))
"""

COMMANDS = {
    "ocr": [
        "python examples/ocr/prepare.py",
        "headrace run examples/ocr/line.toml examples/ocr/made/lines",
        "headrace run examples/ocr/page.toml examples/ocr/made/pages/letter.png",
    ],
    "detect": [
        "headrace check examples/detect/detect_onnx.toml",
        "headrace run examples/detect/detect_onnx.toml examples/detect/made/pages/letter.png",
    ],
    "functions": [
        "python examples/functions/prepare.py",
        "headrace run examples/functions/digits.toml examples/functions/made/0000-0.png",
    ],
    "serve": ["headrace models examples/serve/models"],
    "video": [
        "python examples/video/prepare.py",
        "headrace video examples/video/video.toml examples/video/made/easy.mp4",
        ("python", "-c", OF_VISION),
    ],
    "trt": [("python", "-c", OF_TENSORRT)],
    "commands": [
        "headrace plugins list",
        "headrace check examples/ocr/page.toml --build",
        "headrace explain examples/ocr/page.toml --graph mermaid",
        "headrace bench Identity --data uint8:16 --clients 1 --seconds 0.1 --plot plot.html",
        "headrace new backend Foo",
    ],
}
NEEDED = {
    "functions": ["sklearn"],
    "video": ["onnx", "trackers"],
    "trt": ["onnx"],
    "commands": ["matplotlib"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_written_into_the_home_of_the_user(name, repository, tmp_path):
    for module in ("rapidocr", *NEEDED.get(name, ())):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    told = environment(tmp_path / "home")
    (tmp_path / "home" / ".profile").write_text("# here before\n")
    before = tree(tmp_path / "home")
    for command in COMMANDS[name]:
        program, *rest = command.split() if isinstance(command, str) else command
        done = run_process([*PROGRAMS[program], *rest], cwd=repository, env=told)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert tree(tmp_path / "home") == before, command


def test_a_server_writes_nothing_into_the_home_of_the_user(repository, tmp_path):
    told = environment(tmp_path / "home")
    command = ["serve", "examples/ocr/page.toml", "--port", "0", "--ui"]
    server = subprocess.Popen(
        [*PROGRAMS["headrace"], *command],
        cwd=repository,
        env=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with server:
        printed = []
        for line in server.stdout:
            printed.append(line)
            if "live page at" in line:
                server.terminate()
    assert server.returncode == 0, "".join(printed)
    assert tree(tmp_path / "home") == {}


# ONNX Runtime, as the one library that calls its maker.

PIPELINE = """
import sys
import headrace, numpy

with headrace.pipe({"backend": "OnnxTensor", "model": sys.argv[1]}) as pipe:
    print(pipe({"data": numpy.ones(3, numpy.float32)})["result"].tolist(), flush=True)
    sys.stdin.read()
"""


def started(before: list[str], model: Path, told: dict[str, str]) -> subprocess.Popen[str]:
    """Start a pipeline that has answered, and waits for the end of its input."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", PIPELINE, str(model)],
        env=told,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "[1.0, 1.0, 1.0]\n"
    return process


@pytest.fixture
def model(tmp_path) -> Path:
    onnx = pytest.importorskip("onnx")
    kind = onnx.TensorProto.FLOAT
    shown = [onnx.helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "graph", shown[:1], shown[1:])
    opset = onnx.helper.make_opsetid("", 17)
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def strace() -> str:
    """Return the path of strace, or skip the test."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed")
    if subprocess.run([found, "-o", os.devnull, "true"], capture_output=True).returncode:
        pytest.skip("no process may be traced here")
    return found


def test_a_pipeline_calls_nobody_and_looks_up_no_name(model, tmp_path):
    """It is watched for longer than a pipeline that is allowed to takes until it calls its library's maker."""
    calls = tmp_path / "calls"
    traced = [strace(), "-f", "-qq", "-e", "trace=network", "-o", str(calls)]
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(600)
        quiet = started(traced, model, environment(tmp_path / "home"))
        # Telemetry is on here. What it sends goes to this test, whose address is that of the proxy.
        allowed = environment(
            tmp_path / "other",
            ORT_DISABLE_TELEMETRY="0",
            HTTPS_PROXY=f"http://127.0.0.1:{proxy.getsockname()[1]}",
            SSL_CERT_FILE=certifi.where(),  # without certificates it would not try
        )
        chatty = started([], model, allowed)
        if tree(tmp_path / "other"):  # older builds of ONNX Runtime have no telemetry
            proxy.accept()[0].close()
        for process in (quiet, chatty):
            process.communicate()
            assert process.returncode == 0
    found = calls.read_text().splitlines()
    assert [one for one in found if "AF_INET" in one or "connect(" in one] == []
    assert tree(tmp_path / "home") == {}


def test_who_wants_the_telemetry_of_onnx_runtime_gets_it(tmp_path):
    program = "import headrace_ort, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    for value, seen in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")):
        done = run_process(
            [sys.executable, "-c", program], env=environment(tmp_path, **value), check=True
        )
        assert done.stdout.strip() == seen


def imports_onnx_runtime(path: Path) -> bool:
    """Tell whether a source imports ONNX Runtime, or Magika, which does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return not found.isdisjoint({"onnxruntime", "magika"})


def test_every_source_that_imports_onnx_runtime_keeps_it_quiet_before():
    folders = ["core", "cli", "testing", "libs", "plugins", "examples", "benchmarks", "scripts"]
    sources = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not {"tests", "made", "templates"}.intersection(path.relative_to(ROOT).parts)
        # The first module of this package sets it for all of them.
        and "headrace_ort" not in path.parts
        and imports_onnx_runtime(path)
    ]
    assert len(sources) > 5
    loud = [
        path
        for path in sources
        if 'setdefault("ORT_DISABLE_TELEMETRY", "1")' not in path.read_text(encoding="utf-8")
    ]
    assert loud == []
