"""Mutate expressions and see that the outcome is always a tree or a ConfigError.

Every tree must survive its text, every refusal must have its place inside the text.

    python benchmarks/parser/fuzz.py 1000000 [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import time

from headrace._language.expression.parser import parse, read_expression
from headrace.errors import ConfigError

SEEDS = [
    "A",
    "S[DecodeMat,ResizeMat(224,224,color=rgb),cv:CvtColorMat,OnnxTensor]",
    "IoC[InstancesRegister[Reflect[backend]],Register[DI[Batching]];Forward[node.{node_name}]]",
    "(or,key=mask)HasKey(mask)[A(1,-2.5,1e5,true,none,'x y',\"\\u00e9\\n\"),B[C;D]]",
    'A([1,[x,[]],k()],b=B(c)[D],path=${ROOT:-/a}/x.onnx,t="${T:-a b} $${X} {{node_name}}")',
]
PIECES = [
    *"AB01.-_/:+@%~*()[]{},;=\"'$\\ \t\n\r\x00\x7f",
    *("é", "\u200b", "\u00a0", "\u2028", "\ud800", "\U0001f600", "\\u0024", "\\ud800", "\\x"),
    *("${X}", "${X:-a}", "${", "$$", "$${", "{node_name}", "{{", "}}", "{{node_name}}", "{x}"),
    *("true", "none", "1e5", "1e999", "9" * 700, "()", "[]", "A[B]", "k=", "cv:"),
]
POOL = 500
ENVIRON = {"X": "${X}", "ROOT": "A[1", "T": '"'}


def mutate(text: str, rng: random.Random) -> str:
    """Insert, delete, repeat or join a few pieces."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        kind = rng.random()
        if kind < 0.5:
            text = text[:at] + rng.choice(PIECES) + text[at + rng.randint(0, 1) :]
        elif kind < 0.75:
            text = text[:at] + text[min(to, at + 5) :]
        elif kind < 0.9:
            text = text[:at] + text[at:to][:40] + text[at:]
        else:
            text = text[:at] + rng.choice(SEEDS)[: rng.randint(0, 30)] + text[at:]
    return text


def check(text: str) -> str:
    """Parse a text, and raise AssertionError if a promise is broken."""
    try:
        tree = parse(text)
    except ConfigError as error:
        (problem,) = error.problems
        start, end = problem.span or (-1, -1)
        assert 0 <= start <= end <= len(text), "place outside of the text"
        assert problem.render(), "nothing to read"
        return "refused"
    again = parse(str(tree))
    assert again == tree, "no round trip"
    assert str(again) == str(tree), "two canonical texts"
    try:
        new = read_expression(text, node_name="n", environ=ENVIRON)
    except ConfigError:
        return "not substituted"
    assert parse(str(new)) == new, "no round trip after substitution"
    return "tree"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("count", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    rng = random.Random(given.seed)
    pool = list(SEEDS)
    outcomes = {"tree": 0, "not substituted": 0, "refused": 0}
    start = time.perf_counter()
    for _ in range(given.count):
        text = mutate(rng.choice(pool), rng)
        try:
            outcome = check(text)
        except Exception as error:
            raise SystemExit(f"{type(error).__name__}: {error}\n{text!r}") from error
        outcomes[outcome] += 1
        if outcome == "tree" and len(text) < 400:
            if len(pool) < POOL:
                pool.append(text)
            else:
                pool[rng.randrange(len(SEEDS), POOL)] = text
    spent = time.perf_counter() - start
    counts = ", ".join(f"{count:,} {kind}" for kind, count in outcomes.items())
    print(f"{given.count:,} texts in {spent:.0f} s: {counts}")
    print("always a tree that survives its text, or a ConfigError with its place")


if __name__ == "__main__":
    main()
