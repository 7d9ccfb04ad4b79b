"""Write the address of the repository, which stands here alone, into the metadata of every distribution.

python scripts/address.py            write `[project.urls]` of each pyproject.toml
python scripts/address.py --check    exit 1 when one of them says another address
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from distributions import ROOT, folders
from generated import write_or_check

ADDRESS = "https://headrace.example"
"""The repository has no public address yet; the domain .example belongs to nobody."""

_URLS = re.compile(r"(?<=^\[project\.urls\]\n)(?:\w+ = .*\n)+", re.MULTILINE)


def project(folder: Path) -> str:
    """Return the text of a distribution's ``pyproject.toml`` with the address."""
    changelog = (folder / "CHANGELOG.md").relative_to(ROOT).as_posix()
    places = {"Documentation": "docs", "Changelog": changelog, "Source": "source"}
    urls = "".join(f'{name} = "{ADDRESS}/{place}"\n' for name, place in places.items())
    text, count = _URLS.subn(urls, (folder / "pyproject.toml").read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{folder}/pyproject.toml has no [project.urls], or two")
    return text


if __name__ == "__main__":
    sys.exit(max(write_or_check(one / "pyproject.toml", project(one)) for one in folders()))
