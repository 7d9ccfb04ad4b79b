"""Train a network in torch on the same pictures, and write it in each form that ``torch.toml`` names.

Everything goes into one folder, ``made/`` beside this file unless ``--into`` says otherwise: what
``prepare.py`` writes, and

- ``conv.pth``, ``conv.pt2``, ``conv.torchscript``, ``conv.onnx``: the trained network as state dict,
  as program of ``torch.export``, as TorchScript, as ONNX
- ``imagenet.txt``: the names of ImageNet's classes, where torchvision is installed
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import Digits
from prepare import folder_of, load_pictures
from prepare import main as prepare


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
    torch.save(network.state_dict(), folder / "conv.pth")
    program = torch.export.export(
        network, (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, folder / "conv.pt2")
    with warnings.catch_warnings():
        # torch advises against TorchScript, which is here for those who still have it.
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(network, sample), folder / "conv.torchscript")
    if importlib.util.find_spec("onnxscript") is None:
        print("no conv.onnx: onnxscript is not installed")
    else:
        torch.onnx.export(
            program, f=folder / "conv.onnx", dynamo=True, external_data=False, verbose=False
        )
    forms = ", ".join(sorted(path.name for path in folder.glob("conv.*")))
    print(f"{folder}: {forms}")


def save_names(folder: Path) -> None:
    """Write the names of ImageNet's classes, where torchvision is there."""
    if importlib.util.find_spec("torchvision") is not None:
        from torchvision.models import ResNet18_Weights

        names = ResNet18_Weights.DEFAULT.meta["categories"]
        (folder / "imagenet.txt").write_bytes("".join(f"{one}\n" for one in names).encode("utf-8"))


def main() -> None:
    """Run from the command line."""
    into = folder_of("Train the network in torch, write it and the pictures.")
    prepare()
    torch.set_num_threads(1)  # for so small a network more of them only wait for each other
    images, held_out, digits, held_out_digits = load_pictures()
    started = time.perf_counter()
    network = train(as_input(images), torch.from_numpy(digits))
    took = time.perf_counter() - started
    with torch.inference_mode():
        found = network(as_input(held_out)).argmax(1).numpy()
    print(
        f"in torch, trained on {len(images)} pictures in {took:.0f} s; "
        f"{np.mean(found == held_out_digits):.1%} of {len(held_out)} others are right"
    )
    save_forms(network, into)
    save_names(into)


if __name__ == "__main__":
    main()
