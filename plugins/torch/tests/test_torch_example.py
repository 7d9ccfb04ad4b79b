"""examples/classify/torch.toml as a user runs it: each form of the network, on the CPU and on a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import copy_examples

import headrace

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "classify"
WRITTEN = re.findall(
    r'^(?:# )?network = "(.*)"$', (EXAMPLE / "torch.toml").read_text("utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def root(tmp_path_factory, run_here) -> Path:
    """A folder with a copy of the example, prepared, at its place in the repository."""
    pytest.importorskip("sklearn", reason="the digits are in scikit-learn")
    pytest.importorskip("cv2")
    folder = copy_examples(tmp_path_factory.mktemp("root"), "classify")
    assert "in torch" in run_here("examples/classify/prepare_torch.py", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def made(root) -> Path:
    return root / "examples" / "classify" / "made"


@pytest.fixture(scope="module")
def expected(made) -> dict[str, str]:
    """The class of each picture that was held out, as scikit-learn says."""
    rows = (made / "expected.tsv").read_text("utf-8").splitlines()
    return dict(row.split("\t") for row in rows)


def with_network(root, line, **keys) -> Path:
    """A copy of torch.toml in which another line of the same file chooses the network."""
    text = (EXAMPLE / "torch.toml").read_text("utf-8")
    text = re.sub(r'^network = ".*"$', f'network = "{line}"', text, count=1, flags=re.MULTILINE)
    for key, value in keys.items():
        text = re.sub(rf"^{key} = .*$", f'{key} = "{value}"', text, count=1, flags=re.MULTILINE)
    changed = root / "examples" / "classify" / "changed.toml"
    changed.write_text(text, encoding="utf-8")
    return changed


def right(pipe, made, expected):
    """Run all pictures that were held out; give the part that is right."""
    paths = sorted((made / "digits").iterdir())
    answers = pipe([{"data": path.read_bytes()} for path in paths])
    assert all(0.1 <= answer["result"][0]["score"] <= 1 for answer in answers)
    found = [answer["result"][0]["label"] for answer in answers]
    return np.mean([one == expected[path.name] for one, path in zip(found, paths, strict=True)])


def run(root, *command):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )


@pytest.mark.parametrize("line", WRITTEN)
def test_each_form_of_the_network_is_right_on_what_was_held_out(root, made, expected, line):
    config = with_network(root, line)
    with headrace.pipe(str(config)) as pipe:
        assert right(pipe, made, expected) >= 0.97


def test_the_forms_are_those_of_the_readme_and_each_is_a_different_one():
    assert len(set(WRITTEN)) == 4
    readme = (EXAMPLE / "README.md").read_text("utf-8")
    assert [line for line in WRITTEN if f"`{line}`" not in readme] == []


@pytest.mark.gpu
@pytest.mark.parametrize("line", WRITTEN)
def test_the_device_is_one_key(root, made, expected, line):
    if line.startswith("OnnxTensor"):
        onnxruntime = pytest.importorskip("onnxruntime")
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            pytest.skip("this ONNX Runtime is without CUDA")
        if not (made / "digits.onnx").exists():
            pytest.skip("onnxscript is not installed")
    config = with_network(root, line, device="cuda")
    with headrace.pipe(str(config)) as pipe:
        assert right(pipe, made, expected) >= 0.97


def test_the_commands_of_the_readme(root, expected):
    done = run(
        root, "headrace", "run", "examples/classify/torch.toml", "examples/classify/made/digits"
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [f"examples/classify/made/digits/{n}" for n in expected]
    assert sum(expected[Path(path).name] == name for path, name, *_ in rows) >= 0.97 * len(rows)


def test_what_is_no_picture_fails_alone(root, made, expected):
    good = made / "digits" / "000.png"
    requests = [{"data": good.read_bytes()}, {"data": b"no picture"}, {"data": good.read_bytes()}]
    line = next(one for one in WRITTEN if "module=" in one)
    wrong = pytest.raises(headrace.errors.RequestsFailed)
    with headrace.pipe(str(with_network(root, line))) as pipe, wrong as failed:
        pipe(requests)
    assert [type(error) for error in failed.value.errors] == [
        type(None),
        headrace.errors.InputError,
        type(None),
    ]
    assert requests[0]["result"] == requests[2]["result"]
    assert requests[0]["result"][0]["label"] == expected["000.png"]


def test_the_same_file_with_a_network_of_torchvision(root, made):
    """Random weights: what it says means nothing, but is what torchvision says by itself."""
    import cv2

    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(5)
    network = models.resnet18().eval()
    torch.save(network.state_dict(), made / "resnet18.pth")
    names = models.ResNet18_Weights.DEFAULT.meta["categories"]
    noise = np.random.default_rng(2).integers(0, 256, (5, 7, 3), np.uint8)
    picture = cv2.resize(noise, (300, 200), interpolation=cv2.INTER_CUBIC)
    done, file = cv2.imencode(".png", picture)
    assert done

    rgb = cv2.resize(picture, (224, 224), interpolation=cv2.INTER_LINEAR)[:, :, ::-1]
    sample = torch.from_numpy(rgb.astype(np.float32) / 255).permute(2, 0, 1)
    mean, std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    sample = (sample - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    with torch.inference_mode():
        wanted = network(sample[None]).softmax(1)[0]

    with headrace.pipe(str(root / "examples" / "classify" / "torchvision.toml")) as pipe:
        best = pipe({"data": file.tobytes()})["result"][0]
    assert best["label"] == names[int(wanted.argmax())]
    assert best["score"] == pytest.approx(float(wanted.max()), abs=2e-4)
