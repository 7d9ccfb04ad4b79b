"""How Sphinx makes the site: of the Markdown files where they are, which stay right in the repository.

`./dev docs [OUT]` runs it. The source folder is the root of the repository; the pages of `docs/site`
only order what is elsewhere.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

HERE = Path(__file__).resolve().parent

project = "Headrace"
author = "the authors of Headrace"
root_doc = "README"
language = "en"

extensions = ["myst_parser"]
myst_heading_anchors = 6
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *("docs/**.md", "*/README.md", "*/CHANGELOG.md", "libs/*/*.md", "plugins/*/*.md"),
    "examples/**/README.md",
]
exclude_patterns = [".*", "**/.*", "dist", "build", "shared", "**/_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "Headrace"
html_sidebars = {"docs/start": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("excerpts.js", {"priority": 100}), ("search_from_files.js", {"priority": 101})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

SECTIONS = {
    "docs/site/use": "Use it",
    "docs/site/serve": "Serve it",
    "docs/site/extend": "Extend it",
    "docs/site/reference": "Look it up",
    "docs/site/project": "",
}
"""The pages that hold a part of the tree, and the sections of docs/README.md whose links they hold."""

OTHERS = (
    ("docs/api/", "docs/api"),
    ("docs/catalogue/", "docs/catalogue"),
    ("docs/words/", "docs/words"),
    ("docs/performance/", "docs/performance"),
    ("docs/look_up/", "docs/site/reference"),
    ("docs/rules/README", "docs/site/extend"),
    ("docs/rules/", "docs/rules/README"),
    ("docs/gallery", "docs/site/use"),
    *(
        (f"docs/{name}", "docs/site/reference")
        for name in ("api", "catalogue", "performance", "words")
    ),
    ("docs/tensorrt/", "docs/site/use"),
    ("examples/serve/", "docs/site/serve"),
    ("examples/", "docs/site/use"),
    ("docs/", "docs/site/extend"),
)
"""Where pages stand that docs/README.md does not link, by how their names begin."""

FIGURES = re.compile(r"\]\(((?:\.\./)*)benchmarks/results/(\w+)\.json\)")
"""What leads to a file of figures leads to its page here."""

LINK = re.compile(r"\]\(([^)#:]+)\.md\)")
TITLED = re.compile(r"^- \[([^]]+)\]\(([^)#:]+)\.md\)", re.MULTILINE)
trees: dict[str, list[str]] = {}

FIRST_LINKS = """
```{raw} html
<p class="first-links">
  <a href="docs/start.html">Start</a>
  <a href="docs/gallery.html">Gallery</a>
  <a href="docs/performance.html">Performance</a>
  <a href="docs/from_triton.html">From Triton</a>
  <a href="docs/other_tools.html#from-litserve-bentoml-or-ray-serve">From LitServe, BentoML, Ray Serve</a>
</p>
```
"""
"""What the first page of the site has behind its first paragraph."""


def home_of(page: str) -> str:
    """Return the page whose tree holds a page that docs/README.md does not link."""
    for start, home in OTHERS:
        if page.startswith(start):
            return home
    return "docs/site/reference" if "/README" in page else "docs/site/project"


def plan_trees(_: Sphinx, environment: BuildEnvironment, __: list[str]) -> None:
    """Give every page one place in the tree: where docs/README.md links it, else by its name."""
    text = (HERE.parent / "README.md").read_text(encoding="utf-8")
    trees.clear()
    trees[root_doc] = ["docs/start", *SECTIONS]
    trees["docs/site/project"] = ["docs/README"]
    for home, title in SECTIONS.items():
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] if title else ""
        linked = [
            posixpath.normpath(posixpath.join("docs", link)) for link in LINK.findall(section)
        ]
        trees.setdefault(home, []).extend(
            dict.fromkeys(page for page in linked if page in environment.found_docs)
        )
    placed = {root_doc, *(page for tree in trees.values() for page in tree)}
    for page in sorted(environment.found_docs - placed):
        trees.setdefault(home_of(page), []).append(page)


def prepare(_: Sphinx, page: str, source: list[str]) -> None:
    """Lead links to figures to their pages; add its tree to a page, and the list of docs/README.md before that of a section."""
    if not page.startswith("docs/performance/"):
        source[0] = FIGURES.sub(r"](\1docs/performance/\2.md)", source[0])
    if page not in trees:
        return
    if page == root_doc:
        first, picture, rest = source[0].partition("\n[![")
        source[0] = f"{first}{FIRST_LINKS}{picture}{rest}"
    text = (HERE.parent / "README.md").read_text(encoding="utf-8")
    title = SECTIONS.get(page)
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] if title else ""
    listed = re.findall(r"^- .*(?:\n  .*)*", section, re.MULTILINE)
    source[0] += "\n" + re.sub(r"\]\((?!https?:)", "](../", "\n".join(listed)) + "\n"
    linked = {posixpath.normpath(f"docs/{link}") for link in LINK.findall(section)}
    titles = {posixpath.normpath(f"docs/{to}"): said for said, to in TITLED.findall(section)}
    for shown in (False, True):
        entries = [one for one in trees[page] if (page in SECTIONS and one not in linked) == shown]
        if entries:
            look = ":maxdepth: 1\n:caption: More" if shown and listed else ":maxdepth: 1"
            look = look if shown else ":hidden:"
            named = [(titles.get(entry, ""), f"/{entry}") for entry in entries]
            pages = "\n".join(f"{said} <{to}>" if said else to for said, to in named)
            source[0] += f"\n```{{toctree}}\n{look}\n\n{pages}\n```\n"


def write_for_files(app: Sphinx, failure: Exception | None) -> None:
    """Write what a browser needs that opens the site from a folder: a first page, texts for a search."""
    if failure is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    first = f"{root_doc}.html"
    refresh = f'<meta http-equiv="refresh" content="0; url={first}">'
    link = f'<title>Headrace</title><a href="{first}">Headrace</a>'
    (out / "index.html").write_text(f"<!doctype html>{refresh}{link}\n", encoding="utf-8")
    texts = {}
    for page in app.env.found_docs:
        written = (out / f"{page}.html").read_text(encoding="utf-8")
        article = re.search(r"<article[^>]*>(.*)</article>", written, re.DOTALL)
        words = re.sub(r"<[^>]+>", " ", article[1] if article else "")
        texts[page] = " ".join(html.unescape(words).replace("#", " ").split())
    said = f"const HEADRACE_TEXTS = {json.dumps(dict(sorted(texts.items())))};\n"
    (out / "_static" / "excerpts.js").write_text(said, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.add_lexer("mermaid", TextLexer)  # drawn where the repository is read; here as it is written
    app.add_lexer("haproxy", TextLexer)  # which Pygments does not know
    app.connect("env-before-read-docs", plan_trees)
    app.connect("source-read", prepare)
    app.connect("build-finished", write_for_files)
