"""The group `headrace.fetchers`: files that a configuration names by an address."""

import os
from pathlib import Path

import pytest

import headrace
from headrace.errors import ConfigError, SetupError

FETCHERS = {"net": "hrt_net:Place"}

NET = """
import os, pathlib
from headrace.errors import ConfigError, Problem, SetupError

class Place:
    def __init__(self, address):
        if "bad" in address:
            raise ConfigError(Problem("net", f"{address} has no digest", hint="Write #1."))
        folder = pathlib.Path(os.environ["HRT_CACHE"])
        self.address, self.path = address, folder / address.rpartition("/")[2]

    def fetch(self):
        if "raises" in self.address:
            raise SetupError(f"{self.address} cannot be fetched", hint="Wait.")
        if "breaks" in self.address:
            raise OSError("broken")
        with open(os.environ["HRT_LOG"], "a") as log:
            log.write(self.address + "\\n")
        if self.address.endswith("folder"):
            self.path.mkdir(exist_ok=True)
            (self.path / "words.txt").write_text("beside")
            (self.path / "line.toml").write_text('backend = "Shows(path=words.txt)"')
        elif self.path.suffix == ".toml":
            blob = self.path.with_name("blobs") / "0a1b"  # to which it links, as in the cache of a hub
            blob.parent.mkdir(exist_ok=True)
            blob.write_text('backend = "Shows(path=words.txt)"\\nmax = 3')
            self.path.with_name("words.txt").write_text("of the link")
            self.path.unlink(missing_ok=True)
            self.path.symlink_to(blob)
        else:
            self.path.write_text(self.address)

    def origin(self):
        return {"address": self.address}
"""


class Shows(headrace.Backend):
    """Give what is in the files that it was made with."""

    class Options(headrace.Options):
        """Files."""

        path: headrace.FilePath
        more: tuple[headrace.FilePath, ...] = ()
        either: list[int] | headrace.FilePath | None = None

    def init(self, options, _context):
        """Read the files, which must be here."""
        self.said = [one.read_text() for one in (options.path, *options.more)]

    def forward(self, batch):
        """Give it."""
        for request in batch:
            request["result"] = self.said


@pytest.fixture
def net(site, tmp_path, monkeypatch):
    """Install a plugin that fetches ``net://``; give the addresses that it has fetched."""
    headrace.register("Shows", Shows, replace=True)
    site.names("headrace-net", "fetchers", FETCHERS, {"hrt_net": NET})
    log = tmp_path / "asked.txt"
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("HRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HRT_LOG", str(log))
    return lambda: log.read_text().split() if log.exists() else []


def test_files_are_fetched_as_their_node_is_built_and_not_before(net):
    address = "net://org/a.txt"
    source = {"backend": "Shows", "path": address, "more": ["net://b.txt", address]}
    config = headrace.PipelineConfig.load(source)
    found = headrace.explain(config)["nodes"]["main"]["tree"]["options"]["path"]["value"]
    assert net() == []
    assert headrace.plugins.origin_of(Path(found)) == {"address": address}
    with headrace.pipe(config) as pipe:
        assert net() == [address, "net://b.txt"]
        assert pipe({"data": 1})["result"] == [address, "net://b.txt", address]
        assert pipe.describe()["fetched"] == [{"address": one} for one in net()]


def test_a_pipeline_without_addresses_describes_none(net, tmp_path):
    (tmp_path / "a.txt").write_text("here")
    with headrace.pipe({"backend": "Shows", "path": str(tmp_path / "a.txt")}) as pipe:
        assert "fetched" not in pipe.describe()
    assert headrace.plugins.origin_of(tmp_path / "a.txt") is None
    assert net() == []


def test_a_configuration_and_what_it_extends_may_be_addresses(net, tmp_path):
    with headrace.pipe("net://org/line.toml") as pipe:
        assert pipe({"data": 1})["result"] == ["of the link"]
    (tmp_path / "top.toml").write_text('extends = "net://org/line.toml"\nmax = 2\n')
    assert headrace.PipelineConfig.load(tmp_path / "top.toml").plan().nodes["main"].range == (1, 2)
    folder = headrace.plugins.located("net://of-all/folder")
    with headrace.pipe(folder / "line.toml") as pipe:
        assert pipe({"data": 1})["result"] == ["beside"]
        assert pipe.describe()["fetched"] == [{"address": "net://of-all/folder"}]
    assert net()[:2] == ["net://org/line.toml"] * 2


@pytest.mark.parametrize(
    ("address", "says", "hint"),
    [
        ("met://a", "nothing installed fetches met:// (met://a)", "Did you mean 'net'?"),
        ("gopherus://a", "nothing installed fetches gopherus://", ""),
        ("net://bad/a", "net://bad/a has no digest", "Write #1."),
    ],
)
@pytest.mark.parametrize("key", ["path", "more", "either"])
def test_a_wrong_address_is_found_with_all_that_is_wrong(net, tmp_path, address, says, hint, key):
    value = f'["{address}"]' if key == "more" else f'"{address}"'
    lines = ['backend = "Shows"', f"{key} = {value}", "mxa = 2", 'path = "net://a.txt"']
    (tmp_path / "line.toml").write_text("\n".join(lines[: 3 if key == "path" else 4]))
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(tmp_path / "line.toml")
    assert "mxa" in str(caught.value)
    (problem,) = [one for one in caught.value.problems if says in one.message]
    assert hint in problem.hint
    assert (problem.line, problem.file) == (2, str(tmp_path / "line.toml"))
    assert net() == []


def test_what_cannot_be_had_names_backend_and_node(net):
    with pytest.raises(SetupError, match=r"net://raises/a cannot be fetched \[") as caught:
        headrace.pipe({"backend": "Shows", "path": "net://raises/a"})
    assert (caught.value.node, caught.value.backend, caught.value.hint) == (
        "main",
        "Shows",
        "Wait.",
    )
    with pytest.raises(SetupError, match="OSError: broken"):
        headrace.pipe({"backend": "Shows", "path": "net://breaks/a"})


def test_what_a_file_extends_and_cannot_be_had_is_shown_there_without_secrets(
    net, tmp_path, monkeypatch
):
    monkeypatch.setenv("TOKEN", "s3cr3t")
    (tmp_path / "top.toml").write_text('max = 2\nextends = "net://raises/${TOKEN}"\n')
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(tmp_path / "top.toml")
    (problem,) = [one for one in caught.value.problems if one.code == "fetch"]
    assert (problem.file, problem.line) == (str(tmp_path / "top.toml"), 2)
    assert "net://raises/${TOKEN} cannot be fetched" in problem.message
    assert "s3cr3t" not in str(caught.value)
    assert net() == []


def test_two_plugins_for_one_scheme_are_an_error(net, site):
    site.names("headrace-also", "fetchers", FETCHERS)
    with pytest.raises(ConfigError, match=r"net:// is fetched by headrace-also .* and .*-net"):
        headrace.pipe({"backend": "Shows", "path": "net://a.txt"})
    assert net() == []


def test_an_output_is_no_place_of_the_cache(net):
    class Writes(headrace.Options):
        path: headrace.OutputPath

    assert headrace.plugins.origin_of(Writes(path=f"net:{os.sep * 2}a.txt").path) is None
    assert net() == []
