"""Plugins found by their metadata, names, hooks, and what is registered for the process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from loading import problem, python

import headrace
from headrace.errors import ConfigError, PluginError


def record(name):
    (found,) = [r for r in headrace.plugins.installed() if r.distribution == name]
    return found


def run(source):
    with headrace.pipe(source) as pipe:
        return pipe({"data": 0})["result"]


# Discovery.


@pytest.mark.parametrize(
    ("distribution", "plugin"),
    [
        ("headrace-cv", "cv"),
        ("Headrace_CV", "cv"),
        ("headrace.my.thing", "my-thing"),
        ("other-thing", "other-thing"),
        ("headrace", "headrace"),
    ],
)
def test_the_qualifier_is_the_normalised_name_without_a_leading_headrace(distribution, plugin):
    assert headrace.plugins.qualifier(distribution) == plugin


def test_a_backend_is_known_without_an_import_and_imported_when_it_is_named(site):
    site.backend("headrace-one", "One", "hrt_one", "1")
    site.backend("headrace-two", "Two", "hrt_two", "2")
    assert "One" in record("headrace-one").backends
    assert "hrt_one" not in sys.modules
    assert run({"backend": "One"}) == "1"
    assert "hrt_two" not in sys.modules


def test_two_distributions_with_one_name_are_an_error_where_the_bare_name_is_used(site):
    site.backend("headrace-one", "Same", "hrt_one", "1")
    site.backend("headrace-two", "Same", "hrt_two", "2")
    found = problem({"backend": "Same"})
    assert found.code == "ambiguous"
    assert "headrace-one" in found.message
    assert "headrace-two" in found.message
    assert "one:Same" in found.hint
    assert run({"backend": "two:Same"}) == "2"
    for written in ("headrace-two:Same", "two:Sam", "tow:Same"):
        assert problem({"backend": written}).suggestion == "two:Same"


def test_an_entry_point_may_name_a_function(site):
    site.add("headrace-one", "[headrace.backends]\nWhole = math:floor\nText = textwrap:dedent\n")
    assert run({"backend": "S[Whole,headrace:Identity]"}) == 0
    first, second = (headrace.plugins.resolve({"backend": "Text"}).cls for _ in range(2))
    assert first is second
    assert run({"backend": "Identity"}) == 0


def test_core_has_a_qualifier_too(site):
    assert run({"backend": "headrace:S[headrace:Identity]"}) == 0
    assert problem({"backend": "headrace:One"}).code == "unknown_backend"


def test_a_plugin_for_another_core_is_listed_and_refused_without_an_import(site):
    site.backend("headrace-old", "Old", "hrt_old", requires=("headrace >=9, <10",))
    old = record("headrace-old")
    assert (old.state, old.range) == ("incompatible", ">=9,<10")
    found = problem({"backend": "Old"})
    assert found.code == "plugin_incompatible"
    assert "9" in found.message
    assert "hrt_old" not in sys.modules


@pytest.mark.parametrize(
    ("requires", "state"),
    [
        (("headrace >=0.1", "headrace <9"), "ok"),
        (("headrace <9", "headrace >=0.1"), "ok"),
        (("headrace >=0.1", "headrace >=9"), "incompatible"),
        (("headrace >=9", "headrace >=0.1"), "incompatible"),
    ],
)
def test_a_range_may_stand_in_several_requirements(site, requires, state):
    site.backend("headrace-two", "Two", "hrt_two", requires=requires)
    found = record("headrace-two")
    assert found.state == state
    assert set(found.range.split(",")) == {one.split()[1] for one in requires}
    assert (found.reason is None) == (state == "ok")
    assert all(one.split()[1] in (found.reason or found.range) for one in requires)


def test_a_qualifier_names_its_own_plugin_also_where_another_one_of_that_name_cannot_be_used(site):
    site.backend("headrace-old", "Same", "hrt_old", requires=("headrace >=9, <10",))
    assert problem({"backend": "old:Same"}).code == "plugin_incompatible"
    assert problem({"backend": "old:Perhaps"}).code == "plugin_incompatible"
    assert problem({"backend": "new:Same"}).code == "unknown_backend"


@pytest.mark.parametrize(
    "requires",
    [
        (),
        ("numpy>=1",),
        ("headrace-cv>=9",),
        ("headrace[cli]>=0.1",),
        ("headrace>=9; extra == 'later'",),
        ("Headrace >= 0.1",),
    ],
)
def test_only_what_is_required_of_core_counts(site, requires):
    site.backend("headrace-new", "New", "hrt_new", requires=requires)
    assert record("headrace-new").state == "ok"


def test_bad_metadata_makes_one_plugin_broken_and_leaves_the_others(site):
    site.backend("headrace-bad", "Bad", "hrt_bad", requires=("headrace >> what",))
    site.backend("headrace-good", "Good", "hrt_good", "g")
    assert record("headrace-bad").state == "broken"
    assert ">> what" in record("headrace-bad").reason
    assert "\n" not in record("headrace-bad").reason
    assert run({"backend": "Good"}) == "g"
    assert problem({"backend": "Bad"}).code == "plugin_broken"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry_points.txt", b"\xff\xfe[headrace.backends]"),
        ("entry_points.txt", b"[headrace.backends]\nno equals sign\n"),
        ("METADATA", b"Name: headrace-bad\n\xff: x\n"),
    ],
)
@pytest.mark.parametrize("requires", [("headrace>=0.1,<0.2",), ("numpy",)])
def test_files_that_cannot_be_read_leave_the_others(site, file, content, requires):
    site.backend("headrace-bad", "Bad", "hrt_bad", requires=requires)
    site.backend("headrace-good", "Good", "hrt_good", "g")
    (site.folder / "headrace_bad-1.0.dist-info" / file).write_bytes(content)
    assert run({"backend": "Good"}) == "g"
    assert [r.distribution for r in headrace.plugins.installed()].count("headrace-good") == 1
    states = [r.state for r in headrace.plugins.installed() if "bad" in r.plugin]
    assert states == (["broken"] if requires[0] != "numpy" or file == "METADATA" else [])


ALL = {"one", "two", "headrace-odd"}


@pytest.mark.parametrize(
    ("value", "usable"),
    [
        (None, ALL),
        ("one", {"one"}),
        ("headrace-one, two", {"one", "two"}),
        ("-one", ALL - {"one"}),
        ("-headrace_one", ALL - {"one"}),
        ("one,two,-two", {"one"}),
        ("", set()),
        (" , ", set()),
        ("other", set()),
        # A distribution with the prefix twice is named as `plugins list` and `headrace-odd:Odd` call it.
        ("headrace-odd", {"headrace-odd"}),
        ("headrace-headrace-odd", {"headrace-odd"}),
        ("Headrace_Headrace.Odd", {"headrace-odd"}),
        ("odd", set()),
        ("-headrace-odd", ALL - {"headrace-odd"}),
        ("-headrace-headrace-odd", ALL - {"headrace-odd"}),
        ("-odd", ALL),
    ],
)
def test_an_environment_variable_says_which_plugins_may_be_used(site, monkeypatch, value, usable):
    for name in ("one", "two", "headrace-odd"):
        site.backend(f"headrace-{name}", name.title().replace("-", ""), f"hrt_{name[-3:]}")
    if value is None:
        monkeypatch.delenv("HEADRACE_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("HEADRACE_PLUGINS", value)
    found = [one for one in headrace.plugins.installed() if one.plugin in ALL]
    assert {one.plugin for one in found if one.state == "ok"} == usable
    assert all("HEADRACE_PLUGINS" in one.remedy for one in found if one.state != "ok")


def test_what_is_installed_and_allowed_is_looked_up_where_it_is_now(site, tmp_path, monkeypatch):
    site.backend("headrace-one", "One", "hrt_one", result="1")
    config = {"backend": "One"}
    headrace.PipelineConfig.load(config)
    for value, code in (("-one", "plugin_disabled"), ("", "plugin_disabled")):
        monkeypatch.setenv("HEADRACE_PLUGINS", value)
        assert problem(config).code == code
    monkeypatch.delenv("HEADRACE_PLUGINS")
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 0})["result"] == "1"
    assert problem({"backend": "Later"}).code == "unknown_backend"
    other = tmp_path / "other"
    other.mkdir()
    type(site)(other).backend("headrace-later", "Later", "hrt_later")
    monkeypatch.syspath_prepend(str(other))
    headrace.PipelineConfig.load({"backend": "Later"})


def test_what_is_installed_while_the_program_runs_is_found_by_the_next_configuration(site):
    config = {"backend": "S[Later,Later]"}
    with pytest.raises(ConfigError, match="unknown backend 'Later'"):
        headrace.PipelineConfig.load(config)
    site.backend("headrace-later", "Later", "hrt_later")
    headrace.PipelineConfig.load(config)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("-one", "Take '-one' out of HEADRACE_PLUGINS."),
        ("two", "Add 'one' to HEADRACE_PLUGINS, or unset it."),
    ],
)
def test_a_disabled_plugin_says_how_to_allow_it(site, monkeypatch, known_elsewhere, value, hint):
    site.backend("headrace-one", "One", "hrt_one")
    monkeypatch.setenv("HEADRACE_PLUGINS", value)
    known_elsewhere("Composed", "headrace-one")
    for name in ("One", "Composed"):
        found = problem({"backend": name})
        assert found.code == "plugin_disabled"
        assert found.hint == hint


def test_a_module_that_cannot_be_imported_is_a_problem_with_its_reason(site):
    points = "[headrace.backends]\nBroken = hrt_broken:Broken\nNone1 = hrt_none:None1\nSkips = hrt_skips:X\n"
    skips = "class Skipped(BaseException): ...\nraise Skipped('no GPU')"
    site.add("headrace-broken", points, {"hrt_broken": "1 / 0", "hrt_none": "", "hrt_skips": skips})
    found = problem({"backend": "Broken"})
    assert found.code == "plugin_load"
    assert "'Broken' of headrace-broken" in found.message
    assert "ZeroDivisionError" in found.message
    assert {problem({"backend": name}).code for name in ("None1", "Skips")} == {"plugin_load"}


def test_a_missing_library_is_a_problem_that_says_what_to_install(site):
    points = "[headrace.backends]\nNeeds = hrt_needs:Needs\n"
    site.add("headrace-needs", points, {"hrt_needs": "import no_such_library"})
    found = problem({"backend": "Needs"})
    assert found.code == "missing_dependency"
    assert "no_such_library" in found.hint


def test_a_well_known_backend_says_which_distribution_to_install(site, known_elsewhere):
    known_elsewhere("Gauge", "headrace-gauges")
    found = problem({"backend": "Gauge", "some_option": 1})
    assert found.code == "missing_plugin"
    assert "pip install headrace-gauges" in found.hint
    assert problem({"backend": "Gaugge"}).suggestion == "Gauge"


# Hooks.

HOOKS = """
from headrace.hookspecs import hookimpl
@hookimpl
def headrace_commands():
    return {commands!r}
@hookimpl
def headrace_batch_policies():
    return {{"mine": "{module}:Mine"}}
from headrace import Options
from headrace.policies import BatchPolicy, Cut
class Mine(BatchPolicy):
    class Options(Options):
        wait_ms: float = 5.0
    def cut(self, queue, instance, now):
        return Cut(len(queue))
"""


def hooked(site, name, module):
    code = HOOKS.format(commands={}, module=module)
    site.add(name, f"[headrace.plugins]\nhooks = {module}\n", {module: code})


@pytest.mark.parametrize("named", ["mine", "pol:mine", "pol:mine(wait_ms=1)"])
def test_policies_of_plugins_are_found(site, named):
    hooked(site, "headrace-pol", "hrt_pol")
    assert run({"backend": "Identity", "batch_policy": named}) == 0


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "class OddError(Exception):\n    def __str__(self): 1 / 0\nraise OddError",
        HOOKS.format(commands=3, module="x"),
        HOOKS.format(commands={"A": 1}, module="x"),
        "def headrace_probes():\n    return {}\n",  # nobody would call it: it has no marker
        "from headrace.hookspecs import hookimpl\n@hookimpl\ndef rewriters():\n    return {}\n",
    ],
)
def test_broken_hooks_make_one_plugin_broken_and_leave_the_others(site, code):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_bad_hooks\n", {"hrt_bad_hooks": code})
    hooked(site, "headrace-defs", "hrt_defs")
    assert run({"backend": "Identity", "batch_policy": "mine"}) == 0
    assert record("headrace-bad").state == "broken"
    assert record("headrace-bad").reason


TWO_PROBES = """
from headrace.hookspecs import hookimpl
@hookimpl
def headrace_probes():
    return {{"Diary": {path!r}}}
"""


@pytest.mark.parametrize(("second", "state"), [("hrt_b:Diary", "broken"), ("hrt_a:Diary", "ok")])
def test_a_plugin_offers_each_name_once(site, second, state):
    modules = {"hrt_h1": "hrt_a:Diary", "hrt_h2": second}
    points = "[headrace.plugins]\nh1 = hrt_h1\nh2 = hrt_h2\n"
    hooks = {name: TWO_PROBES.format(path=path) for name, path in modules.items()}
    site.add("headrace-two", points, hooks)
    site.add("headrace-same", "[headrace.backends]\nA = hrt_a:A\nA = hrt_b:A\n")
    assert record("headrace-two").state == state
    assert ("'Diary' twice" in (record("headrace-two").reason or "")) == (state == "broken")
    assert "'A' twice" in record("headrace-same").reason


def test_hooks_that_fail_offer_nothing_and_leave_the_names_of_their_plugin(site):
    code = HOOKS.format(commands={"Twice": 4}, module="x")
    points = "[headrace.plugins]\nh = hrt_half\n[headrace.backends]\nHalf = math:floor\n"
    site.add("headrace-half", points, {"hrt_half": code})
    assert record("headrace-half").state == "broken"
    assert not any(record("headrace-half").offers.values())
    assert problem({"backend": "Identity", "batch_policy": "mine"}).code == "unknown_policy"
    assert run({"backend": "Half"}) == 0


# Registering.


def plain(result="p"):
    class Plain:
        def forward(self, batch):
            for request in batch:
                request["result"] = result

    return Plain


def test_register_is_a_decorator_in_every_form(site):
    cls = plain()
    assert headrace.register(cls) is cls
    headrace.register("Other")(plain("o"))
    headrace.register(replace=True)(plain("q"))
    headrace.register("Third", replace=True)(plain("t"))
    assert [run({"backend": n}) for n in ("Plain", "Other", "Third")] == ["q", "o", "t"]


@pytest.mark.parametrize("first", [plain(), lambda data: 1], ids=["class", "function"])
def test_the_same_again_is_no_error_and_another_one_is(site, first):
    headrace.register("Name", first)
    headrace.register("Name", first)
    for other in (plain(), type("Other", (plain(),), {}), lambda data: data):
        with pytest.raises(PluginError, match="registered already"):
            headrace.register("Name", other)
    headrace.register("Name", plain("new"), replace=True)
    assert run({"backend": "Name"}) == "new"


@pytest.mark.parametrize("name", ["S", "Identity", "greedy", "", "1A", "A b", "a:b", "é", 3])
def test_a_name_of_core_and_no_name_at_all_are_refused(site, name):
    with pytest.raises(PluginError):
        headrace.register(name, plain())


def test_what_the_process_registered_wins_over_a_plugin(site):
    site.backend("headrace-one", "Name", "hrt_one", "plugin")
    headrace.register("Name", plain("local"))
    assert run({"backend": "Name"}) == "local"
    assert run({"backend": "one:Name"}) == "plugin"


@pytest.mark.parametrize("takes", ["self", "self, options", "self, options=None", "self, *args"])
def test_a_policy_may_be_made_without_options(site, takes):
    made = []
    namespace = {"made": made}
    exec(f"def __init__({takes}): made.append(self)", namespace)
    cls = type("Counts", (headrace.policies.Greedy,), {"__init__": namespace["__init__"]})
    cls.cut = lambda self, queue, instance, now: headrace.policies.Cut(1)
    headrace.register("Counts", cls)
    assert run({"backend": "Identity", "batch_policy": "Counts"}) == 0
    assert len(made) == 1


@pytest.mark.parametrize(("method", "base"), [("cut", "BatchPolicy"), ("choose", "DispatchPolicy")])
def test_a_class_that_is_meant_as_a_policy_is_told_what_it_derives_from(site, method, base):
    with pytest.raises(PluginError, match=rf"a policy derives from headrace\.policies\.{base}"):
        headrace.register("Mine", type("Mine", (), {method: lambda *_: None}))


MANY = """
import json, sys
import headrace
nodes = {f"n{i}": {"backend": f"S[B{i},Identity]", f"B{i}::a": 1} for i in range(200)}
config = headrace.PipelineConfig.load(nodes)
print(json.dumps([len(config.nodes), sorted(m for m in sys.modules if m.startswith("hrt_"))]))
"""


def test_only_the_modules_of_named_backends_are_imported(site):
    points = "".join(f"B{i} = hrt_many_{i % 10}:B{i}\n" for i in range(1000))
    code = (
        "import headrace\nfrom pydantic import Field\n"
        "class Base(headrace.Backend):\n"
        "    class Options(headrace.Options):\n"
        "        a: int = Field(0, description='Nothing.')\n"
        "    def forward(self, batch): ...\n"
        "for i in range(1000):\n    globals()[f'B{i}'] = type(f'B{i}', (Base,), {})\n"
    )
    modules = {f"hrt_many_{i}": code for i in range(10)} | {"hrt_unused": "1 / 0"}
    site.add("headrace-many", f"[headrace.backends]\n{points}Unused = hrt_unused:U\n", modules)
    count, imported = json.loads(python("-c", MANY, path=str(site.folder)).stdout)
    assert count == 200
    assert imported == [f"hrt_many_{i}" for i in range(10)]


OPENED = """
import json, sys
opened = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])
sys.addaudithook(hook)
import headrace
records = headrace.plugins.installed()
print(json.dumps({"opened": opened, "plugins": {r.distribution: len(r.backends) for r in records}}))
"""


def test_only_the_metadata_of_plugins_is_opened_and_once_each(site):
    for number in range(20):
        name = f"headrace-fake{number}"
        lines = [f"Fake{number}x{k} = hrt_fake{number}:B{k}" for k in range(5)]
        site.add(name, "\n".join(["[headrace.backends]", *lines]))
    for number in range(20):
        site.add(f"other{number}", f"[console_scripts]\nother{number} = other:main\n")
    path = os.pathsep.join([str(site.folder), *sys.path[1:]])
    said = json.loads(python("-c", OPENED, path=path).stdout)
    assert {f"headrace-fake{k}": 5 for k in range(20)}.items() <= said["plugins"].items()
    names = [Path(path).name for path in said["opened"]]
    assert names.count("entry_points.txt") >= 40
    read = [path for path in said["opened"] if Path(path).name in ("METADATA", "PKG-INFO")]
    assert len(read) == len(set(read)) == len(said["plugins"])
    ours = {Path(path).parent.name for path in read if str(site.folder) in path}
    assert ours == {f"headrace_fake{k}-1.0.dist-info" for k in range(20)}


def test_a_long_description_with_lines_like_fields_is_no_metadata(site):
    site.backend("headrace-one", "One", "hrt_one")
    path = site.folder / "headrace_one-1.0.dist-info" / "METADATA"
    path.write_text(path.read_text() + "\nRequires-Dist: headrace>=9\nVersion: 7\n")
    assert (record("headrace-one").version, record("headrace-one").state) == ("1.0", "ok")


def test_an_old_egg_info_is_read_too(site):
    info = site.folder / "headrace_egg.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: headrace-egg\nVersion: 2.0\n")
    (info / "requires.txt").write_text("headrace>=9\n")
    (info / "entry_points.txt").write_text("[headrace.backends]\nEgg = hrt_egg:Egg\n")
    assert record("headrace-egg").version == "2.0"
    assert record("headrace-egg").state == "incompatible"


@pytest.mark.skipif(sys.platform != "linux", reason="only there any bytes can be a name")
def test_a_file_in_a_folder_whose_name_is_no_text_is_imported(site, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    path = folder / "words.py"
    path.write_text("import headrace\nheadrace.register('Seven', lambda data: 7)\n")
    assert run({"import": [str(path)], "backend": "Seven"}) == 7
