"""The group `headrace.readers`: what else than a TOML file may stand where a configuration does."""

import sys

import pytest

import headrace
from headrace.errors import ConfigError, MissingDependencyError

NETS = """
from headrace.errors import ConfigError, Problem

asked = []

def tables_of(path):
    asked.append(path)
    if path.is_dir():
        return {"backend": f"OnFile(path={(path / 'words').name})"}
    text = path.read_text()
    if text == "refuse":
        raise ConfigError(Problem("net", "it is cut off"))
    if text == "raise":
        raise KeyError("weights")
    if text == "list":
        return ["backend"]
    return {"backend": "OnFile", "path": path.name.replace("${", "$${"), "max": int(text)}

def knowing(path, ignore=()):
    unknown = [one for one in path.read_text().split() if one not in ignore]
    if unknown:
        raise ConfigError(Problem("net", f"{unknown[0]} is not known", file=str(path)))
    return {"backend": "OnFile", "path": path.name}
"""


class OnFile(headrace.Backend):
    """Give the path that it was made with."""

    class Options(headrace.Options):
        """A file that must exist."""

        path: headrace.FilePath

    def init(self, options, _context):
        """Keep the path."""
        self.path = options.path

    def forward(self, batch):
        """Give it."""
        for request in batch:
            request["result"] = str(self.path)


@pytest.fixture
def nets(site):
    """Install a plugin that reads ``.net`` and folders with ``words``; give the paths that it was asked for."""
    headrace.register("OnFile", OnFile, replace=True)
    table = dict.fromkeys((".net", "words", "*/deep.txt"), "hrt_nets:tables_of")
    table[".known"] = "hrt_nets:knowing"
    site.names("headrace-nets", "readers", table, {"hrt_nets": NETS})
    return lambda: sys.modules["hrt_nets"].asked if "hrt_nets" in sys.modules else []


def add_other(site, **table):
    """Install another plugin that reads."""
    site.names("headrace-other", "readers", table["keys"], {"hrt_other": NETS})


def file_of(path, text="4"):
    path.write_text(text)
    return path


def refused(source):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(source)
    return caught.value.problems


@pytest.mark.parametrize("name", ["a.net", "A.NET", "cost $5.net"])
def test_a_file_is_run_as_its_tables_say(nets, tmp_path, name):
    path = file_of(tmp_path / name)
    for source in (path, str(path)):
        with headrace.pipe(source) as pipe:
            assert pipe({"data": 1})["result"] == str(path)
            assert pipe.describe()["nodes"]["main"]["range"] == [1, 4]
    assert nets() == [path, path]
    assert headrace.plugins.reads(path)
    assert headrace.plugins.tables_of(path)["max"] == 4


def test_a_link_keeps_its_name_and_its_folder(nets, tmp_path):
    (tmp_path / "blobs").mkdir()
    link = tmp_path / "m.net"
    link.symlink_to(file_of(tmp_path / "blobs" / "0a1b"))
    with headrace.pipe(link) as pipe:
        assert pipe({"data": 1})["result"] == str(link)
    assert nets() == [link]


def test_a_relative_path_reaches_the_function_as_absolute(nets, tmp_path, monkeypatch):
    monkeypatch.chdir(file_of(tmp_path / "a.net").parent)
    headrace.PipelineConfig.load("a.net")
    assert nets() == [tmp_path / "a.net"]


def test_a_file_is_extended(nets, tmp_path):
    (tmp_path / "nets").mkdir()
    path = file_of(tmp_path / "nets" / "a.net")
    top = file_of(tmp_path / "top.toml", 'extends = "nets/a.net"\nmax = 2\n')
    with headrace.pipe(top) as pipe:
        assert pipe({"data": 1})["result"] == str(path)
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 2]
    assert nets() == [path]
    dicts = headrace.PipelineConfig.load({"extends": str(path), "instance_num": 3})
    assert dicts.plan().nodes["main"].instance_num == 3


def test_a_configuration_says_what_a_reader_shall_not_look_at(nets, tmp_path):
    path = file_of(tmp_path / "a.known", "new key")
    assert [one.message for one in refused({"extends": str(path)})] == ["new is not known"]
    top = file_of(tmp_path / "top.toml", 'extends = "a.known"\nignore = ["key", "new"]\n')
    with headrace.pipe(top) as pipe:
        assert pipe({"data": 1})["result"] == str(path)
    (problem,) = refused({"extends": str(path), "ignore": "key"})
    assert problem.message == "new is not known"


def test_ignore_without_a_reader_that_takes_it_is_an_error(nets, tmp_path):
    path = file_of(tmp_path / "a.net")
    (problem,) = refused({"extends": str(path), "ignore": ["x"]})
    assert "headrace-nets reads all that there is" in problem.message
    (problem,) = refused({"backend": "Identity", "ignore": ["x"]})
    assert (problem.path, problem.message) == ("ignore", "ignore stands beside extends")
    (problem,) = refused({"extends": str(path), "ignore": 1})
    assert problem.path == "ignore"


@pytest.mark.parametrize("name", ["words", "1/deep.txt"])
def test_a_folder_is_the_base_of_its_own_paths(nets, tmp_path, name):
    folder = tmp_path / "model"
    (folder / "1").mkdir(parents=True)
    file_of(folder / "words")
    file_of(folder / name)
    with headrace.pipe(folder) as pipe:
        assert pipe({"data": 1})["result"] == str(folder / "words")
    assert nets() == [folder]


def test_toml_is_read_by_nobody_else(site, tmp_path):
    add_other(site, keys={".toml": "hrt_other:tables_of"})
    path = file_of(tmp_path / "a.toml", 'backend = "Identity"')
    assert headrace.PipelineConfig.load(path).nodes == ("main",)
    assert not headrace.plugins.reads(path)
    assert headrace.plugins.tables_of(path) is None


def test_the_longest_suffix_counts(nets, site, tmp_path):
    add_other(site, keys={".big.net": "hrt_other:tables_of"})
    headrace.PipelineConfig.load(file_of(tmp_path / "a.big.net"))
    headrace.PipelineConfig.load(file_of(tmp_path / "b.net"))
    assert sys.modules["hrt_other"].asked == [tmp_path / "a.big.net"]
    assert nets() == [tmp_path / "b.net"]


@pytest.mark.parametrize("key", [".net", "words"])
def test_two_plugins_for_one_path_are_an_error_until_one_is_disabled(
    nets, site, tmp_path, monkeypatch, key
):
    add_other(site, keys={key: "hrt_other:tables_of"})
    (tmp_path / "model").mkdir()
    file_of(tmp_path / "model" / "words")
    path = file_of(tmp_path / "a.net") if key == ".net" else tmp_path / "model"
    (problem,) = refused(path)
    assert problem.code == "plugin"
    assert problem.file == str(path)
    assert problem.message == f"it is read by headrace-nets ({key}) and by headrace-other ({key})"
    assert "HEADRACE_PLUGINS" in problem.hint
    monkeypatch.setenv("HEADRACE_PLUGINS", "-other")
    headrace.PipelineConfig.load(path)
    assert nets() == [path]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("refuse", "it is cut off"),
        ("raise", "headrace-nets (headrace.readers, '.net') cannot read it: KeyError: 'weights'"),
        ("list", "headrace-nets (headrace.readers, '.net') gave ['backend'], not the tables"),
    ],
)
def test_a_reader_that_fails_is_an_error_with_file_and_plugin(nets, tmp_path, text, says):
    path = file_of(tmp_path / "a.net", text)
    (problem,) = refused(path)
    assert says in problem.message
    assert problem.file == str(path)
    assert nets() == [path]


def test_a_reader_that_lacks_a_library_says_which(site, tmp_path):
    modules = {"hrt_lacks": "import hrt_no_such_library"}
    site.names("headrace-lacks", "readers", {".net": "hrt_lacks:tables_of"}, modules)
    with pytest.raises(MissingDependencyError, match="hrt_no_such_library"):
        headrace.PipelineConfig.load(file_of(tmp_path / "a.net"))


@pytest.mark.parametrize("name", ["a.bin", "model"])
def test_what_nobody_reads_lists_what_is_read(nets, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x08\xff\x00") if path.suffix else path.mkdir()
    (problem,) = refused(path)
    for known in ("*/deep.txt (headrace-nets)", ".net (headrace-nets)", "words (headrace-nets)"):
        assert known in problem.hint
    assert "UTF-8" not in problem.render()
    assert nets() == []


def test_a_kind_of_file_that_a_plugin_of_ours_reads_says_what_to_install(
    site, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADRACE_PLUGINS", "")
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x08\xb3\xff")
    (problem,) = refused(path)
    assert "pip install headrace-ort" in problem.hint
    assert "UTF-8" not in problem.render()


def test_a_wrong_key_of_its_tables_names_the_file(nets, tmp_path):
    path = file_of(tmp_path / "a.net", "4")
    (problem,) = refused({"extends": str(path), "pahth": 1})
    assert "no option 'pahth'" in problem.message or "pahth" in problem.render()
    missing = tmp_path / "b.net"
    (problem,) = refused(missing)
    assert problem.code == "no_file"
