"""Order, one outcome per frame, and the end of everything that was begun."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_process

import headrace
from headrace.errors import BackendError, ClosedError
from headrace_vision import Sink, VideoRunner
from headrace_vision.running import runner as runner_module

pytestmark = pytest.mark.first("read videos and cameras: each frame has one outcome, in order")

PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


class Previous(headrace.Backend):
    """Adds the number of the frame before: right only if a source is alone and in order.

    Reads:
        data: Anything.

    Writes:
        result: ``(data, frame, the frame before)``.

    Batch:
        1.

    Raises:
        Nothing.

    Source:
        own
    """

    def init(self, options, context):
        self.before = None
        self.sources = set()

    def forward(self, batch):
        for request in batch:
            context = request["context"]
            self.sources.add(context["source"])
            request["result"] = (request["data"], self.before, sorted(self.sources))
            self.before = context["frame"]


@pytest.fixture(scope="module", autouse=True)
def _previous():
    headrace.register("VisionPrevious", Previous)


def by_source(frames):
    out = {}
    for frame in frames:
        out.setdefault(frame.source, []).append(frame)
    return out


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("headrace-vision")]


@pytest.mark.parametrize("instances", [1, 3])
def test_several_sources_equal_a_plain_loop_per_stream_bit_for_bit(kit, tmp_path, instances):
    videos = [kit.render(tmp_path / f"v{n}.mp4", count=15 + 3 * n) for n in range(8)]
    config = {"backend": "VisionNetwork", "max": 4, "instance_num": instances}
    with VideoRunner(config, ordered="VisionPrevious") as runner:
        found = by_source(runner.run(videos))
        statuses = runner.status()["sources"]
    assert not threads()
    for video in videos:
        expected = kit.plain_loop(video)
        assert len(found[Path(video).name]) == len(expected)
        for number, (frame, (image, time_s)) in enumerate(
            zip(found[Path(video).name], expected, strict=True)
        ):
            assert (frame.frame, frame.timestamp) == (number, time_s)
            np.testing.assert_array_equal(frame.image, image)
            result, before, sources = frame.result
            np.testing.assert_array_equal(result, kit.network(image))
            assert before == (number - 1 if number else None)
            assert sources == [Path(video).name]
        counts = statuses[Path(video).name]
        assert counts["read"] == counts["delivered"] == len(expected)


def test_a_frame_that_fails_is_one_frame_and_what_is_ordered_does_not_see_it(kit):
    def picky(image):
        if image[0, 0, 0] == 1:
            raise ValueError("not this one")
        return int(image[0, 0, 0])

    headrace.register("VisionPicky", picky, replace=True)
    images = [np.full((4, 4, 3), value, np.uint8) for value in (0, 1, 2)]
    with VideoRunner({"backend": "VisionPicky"}, ordered="VisionPrevious") as runner:
        good, bad, last = runner.run(images)
    assert isinstance(bad.error, BackendError)
    assert bad.result is None
    assert (good.result[0], last.result[0], last.result[1]) == (0, 2, 0)


def test_a_failure_in_the_ordered_part_is_the_outcome_of_its_frame(kit):
    def never(value):
        raise ValueError("never")

    headrace.register("VisionNever", never, replace=True)
    with VideoRunner({"backend": "VisionNetwork"}, ordered="VisionNever") as runner:
        (frame,) = runner.run([kit.picture(0)])
    assert "never" in str(frame.error)
    assert frame.result is None


def test_latest_replaces_frames_that_nobody_began(kit):
    held, feed = kit.overtaken()
    headrace.register("VisionHeld", held, replace=True)
    with VideoRunner({"backend": "VisionHeld"}, frames="latest", in_flight=3) as runner:
        frames = list(runner.run(feed()))
        counts = runner.status()["sources"]["input"]
    assert frames[0].result == 0
    assert frames[-1].frame == frames[-1].result == 19
    assert [f.frame for f in frames] == sorted(f.frame for f in frames)
    assert counts["read"] == 20
    assert counts["dropped"] == 20 - len(frames)
    assert 2 <= len(frames) <= 3


def test_the_sum_of_the_counts_holds_at_every_frame(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=20)
    with VideoRunner({"backend": "VisionNetwork", "max": 2}) as runner:
        for _ in runner.run([video, [kit.picture(n) for n in range(9)]], stride=2):
            for one in runner.status()["sources"].values():
                parts = ("delivered", "failed", "dropped", "thinned", "in_flight")
                assert one["read"] == sum(one[part] for part in parts)
                assert one["in_flight"] <= 4


def test_leaving_the_loop_ends_its_threads_and_a_second_run_works(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=30)
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        frames = runner.run([video, itertools.repeat(kit.picture(0))])
        next(frames)
        frames.close()
        assert {one["state"] for one in runner.status()["sources"].values()} == {"stopped"}
        assert len(list(runner.run(video))) == 30
    assert not threads()
    with pytest.raises(ClosedError):
        runner.run(video)


def test_add_joins_the_loop_and_its_handle_stops_it(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=5)
    with VideoRunner({"backend": "VisionNetwork"}) as runner:
        early = runner.add({"early": itertools.repeat(kit.picture(1))})
        seen = set()
        late = None
        for frame in runner.run(video):
            seen.add(frame.source)
            if frame.source == "v.mp4" and late is None:
                late = runner.add({"late": itertools.repeat(kit.picture(2))})
            if {"early", "late"} <= seen:
                early.stop()
                late.stop()
        assert seen == {"v.mp4", "early", "late"}
        assert early.wait(PATIENCE_S)
        assert early.status()["state"] == "ended"
        assert early.status()["sources"]["early"]["state"] == "stopped"


def test_frames_of_add_go_to_the_sinks_where_there_is_no_loop(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=7)
    seen = []
    with VideoRunner({"backend": "VisionNetwork"}, sinks=[seen.append]) as runner:
        handle = runner.add(video)
        assert handle.wait(PATIENCE_S)
    assert [frame.frame for frame in seen] == list(range(7))


def test_the_async_loop_gives_the_same_frames(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=9)

    async def main():
        with VideoRunner({"backend": "VisionNetwork"}) as runner:
            frames = [frame.frame async for frame in runner.run_async(video)]

            async def endless():
                async for _ in runner.run_async(itertools.repeat(kit.picture(0))):
                    started.set()

            started = asyncio.Event()
            task = asyncio.ensure_future(endless())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return frames

    assert asyncio.run(main()) == list(range(9))
    assert not threads()


def test_a_sink_that_raises_holds_nobody_up(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=40)
    seen = []

    class Broken(Sink):
        name, close_s = "broken", 0

        def write(self, frame):
            raise OSError("no space left on device")

    with VideoRunner({"backend": "VisionNetwork"}, sinks=[Broken(), seen.append]) as runner:
        frames = list(runner.run(video))
        status = runner.status()["sinks"]["broken"]
    assert len(frames) == len(seen) == 40
    assert status["state"] == "failed"
    assert "no space left" in status["error"]
    after = runner.status()["sinks"]["broken"]
    assert (after["written"], after["lost"], after["waiting"]) == (0, 40, 0)


def test_a_sink_that_drops_holds_nobody_up_and_one_that_waits_misses_nothing(kit):
    go = threading.Event()

    class Slow(Sink):
        full, queue_size = "drop", 2

        def write(self, frame):
            go.wait(PATIENCE_S)

    class Ends(Sink):
        queue_size = 1

        def __init__(self):
            self.seen = []

        def write(self, frame):
            self.seen.append(frame.frame)

        def source_ended(self, source):
            self.seen.append(source)

        def close(self):
            self.seen.append("closed")

    ends = Ends()
    with VideoRunner({"backend": "VisionNetwork"}, sinks=[Slow(), ends]) as runner:
        frames = list(runner.run({"a": [kit.picture(n) for n in range(30)]}))
        assert runner.status()["sinks"]["Slow"]["dropped"] >= 27
        go.set()
    assert len(frames) == 30
    assert ends.seen == [*range(30), "a", "closed"]


def test_a_class_or_a_number_is_no_sink():
    with pytest.raises(TypeError, match="Sink"):
        VideoRunner({"backend": "Identity"}, sinks=[7])
    with pytest.raises(TypeError, match=r"write Sink\(\.\.\.\)"):
        VideoRunner({"backend": "Identity"}, sinks=[Sink])
    with pytest.raises(headrace.errors.ConfigError, match="VisionPrevious"):
        VideoRunner({"backend": "Identity"}, ordered="VisionPreviou")


def test_a_pipeline_of_the_caller_stays_open(kit):
    with headrace.pipe({"backend": "VisionNetwork"}) as pipe:
        with VideoRunner(pipe) as runner:
            assert len(list(runner.run(kit.picture(0)))) == 1
        assert pipe.ready


def test_a_source_that_does_not_come_back_is_counted_and_holds_up_nobody(kit, monkeypatch):
    monkeypatch.setattr(runner_module, "CLOSE_S", 0.05)
    entered, go = threading.Event(), threading.Event()

    def stuck():
        entered.set()
        go.wait(PATIENCE_S)
        return
        yield

    runner = VideoRunner({"backend": "Identity"})
    runner.add({"stuck": stuck()})
    try:
        assert entered.wait(PATIENCE_S)
        assert runner.status()["stuck_threads"] == 0
        runner.close()
        assert runner.status()["stuck_threads"] == 1
        assert runner.status()["state"] == "closed"
    finally:
        go.set()
    for one in threads():
        one.join(PATIENCE_S)
    assert runner.status()["stuck_threads"] == 0


def test_the_interpreter_ends_though_a_runner_was_never_closed(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=30)
    program = (
        "import headrace_vision; "
        "r = headrace_vision.VideoRunner({'backend': 'Identity'}, ordered='Identity'); "
        f"it = r.run({video!r}, loop=True); print(next(it).frame)"
    )
    done = run_process([sys.executable, "-c", program], check=True, timeout=300)
    assert done.stdout == "0\n"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 60),
    st.sampled_from(["every", "latest"]),
)
def test_wherever_a_loop_is_left_each_frame_has_one_outcome(
    lengths, in_flight, stride, leave, frames
):
    images = [np.full((2, 2, 3), value, np.uint8) for value in range(12)]
    sources = {f"s{n}": images[:length] for n, length in enumerate(lengths)}
    config = {"backend": "VisionNetwork", "max": 3, "instance_num": 2}
    seen = {}
    with VideoRunner(config, in_flight=in_flight, stride=stride, frames=frames) as runner:
        for count, frame in enumerate(runner.run(sources)):
            seen.setdefault(frame.source, []).append(frame.frame)
            np.testing.assert_array_equal(frame.image, images[frame.frame])
            if count == leave:
                break
        statuses = runner.status()["sources"]
    for name, one in statuses.items():
        assert one["in_flight"] == 0
        outcomes = ("delivered", "failed", "dropped", "thinned")
        assert one["read"] == sum(one[outcome] for outcome in outcomes)
        assert one["delivered"] == len(seen.get(name, []))
        assert seen.get(name, []) == sorted(set(seen.get(name, [])))
        assert all(number % stride == 0 for number in seen.get(name, []))
    if frames == "every" and leave >= sum(lengths):
        assert {n: seen.get(n, []) for n in sources} == {
            n: list(range(0, len(x), stride)) for n, x in sources.items()
        }


def test_ctrl_c_finishes_the_files(kit, tmp_path):
    video = kit.render(tmp_path / "v.mp4", count=10)
    program = (
        "import headrace_vision as v\n"
        "import headrace_vision.running.runner\n"
        "headrace_vision.running.runner.CLOSE_S = 120.0\n"
        "with v.VideoRunner({'backend': 'Identity'}, sinks=[v.SaveVideo('out')]) as r:\n"
        f"    for f in r.run({video!r}, loop=True):\n"
        "        if f.frame == 15: print('begun', flush=True)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert [p.name for p in (tmp_path / "out").glob("*.mp4*")] == ["v.mp4"]
    assert len(kit.plain_loop(tmp_path / "out" / "v.mp4")) > 10


def test_a_named_model_is_updated_and_rolled_back_under_a_running_source():
    models_module = pytest.importorskip("headrace_models")
    headrace.register("VisionOne", lambda image: 1)
    headrace.register("VisionTwo", lambda image: 2)
    pictures = iter([np.zeros((4, 4, 3), np.uint8)] * 90)
    with models_module.Models({"det": {"backend": "VisionOne"}}) as models:
        seen = []
        with VideoRunner(models["det"], in_flight=1) as runner:
            for f in runner.run({"door": pictures}):
                seen.append(f.result)
                if f.frame == 29:
                    models.update("det", {"backend": "VisionTwo"})
                elif f.frame == 59:
                    models.rollback("det")
        assert models("det", {"data": 0})["result"] == 1  # it is not closed with the runner
    # One frame may be on its way when the model is exchanged.
    assert len(seen) == 90
    assert seen[:30] == [1] * 30
    assert seen[31:60] == [2] * 29
    assert seen[61:] == [1] * 29
