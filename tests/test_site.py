"""The site of documents, made by ``./dev docs`` and looked at in a browser: ``./dev test docs`` runs this."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import made_pages
import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.docs


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site, which warnings would have kept from being made."""
    out = tmp_path_factory.mktemp("site") / "out"
    done = run_process([str(ROOT / "dev"), "docs", str(out)])
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def browse(tmp_path):
    """Return a function that opens a page: (its document after its scripts, hosts that it asked)."""
    assert CHROMIUM is not None, "install chromium"

    def open_page(url: str) -> tuple[str, list[str]]:
        record = tmp_path / "requests.json"
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={record}"),
            *("--disable-background-networking", "--virtual-time-budget=20000", "--dump-dom", url),
        ]
        done = run_process(command, check=True, timeout=300, errors="replace")
        events = json.loads(record.read_text(encoding="utf-8"))["events"]
        asked = [event["params"] for event in events if "url" in event.get("params", {})]
        # What the browser asks for itself has no page as its initiator.
        own = (None, "not an origin")
        of_page = [one["url"] for one in asked if one.get("initiator") not in own]
        return done.stdout, of_page

    return open_page


def environment() -> Path:
    return ROOT / os.environ.get("HEADRACE_DOCS_ENV", ".venv-docs")


def pages_of(site: Path) -> list[Path]:
    return [page for page in site.rglob("*.html") if "_static" not in page.parts]


def test_every_document_of_the_repository_that_a_reader_is_sent_to_is_a_page(site):
    made = [path for path in made_pages.pages() if path.suffix == ".md"]
    assert len(made) > 100
    for document in [*made, *(ROOT / "docs").glob("*.md"), *ROOT.glob("plugins/*/README.md")]:
        assert (site / document.relative_to(ROOT).with_suffix(".html")).is_file()


def test_links_to_what_is_made_lead_to_its_page(site):
    for page, section in (
        *((page, "reference") for page in ("api", "catalogue", "words", "performance")),
        ("look_up/keys", "reference"),
        ("gallery", "use"),
        ("rules/README", "extend"),
    ):
        text = (site / "docs" / "site" / f"{section}.html").read_text(encoding="utf-8")
        assert f'href="../{page}.html"' in text
    assert 'href="docs/performance/serve_peers.html"' in (site / "README.html").read_text("utf-8")


def test_every_link_inside_the_site_leads_to_a_file(site):
    lost = []
    for page in pages_of(site):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            parts = urlsplit(html.unescape(link))
            if not parts.scheme and not (page.parent / unquote(parts.path)).exists():
                lost.append((page.relative_to(site).as_posix(), link))
    assert lost == []


def test_its_environment_is_small(site):
    files = (path for path in environment().rglob("*") if not path.is_symlink())
    assert sum(path.stat().st_blocks for path in files) * 512 <= 150e6


def test_titles_of_pages_are_distinct(site):
    titles = [
        re.search(r"<title>(.*?)</title>", page.read_text(encoding="utf-8"), re.DOTALL)[1]
        for page in pages_of(site)
        if page.name != "index.html"
    ]
    assert sorted({*titles}) == sorted(titles)


def test_a_search_from_a_folder_finds_pages_with_excerpts_and_asks_nobody(site, browse):
    shown, asked = browse(f"{(site / 'search.html').as_uri()}?q=queue_full")
    results = re.search(r'<ul[^>]*class="search".*?</ul>', shown, re.DOTALL)
    assert results, shown
    excerpts = re.findall(r'<p class="context">(.*?)</p>', results[0], re.DOTALL)
    titles = re.findall(r"<li[^>]*><a[^>]*>(.*?)</a>", results[0], re.DOTALL)
    assert len(titles) >= 3
    assert len({*titles}) == len(titles)
    assert sum("queue_full" in excerpt for excerpt in excerpts) >= 3
    assert asked == []


@pytest.mark.parametrize(
    "page", ["README", "docs/start", "docs/api", "docs/gallery", "docs/performance"]
)
def test_a_page_asks_no_other_host(page, site, browse):
    shown, asked = browse((site / f"{page}.html").as_uri())
    assert "<h1" in shown
    assert asked == []


def test_every_picture_of_the_gallery_is_shown(site):
    text = (site / "docs" / "gallery.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'src="\.\./_images/([^"]+)"', text))
    assert {path.name for path in (ROOT / "docs" / "gallery").glob("*.webp")} == shown


def test_pages_of_a_section_have_the_titles_of_the_list_that_links_them(site):
    text = (site / "docs" / "site" / "use.html").read_text(encoding="utf-8")
    side = re.search(r'<nav class="bd-docs-nav.*?</nav>', text, re.DOTALL)[0]
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    section = listed.partition("\n## Use it\n")[2].partition("\n## ")[0]
    titles = re.findall(r"^- \[([^]]+)\]\([^)#]+\.md\)", section, re.MULTILINE)
    assert len(titles) > 10
    assert [title for title in titles if html.escape(title) not in side] == []


def test_the_record_would_show_a_request_that_leaves(tmp_path, browse):
    page = tmp_path / "leaves.html"
    page.write_text('<img src="http://elsewhere.invalid/a.png">', encoding="utf-8")
    assert browse(page.as_uri())[1] == ["http://elsewhere.invalid/a.png"]


def test_the_first_file_leads_to_the_first_page(site, browse):
    shown, _ = browse((site / "index.html").as_uri())
    assert "Dynamic batching and several instances of a model" in shown
    assert shown.index('src="_images/live_page.webp"') < shown.index("<pre")
