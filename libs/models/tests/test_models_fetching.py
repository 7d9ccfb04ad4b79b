"""Files from web servers, hubs and buckets, with servers of our own on the loopback."""

from __future__ import annotations

import http.server
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

import headrace
from headrace.errors import ConfigError, MissingDependencyError, SetupError
from headrace_models.fetching import from_bucket, from_hub, from_web

CONTENT = bytes(range(256)) * 300
DIGEST = sha256(CONTENT).hexdigest()


class Web:
    """A server, what it was asked for, and how it breaks.

    Attributes:
        sends: Gives the part of what is left that is sent before the transfer breaks off.
        ranges: Whether it knows ranges.
        asked: The range of each request.
    """

    def __init__(self):
        web = self
        self.sends, self.ranges, self.asked, self.status = (lambda left: left), True, [], None

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Write nothing."""

            def do_GET(self):
                web.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, to):
        asked = to.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.split("=")[1][:-1]) if asked and self.ranges else 0
        left = CONTENT[start:]
        status = self.status or (416 if not left else 206 if start else 200)
        to.send_response(status)
        to.send_header("Content-Length", str(len(left) if status < 400 else 0))
        to.end_headers()
        if status < 400:
            to.wfile.write(left[: self.sends(len(left))])
        to.close_connection = True

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def web():
    made = Web()
    yield made
    made.close()


def address(web, digest=DIGEST):
    return f"{web.url}/m.onnx#sha256={digest}"


def test_a_server_that_cuts_every_transfer_in_half_gives_the_file(web, tmp_path):
    web.sends = lambda left: left // 2 or left
    assert from_web(address(web, DIGEST.upper()), tmp_path).read_bytes() == CONTENT
    starts = [0 if one is None else int(one.split("=")[1][:-1]) for one in web.asked]
    assert starts == sorted(set(starts))  # no byte came twice
    assert len(starts) > 10


def test_it_goes_on_where_another_process_was_broken_off(web, tmp_path):
    web.sends = lambda left: left // 2 if len(web.asked) == 1 else 0
    with pytest.raises(SetupError, match=f"broke off 5 times at {len(CONTENT) // 2} bytes"):
        from_web(address(web), tmp_path)
    assert len(web.asked) == 6
    web.sends = lambda left: left
    assert from_web(address(web), tmp_path).read_bytes() == CONTENT
    assert web.asked[-1] == f"bytes={len(CONTENT) // 2}-"


def test_a_server_without_ranges_begins_again(web, tmp_path):
    web.ranges, web.sends = False, lambda left: left // 2 if len(web.asked) < 3 else left
    assert from_web(address(web), tmp_path).read_bytes() == CONTENT
    assert len(web.asked) == 3


def test_what_is_here_as_a_whole_is_not_fetched_again(web, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    assert from_web(address(web), tmp_path).read_bytes() == CONTENT
    assert web.asked == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_digest_shows_both_and_keeps_nothing(web, tmp_path):
    with pytest.raises(SetupError, match=f"sha256={DIGEST}, not {'0' * 64}"):
        from_web(address(web, "0" * 64), tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("status", "says"), [(404, "404"), (401, "login"), (403, "login")])
def test_what_the_server_does_not_give_is_an_error(web, tmp_path, status, says):
    web.status = status
    with pytest.raises(SetupError, match=says):
        from_web(address(web), tmp_path)
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("https://h.example/m.onnx", "no digest"),
        ("https://h.example/m.onnx#sha256=12", "no digest"),
        (f"http://h.example/m.onnx#sha256={DIGEST}", "http is for this machine alone"),
        (f"http://127.0.0.1.example/m.onnx#sha256={DIGEST}", "http is for this machine alone"),
        ("hf://name", "names no file of a hub"),
        ("hf://org/", "names no file of a hub"),
        ("hf://org/name/../../x", "names no file of a hub"),
        (
            "htps://h.example/m.onnx",
            "nothing installed fetches htps://(?s:.*)Did you mean 'https'",
        ),
        (
            "gs://bucket/m.onnx",
            "nothing installed fetches gs://(?s:.*)There are: .*hf.*s3",
        ),
        ("hf://", "names no file of a hub"),
        ("s3://", "names no object"),
        ("s3://bucket", "names no object"),
        ("s3:///m.onnx", "names no object"),
    ],
)
def test_a_wrong_address_is_found_by_the_check_of_a_configuration(wrong, reason):
    with pytest.raises(ConfigError, match=reason):
        headrace.PipelineConfig.load({"backend": "Says", "model": wrong})
    with pytest.raises(ConfigError, match=reason):
        headrace.plugins.located(wrong)


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(SetupError, match="refused"):
        from_web(f"http://127.0.0.1:1/m.onnx#sha256={DIGEST}", tmp_path)


def test_a_library_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"headrace-models\[hub\]"):
        from_hub("hf://org/name/m.onnx", tmp_path)
    with pytest.raises(MissingDependencyError, match=r"headrace-models\[s3\]"):
        from_bucket("s3://bucket/m.onnx", tmp_path)


def test_a_bucket_is_read_by_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://bucket/m.onnx", "wb") as file:
        file.write(CONTENT)
    path = from_bucket("memory://bucket/m.onnx", tmp_path)
    assert path.read_bytes() == CONTENT
    assert Path(path).parent == tmp_path
