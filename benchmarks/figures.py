"""The figures that are kept: ``benchmarks/results`` holds them, and documents show no others.

A benchmark gives `load.save` a list of `Figure`, which becomes a part of its JSON. That part is kept by

    python -m benchmarks.figures RAW.json NAME --machine TEXT [--title TEXT] [--quoted-in DOCUMENT ...]

as ``benchmarks/results/NAME.json``, in the form of ``benchmarks/results.schema.json``. What is not given again
(title, notes, documents) stays as it is in the file that is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Figure", "as_dicts", "compare", "measure"]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Figure:
    """A figure of Headrace, alone or beside another side.

    Attributes:
        what: What was measured, and under which load.
        unit: Of ``value`` and ``other``; empty for a number without a unit.
        better: Whether a ``higher`` or a ``lower`` value is better, or ``neither``.
        value: The median over the rounds.
        beside: The side that it is compared with.
        other: The median of that side.
        own: True where that side is Headrace too, set otherwise.
        ratio: The median of value / other within each round.
        spread: Lowest and highest of the rounds: of the ratio where there is one, else of the value.
        rounds: How many rounds there were.
    """

    what: str
    unit: str
    better: str
    value: float
    beside: str | None = None
    other: float | None = None
    own: bool | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    rounds: int | None = None


def measure(what: str, unit: str, better: str, rounds: Sequence[float]) -> Figure:
    """Return the figure of values that were measured in so many rounds, beside nothing."""
    spread = (min(rounds), max(rounds))
    return Figure(what, unit, better, statistics.median(rounds), spread=spread, rounds=len(rounds))


def compare(
    what: str,
    unit: str,
    better: str,
    ours: Sequence[float],
    beside: str,
    others: Sequence[float],
    *,
    own: bool = False,
) -> Figure:
    """Return the figure of two sides that ran in turn; item k of both is of round k."""
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    return Figure(
        what,
        unit,
        better,
        statistics.median(ours),
        beside,
        statistics.median(others),
        own or None,
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        len(ratios),
    )


def as_dicts(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return the figures as JSON has them: four digits, and without what is not known."""
    return [
        {key: _short(value) for key, value in asdict(one).items() if value is not None}
        for one in figures
    ]


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def keep(raw: Mapping[str, Any], before: Mapping[str, Any], chosen: argparse.Namespace) -> Any:
    """Return the text of a file of results, from what a script wrote and from the file that it replaces."""
    quoted = chosen.quoted_in if chosen.quoted_in is not None else before.get("quoted_in", [])
    return {
        "title": chosen.title or before["title"],
        "run": {"source": "script", **raw["run"]},
        "environment": {"machine": chosen.machine, **raw["environment"]},
        "notes": chosen.note if chosen.note is not None else before.get("notes", []),
        "quoted_in": quoted,
        "figures": raw["kept"],
    }


def main() -> None:
    """Keep the figures of one run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("raw", type=Path, help="what a benchmark wrote with --json")
    parser.add_argument("name", help="of the file in benchmarks/results, without .json")
    parser.add_argument("--machine", required=True, help="what it ran on, and beside what")
    parser.add_argument("--title")
    parser.add_argument("--note", nargs="*")
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder of results")
    parser.add_argument("--quoted-in", nargs="*", metavar="DOCUMENT")
    chosen = parser.parse_args()
    path = chosen.into / f"{chosen.name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not (chosen.title or before):
        parser.error("a new file needs --title")
    raw = json.loads(chosen.raw.read_text(encoding="utf-8"))
    if not raw.get("kept"):
        parser.error(f"{chosen.raw} has no figures that are kept: its script gives `save` none")
    text = json.dumps(keep(raw, before, chosen), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
