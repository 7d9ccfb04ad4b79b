"""The page docs/gallery.md, and the graphs and results of examples: python scripts/gallery.py [--graphs] [--into FOLDER].

Graphs (``*.mmd``) are those of `headrace explain`, which needs no model: an example is copied, and an empty file stands where a
model would be. Run as a program, this writes them into docs/gallery or the folder. Without ``--graphs`` it also prepares and runs
the examples that a CPU can run, in a copy, and writes their results (``*.txt``) and pictures (``*.webp``). The page shows all three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from PIL.Image import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gallery.md"
FOLDER = ROOT / "docs" / "gallery"

HEAD = """\
# Gallery

What the examples of the repository make: a picture, the whole configuration, its graph as `headrace explain --graph mermaid` writes it, and what is
printed. Graphs are those of a machine with four cores. Made of the examples; a test runs again what a CPU can run.
"""


@dataclass(frozen=True)
class Example:
    """An example, and what of it is shown.

    Attributes:
        name: Of its files in docs/gallery.
        title: Its heading.
        said: What it does.
        readme: The page that explains it, below ``examples``.
        config: The configuration, below ``examples``.
        prepare: Python programs that make what it needs, below ``examples``, with their arguments.
        command: What prints the result, from the root of the repository.
        shown: How the result is shown, where the command's own output is too long.
        graph: The configuration whose graph is drawn; empty: none.
    """

    name: str
    title: str
    said: str
    readme: str
    config: str
    prepare: tuple[str, ...]
    command: str
    shown: Callable[[str], str] = str
    graph: str | None = None


def first_lines(count: int) -> Callable[[str], str]:
    """Return a function that keeps so many lines, without the folders of files."""

    def keep(text: str) -> str:
        lines = [line.removeprefix("examples/").replace("\t", "  ") for line in text.splitlines()]
        return "\n".join(lines[:count]) + "\n"

    return keep


def texts_of_page(text: str) -> str:
    """Return the lines of a page that was read, as JSON has them."""
    lines = json.loads(text.splitlines()[0])["result"]["lines"]
    return "\n".join(f"{line['confidence']:.2f}  {line['text']}" for line in lines[:12]) + "\n"


def boxes_of(text: str) -> str:
    """Return how many boxes each page has, and the first of them."""
    lines = []
    for line in text.splitlines():
        answer = json.loads(line)
        boxes = answer["result"]["boxes"]
        name = Path(answer["path"]).name
        corners = [[round(x) for x in corner] for corner in boxes[0]]
        lines.append(f"{name}  {len(boxes)} boxes, the first {corners}")
    return "\n".join(lines) + "\n"


OCR = "ocr/prepare.py"
LINES = " ".join(
    f"examples/ocr/made/lines/{name}"
    for name in ("default-05.jpg", "default-06.png", "page-01.png", "page-03.png")
)
DIGITS = " ".join(
    f"examples/functions/made/{name}" for name in ("0000-0.png", "0060-3.webp", "0120-5.png")
)
CLASSIFIED = " ".join(f"examples/classify/made/digits/{number:03}.png" for number in range(3))
EXAMPLES = (
    Example(
        "page",
        "Pages, read by three networks",
        "Find the lines of a page, turn each upright, read it; `each` makes one request of every line, so lines of all pages share batches.",
        "ocr/README.md",
        "ocr/page.toml",
        (OCR,),
        "headrace run --json examples/ocr/page.toml examples/ocr/made/pages/receipt.png",
        texts_of_page,
    ),
    Example(
        "line",
        "Lines of text, in batches of unequal width",
        "One expression from bytes to text; narrow lines are filled up to the widest of their batch.",
        "ocr/README.md",
        "ocr/line.toml",
        (OCR,),
        f"headrace run examples/ocr/line.toml {LINES}",
        first_lines(4),
    ),
    Example(
        "video",
        "Videos: detect, track, count, save",
        "Four clips share the batches of one detector; each has its own tracks and counts.",
        "video/README.md",
        "video/video.toml",
        ("video/prepare.py",),
        "headrace video examples/video/video.toml",
        first_lines(4),
        "",
    ),
    Example(
        "detect",
        "Boxes, by a TensorRT engine",
        "The cores decode, the engine runs on two streams of a GPU, the cores make boxes of what it gives.",
        "detect/README.md",
        "detect/detect.toml",
        ("ocr/prepare.py --into examples/detect/made",),
        "headrace run --json examples/detect/detect_onnx.toml examples/detect/made/pages/label.png "
        "examples/detect/made/pages/receipt.png",
        boxes_of,
    ),
    Example(
        "classify",
        "Digits, by an ONNX classifier",
        "One expression from bytes to names, on as many instances as the machine carries; `TopK` names the best classes.",
        "classify/README.md",
        "classify/classify.toml",
        ("classify/prepare.py",),
        f"headrace run examples/classify/classify.toml {CLASSIFIED}",
        first_lines(3),
    ),
    Example(
        "functions",
        "Functions of other libraries",
        "PIL, numpy and scikit-learn in one expression, without an adapter between them.",
        "functions/README.md",
        "functions/digits.toml",
        ("functions/prepare.py",),
        f"headrace run examples/functions/digits.toml {DIGITS}",
        first_lines(3),
    ),
    Example(
        "decoder",
        "Text, a step at a time",
        "`Iterate` runs a step of all texts that are being written; a text that is short leaves, one that waits takes its place.",
        "decoder/README.md",
        "decoder/decoder.toml",
        ("decoder/train.py",),
        "python examples/decoder/write.py",
        first_lines(3),
    ),
    Example(
        "thumbnail",
        "A picture in, a small picture out, as a service",
        "The file is served as it is: `curl --data-binary @photo.jpg` gives a JPEG back.",
        "serve/README.md",
        "serve/models/thumbnail.toml",
        (),
        "headrace models examples/serve/models",
        first_lines(3),
    ),
)


def copied(folder: Path) -> Path:
    """Copy the examples, without what they have made, into a folder; return the copy."""
    into = folder / "examples"
    shutil.copytree(ROOT / "examples", into, ignore=shutil.ignore_patterns("made", "__pycache__"))
    return into


def graph_of(examples: Path, config: str) -> str:
    """Return the graph of a configuration in a copy of the examples, for Mermaid; files that it lacks are made empty."""
    import headrace
    from headrace_cli.graph import FORMATS

    path = examples / config
    letters = examples / "decoder" / "made" / "letters.json"
    letters.parent.mkdir(exist_ok=True)
    letters.write_text("[]", encoding="utf-8")  # decoder.py reads it when it is imported
    for _ in range(2):
        try:
            return FORMATS["mermaid"](headrace.explain(path)) + "\n"
        except headrace.errors.ConfigError as error:
            for problem in error.problems:
                lost = problem.message.partition("no such file: ")[2].strip("'")
                if not lost:
                    raise
                Path(lost).parent.mkdir(parents=True, exist_ok=True)
                Path(lost).touch()
    raise SystemExit(f"{config}: files are missing that could not be made")


@contextlib.contextmanager
def cores(count: str) -> Iterator[None]:
    """Let the machine have so many cores."""
    name = "PYTHON_CPU_COUNT"
    before = os.environ.get(name)
    os.environ[name] = count
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def graphs() -> dict[str, str]:
    """Return the graph of each example that has one, by the name of its file, as on a machine with four cores."""
    with tempfile.TemporaryDirectory() as folder, cores("4"):
        examples = copied(Path(folder))
        return {
            f"{one.name}.mmd": graph_of(examples, one.config if one.graph is None else one.graph)
            for one in EXAMPLES
            if one.graph != ""
        }


def page() -> str:
    """Return the page of all examples."""
    lines = [HEAD]
    for one in EXAMPLES:
        config = (ROOT / "examples" / one.config).read_text(encoding="utf-8").strip()
        lines += [
            f"## {one.title}",
            "",
            f"{one.said} [How it works](../examples/{one.readme}).",
            "",
        ]
        if (FOLDER / f"{one.name}.webp").is_file():
            lines += [f"![{one.title}](gallery/{one.name}.webp)", ""]
        lines += ["```toml", f"# examples/{one.config}", config, "```", ""]
        if one.graph != "":
            graph = (FOLDER / f"{one.name}.mmd").read_text(encoding="utf-8").rstrip()
            lines += ["```mermaid", graph, "```", ""]
        result = (FOLDER / f"{one.name}.txt").read_text(encoding="utf-8").rstrip()
        lines += ["```text", f"$ {short(one.command)}", result, "```", ""]
    return "\n".join(lines)


def short(command: str) -> str:
    """Return a command with many files as one with their folder and dots."""
    words = command.split()
    files = [word for word in words if "/made/" in word]
    return command if len(files) < 2 else " ".join([*words[: -len(files)], files[0], "..."])


def run(into: Path) -> None:
    """Prepare and run the examples in a copy of them; write results and pictures."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = {**os.environ, "PATH": programs}
    with tempfile.TemporaryDirectory() as folder:
        examples, done = copied(Path(folder)), set()
        for one in EXAMPLES:
            for program in one.prepare:
                if program not in done:
                    done.add(program)
                    command = f"{sys.executable} examples/{program}"
                    subprocess.run(command.split(), cwd=folder, env=environ, check=True)
            ran = subprocess.run(
                one.command.split(), cwd=folder, env=environ, check=True, stdout=subprocess.PIPE
            )
            said = one.shown(ran.stdout.decode())
            (into / f"{one.name}.txt").write_text(said, encoding="utf-8")
            if one.name in PICTURES:
                picture = PICTURES[one.name](examples, ran.stdout.decode())
                picture.thumbnail((960, 480))
                picture.convert("RGB").save(into / f"{one.name}.webp", quality=80)


def beside(pictures: list[Image], height: int) -> Image:
    """Return pictures in a row, each so high."""
    from PIL import Image

    sized = [
        one.convert("RGB").resize((one.width * height // one.height, height)) for one in pictures
    ]
    whole = Image.new("RGB", (sum(one.width + 12 for one in sized) - 12, height), "white")
    left = 0
    for one in sized:
        whole.paste(one, (left, 0))
        left += one.width + 12
    return whole


def drawn(program: str, result: str) -> Callable[[Path, str], Image]:
    """Return a function that lets the drawing program of an example draw an answer, and opens what it drew."""

    def draw(examples: Path, answers: str) -> Image:
        from PIL import Image

        command = [sys.executable, str(examples / program), "-"]
        subprocess.run(command, input=answers.encode(), cwd=examples.parent, check=True)
        with Image.open(examples / result) as picture:
            return picture.copy()

    return draw


def lines_of_text(examples: Path, _: str) -> Image:
    """Return the pictures of the lines, one below the other."""
    from PIL import Image

    pictures = [Image.open(examples.parent / name).convert("RGB") for name in LINES.split()]
    sized = [one.resize((one.width * 40 // one.height, 40)) for one in pictures]
    whole = Image.new("RGB", (max(one.width for one in sized), 52 * len(sized) - 12), "white")
    for place, one in enumerate(sized):
        whole.paste(one, (0, 52 * place))
    return whole


def frames(examples: Path, _: str) -> Image:
    """Return frame 60 of each video that was saved with boxes."""
    import av

    found = []
    for name in ("easy", "crossing", "slow"):
        with av.open(str(examples / "video" / "made" / "out" / f"{name}.mp4")) as video:
            frame = next(one for number, one in enumerate(video.decode(video=0)) if number == 60)
            found.append(frame.to_image())
    return beside(found, 300)


def digits(examples: Path, _: str) -> Image:
    """Return the pictures of the digits."""
    from PIL import Image

    return beside([Image.open(examples.parent / name) for name in DIGITS.split()], 128)


def classified(examples: Path, _: str) -> Image:
    """Return the pictures of the classifier."""
    from PIL import Image

    return beside([Image.open(examples.parent / name) for name in CLASSIFIED.split()], 128)


def small(examples: Path, _: str) -> Image:
    """Return a picture and the small one that the pipeline makes of it."""
    import io

    from PIL import Image

    import headrace

    photo = examples / "ocr" / "made" / "pages" / "scan-rocket.png"
    with headrace.pipe(examples / "serve" / "models" / "thumbnail.toml") as pipe:
        answer = pipe({"data": photo.read_bytes()})["result"]
    large, little = Image.open(photo).convert("RGB"), Image.open(io.BytesIO(answer))
    large.thumbnail((480, 360))
    whole = Image.new("RGB", (large.width + 24 + little.width, large.height), "white")
    whole.paste(large, (0, 0))
    whole.paste(little, (large.width + 24, 0))
    return whole


PICTURES: dict[str, Callable[[Path, str], Image]] = {
    "page": drawn("ocr/draw.py", "ocr/made/drawn/receipt.png"),
    "line": lines_of_text,
    "video": frames,
    "detect": drawn("detect/draw.py", "detect/made/drawn/receipt.png"),
    "classify": classified,
    "functions": digits,
    "thumbnail": small,
}


def pages() -> dict[Path, str]:
    """Return the text of the page."""
    return {PAGE: page()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=FOLDER, help="where all of it goes")
    parser.add_argument("--graphs", action="store_true", help="write the graphs alone")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    for name, text in graphs().items():
        (given.into / name).write_text(text, encoding="utf-8")
    if not given.graphs:
        run(given.into)
