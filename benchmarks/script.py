"""`Script` beside the same cascade composed by a graph, and beside a program with batches written by hand.

    python -m benchmarks.script [--clients 1 10 40] [--step-ms 2] [--quick]

A request is a page: `detect` gives its three lines, `read` reads each, and `reread` reads those again that are unsure, one to
three times as the line wants it. Each of the three takes so many milliseconds for a batch of any size, at most 32, and the
thread sleeps meanwhile, as with a model on a device. Clients send one page after the other. Sides, in turn:

- ``by hand``: a thread for each model, which runs what has come together since its last batch; the thread of a client
  asks them by futures;
- ``Script``: the loop in plain Python, ten lines, as the first node of the pipeline;
- ``Script in a node``: the same as the backend of a node with two instances;
- ``graph``: nodes with ``each``, and ``Iterate`` around ``reread``. There a line that is done does not wait for the
  others of its page between two rounds, which the two loops let it do.

Each answer is checked. Compared are pages per second, and the processor time of a page.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import (
    Load,
    arguments,
    beside,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
)

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 32

PAGE = """
from headrace_flow import call


def page(request):
    lines = yield call("detect", request["data"])
    texts = yield [call("read", line) for line in lines]
    while unsure := [k for k, text in enumerate(texts) if text["left"]]:
        again = yield [call("reread", texts[k]) for k in unsure]
        for k, text in zip(unsure, again):
            texts[k] = text
    return texts
"""


def detect(page: int) -> list[int]:
    """Return the lines of a page."""
    return [3 * page + place for place in range(3)]


def read(line: int) -> dict[str, int]:
    """Return the text of a line, and how often it must be read again."""
    return {"text": 10 * line, "left": 1 + line * 7 % 3}


def reread(text: dict[str, int]) -> dict[str, int]:
    """Read a line once more."""
    return {"text": text["text"] + 1, "left": text["left"] - 1}


def wanted(page: int) -> list[dict[str, int]]:
    """Return what a page must give."""
    return [{"text": 10 * line + 1 + line * 7 % 3, "left": 0} for line in detect(page)]


class Model(headrace.Backend):
    """Sleeps once for a batch, and calls a function for each request."""

    max = MOST
    step_s = 0.002
    function: Callable[[Any], Any]

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Run a batch."""
        time.sleep(self.step_s)
        for request in batch:
            request["result"] = made = type(self).function(request["data"])
            if isinstance(made, dict) and not made["left"]:
                request["sure"] = True


class Batched:
    """A model in a thread of its own, which runs what has come together since its last batch."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._sent: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, data: Any) -> Future[Any]:
        """Send a request."""
        future: Future[Any] = Future()
        self._sent.put((data, future))
        return future

    def close(self) -> None:
        """End the thread."""
        self._sent.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (one := self._sent.get()) is not None:
            batch = [one]
            while len(batch) < MOST:
                try:
                    more = self._sent.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    return
                batch.append(more)
            time.sleep(Model.step_s)
            for data, future in batch:
                future.set_result(self._function(data))


def by_hand(models: dict[str, Batched], page: int) -> list[dict[str, int]]:
    """Read a page by the three models."""
    lines = models["detect"].ask(page).result()
    texts = [one.result() for one in [models["read"].ask(line) for line in lines]]
    while unsure := [k for k, text in enumerate(texts) if text["left"]]:
        asked = [models["reread"].ask(texts[k]) for k in unsure]
        for k, one in zip(unsure, asked, strict=True):
            texts[k] = one.result()
    return texts


def checked(answer: Callable[[int], Any], page: int) -> None:
    """Read a page, and look at the answer."""
    if (found := answer(page)) != wanted(page):
        raise RuntimeError(f"page {page} gave {found}")


def main() -> None:
    """Measure all sides in turn, and print the medians of their ratios to the program by hand."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 40])
    parser.add_argument("--step-ms", type=float, default=2.0, help="of each model, for a batch")
    chosen = parser.parse_args()
    rounds, seconds = (1, 0.1) if chosen.quick else (9, 2.0)
    Model.step_s = chosen.step_ms / 1e3
    for function in (detect, read, reread):
        name = f"Script{function.__name__.title()}"
        made = type(name, (Model,), {"function": staticmethod(function)})
        headrace.register(name, made, replace=True)
    about = environment(["headrace", "headrace-flow"])
    print_environment(about)
    figures: dict[str, Any] = {}
    kept = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "page.py").write_text(PAGE, encoding="utf-8")
        nodes = {
            name: {"backend": f"Script{name.title()}"} for name in ("detect", "read", "reread")
        }
        script = f"Script('{folder / 'page.py'}:page')"
        in_a_node = {"page": {"backend": script, "instance_num": 2}, **nodes}
        graph: Any = {
            "detect": {**nodes["detect"], "next": "read"},
            "read": {**nodes["read"], "each": "data", "next": "reread"},
            "reread": {"backend": "Iterate(until=sure)[ScriptReread]", "each": "data"},
        }
        models = {one.__name__: Batched(one) for one in (detect, read, reread)}
        for model in models.values():
            stack.callback(model.close)
        answers: dict[str, Callable[[int], Any]] = {"by hand": partial(by_hand, models)}
        pipelines: dict[str, Any] = {
            "Script": ({"pages": {"backend": script}, **nodes}, {}),
            "Script in a node": (in_a_node, {"node_name": "page"}),
            "graph": (graph, {}),
        }
        for name, (config, keys) in pipelines.items():
            pipe = stack.enter_context(headrace.pipe(config))
            answers[name] = lambda page, pipe=pipe, keys=keys: pipe({"data": page, **keys})[
                "result"
            ]
        for clients in chosen.clients:
            sides = {
                name: partial(drive, partial(checked, answer), clients, seconds)
                for name, answer in answers.items()
            }
            loads = in_turn(sides, rounds)
            ratios = {name: ratio(side, loads["by hand"]) for name, side in loads.items()}
            figures[str(clients)] = {"loads": loads, "ratio": ratios}
            show(clients, loads, ratios)
            for name in ("Script", "Script in a node"):
                for other in ("by hand", "graph"):
                    what, own = f"{name}, {clients} clients", other == "graph"
                    kept.append(beside(what, loads[name], other, loads[other], own=own))
    save(chosen.json, about, figures, kept)


def show(clients: int, loads: dict[str, list[Load]], ratios: dict[str, float]) -> None:
    """Print the figures of a number of clients."""
    print(f"{clients} clients")
    for name, side in loads.items():
        one = middle(side)
        print(
            f"  {name:16} {one.rps:8.0f} pages/s, p99 {one.p99_us / 1e3:6.1f} ms, "
            f"{one.cpu_us:6.0f} us of processor time each, {ratios[name]:.2f} of by hand"
        )


if __name__ == "__main__":
    main()
