"""Detections beside torchvision, Ultralytics, RF-DETR and SAHI: `./dev test torch` runs it, where torch is installed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from environments import environment_with
from processes import run_process

from headrace_vision import detect
from headrace_vision.models.boxes import best_boxes

torch = pytest.importorskip("torch", reason="./dev test torch runs this")
ops = pytest.importorskip("torchvision.ops")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("agnostic", [False, True])
def test_suppression_equals_that_of_torchvision(seed, agnostic):
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 50, (80, 2))
    boxes = np.hstack([corner, corner + random.uniform(5, 30, (80, 2))]).astype(np.float32)
    scores = random.permutation(np.linspace(0.1, 0.9, 80)).astype(np.float32)
    classes = random.integers(0, 3, 80)
    tensors = [torch.from_numpy(one) for one in (boxes, scores)]
    if agnostic:
        expected = ops.nms(*tensors, 0.44)
    else:
        expected = ops.batched_nms(*tensors, torch.from_numpy(classes), 0.44)
    found = best_boxes(
        boxes.astype(np.float64), scores, classes, iou_threshold=0.44, class_agnostic=agnostic
    )
    assert found.tolist() == expected.tolist()
    assert 3 < len(found) < 80


HERE = Path(__file__).parent
LIBRARIES = ("ultralytics==8.4.190", "rfdetr==1.11.2", "sahi==0.12.8", "shapely>=2")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the libraries answer today, and the folder of the networks."""
    # torch and what else they need are those of this environment.
    python = environment_with(*LIBRARIES, beside=True) / "python"
    folder = tmp_path_factory.mktemp("peers")
    settings = {"YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "false"}
    done = run_process([python, HERE / "make_peers.py", folder / "peers.npz", "--networks"], cwd=folder, env={**os.environ, **settings})  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(folder / "peers.npz") as file:
        return dict(file), folder


@pytest.mark.peers
def test_the_file_says_what_the_libraries_answer(answers):
    with np.load(HERE / "peers.npz") as file:
        for name in file:
            np.testing.assert_allclose(file[name], answers[0][name], rtol=1e-6, err_msg=name)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["yolov8n-seg", "yolo11n-pose"])
def test_detect_finds_with_an_export_what_ultralytics_does(answers, name):
    found, folder = answers
    (frame,) = detect(folder / f"{name}.onnx", found["picture"], score_threshold=1e-9)
    # The last ones have nearly equal scores.
    ours, boxes = frame.result[:20], found[f"{name}_boxes"][:20]
    np.testing.assert_allclose(ours.xyxy, boxes[:, :4], atol=0.02)
    np.testing.assert_allclose(ours.confidence, boxes[:, 4], rtol=1e-3)
    assert ours.class_id.tolist() == boxes[:, 5].tolist()
    if ours.mask is not None:
        masks = found[f"{name}_masks"][:20]
        assert (np.asarray(ours.mask) != masks).sum() <= 0.001 * masks.sum()
    else:
        points = found[f"{name}_points"][:20]
        np.testing.assert_allclose(ours.data["keypoints"], points, atol=0.02)
    assert len(boxes) == 20
