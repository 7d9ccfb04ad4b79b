"""Aliases, and shares of requests."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace_models import Models, UnknownModelError

VERSIONS = {f"detect:{n}": {"backend": f"Says(v{n})"} for n in (3, 4)}


def test_an_alias_serves_what_it_stands_for():
    with Models(VERSIONS, aliases={"live": "detect:3"}) as models:
        assert models("live", {"data": 0})["result"] == "v3"
        assert models["live"]({"data": 0})["result"] == "v3"
        models.alias("live", "detect")
        assert models("live", {"data": 0})["result"] == "v4"
        assert models.status()["live"]["shares"] == {"detect": 1.0}
        assert "live" in models


def test_requests_are_drawn_by_their_shares():
    drawn = iter([0.0, 0.89, 0.9, 0.99])
    shares = {"detect:3": 9, "detect:4": 1}
    with Models({**VERSIONS, "live": shares}, draw=lambda: next(drawn)) as models:
        served = [models("live", {"data": 0})["result"] for _ in range(4)]
        assert served == ["v3", "v3", "v4", "v4"]
        assert models.status()["live"]["shares"] == {"detect:3": 0.9, "detect:4": 0.1}


def test_a_key_is_always_served_by_the_same_version_and_keys_are_spread_by_the_shares():
    with Models({**VERSIONS, "live": {"detect:3": 0.9, "detect:4": 0.1}}) as models:

        def served(key):
            return models("live", {"data": 0}, key=key)["result"]

        first = {f"user {n}": served(f"user {n}") for n in range(2000)}
        assert all(served(key) == version for key, version in first.items())
        fourth = [*first.values()].count("v4")
        assert 140 <= fourth <= 260  # 200 expected, and 13 is the standard deviation
        assert served(b"user 7") == first["user 7"]


def test_more_share_moves_keys_in_one_direction_only():
    with Models({**VERSIONS, "live": {"detect:4": 0.1, "detect:3": 0.9}}) as models:
        keys = [f"{n}" for n in range(500)]
        before = {key for key in keys if models("live", {"data": 0}, key=key)["result"] == "v4"}
        models.alias("live", {"detect:4": 0.5, "detect:3": 0.5})
        after = {key for key in keys if models("live", {"data": 0}, key=key)["result"] == "v4"}
        assert before < after


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ({"detect:3": -1}, "negative"),
        ({"detect:3": 0}, "no share above 0"),
        ({"detect:3": float("inf")}, "not finite"),
        ({"detect:3": "much"}, "neither"),
        (7, "neither"),
    ],
)
def test_wrong_shares_are_refused_and_the_old_ones_stay(target, what):
    with Models(VERSIONS, aliases={"live": "detect:3"}) as models:
        with pytest.raises(ConfigError, match=what):
            models.alias("live", target)
        assert models("live", {"data": 0})["result"] == "v3"


def test_an_alias_of_an_unknown_model_or_with_the_name_of_one_is_refused():
    with Models(VERSIONS) as models:
        with pytest.raises(UnknownModelError, match=r"'live' .*Did you mean 'detect:"):
            models.alias("live", "detect:5")
        with pytest.raises(ConfigError, match="name of a model"):
            models.alias("detect", "detect:3")
        with pytest.raises(ConfigError, match="no name of a model"):
            models.alias("live:1", "detect:3")
        with pytest.raises(ConfigError, match="given shares"):
            models.load("live", {"detect:3": 1})
    with pytest.raises(UnknownModelError):
        Models(VERSIONS, aliases={"live": "other"})


def test_operations_name_models_and_no_aliases():
    with (
        Models(VERSIONS, aliases={"live": "detect:3"}) as models,
        pytest.raises(ConfigError, match=r"is an alias\s+Name one of: detect:3"),
    ):
        models.update("live")


def test_an_alias_follows_the_updates_of_its_versions():
    with Models(VERSIONS, aliases={"live": "detect:3"}) as models:
        models.update("detect:3", {"backend": "Says(new)"})
        assert models("live", {"data": 0})["result"] == "new"
        models.unload("detect:3")
        assert models.status()["live"]["state"] == "unloaded"
        assert models.status()["live"]["reason"] == "'detect:3' is unloaded"
