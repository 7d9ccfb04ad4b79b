"""The engine cache: what is in its key, torn and foreign entries, several processes, its size."""

import errno
import json
import logging
import os
import pkgutil
import subprocess
import sys
import textwrap
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from headrace.errors import SetupError
from headrace_trt import BuildCancelledError, BuildSettings, build_engine, trim_cache
from headrace_trt.building.builder import BuiltPlan
from headrace_trt.building.cache import get_or_build, key_of, read_entry, sidecar_of
from headrace_trt.building.obtaining import what_is_asked

DEVICE = {"name": "A", "compute_capability": "9.0", "cuda_driver": "13.0"}


def built(content=b"plan"):
    return BuiltPlan(content, "tensorrt 1", (), (), 1.5, ())


def never():
    raise AssertionError("it was built again")


def test_a_plan_is_built_once_and_its_bytes_are_untouched(tmp_path):
    plan = tmp_path / "deep" / "it.plan"
    first = get_or_build(plan, {"a": 1}, built)
    assert (first.hit, plan.read_bytes()) == (False, b"plan")
    second = get_or_build(plan, {"a": 1}, never)
    assert (second.hit, second.plan, second.sidecar["seconds"]) == (True, b"plan", 1.5)
    assert sorted(p.name for p in plan.parent.iterdir() if not p.name.startswith(".")) == [
        "it.plan",
        "it.plan.json",
    ]


def test_a_folder_that_cannot_be_written_still_gives_what_is_in_it(tmp_path, monkeypatch):
    plan = tmp_path / "it.plan"
    get_or_build(plan, {"a": 1}, built)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)  # as for the file of another user
    assert get_or_build(plan, {"a": 1}, never).hit
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    assert get_or_build(plan, {"a": 1}, never).plan == b"plan"
    with pytest.raises(SetupError, match="Read-only file system"):
        get_or_build(plan, {"a": 2}, never)
    with pytest.raises(SetupError, match="Read-only file system"):
        get_or_build(tmp_path / "other.plan", {"a": 1}, never)


@pytest.mark.parametrize(
    "damage",
    [
        "torn plan",
        "no sidecar",
        "torn sidecar",
        "sidecar of another format",
        "other",
        "a list",
        "layers",
        "profiles",
        "deep",
    ],
)
def test_what_is_foreign_or_torn_is_built_anew_with_a_warning(tmp_path, caplog, damage):
    plan = tmp_path / "it.plan"
    get_or_build(plan, {"a": 1}, built)
    sidecar = sidecar_of(plan)
    found = json.loads(sidecar.read_text())
    if damage == "torn plan":
        plan.write_bytes(b"pla")
    elif damage == "no sidecar":
        sidecar.unlink()
    elif damage == "torn sidecar":
        sidecar.write_text(sidecar.read_text()[:40])
    elif damage == "deep":
        sidecar.write_text("[" * 100_000)
    elif damage == "a list":
        sidecar.write_text("[1]")
    elif damage in ("layers", "profiles"):
        sidecar.write_text(json.dumps({**found, damage: [7] if damage == "layers" else 7}))
    elif damage == "other":
        sidecar.write_text(json.dumps({**found, "asked": {"a": 2}}))
    else:
        sidecar.write_text(json.dumps({**found, "format": 99}))
    caplog.set_level(logging.WARNING, "headrace.trt")
    again = get_or_build(plan, {"a": 1}, lambda: built(b"anew"))
    assert (again.hit, plan.read_bytes()) == (False, b"anew")
    assert str(plan) in caplog.text
    assert read_entry(plan, {"a": 1}) is not None


def test_where_a_plan_came_from_is_told(tmp_path):
    from headrace_trt.building.cache import origin_of

    plan = tmp_path / "it.engine"
    assert origin_of(plan) == ""
    asked = {"library": "tensorrt", "version": "10.6", "device": DEVICE}
    get_or_build(plan, asked, built)
    assert origin_of(plan) == "built by tensorrt 10.6 for A (9.0)"
    assert read_entry(plan, asked).hit


def test_a_build_that_fails_leaves_nothing_and_the_next_one_goes_on(tmp_path):
    plan = tmp_path / "it.plan"

    def fails():
        raise SetupError("no")

    for _ in range(2):
        with pytest.raises(SetupError):
            get_or_build(plan, {}, fails)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == []
    assert get_or_build(plan, {}, built).plan == b"plan"


def test_the_longest_unused_plans_go_first(tmp_path):
    for i, name in enumerate(["old", "used", "new"]):
        plan = tmp_path / f"{name}.plan"
        get_or_build(plan, {}, lambda: built(bytes(100)))
        os.utime(sidecar_of(plan), ns=(i, i))
    (tmp_path / "foreign.plan").write_bytes(bytes(1000))
    get_or_build(tmp_path / "used.plan", {}, never)
    assert [p.name for p in trim_cache(tmp_path, 250)] == ["old.plan"]
    assert [p.name for p in trim_cache(tmp_path, 250)] == []
    made = get_or_build(tmp_path / "big.plan", {}, lambda: built(bytes(300)), most_bytes=200)
    assert made.path.exists(), "what was just built was removed"
    assert sorted(p.stem for p in tmp_path.glob("*.plan")) == ["big", "foreign"]


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match="cannot be kept") as caught:
        get_or_build(tmp_path / "file" / "it.plan", {}, built)
    assert "cache_dir" in caught.value.hint


def test_who_waits_for_another_process_can_give_up(tmp_path):
    from filelock import FileLock

    with (
        FileLock(tmp_path / ".it.plan.lock"),
        pytest.raises(BuildCancelledError, match="another process"),
    ):
        get_or_build(tmp_path / "it.plan", {}, never, cancelled=lambda: True)


def test_everything_that_makes_an_engine_is_in_its_key(rtx, small_net, tmp_path):
    settings = BuildSettings(model=small_net, max=4)

    def key(changed=settings, device=DEVICE):
        return key_of(what_is_asked(changed, rtx, device))

    keys = [
        key(),
        key(settings.with_(max=5)),
        key(settings.with_(precision="fp16")),
        key(settings.with_(precision="fp16", keep_fp32=("a",))),
        key(settings.with_(tf32=False)),
        key(settings.with_(profiles=({"max": "x:1x3x8x8"},))),
        key(settings.with_(mean=(1.0,))),
        key(settings.with_(image_input=True)),
        key(settings.with_(refit=True)),
        key(settings.with_(mark_outputs=("r",))),
        key(device=None),
        key(device={**DEVICE, "compute_capability": "8.9"}),
        key(device={**DEVICE, "cuda_driver": "12.9"}),
    ]
    assert len(set(keys)) == len(keys)
    same = tmp_path / "elsewhere" / "same.onnx"
    same.parent.mkdir()
    same.write_bytes(small_net.read_bytes())
    assert key(settings.with_(model=same)) == key()
    assert key(settings.with_(timing_cache=tmp_path / "t")) == key()
    model = onnx.load(small_net)
    values = onnx.numpy_helper.to_array(model.graph.initializer[0]) + np.float32(1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    onnx.save(model, same)
    assert key(settings.with_(model=same)) != key()


def test_an_engine_does_not_outlive_the_code_that_converted_its_graph(rtx, small_net, monkeypatch):
    settings = BuildSettings(model=small_net, max=4)
    changed = {
        "precision.py": [{"precision": "fp16"}, {"precision": "bf16"}],
        "quantization.py": [{"precision": "int8"}, {"precision": "fp8"}],
        "image_input.py": [{"mean": (1.0,)}, {"std": (2.0,)}, {"image_input": True}],
    }
    asked = [{}, *chain(*changed.values())]

    def keys():
        return [key_of(what_is_asked(settings.with_(**one), rtx, DEVICE)) for one in asked]

    before, read = keys(), pkgutil.get_data
    for file, ones in changed.items():
        monkeypatch.setattr(
            pkgutil, "get_data", lambda p, f, new=file: read(p, f) + b"#" * (f == new)
        )
        others = [one for one, old, now in zip(asked, before, keys(), strict=True) if old != now]
        assert others == ones


FULL = {"min": "x:1x3x8x8", "opt": "x:4x3x8x8", "max": "x:4x3x8x8"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"max": 4}, {"max": 4, "min": 1}),
        ({"profiles": [FULL]}, {"profiles": [FULL], "min": 1, "max": 9}),
        (
            {"profiles": [FULL]},
            {"profiles": [{"min": {"x": [1, 3, 8, 8]}, "max": {"x": np.array([4, 3, 8, 8])}}]},
        ),
        ({"mean": 1}, {"mean": np.float32([1])}),
        (
            {"precision": "fp16", "keep_fp32": ["conv", "fc"]},
            {"precision": "fp16", "keep_fp32": ("fc", "conv")},
        ),
        ({"plugins": ["here/it.so"]}, {"plugins": ("/there/it.so",)}),
        (
            {"precision": "int8", "calibration": "here/one.npz"},
            {"precision": "int8", "calibration": Path("there/one.npz")},
        ),
    ],
)
def test_spellings_of_the_same_find_each_other_s_engine(one, other):
    one, other = (BuildSettings(model="x.onnx", **settings) for settings in (one, other))
    assert key_of(one.that_matter()) == key_of(other.that_matter())


def test_files_beside_an_explicit_plan_are_left_alone(tmp_path):
    beside = tmp_path / "net.json"
    beside.write_text("mine")
    for name in ("net.plan", "net.engine"):
        get_or_build(tmp_path / name, {}, built)
        assert sidecar_of(tmp_path / name) == tmp_path / f"{name}.json"
    assert beside.read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_plans_are_readable_as_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        get_or_build(tmp_path / "it.plan", {}, built)
    finally:
        os.umask(before)
    for name in ("it.plan", "it.plan.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_build_has_a_timing_cache_per_device(monkeypatch, rtx, small_net, tmp_path):
    from dataclasses import replace

    asked = []

    def build_plan(settings, **_):
        asked.append(settings)
        return built()

    monkeypatch.setattr("headrace_trt.building.obtaining.build_plan", build_plan)
    full = replace(rtx, name="tensorrt")
    settings = BuildSettings(model=small_net)
    for device in (DEVICE, {**DEVICE, "name": "another"}, None):
        build_engine(settings, library=full, cache_dir=tmp_path, device=device)
    first, second, without = (one.timing_cache for one in asked)
    assert first.parent == second.parent == tmp_path
    assert first != second
    assert without is None


def test_an_explicit_file_never_serves_another_model(rtx, small_net, tmp_path, save):
    engine = tmp_path / "my.engine"
    settings = BuildSettings(
        model=small_net, profiles=({"max": "x:2x3x8x8"},), optimization_level=0
    )
    assert not build_engine(settings, library=rtx, engine=engine).hit
    assert build_engine(settings, library=rtx, engine=engine).hit
    before = engine.read_bytes()
    assert not build_engine(settings.with_(precision="fp16"), library=rtx, engine=engine).hit
    assert engine.read_bytes() != before


def test_a_plan_is_never_written_over_a_file_that_was_not_built_here(rtx, small_net, tmp_path):
    with pytest.raises(SetupError, match="names the folder"):
        build_engine(BuildSettings(model=small_net), library=rtx, engine=tmp_path)
    engine = tmp_path / "other.engine"
    engine.write_bytes(b"a plan with notes of its own beside it")
    sidecar_of(engine).write_text('{"batch": 8}')
    with pytest.raises(SetupError, match="was not built here"):
        build_engine(BuildSettings(model=small_net), library=rtx, engine=engine)
    assert sidecar_of(engine).read_text() == '{"batch": 8}'
    engine = tmp_path / "trtexec.engine"
    engine.write_bytes(b"a plan of somebody else's")
    settings = BuildSettings(
        model=small_net, profiles=({"max": "x:2x3x8x8"},), optimization_level=0
    )
    with pytest.raises(SetupError, match="was not built here") as caught:
        build_engine(settings, library=rtx, engine=engine)
    assert "LoadTensorrtEngine" in str(caught.value)
    assert engine.read_bytes() == b"a plan of somebody else's"
    engine.unlink()
    assert not build_engine(settings, library=rtx, engine=engine).hit


@pytest.mark.parametrize("first", [True, False], ids=["first build", "rebuilt"])
def test_a_process_that_ends_between_the_two_files_leaves_what_is_built_anew(
    rtx, small_net, tmp_path, monkeypatch, first
):
    from headrace_trt.building import cache

    engine = tmp_path / "my.engine"
    old = BuildSettings(model=small_net, profiles=({"max": "x:2x3x8x8"},), optimization_level=0)
    settings = old.with_(precision="fp16")
    if not first:
        build_engine(old, library=rtx, engine=engine)
    write, written = cache.write_atomically, []

    def killed(path, content):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(cache, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        build_engine(settings, library=rtx, engine=engine)
    monkeypatch.undo()
    assert not build_engine(settings, library=rtx, engine=engine).hit
    assert build_engine(settings, library=rtx, engine=engine).hit


@pytest.mark.parametrize("option", ["model", "calibration"])
def test_a_plan_is_never_written_over_what_it_is_built_from(rtx, small_net, tmp_path, option):
    read = small_net if option == "model" else tmp_path / "samples.npz"
    read.touch()
    before = read.read_bytes()
    precision = "model" if option == "model" else "int8"
    settings = BuildSettings(**{"model": small_net, "precision": precision, option: read})
    engine = tmp_path / "folder" / ".." / read.name if option == "calibration" else read
    (tmp_path / "folder").mkdir()
    with pytest.raises(SetupError, match=f"would overwrite .*, which is `{option}`"):
        build_engine(settings, library=rtx, engine=engine)
    assert read.read_bytes() == before


def test_what_a_build_notes_is_never_written_over_the_model(rtx, small_net):
    settings = BuildSettings(model=small_net, timing_cache=small_net)
    with pytest.raises(SetupError, match=r"would overwrite .*, which is `model`"):
        build_engine(settings, library=rtx)


@pytest.mark.parametrize("option", ["timing_cache", "engine"])
def test_nothing_is_written_over_weights_plugins_and_timings(rtx, save, tmp_path, option):
    model = save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 64])],
        [("y", T.FLOAT, ["n", 64])],
        [("w", np.ones((64, 64), np.float32))],
        save_as_external_data=True, location="model.weights",
    )  # fmt: skip
    (tmp_path / "own.so").touch()
    plugins = (str(tmp_path / "own.so"),)
    for name in ("model.weights", "own.so"):
        settings = BuildSettings(model=model, plugins=plugins)
        where = {"engine": tmp_path / name} if option == "engine" else {}
        if option != "engine":
            settings = settings.with_(**{option: tmp_path / name})
        with pytest.raises(SetupError, match=rf"would overwrite .*{name}, which is"):
            build_engine(settings, library=rtx, **where)
    settings = BuildSettings(model=model, timing_cache=tmp_path / "it.plan.json")
    with pytest.raises(SetupError, match="which is `timing_cache`"):
        build_engine(settings, library=rtx, engine=tmp_path / "it.plan")


def test_several_processes_build_once(rtx, small_net, tmp_path):
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from headrace_trt import BuildSettings, build_engine
        settings = BuildSettings(
            model=Path(sys.argv[1]), profiles=({"max": "x:2x3x8x8"},), optimization_level=0
        )
        found = build_engine(settings, cache_dir=Path(sys.argv[2]))
        print(found.hit, found.path.name, len(found.plan))
        """
    )
    args = [sys.executable, "-c", code, str(small_net), str(tmp_path / "shared")]
    running = [
        subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    reported = []
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        reported.append(out.split())
    assert sorted(hit for hit, *_ in reported) == ["False", "True", "True"]
    assert len({(name, size) for _, name, size in reported}) == 1
    assert len(list(Path(tmp_path / "shared").glob("*.plan"))) == 1


def test_a_process_that_dies_while_it_builds_blocks_nobody(rtx, small_net, tmp_path):
    code = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from headrace_trt.building.cache import get_or_build
        get_or_build(Path(sys.argv[1]), {}, lambda: os._exit(7))
        """
    )
    plan = tmp_path / "it.plan"
    done = subprocess.run([sys.executable, "-c", code, str(plan)], check=False)
    assert done.returncode == 7
    assert get_or_build(plan, {}, built).plan == b"plan"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_no_file_takes_the_place_of_a_pipe_or_a_device(tmp_path):
    pipe = tmp_path / "pipe.plan"
    os.mkfifo(pipe)
    with pytest.raises(SetupError, match="it is no file"):
        get_or_build(pipe, {"a": 1}, built)
    assert pipe.is_fifo()
