"""Defaults of FFmpeg and of Python's HTTP client that are set or relied on: proxies, protocols in names, messages on standard error."""

from __future__ import annotations

import functools
import http.server
import socket
import sys

import av
import numpy as np
import pytest
from processes import run_process
from web_servers import serving

import headrace
from headrace_vision import VideoRunner, Webhook


class Alarm(headrace.Backend):
    """An event for each frame."""

    def forward(self, batch):
        for request in batch:
            request["result"], request["events"] = 0, [{"name": "door"}]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and takes what is posted."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def address(tmp_path):
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with serving(handler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_no_proxy_of_the_environment_is_asked(kit, tmp_path, address, monkeypatch):
    kit.render(tmp_path / "v.mp4", count=5)
    kit.render(tmp_path / "s.ts", count=5)
    (tmp_path / "list.m3u8").write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.5,\ns.ts\n#EXT-X-ENDLIST\n"
    )
    headrace.register("VisionAlarm", Alarm, replace=True)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            for one in (name, name.upper()):
                monkeypatch.setenv(one, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "")
        hook = Webhook(f"{address}/hook", network=["127.0.0.1"])
        with VideoRunner({"backend": "VisionAlarm"}, network=["127.0.0.1"], sinks=[hook]) as runner:
            frames = list(runner.run([f"{address}/v.mp4", f"{address}/list.m3u8"]))
        assert [frame.error for frame in frames] == [None] * 10
        assert runner.status()["sinks"]["Webhook"]["posted"] == 10
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            proxy.accept()


@pytest.mark.skipif(sys.platform == "win32", reason="no name of a file has a colon there")
@pytest.mark.parametrize("name", ["concat:v.mp4|v.mp4", "data:video,x", "http:v.mp4", "pipe:0"])
def test_a_name_that_looks_like_a_protocol_of_ffmpeg_is_a_file(kit, tmp_path, monkeypatch, name):
    kit.render(tmp_path / "v.mp4", count=4)
    (tmp_path / "v.mp4").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with VideoRunner({"backend": "Identity"}) as runner:
        assert [frame.error for frame in runner.run(name)] == [None] * 4


DAMAGED = """
import sys
from headrace_vision import VideoRunner

with VideoRunner({"backend": "Identity"}) as runner:
    frames = list(runner.run(sys.argv[1]))
    (status,) = runner.status()["sources"].values()
print(len(frames), status["damaged_packets"])
"""


def test_ffmpeg_writes_nothing_to_standard_error(tmp_path):
    path = tmp_path / "v.ts"
    random = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            noise = random.integers(0, 256, (48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(noise, format="bgr24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 3, len(data) // 2, 7):
        data[at] ^= 0x55
    path.write_bytes(data)
    done = run_process([sys.executable, "-c", DAMAGED, str(path)], timeout=300)
    frames, _ = map(int, done.stdout.split())
    assert 0 < frames < 40  # it is damaged
    assert done.stderr == ""
