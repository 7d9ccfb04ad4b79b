"""Addresses, from peers on the loopback; and several streams against a loop per stream with the libraries alone."""

from __future__ import annotations

import http.server
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import supervision as sv
import trackers

import headrace
from headrace_vision import VideoRunner


class Peer:
    """A web server that serves a folder, moves `/moved` elsewhere, and counts who asks."""

    def __init__(self, folder):
        self.asked = []
        self.silent = threading.Event()
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                peer.asked.append(self.path)
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/v.mp4")
                    self.end_headers()
                    return
                if self.path == "/silent":
                    peer.silent.wait(60)
                    return
                data = (Path(folder) / self.path[1:]).read_bytes()
                self.send_response(200)
                if not self.path.endswith(".ts"):  # a stream has no length
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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
    return VideoRunner({"backend": "VisionNetwork", "max": 4}, network=["127.0.0.1"], **options)


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
