"""The files of a page, and who may ask for it."""

from __future__ import annotations

import re
import sys

import pytest

from headrace_formats.page import HEADERS, SANDBOXED, Page, guarded, why_refused


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page of its own, with a file of which no page may know."""
    folder = tmp_path / "page_of_a_test" / "page"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("secret = 1\n")
    (folder / "index.html").write_text("<!doctype html><title>é</title>", encoding="utf-8")
    (folder / "notes.txt").write_text("not for the browser")
    monkeypatch.syspath_prepend(tmp_path)
    yield Page("page_of_a_test")
    sys.modules.pop("page_of_a_test", None)


def test_a_page_has_its_own_files_and_the_shared_ones(page):
    found = page.file("index.html")
    assert found.content.decode() == "<!doctype html><title>é</title>"
    assert found.content_type == "text/html; charset=utf-8"
    assert page.file("style.css").content_type == "text/css; charset=utf-8"
    for name in ("server.js", "elements.js", "charts.js"):
        assert page.file(name).content_type == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "notes.txt", "__init__.py", "../__init__.py", "/etc/passwd", "x.js"]
)
def test_a_page_has_no_other_file(page, name):
    assert page.file(name) is None


def test_every_script_imports_what_is_there(page):
    for name in ("server.js", "elements.js", "charts.js"):
        script = page.file(name).content.decode()
        for names, origin in re.findall(r'import \{ (.*?) \} from "\./(.*?)";', script):
            exported = page.file(origin).content.decode()
            for one in names.split(", "):
                assert re.search(rf"export (async )?function {one}\b", exported)
        assert not re.search(r"https?://", script.replace("http://www.w3.org/2000/svg", ""))


def test_nothing_but_the_server_of_the_page_is_asked():
    policy = dict(
        one.strip().split(" ", 1) for one in HEADERS["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_what_is_no_page_runs_nothing_and_a_page_keeps_its_own_headers():
    policy = SANDBOXED["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'none'"} <= {*policy}
    assert SANDBOXED["x-content-type-options"] == HEADERS["x-content-type-options"] == "nosniff"
    assert guarded({"a": "b"}) == {"a": "b", **SANDBOXED}
    assert guarded(HEADERS) == HEADERS


def test_a_browser_leaves_the_usual_port_out_of_an_origin():
    """RFC 6454, section 6.1."""
    assert why_refused("localhost:80", "http://localhost") is None
    assert why_refused("localhost:443", "https://localhost") is None
    assert why_refused("localhost:443", "http://localhost")
    assert why_refused("localhost:80", "https://localhost")


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000"],
)
def test_this_machine_may_ask(host):
    assert why_refused(host) is None
    assert why_refused(host, f"http://{host}") is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:8000",
        "192.168.0.4:8000", "", ":8000", "[::2]:8000", "evil@example", "[", "a localhost",
    ],
)  # fmt: skip
def test_no_other_name_may_ask(host):
    assert why_refused(host)


def test_a_refusal_says_what_to_do():
    said = why_refused("evil.example:8000")
    assert "'evil.example'" in said
    assert "http://127.0.0.1" in said
    assert len(why_refused("x" * 10_000)) < 400


def test_a_configured_name_may_ask_and_with_keys_any():
    assert why_refused("desk:8000", names=["desk"]) is None
    assert why_refused("desk:8000", any_host=True) is None
    assert why_refused("[", any_host=True)


@pytest.mark.parametrize("names", [(), ("desk",)])
def test_a_page_of_another_origin_may_not_ask(names):
    for origin in ("http://evil.example", "http://127.0.0.1:9000", "null", "file://", "http://["):
        assert why_refused("127.0.0.1:8000", origin, names=names, any_host=bool(names))
