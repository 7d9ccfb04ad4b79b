"""Files from web servers, hubs and buckets, with servers of our own on the loopback."""

from __future__ import annotations

import http.server
import io
import os
import subprocess
import sys
import threading
from hashlib import sha256

import numpy as np
import pytest

import headrace
from headrace.errors import ConfigError, MissingDependencyError, SetupError
from headrace_models.fetching import addresses
from headrace_models.fetching.addresses import from_bucket, from_hub, from_web
from headrace_models.fetching.limits import Limits
from headrace_models.fetching.onnx_files import weights_of
from headrace_testing import FakeClock

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
        self.busy, self.headers, self.content = [], {}, CONTENT

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Write nothing."""

            def do_GET(self):
                web.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, to):
        asked = to.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.split("=")[1][:-1]) if asked and self.ranges else 0
        left = self.content[start:]
        status, headers = self.status, self.headers
        if self.busy:
            status, headers = self.busy.pop(0)
        status = status or (416 if not left else 206 if start else 200)
        to.send_response_only(status)
        to.send_header("Content-Length", str(len(left) if status < 400 else 0))
        for name, value in headers.items():
            to.send_header(name, value)
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


class Waits:
    """The bounds of a fetch on a clock of their own, and the pauses that it made."""

    def __init__(self):
        self.clock, self.pauses = FakeClock(), []

    def wait(self, seconds):
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    def limits(self):
        return Limits("it", clock=self.clock, wait=self.wait)


@pytest.fixture
def waits():
    return Waits()


@pytest.fixture
def fetch(waits, tmp_path):
    """Fetch a file of a web server, without waiting."""
    return lambda address: from_web(address, tmp_path, waits.limits())


def address(web, digest=DIGEST):
    return f"{web.url}/m.onnx#sha256={digest}"


def test_a_server_that_cuts_every_transfer_in_half_gives_the_file(web, fetch):
    web.sends = lambda left: left // 2 or left
    assert fetch(address(web, DIGEST.upper())).read_bytes() == CONTENT
    starts = [0 if one is None else int(one.split("=")[1][:-1]) for one in web.asked]
    assert starts == sorted(set(starts))  # no byte came twice
    assert len(starts) > 10


def test_it_goes_on_where_another_process_was_broken_off(web, fetch):
    web.sends = lambda left: left // 2 if len(web.asked) == 1 else 0
    with pytest.raises(SetupError, match=f"broke off 5 times at {len(CONTENT) // 2} bytes"):
        fetch(address(web))
    assert len(web.asked) == 6
    web.sends = lambda left: left
    assert fetch(address(web)).read_bytes() == CONTENT
    assert web.asked[-1] == f"bytes={len(CONTENT) // 2}-"


def test_a_server_without_ranges_begins_again(web, fetch):
    web.ranges, web.sends = False, lambda left: left // 2 if len(web.asked) < 3 else left
    assert fetch(address(web)).read_bytes() == CONTENT
    assert len(web.asked) == 3


def test_what_is_here_as_a_whole_is_not_fetched_again(web, fetch, tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    assert fetch(address(web)).read_bytes() == CONTENT
    assert web.asked == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_digest_shows_both_and_keeps_nothing(web, fetch, tmp_path):
    with pytest.raises(SetupError, match=f"sha256={DIGEST}, not {'0' * 64}"):
        fetch(address(web, "0" * 64))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("status", "says"), [(404, "404"), (401, "login"), (403, "login")])
def test_what_the_server_does_not_give_is_an_error(web, fetch, status, says):
    web.status = status
    with pytest.raises(SetupError, match=says):
        fetch(address(web))
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
        ("hf://org/net.onnx", "names a file, and no repository of a hub"),
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


def test_a_busy_server_is_asked_again_when_it_says_so(web, fetch, waits):
    dates = {
        "Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT",
        "Date": "Sun, 06 Nov 1994 08:49:37 GMT",
    }
    web.busy = [(503, {"Retry-After": "40"}), (429, dates), (503, {}), (503, {"Retry-After": "x"})]
    assert fetch(address(web)).read_bytes() == CONTENT
    assert waits.pauses[:2] == [40.0, 60.0]
    assert 0 < waits.pauses[2] < waits.pauses[3] < 40


def test_a_server_that_stays_busy_ends_the_fetch_in_time(web, fetch, waits, monkeypatch):
    monkeypatch.setenv("HEADRACE_FETCH_TIMEOUT_S", "100")
    web.status, web.headers = 503, {"Retry-After": "30"}
    with pytest.raises(SetupError, match="not here after 100 s: 503"):
        fetch(address(web))
    assert (waits.pauses, len(web.asked)) == ([30.0] * 3, 4)


def test_a_server_that_sends_one_byte_at_a_time_is_not_asked_without_a_pause(web, fetch, waits):
    web.sends = lambda left: 1
    with pytest.raises(SetupError, match="not here after 3600 s"):
        fetch(address(web))
    assert len(web.asked) < 200
    assert min(waits.pauses) > 0.2


def test_more_bytes_than_may_come_are_refused(web, fetch, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_FETCH_BYTES", str(len(CONTENT) - 1))
    with pytest.raises(SetupError, match=f"{len(CONTENT)} bytes or more, and HEADRACE_FETCH_BYTES"):
        fetch(address(web))
    monkeypatch.setenv("HEADRACE_FETCH_BYTES", str(len(CONTENT)))
    assert fetch(address(web)).read_bytes() == CONTENT


def test_what_has_no_room_is_refused_before_a_byte_comes(web, fetch, tmp_path, monkeypatch):
    total, used, _ = addresses.shutil.disk_usage(tmp_path)
    full = type("Usage", (), {"total": total, "used": used, "free": len(CONTENT) - 1})
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    with pytest.raises(
        SetupError, match=f"needs {len(CONTENT)} bytes, and .* has {len(CONTENT) - 1}"
    ):
        fetch(address(web))


LIMITED = """
import resource, sys
from pathlib import Path
from headrace.errors import SetupError
from headrace_models.fetching.addresses import from_web
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    from_web(sys.argv[1], Path(sys.argv[2]))
except SetupError as error:
    print(error.what)
"""


@pytest.mark.skipif(os.name == "nt", reason="no such limit")
def test_a_disk_that_is_full_gets_its_room_back(web, tmp_path):
    command = [sys.executable, "-c", LIMITED, address(web), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "there is no room for more than" in done.stdout
    assert (tmp_path / "file").stat().st_size == 0


@pytest.mark.parametrize("name", ["HEADRACE_FETCH_TIMEOUT_S", "HEADRACE_FETCH_BYTES"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "nan"])
def test_a_wrong_bound_is_an_error(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=f"{name}='{value}' is no number above 0"):
        Limits("it")


@pytest.mark.parametrize("to", ["http://127.0.0.2:1/m", "ftp://127.0.0.1/m", "http://h.example/m"])
def test_a_redirect_leads_nowhere_an_address_may_not(web, fetch, to):
    web.status, web.headers = 302, {"Location": f"{to}?secret=1"}
    with pytest.raises(SetupError, match="which is no https") as caught:
        fetch(address(web))
    assert "secret" not in str(caught.value)


def test_a_redirect_on_this_machine_is_followed(web, fetch):
    other = Web()
    try:
        other.status, other.headers = 302, {"Location": f"{web.url}/elsewhere"}
        assert fetch(address(other)).read_bytes() == CONTENT
    finally:
        other.close()


def test_a_link_in_the_folder_is_not_written_through(web, fetch, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "file").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        fetch(address(web))
    assert precious.read_text() == "precious"


def with_weights(*places):
    """Return an ONNX model whose weights lie in other files, one of them inside of a branch of an If."""
    helper = pytest.importorskip("onnx.helper")
    from onnx import TensorProto, numpy_helper

    tensors = []
    for n, place in enumerate(places):
        tensor = numpy_helper.from_array(np.ones(3, np.float32), f"w{n}")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", place
        tensors.append(tensor)
    port = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    inner = [helper.make_node("Identity", [one.name], ["y"]) for one in tensors[-1:]]
    branch = helper.make_graph(inner, "inner", [], [port], tensors[-1:])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    cond = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [cond], [port], tensors[:-1])
    return helper.make_model(graph).SerializeToString()


def test_a_second_file_without_a_digest_is_refused_by_name(web, fetch):
    web.content = with_weights("a.data", "deep/b.data")
    with pytest.raises(SetupError, match=r"keeps weights in .*b\.data"):
        fetch(address(web, sha256(web.content).hexdigest()))


@pytest.mark.parametrize("cut", [0, 1, 7, 40])
def test_what_is_no_model_names_no_weights(tmp_path, cut):
    (tmp_path / "m").write_bytes(with_weights("a")[:cut])
    assert weights_of(tmp_path / "m") == []
    (tmp_path / "m").write_bytes(with_weights("a", "b"))
    assert sorted(weights_of(tmp_path / "m")) == ["a", "b"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("my net.onnx", "my net.onnx"),
        ("größe.onnx", "größe.onnx"),
        ("net@v2.onnx", "net@v2.onnx"),
        ("a" * 300 + ".onnx", "a" * 195 + ".onnx"),
        ("ü" * 300 + ".onnx", "ü" * 97 + ".onnx"),
        ("m.onnx?X-Amz-Signature=SECRET", "m.onnx"),
    ],
)
def test_a_file_keeps_its_name(web, written, name, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    place = addresses.web(f"{web.url}/{written}#sha256={DIGEST}")
    place.fetch()
    assert (place.path.name, place.path.read_bytes()) == (name, CONTENT)
    assert "SECRET" not in str(place.origin())
    assert all(b"SECRET" not in one.read_bytes() for one in tmp_path.rglob("*.json"))


def test_addresses_with_other_queries_share_a_file(web, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for query in ("?a=1", "?a=2", ""):
        addresses.web(f"{web.url}/m.onnx{query}#sha256={DIGEST}").fetch()
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    "wrong", ["https://h/m.onnx?secret", "http://h/m?secret#sha256=1", "no://x?secret"]
)
def test_no_error_shows_the_query(wrong):
    sources = [{"backend": "Says", "model": wrong}, {"backend": f"Says(model='{wrong}')"}]
    for read, source in [
        (headrace.plugins.located, wrong),
        *((headrace.PipelineConfig.load, one) for one in sources),
    ]:
        with pytest.raises(ConfigError) as caught:
            read(source)
        assert "secret" not in f"{caught.value} {caught.value.problems}"


def test_a_library_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    for name in ("huggingface_hub", "s3fs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"headrace-models\[hub\]"):
        from_hub("hf://org/name/m.onnx", tmp_path)
    with pytest.raises(MissingDependencyError, match=r"headrace-models\[s3\]"):
        from_bucket("s3://bucket/m.onnx", tmp_path)


@pytest.fixture
def stored():
    """A bucket in memory: give it a name and contents, and it puts them there."""
    fsspec = pytest.importorskip("fsspec")

    def put(name, content):
        with fsspec.open(f"memory://bucket/{name}", "wb") as file:
            file.write(content)

    yield put
    files = fsspec.filesystem("memory")
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


def test_a_bucket_is_read_by_fsspec(stored, tmp_path):
    stored("m.bin", CONTENT)
    got = from_bucket("memory://bucket/m.bin", tmp_path)
    assert got.path.read_bytes() == CONTENT
    assert got.path.parent == tmp_path
    assert [*tmp_path.iterdir()] == [got.path]


def test_weights_come_out_of_a_bucket_with_their_model(stored, tmp_path):
    stored("m.onnx", with_weights("deep/b.data"))
    stored("deep/b.data", b"weights")
    got = from_bucket("memory://bucket/m.onnx", tmp_path)
    assert got.path.with_name("deep").joinpath("b.data").read_bytes() == b"weights"
    stored("m.onnx", with_weights("../b.data"))
    with pytest.raises(SetupError, match=r"'\.\./b\.data', outside of its folder"):
        from_bucket("memory://bucket/m.onnx", tmp_path)


def test_a_transfer_of_a_bucket_goes_on(stored, tmp_path, waits, monkeypatch):
    files = pytest.importorskip("fsspec").filesystem("memory")
    stored("m.bin", CONTENT)
    real, begun = files.open, []

    class Breaking(io.BytesIO):
        """Gives a quarter, and breaks off."""

        def read(self, size=-1):
            begun.append(self.tell())
            if len(begun) % 2 == 0:
                raise ConnectionResetError("gone")
            return super().read(min(size, len(CONTENT) // 4))

    monkeypatch.setattr(
        type(files), "open", lambda self, *args, **settings: Breaking(real(*args).getvalue())
    )
    got = from_bucket("memory://bucket/m.bin", tmp_path, waits.limits())
    assert got.path.read_bytes() == CONTENT
    quarter = len(CONTENT) // 4
    assert begun[::2] == [0, quarter, 2 * quarter, 3 * quarter, 4 * quarter]
    assert min(waits.pauses) > 0.2


def test_an_object_that_is_not_there_is_named(stored, tmp_path):
    with pytest.raises(SetupError, match=r"memory://bucket/no\.bin"):
        from_bucket("memory://bucket/no.bin", tmp_path)
