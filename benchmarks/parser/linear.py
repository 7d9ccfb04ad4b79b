"""Show that the time to parse an expression is linear in its length, also where it is nested.

Prints, for each shape of text, microseconds per character at 10^3 to 10^6 characters, and the ratio
of the last to the first: about 1 when linear, about 1000 when quadratic.

    python benchmarks/parser/linear.py [--largest 1000000]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import time
from typing import TYPE_CHECKING

from headrace._language.expression.parser import parse, read_expression
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def repeated(text: str, around: str, length: int) -> str:
    """Repeat a text that is nested as deep as it may be, up to about ``length`` characters."""
    return around.format(",".join([text] * (length // len(text) + 1)))


SHAPES: dict[str, Callable[[int], str]] = {
    "elements A[B,B,...]": lambda n: "A[" + "B," * (n // 2) + "B]",
    "phases A[B;B;...]": lambda n: "A[" + "B;" * (n // 2) + "B]",
    "keys A(k1=1,...)": lambda n: "A(" + ",".join(f"k{i:06}=1" for i in range(n // 10)) + ")",
    "one name": lambda n: "A" * n,
    "one quoted text": lambda n: 'A("' + "\\n" * (n // 2) + '")',
    "placeholders": lambda n: "A(" + "${X}" * (n // 4) + ")",
    "nested brackets A[A[...": lambda n: repeated("A[" * 99 + "A" + "]" * 99, "A[{}]", n),
    "nested options A(A(...": lambda n: repeated("A(" * 99 + "1" + ")" * 99, "A({})", n),
    "nested lists [[...": lambda n: repeated("[" * 99 + "]" * 99, "A({})", n),
    "refused: never closed": lambda n: "A[" + "B," * (n // 2),
    "refused: too deep": lambda n: "A[" * (n // 2),
    "refused: open text": lambda n: 'A("' + "\\n" * (n // 2),
    "refused: open default": lambda n: 'A("' + "${X:-" * (n // 5) + '")',
}


def outcome(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text)


def everything(text: str) -> None:
    try:
        tree = parse(text)
    except ConfigError:
        return
    again = parse(str(tree))
    if again != tree or hash(again) != hash(tree):
        raise SystemExit(f"no round trip: {text[:60]}")
    read_expression(text, node_name="n", environ={"X": "x"})


def seconds(work: Callable[[str], None], text: str) -> float:
    """Time one run, best of several where it is short."""
    best = float("inf")
    for _ in range(max(1, min(20, 100_000 // len(text)))):
        gc.collect()
        start = time.perf_counter()
        work(text)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--largest", type=int, default=1_000_000)
    largest = arguments.parse_args().largest
    sizes = [size for size in (10**3, 10**4, 10**5, 10**6) if size <= largest]
    works = {"parse": outcome, "parse, str, ==, hash, placeholders": everything}
    for title, work in works.items():
        print(f"{title}: microseconds per character")
        print(f"{'':26}" + "".join(f"{size:>10,}" for size in sizes) + "     ratio")
        for name, make in SHAPES.items():
            texts = [make(size) for size in sizes]
            each = [1e6 * seconds(work, text) / len(text) for text in texts]
            ratio = each[-1] / each[0]
            print(f"{name:26}" + "".join(f"{t:10.3f}" for t in each) + f"{ratio:10.2f}")
        print()


if __name__ == "__main__":
    main()
