"""Videos of which a part was lost: each wrong picture is marked, by the pictures of the whole video."""

from __future__ import annotations

import io

import av
import cv2
import numpy as np
import pytest

from headrace_vision import VideoRunner

CODECS = {
    "H.264": ("libx264", {"bf": "0", "tune": "zerolatency", "x264-params": "scenecut=0"}),
    "H.264 with B frames": ("libx264", {"x264-params": "scenecut=0:bframes=2"}),
    "HEVC": ("libx265", {"x265-params": "keyint=40:min-keyint=40:scenecut=0:log-level=none"}),
    "MPEG-2": ("mpeg2video", {}),
}
COUNT, KEYS = 80, 40
PACKET_BYTES = 188
"""Of MPEG-TS."""


@pytest.fixture(scope="module", params=CODECS)
def video(request):
    """A texture that moves, in MPEG-TS, with a key frame each 40 pictures."""
    codec, options = CODECS[request.param]
    small = np.random.default_rng(0).integers(20, 150, (30, 40), np.uint8)
    texture = cv2.cvtColor(
        cv2.resize(small, (160, 120), interpolation=cv2.INTER_CUBIC), cv2.COLOR_GRAY2BGR
    )
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream(codec, rate=10, options={"g": str(KEYS), **options})
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for number in range(COUNT):
            image = np.ascontiguousarray(np.roll(texture, 3 * number, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode())
    return file.getvalue()


def without_picture(data, number):
    """The video without one of its pictures, in the order of decoding."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as whole, av.open(file, "w", format="mpegts") as made:
        stream = made.add_stream_from_template(whole.streams.video[0])
        packets = [one for one in whole.demux(video=0) if one.dts is not None]
        for packet in packets[:number] + packets[number + 1 :]:
            packet.stream = stream
            made.mux(packet)
    return file.getvalue()


def without_packet(data, part):
    """The video without a packet of 188 bytes, which belongs to a picture (the identifier 0x100)."""
    places = range(0, len(data), PACKET_BYTES)
    pictures = [at for at in places if data[at + 1] & 31 == 1 and data[at + 2] == 0]
    at = pictures[int(part * len(pictures))]
    return data[:at] + data[at + PACKET_BYTES :]


LOSSES = {
    "nothing": lambda data: data,
    "a picture": lambda data: without_picture(data, 18),
    "a packet": lambda data: without_packet(data, 0.3),
    "the next packet": lambda data: without_packet(data, 0.31),
}


def read(tmp_path, data, **options):
    """The frames of a video, by their number, and how many pictures counted as damaged."""
    (tmp_path / "cut.ts").write_bytes(data)
    with VideoRunner({"backend": "Identity"}) as runner:
        frames = {
            round(10 * f.timestamp): f for f in runner.run(str(tmp_path / "cut.ts"), **options)
        }
    (status,) = runner.status()["sources"].values()
    return frames, status["damaged_packets"]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_wrong_picture_is_marked_or_left_out(video, tmp_path, loss, threads):
    whole, _ = read(tmp_path, video)
    assert len(whole) == COUNT

    def is_wrong(number, frame):
        away = np.abs(frame.image.astype(int) - whole[number].image).max(-1)
        return (away > 24).mean() > 0.005

    options = {"ffmpeg": {"threads": threads}}
    frames, count = read(tmp_path, LOSSES[loss](video), **options)
    marked = [number for number, frame in frames.items() if frame.damaged]
    assert [n for n, frame in frames.items() if is_wrong(n, frame) and n not in marked] == []
    lost = [number for number in whole if number not in frames]
    assert bool(marked or lost) == (loss != "nothing")
    # Up to the next key frame, which B frames may precede, and no longer.
    assert all(number < KEYS + 3 for number in [*marked, *lost])
    assert all(frames[number].gap for number in marked)
    behind = [number for number in frames if number > max([*marked, *lost], default=2 * COUNT)]
    assert [frames[number].gap for number in behind] == [n == 0 for n in range(len(behind))]
    rest, skipped = read(tmp_path, LOSSES[loss](video), skip_damaged=True, **options)
    assert sorted([*rest, *marked]) == sorted(frames)
    assert skipped == count + len(marked)
