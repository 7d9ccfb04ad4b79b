"""Make what the example needs: the models, pictures of lines with known text, whole pages.

Everything goes into one folder, ``made/`` beside this file unless ``--into`` says otherwise:

- ``models/``: detector, orientation classifier, recogniser and the characters it knows, copied out
  of the installed ``rapidocr``
- ``lines/``: pictures of one line each, drawn with the fonts found here, and cut out of the
  scanned page that comes with scikit-image
- ``expected.tsv``: file name, tab, the text that is in the picture
- ``broken/``: two good pictures and one that was cut off in the middle
- ``pages/``: whole pages, drawn in several sizes, fonts, scripts and rotations, an empty and a huge
  one, and the scans and photographs that come with scikit-image

Nothing is downloaded, and a second run makes the same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent

AnyFont: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

FONT_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.local/share/fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
    "C:/Windows/Fonts",
)
LATIN_FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "LiberationSerif-Regular", "Arial")
CJK_FONTS = (
    *("NotoSansCJK-Regular", "NotoSerifCJK-Regular", "NotoSansSC-Regular", "uming", "simsun"),
    *("wqy-microhei", "wqy-zenhei", "PingFang", "STHeiti Light", "msyh", "SourceHanSansSC-Regular"),
)


class Line(NamedTuple):
    """A line to draw: its text, the height of its letters in pixels, and how it is stored."""

    text: str
    size: int
    suffix: str
    noise: float = 0.0
    dark: bool = False


LATIN_LINES = (
    Line("The quick brown fox jumps over the lazy dog", 32, ".png"),
    Line("A headrace brings water to the turbine", 24, ".jpg", 6),
    Line("0123456789", 40, ".png"),
    Line("Invoice No. 2024-00173", 28, ".webp", 4),
    Line("Total: $1,234.56 (incl. 19% VAT)", 30, ".jpg", 8),
    Line("WARNING! High voltage", 44, ".png", 10, dark=True),
    Line("https://example.org/search?q=ocr&page=2", 26, ".png"),
    Line("jane.doe@example.org", 22, ".jpg", 5),
    Line("Flight LH 454 departs at 10:35 from gate B27", 28, ".webp", 6, dark=True),
    Line("Yes", 36, ".png"),
    Line("for i in range(10): print(i * i)", 26, ".jpg"),
    Line("Is this the real life? Is this just fantasy?", 34, ".jpg", 12),
)
CJK_LINES = (
    Line("今天天气很好", 36, ".png"),
    Line("文字识别的例子", 30, ".jpg", 6),
    Line("北京2024年", 40, ".webp"),
)

PAGE_SIZE = (384, 191)
PAGE_LINES = (
    ((2, 11, 296, 35), "Region-based segmentation"),
    ((2, 46, 382, 66), "Let us first determine markers of the coins and the"),
    ((2, 64, 382, 84), "background. These markers are pixels that we can label"),
    ((2, 81, 382, 103), "unambiguously as either object or background. Here,"),
    ((2, 98, 382, 120), "the markers are found at the two extreme parts of the"),
    ((2, 115, 176, 138), "histogram of grey values:"),
    ((14, 167, 246, 190), ">>> markers = np.zeros_like(coins)"),
)
"""Where lines are on scikit-image's ``page.png`` (left, top, right, bottom), and what they say."""


TEXT = """The headrace is the channel that brings water, gathered and steady, to the turbine.
Where a river falls 12.5 m, a flow of 3,400 litres per second gives about 330 kW.
(See table 4 on page 17; all figures are from 1998.) "Is it enough?" they asked.
A mill needs less: one wheel, two stones, and a miller who gets up at 5:30.
Costs were $18,250 for the weir & 7% more for the gates; none of it was paid back.
Write to office@example.org or call +44 20 7946 0123 before 31/12/2025!"""

WORDS = {
    "german": """Größe und Gefälle bestimmen, wieviel Kraft ein Bach hergibt.
Über dem Wehr staut sich das Wasser; unterhalb läuft es müßig weiter.
Öffnungszeiten: täglich außer Montag, 9 bis 17 Uhr.""",
    "french": """L'eau passe par un canal étroit, puis tombe sur la roue à aubes.
Où étiez-vous hier ? Ça dépend : à l'école ou près du château.
Prix : 12,50 euros, élèves et étudiants 8 euros.""",
    "spanish": """El agua del río baja por el canal hasta el molino más antiguo.
Mañana abrirá también el museo, según dijo el señor Núñez.
Teléfono: 915 550 199, de lunes a sábado.""",
    "chinese": """水渠把河水平稳地引到水轮机。
今天天气很好, 我们去看看那座老磨坊。
门票: 成人二十元, 学生十元。电话 010-5555。""",
}

FORM = """Invoice No.    2024-00173
Date    17 March 2024
Item    Quantity    Price
Turbine blade, steel    12    $1,140.00
Bearing 40 x 62 mm    24    $386.40
Oil, 5 litres    3    $74.25
Subtotal        $1,600.65
VAT 19 %        $304.12
Total        $1,904.77"""


class Page(NamedTuple):
    """A page to draw: its text (wide gaps begin a new column), size, and how it was photographed."""

    name: str
    text: str
    size: tuple[int, int]
    letters: int
    font: str = "DejaVuSans"
    noise: float = 0.0
    angle: float = 0.0
    dark: bool = False
    column: int = 300


PAGES = (
    Page("letter.png", TEXT, (1240, 640), 26),
    Page("letter-serif.png", TEXT, (1240, 640), 26, "DejaVuSerif"),
    Page("letter-mono.png", TEXT, (1500, 560), 26, "DejaVuSansMono"),
    Page("letter-fine.png", TEXT, (827, 420), 15),
    Page("letter-grain.jpg", TEXT, (1240, 640), 26, noise=18),
    Page("letter-dark.png", TEXT, (1240, 640), 26, noise=6, dark=True),
    Page("letter-tilted.png", TEXT, (1240, 700), 24, angle=2.5),
    Page("letter-tilted-back.jpg", TEXT, (1240, 760), 24, "DejaVuSerif", 6, -6),
    Page("letter-on-its-head.png", TEXT, (1240, 640), 26, angle=180),
    Page("letter-on-its-side.png", TEXT, (1240, 640), 26, angle=90),
    Page("sheet.jpg", "\n\n".join([TEXT] * 3), (1240, 1754), 25, "DejaVuSerif", 4),
    Page("form.png", FORM, (900, 620), 24),
    Page("form-tilted.webp", FORM, (900, 680), 24, "DejaVuSerif", 5, -2),
    Page("receipt.png", FORM.replace("    ", "\n"), (420, 1100), 26, "DejaVuSansMono", 8),
    Page("slide.png", "Water to the turbine\nGathered and steady\n330 kW", (1600, 900), 96),
    Page("strip.png", "Please mind the gap between the weir and the gate", (1400, 60), 36),
    Page("label.png", "FRAGILE", (160, 48), 30, dark=True),
    Page("german.png", WORDS["german"], (1000, 300), 26),
    Page("french.png", WORDS["french"], (1000, 300), 26, "DejaVuSerif"),
    Page("spanish.jpg", WORDS["spanish"], (1000, 300), 26, "", 5),
    Page("chinese.png", WORDS["chinese"], (900, 300), 30, "cjk"),
    Page("chinese-tilted.jpg", WORDS["chinese"], (900, 400), 30, "cjk", 5, 4),
    Page("without-text.png", "", (800, 1100), 20),
    Page("huge.jpg", "\n\n".join([TEXT] * 2), (4960, 3508), 100),
)

SCANS = ("page", "text", "coffee", "rocket", "motorcycle_left", "clock_motion")
"""What of scikit-image's pictures is a page: two scans with text, the others with next to none."""


def copy_models(folder: Path) -> None:
    """Copy rapidocr's models to ``folder``, with the characters it can read as a text file."""
    from headrace_ort import make_session

    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("det", "cls", "rec"):
        source = max(package_folder("rapidocr").glob(f"models/*_{kind}_*.onnx"), default=None)
        if source is None:
            raise SystemExit(f"The installed rapidocr has no *_{kind}_* model: rapidocr>=3.10.")
        shutil.copyfile(source, folder / f"{kind}.onnx")
        print(f"{folder}: {source.name} as {kind}.onnx")
    session = make_session(folder / "rec.onnx")
    characters = session.get_modelmeta().custom_metadata_map["character"].split("\n")
    (folder / "charset.txt").write_bytes("".join(f"{c}\n" for c in characters).encode("utf-8"))
    print(f"{folder}: charset.txt, {len(characters):,} characters")


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed: pip install -r {HERE / 'requirements.txt'}")
    return Path(spec.origin).parent


def find_fonts() -> dict[str, Path]:
    """Find the fonts here, and those that matplotlib brings, by lower-case name without suffix."""
    folders = [Path(folder).expanduser() for folder in FONT_FOLDERS]
    if importlib.util.find_spec("matplotlib") is not None:
        folders.append(package_folder("matplotlib") / "mpl-data" / "fonts")
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.suffix.lower() in {".ttf", ".otf", ".ttc"}:
                found.setdefault(path.stem.lower(), path)
    return found


def has_glyphs(font: Path, text: str) -> bool:
    """Tell whether ``font`` draws each character of ``text`` as itself, not as a missing one."""
    drawer = ImageFont.truetype(str(font), 32)
    missing = bytes(drawer.getmask("\U0010fffe"))
    return all(bytes(drawer.getmask(character)) != missing for character in text)


def draw(line: Line, font: AnyFont, seed: int) -> Image.Image:
    """Draw a line, with grain that looks like a camera's."""
    left, top, right, bottom = font.getbbox(line.text)
    margin = line.size // 5 + 2
    size = (int(right - left) + 4 * margin, int(bottom - top) + 2 * margin)
    paper, ink = ((40, 44, 52), (240, 236, 210)) if line.dark else ((250, 248, 244), (24, 20, 36))
    picture = Image.new("RGB", size, paper)
    at = (2 * margin - left, margin - top)
    ImageDraw.Draw(picture).text(at, line.text, font=font, fill=ink)
    grain = np.random.default_rng(seed).normal(0.0, line.noise, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))


def drawn_lines() -> Iterator[tuple[str, str, Image.Image]]:
    """Return name, text and picture of all lines that the fonts of this machine can draw."""
    fonts = find_fonts()
    chinese = "".join(line.text for line in CJK_LINES)
    latin = [name for name in LATIN_FONTS if name.lower() in fonts]
    cjk = [
        name
        for name in CJK_FONTS
        if name.lower() in fonts and has_glyphs(fonts[name.lower()], chinese)
    ]
    if not cjk:
        print("no font with Chinese characters found: no Chinese lines")
    for number, line in enumerate(LATIN_LINES, 1):
        # This font is inside Pillow: it is there on every machine.
        picture = draw(line, ImageFont.load_default(line.size), number)
        yield f"default-{number:02}{line.suffix}", line.text, picture
    for name, lines in [(name, LATIN_LINES) for name in latin] + [(n, CJK_LINES) for n in cjk[:1]]:
        for number, line in enumerate(lines, 1):
            picture = draw(line, ImageFont.truetype(str(fonts[name.lower()]), line.size), number)
            yield f"{name.replace(' ', '')}-{number:02}{line.suffix}", line.text, picture


def page_lines() -> Iterator[tuple[str, str, Image.Image]]:
    """Return name, text and picture of the lines on the scanned page inside scikit-image."""
    page = Image.open(package_folder("skimage") / "data" / "page.png")
    if page.size != PAGE_SIZE:
        print("scikit-image's page.png is another one than expected: no lines from it")
        return
    for number, (box, text) in enumerate(PAGE_LINES, 1):
        yield f"page-{number:02}.png", text, page.crop(box)


def make_lines(folder: Path) -> None:
    """Write the pictures to ``folder``, and what they say to ``expected.tsv`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = []
    for name, text, picture in (*drawn_lines(), *page_lines()):
        save(picture, folder / name)
        expected.append(f"{name}\t{text}\n")
    table = folder.with_name("expected.tsv")
    table.write_bytes("".join(sorted(expected)).encode("utf-8"))
    print(f"{folder}: {len(expected)} pictures; what they say: {table}")


def save(picture: Image.Image, path: Path) -> None:
    """Store a picture without the colour profile that the scanned page has, which is faulty."""
    picture.save(path, icc_profile=None, quality=85)


def make_broken(folder: Path) -> None:
    """Write two good pictures to ``folder``, and between them one that ends in the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, line in (("1-good.jpg", LATIN_LINES[0]), ("3-good.jpg", LATIN_LINES[1])):
        save(draw(line, ImageFont.load_default(line.size), 0), folder / name)
    whole = (folder / "1-good.jpg").read_bytes()
    (folder / "2-cut-off.jpg").write_bytes(whole[: len(whole) // 4])
    print(f"{folder}: 3 pictures, one of them cut off")


def page_font(name: str, letters: int, fonts: dict[str, Path]) -> AnyFont | None:
    """Return a font, the one inside Pillow in place of a Latin one; None when it must be Chinese."""
    if name == "cjk":
        chinese = WORDS["chinese"].replace("\n", "")
        names = [n.lower() for n in CJK_FONTS if n.lower() in fonts]
        found = next((n for n in names if has_glyphs(fonts[n], chinese)), None)
        return ImageFont.truetype(str(fonts[found]), letters) if found else None
    if name.lower() in fonts:
        return ImageFont.truetype(str(fonts[name.lower()]), letters)
    return ImageFont.load_default(letters)


def draw_page(page: Page, font: AnyFont, seed: int) -> Image.Image:
    """Draw a page, with grain, turned counter-clockwise by its angle in degrees."""
    paper, ink = ((34, 40, 48), (236, 232, 214)) if page.dark else ((250, 248, 244), (24, 20, 36))
    picture = Image.new("RGB", page.size, paper)
    margin, pen = min(page.size) // 10, ImageDraw.Draw(picture)
    for number, row in enumerate(page.text.split("\n")):
        y = margin // 2 + int(number * page.letters * 1.9)
        for column, part in enumerate(row.split("    ")):
            pen.text((margin + column * page.column, y), part, font=font, fill=ink)
    turned = picture.rotate(
        page.angle, Image.Resampling.BICUBIC, page.angle % 90 == 0, fillcolor=paper
    )
    if not page.noise:
        return turned
    grain = np.random.default_rng(seed).normal(0.0, page.noise, (*turned.size[::-1], 3))
    return Image.fromarray(np.clip(np.asarray(turned) + grain, 0, 255).astype(np.uint8))


def make_pages(folder: Path) -> None:
    """Write whole pages to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    fonts = find_fonts()
    for number, page in enumerate(PAGES):
        font = page_font(page.font, page.letters, fonts)
        if font is None:
            print(f"no font with Chinese characters found: no {page.name}")
        else:
            save(draw_page(page, font, number), folder / page.name)
    for name in SCANS:
        scan = Image.open(
            package_folder("skimage") / "data" / f"{name}.{'jpg' if name == 'rocket' else 'png'}"
        )
        save(scan.convert("RGB"), folder / f"scan-{name}.png")
    print(f"{folder}: {len(list(folder.iterdir()))} pages")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Make the models and the pictures.")
    parser.add_argument("--into", type=Path, default=HERE / "made", metavar="DIR")
    into: Path = parser.parse_args().into
    copy_models(into / "models")
    make_lines(into / "lines")
    make_broken(into / "broken")
    make_pages(into / "pages")


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # whoever reads the output may go
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
