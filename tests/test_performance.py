"""Results are kept as their schema says, and no document shows another figure."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import made_pages
import performance
import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]
RESULTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))
}
MADE = re.compile(r"templates/|build/|dist/")
"""Where documents are made of others."""
DOCUMENTS = sorted(
    name
    for found in ("*.md", "docs/*.md", "docs/*/*.md", "*/README.md", "*/*/README.md")
    for path in ROOT.glob(found)
    if not (made_pages.is_made(path) or MADE.match(name := path.relative_to(ROOT).as_posix()))
)
FIGURE = re.compile(
    r"(?<![\w.,])((?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?)\s?"
    r"(?:µs|us\b|ms\b|microseconds|milliseconds|s\b|times (?:as|one|what)|\u00d7 the"
    r"|(?:requests|pictures|pages|answers|images|rows) a second)"
    r"|(?<![\w.,])(\d\.\d{2,3})(?![\w.]*\d)"
)
"""A number with a unit of speed, or a ratio with at least two digits behind its point. A table of numbers whose heads name the unit is told by `CELL`."""
VERSION = re.compile(
    r"(Python|Runtime|Ray|TensorRT|Triton|matplotlib|torch|supervision|OpenTelemetry|prometheus-client|grpcio|uvicorn|pydantic"
    r"|typer|tritonclient|onnx|rapidocr|scikit-image)\s\d\.\d{2,3}|\d\.\d{2,3} or newer"
)
"""A number behind the name of a library is its version."""
CELL = re.compile(
    r"\**[\d.][\d., ()/\u00d7]*(?:ms|s|µs|\u00d7|\(.*\)|to [\d.]+\)?)?(?:, [\d.]+ m?s)?\**"
)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)")


def test_results_keep_to_their_schema():
    schema = json.loads((ROOT / "benchmarks" / "results.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    wrong = {name: [e.message for e in checker.iter_errors(one)] for name, one in RESULTS.items()}
    assert {name: found for name, found in wrong.items() if found} == {}
    assert len(RESULTS) > 10


def test_dev_bench_makes_every_result():
    listed = {}
    for part in ([], ["gpu"]):
        command = ["./dev", "bench", *part, "--list"]
        done = run_process(command, cwd=ROOT, check=True)
        listed[" ".join(part)] = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert not set(listed[""]) & set(listed["gpu"])
    assert sorted(set().union(*listed.values())) == sorted(RESULTS)
    assert listed["gpu"]["trt_table"] == "python -m benchmarks.gpu_trt --part table"
    assert listed[""]["iterate"] == "python -m benchmarks.iterate --rounds 5"
    for words in map(str.split, {**listed[""], **listed["gpu"]}.values()):
        if words[0] == "python":
            assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()


def test_a_quick_run_of_dev_bench_replaces_nothing(tmp_path):
    module = [sys.executable, "-m", "benchmarks.renew", "cpu", "ray", "--quick"]
    module += ["--raw", str(tmp_path), "--only", "import_time", "gpu_trt", "memory_of_pictures"]
    done = run_process(module, cwd=ROOT, check=True)
    became = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-2:])
    assert became == {"import_time": "ran", "memory_of_pictures": "by hand: no script makes it"}
    assert json.loads((tmp_path / "import_time.json").read_text(encoding="utf-8"))["kept"]
    kept = (ROOT / "benchmarks" / "results" / "import_time.json").read_text(encoding="utf-8")
    assert json.loads(kept) == RESULTS["import_time"]


def test_a_script_writes_figures_that_can_be_kept(tmp_path):
    raw, name = tmp_path / "raw.json", "a"
    module = [sys.executable, "-m", "benchmarks.import_time", "--quick", "--json", str(raw)]
    subprocess.run(module, cwd=ROOT, capture_output=True, check=True)
    keep = [
        sys.executable,
        "-m",
        "benchmarks.figures",
        str(raw),
        name,
        "--title",
        "A",
        "--machine",
        "b",
    ]
    subprocess.run([*keep, "--into", tmp_path], cwd=ROOT, capture_output=True, check=True)
    kept = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "benchmarks" / "results.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(kept, schema)
    assert kept["run"]["command"] == "python -m benchmarks.import_time --quick"
    first = kept["figures"][0]
    assert first["what"] == "import headrace: more than the empty interpreter"
    assert first["spread"][0] <= first["value"] <= first["spread"][1]
    assert first["rounds"] == 5


def test_scripts_and_documents_that_results_name_are_there():
    named = [
        path
        for one in RESULTS.values()
        for path in [one["run"]["script"], *one["quoted_in"]]
        if path is not None
    ]
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_figure_that_is_behind_is_in_the_index():
    behind = performance.pages()[performance.PAGE].partition("## Where Headrace is behind")[2]
    for name, result in RESULTS.items():
        worse = []
        for one in result["figures"]:
            both = one.get("ratio") or (one["value"] / one["other"] if one.get("other") else 1)
            good = {"lower": 1 / both, "higher": both, "neither": 1}[one["better"]]
            worse += [one] * (good < 0.969999 and "beside" in one and "own" not in one)
        counts = re.findall(rf"performance/{name}\.md\) \| .*? \| (\d+) \|", behind)
        assert sum(map(int, counts)) == len(worse), name


def numbers_of(result: dict) -> list[float]:
    """Return every number that a document may show of a file of results."""
    found = []
    for one in result["figures"]:
        found += [one[key] for key in ("value", "other", "ratio", "rounds") if key in one]
        found += one.get("spread", [])
    return found


def is_kept(shown: str, kept: list[float]) -> bool:
    """Return whether a number is one of those that are kept, as far as it has digits."""
    digits = len(shown.partition(".")[2])
    value = float(shown.replace(" ", ""))
    rough = 0.5001 * 10**-digits
    if not digits and value >= 1000 and value % 10 == 0:
        rough = 5.001
    return any(math.isclose(value, one, abs_tol=rough) for one in kept)


def blocks(text: str) -> list[str]:
    """Return the paragraphs and tables of a document, without programs, output and words in backticks."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "``", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.split(r"\n\s*\n", text)


def shown_in(block: str) -> list[str]:
    """Return the numbers of a block that are figures of speed."""
    rows = [line.strip() for line in block.splitlines() if line.strip().startswith("|")]
    if len(rows) > 2:
        cells = [cell.strip() for row in rows[2:] for cell in row.strip("|").split("|")[1:]]
        full = [cell for cell in cells if cell]
        numeric = [cell for cell in full if CELL.fullmatch(cell)]
        if len(numeric) > 1 and len(numeric) >= 0.5 * len(full):
            return [found for cell in numeric for found in NUMBER.findall(cell)]
    return [
        found[1] or found[2]
        for found in FIGURE.finditer(block)
        if found[1] or not VERSION.search(block[max(0, found.start() - 20) : found.end() + 9])
    ]


SETTINGS = {
    "benchmarks/README.md": ["threads keep for 5 ms"],
    "docs/from_torchpipe.md": ["4 ms unless set"],
    "docs/instances_and_cores.md": ["for up to 5 ms while"],
    "docs/kubernetes.md": [
        "does 320 requests a second, and may let one wait for 0.05 s",
        "(15 s each)",
        "the rest of each\n100 ms",
    ],
    "docs/machines.md": ["takes 15 s or more"],
    "docs/why.md": ["request took 41 ms, and"],
    "docs/policies.md": ["CPython 3.10 | 3.11 | 3.12 | 3.13 | 3.14"],
    "docs/streams.md": ["a step that takes 4 ms"],
    "docs/when_it_fails.md": ["does so after 30 s"],
    "examples/detect/README.md": ["status 1 below 0.99"],
    "plugins/observe/README.md": ["(1 ms to 10 s by default)"],
    "plugins/ort/README.md": ["(as 1.32)"],
    "plugins/remote/README.md": ["within about 5 s"],
    "plugins/serve/README.md": [
        "after 0.5 s, later up to 30 s",
        "answers nothing for 5 s",
        "every 15 seconds",
    ],
    "plugins/vision/README.md": [
        "after 0.5 to 30 s",
        "after 0.5 s",
        "up to 5 s",
        "a lost track 1 s",
        "and one each 5 s",
    ],
}
"""Numbers of documents that are settings, limits or examples: by document the words around each."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_figure_of_a_document_is_one_that_is_kept(document):
    kept = [
        number
        for one in RESULTS.values()
        if document in one["quoted_in"]
        for number in numbers_of(one)
    ]
    text = (ROOT / document).read_text(encoding="utf-8")
    for words in SETTINGS.get(document, []):
        assert words in text, f"{document} no longer says '{words}': take it out of SETTINGS"
        text = text.replace(words, "")
    lost = [
        (shown, " ".join(block.split())[:300])
        for block in blocks(text)
        for shown in shown_in(block)
        if not is_kept(shown, kept)
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("It was 3.17 times as many, in 12 ms.", ["3.17", "12"]),
        ("`batching_timeout` of 5, on 16 cores with CPython 3.12.", []),
        (
            "| a | b |\n|---|---|\n| x | 470, 29 ms |\n| y | 0.97 (0.9 to 1.1) |",
            ["470", "29", "0.97", "0.9", "1.1"],
        ),
        ("```text\n99 ms\n```", []),
    ],
)
def test_figures_of_speed_are_told_from_other_numbers(said, shown):
    assert [number for block in blocks(said) for number in shown_in(block)] == shown


def test_a_number_is_kept_as_far_as_it_has_digits():
    assert is_kept("1.47", [1.4683])
    assert not is_kept("1.47", [1.48])
    assert is_kept("2820", [2823.0])
    assert not is_kept("2820", [2840.0])
