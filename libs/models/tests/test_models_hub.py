"""Files of a hub, and addresses that move, with a hub of our own on the loopback."""

from __future__ import annotations

import hashlib
import http.server
import json
import logging
import os
import sys
import threading
from urllib.parse import unquote

import pytest

import headrace
from headrace.errors import SetupError
from headrace_models import Models
from headrace_models.fetching.addresses import from_hub, hub
from headrace_models.fetching.limits import Limits
from headrace_models.watching.watcher import Watching
from headrace_testing import FakeClock

constants = pytest.importorskip("huggingface_hub.constants")

READER = """
def tables_of(folder):
    assert (folder / "parts.json").read_text() == "[]"
    return {"backend": "Says(parts)", "model": "b/second.bin"}
"""


class Hub:
    """A hub.

    Attributes:
        files: The contents by name, of each commit.
        commits: The commit of each branch.
        asked: The files that were asked for, in order.
        busy: The status and headers of the next answers, in place of what is asked for.
    """

    def __init__(self):
        own = self
        self.files, self.commits, self.asked, self.busy = {}, {}, [], []

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Write nothing."""

            def do_HEAD(self):
                own.answer(self)

            def do_GET(self):
                own.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def put(self, branch, commit, files):
        self.commits[branch], self.files[commit] = commit, files

    def found(self, path):
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[0] == "api":
            revision = unquote("/".join(parts[5:])) or "main"
            commit = self.commits.get(revision, revision)
            files = self.files[commit]
            names = [{"rfilename": one, "size": len(data)} for one, data in files.items()]
            said = {"id": "org/name", "sha": commit, "siblings": names}
            return 200, json.dumps(said).encode(), {}
        commit, name = unquote(parts[3]), unquote("/".join(parts[4:]))
        body = self.files[commit][name]
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": commit}
        return 200, body, headers

    def answer(self, to):
        try:
            status, body, headers = self.found(to.path)
        except KeyError:
            missing = "RevisionNotFound" if to.path.startswith("/api") else "EntryNotFound"
            status, body, headers = 404, b"{}", {"X-Error-Code": missing}
        if self.busy:
            status, headers = self.busy.pop(0)
            body = b"{}"
        elif to.command == "GET" and not to.path.startswith("/api"):
            self.asked.append(unquote(to.path.split("/", 5)[5]))
        to.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            to.send_header(name, text)
        to.end_headers()
        if to.command == "GET":
            to.wfile.write(body)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def served(tmp_path, monkeypatch):
    made = Hub()
    url = f"http://127.0.0.1:{made.server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_OFFLINE", raising=False)
    made.put("main", "a" * 40, {"net.txt": b"one", "other.txt": b"no"})
    made.put("refs/pr/1", "b" * 40, {"net.txt": b"two"})
    made.put("feature/int8", "c" * 40, {"net.txt": b"three"})
    yield made
    made.close()


@pytest.fixture
def lines(caplog):
    with caplog.at_level(logging.WARNING, "headrace.models"):
        yield lambda: [one for one in caplog.messages if "hf://" in one]


def text_at(address):
    place = hub(address)
    place.fetch()
    return place.path.read_text()


@pytest.mark.parametrize(
    ("revision", "text"),
    [
        ("", "one"),
        ("@main", "one"),
        ("@refs/pr/1", "two"),
        ("@refs%2Fpr%2F1", "two"),
        ("@feature%2Fint8", "three"),
        ("@" + "c" * 40, "three"),
    ],
)
def test_a_revision_may_have_a_slash(served, revision, text):
    assert text_at(f"hf://org/name{revision}/net.txt") == text


def test_a_branch_is_asked_again_and_a_commit_is_not(served, lines):
    fixed = "hf://org/name@" + "a" * 40 + "/net.txt"
    assert (text_at("hf://org/name@main/net.txt"), text_at(fixed)) == ("one", "one")
    served.put("main", "d" * 40, {"net.txt": b"four"})
    assert (text_at("hf://org/name@main/net.txt"), text_at(fixed)) == ("four", "one")
    assert [one[-44:] for one in lines()] == ["a" * 40 + " now", "d" * 40 + " now"]
    origin = hub("hf://org/name@main/net.txt").origin()
    assert origin == {
        "address": "hf://org/name@main/net.txt",
        "revision": "d" * 40,
        "sha256": hashlib.sha256(b"four").hexdigest(),
        "moves": True,
    }
    assert "moves" not in hub(fixed).origin()


def test_without_an_answer_the_cached_file_runs_and_the_line_says_so(served, lines, monkeypatch):
    address = "hf://org/name@main/net.txt"
    text_at(address)
    served.put("main", "d" * 40, {"net.txt": b"four"})
    served.busy = [(500, {})]
    assert text_at(address) == "one"
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    assert text_at(address) == "one"
    assert [f"revision {'a' * 40} of the cache runs, because" in one for one in lines()[1:]] == [
        True,
        True,
    ]
    assert "nothing may be fetched" in lines()[2]


def test_what_the_hub_lacks_is_named_with_repository_revision_and_file(served):
    with pytest.raises(
        SetupError,
        match=r"(?s)org/name at revision main \(a{40}\) has no file 'met.txt'.*'net.txt'",
    ):
        text_at("hf://org/name@main/met.txt")
    with pytest.raises(SetupError, match="no revision 'v9' of org/name"):
        text_at("hf://org/name@v9/net.txt")


def test_a_busy_hub_is_asked_again_when_it_says_so(served, tmp_path):
    clock, pauses = FakeClock(), []

    def wait(seconds):
        pauses.append(seconds)
        clock.advance(seconds)

    served.busy = [(429, {"Retry-After": "7"}), (429, {"Retry-After": "9"})]
    limits = Limits("it", clock=clock, wait=wait)
    got = from_hub("hf://org/name/net.txt", tmp_path, limits)
    assert got.path.read_text() == "one"
    assert pauses == [7.0, 9.0]


def test_a_folder_brings_what_its_reader_names(served, tmp_path, monkeypatch):
    about = tmp_path / "site" / "headrace_parts-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-parts\nVersion: 1.0\n")
    readers = "[headrace.readers]\nparts.json = hrt_parts:tables_of\n"
    (about / "entry_points.txt").write_text(readers)
    (tmp_path / "site" / "hrt_parts.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    headrace.plugins.refresh()
    weights = {one: os.urandom(8) for one in ("a.bin", "b/first.bin", "b/second.bin")}
    served.put("main", "e" * 40, {"parts.json": b"[]", **weights})
    place = hub("hf://org/name@main")
    place.fetch()
    assert sorted(served.asked) == ["b/second.bin", "parts.json"]
    assert (place.path / "b" / "second.bin").read_bytes() == weights["b/second.bin"]
    headrace.plugins.refresh()
    sys.modules.pop("hrt_parts", None)


def test_a_folder_that_nobody_reads_comes_whole(served):
    place = hub("hf://org/name@main")
    place.fetch()
    assert sorted(one.name for one in place.path.iterdir()) == ["net.txt", "other.txt"]


def test_a_file_that_has_changed_in_the_cache_of_the_hub_is_refused(served, tmp_path):
    address = "hf://org/name@" + "a" * 40 + "/net.txt"
    place = hub(address)
    place.fetch()
    place.path.resolve().write_bytes(b"0ne")
    with pytest.raises(SetupError, match=r"is not what it was before(?s:.*)Remove "):
        text_at(address)
    place.path.resolve().unlink()
    assert text_at(address) == "one"


def test_a_link_out_of_both_caches_is_not_followed(served, tmp_path):
    address = "hf://org/name@" + "a" * 40 + "/net.txt"
    place = hub(address)
    place.fetch()
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "net.txt").write_bytes(b"one")
    place.path.parent.unlink()
    place.path.parent.symlink_to(tmp_path / "evil")
    assert text_at(address) == "one"
    assert place.path.resolve().is_relative_to(tmp_path / "hub")


def test_a_watched_model_follows_its_branch(served, tmp_path):
    (tmp_path / "m").mkdir()
    config = tmp_path / "m" / "m.toml"
    config.write_text("backend = \"Says(model='hf://org/name@main/net.txt')\"\n")
    clock = FakeClock()
    with Models(tmp_path / "m", clock=clock) as models:
        watching = Watching(models, tmp_path / "m")

        def said():
            watching.look()
            clock.advance(1.0)
            watching.look()
            return models("m", {"data": 0})["result"]

        assert said() == "one"
        served.put("main", "d" * 40, {"net.txt": b"four"})
        served.busy = [(503, {})]
        watching.ask()
        assert said() == "one"
        watching.ask()
        assert said() == "four"
