"""Suppression of boxes beside that of torchvision: `./dev test torch` runs it, where torch is installed."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_vision.boxes import best_boxes

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
