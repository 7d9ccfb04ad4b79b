"""Train the network on the handwritten digits inside scikit-learn, and write it in four forms.

python examples/classify/train.py     under a minute on a CPU; writes into examples/classify/made

made/digits.pt     weights alone (a state dict)
made/digits.pt2    a torch.export program
made/digits.ts     TorchScript, where torch still has it
made/digits.onnx   ONNX
made/held_out/     pictures that were not trained on; the name begins with the digit
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent))

from net import Digits

MADE = Path(__file__).parent / "made"
EPOCHS = 30
HELD_OUT = 360


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Give all pictures, ``float32 [N, 1, 8, 8]`` from 0 to 1, and their digits, shuffled."""
    found: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order].astype(np.float32) / 16)
    return images.unsqueeze(1), torch.from_numpy(found.target[order].astype(np.int64))


def trained(images: torch.Tensor, digits: torch.Tensor) -> Digits:
    """Train on these."""
    torch.manual_seed(0)
    net = Digits()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images[part]), digits[part])
            loss.backward()
            optimizer.step()
    return net.eval()


def write(net: Digits) -> None:
    """Write the network in all forms."""
    example = (torch.zeros(2, 1, 8, 8),)
    torch.save(net.state_dict(), MADE / "digits.pt")
    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(net, example, dynamic_shapes=(rows,))
    torch.export.save(program, MADE / "digits.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; so are parts of the exporter
        if hasattr(torch.jit, "trace"):
            torch.jit.trace(net, example).save(str(MADE / "digits.ts"))
        torch.onnx.export(
            net,
            example,
            str(MADE / "digits.onnx"),
            input_names=["image"],
            output_names=["scores"],
            dynamic_shapes=(rows,),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def main() -> None:
    """Train, write, and say how many of the held-out pictures are right."""
    (MADE / "held_out").mkdir(parents=True, exist_ok=True)
    images, digits = data()
    net = trained(images[HELD_OUT:], digits[HELD_OUT:])
    write(net)
    with torch.no_grad():
        right = (net(images[:HELD_OUT]).argmax(1) == digits[:HELD_OUT]).float().mean()
    for number in range(HELD_OUT):
        pixels = (images[number, 0].numpy() * 255).round().astype(np.uint8)
        name = f"{int(digits[number])}_{number:03}.png"
        cv2.imwrite(str(MADE / "held_out" / name), pixels)
    print(f"right of {HELD_OUT} held-out pictures: {100 * float(right):.1f} %")


if __name__ == "__main__":
    main()
