"""Read the pages of `prepare.py` with this pipeline and with rapidocr itself; compare text and speed.

Both use the same three networks and get the same files, from the same number of threads, in turn,
in one process. rapidocr runs as installed, and with 1 and 2 threads inside onnxruntime; its best
setting is the one that reads most pages per second here.

With ``--against`` the text is compared with that of another pipeline in place of rapidocr's, the same
networks run by something else; the exit status is 1 when more than 0.5 % of the characters differ.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from compare import distance
from rapidocr import RapidOCR

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

Reader: TypeAlias = "Callable[[bytes], str]"

HERE = Path(__file__).resolve().parent
WANTED = {1: 1.0, 8: 1.5}
"""By how much this pipeline is to be ahead of rapidocr as installed, per number of clients."""
MOST_DIFFERENT = 0.005
"""Part of the characters that may differ from those of another pipeline."""
INSTALLED = "rapidocr as installed"
OPTIONS = {
    "threads": "EngineConfig.onnxruntime.intra_op_num_threads",
    "batch": "Rec.rec_batch_num",
}


class Run(NamedTuple):
    """One pass over all pages: pages per second, and seconds of CPU time per page."""

    rate: float
    cpu: float


def rapidocr_reader(**options: int) -> Reader:
    """Return rapidocr as a function from a file to its text, with some options other than installed."""
    params: dict[str, Any] = {"Global.log_level": "error"}
    params.update({OPTIONS[name]: value for name, value in options.items()})
    engine = RapidOCR(params=params)

    def read(picture: bytes) -> str:
        answer: Any = engine(picture)
        return "\n".join(answer.txts or ())

    return read


def run(read: Reader, pictures: list[bytes], clients: int) -> Run:
    """Read all pictures from so many threads.

    The first of them once per thread beforehand: then the threads exist and the models are loaded.
    """
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(read, pictures[:1] * clients))
        wall, cpu = time.perf_counter(), time.process_time()
        list(threads.map(read, pictures))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Run(len(pictures) / wall, cpu / len(pictures))


def compare_texts(
    names: list[str], pictures: list[bytes], ours: Reader, theirs: Reader, who: str = "rapidocr"
) -> float:
    """Print where the texts differ; give by what part of their characters.

    For comparison: by how many rapidocr differs from itself when it reads the lines one by one,
    not six at a time, filled up to the same width.
    """
    alone = rapidocr_reader(batch=1) if who == "rapidocr" else None
    wrong = wrong_alone = characters = 0
    for name, picture in zip(names, pictures, strict=True):
        our, their = ours(picture), theirs(picture)
        errors = distance(their, our)
        wrong, characters = wrong + errors, characters + len(their)
        wrong_alone += distance(their, alone(picture)) if alone else 0
        print(f"{errors:5} of {len(their):5} characters differ  {name}")
        for our_line, their_line in zip(our.split("\n"), their.split("\n"), strict=False):
            if our_line != their_line:
                print(f"        headrace {our_line!r}\n        {who:8} {their_line!r}")
    counts = {"headrace": wrong} | ({"rapidocr, line by line": wrong_alone} if alone else {})
    for name, count in counts.items():
        percent = f"{100 * count / max(characters, 1):.2f} %"
        print(f"{name}: {count} of {characters} characters are not those of {who} ({percent})")
    return wrong / max(characters, 1)


def compare_speed(
    readers: dict[str, Reader], pictures: list[bytes], rounds: int, clients: int
) -> None:
    """Print pages per second and CPU time per page of each reader, and what headrace is ahead.

    All readers of a round run one after the other; a ratio is the median of those of the rounds,
    because a shared machine changes its speed from minute to minute.
    """
    runs: dict[str, list[Run]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            runs[name].append(run(read, pictures, clients))
    medians = {
        name: Run(statistics.median(r.rate for r in of), statistics.median(r.cpu for r in of))
        for name, of in runs.items()
    }

    def ahead_of(name: str) -> Run:
        pairs = list(zip(runs["headrace"], runs[name], strict=True))
        return Run(
            statistics.median(our.rate / their.rate for our, their in pairs),
            statistics.median(our.cpu / their.cpu for our, their in pairs),
        )

    who = "1 client" if clients == 1 else f"{clients} clients"
    print(f"{who}, {len(pictures)} pages, median of {rounds} rounds in turn:")
    for name, (rate, cpu) in medians.items():
        ours = ahead_of(name)
        ahead = f"headrace {ours.rate:.2f} x the pages, {ours.cpu:.2f} x the CPU time"
        print(
            f"  {name:28} {rate:6.2f} pages/s {1000 * cpu:7.0f} ms CPU a page, {rate * cpu:.1f} cores"
        )
        print(f"{'':30} {ahead}")
    best = max((name for name in medians if name != "headrace"), key=lambda n: medians[n].rate)
    wanted = f" (wanted {WANTED[clients]})" if clients in WANTED else ""
    print(f"against rapidocr as installed: {ahead_of(INSTALLED).rate:.2f} x{wanted}")
    wanted = " (wanted 1.05)" if clients == 8 else ""
    print(f"against its best ({best}): {ahead_of(best).rate:.2f} x{wanted}")


def pipeline_reader(pipe: headrace.Pipeline) -> Reader:
    """Give a pipeline as a function from a file to its text."""

    def read(picture: bytes) -> str:
        text: str = pipe({"data": picture})["result"]["text"]
        return text

    return read


def main() -> int:
    """Run from the command line; 1 where the text is not that of ``--against``."""
    parser = argparse.ArgumentParser(description="Compare with rapidocr, on whole pages.")
    parser.add_argument("--made", type=Path, default=HERE / "made", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3, help="of the speed; 0: only the text")
    parser.add_argument("--passes", type=int, default=2, help="over all pages, in one round")
    parser.add_argument("--clients", type=int, default=8, help="threads that send pages")
    parser.add_argument("--config", type=Path, default=HERE / "page.toml", help="of the pipeline")
    parser.add_argument("--against", type=Path, metavar="CONFIG", help="another pipeline's text")
    options = parser.parse_args()
    paths = sorted((options.made / "pages").glob("*"))
    if not paths:
        raise SystemExit(f"There are no pages yet: python {HERE / 'prepare.py'}")
    pictures = [path.read_bytes() for path in paths]
    packages = ", ".join(f"{name} {version(name)}" for name in ("rapidocr", "onnxruntime"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"Python {platform.python_version()}, {packages}; {os.cpu_count()} CPUs{load}")
    with headrace.pipe(str(options.config)) as pipe:
        ours, names = pipeline_reader(pipe), [path.name for path in paths]
        if options.against is not None:
            with headrace.pipe(str(options.against)) as other:
                theirs, who = pipeline_reader(other), options.against.name
                part = compare_texts(names, pictures, ours, theirs, who)
            return 1 if part > MOST_DIFFERENT else 0
        readers: dict[str, Reader] = {"headrace": ours, INSTALLED: rapidocr_reader()}
        compare_texts(names, pictures, ours, readers[INSTALLED])
        if options.rounds:
            for threads in (1, 2):
                readers[f"rapidocr, threads: {threads}"] = rapidocr_reader(threads=threads)

            compare_speed(readers, pictures * options.passes, options.rounds, options.clients)
    return 0


if __name__ == "__main__":
    sys.exit(main())
