"""Train the network of this example, and write what the pipeline reads.

Everything goes into one folder, ``made/`` beside this file unless ``--into`` says otherwise:

- ``digits.onnx``: the trained network
- ``classes.txt``: the names of its classes, one per line
- ``digits/``: the pictures that were held out of the training, PNG of 64 by 64 pixels
- ``expected.tsv``: file name, tab, the class of the picture

The pictures are the handwritten digits inside scikit-learn: nothing is downloaded. They were made by
43 people for the National Institute of Standards and Technology, and shrunk to 8 by 8 pixels of 17
greys by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, "Optical Recognition of
Handwritten Digits", 1998).
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).resolve().parent

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

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


def as_rows(images: Any) -> Any:
    """Return ``uint8 [N, 8, 8]`` as scikit-learn trains on it: ``float32 [N, 64]``, 0 to 1."""
    return images.reshape(len(images), 64).astype(np.float32) / 255


def as_onnx(network: MLPClassifier) -> Any:
    """Return a network of scikit-learn as ONNX, without its last step: scores, not probabilities.

    Its input is what ``Mat2Tensor`` makes of grey pictures, ``float32 [N, 1, 8, 8]``. Its output is
    ``float32 [N, 10]``.
    """
    nodes = [helper.make_node("Flatten", ["image"], ["x0"])]
    values = []
    layers = list(zip(network.coefs_, network.intercepts_, strict=True))
    for number, (weights, bias) in enumerate(layers):
        last = number == len(layers) - 1
        made = "scores" if last else f"sum{number}"
        inputs = [f"x{number}", f"weights{number}", f"bias{number}"]
        nodes.append(helper.make_node("Gemm", inputs, [made]))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [f"x{number + 1}"]))
        for name, value in zip(inputs[1:], (weights, bias), strict=True):
            values.append(numpy_helper.from_array(value.astype(np.float32), name))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", len(CLASSES)])
    graph = helper.make_graph(nodes, "digits", [image], [scores], values)
    # Versions that older ONNX Runtimes read too; onnx would write its newest.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def save_pictures(images: Any, digits: Any, folder: Path) -> None:
    """Write the pictures to ``folder/digits``, what they are, and the names of the classes."""
    (folder / "digits").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (image, digit) in enumerate(zip(images, digits, strict=True)):
        name = f"{number:03}.png"
        enlarged = np.kron(image, np.ones((ENLARGED, ENLARGED), np.uint8))
        if not cv2.imwrite(str(folder / "digits" / name), enlarged):
            raise SystemExit(f"{folder / 'digits' / name} cannot be written")
        rows.append(f"{name}\t{CLASSES[digit]}\n")
    (folder / "expected.tsv").write_bytes("".join(rows).encode("utf-8"))
    (folder / "classes.txt").write_bytes("".join(f"{one}\n" for one in CLASSES).encode("utf-8"))
    print(f"{folder / 'digits'}: {len(rows)} pictures; what they are: {folder / 'expected.tsv'}")


def folder_of(description: str) -> Path:
    """Read the command line of a program that prepares: where everything goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--into", type=Path, default=HERE / "made", metavar="DIR")
    into: Path = parser.parse_args().into
    return into


def main() -> None:
    """Run from the command line."""
    if hasattr(signal, "SIGPIPE"):  # whoever reads the output may go
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    into = folder_of("Train the network, write it and the pictures.")
    images, held_out, digits, held_out_digits = load_pictures()
    network = MLPClassifier((64,), alpha=0.1, tol=1e-3, random_state=0)
    network.fit(as_rows(images), digits)
    share = network.score(as_rows(held_out), held_out_digits)
    print(
        f"trained on {len(images)} pictures; {share:.1%} of {len(held_out)} others are right",
        flush=True,
    )
    save_pictures(held_out, held_out_digits, into)
    onnx.save(as_onnx(network), into / "digits.onnx")


if __name__ == "__main__":
    main()
