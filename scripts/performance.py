"""The pages docs/performance.md and docs/performance, of benchmarks/results.

A figure of Headrace is ahead of what it is compared with, level with it (within three hundredths), or behind it. The
index lists each that is behind.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "performance"
LEVEL = 0.03

HEAD = """\
# Performance

Every figure that the documents show, with the environment, the commit and the script that it came from. Made
of the files in `benchmarks/results`; a test fails where a document shows a figure that
is in none of them. [Benchmarks](../benchmarks/README.md) says what each script measures, and what its clock covers.

A figure is a ratio where it can be: both sides ran in turn in one process tree, the ratio is the median of those within the rounds,
and the spread has the lowest and the highest of them. Machines differ by a factor, so absolute numbers are worth little
elsewhere; on a machine of its own each script says what holds there. *Level* is within three hundredths.
"""

BEHIND = """\
Each comparison with figures that are behind; the ratio says how good Headrace is where the other side is 1, and greater is
better. Some of the other sides do less, such as processes without a queue, an engine without callers, or a call without
its answer: those are bounds, which nothing that does the whole work can pass.
"""


def read() -> dict[str, dict[str, Any]]:
    """Return the results by the name of their file."""
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def number(value: float) -> str:
    """Return a number as the pages show it."""
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:.2f}" if abs(value) < 10 and len(text) < 4 and value != int(value) else text


def two_digits(value: float) -> str:
    """Return a ratio as the pages show it."""
    return f"{value:.2f}" if value < 10 and round(value, 2) == round(value, 4) else number(value)


def advantage(figure: dict[str, Any]) -> float:
    """Return how many times better Headrace is than the other side; NaN where nothing is compared, or both are Headrace."""
    over = figure.get("ratio")
    if over is None and "value" in figure and figure.get("other"):
        over = figure["value"] / figure["other"]
    if over is None or figure["better"] == "neither" or figure.get("own"):
        return math.nan
    return float(1 / over if figure["better"] == "lower" else over)


def outcome(figure: dict[str, Any]) -> str:
    """Return how Headrace stands beside the other side; empty where `advantage` is NaN."""
    over = advantage(figure)
    if math.isnan(over):
        return ""
    return "level" if round(abs(over - 1), 6) <= LEVEL else "ahead" if over > 1 else "behind"


def cells(figure: dict[str, Any]) -> list[str]:
    """Return the row of a figure."""
    unit = {"": "", "1/s": "/s"}.get(figure["unit"], f" {figure['unit']}")
    told = two_digits if "ratio" in figure else number
    spread = " to ".join(told(one) for one in figure.get("spread", ()))
    known = [
        (f"{number(figure[key])}{unit}" if key in figure else "") for key in ("value", "other")
    ]
    ratio = two_digits(figure["ratio"]) if "ratio" in figure else ""
    rounds = str(figure.get("rounds", ""))
    beside = figure.get("beside", "") + (" (Headrace, too)" if figure.get("own") else "")
    return [figure["what"], known[0], beside, known[1], ratio, spread, rounds, outcome(figure)]


def row(found: list[str]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(one.replace("|", "\\|") for one in found) + " |"


def page(name: str, result: dict[str, Any]) -> str:
    """Return the page of one file of results."""
    run, environment = result["run"], result["environment"]
    script = f"[{run['script']}](../../{run['script']})" if run["script"] else "none is kept"
    python = environment["python"]
    about = [environment["machine"], python if "ython" in python else f"Python {python}"]
    if environment.get("load_average") is not None:
        about.append(f"load average {environment['load_average']} before it began")
    packages = {
        name: version for name, version in environment.get("packages", {}).items() if version
    }
    about.append(", ".join(f"{name} {version}" for name, version in packages.items()))
    source = {
        "script": "written by the script",
        "document": "taken from the documents, whose change the commit is: they stood there before results were kept",
    }[run["source"]]
    lines = [
        f"# {result['title']}",
        "",
        f"- Script: {script}" + (f", `{run['command']}`" if run["command"] else ""),
        f"- Environment: {'; '.join(filter(None, about))}",
        f"- Commit `{run['commit']}`, {run['date']}; figures {source}",
        f"- File: [benchmarks/results/{name}.json](../../benchmarks/results/{name}.json)",
    ]
    if result["quoted_in"]:
        shown = ", ".join(f"[{one}](../../{one})" for one in result["quoted_in"])
        lines.append(f"- Shown in {shown}")
    lines += ["", *(f"{note}\n" for note in result["notes"])]
    heads = ["measured", "Headrace", "beside", "that", "ratio", "spread", "rounds", ""]
    table = [cells(figure) for figure in result["figures"]]
    used = [k for k in range(len(heads)) if any(found[k] for found in table)]
    lines += [row([heads[k] for k in used]), "|" + "---|" * len(used)]
    lines += [row([found[k] for k in used]) for found in table]
    return "\n".join(lines) + "\n"


def index(results: dict[str, dict[str, Any]]) -> str:
    """Return the page that lists the files, and every figure that is behind."""
    lines = [HEAD, "| measured | on | ahead | level | behind |", "|---|---|---|---|---|"]
    compared = {name: any(map(outcome, one["figures"])) for name, one in results.items()}
    for name in sorted(results, key=lambda name: (not compared[name], results[name]["title"])):
        result = results[name]
        stands = [outcome(figure) for figure in result["figures"]]
        counts = [str(stands.count(one) or "") for one in ("ahead", "level", "behind")]
        link = f"[{result['title']}](performance/{name}.md)"
        lines.append(row([link, result["environment"]["machine"], *counts]))
    lines += ["", "## Where Headrace is behind", "", BEHIND]
    lines += ["| measured | beside | figures | ratio: furthest, nearest |", "|---|---|---|---|"]
    for name, result in results.items():
        sides: dict[str, list[float]] = {}
        for figure in result["figures"]:
            if outcome(figure) == "behind":
                sides.setdefault(figure["beside"], []).append(advantage(figure))
        link = f"[{result['title']}](performance/{name}.md)"
        for beside, found in sides.items():
            said = ", ".join(dict.fromkeys(f"{one:.2f}" for one in (min(found), max(found))))
            lines.append(row([link, beside, str(len(found)), said]))
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    results = read()
    made = {FOLDER / f"{name}.md": page(name, result) for name, result in results.items()}
    return {PAGE: index(results), **made}
