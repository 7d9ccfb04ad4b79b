"""Write what other libraries make of outputs of networks: `python make_peers.py OUT.npz`, where torch is installed.

Ultralytics, RF-DETR and SAHI answer with their own post-processing. `test_vision_peers` compares with the file, and
`test_vision_torchvision` runs this program again. With ``--networks`` it also exports networks with random weights beside the file,
and adds what Ultralytics finds with them in a picture of noise.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

CANVAS = 160
"""Side of the input, in pixels."""
CELLS = sum((CANVAS // stride) ** 2 for stride in (8, 16, 32))
IMAGES = [(120, 160), (160, 160), (97, 131), (150, 105), (48, 20)]
"""Height and width of images, in pixels. Only with the first two the padding ends between pixels of the masks."""
KEYPOINTS = (5, 3)
MASKS = 8
TILES = [(640, 480, 256, 200, 0.2), (100, 100, 128, 128, 0.2), (300, 500, 128, 96, 0.25), (129, 128, 128, 128, 0.0)]  # fmt: skip
"""Height and width of an image and of a tile, and the overlap."""


def narrow(array):
    """Return numbers that the file has in half the bytes."""
    return array.astype(np.float16).astype(np.float32)


def rows(random, count, classes, extra):
    """Return what a network says of ``count`` boxes, of which 18 are above the threshold."""
    center = random.uniform(10, CANVAS - 10, (count, 2))
    sides = random.uniform(12, 90, (count, 2))
    scores = random.uniform(0, 0.1, (count, classes))
    found = random.permutation(count)[:18]
    scores[found, random.integers(0, classes, 18)] = random.permutation(np.linspace(0.3, 0.95, 18))
    extra = np.where(np.isin(np.arange(count), found)[:, None], extra, 0)
    return narrow(np.concatenate([center, sides, scores, extra], 1))


def prototypes(random, count, side):
    """Return blobs with a ragged edge."""
    blobs = np.kron(random.normal(0, 1, (count, side // 5, side // 5)), np.ones((5, 5)))
    return narrow(blobs + random.normal(0, 0.2, blobs.shape))


def raw():
    """Return outputs of networks by name."""
    random = np.random.default_rng(7)
    coefficients = random.normal(0, 1, (CELLS, MASKS))
    places = random.uniform(0, CANVAS, (CELLS, KEYPOINTS[0], 2))
    points = np.concatenate([places, random.uniform(0, 1, (CELLS, KEYPOINTS[0], 1))], 2)
    made = {
        "segment": rows(random, CELLS, 2, coefficients).T,
        "pose": rows(random, CELLS, 1, points.reshape(CELLS, -1)).T,
        "prototypes": prototypes(random, MASKS, CANVAS // 4),
        "dets": narrow(random.uniform(0.2, 0.8, (16, 4))),
        "labels": narrow(random.normal(-1, 2, (16, 3))),
        "masks": prototypes(random, 16, 20),
    }
    ended = rows(random, 20, 1, random.normal(0, 1, (20, MASKS)))
    ended = ended[np.argsort(-ended[:, 4])]
    half = ended[:, 2:4] / 2
    corners = [ended[:, :2] - half, ended[:, :2] + half]
    kinds = random.integers(0, 2, (20, 1))
    made["end2end"] = narrow(np.concatenate([*corners, ended[:, 4:5], kinds, ended[:, 5:]], 1))
    corner = random.uniform(0, 60, (90, 2))
    boxes = np.concatenate([corner, corner + random.uniform(5, 40, (90, 2))], 1)
    scores = random.permutation(np.linspace(0.1, 0.9, 90))[:, None]
    made["boxes"] = narrow(np.concatenate([boxes, scores, random.integers(0, 3, (90, 1))], 1))
    return made


def by_ultralytics(made):
    """Return boxes, and masks or keypoints, in pixels of each image."""
    import torch
    from ultralytics.models.yolo.pose import PosePredictor
    from ultralytics.models.yolo.segment import SegmentationPredictor

    found = {}
    for name, kind in [
        ("segment", SegmentationPredictor),
        ("end2end", SegmentationPredictor),
        ("pose", PosePredictor),
    ]:
        chosen = {"conf": 0.25, "iou": 0.5, "retina_masks": True, "verbose": False}
        predictor = kind(overrides=chosen)
        names = {0: "a"} if name == "pose" else {0: "a", 1: "b"}
        predictor.model = SimpleNamespace(
            names=names, end2end=name == "end2end", kpt_shape=KEYPOINTS
        )
        for number, size in enumerate(IMAGES):
            output = torch.from_numpy(made[name].copy())[None]
            outputs = [output, torch.from_numpy(made["prototypes"])[None]]
            predictor.batch = [["a.jpg"]]
            image = np.zeros((*size, 3), np.uint8)
            given = output if name == "pose" else outputs
            (result,) = predictor.postprocess(given, torch.zeros(1, 3, CANVAS, CANVAS), [image])
            found[f"{name}_{number}_boxes"] = result.boxes.data.numpy()
            if name == "pose":
                found[f"{name}_{number}_points"] = result.keypoints.data.numpy()
            else:
                found[f"{name}_{number}_masks"] = packed(result.masks.data.numpy())
    return found


def packed(masks):
    """Return masks with eight pixels in a byte."""
    return np.packbits(masks.astype(bool).reshape(len(masks), -1), axis=1)


def by_rfdetr(made):
    """Return scores, classes, boxes and masks in pixels of each image."""
    import torch

    # Its own package imports what trains it.
    folder = Path(importlib.util.find_spec("rfdetr").origin).parent
    for name, place in (("rfdetr", folder), ("rfdetr.models", folder / "models")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(place)]
    from rfdetr.models.postprocess import PostProcess

    outputs = {"pred_logits": "labels", "pred_boxes": "dets", "pred_masks": "masks"}
    tensors = {key: torch.from_numpy(made[name])[None] for key, name in outputs.items()}
    found = {}
    for number, size in enumerate(IMAGES):
        (result,) = PostProcess()(tensors, torch.tensor([size]), score_threshold=0.5)
        columns = [result["boxes"], result["scores"][:, None], result["labels"][:, None]]
        found[f"detr_{number}_boxes"] = torch.cat(columns, 1).numpy()
        found[f"detr_{number}_masks"] = packed(result["masks"].numpy())
    return found


def by_sahi(made):
    """Return the corners of tiles, and which boxes are kept."""
    from sahi.postprocess.combine import batched_nms, nms
    from sahi.slicing import get_slice_bboxes

    found = {}
    for number, (height, width, tile_h, tile_w, overlap) in enumerate(TILES):
        tiles = get_slice_bboxes(height, width, tile_h, tile_w, False, overlap, overlap)
        found[f"tiles_{number}"] = np.array(tiles)
    for metric in ("IOU", "IOS"):
        for name, function in (("class", batched_nms), ("all", nms)):
            found[f"kept_{metric}_{name}"] = np.array(function(made["boxes"], metric, 0.43))
    return found


def by_random_networks(folder):
    """Export networks with random weights; return a picture, and what they find in it."""
    import torch
    from ultralytics import YOLO

    torch.manual_seed(1)
    found = {"picture": np.random.default_rng(2).integers(0, 256, (240, 320, 3), np.uint8)}
    for name in ("yolov8n-seg", "yolo11n-pose"):
        network = YOLO(f"{name}.yaml")
        # One batch of noise normalises the layers: else all cells say nearly the same.
        for layer in network.model.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = None
        network.model.train()(torch.rand(8, 3, CANVAS, CANVAS))
        path = network.export(format="onnx", imgsz=CANVAS, simplify=False)
        path = Path(path).rename(folder / f"{name}.onnx")
        chosen = {"conf": 1e-9, "iou": 0.5, "imgsz": CANVAS, "retina_masks": True, "verbose": False}
        (result,) = YOLO(path).predict(found["picture"], device="cpu", **chosen)
        found[f"{name}_boxes"] = result.boxes.data.numpy()
        if result.masks is not None:
            found[f"{name}_masks"] = result.masks.data.numpy().astype(bool)
        else:
            found[f"{name}_points"] = result.keypoints.data.numpy()
    return found


if __name__ == "__main__":
    made = raw()
    kept = {name: array.astype(np.float16) for name, array in made.items()}
    kept |= {"images": np.array(IMAGES), "tiles": np.array(TILES)}
    if "--networks" in sys.argv:
        kept |= by_random_networks(Path(sys.argv[1]).parent)
    np.savez_compressed(
        sys.argv[1], **kept, **by_ultralytics(made), **by_rfdetr(made), **by_sahi(made)
    )
