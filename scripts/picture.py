"""Draw the pictures of docs/pictures that explain how a pipeline runs: python scripts/picture.py.

The batches of ``batching.svg`` are not drawn by hand: they follow from the times below by the rule of a node without
``batching_timeout``, where an instance that is free takes what waits, up to ``max`` requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"

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
    """Return the batches that instances run: one that is free takes what waits, oldest first."""
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
    ".batch{fill:#f4f4f6;stroke:#555}.node{fill:#fff;stroke:#999}.small{font-size:12px;fill:#555}"
    ".arrow{fill:none;stroke:#555;stroke-width:2}"
)


def x_of(at_ms: float) -> float:
    """Return the horizontal position of a time, in pixels."""
    return round(LEFT + at_ms * SCALE, 1)


def text(x: float, y: float, said: str, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" {more}>{said}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "batch") -> str:
    """Return a box with round corners."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{kind}"/>'


def square(x: float, y: float, color: str, width: float = 17) -> str:
    """Return the square of a request, or with a smaller width of one of its elements."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="18" rx="3" fill="{color}"/>'


def squares(x: float, y: float, colors: list[str], width: float = 17) -> list[str]:
    """Return squares side by side."""
    return [square(x + place * (width + 4), y, color, width) for place, color in enumerate(colors)]


def row(y: float) -> str:
    """Return the line of a lane."""
    return f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" class="row"/>'


def call(y: float, begin: float, end: float, color: str) -> list[str]:
    """Return a call: a dot where it begins, a bar until its answer comes."""
    return [
        f'<line x1="{begin}" y1="{y}" x2="{end}" y2="{y}" stroke="{color}" class="call"/>',
        f'<circle cx="{begin}" cy="{y}" r="6" fill="{color}"/>',
        f'<path d="M{end} {y - 6}v12" stroke="{color}" class="end"/>',
    ]


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return an arrow from left to right that leaves and arrives level."""
    middle = (x + to_x) / 2
    line = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}m-7 -5l7 5l-7 5"
    return f'<path d="{line}" class="arrow"/>'


def svg(title: str, height: float, parts: list[str]) -> str:
    """Return a whole picture as text."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def drawn_threads(found: list[Batch]) -> list[str]:
    """Return a row per thread with its calls."""
    parts = [text(20, TOP - 22, "your threads: each call waits for its own answer", 'class="head"')]
    for thread, color in enumerate(COLORS):
        y = TOP + thread * ROW
        parts += [text(20, y + 4, f"thread {thread + 1}"), row(y)]
        for batch in found:
            for sender, at in batch.requests:
                if sender == thread:
                    parts += call(y, x_of(at), x_of(batch.end_ms), color)
    return parts


def drawn_instances(found: list[Batch]) -> list[str]:
    """Return a lane per instance: a box per batch, a square in it per request."""
    said = f"Headrace: {INSTANCES} instances, batches of up to {MAX}"
    parts = [text(20, LANES_TOP - 18, said, 'class="head"')]
    for instance in range(INSTANCES):
        y = LANES_TOP + instance * LANE
        parts += [text(20, y + 27, f"instance {instance + 1}"), row(y + 22)]
    for batch in found:
        y, begin = LANES_TOP + batch.instance * LANE, x_of(batch.begin_ms)
        width = round(x_of(batch.end_ms) - begin - 3, 1)
        colors = [COLORS[thread] for thread, _ in batch.requests]
        parts += [box(begin, y, width, 44), *squares(begin + 8, y + 13, colors)]
    return parts


def batching() -> str:
    """Draw requests of several threads that become batches."""
    found, height = batches(), LANES_TOP + INSTANCES * LANE + 34
    said = "time →   an idle instance starts at once. While all run, new requests queue for the next batch"
    parts = [*drawn_threads(found), *drawn_instances(found), text(LEFT, height - 14, said)]
    return svg(
        "Requests of six threads become batches over two instances of a model", height, parts
    )


def node(
    x: float, head: tuple[str, str], waiting: list[str], running: list[list[str]], width: float = 17
) -> list[str]:
    """Draw a node of a graph: its queue, and its instances with the batches that they run."""
    name, keys = head
    parts = [box(x, 40, 210, 190, "node"), text(x + 12, 62, name, 'class="head"')]
    parts += [text(x + 12, 80, keys, 'class="small"'), text(x + 12, 109, "queue")]
    parts += [box(x + 84, 92, 116, 26), *squares(x + 90, 96, waiting, width)]
    for place, colors in enumerate(running):
        y = 130 + 32 * place
        parts += [text(x + 12, y + 17, f"instance {place + 1}"), box(x + 84, y, 116, 26)]
        parts += squares(x + 90, y + 4, colors, width)
    return parts


def graph() -> str:
    """Draw a graph of three nodes in which pages share batches, and their lines do."""
    blue, red, green, pink, gold, sky = COLORS
    head = "a graph: each node has a queue, instances and batches of its own"
    parts = [text(14, 24, head, 'class="head"'), *squares(14, 109, [sky])]
    parts += [arrow(36, 118, 60, 118), *(arrow(x, 118, x + 42, 118) for x in (276, 534, 792))]
    parts += [text(284, 106, "next", 'class="small"'), text(542, 106, "next", 'class="small"')]
    parts += node(66, ("decode", "instance_num = 3"), [], [[gold], [], []])
    parts += node(324, ("find", "max = 2"), [], [[pink, green]])
    lines = [[blue, red, red, blue, blue, red], [red, red, red, blue, red, red]]
    parts += node(582, ("read", "each = lines, max = 6"), [red, blue], lines, 13)
    parts += [text(800, 106, "answer", 'class="small"')]
    said = "a color is a request. each makes one of every line of a page, so lines of several pages share a batch"
    return svg(
        "A request goes through three nodes, each with a queue", 272, [*parts, text(66, 256, said)]
    )


def instances() -> str:
    """Draw instances in threads, and in processes."""
    blue, red, green, pink, gold, sky = COLORS
    parts = [box(20, 40, 390, 216, "node"), box(450, 40, 106, 216, "node")]
    for x, head in (
        (20, "instance_num = 3, in threads"),
        (450, "instance_num = 3, with Process[...]"),
    ):
        parts += [text(x, 24, head, 'class="head"'), text(x + 14, 62, "your process")]
        parts += [
            text(x + 14, 143, "queue"),
            box(x + 14, 152, 62, 26),
            *squares(x + 20, 156, [gold, sky]),
        ]
    for place, colors in enumerate([[blue, pink], [red], [green]]):
        y, name = 81 + 62 * place, f"instance {place + 1}"
        parts += [box(602, y - 6, 238, 56, "node")]
        for x, begin in ((146, 98), (612, 528)):
            parts += [arrow(begin, 165, x - 4, y + 22), box(x, y, 110, 44)]
            parts += [text(x + 8, y + 15, name, 'class="small"'), *squares(x + 8, y + 21, colors)]
        parts += [box(734, y, 96, 44), text(746, y + 27, "its model")]
        parts.append(f'<path d="M256 {y + 22}h30m436 0h12" class="arrow"/>')
    parts += [box(286, 81, 110, 168), text(298, 161, "one model,"), text(298, 179, "one lock")]
    parts.append(text(20, 282, "native libraries release the lock while they compute"))
    parts.append(text(450, 282, "a crash ends one process. Batches are copied there and back"))
    return svg("Instances in threads share a model, and in processes each has its own", 298, parts)


def runners() -> str:
    """Draw whose thread runs a batch."""
    blue, red, green = COLORS[:3]
    parts = [text(20, 24, "who runs a batch: three callers, one instance", 'class="head"')]
    for place, name in enumerate(("caller 1", "caller 2", "caller 3", "worker")):
        parts += [text(20, 67 + 52 * place, name), row(62 + 52 * place)]
    parts += [*call(62, 140, 356, blue), *call(114, 220, 606, red), *call(166, 280, 606, green)]
    parts += [
        box(152, 40, 200, 44),
        *squares(162, 53, [blue]),
        text(192, 67, "runs its own request"),
    ]
    parts += [text(236, 104, "waits"), text(296, 156, "waits"), box(356, 196, 246, 44)]
    parts += [*squares(366, 209, [red, green]), text(418, 223, "a thread of a pool runs both")]
    said = "time →   a caller runs its own request on an idle instance. While it is busy, requests queue for a worker"
    return svg(
        "A caller runs its own request, and a worker the batch after it",
        288,
        [*parts, text(LEFT, 272, said)],
    )


def core() -> str:
    """Draw the two ways of a request through a node, and what is told of it."""
    blue, red, green, pink = COLORS[:4]
    parts = [text(20, 24, "one node: two ways to run a batch", 'class="head"')]
    parts += [box(20, 50, 120, 160, "node"), text(34, 74, "your threads"), square(70, 92, blue)]
    parts += [*squares(50, 156, [red, green]), arrow(140, 101, 636, 92), arrow(140, 165, 176, 165)]
    parts.append(text(200, 84, "1  short cut: pops an idle instance, and runs its own request"))
    parts += [box(640, 60, 200, 54), text(654, 82, "instance"), square(760, 78, blue)]
    parts += [box(640, 138, 200, 72, "node"), text(654, 160, "2  a worker's thread")]
    parts += [box(654, 168, 172, 34), text(664, 189, "instance"), *squares(760, 176, [red, green])]
    parts += [box(180, 138, 84, 54), text(190, 156, "inbox"), *squares(190, 164, [red, green])]
    parts += [box(296, 116, 312, 94, "node"), text(310, 134, "the box: one step at a time")]
    for x, name in ((306, "queue"), (408, "policies"), (510, "outcomes")):
        parts += [box(x, 144, 88, 54), text(x + 10, 162, name)]
    parts += [square(316, 170, pink), arrow(264, 171, 302, 171), arrow(394, 171, 404, 171)]
    parts.append('<path d="M496 166h8V124H624V174H636m-7 -5l7 5l-7 5" class="arrow"/>')
    parts.append('<path d="M740 210V236H554V202m-5 7l5 -7l5 7" class="arrow"/>')
    parts.append('<path d="M530 198V252H80V214m-5 7l5 -7l5 7" class="arrow"/>')
    parts += [text(600, 254, "end_batch"), text(180, 246, "the outcome wakes the caller")]
    parts.append(
        text(20, 284, "events:  cut,  ended,  settled,  failed  →  counts of stats(), log, probes")
    )
    return svg(
        "A request runs on an idle instance, or goes by inbox and box to a worker", 300, parts
    )


PICTURES = {
    "batching": batching,
    "core": core,
    "graph": graph,
    "instances": instances,
    "runners": runners,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
