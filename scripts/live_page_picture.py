"""Make docs/pictures/live_page.webp: the live page of examples/ocr/page.toml under load, as a browser shows it.

python examples/ocr/prepare.py && python scripts/live_page_picture.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import opened

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "examples" / "ocr" / "made" / "pages" / "form-tilted.webp"
INTO = ROOT / "docs" / "pictures" / "live_page.webp"
CLIENTS = 2
SECONDS = 40


def main() -> None:
    """Serve, send a page, let some clients repeat it, and save what the browser shows."""
    command = [sys.executable, "-m", "headrace", "ui", "examples/ocr/page.toml", "--port", "0"]
    with (
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        opened(Path(profile)) as page,
    ):
        lines = iter(process.stderr.readline, "")  # type: ignore[union-attr]
        page.open(next(m[1] for line in lines if (m := re.search(r"live page at (\S+)", line))))
        page.wait("document.querySelector('input[type=file]')")
        page.choose_file("input[type=file]", PAGE)
        page.wait("document.querySelector('canvas.boxes')")
        page.run(
            f"const slider = document.querySelector('.clients'); slider.value = {CLIENTS};"
            " slider.dispatchEvent(new Event('input'))"
        )
        page.wait(f"document.body.dataset.updates > {SECONDS}")
        INTO.write_bytes(page.picture("webp"))
        process.terminate()
    print(f"wrote {INTO}: {INTO.stat().st_size} bytes")


if __name__ == "__main__":
    main()
