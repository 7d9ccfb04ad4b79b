"""Whether a row of ResNet-50 has one result, alone and with others, in each engine; and how far engines are apart.

``headrace certify`` runs for TensorRT, torch and ONNX Runtime on a CUDA device, in fp32, TF32 and fp16, each in a process of
its own: four rows of random numbers, alone, at each place of a batch of each size, again beside a second instance, and the
first row many times. The reference is ONNX Runtime on the CPU, in fp32. The network has random weights and is made at run time.

    python -m benchmarks.gpu_certify [--max 32] [--size 224] [--repeat 1000] [--ulp 4] [--device cuda:0]
                                     [--engines tensorrt torch ort] [--quick] [--json FILE]

It prints a Markdown table. *With others*: the results of a row are equal bit for bit whatever is in its batch, or within
``--ulp`` units of the last place, or depend on the batch in the sizes that are named. *Apart* is the most that a result is apart
from that of its row alone, as a part of the greatest number of that; in units of the last place, numbers near zero are far apart
soon. *From the reference* is the greatest difference of a row alone, as a part of the greatest number of the reference. What is not installed, or does not run, is left out with its reason. ``--device cpu`` shows that the script runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.gpu_networks import in_half, resnet
from benchmarks.load import arguments, environment, print_environment, save

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = ("fp32", "TF32", "fp16")


def configurations(
    model: Path, half: Path, size: int, most: int, device: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the keys of the node, by engine and precision."""
    shape = f"3x{size}x{size}"
    profiles = [{"min": f"x:1x{shape}", "max": f"x:{most}x{shape}"}]
    trt = {"backend": "TensorrtTensor", "model": str(model), "profiles": profiles}
    torch = {"backend": "TorchModule", "module": "benchmarks.gpu_networks:torch_of", "shape": shape}
    ort = {"backend": "OnnxTensor", "model": str(model)}

    def of_torch(*, tf32: bool) -> dict[str, Any]:
        return {**torch, "args": {"path": str(model), "tf32": tf32}}

    def of_ort(*, tf32: bool) -> dict[str, Any]:
        if device == "cpu":
            return ort
        return {**ort, "providers": ["cuda"], "provider_options": {"cuda": {"use_tf32": int(tf32)}}}

    found = {
        "tensorrt": {
            "fp32": {**trt, "tf32": False},
            "TF32": {**trt, "tf32": True},
            "fp16": {**trt, "tf32": False, "precision": "fp16"},
        },
        "torch": {
            "fp32": of_torch(tf32=False),
            "TF32": of_torch(tf32=True),
            "fp16": {**of_torch(tf32=False), "dtype": "float16"},
        },
        "ort": {
            "fp32": of_ort(tf32=False),
            "TF32": of_ort(tf32=True),
            "fp16": {**of_ort(tf32=False), "model": str(half)},
        },
    }
    more = {"device": device, "max": most, "instance_num": 2}
    return {
        engine: {name: {**keys, **more} for name, keys in rows.items()}
        for engine, rows in found.items()
    }


def toml_of(keys: Mapping[str, Any]) -> str:
    """Return a configuration as TOML. JSON's texts, numbers and lists are TOML's, but tables are not."""

    def value(one: Any) -> str:
        if isinstance(one, dict):
            return "{" + ", ".join(f"{key} = {value(part)}" for key, part in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(map(value, one)) + "]"
        return json.dumps(one)

    return "".join(f"{key} = {value(one)}\n" for key, one in keys.items())


def certified(folder: Path, name: str, keys: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Certify one configuration; give the certificate, or the reason why there is none."""
    config, written = folder / f"{name}.toml", folder / f"{name}.json"
    config.write_text(toml_of(keys), encoding="utf-8")
    began = time.perf_counter()
    # The tolerance is wide: this script shows how far apart the engines are, and judges nothing.
    command = [
        *(sys.executable, "-m", "headrace", "certify", str(config)),
        *("--data", f"float32:3x{given.size}x{given.size}"),
        *("--reference", str(folder / "reference.toml"), "--rtol", "1", "--atol", "1"),
        *("--repeat", str(given.repeat), "--ulp", str(given.ulp), "--output", str(written)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if not written.exists():
        reason = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        return {"reason": reason, "stderr": done.stderr[-4000:], "seconds": seconds}
    return {**json.loads(written.read_text(encoding="utf-8")), "seconds": seconds}


def line_of(engine: str, precision: str, found: Mapping[str, Any]) -> str:
    """Return the line of the table for a certificate."""
    if "reason" in found:
        return f"| {engine} | {precision} | left out: {found['reason']} | | | |"
    one = found["outputs"]["result"]
    says = {"equal": "bit for bit", "within": f"within {found['ulp']:g} ulp"}.get(one["verdict"])
    sizes = sorted({*one["sizes"], *one["sizes_beside_instances"]})
    if says is None:
        says = f"{one['verdict']} in {len(sizes)} of {len(found['sizes'])} sizes: {sizes}"
    repeats = f"{one['repeats_apart']} of {found['repeat']}"
    ulps = "infinitely many" if one["ulps"] is None else f"{one['ulps']:.3g}"
    apart, error = (
        "infinite" if part is None else f"{part:.1e}" if part else "0"
        for part in (one["relative"], one["reference"]["max_rel"])
    )
    return f"| {engine} | {precision} | {says} | {apart} ({ulps} ulp) | {repeats} | {error} |"


def figures_of(title: str, certificate: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a certificate to keep; none where it was left out."""
    if "reason" in certificate:
        return []
    result = certificate["outputs"]["result"]
    sizes = f"batches of 1 to {max(certificate['sizes'])}"
    parts = {
        f"a row in {sizes} and alone, greatest difference to the greatest output": result["relative"],
        "a row alone, difference to ONNX Runtime on the CPU in fp32": result["reference"]["max_rel"],
    }  # fmt: skip
    return [
        Figure(f"ResNet-50, {title}: {said}", "", "lower", float(part))
        for said, part in parts.items()
        if part is not None
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda:0", help="where the networks run")
    parser.add_argument("--engines", nargs="+", default=["tensorrt", "torch", "ort"])
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--max", type=int, help="the greatest batch, 32")
    parser.add_argument("--size", type=int, help="height and width of a picture, 224")
    parser.add_argument("--repeat", type=int, help="how often the first row runs alone, 1000")
    parser.add_argument("--ulp", type=float, default=4, help="how far apart is near enough")
    given = parser.parse_args()
    for key, usual, quick in (("max", 32, 2), ("size", 224, 32), ("repeat", 1000, 2)):
        if getattr(given, key) is None:
            setattr(given, key, quick if given.quick else usual)
    packages = ("torch", "onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "numpy")
    about = environment(("headrace", *packages))
    print_environment(about)
    figures: dict[str, Any] = {}
    kept: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = resnet(folder)
        reference = {"backend": "OnnxTensor", "model": str(model), "providers": ["cpu"]}
        (folder / "reference.toml").write_text(toml_of(reference), encoding="utf-8")
        found = configurations(model, in_half(model), given.size, given.max, given.device)
        lines = [
            "| engine | precision | with others | apart | repeats apart | from the reference |",
            "|---|---|---|---|---|---|",
        ]
        for engine in given.engines:
            for precision in given.precisions:
                one = certified(folder, f"{engine}_{precision}", found[engine][precision], given)
                figures.setdefault(engine, {})[precision] = one
                kept += figures_of(f"{engine}, {precision}", one)
                lines.append(line_of(engine, precision, one))
                print(f"{lines[-1]}  {one['seconds']:.0f} s", flush=True)
        gpus = [one["gpu"] for rows in figures.values() for one in rows.values() if one.get("gpu")]
        print("", *lines, "", sep="\n")
        if gpus:
            print(f"GPU: {json.dumps(gpus[0])}")
    save(given.json, about, figures, kept)


if __name__ == "__main__":
    main()
