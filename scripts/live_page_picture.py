"""Make docs/pictures/live_page.webp: the live page of examples/ocr/line.toml under load, as a browser shows it.

python examples/ocr/prepare.py && python scripts/live_page_picture.py [OUT]
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import opened

ROOT = Path(__file__).resolve().parents[1]
LINE = ROOT / "examples" / "ocr" / "made" / "lines" / "page-01.png"
INTO = ROOT / "docs" / "pictures" / "live_page.webp"
WIDTH = 1280
CLIENTS = 24
UPDATES = 40
MOST_BYTES = 300_000


def main(into: Path = INTO) -> None:
    """Serve, send a line, let clients repeat it until batches are full, and save what the browser shows of the model."""
    command = [sys.executable, "-m", "headrace", "ui", "examples/ocr/line.toml", "--port", "0"]
    with (
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        try:
            with opened(Path(profile)) as page:
                lines = iter(process.stderr.readline, "")  # type: ignore[union-attr]
                found = (re.search(r"http://\S+/ui\b", line) for line in lines)
                address = next((one[0] for one in found if one), None)
                if address is None:
                    raise SystemExit(f"it serves no page: {' '.join(command)}")
                page.look(WIDTH)
                page.open(address)
                page.wait("document.querySelector('input[type=file]')")
                page.choose_file("input[type=file]", LINE)
                page.wait("document.querySelector('.values .text')")
                page.run(
                    f"const slider = document.querySelector('.clients'); slider.value = {CLIENTS};"
                    " slider.dispatchEvent(new Event('input'))"
                )
                page.wait(f"document.body.dataset.updates > {UPDATES}")
                bottom = page.run(
                    "scrollTo(0, 0);"
                    " return document.querySelector('.clients').closest('article')"
                    ".getBoundingClientRect().bottom"
                )
                clip = {"x": 0, "y": 0, "width": WIDTH, "height": round(bottom) + 12, "scale": 1}
                shown = page.send("Page.captureScreenshot", format="webp", clip=clip)
        finally:
            process.terminate()
    picture = base64.b64decode(shown["data"])
    if len(picture) > MOST_BYTES:
        raise SystemExit(f"the picture has {len(picture)} bytes, more than {MOST_BYTES}")
    into.write_bytes(picture)
    print(f"wrote {into}: {len(picture)} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
