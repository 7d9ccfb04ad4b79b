"""Addresses, from peers on the loopback; and several streams against a loop per stream with the libraries alone."""

from __future__ import annotations

import base64
import http.server
import itertools
import re
import threading
from pathlib import Path

import av
import numpy as np
import pytest
import supervision as sv
import trackers

import headrace
from headrace_vision import VideoRunner


class Peer:
    """A web server that serves a folder, moves `/moved` elsewhere, and counts who asks.

    With `ranges` it serves parts of files; each of `cuts` is after how many bytes an answer breaks off.
    """

    def __init__(self, folder):
        self.asked = []
        self.authorized = []
        self.ranges = False
        self.cuts = []
        self.silent = threading.Event()
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                peer.asked.append(self.path)
                peer.authorized.append(self.headers.get("Authorization"))
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/v.mp4")
                    self.end_headers()
                    return
                if self.path == "/silent":
                    peer.silent.wait()
                    return
                data = (Path(folder) / self.path[1:]).read_bytes()
                whole = len(data)
                wanted = (
                    re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                    if peer.ranges
                    else None
                )
                if wanted:
                    first, last = int(wanted[1]), int(wanted[2] or whole - 1)
                    data = data[first : last + 1]
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{whole}")
                else:
                    self.send_response(200)
                if not self.path.endswith(".ts"):  # a stream has no length
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: peer.cuts.pop(0)] if peer.cuts else data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_port}/{path}"

    def close(self):
        self.silent.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def peer(tmp_path):
    made = Peer(tmp_path)
    yield made
    made.close()


class Quick:
    """A clock on which waiting takes no time."""

    def __init__(self):
        self.time = 0.0
        self.waits = []

    def now(self):
        return self.time

    def wait(self, stop, seconds):
        self.waits.append(seconds)
        self.time += seconds
        return stop.is_set()


def runner(**options):
    chosen = {"network": ["127.0.0.1"], "read_timeout": 60, **options}
    return VideoRunner({"backend": "VisionNetwork", "max": 4}, **chosen)


def test_an_address_with_an_end_is_read_to_it(kit, tmp_path, peer):
    video = kit.render(tmp_path / "v.mkv", count=9)
    with runner(frames="every") as r:
        frames = list(r.run({"door": peer.url("v.mkv")}))
        status = r.status()["sources"]["door"]
    expected = kit.plain_loop(video)
    assert len(frames) == len(expected)
    for frame, (image, _) in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)
    assert status["state"] == "ended"


def test_a_redirect_is_not_followed_and_the_source_is_tried_again(kit, tmp_path, peer):
    kit.render(tmp_path / "v.mp4", count=3)
    clock = Quick()
    with runner(clock=clock) as r:
        handle = r.add({"door": peer.url("moved")})
        done = threading.Event()

        def wait(stop, seconds):
            clock.waits.append(seconds)
            if len(clock.waits) >= 4:
                done.set()
                return stop.wait()
            return stop.is_set()

        clock.wait = wait
        assert done.wait(60)
        status = handle.status()["sources"]["door"]
        handle.stop()
        assert handle.wait(60)
    assert set(peer.asked) == {"/moved"}
    assert status["state"] == "lost"
    assert status["error"]
    assert status["read"] == 0


def test_a_silent_peer_loses_its_source_and_no_other(kit, tmp_path, peer):
    video = kit.render(tmp_path / "v.mp4", count=9)
    lost = threading.Event()
    clock = Quick()

    def wait(stop, seconds):
        lost.set()
        return stop.wait()

    clock.wait = wait
    with runner(clock=clock, read_timeout=0.5) as r:
        handle = r.add({"silent": peer.url("silent")})
        frames = []
        for frame in r.run({"file": video}):
            frames.append(frame.frame)
            if len(frames) == 9:
                assert lost.wait(60)
                assert handle.status()["sources"]["silent"]["state"] == "lost"
                handle.stop()
    assert frames == list(range(9))


def test_a_stream_that_dies_comes_back_with_a_gap(kit, tmp_path, peer):
    kit.render(tmp_path / "v.ts", count=6)
    clock = Quick()
    with runner(frames="every", clock=clock) as r:
        frames = list(itertools.islice(r.run({"door": peer.url("v.ts")}), 12))
        live = r.status()["sources"]["door"]["live"]
    assert live
    assert [f.frame for f in frames] == list(range(12))
    gaps = [f.frame for f in frames if f.gap]
    assert gaps
    assert 0 < gaps[0] <= 6
    assert all(a.timestamp < b.timestamp for a, b in itertools.pairwise(frames))
    assert peer.asked.count("/v.ts") >= 2


@pytest.mark.parametrize("ranges", [False, True])
def test_a_file_at_an_address_that_breaks_off_goes_on_behind_its_last_frame(
    kit, tmp_path, peer, ranges
):
    video = kit.render(tmp_path / "v.mkv", count=90, size=(96, 128), rate=10)
    size = (tmp_path / "v.mkv").stat().st_size
    peer.ranges, peer.cuts = ranges, [size // 3, size // 2]
    with runner(frames="every", clock=Quick()) as r:
        frames = list(r.run({"door": peer.url("v.mkv")}))
        status = r.status()["sources"]["door"]
    expected = kit.plain_loop(video)
    assert [f.timestamp for f in frames] == [time_s for _, time_s in expected]
    for frame, (image, _) in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)
    assert status["state"] == "ended"
    assert status["reconnects"] >= 1


def test_a_file_at_an_address_can_begin_again_and_ends_at_stop(kit, tmp_path, peer):
    kit.render(tmp_path / "v.mkv", count=5, rate=10)
    with runner(frames="every", clock=Quick()) as r:
        frames = list(itertools.islice(r.run(peer.url("v.mkv"), loop=True), 12))
        part = list(r.run(peer.url("v.mkv"), start=0.1, stop=0.35))
    assert [f.timestamp for f in frames] == pytest.approx([n / 10 for n in range(12)])
    assert [f.frame for f in frames if f.gap] == [5, 10]
    assert [f.timestamp for f in part] == pytest.approx([0.1, 0.2, 0.3])


def playlist(folder, video, **options):
    """Cut a video into a playlist of segments."""
    path = folder / "live.m3u8"
    chosen = {"hls_time": "1", "hls_list_size": "0", **options}
    with av.open(video) as into, av.open(str(path), "w", format="hls", options=chosen) as out:
        stream = out.add_stream_from_template(into.streams.video[0])
        for packet in into.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    return path


@pytest.mark.parametrize("options", [{}, {"hls_flags": "single_file"}], ids=["files", "parts"])
def test_a_playlist_with_an_end_is_read_to_it(kit, tmp_path, peer, options):
    video = kit.render(tmp_path / "v.mp4", count=40, rate=10)
    playlist(tmp_path, video, **options)
    peer.ranges = True
    with runner(frames="every") as r:
        frames = list(r.run({"door": peer.url("live.m3u8")}))
        status = r.status()["sources"]["door"]
    expected = kit.plain_loop(video)
    assert len(frames) == len(expected)
    for frame, (image, _) in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)
    assert (status["state"], status["live"]) == ("ended", False)


MASTER = """#EXTM3U
#EXT-X-STREAM-INF:BANDWIDTH=100000,CODECS="avc1.42c00b,mp4a.40.2",RESOLUTION=64x48
low/live.m3u8
#EXT-X-STREAM-INF:BANDWIDTH=900000,RESOLUTION=128x96
high/live.m3u8
#EXT-X-STREAM-INF:BANDWIDTH=64000,CODECS="mp4a.40.2"
sound/live.m3u8
"""


@pytest.fixture
def master(kit, tmp_path):
    for name, size in (("low", (48, 64)), ("high", (96, 128))):
        (tmp_path / name).mkdir()
        video = kit.render(tmp_path / f"{name}.mp4", count=40, rate=10, size=size)
        playlist(tmp_path / name, video)
    (tmp_path / "master.m3u8").write_text(MASTER)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        (("", ""), "high"),
        ((",RESOLUTION=", ",X="), "high"),  # the most bits
        (("128x96", "32x24"), "low"),  # the most pixels come first
    ],
    ids=["both", "bits", "pixels"],
)
def test_of_the_variants_of_a_playlist_the_best_one_is_read_and_no_other(
    kit, master, peer, change, chosen
):
    (master / "master.m3u8").write_text(MASTER.replace(*change))
    with runner(frames="every") as r:
        frames = list(r.run({"door": peer.url("master.m3u8")}))
        status = r.status()["sources"]["door"]
    expected = kit.plain_loop(master / f"{chosen}.mp4")
    assert len(frames) == len(expected)
    for frame, (image, _) in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)
    assert status["state"] == "ended"
    assert peer.asked[:2] == ["/master.m3u8", f"/{chosen}/live.m3u8"]
    assert {one.split("/")[1] for one in peer.asked[1:]} == {chosen}


def test_the_password_of_a_playlist_is_sent_to_its_host_and_told_to_nobody(master, peer, caplog):
    url = peer.url("master.m3u8").replace("http://", "http://me:s%C3%A9cret@")
    with runner(frames="every") as r:
        frames = list(r.run(url))
        status = r.status()
    assert len(frames) == 40
    expected = "Basic " + base64.b64encode("me:s\u00e9cret".encode()).decode()
    assert set(peer.authorized) == {expected}
    assert "cret" not in f"{caplog.text}{status}"


def test_a_variant_at_a_host_that_is_not_allowed_is_refused(master, peer):
    (master / "master.m3u8").write_text(MASTER.replace("high/", "http://other.example/"))
    clock, lost = Quick(), threading.Event()

    def wait(stop, seconds):
        lost.set()
        return stop.wait()

    clock.wait = wait
    with runner(frames="every", clock=clock) as r:
        handle = r.add({"door": peer.url("master.m3u8")})
        assert lost.wait(60)
        status = handle.status()["sources"]["door"]
        handle.stop()
    assert status["state"] == "lost"
    assert "'other.example' is not allowed" in status["error"]
    assert peer.asked == ["/master.m3u8"]


def test_a_playlist_without_an_end_is_live(kit, tmp_path, peer):
    path = playlist(tmp_path, kit.render(tmp_path / "v.mp4", count=40, rate=10))
    path.write_text(path.read_text().replace("#EXT-X-ENDLIST\n", ""))
    with runner(frames="every", clock=Quick()) as r:
        frames = list(itertools.islice(r.run({"door": peer.url("live.m3u8")}), 10))
        status = r.status()["sources"]["door"]
    assert len(frames) == 10
    assert status["live"]


@pytest.mark.parametrize("named", ["http://other.example/x.ts", "file://{}/secret.ts"])
def test_a_playlist_opens_no_other_host_and_no_file(kit, tmp_path, peer, named):
    path = playlist(tmp_path, kit.render(tmp_path / "v.mp4", count=40, rate=10))
    (tmp_path / "secret.ts").write_bytes((tmp_path / "live1.ts").read_bytes())
    path.write_text(path.read_text().replace("live1.ts", named.format(tmp_path)))
    clock, lost = Quick(), threading.Event()

    def wait(stop, seconds):
        lost.set()
        return stop.wait()

    clock.wait = wait
    with runner(frames="every", clock=clock) as r:
        handle = r.add({"door": peer.url("live.m3u8")})
        taken = r.run()
        assert lost.wait(60)
        status = handle.status()["sources"]["door"]
        taken.close()
        handle.stop()
    assert status["state"] == "lost"
    assert "not allowed" in status["error"] or "not opened" in status["error"]
    assert "/secret.ts" not in peer.asked


def find(image):
    y, x = np.nonzero((image[..., 2] > 180) & (image[..., 1] < 90))
    if not len(x):
        return sv.Detections.empty()
    box = np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32)
    return sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([0]))


@pytest.mark.parametrize("instances", [1, 3])
def test_eight_streams_have_the_boxes_and_tracks_of_a_loop_per_stream(kit, tmp_path, instances):
    headrace.register("VisionFindRed", find, replace=True)
    videos = [kit.render(tmp_path / f"v{n}.mp4", count=12 + 2 * n) for n in range(8)]
    config = {"backend": "VisionFindRed", "max": 4, "instance_num": instances}
    found = {}
    with VideoRunner(config, ordered="Track") as r:
        for frame in r.run(videos):
            found.setdefault(frame.source, []).append(frame)
    for video in videos:
        tracker = trackers.ByteTrackTracker()
        expected = [
            tracker.update(find(image), timestamp=time_s) for image, time_s in kit.plain_loop(video)
        ]
        assert len(found[video]) == len(expected)
        for frame, wanted in zip(found[video], expected, strict=True):
            np.testing.assert_array_equal(frame.result.xyxy, wanted.xyxy)
            np.testing.assert_array_equal(frame.result.tracker_id, wanted.tracker_id)
        assert max(frame.result.tracker_id.max(initial=-1) for frame in found[video]) >= 0
