"""When a changed file is whole, and when a missing one is deleted, on a clock of our own."""

from __future__ import annotations

import logging
import os

import pytest

from headrace_models import Models
from headrace_models.watching.watcher import Watching
from headrace_testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Says(one)"\n')
    return tmp_path


@pytest.fixture
def watched(folder, clock):
    with Models(folder, clock=clock) as models:
        watching = Watching(models, folder)
        watching.look()
        yield models, watching


def said(models):
    return models("m", {"data": 0})["result"]


def test_a_file_is_taken_a_second_after_its_last_write(watched, folder, clock, caplog):
    models, watching = watched
    with caplog.at_level(logging.WARNING, "headrace.models"):
        for n in range(1, 4):  # each half would be a model
            (folder / "m.toml").write_text('backend = "Says(two)"\n' + "#" * n)
            watching.look()
            clock.advance(0.9)
            watching.look()
            assert said(models) == "one"
        clock.advance(0.1)
        watching.look()
    assert said(models) == "two"
    assert [one for one in caplog.messages if "m.toml, which is being written" in one] != []
    assert len(caplog.messages) == 1


@pytest.mark.skipif(os.name == "nt", reason="a rename changes no time there")
def test_a_file_that_a_rename_brings_is_taken_at_once(watched, folder):
    models, watching = watched
    new = folder / "new"
    new.write_text('backend = "Says(two)"\n')
    os.utime(new, ns=(1, 1))  # written long ago
    new.replace(folder / "m.toml")
    watching.look()
    assert said(models) == "two"


def test_weights_that_are_still_written_hold_back_their_configuration(watched, folder, clock):
    models, watching = watched
    weights = folder / "w.bin"
    weights.write_text("tw")
    (folder / "m.toml").write_text(f"backend = \"Says(model='{weights}')\"\n")
    watching.look()
    clock.advance(0.5)
    weights.write_text("two")
    watching.look()
    clock.advance(0.5)
    watching.look()
    clock.advance(1.0)
    watching.look()
    watching.look()
    assert said(models) == "two"


def test_a_file_that_is_missing_in_one_look_is_not_deleted(watched, folder, clock):
    models, watching = watched
    content = (folder / "m.toml").read_bytes()
    for _ in range(3):
        (folder / "m.toml").unlink()
        watching.look()
        clock.advance(0.9)
        watching.look()
        assert said(models) == "one"
        (folder / "m.toml").write_bytes(content)
        watching.look()
        clock.advance(1.0)
        watching.look()
    (folder / "m.toml").unlink()
    watching.look()
    clock.advance(1.0)
    watching.look()
    assert models.status()["m"]["state"] == "unloaded"


def test_a_folder_whose_links_are_swapped_serves_on(tmp_path, clock):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.toml").write_text(f'backend = "Says({name})"\n')
    served = tmp_path / "served"
    served.mkdir()
    (served / "..data").symlink_to(tmp_path / "one")
    (served / "m.toml").symlink_to("..data/m.toml")
    with Models(served, clock=clock) as models:
        watching = Watching(models, served)
        watching.look()
        (served / "new").symlink_to(tmp_path / "two")
        (served / "new").replace(served / "..data")
        (tmp_path / "one" / "m.toml").unlink()
        for _ in range(2):
            watching.look()
            assert said(models) in {"one", "two"}
            clock.advance(1.0)
        assert said(models) == "two"
