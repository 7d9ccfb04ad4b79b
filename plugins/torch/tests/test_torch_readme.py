"""The program of the README runs, and prints what it says; its pipeline gives what the libraries give."""

import numpy as np
import pytest
import torch
from pages import Page

import headrace

README = Page("plugins/torch/README.md")


def test_the_program_of_the_readme_prints_what_it_says(tmp_path, run_here):
    assert run_here("README", cwd=tmp_path, code=README.block("python")) == "torch.Size([10])\n"


def test_a_module_becomes_a_pipeline_as_the_page_of_what_one_has_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = Page("docs/i_have.md", "A torch module")
    assert (
        'Then `backend = "TorchModule"` and `model = "net.pt2"` are the pipeline.' in section.text
    )
    torch.manual_seed(4)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10)).eval()
    exec(section.block("python"), {"net": net, "torch": torch})
    pictures = torch.rand(3, 3, 8, 8)
    with headrace.pipe(
        {"backend": "TorchModule", "model": "net.pt2", "device": "cpu", "max": 8}
    ) as pipe:
        found = [one["result"] for one in pipe([{"data": one} for one in pictures])]
    with torch.inference_mode():
        assert torch.allclose(torch.stack(found), net(pictures), atol=1e-6)


def test_the_pipeline_of_the_readme_gives_what_the_libraries_give(tmp_path):
    cv2 = pytest.importorskip("cv2")
    models = pytest.importorskip("torchvision.models")
    written = README.block("toml")
    assert 'device = "cuda:0"' in written
    config = tmp_path / "pipeline.toml"
    config.write_text(written.replace("cuda:0", "cpu"), encoding="utf-8")
    noise = np.random.default_rng(3).integers(0, 256, (5, 6, 7, 3), np.uint8)
    pictures = [cv2.resize(one, (300, 240), interpolation=cv2.INTER_CUBIC) for one in noise]
    files = [cv2.imencode(".png", one)[1].tobytes() for one in pictures]

    torch.manual_seed(1)
    with headrace.pipe(str(config)) as pipe:
        found = [int(one["result"]) for one in pipe([{"data": file} for file in files])]

    torch.manual_seed(1)
    network = models.resnet18().eval()
    rgb = np.stack([cv2.resize(one, (224, 224))[:, :, ::-1] for one in pictures])
    mean, std = np.float32([123.675, 116.28, 103.53]), np.float32([58.395, 57.12, 57.375])
    with torch.inference_mode():
        scores = network(torch.from_numpy((rgb - mean) / std).permute(0, 3, 1, 2))
    assert found == scores.argmax(1).tolist()
