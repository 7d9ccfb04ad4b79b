"""Addresses, from peers on the loopback; and several streams against a loop per stream with the libraries alone."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import itertools
import re
import socket
import threading
from pathlib import Path

import av
import numpy as np
import pytest
import supervision as sv
import trackers
from quick_clock import Quick
from web_servers import serving

import headrace
from headrace.errors import InputError
from headrace_vision import SaveVideo, VideoRunner


class Peer(contextlib.ExitStack):
    """A web server that serves a folder, moves `/moved` elsewhere, and counts who asks.

    With `ranges` it serves parts of files; each of `cuts` is after how many bytes an answer breaks off.
    """

    def __init__(self, folder):
        super().__init__()
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

        self.server = self.enter_context(serving(Handler))
        self.callback(self.silent.set)

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_port}/{path}"


@pytest.fixture
def peer(tmp_path):
    made = Peer(tmp_path)
    yield made
    made.close()


class UntilStopped(Quick):
    """A clock on which a source that is lost is tried again only once it is stopped."""

    def __init__(self):
        super().__init__()
        self.lost = threading.Event()

    def wait(self, stop, seconds):
        self.lost.set()
        return stop.wait()


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
    with runner(machine_clock=clock) as r:
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
    clock = UntilStopped()
    with runner(machine_clock=clock, read_timeout=0.5) as r:
        handle = r.add({"silent": peer.url("silent")})
        frames = []
        for frame in r.run({"file": video}):
            frames.append(frame.frame)
            if len(frames) == 9:
                assert clock.lost.wait(60)
                assert handle.status()["sources"]["silent"]["state"] == "lost"
                handle.stop()
    assert frames == list(range(9))


def test_a_stream_that_dies_comes_back_with_a_gap(kit, tmp_path, peer):
    kit.render(tmp_path / "v.ts", count=6)
    clock = Quick()
    with runner(frames="every", machine_clock=clock) as r:
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
    with runner(frames="every", machine_clock=Quick()) as r:
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
    with runner(frames="every", machine_clock=Quick()) as r:
        frames = list(itertools.islice(r.run(peer.url("v.mkv"), loop=True), 12))
        part = list(r.run(peer.url("v.mkv"), start=0.1, stop=0.35))
    assert [f.timestamp for f in frames] == pytest.approx([n / 10 for n in range(12)])
    assert [f.frame for f in frames if f.gap] == [5, 10]
    assert [f.timestamp for f in part] == pytest.approx([0.1, 0.2, 0.3])


class ClipServer(contextlib.ExitStack):
    """Serves one clip as a server of some kind does; each of `cuts` is where an answer breaks off.

    `how` is "length", "chunked" (HTTP/1.1) or "close" (HTTP/1.0, where nothing says the end).
    """

    def __init__(self, data, how, *, ranges=False, cuts=(), kind="application/octet-stream"):
        super().__init__()
        self.asked = []
        cuts = list(cuts)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0" if how == "close" else "HTTP/1.1"

            def do_GET(self):
                wanted = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
                server.asked.append(self.headers.get("Range"))
                first = int(wanted[1]) if ranges and wanted else 0
                body = data[first:]
                self.send_response(206 if ranges and wanted else 200)
                self.send_header("Content-Type", kind)
                if ranges and wanted:
                    last = len(data) - 1
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
                if how == "length":
                    self.send_header("Content-Length", str(len(body)))
                elif how == "chunked":
                    self.send_header("Transfer-Encoding", "chunked")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                cut = cuts.pop(0) if cuts else None
                body = body if cut is None else body[:cut]
                with contextlib.suppress(OSError):
                    if how != "chunked":
                        self.wfile.write(body)
                        return
                    for at in range(0, len(body), 1000):
                        piece = body[at : at + 1000]
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    if cut is None:
                        self.wfile.write(b"0\r\n\r\n")

        self.handler = Handler

    def __enter__(self):
        return f"http://127.0.0.1:{self.enter_context(serving(self.handler)).server_port}/clip"


class Camera(contextlib.ExitStack):
    """A camera of HTTP that sends a picture when the test says so, as multipart."""

    def __init__(self, pictures):
        super().__init__()
        self.may_send = threading.Semaphore(0)
        camera = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                self.wfile.write(b"--frame\r\n")
                with contextlib.suppress(OSError):
                    for data in pictures:
                        camera.may_send.acquire()
                        head = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data)
                        self.wfile.write(head + data + b"\r\n--frame\r\n")

        self.handler = Handler

    def __enter__(self):
        server = self.enter_context(serving(self.handler))
        self.callback(self.may_send.release, 100)
        return f"http://127.0.0.1:{server.server_port}/video"


def test_a_camera_without_times_has_those_of_arrival_and_so_has_its_copy(kit, tmp_path):
    clock, found, first = Quick(), [], 3  # so many are needed before a stream is known
    steps_s = [0.2, 0.2, 1.5, 0.2, 4.0, 0.2]
    camera = Camera([kit.encoded(kit.picture(n), ".jpg") for n in range(first + len(steps_s))])
    camera.may_send.release(first)
    sink = SaveVideo(tmp_path, codec="copy")
    with runner(frames="every", machine_clock=clock, sinks=[sink]) as r, camera as url:
        frames = r.run({"door": url})
        found.extend(itertools.islice(frames, first))
        assert found[-1].timestamp < 1e-3  # the clock stands still
        for step_s in steps_s:
            clock.time += step_s
            camera.may_send.release()
            found.append(next(frames))
        frames.close()
    times = [f.timestamp for f in found]
    np.testing.assert_allclose(np.diff(times[first - 1 :]), steps_s, atol=1e-5)
    with av.open(str(tmp_path / "door.mp4")) as container:
        copied = [frame.time for frame in container.decode(video=0)]
    np.testing.assert_allclose(np.diff(copied[first - 1 :]), steps_s, atol=1e-4)
    assert [f.frame for f in found] == list(range(len(found)))


CLIPS = {
    "ts": ("mpegts", "libx264", {"g": "7", "bf": "2"}),
    "mkv": ("matroska", "libx264", {"g": "7"}),
    "mp4": ("mp4", "libx264", {"g": "7", "movflags": "+faststart"}),
    "mpg": ("mpeg", "mpeg2video", {"g": "7"}),
    "mjpeg": ("mjpeg", "mjpeg", {}),
    "multipart": ("mpjpeg", "mjpeg", {}),
    "h264": ("h264", "libx264", {"g": "7"}),
}


def clip(folder, name):
    """A clip of 30 frames whose gray says their number, and the numbers that PyAV alone finds in it."""
    kind, codec, options = CLIPS[name]
    path = folder / f"clip.{name}"
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for k in range(30):
            image = np.full((48, 64, 3), 8 * k, np.uint8)
            image[20:28, 2 * k : 2 * k + 4] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        expected = []
        with contextlib.suppress(
            av.error.InvalidDataError
        ):  # behind the last boundary of a multipart
            expected += (f.to_ndarray(format="bgr24") for f in container.decode(video=0))
    assert len(expected) == 30
    return path.read_bytes(), expected


def read_clip(url, **options):
    with runner(frames="every", machine_clock=Quick(), **options) as r:
        frames = list(r.run({"clip": url}))
        return frames, r.status()["sources"]["clip"]


def assert_each_once(frames, expected):
    assert [f.error for f in frames if f.error] == []
    assert len(frames) == len(expected)
    for frame, image in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("ranges", [False, True])
def test_a_clip_with_a_length_ends_there_and_goes_on_where_it_broke_off(tmp_path, name, ranges):
    data, expected = clip(tmp_path, name)
    server = ClipServer(data, "length", ranges=ranges)
    with server as url:
        frames, status = read_clip(url)
    assert_each_once(frames, expected)
    assert (status["state"], status["live"], status["reconnects"]) == ("ended", False, 0)
    if not ranges:
        assert len(server.asked) == 1
    cuts = [len(data) // 3, 2 * len(data) // 3, len(data) - 1 if not ranges else 7]
    with ClipServer(data, "length", ranges=ranges, cuts=cuts) as url:
        frames, status = read_clip(url)
    assert_each_once(frames, expected)
    assert status["state"] == "ended"
    assert status["reconnects"] >= 1


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_in_chunks_ends_with_the_last_one(tmp_path, name):
    data, expected = clip(tmp_path, name)
    server = ClipServer(data, "chunked")
    with server as url:
        frames, status = read_clip(url)
    assert_each_once(frames, expected)
    assert (status["state"], status["reconnects"], len(server.asked)) == ("ended", 0, 1)
    server = ClipServer(data, "chunked", cuts=[2 * len(data) // 3])
    with server as url:
        frames, status = read_clip(url)
    assert (status["state"], status["reconnects"], len(server.asked)) == ("ended", 1, 2)
    assert all(a.timestamp < b.timestamp for a, b in itertools.pairwise(frames))


@pytest.mark.parametrize("name", ["mkv", "mp4"])
def test_a_clip_that_says_how_long_it_plays_needs_no_length(tmp_path, name):
    data, expected = clip(tmp_path, name)
    with ClipServer(data, "close") as url:
        frames, status = read_clip(url)
    assert_each_once(frames, expected)
    assert (status["state"], status["live"]) == ("ended", False)


def test_a_clip_that_is_damaged_at_its_end_is_not_asked_for_again(tmp_path):
    data, _ = clip(tmp_path, "mkv")
    data = data[: data.index(b"\x1f\x43\xb6\x75")]  # up to the first cluster: no frame is left
    for how in ("length", "chunked"):
        server = ClipServer(data, how)
        with server as url:
            (frame,), status = read_clip(url)
        assert isinstance(frame.error, InputError)
        assert (status["state"], len(server.asked)) == ("failed", 1)


def digest_of(method, path, realm, nonce, said):
    """What RFC 7616 says for MD5 with qop=auth, for the user `me` with the password `secret word`."""

    def md5(text):
        return hashlib.md5(text.encode()).hexdigest()

    first, second = md5(f"me:{realm}:secret word"), md5(f"{method}:{path}")
    return md5(f"{first}:{nonce}:{said['nc']}:{said['cnonce']}:auth:{second}")


@pytest.mark.parametrize("scheme", ["Basic", "Digest"])
def test_a_password_is_sent_as_the_server_asks_for_it(tmp_path, scheme, caplog):
    data, expected = clip(tmp_path, "ts")
    answers = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            kind, _, rest = (self.headers.get("Authorization") or "").partition(" ")
            if scheme == "Basic":
                right = base64.b64decode(rest).decode() == "me:secret wörd"
            else:
                said = {k: a or b for k, a, b in re.findall(r'(\w+)=(?:"([^"]*)"|([^,\s]*))', rest)}
                right = kind and said["response"] == digest_of("GET", "/a", "cam", "n1", said)
            answers.append(bool(right))
            self.send_response(200 if right else 401)
            if not right:
                more = ', nonce="n1", qop="auth", algorithm=MD5' * (scheme == "Digest")
                self.send_header("WWW-Authenticate", f'{scheme} realm="cam"{more}')
            self.send_header("Content-Length", str(len(data) * bool(right)))
            self.end_headers()
            self.wfile.write(data * bool(right))

    with serving(Handler) as server:
        word = "w%C3%B6rd" if scheme == "Basic" else "word"
        address = f"http://me:secret%20{word}@127.0.0.1:{server.server_port}/a"
        with runner(frames="every", machine_clock=Quick()) as r:
            frames = list(r.run(address))
            told = f"{r.status()} {caplog.text} {[f.path for f in frames]}"
    assert answers == [False, True]
    assert_each_once(frames, expected)
    assert "cret" not in told


@pytest.mark.parametrize("name", ["ts", "mjpeg", "multipart"])
def test_a_connection_that_merely_closes_is_lost_and_tried_again(tmp_path, name):
    data, expected = clip(tmp_path, name)
    server = ClipServer(
        data, "close", kind="multipart/x-mixed-replace; boundary=ffmpeg" * (name == "multipart")
    )
    with server as url, runner(frames="every", machine_clock=Quick()) as r:
        frames = list(itertools.islice(r.run({"clip": url}), 2 * len(expected) + 3))
        status = r.status()["sources"]["clip"]
    assert status["live"]
    assert status["reconnects"] >= 2
    assert_each_once(frames[: len(expected)], expected)


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
    clock = UntilStopped()
    with runner(frames="every", machine_clock=clock) as r:
        handle = r.add({"door": peer.url("master.m3u8")})
        assert clock.lost.wait(60)
        status = handle.status()["sources"]["door"]
        handle.stop()
    assert status["state"] == "lost"
    assert "'other.example' is not allowed" in status["error"]
    assert peer.asked == ["/master.m3u8"]


def test_a_playlist_without_an_end_is_live(kit, tmp_path, peer):
    path = playlist(tmp_path, kit.render(tmp_path / "v.mp4", count=40, rate=10))
    path.write_text(path.read_text().replace("#EXT-X-ENDLIST\n", ""))
    # The end waits for a read of what will not come.
    with runner(frames="every", machine_clock=Quick(), read_timeout=5) as r:
        frames = list(itertools.islice(r.run({"door": peer.url("live.m3u8")}), 10))
        status = r.status()["sources"]["door"]
    assert len(frames) == 10
    assert status["live"]


@pytest.mark.parametrize("named", ["http://other.example/x.ts", "file://{}/secret.ts"])
def test_a_playlist_opens_no_other_host_and_no_file(kit, tmp_path, peer, named):
    path = playlist(tmp_path, kit.render(tmp_path / "v.mp4", count=40, rate=10))
    (tmp_path / "secret.ts").write_bytes((tmp_path / "live1.ts").read_bytes())
    path.write_text(path.read_text().replace("live1.ts", named.format(tmp_path)))
    clock = UntilStopped()
    with runner(frames="every", machine_clock=clock) as r:
        handle = r.add({"door": peer.url("live.m3u8")})
        taken = r.run()
        assert clock.lost.wait(60)
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
        assert len(found[Path(video).name]) == len(expected)
        for frame, wanted in zip(found[Path(video).name], expected, strict=True):
            np.testing.assert_array_equal(frame.result.xyxy, wanted.xyxy)
            np.testing.assert_array_equal(frame.result.tracker_id, wanted.tracker_id)
        assert (
            max(frame.result.tracker_id.max(initial=-1) for frame in found[Path(video).name]) >= 0
        )


PART = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n"


class SilentCamera:
    """Says its head over HTTP, or nothing at all (RTSP), and some pictures; then it is silent and stays connected."""

    def __init__(self, head, pictures):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.said, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(head, pictures))
        self.thread.start()

    def run(self, head, pictures):
        connection, _ = self.listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head + b"".join(PART % (len(one), one) for one in pictures))
            self.said.set()
            assert self.over.wait(600)

    def close(self):
        self.over.set()
        self.thread.join()
        self.listening.close()


@pytest.mark.parametrize("stage", ["RTSP", "head", "pictures"])
def test_closing_does_not_wait_for_a_camera_that_is_silent(kit, stage):
    """The camera may be silent for an hour: without a way to end its connection, its thread would be stuck."""
    head = b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame\r\n\r\n"
    count = 40 if stage == "pictures" else 0
    shown = [kit.encoded(kit.picture(n), ".jpg") for n in range(count)]
    camera = SilentCamera(b"" if stage == "RTSP" else head, shown)
    scheme = "rtsp" if stage == "RTSP" else "http"
    with VideoRunner(
        {"backend": "Identity"}, network=["127.0.0.1"], read_timeout=3600, frames="every"
    ) as runner:
        seen = threading.Event()

        def loop():
            for _ in runner.run({"cam": f"{scheme}://127.0.0.1:{camera.port}/v"}):
                seen.set()

        reader = threading.Thread(target=loop)
        reader.start()
        assert camera.said.wait(60)
        assert not count or seen.wait(60)
        runner.close()
        reader.join()
    assert runner.status()["stuck_threads"] == 0
    assert runner.status()["sources"]["cam"]["state"] == "stopped"
    camera.close()
