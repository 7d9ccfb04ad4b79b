"""Which configurations of Triton's repositories load here, and why the others are refused.

    python -m benchmarks.triton.configurations CHECKOUT... [--least 0.8]

Reads each ``.pbtxt`` below the folders that names a backend or platform. The files that a model has beside it are made up: a
version, a file of its backend, labels. Ensembles are read without the models that they call. Prints a line for each file
that is refused, and the share that loads. Exit status 1 if that is below ``--least``, or if a file ends in another error than
one with a place.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

from headrace.errors import ConfigError
from headrace_triton.reading import read_model

_FILES = ("model.onnx", "model.plan", "model.pt", "model.py")


def said(text: str, field: str) -> list[str]:
    """Return the texts that a configuration says for a field, wherever it stands."""
    return re.findall(rf'^\s*{field}\s*:\s*"([^"]*)"', text, re.MULTILINE)


def why_refused(file: Path, folder: Path) -> str | None:
    """Return why a configuration is refused, None where it loads."""
    text = file.read_text(encoding="utf-8")
    named = re.match(r'(?:\s*#[^\n]*\n|\s)*name\s*:\s*"([^"]+)"', text)
    model = folder / (named[1] if named else file.parent.name)
    versions = re.findall(r"specific\s*:?\s*\{[^}]*?versions\s*:\s*\[?([\d,\s]+)", text)
    for version in {"1", *re.findall(r"\d+", " ".join(versions))}:
        (model / version).mkdir(parents=True)
        for name in (*_FILES, *said(text, "default_model_filename")):
            (model / version / name).touch()
    for name in (*said(text, "label_filename"), *said(text, "data_file")):
        for place in (model, model / "initial_state"):
            place.mkdir(exist_ok=True)
            (place / name).touch()
    shutil.copy(file, model / "config.pbtxt")
    try:
        read_model(model)
    except ConfigError as error:
        return "; ".join(sorted({one.message for one in error.problems}))
    return None


def main() -> int:
    """Read the configurations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, nargs="+")
    parser.add_argument("--least", type=float, default=0.8)
    args = parser.parse_args()
    files = sorted(one for folder in args.checkout for one in folder.rglob("*.pbtxt"))
    count = loaded = broken = 0
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        if not (said(text, "backend") or said(text, "platform")):
            continue
        count += 1
        with tempfile.TemporaryDirectory() as made:
            try:
                why = why_refused(file, Path(made))
            except Exception as error:  # noqa: BLE001 - what is to be found
                broken += 1
                why = f"BROKEN: {type(error).__name__}: {error}"
        loaded += why is None
        if why is not None:
            print(f"{file}: {why}")
    print(f"{loaded} of {count} load, {count - loaded - broken} are refused, {broken} break")
    return 1 if broken or not count or loaded < args.least * count else 0


if __name__ == "__main__":
    sys.exit(main())
