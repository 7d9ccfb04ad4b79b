"""Files, lists, playlists and cameras that mean harm: what they get is an error of their own source."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import socket
import struct
import sys
import threading
import time
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from processes import run_process
from web_servers import serving

import headrace_vision
from headrace.errors import ConfigError, InputError
from headrace_vision import VideoRunner
from headrace_vision.reading.playlists import PlaylistOpener

SIDE = 16_000
"""Of pictures of 256 million pixels, which a file of some hundred kB can hold."""


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_parts(side):
    row = bytes(1 + side // 8)  # black and white: a bit per pixel
    packer = zlib.compressobj(9)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head, pixels


def png(side):
    head, pixels = png_parts(side)
    return head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def apng(side):
    head, pixels = png_parts(side)
    control = struct.pack(">IIIIIHHBB", 0, side, side, 0, 0, 1, 25, 0, 0)
    more = struct.pack(">IIIIIHHBB", 1, side, side, 0, 0, 1, 25, 0, 0)
    return b"".join(
        (
            head,
            chunk(b"acTL", struct.pack(">II", 2, 0)),
            chunk(b"fcTL", control),
            chunk(b"IDAT", pixels),
            chunk(b"fcTL", more),
            chunk(b"fdAT", struct.pack(">I", 2) + pixels),
            chunk(b"IEND", b""),
        )
    )


def with_size(data, at, form, side):
    """A file whose header says another size."""
    packed = struct.pack(form, side, side)
    return data[:at] + packed + data[at + len(packed) :]


def saved(kind, **options):
    file = io.BytesIO()
    images = [Image.new("RGB", (16, 16), (40 * n, 0, 0)) for n in range(3)]
    images[0].save(file, kind, **options, **({"append_images": images[1:]} if options else {}))
    return file.getvalue()


def gif(side):
    # The screen, and the first picture on it, which says its own size behind the separator.
    data = with_size(saved("GIF", save_all=True), 6, "<HH", side)
    return with_size(data, data.index(b"\x2c\0\0\0\0") + 5, "<HH", side)


def webp(side):
    data = saved("WEBP", save_all=True)
    size = (side - 1).to_bytes(3, "little")
    return data[:24] + size + size + data[30:]


def tiff(side):
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "TIFF", compression="group4")
    return file.getvalue()


def multipart(*sizes):
    """JPEGs as a camera sends them over HTTP, three of each size."""
    parts = []
    for height, width in sizes:
        file = io.BytesIO()
        Image.new("RGB", (width, height), (90, 90, 90)).save(file, "JPEG")
        head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
        parts += [head % len(file.getvalue()) + file.getvalue() + b"\r\n"] * 3
    return b"".join(parts)


BOMBS = {"a.apng": apng, "a.gif": gif, "a.webp": webp, "a.png": png, "a.tiff": tiff}

MEASURE = """
import json, resource, sys
from headrace_vision import VideoRunner
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
said = {}
with VideoRunner({"backend": "Call(builtins:id)"}, decode="DecodeMat(formats=[tiff])") as runner:
    list(runner.run(sys.argv[1]))
    before = peak()
    for path in sys.argv[2:]:
        said[path] = [str(f.error) for f in runner.run(path)]
print(json.dumps([peak() - before, said]))
"""


def test_a_small_file_of_huge_pictures_takes_no_memory(kit, tmp_path):
    """Each would take 256 to 1024 MB a picture, and they are refused before one is decoded."""
    small = kit.render(tmp_path / "small.mp4", count=2)
    paths = []
    for name, make in BOMBS.items():
        (tmp_path / name).write_bytes(make(SIDE))
        paths.append(str(tmp_path / name))
    done = run_process([sys.executable, "-c", MEASURE, small, *paths], check=True)
    grown, said = json.loads(done.stdout.splitlines()[-1])
    for path in paths:
        (error,) = said[path]
        assert "at most 100000000 pixels" in error, path
        assert "max_pixels" in error
        assert f"{SIDE} x {SIDE}" in error
    assert grown < 150_000_000


def encoded(codec, *sizes, pix_fmt="yuv420p", **options):
    """Packets of three pictures of each size, each size from an encoder of its own."""
    for height, width in sizes:
        context = av.CodecContext.create(codec, "w")
        context.width, context.height, context.pix_fmt = width, height, pix_fmt
        context.time_base, context.framerate, context.options = Fraction(1, 10), 10, options
        for number in range(3):
            image = np.full((height, width, 3), 60 + 30 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(format=pix_fmt)
            frame.pts = number
            yield from context.encode(frame)
        yield from context.encode(None)


STREAMS = {
    "h264": ("libx264", {"preset": "ultrafast", "tune": "zerolatency"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none:bframes=0"}),
    "m2v": ("mpeg2video", {"bf": "0"}),
    "m4v": ("mpeg4", {"bf": "0"}),
}
AV1 = Path(__file__).with_name("av1") / "two_sizes.obu"
"""Three pictures of each of two sizes, by libsvtav1: that encoder stops for ever once in some hundred videos."""


def write_stream(path, *sizes):
    if path.suffix == ".mpjpeg":
        path.write_bytes(multipart(*sizes))
        return str(path)
    codec, options = STREAMS[path.suffix[1:]]
    try:
        path.write_bytes(b"".join(bytes(one) for one in encoded(codec, *sizes, **options)))
    except av.codec.codec.UnknownCodecError:
        pytest.skip(f"this FFmpeg has no {codec}")
    return str(path)


@pytest.mark.parametrize("kind", ["mpjpeg", "obu", *STREAMS])
def test_a_stream_that_grows_beyond_the_limit_ends_with_one_failed_frame(kit, tmp_path, kind):
    path = str(AV1)
    if kind != "obu":
        path = write_stream(tmp_path / f"v.{kind}", (48, 64), (1200, 1600))
    with VideoRunner({"backend": "Identity"}) as runner:
        frames = list(runner.run(path, max_pixels=1600 * 1200))
        for frame, (image, _) in zip(frames, kit.plain_loop(path), strict=True):
            np.testing.assert_array_equal(frame.image, image)
        assert {f.image.shape[:2] for f in frames} == {(48, 64), (1200, 1600)}
        *good, last = runner.run(path, max_pixels=100_000)
        status = runner.status()["sources"][last.source]
    # A decoder that holds pictures back until the next ones come may lose them to the error.
    assert 1 <= len(good) <= 3
    assert all(f.error is None and f.image.shape == (48, 64, 3) for f in good)
    assert isinstance(last.error, InputError)
    assert "at most 100000 pixels" in str(last.error)
    assert "max_pixels" in str(last.error)
    assert status["state"] == "failed"


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "flv", "ts", "avi"])
def test_a_picture_of_exactly_the_limit_is_read_and_one_more_is_not(kit, tmp_path, suffix):
    """H.264 stores 50 rows of 66 pixels in blocks of 16, 64 x 80 pixels."""
    path = kit.render(tmp_path / f"v.{suffix}", count=4, size=(50, 66))
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        frames = list(runner.run(path, max_pixels=50 * 66))
        for frame, (image, _) in zip(frames, kit.plain_loop(path), strict=True):
            np.testing.assert_array_equal(frame.image, image)
        (frame,) = runner.run(path, max_pixels=50 * 66 - 1)
    assert "66 x 50 = 3300 pixels" in str(frame.error)


def test_stills_and_pictures_in_memory_have_the_limit_of_their_source(kit):
    image = kit.picture(1, (30, 40))
    inputs = [kit.encoded(image), image, image[..., 0], Image.fromarray(image)]
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        assert [f.error for f in runner.run(inputs, max_pixels=1200)] == [None] * 4
        refused = [str(f.error) for f in runner.run(inputs, max_pixels=1199)]
    assert len(refused) == 4
    for said in refused:
        assert "at most 1199 pixels" in said
        assert "40 x 30" in said
        assert "max_pixels" in said


def test_a_decoder_without_a_limit_of_its_own_has_that_of_the_source(kit):
    with VideoRunner({"backend": "VisionNetwork"}, decode="VisionDecode") as runner:
        assert [f.error for f in runner.run(b"\xff\xd8\xff", max_pixels=200)] == [None]
        (frame,) = runner.run(b"\xff\xd8\xff", max_pixels=199)
    assert "10 x 20 = 200 pixels" not in str(frame.error)
    assert "20 x 10 = 200 pixels" in str(frame.error)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "100", 2**30 + 1])
def test_a_limit_that_is_none_is_refused(value):
    with (
        VideoRunner({"backend": "VisionNetwork"}) as runner,
        pytest.raises(ValueError, match="max_pixels: Input should be"),
    ):
        runner.run([], max_pixels=value)


def test_a_file_says_the_limit_of_each_source(kit, tmp_path):
    kit.render(tmp_path / "v.mp4", count=2)
    config = tmp_path / "vision.toml"
    config.write_text(
        'model = {backend = "VisionNetwork"}\n[sources.a]\ninput = "v.mp4"\nmax_pixels = 3071\n'
        '[sources.b]\ninput = "v.mp4"\nmax_pixels = 3072\n'
    )
    with headrace_vision.open(config) as vision:
        said = [(f.source, f.error is None) for f in vision.run()]
    assert sorted(said) == [("a", False), ("b", True), ("b", True)]
    config.write_text(config.read_text().replace("3071", "0"))
    with pytest.raises(
        ConfigError, match="max_pixels: Input should be greater than or equal to 1, not 0"
    ):
        headrace_vision.open(config)


# Lists.


@pytest.fixture
def uploads(kit, tmp_path):
    """A folder of uploads with a picture of its own, and a picture that is nobody's business."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.png").write_bytes(kit.encoded(kit.picture(7)))
    folder = tmp_path / "uploads"
    folder.mkdir()
    (folder / "a.png").write_bytes(kit.encoded(kit.picture(1)))
    return folder


def outcomes(frames):
    return sorted((f.path or "", f.error is None) for f in frames)


@pytest.mark.parametrize("line", ["{private}/secret.png", "../private/secret.png", "x.txt", "."])
@pytest.mark.parametrize("how", ["folder", "pattern", "recursive", "link"])
def test_a_list_that_is_found_is_not_opened(uploads, tmp_path, line, how):
    text = line.format(private=tmp_path / "private")
    if how == "link":
        (tmp_path / "elsewhere").write_text(text)
        (uploads / "x.txt").symlink_to(tmp_path / "elsewhere")
    else:
        (uploads / "X.TXT").write_text(text)
        (uploads / "x.txt").write_text(text)
    pattern = {"pattern": "*", "recursive": "**/*"}.get(how)
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        frames = list(runner.run(str(uploads / pattern) if pattern else str(uploads)))
        assert runner.status()["passed_by"] == (1 if how == "link" else 2)
    assert [f.path for f in frames] == [str(uploads / "a.png")]
    assert frames[0].error is None


def test_a_list_names_files_and_folders_and_no_other_list(kit, uploads, tmp_path):
    (uploads / "x.txt").write_text("../private/secret.png")
    (tmp_path / "other.txt").write_text("private/secret.png")
    lines = ["other.txt", "uploads", "uploads/*.txt", str(uploads / "a.png")]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        frames = list(runner.run(str(tmp_path / "list.txt")))
        # Whoever names a list may name any file, and a list of lists in Python names each.
        (frame,) = runner.run([str(tmp_path / "other.txt")])
    np.testing.assert_array_equal(frame.image, kit.picture(7))
    assert {f.path for f in frames if f.error is None} == {str(uploads / "a.png")}
    (refused,) = [str(f.error) for f in frames if f.error is not None]
    assert "a list is opened only where you name it" in refused


# Addresses.


class Server(contextlib.ExitStack):
    """Answers every address with the same bytes, and keeps what it was asked for.

    `kind` is the type of the content; without `length` the answer ends where the connection closes.
    """

    def __init__(self, body, *, kind="application/octet-stream", length=True):
        super().__init__()
        self.asked = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if length:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

        self.address = f"http://127.0.0.1:{self.enter_context(serving(Handler)).server_port}/"


class UntilLost:
    """A clock that says when a source is lost, and lets it wait until it is stopped."""

    def __init__(self):
        self.lost = threading.Event()

    def now(self):
        return 0.0

    def wait(self, stop, seconds):
        self.lost.set()
        return stop.wait()


def lost_beside_a_good_one(url, **options):
    """Read an address until it is lost, beside pictures; return its status, and its frames."""
    clock = UntilLost()
    pictures = [np.full((8, 8, 3), n, np.uint8) for n in range(20)]

    def good():
        yield from pictures[:10]
        assert clock.lost.wait(120)
        yield from pictures[10:]

    chosen = {"network": ["127.0.0.1"], "read_timeout": 60, "frames": "every", **options}
    with VideoRunner({"backend": "VisionNetwork"}, machine_clock=clock, **chosen) as runner:
        handle = runner.add({"bad": url})
        frames = []
        for frame in runner.run({"good": good()}):
            frames += [frame] * (frame.source == "good")
            if len(frames) == 20:
                status = handle.status()["sources"]["bad"]
                handle.stop()
    assert [f.error for f in frames] == [None] * 20
    assert [int(f.image[0, 0, 0]) for f in frames] == list(range(20))
    return status


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "flv", "ts"])
def test_a_file_at_an_address_with_larger_pictures_fails_once(kit, tmp_path, suffix):
    kit.render(tmp_path / f"v.{suffix}", count=3, size=(480, 640))
    options = {"network": ["127.0.0.1"], "max_pixels": 100_000}
    with (
        Server((tmp_path / f"v.{suffix}").read_bytes()) as server,
        VideoRunner({"backend": "VisionNetwork"}, **options) as runner,
    ):
        (frame,) = runner.run(server.address + "v")
    assert "at most 100000 pixels" in str(frame.error)
    assert "640 x 480" in str(frame.error)
    assert len(server.asked) == 1


def test_a_camera_that_grows_beyond_the_limit_is_lost_after_one_failed_frame():
    body, kind = multipart((48, 64), (480, 640)), "multipart/x-mixed-replace; boundary=frame"
    with Server(body, kind=kind, length=False) as server:
        status = lost_beside_a_good_one(server.address + "live", max_pixels=100_000)
    assert (status["state"], status["read"]) == ("lost", 4)
    assert "at most 100000 pixels" in status["error"]
    assert "max_pixels" in status["error"]


@pytest.mark.parametrize("line", ["A", "A=", 'A="', '"', "A,", "="])
def test_the_work_for_a_line_of_a_playlist_grows_with_its_length(line):
    """32 times the length is 32 times the work at most; it is 1024 times where it is tried from each character."""

    def work_s(count):
        text = line * (count // len(line))
        body = f"#EXTM3U\n#EXT-X-STREAM-INF:{text}\nx.m3u8\n".encode()
        with Server(body) as server:
            opener = PlaylistOpener(server.address + "a.m3u8", ["127.0.0.1"], 60)
            began = time.thread_time()  # what this thread computed, however long it waited
            assert opener.best_variant() == server.address + "x.m3u8"
            return time.thread_time() - began

    assert min(work_s(8_000) for _ in range(5)) < 32 * min(work_s(250) for _ in range(5))


def hls(lines):
    return ("#EXTM3U\n" + "\n".join(lines) + "\n").encode()


HOSTILE_PLAYLISTS = {
    "line": (hls(["#EXT-X-STREAM-INF:" + "A" * 40_000, "x.m3u8"]), "line of the playlist"),
    "segment": (hls(["#EXT-X-TARGETDURATION:1", "#EXTINF:1,", "x" * 10_000]), "line of the"),
    "endless": (hls(["#EXT-X-TARGETDURATION:1", *["#EXTINF:1,", "x.ts"] * 100_000]), "playlist"),
}


def test_the_ends_of_lines_alone_end_a_line_of_a_playlist():
    name = "a\u2028b\x85c.m3u8"
    body = f'#EXTM3U\r\n#EXT-X-STREAM-INF:BANDWIDTH=1,NAME="x\u2028y"\r\n{name}\r'.encode()
    with Server(body) as server:
        opener = PlaylistOpener(server.address + "a.m3u8", ["127.0.0.1"], 60)
        assert opener.best_variant() == server.address + name


@pytest.mark.parametrize("kind", HOSTILE_PLAYLISTS)
def test_a_playlist_beyond_its_bounds_is_refused_and_others_go_on(kind):
    body, said = HOSTILE_PLAYLISTS[kind]
    with Server(body) as server:
        status = lost_beside_a_good_one(server.address + "live.m3u8")
        asked = set(server.asked)
    assert status["state"] == "lost"
    assert said in status["error"]
    assert "is too long" in status["error"]
    assert asked == {"/live.m3u8"}


SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    "m=video {port} RTP/AVP 26\r\n"
)


@pytest.mark.parametrize("kind", ["application/sdp", "video/mp4"])
def test_what_is_at_an_address_opens_no_port(kind):
    """An SDP names a port. FFmpeg would listen there, and wait for pictures until the time is over."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        body = SDP.format(port=free.getsockname()[1]).encode()
    with Server(body, kind=kind, length=False) as server:
        status = lost_beside_a_good_one(server.address + "cam")
    assert status["read"] == 0
    why, _, where = status["error"].partition(": ")
    assert why in ("Invalid argument", "Invalid data found when processing input")
    assert where == server.address + "cam"


def test_a_file_that_is_an_sdp_opens_no_port(tmp_path):
    (tmp_path / "v.mp4").write_text(SDP.format(port=9))
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        (frame,) = runner.run(str(tmp_path / "v.mp4"))
    assert "cannot be read as image, animation or video" in str(frame.error)


class Redirecting:
    """A camera at 127.0.0.1 whose answers to DESCRIBE are given, one a connection; and the host 127.0.0.2 beside it."""

    def __init__(self, *answers):
        self.asked = []
        self.elsewhere = threading.Event()
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._other = socket.create_server(("127.0.0.2", 0))
        self.url = f"rtsp://me:secret@127.0.0.1:{self._listening.getsockname()[1]}/door"
        self.target = f"rtsp://127.0.0.2:{self._other.getsockname()[1]}/inner"
        for work in (self._serve, self._be_other):
            threading.Thread(target=work, daemon=True).start()

    def _be_other(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._other.accept()
                self.elsewhere.set()
                connection.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
                self.asked.append([])
                with connection, contextlib.suppress(OSError):
                    self._talk(connection, answer)

    def _talk(self, connection, answer):
        with connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith((b"OPTIONS", b"DESCRIBE")):
                    method = line.split()[0].decode()
                    self.asked[-1].append(method)
                elif line.lower().startswith(b"cseq"):
                    number = line.split(b":")[1].strip().decode()
                elif not line.strip():
                    said = "RTSP/1.0 200 OK\r\nCSeq: {n}\r\nPublic: DESCRIBE, SETUP, PLAY\r\n\r\n"
                    text = said if method == "OPTIONS" else answer
                    connection.sendall(text.format(n=number, to=self.target).encode())

    def close(self):
        for one in (self._listening, self._other):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


REDIRECT = "RTSP/1.0 302 Found\r\nCSeq: {n}\r\nLocation: {to}\r\n\r\n"
DISGUISED = {
    "plain": REDIRECT,
    "moved": REDIRECT.replace("302 Found", "301 Moved Permanently"),
    "no reason": REDIRECT.replace(" Found", ""),
    "spaces": REDIRECT.replace(" 302", "   302"),
    "sign": REDIRECT.replace("302", "+302"),
    "letters": REDIRECT.replace("302", "302x"),
    "returns": REDIRECT.replace("302", "3\r02"),
    "bare newlines": REDIRECT.replace("\r\n", "\n"),
    "in a body": "RTSP/1.0 401 No\r\nCSeq: {n}\r\nContent-Length: +0\r\n\r\n" + REDIRECT,
    "two lengths": "RTSP/1.0 401 No\r\nCSeq: {n}\r\nContent-Length: 500\r\nContent-Length: 0\r\n\r\n"
    + REDIRECT,
    "no length": "RTSP/1.0 401 No\r\nCSeq: {n}\r\nContent-Length : 500\r\n\r\n" + REDIRECT,
    "interleaved": "$\x00\x00\x04abcd" + REDIRECT,
    # For FFmpeg a line ends at a zero byte, and an empty line ends the message.
    "zero byte": 'RTSP/1.0 401 No\r\nCSeq: {n}\r\nWWW-Authenticate: Basic realm="x"\r\n\0\r\n'
    + REDIRECT,
}


@pytest.mark.parametrize("kind", DISGUISED)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has 127.0.0.1 alone")
def test_a_camera_redirects_nobody_to_another_host(kind):
    camera = Redirecting(DISGUISED[kind])
    try:
        status = lost_beside_a_good_one(camera.url)
    finally:
        camera.close()
    assert camera.asked[0][-1] == "DESCRIBE"
    assert not camera.elsewhere.is_set()
    assert status["state"] == "lost"
    assert "secret" not in str(status)
    if kind in ("plain", "moved", "bare newlines"):
        assert "sends us to another address" in status["error"]
        assert "302" in status["error"] or "301" in status["error"]
    if kind == "zero byte":
        assert "does not speak RTSP" in status["error"]


HOSTILE_FILES = {
    "apng": ("a.apng", lambda: apng(SIDE)),
    "gif": ("a.gif", lambda: gif(SIDE)),
    "webp": ("a.webp", lambda: webp(SIDE)),
    "png": ("a.png", lambda: png(SIDE)),
    "multipart": ("a.mjpeg", lambda: multipart((480, 640))),
    "sdp": ("a.mp4", lambda: SDP.format(port=9).encode()),
    "concat": ("a.mp4", lambda: b"ffconcat version 1.0\nfile good.png\n"),
    "hls": ("a.mp4", lambda: hls(["#EXT-X-TARGETDURATION:1", "#EXTINF:1,", "good.png"])),
}


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_a_hostile_file_fails_alone(kit, tmp_path, kind):
    name, make = HOSTILE_FILES[kind]
    (tmp_path / name).write_bytes(make())
    video = kit.render(tmp_path / "good.mp4", count=12)
    with VideoRunner({"backend": "VisionNetwork", "max": 4}) as runner:
        frames = list(runner.run({"bad": str(tmp_path / name), "good": video}, max_pixels=100_000))
    good = [f for f in frames if f.source == "good"]
    assert [f.error for f in good] == [None] * 12
    for frame, (image, _) in zip(good, kit.plain_loop(video), strict=True):
        np.testing.assert_array_equal(frame.image, image)
    assert [f.error is None for f in frames if f.source == "bad"].count(False) == 1
