"""Train the network of this example, and write what the pipeline reads.

Everything goes into one folder, ``made/`` beside this file unless ``--into`` says otherwise:

- ``digits.pth``, ``digits.pt2``, ``digits.torchscript``, ``digits.onnx``: the trained network as
  state dict, as program of ``torch.export``, as TorchScript, as ONNX
- ``classes.txt``: the names of its classes, one per line
- ``digits/``: the pictures that were held out of the training, PNG of 64 by 64 pixels
- ``expected.tsv``: file name, tab, the digit that is in the picture
- ``imagenet.txt``: the names of ImageNet's classes, where torchvision is installed

The pictures are the handwritten digits inside scikit-learn: nothing is downloaded. They were made by
43 people for the National Institute of Standards and Technology, and shrunk to 8 by 8 pixels of 17
greys by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, "Optical Recognition of
Handwritten Digits", 1998).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from network import Digits
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).resolve().parent

ENLARGED = 8
"""How many pixels wide and high one of the data set becomes in the files."""


def load_pictures() -> list[Any]:
    """Return the pictures, ``uint8 [N, 8, 8]``, and their digits: those to train on, those held out.

    Returns:
        Pictures to train on, pictures held out (a quarter, of each digit as large a part), the
        digits of the former, the digits of the latter.
    """
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    parts: list[Any] = train_test_split(
        images, data.target, test_size=0.25, stratify=data.target, random_state=0
    )
    return parts


def as_input(images: Any) -> torch.Tensor:
    """Return ``uint8 [N, 8, 8]`` as the network sees it: ``float32 [N, 1, 8, 8]``, 0 to 1."""
    return torch.from_numpy(images).unsqueeze(1) / 255


def train(images: torch.Tensor, digits: torch.Tensor, epochs: int = 30) -> Digits:
    """Train a network; each batch is shifted by up to a pixel, as handwriting is.

    Args:
        images: ``float32 [N, 1, 8, 8]``.
        digits: ``int64 [N]``.
        epochs: How often it sees each picture.

    Returns:
        The network, in evaluation mode.
    """
    torch.manual_seed(0)
    network = Digits()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for some in torch.randperm(len(images)).split(64):
            top, left = torch.randint(0, 3, (2,)).tolist()
            framed = torch.nn.functional.pad(images[some], (1, 1, 1, 1))
            scores = network(framed[:, :, top : top + 8, left : left + 8])
            loss = torch.nn.functional.cross_entropy(scores, digits[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    network.eval()
    return network


def save_forms(network: Digits, folder: Path) -> None:
    """Write the network to ``folder`` in each form that this torch can make."""
    sample = torch.zeros(2, 1, 8, 8)
    torch.save(network.state_dict(), folder / "digits.pth")
    program = torch.export.export(
        network, (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, folder / "digits.pt2")
    with warnings.catch_warnings():
        # torch advises against TorchScript, which is here for those who still have it.
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(network, sample), folder / "digits.torchscript")
    if importlib.util.find_spec("onnxscript") is None:
        print("no digits.onnx: onnxscript is not installed")
    else:
        torch.onnx.export(
            program, f=folder / "digits.onnx", dynamo=True, external_data=False, verbose=False
        )
    forms = ", ".join(sorted(path.name for path in folder.glob("digits.*")))
    print(f"{folder}: {forms}")


def save_pictures(images: Any, digits: Any, folder: Path) -> None:
    """Write the pictures to ``folder/digits``, and what they are to ``folder/expected.tsv``."""
    (folder / "digits").mkdir(exist_ok=True)
    rows = []
    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        name = f"{number:03}.png"
        enlarged = np.kron(image, np.ones((ENLARGED, ENLARGED), np.uint8))
        if not cv2.imwrite(str(folder / "digits" / name), enlarged):
            raise SystemExit(f"{folder / 'digits' / name} cannot be written")
        rows.append(f"{name}\t{digit}\n")
    (folder / "expected.tsv").write_bytes("".join(rows).encode("utf-8"))
    print(f"{folder / 'digits'}: {len(rows)} pictures; what they are: {folder / 'expected.tsv'}")


def save_names(folder: Path) -> None:
    """Write the names of the classes: the digits', and ImageNet's where torchvision is there."""
    names = {"classes.txt": [str(digit) for digit in range(10)]}
    if importlib.util.find_spec("torchvision") is not None:
        from torchvision.models import ResNet18_Weights

        names["imagenet.txt"] = ResNet18_Weights.DEFAULT.meta["categories"]
    for name, classes in names.items():
        (folder / name).write_bytes("".join(f"{one}\n" for one in classes).encode("utf-8"))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Train the network, write it and the pictures.")
    parser.add_argument("--into", type=Path, default=HERE / "made", metavar="DIR")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # for so small a network more of them only wait for each other
    images, held_out, digits, held_out_digits = load_pictures()
    started = time.perf_counter()
    network = train(as_input(images), torch.from_numpy(digits))
    took = time.perf_counter() - started
    with torch.inference_mode():
        found = network(as_input(held_out)).argmax(1).numpy()
    print(
        f"trained on {len(images)} pictures in {took:.0f} s; "
        f"{np.mean(found == held_out_digits):.1%} of {len(held_out)} others are right"
    )
    save_forms(network, into)
    save_pictures(held_out, held_out_digits, into)
    save_names(into)


if __name__ == "__main__":
    main()
