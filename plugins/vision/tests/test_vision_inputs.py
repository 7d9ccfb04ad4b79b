"""Every kind of input, told by its content, and what is refused."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import re
import struct
import sys
import threading
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from quick_clock import Quick

from headrace.errors import InputError, code_of
from headrace_vision import Clock, Sink, SourceOptions, VideoRunner
from headrace_vision.reading import timing, video_files

ECHO = {"backend": "Identity"}


@pytest.fixture
def runner():
    with VideoRunner({"backend": "VisionNetwork", "max": 4}) as made:
        yield made


def found(frames):
    by_source = {}
    for frame in frames:
        by_source.setdefault(frame.source, []).append(frame)
    return by_source


def test_bytes_arrays_images_and_file_objects_are_stills(runner, kit):
    image = kit.picture(3)
    data = kit.encoded(image)
    pillow = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    frames = list(runner.run([data, image, pillow, io.BytesIO(data), image[..., 0]]))
    assert [frame.frame for frame in frames] == [0, 1, 2, 3, 4]
    for frame in frames[:4]:
        np.testing.assert_array_equal(frame.image, image)
        np.testing.assert_array_equal(frame.result, kit.network(image))
    np.testing.assert_array_equal(frames[4].image, np.repeat(image[..., :1], 3, 2))


def test_one_file_object_is_read_once_and_one_of_text_is_refused(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=5)
    with (tmp_path / "v.mp4").open("rb") as file:
        assert len(list(runner.run(file))) == 5
    with (tmp_path / "v.mp4").open("rb") as file:
        assert len(list(runner.run({"door": file}, stride=2))) == 3
    assert len(list(runner.run(io.BytesIO(kit.encoded(kit.picture(1)))))) == 1
    assert len(list(itertools.islice(runner.run((tmp_path / "v.mp4").read_bytes(), loop=True), 12)))
    with pytest.raises(InputError, match="gives text"):
        runner.run(io.StringIO(video))


def test_a_folder_is_read_in_natural_order_and_its_stills_are_one_source(runner, kit, tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"frame{number}.png").write_bytes(kit.encoded(kit.picture(number)))
    for x in (tmp_path, str(tmp_path / "*.png")):
        frames = list(runner.run(x))
        assert {frame.source for frame in frames} == {Path(x).name}
        names = [frame.path.rpartition("/")[2] for frame in frames]
        assert names == ["frame1.png", "frame9.png", "frame10.png"]
        assert [frame.timestamp for frame in frames] == pytest.approx([0, 0.04, 0.08])


def test_a_folder_as_people_have_it_has_its_pictures_and_nothing_else(kit, tmp_path):
    pytest.importorskip("headrace_cv")
    for name in ("a.bmp", "b.tif", "c.png"):
        assert cv2.imwrite(str(tmp_path / name), kit.picture(3))
    (tmp_path / "d.txt").write_bytes(kit.encoded(kit.picture(4)))  # content tells, not the name
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n1 0.4 0.4 0.1 0.1\n")
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "README.md").write_text("# about\n")
    (tmp_path / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(100))
    with VideoRunner({"backend": "Identity"}) as runner:
        for x in (tmp_path, str(tmp_path / "*")):
            frames = list(runner.run(x))
            names = [f.path.rpartition("/")[2] for f in frames]
            assert names == ["a.bmp", "b.tif", "c.png", "d.txt"]
            for frame in frames:
                np.testing.assert_array_equal(frame.image, cv2.imread(frame.path))
        status = runner.status()
    assert len(status["sources"]) == 2
    assert status["passed_by"] == 8


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of Unix")
@pytest.mark.parametrize("pattern", ["*", "*.png", "**/*", "[0-9*]*", None])
def test_what_is_no_file_is_passed_by_and_told(kit, tmp_path, caplog, pattern):
    for number in (1, 5):
        (tmp_path / f"{number}.png").write_bytes(kit.encoded(kit.picture(number)))
    (tmp_path / "2.png").symlink_to("nowhere.png")
    (tmp_path / "3.png").symlink_to("3.png")
    os.mkfifo(tmp_path / "4.png")
    (tmp_path / "*.png").symlink_to("nowhere")  # whose name is a pattern
    x = str(tmp_path / pattern) if pattern else tmp_path
    with caplog.at_level(logging.WARNING, "headrace.vision"), VideoRunner(ECHO) as runner:
        frames = list(runner.run(x))
        status = runner.status()
    assert [(f.error, f.image[0, 0, 0]) for f in frames] == [(None, 28), (None, 60)]
    assert status["passed_by"] == 4
    said = sorted(one.getMessage() for one in caplog.records)
    names = ["*.png", "2.png", "3.png", "4.png"]
    end = "is no file that can be read, and is passed by"
    assert said == [f"{tmp_path / name} {end}" for name in names]


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of Unix")
def test_what_is_no_file_is_refused_where_it_is_named_and_no_hint_repeats_it(tmp_path):
    (tmp_path / "dead.png").symlink_to("nowhere")
    (tmp_path / "self.png").symlink_to("self.png")
    os.mkfifo(tmp_path / "pipe.png")
    expected = {"dead": "leads nowhere", "self": "leads nowhere", "pipe": "no regular file"}
    with VideoRunner(ECHO) as runner:
        for name, said in expected.items():
            with pytest.raises(InputError, match=said) as caught:
                runner.run(str(tmp_path / f"{name}.png"))
            assert "Did you mean" not in str(caught.value)
        with pytest.raises(InputError, match=r"Did you mean '.*/pipe\.png'"):
            runner.run(str(tmp_path / "pipes.png"))
        (tmp_path / "list.txt").write_text("dead.png\n")
        (frame,) = runner.run(str(tmp_path / "list.txt"))
        assert "this link leads nowhere" in str(frame.error)


def test_content_and_not_the_name_tells_what_a_file_is(runner, kit, tmp_path):
    video = tmp_path / "really_a_video.jpg"
    made = kit.render(tmp_path / "v.mp4", count=5)
    video.write_bytes((tmp_path / "v.mp4").read_bytes())
    assert len(list(runner.run(str(video)))) == len(kit.plain_loop(made)) == 5
    text = tmp_path / "text.mp4"
    text.write_text("this is no video " * 100)
    (failed,) = runner.run(str(text))
    assert isinstance(failed.error, InputError)
    assert failed.image is None
    (tmp_path / "empty.mp4").write_bytes(b"")
    (failed,) = runner.run(str(tmp_path / "empty.mp4"))
    assert isinstance(failed.error, InputError)
    counts = runner.status()["sources"][text.name]
    assert (counts["read"], counts["failed"], counts["state"]) == (1, 1, "failed")


def test_a_gif_and_an_animated_webp_have_all_their_frames(runner, kit, tmp_path):
    gif = kit.render(tmp_path / "a.gif", count=4, codec="gif")
    assert len(list(runner.run(gif))) == 4
    images = [Image.fromarray(kit.picture(n)[..., ::-1].copy()) for n in range(3)]
    webp = tmp_path / "a.webp"
    images[0].save(webp, save_all=True, append_images=images[1:], duration=100, lossless=True)
    frames = list(runner.run(str(webp)))
    assert [f.timestamp for f in frames] == pytest.approx([0, 0.1, 0.2])
    for number, frame in enumerate(frames):
        np.testing.assert_array_equal(frame.image, kit.picture(number))
    (tmp_path / "still.webp").write_bytes(kit.encoded(kit.picture(1), ".webp"))
    assert len(list(runner.run(str(tmp_path / "still.webp")))) == 1


def test_a_text_file_lists_inputs_from_its_own_folder(runner, kit, tmp_path):
    kit.render(tmp_path / "v.mp4", count=3)
    (tmp_path / "s.png").write_bytes(kit.encoded(kit.picture(1)))
    listed = tmp_path / "inputs.txt"
    listed.write_bytes(b"\xef\xbb\xbf# mine\r\nv.mp4\r\n\r\ns.png\r\nnowhere.mp4")
    by_source = found(runner.run(str(listed)))
    assert len(by_source["v.mp4"]) == 3
    still, missing = by_source[listed.name]
    assert still.error is None
    assert "no such file" in str(missing.error)


def test_a_list_of_inputs_with_a_mark_alone_in_front_names_its_first_line(runner, kit, tmp_path):
    (tmp_path / "s.png").write_bytes(kit.encoded(kit.picture(1)))
    (tmp_path / "inputs.txt").write_bytes(b"\xef\xbb\xbfs.png\n")
    (frame,) = runner.run(str(tmp_path / "inputs.txt"))
    np.testing.assert_array_equal(frame.image, kit.picture(1))
    (tmp_path / "inputs.txt").write_bytes(b"s.png\n\xff.png\n")
    (frame,) = runner.run(str(tmp_path / "inputs.txt"))
    assert "inputs.txt:2: " in str(frame.error)


def test_names_are_those_of_the_mapping_and_equal_names_get_a_number(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=3)
    by_source = found(runner.run({"door": video, "yard": [kit.picture(1)], "list": [video, video]}))
    assert set(by_source) == {"door", "yard", "v.mp4", "v.mp4#2"}


def test_an_endless_generator_is_read_only_as_far_as_frames_are_taken(runner, kit):
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield kit.picture(number)

    taken = list(itertools.islice(runner.run(endless()), 20))
    assert [frame.frame for frame in taken] == list(range(20))
    assert len(read) <= 20 + 4 + 1


def test_a_generator_that_raises_ends_with_a_failed_frame(runner, kit):
    def broken():
        yield kit.picture(0)
        raise RuntimeError("the cable is cut")

    first, last = runner.run(broken())
    assert first.error is None
    assert "the cable is cut" in str(last.error)


def test_one_wrong_item_of_a_generator_fails_alone(runner, kit):
    frames = list(runner.run(iter([kit.picture(0), 7.5, b"no picture", kit.picture(1)])))
    by_outcome = [frame.error is None for frame in frames if frame.source == "input"]
    assert by_outcome == [True, False, True]
    assert len(frames) == 4


def test_what_is_no_input_is_refused_before_anything_is_read(runner, tmp_path):
    (tmp_path / "street.mp4").write_bytes(b"x")
    with pytest.raises(InputError, match=r"Did you mean .*street\.mp4"):
        runner.run(str(tmp_path / "stret.mp4"))
    with pytest.raises(InputError, match="this is no input"):
        runner.run(7.5)
    with pytest.raises(InputError, match="no such file"):
        runner.run(["nowhere.mp4"])
    with pytest.raises(TypeError, match="Did you mean 'stride'"):
        runner.run([], strides=2)
    with pytest.raises(ValueError, match="stop = 1"):
        runner.run([], start=2, stop=1)
    with pytest.raises(ValueError, match="loop: Input should be true or false"):
        runner.run([], loop="yes")


@pytest.mark.parametrize("scheme", ["rtsp", "rtmp", "http", "https"])
def test_an_address_is_opened_only_if_its_host_is_listed(scheme):
    address = f"{scheme}://camera.example/stream"
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        with pytest.raises(InputError, match=r"host 'camera\.example' is not allowed"):
            runner.run(address)
        with pytest.raises(InputError, match=r"not allowed"):
            runner.run({"door": [address]})
    with VideoRunner({"backend": "VisionNetwork"}, network=["other.example"]) as runner:
        with pytest.raises(InputError, match="not allowed"):
            runner.run(address)
        with pytest.raises(InputError, match="kind of address"):
            runner.run("concat://other.example/a")
        with pytest.raises(InputError, match="not allowed"):
            runner.run("http://other.example@camera.example/")
    with VideoRunner({"backend": "VisionNetwork"}, network=["camera.example"]) as runner:
        runner.run(address)


def test_a_list_in_a_file_opens_no_other_file(runner, kit, tmp_path):
    kit.render(tmp_path / "v.mp4", count=3)
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"ffconcat version 1.0\nfile {tmp_path}/v.mp4\n")
    (frame,) = runner.run(str(playlist))
    assert isinstance(frame.error, InputError)


def test_start_and_stop_choose_a_part_of_a_video(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=20, rate=10)
    expected = [(i, t) for i, t in kit.plain_loop(video) if 0.75 <= t < 1.55]
    frames = list(runner.run(video, start=0.75, stop=1.55))
    assert [f.timestamp for f in frames] == [t for _, t in expected]
    for frame, (image, _) in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)


def test_a_part_of_a_stream_begins_between_its_key_frames(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.ts", count=40, rate=25)
    times = [time_s for _, time_s in kit.plain_loop(video)]
    part = list(runner.run(video, start=times[13] - 0.01, stop=times[30] - 0.01))
    expected = kit.plain_loop(video)[13:30]
    assert len(part) == len(expected)
    for frame, (image, _) in zip(part, expected, strict=True):
        np.testing.assert_array_equal(frame.image, image)


def test_thinned_frames_are_counted_in_the_numbers(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=20, rate=10)
    assert [f.frame for f in runner.run(video, stride=6)] == [0, 6, 12, 18]
    counts = runner.status()["sources"][Path(video).name]
    assert (counts["read"], counts["delivered"], counts["dropped"]) == (20, 4, 0)
    assert counts["thinned"] == 16
    assert [f.frame for f in runner.run(video, max_fps=2.5)] == [0, 4, 8, 12, 16]


def test_a_file_that_is_repeated_goes_on_in_time_and_says_where_it_began_again(
    runner, kit, tmp_path
):
    video = kit.render(tmp_path / "v.mp4", count=5, rate=10)
    frames = list(itertools.islice(runner.run(video, loop=True), 12))
    assert [f.frame for f in frames] == list(range(12))
    assert [f.timestamp for f in frames] == pytest.approx([n / 10 for n in range(12)])
    assert [f.frame for f in frames if f.gap] == [5, 10]


def test_stills_have_a_beginning_an_end_and_a_speed_as_videos_have(runner, kit, tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(kit.encoded(kit.picture(number)))
    pictures = [kit.picture(number) for number in range(6)]
    for x in (tmp_path, str(tmp_path / "*.png"), {"a": pictures}, itertools.cycle(pictures)):
        part = list(runner.run(x, image_fps=10, start=0.15, stop=0.45))
        assert [f.timestamp for f in part] == pytest.approx([0.2, 0.3, 0.4])
        assert [int(f.image[0, 0, 0]) for f in part] == [
            int(kit.picture(n)[0, 0, 0]) for n in (2, 3, 4)
        ]
    for x in (tmp_path, pictures):
        frames = list(itertools.islice(runner.run(x, image_fps=10, loop=True), 15))
        assert [f.timestamp for f in frames] == pytest.approx([n / 10 for n in range(15)])
        assert [f.frame for f in frames if f.gap] == [6, 12]
        assert int(frames[8].image[0, 0, 0]) == int(kit.picture(2)[0, 0, 0])
    assert len(list(runner.run(iter(pictures), loop=True))) == 6
    assert list(runner.run([], loop=True)) == []


def test_stills_are_given_no_faster_than_they_play(kit):
    clock = Quick(100.0)
    with VideoRunner({"backend": "VisionNetwork"}, machine_clock=clock) as runner:
        pictures = [kit.picture(n) for n in range(6)]
        frames = list(runner.run(pictures, realtime=True, frames="every", image_fps=10))
    assert len(frames) == 6
    assert clock.time == pytest.approx(100.5)


def test_damaged_packets_are_counted_and_the_others_are_read(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.mkv", count=60, rate=10, codec="mpeg4")
    data = bytearray((tmp_path / "v.mkv").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    (tmp_path / "v.mkv").write_bytes(data)
    frames = list(runner.run(video))
    assert 10 < len(frames) <= 61
    assert all(a.timestamp < b.timestamp for a, b in itertools.pairwise(frames))
    counts = runner.status()["sources"][Path(video).name]
    assert counts["read"] == counts["delivered"] + counts["failed"] == len(frames)


def spoil(path, first, last):
    """Overwrite the packets of a video from one number up to another."""
    with av.open(str(path)) as container:
        packets = [(one.pos, one.size) for one in container.demux(video=0) if one.size]
    data = bytearray(path.read_bytes())
    for position, size in packets[first:last]:
        begin = data.index(b"\xff\xd8", position)
        data[begin : begin + size - 8] = bytes(size - 8)
    path.write_bytes(data)


@pytest.mark.parametrize("count", [99, 100])
def test_a_hundred_damaged_packets_in_a_row_lose_a_source(runner, kit, tmp_path, count):
    path = tmp_path / "v.avi"
    kit.render(path, count=130, rate=25, codec="mjpeg")
    spoil(path, 10, 10 + count)
    frames = list(runner.run(str(path)))
    status = runner.status()["sources"][path.name]
    assert status["damaged_packets"] == count
    if count < 100:
        assert len(frames) == 130 - count
        assert all(f.error is None for f in frames)
        assert [f.frame for f in frames if f.gap] == [10]
    else:
        assert len(frames) == 11
        assert "100 packets in a row are damaged" in str(frames[-1].error)
        assert status["state"] == "failed"


def test_a_video_that_is_cut_ends_early_without_harm_to_others(runner, kit, tmp_path):
    whole = kit.render(tmp_path / "whole.mp4", count=10)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes((tmp_path / "whole.mp4").read_bytes()[:700])
    by_source = found(runner.run([whole, str(cut)]))
    assert len(by_source[Path(whole).name]) == 10
    assert by_source[cut.name][-1].error is not None


def cut_in_index(kit, folder):
    """Cut an MP4 inside its index so that FFmpeg opens it, and finds no frame in it."""
    video = Path(kit.render(folder / "whole.mp4", count=40))
    data, cut = video.read_bytes(), folder / "cut.mp4"
    for size in range(len(data) - 1, data.rindex(b"moov"), -1):
        cut.write_bytes(data[:size])
        with contextlib.suppress(av.FFmpegError), av.open(str(cut)) as container:
            if container.streams.video and not list(container.decode(video=0)):
                return cut
    raise AssertionError("FFmpeg opens no cut without a frame")


def damaged_animation(kit, folder):
    """Write an animated PNG whose pictures are zeros."""
    path = folder / "damaged.png"
    pictures = [Image.fromarray(kit.picture(n)) for n in range(3)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:])
    data = path.read_bytes()
    for match in re.finditer(rb"IDAT|fdAT", data):
        size = int.from_bytes(data[match.start() - 4 : match.start()], "big")
        data = data[: match.end() + 4] + bytes(size - 4) + data[match.end() + size :]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("make", [cut_in_index, damaged_animation])
@pytest.mark.parametrize("options", [{}, {"start": 0.1}, {"loop": True}, {"realtime": True}])
def test_a_video_without_a_frame_is_one_failed_frame(runner, kit, tmp_path, make, options):
    path = str(make(kit, tmp_path))
    (frame,) = runner.run(path, **options)
    assert "the video has no frame" in str(frame.error)
    assert code_of(frame.error) == "input"
    status = runner.status()["sources"][Path(path).name]
    assert (status["state"], status["read"], status["failed"]) == ("failed", 1, 1)
    (frame,) = runner.run(Path(path).read_bytes(), **options)
    assert "the video has no frame" in str(frame.error)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "gif"])
def test_a_part_behind_the_end_of_a_video_is_empty(runner, kit, tmp_path, suffix):
    path = str(tmp_path / f"v.{suffix}")
    if suffix == "gif":
        pictures = [Image.fromarray(kit.picture(n)) for n in range(3)]
        pictures[0].save(path, save_all=True, append_images=pictures[1:])
    else:
        kit.render(path, count=5, rate=10)
    assert list(runner.run(path, start=100.0)) == []
    assert runner.status()["sources"][Path(path).name]["state"] == "ended"


def faststart(source, target):
    """Write a video again with its index at the beginning, so that what is cut off are pictures."""
    options = {"movflags": "+faststart"}
    with av.open(source) as into, av.open(str(target), "w", options=options) as out:
        stream = out.add_stream_from_template(into.streams.video[0])
        for packet in into.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_of_a_video_that_is_cut_in_its_midst_the_frames_before_are_read(
    runner, kit, tmp_path, suffix
):
    whole, cut = tmp_path / f"whole.{suffix}", tmp_path / f"cut.{suffix}"
    if suffix == "mp4":
        faststart(kit.render(tmp_path / "v.mp4", count=60, rate=10, size=(240, 320)), whole)
    else:
        kit.render(whole, count=60, rate=10, size=(240, 320))
    data = whole.read_bytes()
    cut.write_bytes(data[: len(data) * 2 // 3])
    by_source = found(runner.run([str(whole), str(cut)]))
    expected = kit.plain_loop(whole)
    assert len(by_source[whole.name]) == len(expected) == 60
    frames = [one for one in by_source[cut.name] if one.error is None]
    assert 20 < len(frames) < 60
    for frame, (image, time_s) in list(zip(frames, expected, strict=False))[:20]:
        assert frame.timestamp == time_s
        np.testing.assert_array_equal(frame.image, image)


def test_a_video_of_a_variable_rate_has_the_times_of_its_frames(runner, kit, tmp_path):
    times = [0, 40, 45, 300, 310, 700, 1000, 5000]
    video = kit.render(tmp_path / "v.mp4", count=len(times), times=times)
    frames = list(runner.run(video))
    assert [f.timestamp for f in frames] == [time_s for _, time_s in kit.plain_loop(video)]
    assert [f.timestamp for f in frames] == pytest.approx([t / 1000 for t in times], abs=1e-3)
    assert [f.frame for f in frames] == list(range(len(times)))
    kept = [
        f.timestamp for f in runner.run(video, max_fps=4)
    ]  # of the time of the video, not its number
    assert kept == pytest.approx([0, 0.3, 0.7, 1.0, 5.0], abs=1e-3)


def opencv_times(path):
    """The times of the frames as OpenCV says them, in seconds; it says 0 for the last ones of a file."""
    reader, times = cv2.VideoCapture(path), []
    while reader.grab():
        times.append(reader.get(cv2.CAP_PROP_POS_MSEC) / 1000)
    reader.release()
    while times[-1] == 0:
        times.pop()
    return times


def test_presentation_times_that_go_back_give_way_to_decoding_times(runner, kit, tmp_path):
    video = kit.render(tmp_path / "v.avi", count=60)  # this format has no presentation times
    said = [time_s for _, time_s in kit.plain_loop(video)]
    assert any(b < a for a, b in itertools.pairwise(said))
    frames = list(runner.run(video))
    steps = np.diff([f.timestamp for f in frames])
    wanted = opencv_times(video)
    assert [f.timestamp for f in frames][: len(wanted)] == pytest.approx(wanted, abs=1e-5)
    np.testing.assert_allclose(steps, 0.1, atol=1e-5)
    assert [f.frame for f in frames if f.gap] == []
    first = frames[0].timestamp
    (begun, *_) = runner.run(video, start=first + 1.95)
    assert begun.timestamp == pytest.approx(first + 2)
    assert [f.frame for f in runner.run(video, max_fps=5)] == list(range(0, 60, 2))
    as_said = [f.timestamp for f in runner.run(video, clock="pts")]
    assert any(b - a < 1e-3 for a, b in itertools.pairwise(as_said))


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_picture_whose_times_go_back_turns_to_decoding_times_without_a_jump(is_delayed):
    times = timing.PictureTimes(None, 0.1, lambda: 0.0)
    pts = [0, 1, 2, 4, 3, 5, 7, 6, 8]
    stamps = [
        times.stamp(
            SimpleNamespace(pts=one, dts=number + 2 * is_delayed, time_base=Fraction(1, 10))
        )
        for number, one in enumerate(pts)
    ]
    assert [gap for _, gap in stamps] == [False] * len(pts)
    # Up to the picture that came too early, times are as they were said.
    wanted = [0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [time_s for time_s, _ in stamps] == pytest.approx(wanted)


@pytest.mark.parametrize("clock", [None, "pts", "dts"])
def test_a_clock_that_begins_again_has_a_new_base(runner, kit, tmp_path, clock):
    video = kit.render(tmp_path / "v.ts", count=30)
    both = tmp_path / "both.ts"
    both.write_bytes((tmp_path / "v.ts").read_bytes() * 2)
    frames = list(runner.run(str(both), clock=clock))
    assert len(frames) == 2 * len(kit.plain_loop(video)) == 60
    times = [f.timestamp for f in frames]
    np.testing.assert_allclose(np.diff(times), 0.1, atol=1e-3)
    (first,) = [f.frame for f in frames if f.gap and not f.damaged] or [28]
    assert 0 <= 30 - first <= (2 if clock == "dts" else 0)  # decoding is ahead of what is shown
    # The format does not say whether the last pictures before the join lack their end.
    assert [f.frame for f in frames if f.damaged] == [28, 29]
    assert len(list(runner.run(str(both), clock=clock, max_fps=5))) == 30


class Ticks(Clock):
    """A clock that goes on when the test says so."""

    def __init__(self):
        self.time_s = 100.0

    def now(self):
        return self.time_s


def test_pictures_in_memory_have_their_times_or_those_of_their_arrival(kit):
    clock = Ticks()

    def camera():
        for number, time_s in enumerate((100.0, 100.5, 103.0)):
            clock.time_s = time_s
            yield kit.picture(number)

    with VideoRunner({"backend": "Identity"}, machine_clock=clock) as runner:
        times = [f.timestamp for f in runner.run({"camera": camera()}, clock="arrival")]
        even = [f.timestamp for f in runner.run({"camera": camera()}, image_fps=10)]
    with VideoRunner({"backend": "Identity"}, machine_clock=clock, clock="arrival") as runner:
        assert [f.timestamp for f in runner.run({"camera": camera()})] == times
    assert times == pytest.approx([0.0, 0.5, 3.0])
    assert even == pytest.approx([0.0, 0.1, 0.2])


def test_a_file_does_not_arrive_and_a_wrong_clock_is_refused(runner, kit, tmp_path):
    (frame,) = runner.run(kit.render(tmp_path / "v.mp4", count=3), clock="arrival")
    assert "not live" in str(frame.error)
    with pytest.raises(ValueError, match=r"clock: .*'pts', 'dts' or 'arrival', not 'wall'"):
        runner.run(kit.picture(0), clock="wall")


def test_an_animated_webp_that_is_damaged_ends_with_a_failed_frame(runner, kit, tmp_path):
    images = [Image.fromarray(kit.picture(n)) for n in range(6)]
    path = tmp_path / "a.webp"
    images[0].save(path, save_all=True, append_images=images[1:], duration=100, lossless=True)
    path.write_bytes(path.read_bytes()[:-200])
    *_, last = runner.run(str(path))
    assert "the WebP animation is damaged" in str(last.error)


TURNS = {"90": (0, 1, -1, 0), "180": (-1, 0, 0, -1), "270": (0, -1, 1, 0)}
"""The matrix of a track, as telephones write it, by how far it is turned clockwise."""


def turn(path, matrix):
    """Write a matrix into the header of the track of an MP4."""
    data = bytearray(path.read_bytes())
    begin = data.index(b"tkhd") + 4 + 4 + 20 + 16
    a, b, c, d = (value << 16 for value in matrix)
    data[begin : begin + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


@pytest.mark.parametrize("degrees", list(TURNS))
def test_a_rotated_video_is_turned_upright_as_opencv_turns_it(runner, tmp_path, kit, degrees):
    video = kit.render(tmp_path / "v.mp4", count=4)
    turn(tmp_path / "v.mp4", TURNS[degrees])
    frames = list(runner.run(video))
    reader = cv2.VideoCapture(video)
    reader.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
    for frame in frames:
        expected = reader.read()[1]
        assert frame.image.shape == expected.shape
        assert np.abs(frame.image.astype(int) - expected).mean() < 3
        assert frame.request["image"] is frame.image
    assert frames[0].image.shape[:2] == ((48, 64) if degrees == "180" else (64, 48))
    reader.release()


def test_times_that_repeat_or_go_back_still_increase():
    line = timing.Timeline(0.1)
    stamps = [line.stamp(t) for t in (1.0, 1.0, 0.5, None, 2.0)]
    assert all(a < b for a, b in itertools.pairwise(stamps))
    assert stamps[0] == 1.0
    assert stamps[-1] == 2.0
    line.continue_after(3.0)
    assert line.stamp(0.0) == 5.0
    assert line.stamp(0.25) == 5.25


@pytest.mark.parametrize("unknown", [1, 2, 5])
@pytest.mark.parametrize("first_s", [0.15, -3.0, 0.0, 7000.0])
def test_behind_frames_without_a_time_the_clock_of_the_source_goes_on(unknown, first_s):
    line = timing.Timeline(0.04)
    assert [line.stamp(None), line.stamp(first_s), line.stamp(first_s + 20)] == pytest.approx(
        [0, 0.04, 20.04]
    )
    line.continue_after(5.0)
    expected = 25.04
    for _ in range(unknown):
        assert line.stamp(None) == pytest.approx(expected)
        expected += 0.04
    for passed_s in (0.0, 0.1, 0.2, 100.0):
        assert line.stamp(first_s + passed_s) == pytest.approx(expected + passed_s)
    assert line.stamp(None) == pytest.approx(expected + 100.04)  # the clock is known
    assert line.stamp(first_s + 101) == pytest.approx(expected + 101)


@given(st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=30), st.data())
def test_stamps_strictly_increase_whatever_happens(times, data):
    line, last = timing.Timeline(0.04), None
    for time_s in times:
        if data.draw(st.booleans()):
            line.continue_after(data.draw(st.floats(0, 5)))
        stamp = line.stamp(time_s)
        assert last is None or stamp > last
        last = stamp


@given(st.lists(st.floats(0.001, 0.5), min_size=2, max_size=60), st.floats(0.5, 20))
def test_max_fps_is_never_exceeded(steps, max_fps):
    thin = timing.Thinning(SourceOptions(max_fps=max_fps))
    times = list(itertools.accumulate(steps))
    kept = [t for n, t in enumerate(times) if thin.keeps(n, t)]
    assert len(kept) <= (times[-1] - times[0]) * max_fps + 1 + 1e-6


def test_a_camera_that_is_lost_comes_back_in_the_same_order(monkeypatch):
    monkeypatch.setitem(
        video_files.CAMERAS, sys.platform, ("lavfi", "testsrc=size=64x48:rate=10:duration=1#{}")
    )
    opened = video_files.open_camera
    calls = []

    def open_again(number, timeout_s, wanted):
        calls.append(number)
        if len(calls) == 2:
            raise OSError("no such device")
        monkeypatch.setitem(
            video_files.CAMERAS, sys.platform, ("lavfi", "testsrc=size=64x48:rate=10:duration=1")
        )
        return opened(number, timeout_s, wanted)

    monkeypatch.setattr(video_files, "open_camera", open_again)
    clock, told = Quick(100.0), []

    class Told(Sink):
        needs_image = False
        write = source_ended = lambda self, one: told.append(getattr(one, "frame", "ended"))
        source_found = lambda self, source: told.append(f"{source} found")  # noqa: E731
        source_lost = lambda self, source, error: told.append(f"{source} lost: {error}")  # noqa: E731

    with VideoRunner(
        {"backend": "VisionNetwork", "max": 8}, machine_clock=clock, frames="every", sinks=[Told()]
    ) as runner:
        frames = list(itertools.islice(runner.run("camera:0"), 25))
        counts = runner.status()["sources"]["camera:0"]
    notes = [one for one in told if isinstance(one, str)]
    assert notes[:2] == ["camera:0 lost: the stream ended", "camera:0 found"]
    assert notes[-1] == "ended"
    numbers = [one for one in told if isinstance(one, int)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= counts["delivered"]  # more may come before the end
    assert [f.frame for f in frames] == list(range(25))
    assert all(a.timestamp < b.timestamp for a, b in itertools.pairwise(frames))
    assert [f.frame for f in frames if f.gap] == [10, 20]
    assert frames[10].timestamp - frames[9].timestamp == pytest.approx(sum(clock.waits[:2]))
    assert counts["reconnects"] >= 3
    assert counts["live"]


def test_a_camera_that_never_opens_is_tried_quietly_and_says_when(monkeypatch, caplog):
    monkeypatch.setitem(video_files.CAMERAS, sys.platform, ("v4l2", "/nowhere/video{}"))
    clock, often = Quick(100.0), threading.Event()
    advance = clock.wait

    def wait(stop, seconds):
        advance(stop, seconds)
        if len(clock.waits) >= 12:
            often.set()
            clock.time -= seconds  # the last wait has not passed
            return stop.wait()
        return stop.is_set()

    clock.wait = wait
    with (
        caplog.at_level("DEBUG", logger="headrace.vision"),
        VideoRunner({"backend": "VisionNetwork"}, machine_clock=clock) as runner,
    ):
        handle = runner.add("camera:0")
        assert often.wait(60)
        status = handle.status()["sources"]["camera:0"]
        handle.stop()
        assert handle.wait(60)
    assert len(caplog.records) == 1
    assert "camera:0 is lost" in caplog.text
    assert (status["state"], status["attempts"], status["read"]) == ("lost", 12, 0)
    assert status["error"]
    assert status["retry_in_s"] == pytest.approx(clock.waits[-1])
    assert all(0.5 <= one <= 5 for one in clock.waits)
    assert len(set(clock.waits[:3])) == 3
    assert clock.waits[5:] == [5] * len(clock.waits[5:])


@pytest.mark.parametrize("option", ["start", "stop", "loop"])
def test_a_camera_has_no_beginning_and_no_end(option):
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        (frame,) = runner.run("camera:0", **{option: 1 if option != "loop" else True})
    assert f"{option} is for what has a beginning and an end" in str(frame.error)


def test_realtime_waits_for_the_time_of_each_frame(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=6, rate=10)
    clock = Quick(100.0)
    with VideoRunner({"backend": "VisionNetwork"}, machine_clock=clock) as runner:
        frames = list(runner.run(video, realtime=True, frames="every"))
    assert len(frames) == 6
    assert clock.time == pytest.approx(100.5)


def test_options_of_a_camera_reach_ffmpeg(tmp_path, monkeypatch, kit):
    """Raw pictures stand for a camera: without size, format and rate FFmpeg cannot read them."""
    pictures = [kit.picture(number, (48, 64)) for number in range(4)]
    (tmp_path / "raw").write_bytes(b"".join(one.tobytes() for one in pictures))
    raw = ("rawvideo", (tmp_path / "raw").as_posix())
    monkeypatch.setitem(video_files.CAMERAS, sys.platform, raw)
    ffmpeg = {"video_size": "64x48", "pixel_format": "bgr24", "framerate": 5, "threads": 1}
    with VideoRunner({"backend": "Identity"}, frames="every", clock="pts") as runner:
        frames = list(itertools.islice(runner.run("camera:0", ffmpeg=ffmpeg), 4))
    for frame, picture in zip(frames, pictures, strict=True):
        np.testing.assert_array_equal(frame.image, picture)
    assert np.diff([f.timestamp for f in frames]) == pytest.approx([0.2] * 3)


def test_options_of_ffmpeg_that_open_something_or_are_for_something_else_are_refused(tmp_path, kit):
    path = kit.render(tmp_path / "a.mp4", count=3)
    with VideoRunner({"backend": "Identity"}) as runner:
        with pytest.raises(ValueError, match="no option of FFmpeg that may be set 'protocol_whi"):
            runner.run(path, ffmpeg={"protocol_whitelist": "file,http"})
        with pytest.raises(ValueError, match="Did you mean 'probesize'"):
            runner.run(path, ffmpeg={"probsize": 1})
        (frame,) = runner.run(path, ffmpeg={"video_size": "64x48"})
        assert "'video_size' of FFmpeg is not for this kind of source: file" in str(frame.error)
        plain = [f.image for f in runner.run(path)]
        few = {"threads": 1, "probesize": 100_000, "analyzeduration": 1_000_000}
        frames = list(runner.run(path, ffmpeg=few))
    assert len(frames) == 3
    for one, expected in zip(frames, plain, strict=True):
        np.testing.assert_array_equal(one.image, expected)


def test_hardware_that_is_not_there_ends_its_source_with_the_reason(tmp_path, kit):
    path = kit.render(tmp_path / "a.mp4", count=3)
    with VideoRunner({"backend": "Identity"}) as runner:
        (frame,) = runner.run(path, ffmpeg={"hwaccel": "cudda"})
        assert "there is no hwaccel 'cudda'. Did you mean 'cuda'?" in str(frame.error)
        for source in (path, "camera:0"):  # a camera is not tried again
            (frame,) = runner.run(source, ffmpeg={"hwaccel": "cuda:99"})
            assert "hwaccel 'cuda:99' cannot be used on this machine" in str(frame.error)
        assert len(list(runner.run(path))) == 3
