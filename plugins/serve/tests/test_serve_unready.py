"""A server is not ready while a model that has served has no version that serves, and the others go on."""

from __future__ import annotations

import logging
from typing import ClassVar

import httpx
import pytest
from serve_helpers import until

import headrace
from headrace.errors import InstanceLostError, SetupError
from headrace_models import Models


class ServeMortal(headrace.Backend):
    """Gives ``alive``; ``die`` ends the instance, and no other one is built while ``broken``."""

    broken: ClassVar[bool] = False

    def init(self, options, context):
        if self.broken:
            raise SetupError("there is no device left")

    def forward(self, batch):
        if batch[0]["data"] == b"die":
            raise InstanceLostError("the device is gone")
        for request in batch:
            request["result"] = b"alive"


@pytest.fixture(autouse=True)
def mortal():
    headrace.register("ServeMortal", ServeMortal, replace=True)
    ServeMortal.broken = False


MORTAL = {"backend": "ServeMortal", "max": 1}


def run(server, name, content=b"x"):
    return httpx.post(f"{server.url}/run/{name}", content=content)


def ready(server):
    return httpx.get(f"{server.url}/v2/health/ready").status_code


def test_a_model_that_cannot_be_built_again_is_named_and_the_other_one_serves(serving, caplog):
    server = serving({"m": MORTAL, "n": {"backend": "Identity"}}, allow=["repository"])
    assert ready(server) == 200
    ServeMortal.broken = True
    with caplog.at_level(logging.WARNING, "headrace.serve"):
        run(server, "m", b"die")
        why = "not ready: model 'm' has no version that serves: SetupError: there is no device left"
        until(lambda: why in caplog.text)
    assert ready(server) == 503
    assert run(server, "n").status_code == 200
    ServeMortal.broken = False
    url = f"{server.url}/v2/repository/models/m"
    assert httpx.post(f"{url}/load").status_code == 200
    assert (ready(server), run(server, "m").text) == (200, "alive")


def test_what_somebody_unloads_does_not_count_also_after_it_failed(serving):
    server = serving({"m": MORTAL, "n": {"backend": "Identity"}}, allow=["repository"])
    ServeMortal.broken = True
    run(server, "m", b"die")
    until(lambda: ready(server) == 503)
    url = f"{server.url}/v2/repository/models/m"
    until(lambda: httpx.post(f"{url}/unload").status_code == 200)
    assert ready(server) == 200


def test_one_version_that_serves_is_enough(serving):
    server = serving({"m:1": {"backend": "Identity"}, "m:2": MORTAL})
    ServeMortal.broken = True
    run(server, "m", b"die")
    until(lambda: run(server, "m").status_code == 200)
    assert ready(server) == 200


def test_what_never_served_does_not_count(serving, tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    server = serving(str(tmp_path), watch=tmp_path)
    (tmp_path / "new.toml").write_text('backend = "ServeMortal"')
    ServeMortal.broken = True
    models = server._service.models.held.models
    until(lambda: models.status().get("new", {}).get("state") == "failed")
    assert ready(server) == 200


def test_lazy_models_do_not_count(serving):
    entry = {"config": MORTAL, "preload": False}
    server = serving({"m": entry, "n": {"backend": "Identity"}})
    until(lambda: run(server, "m").status_code == 200)
    ServeMortal.broken = True
    run(server, "m", b"die")
    until(lambda: run(server, "m").status_code == 503)
    assert ready(server) == 200


def test_models_of_a_manager_count_as_well(serving):
    with Models({"m": MORTAL}) as models:
        server = serving(models)
        ServeMortal.broken = True
        run(server, "m", b"die")
        until(lambda: models.status()["m"]["state"] == "failed" and ready(server) == 503)
