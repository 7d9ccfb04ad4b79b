"""A camera that speaks RTSP, scripted up to its pictures: silent at each stage, dying, with another clock and size."""

from __future__ import annotations

import itertools
import re
import selectors
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from quick_clock import Quick

import headrace
from headrace_vision import SaveVideo, VideoRunner

STAGES = ("greeting", "OPTIONS", "DESCRIBE", "SETUP", "PLAY", "pictures")

PATIENT = 1000
"""How often a camera is there again: half a second without a picture may be the machine's."""


def picture(number, size):
    """A picture whose brightness is its number, as a JPEG of 4:2:0 with the usual tables."""
    image = np.full((*size, 3), 20 + 10 * (number % 20), np.uint8)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def payload(data, size):
    """A JPEG as RFC 2435 sends it: a header of 8 bytes, the tables, the scan."""
    tables, position = b"", 2
    while True:
        marker, length = struct.unpack(">HH", data[position : position + 4])
        body = data[position + 4 : position + 2 + length]
        position += 2 + length
        if marker == 0xFFDB:
            while body:
                tables, body = tables + body[1:65], body[65:]
        if marker == 0xFFDA:
            break
    scan = data[position:-2]
    header = struct.pack(">I4B", 0, 1, 255, size[1] // 8, size[0] // 8)
    return header + struct.pack(">BBH", 0, 0, len(tables)) + tables + scan


def pictures_of_h264(count, size=(240, 320)):
    """Pictures of noise, a key frame every 25: each takes several packets, as those of all cameras do."""
    encoder = av.CodecContext.create("libx264", "w")
    encoder.height, encoder.width, encoder.pix_fmt, encoder.framerate = *size, "yuv420p", 25
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"tune": "zerolatency", "g": "25", "bf": "0", "sc_threshold": "0"}
    for number in range(count):
        noise = np.random.default_rng(number).integers(60, 120, (*size, 3)).astype(np.uint8)
        frame = av.VideoFrame.from_ndarray(noise, format="bgr24")
        frame.pts = number
        (packet,) = encoder.encode(frame)
        yield [one for one in re.split(b"\x00\x00\x00?\x01", bytes(packet)) if one]


def payloads_of_h264(units):
    """The units of a picture as RFC 6184 sends them: whole, or in fragments (FU-A)."""
    for unit in units:
        parts = [unit[1:][at : at + 1200] for at in range(0, len(unit) - 1, 1200)]
        if len(parts) == 1:
            yield unit
            continue
        for number, part in enumerate(parts):
            ends = (number == 0) << 7 | (number == len(parts) - 1) << 6
            yield bytes([unit[0] & 0xE0 | 28, ends | unit[0] & 31]) + part


class Camera:
    """Answers one connection after the other as its script says, and behind the last one no more.

    A script is a dict: `silent` (the stage at which it says no more), `count` (pictures before it closes the
    connection), `first` (the number of the first picture), `clock` (where its clock begins), `size`, `h264` (pictures of
    `pictures_of_h264`), `cut` (whether the last of them ends in its middle), `utc` (the time of its first picture, in a sender report behind `report` pictures), `loses` (which part of which picture is not
    sent, -1: all parts), `jumps` (seconds by which a second report, 25 pictures later, says more). With `tls`, a
    context of a server, it speaks RTSP over TLS. With `udp`, a socket, its pictures come from there.
    """

    def __init__(self, *scripts, tls=None, udp=None):
        self.scripts = list(scripts)
        self.udp = udp
        self._tls = tls
        self.connections = 0
        self.asked = []
        self.over, self.left = threading.Event(), threading.Event()
        self.is_playing = False
        self._open = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://127.0.0.1:{self._listening.getsockname()[1]}/door"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._listening.accept()
            if self.over.is_set():
                connection.close()
                return
            self._open.append(connection)
            script = [*self.scripts, {"silent": "DESCRIBE"}][: self.connections + 1][-1]
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection, script), daemon=True).start()

    def _answer(self, connection, script):
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._talk(connection, script)
        except OSError:
            pass
        finally:
            connection.close()

    def _talk(self, connection, script):
        silent = script.get("silent")
        if silent == "greeting":
            self.over.wait()
            return
        reader = connection.makefile("rb")
        while True:
            words = reader.readline().split()
            if not words:
                return
            headers = {}
            while (line := reader.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip().decode()
            method = words[0].decode()
            self.asked.append((method, words[1].decode()))
            if silent == method:
                self.over.wait()
                return
            self.is_playing = method == "PLAY"
            connection.sendall(self._reply(method, headers, "h264" in script))
            if method == "PLAY":
                break
        if silent == "pictures":
            reader.read()
            self.left.set()
            return
        self._play(connection, script)

    def _reply(self, method, headers, is_h264):
        more, body = "", ""
        if method == "OPTIONS":
            more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
        elif method == "DESCRIBE":
            body = (
                "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=door\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
                "m=video 0 RTP/AVP 26\r\na=control:track1\r\na=framerate:10\r\n"
            )
            if is_h264:
                form = "RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1"
                body = body.replace("RTP/AVP 26", form).replace(":10", ":25")
            body += "m=audio 0 RTP/AVP 0\r\na=control:track2\r\n"
            more = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
        elif method == "SETUP":
            way = self._udp(headers) if self.udp else "RTP/AVP/TCP;unicast;interleaved=0-1"
            more = f"Transport: {way}\r\nSession: 7\r\n"
        elif method == "PLAY":
            more = "Session: 7\r\n"
        return f"RTSP/1.0 200 OK\r\nCSeq: {headers[b'cseq']}\r\n{more}\r\n{body}".encode()

    def _udp(self, headers):
        """Take the ports of the player, and say that another host sends."""
        asked = headers[b"transport"]
        assert asked.startswith("RTP/AVP/UDP;unicast;")
        self._player = int(re.search(r"client_port=(\d+)", asked)[1])
        ours = self.udp.getsockname()[1]
        return f"RTP/AVP;unicast;source=127.0.0.2;server_port={ours}-{ours + 1};source=127.0.0.2,RTP/AVP"

    def _play(self, connection, script):
        if "h264" in script:
            self._play_h264(connection, script)
            return
        size, first = script.get("size", (48, 64)), script.get("first", 0)
        for number in range(script["count"]):
            stamp = (script.get("clock", 0) + 9000 * number) % 2**32
            head = struct.pack(">BBHII", 0x80, 0x80 | 26, number, stamp, 7)
            packet = head + payload(picture(first + number, size), size)
            if self.udp:
                self.udp.sendto(packet, ("127.0.0.1", self._player))
                continue
            connection.sendall(b"$\0" + struct.pack(">H", len(packet)) + packet)

    def _play_h264(self, connection, script):
        counter, first = itertools.count(100), script.get("clock", 0)
        for number, units in enumerate(script["h264"]):
            stamp = (first + 3600 * number) % 2**32
            later = number - script.get("report", 0)
            if "utc" in script and (later == 0 or (later == 25 and "jumps" in script)):
                said = script["utc"] + number / 25 + (later and script["jumps"])
                whole = round((said + 2_208_988_800) * 2**32)  # RFC 3550, 6.4.1
                report = struct.pack(">BBHI", 0x80, 200, 6, 7)
                report += struct.pack(">QIII", whole, stamp, number, 0)
                connection.sendall(b"$\1" + struct.pack(">H", len(report)) + report)
            parts = list(payloads_of_h264(units))
            is_cut = "cut" in script and number == len(script["h264"]) - 1
            lost = script.get("loses", {}).get(number)
            for at, part in enumerate(parts[: len(parts) // 2] if is_cut else parts):
                kind = 96 | (at == len(parts) - 1) << 7
                packet = struct.pack(">BBHII", 0x80, kind, next(counter), stamp, 7) + part
                if lost in (at, -1):
                    continue
                connection.sendall(b"$\0" + struct.pack(">H", len(packet)) + packet)

    def close(self):
        self.over.set()
        socket.create_connection(self._listening.getsockname()).close()
        self._thread.join()
        self._listening.close()
        for one in self._open:
            one.close()


@pytest.fixture
def camera():
    made = []

    def start(*scripts, **options):
        made.append(Camera(*scripts, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


class Event(headrace.Backend):
    """Writes an event for each frame."""

    def forward(self, batch):
        for request in batch:
            request["result"], request["events"] = request["data"], [{"type": "seen"}]


def runner(**options):
    chosen = {
        "network": ["127.0.0.1"],
        "frames": "every",
        "machine_clock": Quick(),
        "read_timeout": 60,
        **options,
    }
    return VideoRunner({"backend": "VisionNetwork", "max": 4}, **chosen)


def relays():
    return [one for one in threading.enumerate() if one.name == "headrace-vision-rtsp"]


def brightness(frames):
    return [round(float(frame.image.mean())) for frame in frames]


def test_a_camera_is_read_and_its_pictures_are_those_that_it_sent(camera):
    one = camera({"count": 12}, {"silent": "DESCRIBE", "count": 0})
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 12))
        status = r.status()["sources"]["door"]
    assert [f.frame for f in frames] == list(range(12))
    assert brightness(frames) == pytest.approx([20 + 10 * n for n in range(12)], abs=2)
    steps = np.diff([f.timestamp for f in frames])  # FFmpeg gives the first two pictures one time
    assert steps[1:] == pytest.approx(np.full(10, 0.1), abs=1e-3)
    assert status["live"]
    # It has sound as well, for which nobody asks.
    assert [url.rpartition("/")[2] for method, url in one.asked if method == "SETUP"] == ["track1"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_camera_that_is_silent_at_a_stage_is_lost_and_tried_again(camera, stage, caplog):
    silent = {"silent": stage, "count": 0}
    one = camera(silent, silent, *[{"count": 5}] * PATIENT)
    with caplog.at_level("WARNING", logger="headrace.vision"), runner(read_timeout=0.5) as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 5))
        status = r.status()["sources"]["door"]
    assert not relays()
    assert one.connections >= 3
    assert status["reconnects"] >= 2
    assert [f.frame for f in frames] == list(range(5))
    said = [record.getMessage() for record in caplog.records]
    assert "source door is lost" in said[0]
    attempts = re.fullmatch(r"source door is found after (\d+) attempts, \d+\.\d s", said[1])
    assert int(attempts[1]) >= 2  # a machine under load may be silent, too


def test_a_camera_that_dies_comes_back_with_another_clock_and_another_size(camera):
    one = camera(
        {"count": 6, "clock": 4_000_000_000},
        {"count": 6, "clock": 90_000, "first": 6, "size": (64, 96)},
        {"count": 6, "clock": 2_000_000_000, "first": 12},
    )
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 18))
    assert [f.frame for f in frames] == list(range(18))
    assert [f.image.shape[:2] for f in frames] == [(48, 64)] * 6 + [(64, 96)] * 6 + [(48, 64)] * 6
    assert [f.frame for f in frames if f.gap] == [6, 12]
    assert brightness(frames) == pytest.approx([20 + 10 * n for n in range(18)], abs=2)
    assert all(a.timestamp < b.timestamp for a, b in itertools.pairwise(frames))
    assert frames[-1].timestamp - frames[0].timestamp < 60


def test_the_time_goes_on_where_a_camera_is_joined_again_in_mid_air(camera):
    pictures = list(pictures_of_h264(50))
    assert all(len(list(payloads_of_h264(units))) > 3 for units in pictures)
    one = camera({"h264": pictures, "clock": 9000}, {"h264": pictures, "clock": 2_000_000_000})
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 90))
    assert next(f.frame for f in frames if f.gap) in (49, 50)  # the last one may be cut
    for before in (True, False):
        times = [f.timestamp for f in frames if (f.frame < 49) == before][2:]
        assert np.diff(times) == pytest.approx(np.full(len(times) - 1, 0.04), abs=1e-5)


def test_the_time_of_a_frame_is_that_of_the_sender_report_and_else_of_its_arrival(camera):
    pictures = list(pictures_of_h264(50))
    script = {"h264": pictures, "utc": 1_900_000_000.5, "report": 20}
    one = camera(script, {"h264": pictures})
    before = time.time()
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}, clock_tolerance_s=1e9), 90))
    after = time.time()
    told = [f for f in frames if f.time_from == "camera"]
    assert [f.frame for f in told] == list(range(told[0].frame, told[0].frame + len(told)))
    assert told[0].frame in (19, 20, 21)
    assert len(told) >= 28
    for frame in told:
        assert frame.time == pytest.approx(1_900_000_000.5 + frame.frame / 25, abs=1e-3)
        assert frame.request["context"]["time"] == frame.time
    for frame in frames:
        if frame not in told:  # before the report, and behind the gap
            assert (frame.time_from, before <= frame.time <= after) == ("arrival", True)


def test_a_clock_that_is_far_from_the_arrival_is_not_believed_until_it_is_right(
    camera, tmp_path, caplog
):
    """A camera says that it is 2000, then the time of day. Each frame has an event, whose time the video is called by."""
    headrace.register("VisionEvent", Event, replace=True)
    now, year_2000 = time.time(), 946_684_800.0
    script = {"h264": list(pictures_of_h264(80)), "utc": year_2000, "jumps": now - year_2000}
    one, sink = camera(script), SaveVideo(tmp_path, every_s=600)
    with (
        caplog.at_level("WARNING", logger="headrace.vision"),
        runner(sinks=[sink], ordered="VisionEvent") as r,
    ):
        frames = list(itertools.islice(r.run({"door": one.url}), 79))
    after = time.time()
    asked = [f.frame for f in frames if f.time_from == "camera"]
    assert asked == list(range(asked[0], 79))
    assert 20 <= asked[0] <= 30
    for frame in frames:
        assert now - 1 <= frame.time <= after + 5
        assert [event["time"] for event in frame.request["events"]] == [frame.time]
    names = [time.strftime("door-%Y%m%d-%H%M%S.mp4", time.gmtime(frames[0].time))]
    assert [path.name for path in tmp_path.glob("*.mp4")] == names
    said = [one.getMessage() for one in caplog.records if "the clock of" in one.getMessage()]
    assert len(said) == 2
    assert re.fullmatch(
        r"the clock of source door is -\d{9} s off: its frames have the time of their arrival",
        said[0],
    )
    assert said[1] == "the clock of source door is right again"


def test_a_picture_of_which_a_part_is_missing_is_no_frame(camera):
    made = list(pictures_of_h264(20))
    one = camera({"h264": made[:10], "cut": True}, {"h264": made[:10]})
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 18))
        status = r.status()["sources"]["door"]
    assert [f.gap for f in frames] == [number == 9 for number in range(18)]
    assert status["damaged_packets"] == 1
    own = [b"".join(b"\0\0\0\1" + unit for unit in units) for units in made[:10]]
    decoder = av.CodecContext.create("h264", "r")
    decoded = [one for data in own for one in decoder.decode(av.Packet(data))]
    for number, frame in enumerate(frames):
        whole = decoded[number % 9].to_ndarray(format="bgr24")
        assert np.abs(frame.image.astype(int) - whole).max() < 8


@pytest.mark.parametrize("part", [-1, 2])
@pytest.mark.parametrize("skips", [False, True])
def test_pictures_behind_a_lost_one_are_marked_up_to_the_next_key_frame(camera, part, skips):
    """Pictures 0, 25 and 50 are key frames. Of the 35th a part is missing, or all of it."""
    made = list(pictures_of_h264(75))
    one = camera({"h264": made, "loses": {35: part}})
    with runner(skip_damaged=skips) as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 59 if skips else 73))
    numbers = [round(25 * (f.timestamp - frames[0].timestamp)) for f in frames]
    behind = list(range(36, 50))
    assert [n for n in range(74) if n not in numbers] == ([35, *behind] if skips else [35])
    marked = [n for n, f in zip(numbers, frames, strict=True) if f.damaged]
    assert marked == ([] if skips else behind)
    gaps = [n for n, f in zip(numbers, frames, strict=True) if f.gap]
    assert gaps == ([50] if skips else [*behind, 50])
    assert [f.request["context"]["damaged"] for f in frames] == [f.damaged for f in frames]


def test_a_camera_without_a_clock_of_the_day_is_not_believed(camera):
    one = camera({"h264": list(pictures_of_h264(30)), "utc": -2_208_988_800.0})  # NTP 0
    before = time.time()
    with runner() as r:
        frames = list(itertools.islice(r.run({"door": one.url}), 28))
    assert all(f.time_from == "arrival" and f.time >= before for f in frames)


def test_a_password_in_an_address_is_in_no_name_and_in_no_message(camera, caplog):
    one = camera({"silent": "DESCRIBE", "count": 0}, *[{"count": 3}] * PATIENT)
    url = one.url.replace("rtsp://", "rtsp://me:secret@")
    with caplog.at_level("WARNING", logger="headrace.vision"), runner(read_timeout=0.5) as r:
        frames = list(itertools.islice(r.run(url), 3))
        status = r.status()["sources"]
    assert {f.source for f in frames} == {one.url} == set(status)
    assert "secret" not in caplog.text
    assert "secret" not in str(status)


@pytest.fixture
def certificate(tmp_path):
    """A certificate of this machine that nobody has signed, and a context of a server that has it."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=door", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run(
        [program, "req", "-x509", *curve, *names, *files], check=True, capture_output=True
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return certificate, tls


@pytest.mark.parametrize("trusted", [True, False])
def test_the_certificate_of_a_camera_is_checked(camera, certificate, monkeypatch, trusted):
    path, tls = certificate
    one = camera({"count": 6}, tls=tls)
    url = one.url.replace("rtsp://", "rtsps://")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", path)
        with runner() as r:
            frames = list(itertools.islice(r.run(url), 6))
        assert not relays()
        assert brightness(frames) == pytest.approx([20 + 10 * n for n in range(6)], abs=2)
        return
    lost, clock = threading.Event(), Quick()

    def wait(stop, seconds):
        lost.set()
        return stop.wait()

    clock.wait = wait
    with runner(machine_clock=clock) as r:
        handle = r.add({"door": url})
        assert lost.wait(60)
        status = handle.status()["sources"]["door"]
        handle.stop()
    assert "certificate verify failed" in status["error"]
    assert status["read"] == 0


def test_a_connection_that_is_ended_just_before_it_is_waited_for_wakes(
    camera, certificate, monkeypatch
):
    path, tls = certificate
    one = camera({"silent": "pictures"}, tls=tls)
    monkeypatch.setenv("SSL_CERT_FILE", path)
    waits = threading.Event()

    class Late(selectors.DefaultSelector):
        def select(self, timeout=None):
            if found := super().select(0):
                return found
            if one.is_playing:
                waits.set()
                one.left.wait()
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Late)
    with runner() as r:
        handle = r.add({"door": one.url.replace("rtsp://", "rtsps://")})
        assert waits.wait(60)
        handle.stop()
    assert not relays()


def test_what_has_no_end_refuses_options_that_are_about_it(camera):
    one = camera({"count": 5})
    with runner() as r:
        (frame,) = r.run({"door": one.url}, stop=3)
        status = r.status()["sources"]["door"]
    assert "stop is for what has a beginning and an end" in str(frame.error)
    assert status["state"] == "failed"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has 127.0.0.1 alone")
def test_pictures_come_over_udp_and_what_is_answered_goes_to_the_camera_alone(camera):
    with (
        socket.socket(type=socket.SOCK_DGRAM) as own,
        socket.socket(type=socket.SOCK_DGRAM) as other,
    ):
        own.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.2", own.getsockname()[1]))
        one = camera({"count": 12}, udp=own)
        with runner() as r:
            frames = list(
                itertools.islice(r.run({"door": one.url}, ffmpeg={"rtsp_transport": "udp"}), 11)
            )
        assert brightness(frames) == pytest.approx([20 + 10 * n for n in range(11)], abs=2)
        own.settimeout(60)
        assert own.recv(2048)  # FFmpeg opens the way through a firewall
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(2048)


def test_a_transport_is_for_rtsp_and_one_of_two(camera):
    one = camera({"count": 5})
    with runner() as r:
        with pytest.raises(ValueError, match='"tcp" or "udp", not \'http\''):
            r.run(one.url, ffmpeg={"rtsp_transport": "http"})
        address = one.url.replace("rtsp://", "http://")
        (frame,) = r.run({"door": address}, ffmpeg={"rtsp_transport": "udp"})
        assert "rtsp_transport is for RTSP" in str(frame.error)
        frames = list(itertools.islice(r.run({"a": one.url}, ffmpeg={"rtsp_transport": "tcp"}), 5))
    assert len(frames) == 5


def test_a_copy_of_a_camera_begins_a_file_at_each_connection(camera, tmp_path):
    one = camera({"count": 6}, {"count": 6, "size": (64, 96)}, {"count": 6})
    sink = SaveVideo(tmp_path, codec="copy")
    with runner(sinks=[sink]) as r:
        list(itertools.islice(r.run({"door": one.url}), 18))
    found = {}
    for path in tmp_path.glob("*.mp4*"):
        with av.open(str(path)) as container:
            found[path.name] = [f.to_ndarray(format="bgr24").shape for f in container.decode()]
    expected = {
        "door.mp4": [(48, 64, 3)] * 6,
        "door-part2.mp4": [(64, 96, 3)] * 6,
        "door-part3.mp4": [(48, 64, 3)] * 6,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_connection_without_a_picture_holds_up_no_copy(camera, tmp_path):
    whole, cut = list(pictures_of_h264(6)), list(pictures_of_h264(1))
    silent = {"silent": "DESCRIBE", "count": 0}
    one = camera({"h264": whole}, {"h264": cut, "cut": True}, {"h264": whole}, silent)
    sink = SaveVideo(tmp_path, codec="copy")
    with runner(sinks=[sink]) as r:
        list(itertools.islice(r.run({"door": one.url}), 12))
        status = r.status()["sinks"]["SaveVideo"]
    found = {}
    for path in tmp_path.glob("*.mp4*"):
        with av.open(str(path)) as container:
            found[path.name] = sum(1 for _ in container.decode(video=0))
    assert (found["door.mp4"], found["door-part2.mp4"]) == (6, 6)
    assert status["lost_packets"] == 1
