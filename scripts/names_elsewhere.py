"""Write the table of names that this repository's plugins bring, so that core can say what to install: python scripts/names_elsewhere.py.

Backends, readers, fetchers, translated keys and words are read from each ``pyproject.toml``, probes and policies are what hooks offer.
What to write for the names of torchpipe stands in docs/from_torchpipe.md.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from distributions import tomllib

import headrace

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "core" / "src" / "headrace" / "_language" / "registry" / "names_elsewhere.json"

KINDS = {
    "backends": ("backends", "rewriters"),
    "probes": ("probes",),
    "policies": ("batch_policies", "dispatch_policies"),
    "readers": ("readers",),
    "fetchers": ("fetchers",),
}
"""What plugins offer that stands in each table."""

SYNONYMS = {
    "OnnxTensor": "onnx onnxruntime onnxmodel ort",
    "TensorrtTensor": "tensorrt trt tensorrtengine",
    "TorchModule": "torch pytorch torchscript torchscripttensor torchmodel",
    "DecodeMat": "decode decodeimage imdecode imread readimage loadimage",
    "EncodeMat": "encode encodeimage imencode",
    "ResizeMat": "resize resizeimage",
    "CropMat": "crop cropimage",
    "CenterCropMat": "centercrop",
    "LetterBoxMat": "letterbox letterboxresize",
    "CvtColorMat": "cvtcolor colorconvert",
    "Mat2Tensor": "totensor normalize imagetotensor",
    "NMS": "nonmaxsuppression batchednms",
    "YoloDetections": "yolo yolov5 yolov8 ultralytics",
    "Process": "subprocess multiprocessing",
    "BackgroundThread": "thread",
}
"""What the field calls what these backends do. A name that is a backend itself is none."""

WRITTEN_ELSEWHERE = {
    "priority": "A request has a priority: pipe(request, priority=3).",
    "entry": "A request names its first node: {'data': x, 'node_name': 'a'}.",
    "filter": "filter of torchpipe stands in the expression here: (or)X runs X for requests without a result.",
    "jump": "jump of torchpipe is next here, or the backend Forward[node.x].",
    "postprocessor": "postprocessor of torchpipe is a backend of its own here: S[TensorrtTensor,Yours].",
    "precision": 'The types stand in the model file: export it in float16, or build an engine with precision = "fp16".',
    "Retry": "Fallback[A,B] of headrace-flow runs B for what fails in A. A caller may send a failed request again.",
    "Timeout": "timeout_ms = 500 in the node ends its requests after half a second.",
    "Parallel": 'Nodes run side by side: next = ["a", "b"] in the node before them.',
    "*.pt": 'What torch saves is no configuration: write backend = "TorchModule" and model = "FILE", exported to .pt2 or TorchScript.',
    "*.pth": 'What torch saves is no configuration: write backend = "TorchModule" and model = "FILE", exported to .pt2 or TorchScript.',
    "*.safetensors": "These are weights without a network: export the model to ONNX, or save it with sentence-transformers.",
    "*.py": 'A configuration names Python: import = ["FILE.py"] and backend = "Name" in a TOML file.',
    "*.py:*": 'A configuration names Python: import = ["FILE.py"] and backend = "Name" in a TOML file.',
    "config.json": "It holds a model of Hugging Face: export it to ONNX, or save it with sentence-transformers (modules.json).",
}
"""What to write for what has no name here: keys, backends, files by pattern, and folders by a file in them."""


def names() -> dict[str, dict[str, list[str]]]:
    """Return the tables: names by distribution. What is translated stands among the backends."""
    tables: dict[str, dict[str, list[str]]] = {table: {} for table in KINDS}
    for path in sorted(ROOT.glob("[lp]*/*/pyproject.toml"), key=lambda path: path.parent.name):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        points: dict[str, Any] = project.get("entry-points", {})
        modules = [*map(importlib.import_module, points.get("headrace.plugins", {}).values())]
        for table, kinds in KINDS.items():
            given = {name for kind in kinds for name in points.get(f"headrace.{kind}", ())}
            for module in modules:
                given.update(*(getattr(module, f"headrace_{kind}", dict)() for kind in kinds))
            tables[table][project["name"]] = sorted(given)
    return tables


def replaced(known: set[str]) -> dict[str, str]:
    """Return what to write for each name in the first columns of the page, but for those that mean something here."""
    text = (ROOT / "docs" / "from_torchpipe.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for heading in ("Keys of a node", "Backends"):
        part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        for line in [one for one in part.splitlines() if one.startswith("| `")]:
            theirs, here, mind = (one.strip() for one in line.split("|")[1:4])
            names = [re.split(r"[(\[]", one)[0] for one in re.findall(r"`([^`]+)`", theirs)]
            ours = re.findall(r"`([^`]+)`", here)
            mind = re.sub(r"\[([^\]]+)\]\(([^)#]+)[^)]*\)", r"\1, docs/\2", mind.replace("`", ""))
            for place, name in enumerate(names):
                write = [ours[place]] if len(ours) == len(names) else ours
                is_name = re.fullmatch(r"[A-Za-z]\w[\w:]*", name) and name not in {*known, *write}
                if is_name:
                    what = " or ".join(write)
                    said = (
                        f"{name} of torchpipe is {what} here." if what else f"{name} of torchpipe:"
                    )
                    more = mind[:1].upper() + mind[1:] if what else mind
                    found[name] = f"{said} {more}." if mind else said
    return found


def table() -> str:
    """Return the text that core reads: in each table the distribution to install, by name."""
    tables = {
        table: {name: by for by, some in found.items() for name in some}
        for table, found in names().items()
    }
    tables["replaced"] = replaced({*tables["backends"], *headrace.plugins.core().backends})
    tables["replaced"] |= WRITTEN_ELSEWHERE
    tables["synonyms"] = {one: name for name, some in SYNONYMS.items() for one in some.split()}
    return json.dumps(tables, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
