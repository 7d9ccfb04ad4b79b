"""Results that are no tensors, written as JSON: beside what pydantic itself writes."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import types
import uuid

import httpx
import numpy as np
import pydantic
import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app


class Kind(enum.Enum):
    CAT = dt.date(2024, 1, 2)


@dataclasses.dataclass
class Dated:
    day: dt.date
    more: object = None


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True, ser_json_timedelta="float")
    took_s: dt.timedelta = pydantic.Field(dt.timedelta(seconds=2), serialization_alias="tookS")


class Snake(pydantic.BaseModel):
    day: dt.date = pydantic.Field(dt.date(2024, 1, 2), serialization_alias="theDay")
    secret: pydantic.SecretStr = pydantic.SecretStr("x")
    inner: Camel = Camel()

    @pydantic.field_serializer("day", when_used="json")
    def in_full(self, day):
        return f"{day:%d.%m.%Y}"


DAY = dt.date(2024, 12, 3)
NOON = dt.datetime(2024, 12, 3, 12, 0, 0, 5, tzinfo=dt.timezone.utc)
PLAIN = [
    DAY,
    NOON,
    NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=-3))),
    dt.time(4, 5),
    dt.timedelta(days=-1, seconds=5),
    uuid.UUID(int=5),
    decimal.Decimal("1.10"),
    pathlib.Path("a/b"),
    {"ü"},
    frozenset([DAY]),
    collections.deque([1, {DAY}]),
    collections.Counter("aab"),
    ipaddress.ip_address("10.0.0.1"),
    re.compile("a+"),
    {"text": b"\xc3\xbc"},
    Kind.CAT,
    [Dated(DAY, [Dated(DAY)])],
    Snake(),
    Camel(),
    {"a": [Snake()]},
    {DAY: 1},
    {uuid.UUID(int=1): 1, decimal.Decimal("1.5"): 2, (1, "a"): 3, True: 4, 5: 6},
    {Kind.CAT: {NOON: 1}},
    [2**70, 1.5, None, True, "a"],
]


def answered(serving, result):
    """Return what `/run` and `infer` give for a result that is no tensor."""
    headrace.register("ServeResult", lambda data: result, replace=True)
    server = serving({"m": {"backend": "ServeResult"}})
    body = {"inputs": [{"name": "data", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    (output,) = httpx.post(f"{server.url}/v2/models/m/infer", json=body).json()["outputs"]
    plain = httpx.post(f"{server.url}/run/m", content=b"x").json()["result"]
    is_json = "content_type" in output.get("parameters", {})
    return plain, json.loads(output["data"][0]) if is_json else output["data"]


@pytest.mark.parametrize("result", PLAIN, ids=lambda one: type(one).__name__)
def test_results_are_written_as_pydantic_writes_them(serving, result):
    wanted = json.loads(pydantic.TypeAdapter(type(result)).dump_json(result))
    assert answered(serving, result) == (wanted, wanted)


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (pathlib.PurePosixPath("a/b"), "a/b"),
        ([pathlib.PureWindowsPath("c:/a")], ["c:\\a"]),
        ({pathlib.PurePosixPath("a"): 1}, {"a": 1}),
        ({"a": 1}.keys(), ["a"]),
        ({"a": DAY}.values(), ["2024-12-03"]),
        ({"a": 1}.items(), [["a", 1]]),
        ({"of": collections.OrderedDict(a=1).keys()}, {"of": ["a"]}),
        ([types.MappingProxyType({"a": range(2)})], [{"a": [0, 1]}]),
        ([collections.UserList([np.int8(1)])], [[1]]),
        ({np.str_("a"): 1, np.float64(0.5): 2, np.bool_(True): 3}, {"a": 1, "0.5": 2, "true": 3}),
        (Dated(DAY, {np.int64(3): np.arange(2)}), {"day": "2024-12-03", "more": {"3": [0, 1]}}),
        ({"at": np.datetime64("2024-12-03", "D")}, {"at": "2024-12-03"}),
        ({"at": np.array(["2024-12-03"], "M8[ns]")}, {"at": ["2024-12-03T00:00:00"]}),
        ({"at": np.timedelta64(2, "s")}, {"at": "PT2S"}),
        ({"text": memoryview(b"ab")}, {"text": "ab"}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_pydantic_does_not_know_is_what_it_stands_for(serving, result, wanted):
    assert answered(serving, result) == (wanted, wanted)


def test_an_iterator_is_read_once(serving):
    headrace.register(
        "ServeResult", lambda data: {"a": iter([1, DAY]), np.int64(3): iter("b")}, replace=True
    )
    server = serving({"m": {"backend": "ServeResult"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"x")
    assert answer.json() == {"result": {"a": [1, "2024-12-03"], "3": ["b"]}}


@pytest.mark.parametrize("result", [{"a": object()}, {"a": b"\xff"}, {frozenset([1]): 2}, [int]])
def test_what_json_has_no_form_for_is_an_error_that_says_so(serving, result):
    headrace.register("ServeResult", lambda data: result, replace=True)
    server = serving({"m": {"backend": "ServeResult"}}, debug_errors=True)
    answer = httpx.post(f"{server.url}/run/m", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (500, "contract")
    assert "the result cannot be written as JSON: " in answer.json()["error"]


WORDS = """
import collections, dataclasses, datetime, decimal, pathlib, uuid
import headrace, numpy, pydantic


@dataclasses.dataclass
class Row:
    at: datetime.datetime
    more: object


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_timedelta="float")
    took: datetime.timedelta = datetime.timedelta(seconds=2)
    day: datetime.date = datetime.date(2024, 1, 2)

    @pydantic.field_serializer("day", when_used="json")
    def in_full(self, day):
        return f"{day:%d.%m.%Y}"


@headrace.register("ServeValues")
def values(data):
    when = datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.timezone.utc)
    return [
        when, when.date(), datetime.timedelta(days=1, seconds=5), datetime.time(4, 5), uuid.UUID(int=5),
        decimal.Decimal("1.10"), pathlib.PureWindowsPath("c:/a"), {1}, collections.deque([{"a": {2}}]),
        {"a": when}.keys(), {"a": when}.values(), {"a": 1}.items(), Row(when, {numpy.int64(3): numpy.arange(2)}),
        {"at": numpy.array(["2024-01-02"], "M8[ns]")},
        [Model(), {"m": Model()}], {when: 1, (1, 2): 2, True: 3, pathlib.PurePosixPath("a"): 4, numpy.bool_(True): 5},
    ]
"""


def test_the_command_and_the_server_write_a_result_alike(serving, tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "m.toml").write_text('import = ["words.py"]\nbackend = "ServeValues"\n')
    (tmp_path / "a.bin").write_bytes(b"x")
    files = [str(tmp_path / name) for name in ("m.toml", "a.bin")]
    printed = CliRunner().invoke(app, ["run", *files, "--json"]).stdout
    server = serving({"m": str(tmp_path / "m.toml")})
    told = httpx.post(f"{server.url}/run/m", content=b"x").json()["result"]
    assert json.loads(printed)["result"] == told
    at = "2024-01-02T03:00:00Z"
    model = {"took": 2.0, "day": "02.01.2024"}
    assert told == [
        at, "2024-01-02", "P1DT5S", "04:05:00", "00000000-0000-0000-0000-000000000005", "1.10", "c:\\a",
        [1], [{"a": [2]}], ["a"], [at], [["a", 1]], {"at": at, "more": {"3": [0, 1]}},
        {"at": ["2024-01-02T00:00:00"]}, [model, {"m": model}], {at: 1, "1,2": 2, "true": 5, "a": 4},
    ]  # fmt: skip
