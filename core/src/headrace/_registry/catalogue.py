"""Names that core itself knows: its own, and those that well-known distributions bring."""

from __future__ import annotations

__all__ = [
    "CORE_BACKENDS",
    "CORE_BATCH_POLICIES",
    "CORE_COMMANDS",
    "CORE_DISPATCH_POLICIES",
    "CORE_POLICIES",
    "KNOWN_COMMANDS",
    "KNOWN_ELSEWHERE",
    "how_to_install",
]

_CONTAINERS = "headrace._containers"

CORE_BACKENDS = {
    "S": f"{_CONTAINERS}.sequential:Sequential",
    "Sequential": f"{_CONTAINERS}.sequential:Sequential",
    "Identity": f"{_CONTAINERS}.identity:Identity",
    "IoC": f"{_CONTAINERS}.wiring:IoC",
    "DI": f"{_CONTAINERS}.wiring:DI",
    "Aspect": f"{_CONTAINERS}.wiring:DI",
    "With": f"{_CONTAINERS}.wiring:With",
    "Proxy": f"{_CONTAINERS}.wiring:Proxy",
    "Forward": f"{_CONTAINERS}.wiring:Forward",
    "Reflect": f"{_CONTAINERS}.wiring:Reflect",
    "InstanceFromParam": f"{_CONTAINERS}.wiring:InstanceFromParam",
    "Register": f"{_CONTAINERS}.wiring:Register",
    "InstancesRegister": f"{_CONTAINERS}.wiring:InstancesRegister",
    "List": f"{_CONTAINERS}.wiring:List",
    "BackgroundThread": f"{_CONTAINERS}.background:BackgroundThread",
    "Process": f"{_CONTAINERS}.process:Process",
    "Batching": f"{_CONTAINERS}.scheduling:Batching",
    "InstanceDispatcher": f"{_CONTAINERS}.scheduling:InstanceDispatcher",
    "CatSplit": f"{_CONTAINERS}.cat_split:CatSplit",
    "ModelLoader": f"{_CONTAINERS}.choice:ModelLoader",
    "Fallback": f"{_CONTAINERS}.choice:Fallback",
    "HasKey": f"{_CONTAINERS}.conditions:HasKey",
    "NotHasKey": f"{_CONTAINERS}.conditions:NotHasKey",
    "Random": f"{_CONTAINERS}.conditions:Random",
    "Queue": f"{_CONTAINERS}.queues:Queue",
    "Send": f"{_CONTAINERS}.queues:Send",
    "Recv": f"{_CONTAINERS}.queues:Recv",
    "Observer": f"{_CONTAINERS}.queues:Observer",
    "Loop": f"{_CONTAINERS}.loops:Loop",
    "Restart": f"{_CONTAINERS}.loops:Restart",
    "DagDispatcher": f"{_CONTAINERS}.graph:DagDispatcher",
    "Repost": f"{_CONTAINERS}.graph:Repost",
    "Call": f"{_CONTAINERS}.call:Call",
}
"""The backends of core and where each class is."""

CORE_BATCH_POLICIES = {"greedy": "headrace.policies:Greedy"}
CORE_DISPATCH_POLICIES = {"best_fit": "headrace.policies:BestFit"}
CORE_POLICIES = {**CORE_BATCH_POLICIES, **CORE_DISPATCH_POLICIES}
"""The policies of core and where each class is."""

CORE_COMMANDS = ("check", "conformance", "explain", "new", "plugins", "run", "schema")
"""The commands of ``headrace`` itself, which no plugin can replace."""

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

_FOLDERS = {f"headrace-{name}": f"plugins/{name}" for name in ("cv", "ort", "torch", "trt")}

KNOWN_ELSEWHERE = {
    name: distribution for distribution, names in _BY_DISTRIBUTION.items() for name in names.split()
}
"""Names of well-known backends and the distribution to install for each."""

KNOWN_COMMANDS = {
    **dict.fromkeys(
        ("bench", "gpus", "report", "simulate", "top", "trace", "tune"), "headrace-observe"
    ),
    "serve": "headrace-serve",
    "trt": "headrace-trt",
}
"""Commands of ``headrace`` that a distribution brings, and which one."""


def how_to_install(*distributions: str) -> str:
    """Say how to install distributions, ours also from a clone of their repository."""
    folders = [f"./{_FOLDERS[name]}" for name in distributions if name in _FOLDERS]
    clone = f", or in a clone of Headrace: pip install {' '.join(folders)}" if folders else ""
    return f"Install {'them' if len(distributions) > 1 else 'it'}: pip install {' '.join(distributions)}{clone}"
