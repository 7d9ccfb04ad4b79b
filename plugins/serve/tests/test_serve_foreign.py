"""Pages of other origins change nothing where no key says whose a request is; loads are counted by their outcome."""

from __future__ import annotations

import httpx
import pytest

import headrace
from headrace.errors import ConfigError

LOAD = "/v2/repository/models/m/load"
ELSEWHERE = {"Origin": "https://elsewhere.example"}


def test_a_page_of_another_origin_changes_nothing(serving):
    server = serving({"m": {"backend": "Identity"}}, allow=["repository"])
    before = server._service.models.find("m").pipe
    for path in (
        LOAD,
        "/v2/repository/models/m/unload",
        "/run/m",
        "/v2/models/m/infer",
        "/v2/models/m/versions/1/generate_stream",
        "/v2/repository/index",
        "/nothing",
    ):
        for origin in (ELSEWHERE["Origin"], "null", "https://127.0.0.1"):
            answer = httpx.post(f"{server.url}{path}", headers={"Origin": origin})
            assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    assert server._service.models.find("m").pipe is before
    assert httpx.get(f"{server.url}/v2/models/m", headers=ELSEWHERE).status_code == 200


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),  # curl, or another program
        (200, {"Sec-Fetch-Site": "same-origin"}),
        (200, {"Sec-Fetch-Site": "none"}),  # typed by a person
        (403, {"Sec-Fetch-Site": "cross-site"}),
        (403, {"Sec-Fetch-Site": "cross-site", "Origin": "null"}),
        (403, {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}),
        (403, {"Origin": "http://localhost:1"}),
        (403, {"Origin": "http://localhost.elsewhere.example"}),
        (200, {"Origin": "http://localhost"}),
    ],
)
def test_a_browser_says_where_a_form_comes_from(plain, status, headers):
    """Fetch Metadata (W3C) and RFC 6454, section 7.3."""
    given = {"Host": "localhost", "Content-Type": "text/plain", **headers}
    assert httpx.post(f"{plain.url}/run/m", content=b"x", headers=given).status_code == status


def test_two_origins_are_none_of_the_servers(serving):
    server = serving({"m": {"backend": "Identity"}}, cors_origins=["https://a.example"])
    for origins in (("http://localhost", "https://b.example"), ("https://a.example",) * 2):
        given = [("Host", "localhost"), *(("Origin", one) for one in origins)]
        assert httpx.post(f"{server.url}/run/m", content=b"x", headers=given).status_code == 403


def test_a_page_of_an_allowed_host_may_ask_behind_a_proxy_that_rewrites_the_host(serving):
    server = serving({"m": {"backend": "Identity"}}, allow_hosts=["models.example"])
    for origin, host, status in (
        ("https://models.example", "localhost", 200),
        ("https://models.example:8443", "localhost", 200),
        ("https://models.example", "models.example:443", 200),
        ("https://elsewhere.example", "localhost", 403),
    ):
        for site in ("same-origin", "cross-site"):
            given = {"Host": host, "Origin": origin, "Sec-Fetch-Site": site}
            answer = httpx.post(f"{server.url}/run/m", content=b"x", headers=given)
            assert answer.status_code == status


def test_the_own_page_and_clients_that_are_no_pages_may(serving):
    server = serving({"m": {"backend": "Identity"}}, allow=["repository"])
    for headers in ({}, {"Origin": server.url}):
        assert httpx.post(f"{server.url}{LOAD}", headers=headers).status_code == 200


def test_a_named_origin_and_one_with_a_key_may(serving, tmp_path):
    named = serving(
        {"m": {"backend": "Identity"}}, allow=["repository"], cors_origins=list(ELSEWHERE.values())
    )
    assert httpx.post(f"{named.url}{LOAD}", headers=ELSEWHERE).status_code == 200
    (tmp_path / "keys.toml").write_text(
        '[a]\nsha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"\n'
        'rights = ["repository"]'
    )
    keyed = serving(
        {"m": {"backend": "Identity"}}, allow=["repository"], keys=tmp_path / "keys.toml"
    )
    headers = {**ELSEWHERE, "X-API-Key": "key"}
    assert httpx.post(f"{keyed.url}{LOAD}", headers=headers).status_code == 200


def test_loads_are_counted_by_their_outcome_and_statistics_begin_anew(serving, tmp_path):
    pytest.importorskip("prometheus_client")
    path = tmp_path / "m.toml"
    path.write_text('backend = "Identity"')
    server = serving({"m": str(path), "n": {"backend": "Identity"}}, allow=["repository"])

    def counted():
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        return sorted(one for one in lines if one.startswith("headrace_serve_loads_total"))

    def statistics(name):
        (found,) = httpx.get(f"{server.url}/v2/models/{name}/stats").json()["model_stats"]
        success = found["inference_stats"]["success"]["count"]
        return (
            success,
            found["inference_count"],
            found["execution_count"],
            found["last_inference"] > 0,
        )

    assert counted() == []
    for name in "mn":
        assert httpx.post(f"{server.url}/run/{name}", content=b"x").status_code == 200
    assert statistics("m") == (1, 1, 1, True)
    assert httpx.post(f"{server.url}{LOAD}").status_code == 200
    assert statistics("m") == (0, 0, 0, False)
    assert statistics("n") == (1, 1, 1, True)
    path.write_text('backend = "ServeNobodyAtAll"')
    assert httpx.post(f"{server.url}{LOAD}").status_code == 500
    with pytest.raises(ConfigError):
        server.reload()
    path.write_text('backend = "Identity"')
    server.reload()
    assert httpx.post(f"{server.url}/v2/repository/models/n/unload").status_code == 200
    rows = {("load", "failed"): 1, ("load", "ok"): 1, ("reload", "failed"): 1}
    rows |= {("reload", "ok"): 1, ("unload", "ok"): 1}
    assert counted() == [
        f'headrace_serve_loads_total{{kind="{kind}",outcome="{outcome}"}} {count:.1f}'
        for (kind, outcome), count in sorted(rows.items())
    ]


def test_a_pipeline_that_a_reload_does_not_change_goes_on_counting(serving):
    with headrace.pipe({"backend": "Identity"}) as pipe:
        server = serving({"m": pipe})
        httpx.post(f"{server.url}/run/m", content=b"x")
        server.reload()
        (found,) = httpx.get(f"{server.url}/v2/models/m/stats").json()["model_stats"]
        assert (found["inference_count"], found["execution_count"]) == (1, 1)
