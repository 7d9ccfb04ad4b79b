"""Privacy masks: what lies below them is in nothing that a frame goes to."""

from __future__ import annotations

import io

import av
import cv2
import numpy as np
import pytest
from PIL import Image

import headrace
from headrace.errors import ConfigError
from headrace_vision import SaveImages, SaveVideo, Sink, VideoRunner, View
from headrace_vision.file.vision import load

CORNERS = [[0.1, 0.2], [0.62, 0.05], [0.9, 0.55], [0.33, 0.97]]
MASKS = {"window": CORNERS, "door": [[0, 0.6], [0.2, 0.6], [0.2, 1], [0, 1]]}


def touched(size_hw, polygons, steps=6):
    """Whether a point of a pixel lies in a polygon, by a ray to the right of each of its points."""
    height, width = size_hw
    y, x = np.mgrid[0 : height * steps, 0 : width * steps]
    x, y = (x + 0.5) / (width * steps), (y + 0.5) / (height * steps)
    found = np.zeros(x.shape, bool)
    for corners in polygons:
        inside = np.zeros(x.shape, bool)
        for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
            if y1 != y2:
                inside ^= ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
        found |= inside
    return found.reshape(height, steps, width, steps).any((1, 3))


def delivered(given, masks=MASKS, **options):
    headrace.register("PrivacyMean", lambda image: image.sum((0, 1)), replace=True)
    with VideoRunner({"backend": "PrivacyMean"}, privacy_masks=masks, **options) as runner:
        return list(runner.run(given))


@pytest.mark.parametrize("size_hw", [(48, 64), (47, 65), (240, 135)])
def test_each_pixel_that_a_polygon_touches_is_black_and_little_else(size_hw):
    white = np.full((*size_hw, 3), 255, np.uint8)
    (frame,) = delivered({"a": [white]})
    black = ~frame.image.any(2)
    below = touched(size_hw, MASKS.values())
    assert (black | ~below).all()
    near = cv2.dilate(below.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    assert (near | ~black).all()
    assert white.all()  # the caller's picture is as it was
    assert frame.result.tolist() == frame.image.sum((0, 1)).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_thin_polygons_and_those_that_overlap_cover_all_that_they_touch(seed):
    random = np.random.default_rng(seed)
    polygons = [random.random((3, 2)).tolist() for _ in range(2)]
    polygons.append([[0.2, 0.3], [0.9, 0.31], [0.9, 0.311]])
    masks = {str(number): one for number, one in enumerate(polygons)}
    (frame,) = delivered({"a": [np.full((60, 80, 3), 9, np.uint8)]}, masks)
    assert not frame.image[touched((60, 80), polygons)].any()


def test_a_mask_lies_on_the_picture_as_it_is_delivered():
    exif = Image.Exif()
    exif[274] = 6  # a quarter to the right
    file = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(file, "JPEG", exif=exif)
    (frame,) = delivered({"a": file.getvalue()}, {"top": [[0, 0], [1, 0], [1, 0.25], [0, 0.25]]})
    assert frame.image.shape == (64, 48, 3)
    assert not frame.image[:16].any()
    assert frame.image[18:].all()


class Event(headrace.Backend):
    """Each frame has an event."""

    def forward(self, batch):
        for request in batch:
            request["result"] = None
            request["events"] = [{"type": "test"}]


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """All bytes that leave a run, and what its backend and a sink got."""
    headrace.register("PrivacyEvent", Event, replace=True)

    def run(name, pictures):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        view, seen = View(), []
        write = view.write

        def writing(frame):
            write(frame)
            seen.append(view.picture(frame.source))

        view.write, view.full = writing, "wait"
        sinks = {
            "view": view,
            "images": SaveImages("images", suffix=".png"),
            "video": SaveVideo("whole"),
            "clips": SaveVideo("clips", before_s=0.2, after_s=0.2),
            "function": lambda frame: seen.append(frame.image.tobytes()),
        }
        with VideoRunner({"backend": "PrivacyEvent"}, sinks=sinks, privacy_masks=MASKS) as runner:
            got = [frame.image.tobytes() for frame in runner.run({"a": pictures})]
        files = {
            str(one.relative_to(folder).parent): one.read_bytes()
            for one in sorted(folder.rglob("*.mp4"))
        }
        images = [one.read_bytes() for one in sorted(folder.rglob("*.png"))]
        assert len(images) == len(got) == 6
        assert files.keys() == {"whole", "clips"}
        return got, sorted(seen), images, files

    return run


def test_what_is_below_a_mask_changes_nothing_that_leaves_a_run(outputs):
    random = np.random.default_rng(0)
    ours = random.integers(0, 256, (6, 48, 64, 3), np.uint8)
    theirs = ours.copy()
    below = touched((48, 64), MASKS.values())
    theirs[:, below] = random.integers(0, 256, (6, below.sum(), 3), np.uint8)
    one, other = outputs("ours", list(ours)), outputs("theirs", list(theirs))
    assert one[:3] == other[:3]
    for name, data in one[3].items():  # the bytes have the id of their folder, which differs
        assert pictures(data) == pictures(other[3][name])


def pictures(data):
    with av.open(io.BytesIO(data)) as container:
        return [one.to_ndarray(format="bgr24").tobytes() for one in container.decode(video=0)]


class Copies(Sink):
    copies_packets = True

    def write(self, frame):
        pass


def test_sinks_that_copy_packets_are_refused_for_a_source_with_masks(tmp_path, kit):
    film = kit.render(tmp_path / "street.mp4")
    sinks = {"raw": SaveVideo(tmp_path / "out", codec="copy"), "mine": Copies()}
    with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
        for name in sinks:
            with pytest.raises(ValueError, match=f"the sink '{name}' copies packets"):
                next(runner.run(film, privacy_masks=MASKS, sinks=[name]))
        assert next(runner.run(film, privacy_masks=MASKS, sinks=[])).image is not None


TABLE = """
model = "pipe.toml"
[sources.street]
input = "street.mp4"
privacy_masks = { window = [[0.1, 0.2], [0.6, 0.1], [0.9, 0.5]] }
%s
[sinks.raw]
kind = "SaveVideo"
folder = "out"
codec = "copy"
[sinks.other]
kind = "SaveImages"
folder = "images"
"""


def test_a_file_with_masks_and_a_copy_is_refused_before_it_runs(tmp_path):
    (tmp_path / "pipe.toml").write_text('backend = "Identity"\n')
    (tmp_path / "street.mp4").write_bytes(b"")
    (tmp_path / "vision.toml").write_text(TABLE % "")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "vision.toml")
    (problem,) = caught.value.problems
    assert problem.path == "sources.street.privacy_masks"
    assert "the sink 'raw' copies packets" in problem.message
    for others in ("sinks = []", 'sinks = ["other"]'):
        (tmp_path / "vision.toml").write_text(TABLE % others)
        config = load(tmp_path / "vision.toml")
    assert config.sources["street"].privacy_masks == {
        "window": [[0.1, 0.2], [0.6, 0.1], [0.9, 0.5]]
    }


@pytest.mark.parametrize(
    "corners",
    [[[0, 0], [1, 1]], [[0, 0], [640, 0], [640, 480]], [0, 0, 1, 1], [[0, 0], [1, 0], ["x", 1]]],
)
def test_what_is_no_polygon_of_fractions_is_refused_with_its_name(corners):
    with pytest.raises(ValueError, match=r"privacy_masks\.window .* from 0 to 1"):
        delivered({"a": []}, {"window": corners})
