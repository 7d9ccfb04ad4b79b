"""The pages in docs/rules, one per rule of the backend contract, from the rules themselves."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from rule_cures import CURES

from headrace_testing.conformance import Rule, rules

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "rules"
SHELF = ROOT / "testing" / "tests" / "conformance_shelf"

HEAD = """# The rules

What the conformance kit checks of a backend, a page per rule. Made from the code.

A backend is certified by a class with its expression and a factory of requests:

```python
import numpy

from headrace_testing import BackendConformance


class ResizeMatConformance(BackendConformance):
    expression = "ResizeMat(16,24)"  # a backend; children stand in [ ] as always
    options = {}  # what goes beside it in a configuration
    expected_failures = {}  # {"rule": "why the backend cannot keep it"}

    def make_item(self, k):  # request number k: a new dict, the same k an equal one
        return {"data": numpy.full((8, 8 + k, 3), 10 * k, "uint8")}

    def expected(self, k):  # its right result, by hand or by another library
        return numpy.full((16, 24, 3), 10 * k, "uint8")
```

For options that need a file, `make_options(self)` writes it and returns them. `model_brings` names distributions that only the model needs.

- **pytest** collects every subclass that a test module defines or imports, one test per rule. It
  needs `pip install 'headrace[testing]'` (see [Install](../../README.md#install)).
- **`headrace conformance NAME...`** judges the backends of a distribution that offers the class as
  an entry point, `ResizeMat = "headrace_cv.conformance:ResizeMatConformance"` in the group
  `headrace.conformance`. It prints a certificate; `--certificate out.json` writes it.

A rule **passes**, **fails**, does **not apply** (where the contract itself promises nothing), or is
**blocked** because a rule that it needs fails: pytest skips what is blocked, and counts it in one line by the broken rule. An exception to a rule stands in
`expected_failures` with its reason, which the certificate shows; when that rule holds after all, or
the reason is empty, that is a failure. Rules that need an excepted one are judged all the same; what fails there cannot be told
from the fault that is excepted, and is blocked by it.

**On a machine that lacks the device** of a backend its class says so:

```python
def unavailable(self):  # None where the backend can be built and run
    return None if torch.cuda.is_available() else "no CUDA device"
```

Then the rules about the class, its options, docstring, imports and requests are judged all the same;
the others are **not judged**, pytest skips them with that reason, and the certificate begins with it
and certifies nothing (exit status 1). Marks of the class and `pytestmark` of its module count for
its tests, so `-m "not gpu"` leaves out what has `@pytest.mark.gpu`.

**A backend that works only inside another expression** (a part of an `IoC`) names the conformance class
of that expression, `inside = WholeConformance`. Rules about its class are judged of itself, those that
build or run it of the whole.

Numbers with fractions in two results count as equal within `rtol = 1e-5` and `atol = 1e-6`, which
the class may set; everything else is compared exactly, arrays by dtype, shape and content. Arrays on
a device are compared and kept by a copy on the host, through whatever they have for that: `cpu()`,
`get()`, `copy_to_host()`, `numpy()`, `__dlpack__` with `dl_device`.

| rule | why |
|---|---|
"""


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    known = rules()
    found = {FOLDER / f"{rule.id}.md": page(rule) for rule in known.values()}
    rows = [f"| [`{rule.id}`]({rule.id}.md) | {rule.reason} |" for rule in known.values()]
    return {FOLDER / "README.md": HEAD + "\n".join(rows) + "\n", **found}


@functools.cache
def broken() -> dict[str, str]:
    """Give, per rule, the source of the smallest backend on the shelf that breaks it."""
    found: dict[str, list[tuple[ast.ClassDef, str]]] = {}
    for path in sorted(SHELF.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for part in ast.parse(text).body:
            if not isinstance(part, ast.ClassDef):
                continue
            for call in part.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "breaks":
                    identifier = ast.literal_eval(call.args[0])
                    found.setdefault(identifier, []).append((part, source(text, part)))
    # One that inherits its fault does not show it.
    broken = {part.name for pairs in found.values() for part, _ in pairs}
    return {
        identifier: min(
            (made for part, made in pairs if not broken & set(map(ast.unparse, part.bases))),
            key=len,
        )
        for identifier, pairs in found.items()
    }


def source(text: str, part: ast.ClassDef) -> str:
    """Return the source of a class without the marks of the shelf, but with its other decorators."""
    lines = text.splitlines()
    kept = [
        "@" + (ast.get_source_segment(text, one) or "")
        for one in part.decorator_list
        if not (isinstance(one, ast.Call) and ast.unparse(one.func) == "breaks")
    ]
    body = [line.partition("  # noqa")[0] for line in lines[part.lineno - 1 : part.end_lineno]]
    return "\n".join([*kept, *body])


def page(rule: Rule) -> str:
    """Write the page of one rule."""
    fault, cure = CURES[rule.id]
    text = f"# {rule.id}\n\n{rule.reason}\n\n**The fault**: {fault}\n\n**The cure**: {cure}\n\n{rule.text}\n"
    example = broken().get(rule.id)
    if example is not None:
        shelf = "../../testing/tests/conformance_shelf/perfect.py"
        text += f"\nThe smallest of the backends that it refuses, where [`Perfect`]({shelf}) keeps every rule:\n\n"
        text += f"```python\n{example}\n```\n"
    if rule.needs:
        needed = ", ".join(f"[`{name}`]({name}.md)" for name in rule.needs)
        text += f"\nNeeds: {needed}.\n"
    return f"{text}\n[All rules](README.md)\n"
