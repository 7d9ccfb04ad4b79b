"""Names that core itself knows: its own, and those that well-known distributions bring."""

from __future__ import annotations

import re
from pathlib import Path

_ALL = re.compile(r"^__all__ = \[(.*?)\]", re.MULTILINE | re.DOTALL)


def _words() -> dict[str, str]:
    """Find the words of core without importing one: each module of `headrace.words` lists its own.

    A name that stands for another one there (``Aspect = DI``) is an alias of that word.
    """
    found: dict[str, str] = {}
    for file in sorted(Path(__file__).parents[1].joinpath("words").glob("[a-z]*.py")):
        text = file.read_text(encoding="utf-8")
        listed = _ALL.search(text)
        for name in re.findall(r"\w+", listed[1]) if listed is not None else ():
            alias = re.search(rf"^{name} = (\w+)$", text, re.MULTILINE)
            found[name] = f"headrace.words.{file.stem}:{alias[1] if alias is not None else name}"
    return found


CORE_BACKENDS = _words()
"""The backends of core and where each class is."""

CORE_BATCH_POLICIES = {"greedy": "headrace.policies:Greedy"}
CORE_DISPATCH_POLICIES = {"best_fit": "headrace.policies:BestFit"}
CORE_POLICIES = {**CORE_BATCH_POLICIES, **CORE_DISPATCH_POLICIES}
"""The policies of core and where each class is."""

_BY_DISTRIBUTION = {
    "headrace-cv": (
        "CropMat CvtColorMat DecodeMat EncodeMat LetterBoxMat Mat2Tensor NMS PerspectiveCropMat "
        "ResizeMat Tensor2Mat TopLeftResizeMat UnletterBox"
    ),
    "headrace-observe": "Benchmark",
    "headrace-ort": "OnnxTensor",
    "headrace-torch": (
        "ArgMaxTensor CatTensor ContiguousTensor CpuTensor CropTensor CvtColorTensor DecodeTensor "
        "FixTensor GpuTensor IndexSelectTensor NormalizeTensor PadTensor ResizeTensor SoftmaxTensor "
        "SplitTensor StreamPool SyncTensor TopKTensor TorchModule"
    ),
    "headrace-trt": (
        "LoadTensorrtEngine Onnx2Tensorrt TensorrtCat TensorrtInferTensor TensorrtSplit "
        "TensorrtTensor"
    ),
}

_FOLDERS = {
    f"headrace-{name}": f"plugins/{name}" for name in ("cv", "observe", "ort", "torch", "trt")
}

KNOWN_ELSEWHERE = {
    name: distribution for distribution, names in _BY_DISTRIBUTION.items() for name in names.split()
}
"""Names of well-known backends and the distribution to install for each."""


def how_to_install(*distributions: str) -> str:
    """Say how to install distributions, ours also from a clone of their repository."""
    folders = [f"./{_FOLDERS[name]}" for name in distributions if name in _FOLDERS]
    clone = f", or in a clone of Headrace: pip install {' '.join(folders)}" if folders else ""
    return f"Install {'them' if len(distributions) > 1 else 'it'}: pip install {' '.join(distributions)}{clone}"
