"""--exit-on-error, with Triton's default: a model that fails ends the server, or the others serve without it."""

from __future__ import annotations

import httpx
import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace_serve import Server
from headrace_serve.operating.settings import Settings

PORT = 'name: "{}" data_type: TYPE_FP32 dims: [4]'
ONNX = (
    'backend: "onnxruntime" max_batch_size: 8'
    f" input [{{ {PORT.format('A')} }}, {{ {PORT.format('B')} }}] output [{{ {PORT.format('SUM')} }}]"
)


@pytest.fixture
def broken(repository):
    """A repository with a good model, one that is refused, one that contradicts its file, and one whose file is no network."""
    repository.write("good", ONNX)
    repository.write("refused", "max_batch_sice: 8")
    repository.write("other", ONNX.replace("[4]", "[5]"))
    repository.write("torn", ONNX)
    (repository.folder / "torn" / "1" / "model.onnx").write_bytes(b"no network")
    return repository


def settings(repository, **more):
    return Settings(models=(str(repository.folder),), port=0, **more)


@pytest.mark.parametrize("listen_first", [True, False])
def test_the_others_serve(broken, listen_first):
    server = settings(broken, exit_on_error=False, allow=("repository",)).server(
        listen_first=listen_first
    )
    with server:
        assert httpx.get(f"{server.url}/v2/models/good/ready").status_code == 200
        assert httpx.get(f"{server.url}/v2/models/other/ready").status_code == 503
        rows = httpx.post(f"{server.url}/v2/repository/index").json()
        states = {one["name"]: (one["state"], one["reason"]) for one in rows}
        assert states["good"] == ("READY", "")
        assert "'A' has the shape [-1, 5] here" in states["other"][1]
        assert {states[name][0] for name in ("other", "torn")} == {"UNAVAILABLE"}
        broken.write("other", ONNX)
        broken.write("refused", ONNX)
        for name in ("other", "refused"):
            load = httpx.post(f"{server.url}/v2/repository/models/{name}/load", json={})
            assert load.status_code == 200, load.text
            assert httpx.get(f"{server.url}/v2/models/{name}/ready").status_code == 200


def test_with_watch_it_is_never_an_error(broken):
    with settings(broken, watch=True).server() as server:
        assert httpx.get(f"{server.url}/v2/models/good/ready").status_code == 200


def test_by_default_the_server_does_not_start_and_tells_all_that_is_wrong(broken):
    with pytest.raises(HeadraceError) as caught, settings(broken).server():
        pass
    said = str(caught.value)
    for one in ("refused/config.pbtxt:1:1", "other/config.pbtxt:1:", "torn:1: ONNX Runtime"):
        assert one in said


def test_all_that_is_wrong_while_the_server_listens_is_told_too(broken):
    broken.write("refused", ONNX)
    broken.write("torn", ONNX.replace("FP32", "INT8", 1))
    with pytest.raises(ConfigError) as caught, settings(broken).server():
        pass
    assert {one.file.rsplit("/", 2)[1] for one in caught.value.problems} == {"other", "torn"}


def test_a_server_in_a_program_serves_the_others_too(broken):
    with Server(str(broken.folder), port=0, exit_on_error=False) as server:
        assert httpx.get(f"{server.url}/v2/models/good/ready").status_code == 200
    with pytest.raises(ConfigError, match="max_batch_sice"):
        Server(str(broken.folder), port=0)
