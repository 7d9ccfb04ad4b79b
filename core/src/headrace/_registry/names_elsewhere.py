"""Names that plugins of Headrace's repository bring, by distribution; made by `python scripts/names_elsewhere.py`."""

from __future__ import annotations

BACKENDS = {
    "headrace-cv": (
        "CropMat CvtColorMat DecodeMat EncodeMat LetterBoxMat Mat2Tensor NMS "
        "PerspectiveCropMat ResizeMat Tensor2Mat TopLeftResizeMat UnletterBox "
    ),
    "headrace-flow": "Cache Concurrency Iterate Observer Once Queue Recv Script Send Shadow StateFul",
    "headrace-observe": "Benchmark",
    "headrace-ort": "OnnxTensor",
    "headrace-process": "Host Process",
    "headrace-ray": "RayActor",
    "headrace-remote": "Remote",
    "headrace-torch": (
        "ArgMaxTensor CatTensor ContiguousTensor CpuTensor CropTensor CvtColorTensor "
        "DecodeTensor FixTensor GpuTensor IndexSelectTensor NormalizeTensor PadTensor "
        "ResizeTensor SoftmaxTensor SplitTensor StreamPool SyncTensor TopKTensor TorchModule "
    ),
    "headrace-trt": (
        "LoadTensorrtEngine Onnx2Tensorrt TensorrtCat TensorrtInferTensor TensorrtSplit "
        "TensorrtTensor "
    ),
    "headrace-vision": (
        "BoxDetections ClassDetections CountLine CountZone DetrDetections DrawDetections "
        "FilterDetections Track YoloDetections "
    ),
}

PROBES = {
    "headrace-observe": "BatchTimes OpenTelemetry Prometheus Trace",
    "headrace-serve": "ServeTimes",
}

POLICIES = {
    "headrace-flow": "Alike Budget",
}
