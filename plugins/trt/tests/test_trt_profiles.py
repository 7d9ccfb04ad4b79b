import pytest

from headrace.errors import SetupError
from headrace_trt.building.profiles import NetworkInput, choose_profiles, parse_shapes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1x3x224x224", {"x": (1, 3, 224, 224)}),
        ("x:1x3, m:1x10", {"x": (1, 3), "m": (1, 10)}),
        ("a:0:1x2", {"a:0": (1, 2)}),
        ("s:scalar", {"s": ()}),
        ("s:", {"s": ()}),
        ("'x':7", {"x": (7,)}),
        ({"x": [1, 2], "y": "3x4"}, {"x": (1, 2), "y": (3, 4)}),
    ],
)
def test_shapes_as_trtexec_writes_them(text, shapes):
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    "text", ["1x3", "x:1xa", "x:1,x:2", ":1", {"x": [1, -1]}, {"x": [8.5]}, "x:1.5"]
)
def test_what_is_no_shape(text):
    with pytest.raises(SetupError):
        parse_shapes(text)


IMAGE = NetworkInput("x", (-1, 3, -1, -1))
ROWS = NetworkInput("m", (-1, 10))


def test_the_node_s_batch_range_is_the_profile_where_only_the_batch_is_dynamic():
    (profile,) = choose_profiles([ROWS], min=2, max=8)
    assert profile.as_dict() == {"m": {"min": [2, 10], "opt": [8, 10], "max": [8, 10]}}
    (alone,) = choose_profiles([ROWS])
    assert alone.as_dict()["m"]["max"] == [1, 10]
    assert choose_profiles([NetworkInput("x", (4, 3))], max=8) == ()


def test_another_dynamic_axis_needs_a_range_and_is_named():
    with pytest.raises(SetupError, match=r"'x' \[\*, 3, \*, \*\].*axis 2, 3"):
        choose_profiles([IMAGE], max=8)
    named = NetworkInput("x", (-1, 3, -1, -1), axis_names=("batch", "", "height", ""))
    with pytest.raises(SetupError, match=r"axis 2 \('height'\), 3"):
        choose_profiles([named], max=8)


def test_inputs_that_a_profile_leaves_out_take_its_batch():
    (profile,) = choose_profiles([IMAGE, ROWS], [{"min": "x:1x3x8x8", "max": "x:4x3x16x16"}])
    assert profile.ranges["x"].opt == (4, 3, 16, 16)
    assert profile.ranges["m"].min == (1, 10)
    assert profile.ranges["m"].max == (4, 10)


def test_values_of_inputs_that_decide_shapes():
    size = NetworkInput("size", (2,), is_shape=True)
    with pytest.raises(SetupError, match="decides shapes"):
        choose_profiles([ROWS, size], max=2)
    given = [{"min": "m:1x10,size:8x8", "opt": "m:2x10,size:16x16", "max": "m:4x10,size:32x32"}]
    (profile,) = choose_profiles([ROWS, size], given)
    assert profile.ranges["size"].opt == (16, 16)


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ({"min": "x:1x3x8x8"}, "must have `max`"),
        ({"max": "x:1x3x8x8", "best": "x:1"}, "best"),
        ({"max": "y:1x3x8x8"}, "does not have"),
        ({"max": "x:1x3x8"}, "number of axes"),
        ({"min": "x:1x3x8x8", "max": ""}, "`min` and no `max`"),
        ({"max": "x:1x4x8x8"}, "axis 1 is fixed to 3"),
        ({"min": "x:2x3x8x8", "max": "x:1x3x8x8"}, "min <= opt <= max"),
        ({"min": "x:1x3x8x8", "opt": "x:4x3x8x8", "max": "x:2x3x8x8"}, "min <= opt <= max"),
    ],
)
def test_profiles_that_do_not_fit_say_why(profile, text):
    with pytest.raises(SetupError, match=text):
        choose_profiles([IMAGE], [profile])
