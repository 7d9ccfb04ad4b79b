"""The cache of a machine: files that a configuration names by an address, by a plugin that fetches ``net://``."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

import headrace
from headrace.errors import SetupError

NET = """
import os, pathlib, sys

def net(address):
    from headrace_models import Cached
    return Cached(address, from_net)

def from_net(address, folder):
    with open(os.environ["HRT_LOG"], "a") as log:
        log.write(address + "\\n")
    name = address.partition("://")[2]
    if name.startswith("raises"):
        raise OSError(28, "No space left on device")
    if name.startswith("dies"):
        (folder / "half").write_bytes(b"half")
        print("began", flush=True)
        sys.stdin.read()
    if name.startswith("folder"):
        (folder / "all").mkdir(exist_ok=True)
        (folder / "all" / "line.toml").write_text('backend = "Shows(path=words.txt)"')
        (folder / "all" / "words.txt").write_text("beside")
        return folder / "all"
    if name.startswith("kept"):
        kept = pathlib.Path(os.environ["HRT_KEPT"])
        (kept / "weights").write_text("w")
        (kept / "a.txt").write_text("from the other cache")
        return kept / "a.txt", "r1"
    if name.endswith(".toml"):
        (folder / "it").write_text('backend = "Identity"\\nmax = 3')
        return folder / "it"
    (folder / "file").write_text(address)
    (folder / "file.data").write_text("weights")
    return folder / "file"
"""


class Shows(headrace.Backend):
    """Give the path that it was made with, and what is in the file."""

    class Options(headrace.Options):
        """Files."""

        path: headrace.FilePath
        more: tuple[headrace.FilePath, ...] = ()

    def init(self, options, _context):
        """Read the files, which must be here."""
        self.said = [str(options.path), *(one.read_text() for one in (options.path, *options.more))]

    def forward(self, batch):
        """Give it."""
        for request in batch:
            request["result"] = self.said


@pytest.fixture
def net(tmp_path, monkeypatch):
    """Install a plugin that fetches ``net://``; give the addresses that it was asked for."""
    headrace.register("Shows", Shows, replace=True)
    about = tmp_path / "site" / "headrace_net-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-net\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[headrace.fetchers]\nnet = hrt_net:net\n")
    (tmp_path / "site" / "hrt_net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_OFFLINE", raising=False)
    monkeypatch.setenv("HRT_KEPT", str(tmp_path / "kept"))
    log = tmp_path / "asked.txt"
    monkeypatch.setenv("HRT_LOG", str(log))
    yield lambda: log.read_text().split() if log.exists() else []
    sys.modules.pop("hrt_net", None)


def shown(address, **more):
    with headrace.pipe({"backend": "Shows", "path": address, **more}) as pipe:
        return pipe({"data": 1})["result"], pipe.describe()


def test_a_file_is_fetched_as_its_node_is_built_and_once(net, tmp_path):
    address = "net://org/name@2/model.txt"
    source = {"backend": "Shows", "path": address, "more": ["net://b.txt", address]}
    config = headrace.PipelineConfig.load(source)
    headrace.explain(config)
    assert net() == []
    assert not (tmp_path / "cache").exists()
    for _ in range(2):
        with headrace.pipe(config) as pipe:
            path, *texts = pipe({"data": 1})["result"]
            assert texts == [address, "net://b.txt", address]
            assert Path(path).name == "model.txt"
            assert (tmp_path / "cache") in Path(path).parents
            assert Path(path).with_name("file.data").read_text() == "weights"
            origin = pipe.describe()["fetched"][0]
    digest = sha256(address.encode()).hexdigest()
    assert origin == {"address": address, "revision": None, "sha256": digest}
    assert headrace.plugins.origin_of(Path(path)) == origin
    assert net() == [address, "net://b.txt"]


def test_what_another_cache_holds_is_linked_with_all_that_lies_beside_it(net, tmp_path):
    (path, text), described = shown("net://kept/a.txt")
    assert text == "from the other cache"
    assert Path(path).with_name("weights").read_text() == "w"
    assert described["fetched"][0]["revision"] == "r1"
    (path, text), _ = shown("net://kept/b.txt")  # under the name of its address
    assert (Path(path).name, text) == ("b.txt", "from the other cache")
    for one in (tmp_path / "kept").iterdir():  # somebody empties the other cache
        one.unlink()
    assert shown("net://kept/a.txt")[0][1] == "from the other cache"
    assert net() == ["net://kept/a.txt", "net://kept/b.txt", "net://kept/a.txt"]


def test_a_folder_is_fetched_as_a_whole(net):
    folder = headrace.plugins.located("net://folder/of-all")
    with headrace.pipe(folder / "line.toml") as pipe:
        assert pipe({"data": 1})["result"][1] == "beside"
        assert pipe.describe()["fetched"] == [headrace.plugins.origin_of(folder)]
    assert net() == ["net://folder/of-all"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("net://raises/a", "net://raises/a cannot be fetched: OSError: [Errno 28] No space left"),
        ("net://raises/a", "HEADRACE_CACHE names another cache"),
    ],
)
def test_what_cannot_be_had_is_an_error_with_its_address(net, tmp_path, address, says):
    with pytest.raises(SetupError) as caught:
        shown(address)
    assert says in str(caught.value)
    assert not [*(tmp_path / "cache").rglob("whole")]
    assert net() == [address]


def test_offline_fetches_nothing_and_takes_what_is_here(net, monkeypatch):
    before = shown("net://a.txt")[0]
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    assert shown("net://a.txt")[0] == before
    with pytest.raises(SetupError, match=r"net://b\.txt is not here(?s:.*)headrace check CONFIG"):
        shown("net://b.txt")
    assert net() == ["net://a.txt"]


@pytest.mark.parametrize(
    "name", ["..", ".", "../../evil", "%2e%2e", "a/../..", "~root", "x\\..\\y"]
)
def test_no_name_leads_out_of_the_cache(net, tmp_path, name):
    path = Path(shown(f"net://org/{name}")[0][0])
    assert path.parents[3] == tmp_path / "cache"
    assert os.path.normpath(path) == str(path)
    assert net() == [f"net://org/{name}"]


CHILD = "import sys, headrace; print(headrace.plugins.located(sys.argv[1]).read_text())"


def child(address, tmp_path, **more):
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, address],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


@pytest.mark.slow
def test_twenty_processes_fetch_a_file_once(net, tmp_path):
    started = [child("net://a.txt", tmp_path) for _ in range(20)]
    assert {one.communicate()[0] for one in started} == {"net://a.txt\n"}
    assert net() == ["net://a.txt"]


def test_threads_fetch_a_file_once(net):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(shown("net://a.txt")[0])) for _ in "abcd"
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4
    assert net() == ["net://a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_a_process_that_is_killed_leaves_nothing_that_passes_for_whole(net, tmp_path):
    address = "net://dies/a.txt"
    with child(address, tmp_path, stdin=subprocess.PIPE) as one:
        assert one.stdout.readline() == "began\n"
        one.send_signal(signal.SIGKILL)
    place = tmp_path / "cache" / "fetched"
    assert [*place.rglob("half")]
    assert not [*place.rglob("whole")]
    assert not [*place.rglob("origin.json")]
    with child(
        address, tmp_path, stdin=subprocess.DEVNULL
    ) as again:  # the lock is free, and it goes on
        assert again.communicate()[0] == f"began\n{address}\n"
    (said,) = place.rglob("origin.json")
    assert json.loads(said.read_text())["address"] == address
    assert net() == [address] * 2


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
@pytest.mark.parametrize("folder", ["", "fetched"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_a_cache_that_others_may_write_is_refused(net, tmp_path, folder, mode):
    shown("net://a.txt")
    (tmp_path / "cache" / folder).chmod(mode)
    with pytest.raises(SetupError, match=f"has the mode {mode:o}: others may change"):
        shown("net://a.txt")
    (tmp_path / "cache" / folder).chmod(0o755)
    assert shown("net://a.txt")[0][1] == "net://a.txt"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone gives away")
def test_a_cache_of_another_user_is_refused(net, tmp_path):
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.raises(SetupError, match="belongs to the user 12345"):
        shown("net://a.txt")
    assert net() == []


def test_a_file_that_has_changed_is_fetched_again_with_what_lies_beside_it(net):
    path = Path(shown("net://a.txt")[0][0])
    for name in ("a.txt", "file.data"):
        path.with_name(name).write_text("other")
        (found, text), described = shown("net://a.txt")
        assert (found, text) == (str(path), "net://a.txt")
        assert path.with_name("file.data").read_text() == "weights"
        assert described["fetched"][0]["sha256"] == sha256(b"net://a.txt").hexdigest()
    assert net() == ["net://a.txt"] * 3


def test_offline_refuses_a_file_that_has_changed(net, monkeypatch):
    Path(shown("net://a.txt")[0][0]).write_text("other")
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    with pytest.raises(SetupError, match="has changed in the cache, and nothing may be fetched"):
        shown("net://a.txt")


def test_a_file_that_is_written_while_it_is_loaded_is_refused(net):
    class Careless(Shows):
        def init(self, options, context):
            super().init(options, context)
            options.path.write_text("other")

    headrace.register("Careless", Careless, replace=True)
    with pytest.raises(SetupError, match=r"net://a\.txt: a\.txt was written while it was loaded"):
        headrace.pipe({"backend": "Careless", "path": "net://a.txt"})


@pytest.mark.parametrize("name", ["lock", "part", "new"])
def test_links_in_the_cache_lead_to_no_other_file(net, tmp_path, name):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    own = tmp_path / "cache" / "fetched" / sha256(b"net://a.txt").hexdigest()[:32]
    own.mkdir(parents=True)
    (own / name).symlink_to(precious / "file" if name == "lock" else precious)
    with contextlib.suppress(SetupError):
        shown("net://a.txt")
    assert [one.name for one in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "precious"


def test_the_query_of_an_address_is_in_no_record(net, tmp_path):
    _, described = shown("net://a.txt?token=SECRET")
    assert described["fetched"][0]["address"] == "net://a.txt"
    assert all("SECRET" not in one.read_text() for one in tmp_path.rglob("origin.json"))
    with pytest.raises(SetupError) as caught:
        shown("net://raises/b?token=SECRET")
    assert "SECRET" not in str(caught.value)
