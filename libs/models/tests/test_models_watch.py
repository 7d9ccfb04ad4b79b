"""A watched folder: each test changes files, and lets the watcher look at them itself, without waiting for events."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.errors import ConfigError, SetupError
from headrace_models import Models, UnloadedError
from headrace_models.watching.watcher import Watching
from headrace_testing import FakeClock


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'backend = "Says({text})"\n')


def answer(models, name="detect"):
    return models(name, {"data": 0})["result"]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "detect.toml", "one")
    return tmp_path


class Looks:
    """A watcher that looks when it is told to, twice, with a second of a clock of its own between."""

    def __init__(self, folder, **settings):
        self.clock = FakeClock()
        self.models = Models(folder, clock=self.clock, **settings)
        self.watching = Watching(self.models, folder)

    def once(self):
        self.watching.look()

    def look(self):
        self.once()
        self.clock.advance(1.0)
        self.once()

    def __getattr__(self, name):
        return getattr(self.watching, name)


def watched(folder, **settings):
    """Return models, and what looks at their files."""
    made = Looks(folder, **settings)
    return made.models, made


def test_a_folder_may_hold_a_folder_with_the_name_of_a_file(folder):
    (folder / "other.toml").mkdir()
    with Models(str(folder)) as models:
        assert "detect" in models


def test_a_folder_that_is_none_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the folder of models"):
        Models(tmp_path / "nothing")


def test_nothing_is_built_again_where_nothing_has_changed(folder, says):
    models, watching = watched(folder)
    with models:
        watching.look()
        (folder / "detect.toml").touch()
        watching.look()
        assert says.built == ["one"]


def test_a_changed_file_is_an_update(folder):
    models, watching = watched(folder)
    with models:
        write(folder / "detect.toml", "two")
        watching.look()
        assert answer(models) == "two"
        assert models.status()["detect"]["version"] == "2"
        models.rollback("detect")
        watching.look()
        assert answer(models) == "one"  # it is not taken back at the next look
        write(folder / "detect.toml", "three")
        watching.look()
        assert answer(models) == "three"


def test_a_file_with_a_version_in_its_name_keeps_the_version(folder):
    write(folder / "read" / "3.toml", "three")
    models, watching = watched(folder)
    with models:
        write(folder / "read" / "3.toml", "new")
        watching.look()
        assert answer(models, "read:3") == "new"
        assert [*models.status()["read"]["versions"]] == ["3"]


def test_a_file_that_a_configuration_extends_is_an_update(folder):
    write(folder / "_base.toml", "base")
    (folder / "_middle.toml").write_text('extends = ["_base.toml"]\n')
    (folder / "detect.toml").write_text('extends = "_middle.toml"\n')
    models, watching = watched(folder)
    with models:
        assert answer(models) == "base"
        write(folder / "_base.toml", "new")
        watching.look()
        assert answer(models) == "new"


def test_the_code_of_a_model_and_its_helpers_are_read_again_and_the_neighbour_keeps_its_own(folder):
    code = "import headrace\nfrom {0} import X\n@headrace.register('{0}')\ndef f(_): return X\n"
    for name in ("a", "b"):
        (folder / f"{name}.toml").write_text(f'import = ["{name}.py"]\nbackend = "help_{name}"\n')
        (folder / f"{name}.py").write_text(code.format(f"help_{name}"))
        (folder / f"help_{name}.py").write_text("from both import X")
    (folder / "both.py").write_text("X = 1")
    models, watching = watched(folder)
    with models:
        assert (answer(models, "a"), answer(models, "b")) == (1, 1)
        (folder / "both.py").write_text("X = 2")
        watching.look()
        assert (answer(models, "a"), answer(models, "b")) == (2, 2)
        (folder / "help_a.py").write_text("X = 3")
        watching.look()
        assert (answer(models, "a"), answer(models, "b")) == (3, 2)
        assert models.status()["b"]["version"] == "2"
        (folder / "b.py").write_text(code.format("help_b") + "X = 4\n")
        watching.look()
        assert (answer(models, "a"), answer(models, "b")) == (3, 4)


def test_a_model_file_is_an_update_wherever_it_lies(folder, tmp_path_factory):
    model = tmp_path_factory.mktemp("weights") / "model.bin"
    model.write_text("first")
    (folder / "detect.toml").write_text(f"backend = \"Says(model='{model}')\"\n")
    models, watching = watched(folder)
    with models:
        assert answer(models) == "first"
        assert str(model.parent) in watching.folders()
        model.write_text("second")
        watching.look()
        assert answer(models) == "second"


def test_a_large_model_file_is_compared_by_size_and_time(folder, tmp_path, says):
    model = tmp_path / "large.bin"
    model.write_text("x" * (2 << 20))
    (folder / "detect.toml").write_text(f"backend = \"Says(model='{model}')\"\n")
    models, watching = watched(folder)
    with models:
        watching.look()
        assert len(says.built) == 1
        os.utime(model, ns=(1, 1))
        watching.look()
        assert len(says.built) == 2


@pytest.mark.parametrize("half", ['backend = "Says(t', "backend = ", 'backend = "Sayz(two)"', ""])
def test_a_half_written_file_changes_nothing_and_shows_until_it_is_whole(folder, says, half):
    models, watching = watched(folder)
    with models:
        (folder / "detect.toml").write_text(half)
        watching.look()
        status = models.status()["detect"]
        assert (status["state"], status["version"]) == ("ready", "1")
        assert status["reason"].startswith("not updated: ConfigError")
        assert answer(models) == "one"
        watching.look()
        assert says.built == ["one"]
        write(folder / "detect.toml", "two")
        watching.look()
        assert answer(models) == "two"
        assert models.status()["detect"]["reason"] == ""


def test_a_model_that_cannot_be_built_changes_nothing_and_is_not_tried_at_each_look(folder, says):
    models, watching = watched(folder)
    with models:
        says.broken = {"two"}
        write(folder / "detect.toml", "two")
        for _ in range(3):
            watching.look()
        assert "two is broken" in models.status()["detect"]["reason"]
        assert answer(models) == "one"
        tried = sum(1 for _ in iter(lambda: says.building.acquire(blocking=False), False))
        assert tried == 2  # the first version, and the one update


def test_a_missing_model_file_that_comes_later_is_taken(folder):
    models, watching = watched(folder)
    model = folder / "model.bin"
    with models:
        (folder / "detect.toml").write_text(f"backend = \"Says(model='{model}')\"\n")
        watching.look()
        assert "model.bin" in models.status()["detect"]["reason"]
        assert answer(models) == "one"
        model.write_text("late")
        watching.look()
        assert answer(models) == "late"


def test_a_deleted_file_is_an_unload_and_one_that_comes_back_a_load(folder, says):
    models, watching = watched(folder)
    with models:
        (folder / "detect.toml").unlink()
        watching.look()
        assert models.status()["detect"]["state"] == "unloaded"
        assert "was deleted" in models.status()["detect"]["reason"]
        assert says.living == 0
        with pytest.raises(UnloadedError, match="was deleted"):
            answer(models)
        watching.look()
        write(folder / "detect.toml", "two")
        watching.look()
        assert answer(models) == "two"


def test_what_a_user_has_unloaded_stays_unloaded(folder):
    models, watching = watched(folder)
    with models:
        models.unload("detect")
        write(folder / "detect.toml", "two")
        watching.look()
        assert models.status()["detect"]["state"] == "unloaded"
        models.load("detect")
        assert answer(models) == "two"


def test_new_files_are_loaded_and_a_bad_one_takes_no_requests_from_the_good(folder, says):
    models, watching = watched(folder)
    with models:
        write(folder / "read" / "3.toml", "three")
        write(folder / "other.toml", "other")
        watching.look()
        assert (answer(models, "read"), answer(models, "other")) == ("three", "other")
        says.broken = {"four"}
        write(folder / "read" / "4.toml", "four")
        watching.look()
        assert answer(models, "read") == "three"
        assert models.status()["read"]["versions"]["4"]["state"] == "failed"
        write(folder / "read" / "4.toml", "better")
        watching.look()
        assert answer(models, "read") == "better"


def test_a_new_model_that_failed_is_tried_again_less_and_less_often(folder, says):
    models, watching = watched(folder)
    with models:
        says.broken = {"three"}
        write(folder / "read" / "3.toml", "three")
        watching.look()
        for _ in range(30):
            watching.look()
        tried = sum(1 for _ in iter(lambda: says.building.acquire(blocking=False), False))
        assert 4 < tried < 9  # the first model, and after 0, 1, 3, 7, 15 and 31 seconds
        assert says.built == ["one"]
        says.broken = set()
        for _ in range(60):
            watching.look()
        assert answer(models, "read") == "three"


def test_lazy_models_are_not_built_by_a_change(folder, says):
    models, watching = watched(folder, preload=False)
    with models:
        write(folder / "detect.toml", "two")
        write(folder / "other.toml", "other")
        watching.look()
        assert says.built == []
        assert (answer(models), answer(models, "other")) == ("two", "other")


def test_lazy_models_that_failed_wait_for_a_request(folder, says):
    models, watching = watched(folder, preload=False)
    with models:
        says.broken = {"one"}
        with pytest.raises(SetupError):
            answer(models)
        says.broken = set()
        for _ in range(5):
            watching.look()
        assert says.built == []
        assert answer(models) == "one"


def test_changed_aliases_are_taken_and_wrong_ones_show(folder):
    write(folder / "read.toml", "read")
    models, watching = watched(folder)
    with models:
        (folder / "aliases.toml").write_text('live = "detect"\nold = "detect"\n')
        watching.look()
        assert answer(models, "live") == "one"
        (folder / "aliases.toml").write_text('live = "reed"\n')
        watching.look()
        assert "Did you mean 'read'" in watching.reason
        assert answer(models, "live") == "one"
        (folder / "aliases.toml").write_text('live = "read"\n')
        watching.look()
        assert watching.reason == ""
        assert answer(models, "live") == "read"
        assert "old" not in models


@pytest.mark.slow
def test_events_of_the_file_system_reach_the_models(folder):
    """The whole way: a real event, the watcher's thread, an update, its subscriber."""
    with Models(folder, watch=True) as models:
        updated = threading.Event()
        models.subscribe(lambda change: updated.set() if change.state == "unloaded" else None)
        write(folder / "detect.toml", "two")
        assert updated.wait(120)
        assert answer(models) == "two"
        bad = threading.Event()
        models.subscribe(lambda change: bad.set() if "is no TOML" in change.reason else None)
        (folder / "detect.toml").write_text("half")
        assert bad.wait(120)
        assert models.status()["detect"]["state"] == "ready"
    assert not any(one.name == "headrace-models-watch" for one in threading.enumerate())


@pytest.mark.slow
def test_wrong_aliases_of_a_watched_folder_are_in_the_status(folder):
    with Models(folder, watch=True) as models:
        (folder / "aliases.toml").write_text("half")
        for name in (
            "first",
            "second",
        ):  # what comes with the second is after the look at the first
            loaded = threading.Event()
            models.subscribe(
                lambda change, name=name, loaded=loaded: (
                    loaded.set() if (change.name, change.state) == (name, "ready") else None
                )
            )
            write(folder / f"{name}.toml", name)
            assert loaded.wait(120)
        assert "aliases.toml" in models.status()["aliases"]["reason"]
