"""Draw docs/pictures/batching.svg: requests of several threads become batches over two instances: python scripts/picture.py.

The batches are not drawn by hand: they follow from the times below by the rule of a node without
``batching_timeout``, where an instance that is free takes what waits, up to ``max`` requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "batching.svg"

MAX = 4
INSTANCES = 2
FIRST_MS = (1.0, 2.5, 4.0, 5.0, 6.0, 7.5)
PAUSE_MS = (3.0, 1.5, 2.0, 1.0, 2.5, 1.5)
UNTIL_MS = 38.0
# When each thread sends its first request, and how long after an answer the next one, in milliseconds.
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#b8860b",
    "#56b4e9",
)  # Okabe and Ito, one darker


@dataclass(frozen=True)
class Batch:
    """A run of one instance: when, and the requests in it as (thread, when it was sent)."""

    instance: int
    begin_ms: float
    end_ms: float
    requests: tuple[tuple[int, float], ...]


def run_ms(size: int) -> float:
    """Return how long a batch runs: most of it once per batch, a little per request."""
    return 7.5 + 0.5 * size


def batches() -> list[Batch]:
    """Return the batches that instances cut: one that is free takes what waits, oldest first."""
    sent = [(at, thread) for thread, at in enumerate(FIRST_MS)]
    free_ms = [0.0] * INSTANCES
    found = []
    while sent:
        sent.sort()
        instance = free_ms.index(min(free_ms))
        begin = max(free_ms[instance], sent[0][0])
        taken = [(thread, at) for at, thread in sent if at <= begin][:MAX]
        del sent[: len(taken)]
        end = free_ms[instance] = begin + run_ms(len(taken))
        found.append(Batch(instance, begin, end, tuple(taken)))
        again = [(end + PAUSE_MS[thread], thread) for thread, _ in taken]
        sent += [(at, thread) for at, thread in again if at < UNTIL_MS]
    return found


LEFT, TOP, ROW, SCALE = 118, 54, 26, 14.5  # pixels; SCALE: of a millisecond
WIDTH, LANES_TOP, LANE = 860, TOP + 6 * ROW + 44, 58
STYLE = (
    "text{font:13px sans-serif;fill:#222}.head{font-weight:bold;font-size:14px}"
    ".row{stroke:#ddd}.call{stroke-width:5;opacity:.4}.end{stroke-width:3}"
    ".batch{fill:#f4f4f6;stroke:#555}"
)
HEIGHT = LANES_TOP + INSTANCES * LANE + 34


def x_of(at_ms: float) -> float:
    """Return the horizontal position of a time, in pixels."""
    return round(LEFT + at_ms * SCALE, 1)


def text(x: float, y: float, said: str, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" {more}>{said}</text>'


def drawn_threads(found: list[Batch]) -> list[str]:
    """Return a row per thread: a dot where a request is sent, a bar until its answer comes."""
    parts = [text(20, TOP - 22, "your threads: each call waits for its own answer", 'class="head"')]
    for thread, color in enumerate(COLORS):
        y = TOP + thread * ROW
        parts.append(text(20, y + 4, f"thread {thread + 1}"))
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" class="row"/>')
        for batch in found:
            for sender, at in batch.requests:
                if sender != thread:
                    continue
                begin, end = x_of(at), x_of(batch.end_ms)
                parts.append(
                    f'<line x1="{begin}" y1="{y}" x2="{end}" y2="{y}" stroke="{color}" class="call"/>'
                )
                parts.append(f'<circle cx="{begin}" cy="{y}" r="6" fill="{color}"/>')
                parts.append(f'<path d="M{end} {y - 6}v12" stroke="{color}" class="end"/>')
    return parts


def drawn_instances(found: list[Batch]) -> list[str]:
    """Return a lane per instance: a box per batch, a square in it per request."""
    said = f"Headrace: {INSTANCES} instances, batches of up to {MAX}"
    parts = [text(20, LANES_TOP - 18, said, 'class="head"')]
    for instance in range(INSTANCES):
        y = LANES_TOP + instance * LANE
        parts.append(text(20, y + 27, f"instance {instance + 1}"))
        parts.append(
            f'<line x1="{LEFT}" y1="{y + 22}" x2="{WIDTH - 20}" y2="{y + 22}" class="row"/>'
        )
    for batch in found:
        y, begin = LANES_TOP + batch.instance * LANE, x_of(batch.begin_ms)
        width = round(x_of(batch.end_ms) - begin - 3, 1)
        parts.append(
            f'<rect x="{begin}" y="{y}" width="{width}" height="44" rx="5" class="batch"/>'
        )
        for place, (thread, _) in enumerate(batch.requests):
            x = round(begin + 8 + place * 21, 1)
            parts.append(
                f'<rect x="{x}" y="{y + 13}" width="17" height="18" rx="3" fill="{COLORS[thread]}"/>'
            )
    return parts


def picture() -> str:
    """Return the SVG as text."""
    found = batches()
    title = "Requests of six threads become batches over two instances of a model"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *drawn_threads(found),
        *drawn_instances(found),
        text(
            LEFT,
            HEIGHT - 14,
            "time →   an idle instance starts at once; while all run, what waits gathers into the next batch",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
