"""`HasKey`, `NotHasKey` and `Random`: which way each item goes, and what becomes of the others."""

from __future__ import annotations

import random

import pytest

import headrace
import headrace_flow
from headrace.errors import (
    BackendError,
    ConfigError,
    InputError,
    NoResultError,
    RequestsFailed,
)

pytestmark = pytest.mark.first("loop, cache, limit, keep state: requests take branches")


class Sums(headrace.Backend):
    """Adds two keys, and needs no data."""

    reads = ("left", "right")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["left"] + request["right"]


class SumsNamed(Sums):
    """Does the same, and reads a key more."""

    reads = ("left", "right", "label")


class Checks(headrace.Backend):
    """Fails bad items, and passes all others on."""

    def forward(self, batch):
        outcomes = [ValueError("bad") if one["data"] == "bad" else None for one in batch]
        for request in batch:
            request["result"] = request["data"]
        return outcomes


class Silent(headrace.Backend):
    """Writes no result."""

    def forward(self, batch):
        for request in batch:
            request["seen"] = True


class Gathers(headrace.Backend):
    """Gives each item the data of its whole batch."""

    def forward(self, batch):
        for request in batch:
            request["result"] = [one["data"] for one in batch]


class Masks(headrace.Backend):
    """Writes a key that ends a loop."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["mask"] = request["data"]


def bounded(least, most):
    return type("Bounded", (Gathers,), {"min": least, "max": most})


@pytest.fixture(autouse=True)
def backends():
    table = {
        "Neg": lambda number: -number,
        "Str": lambda value: f"<{value}>",
        **{cls.__name__: cls for cls in (Sums, SumsNamed, Checks, Silent, Gathers, Masks)},
        "One": bounded(1, 1),
        "Two": bounded(1, 2),
        "Four": bounded(1, 4),
        "Pair": bounded(2, 4),
    }
    for name, made in table.items():
        headrace.register(name, made, replace=True)


def outcomes(backend, requests, **keys):
    """Run a list in one batch; give the result of each, or the class of its error."""
    with headrace.pipe({"backend": backend, "max": 64, **keys}) as pipe:
        try:
            pipe(requests)
        except RequestsFailed as failed:
            errors = failed.errors
        else:
            errors = [None] * len(requests)
    return [
        one.get("result") if error is None else type(error)
        for one, error in zip(requests, errors, strict=True)
    ]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("HasKey(k)[Neg,Str]", [-1, "<2>"]),
        ("NotHasKey(k)[Neg,Str]", ["<1>", -2]),
        ("HasKey(key=k)[Neg]", [-1, 2]),
        ("NotHasKey(k)[Neg]", [1, -2]),
        ("Random(0)[Neg,Str]", ["<1>", "<2>"]),
        ("Random(1)[Neg,Str]", [-1, -2]),
        ("Random(0.0)[Neg]", [1, 2]),
        ("HasKey(k)[Gathers,NotHasKey(k)[Str,Neg]]", [[1], "<2>"]),
        ("S[HasKey(k)[Silent,Neg],(or)Str]", ["<1>", -2]),
    ],
)
def test_two_items_of_which_the_first_has_a_key(backend, expected):
    assert outcomes(backend, [{"data": 1, "k": None}, {"data": 2}]) == expected


def test_each_branch_gets_its_items_as_one_batch_in_their_order():
    requests = [{"data": number, **({"k": 1} if number % 3 == 0 else {})} for number in range(7)]
    found = outcomes("HasKey(k)[Gathers,Gathers]", requests)
    assert found == [[0, 3, 6] if number % 3 == 0 else [1, 2, 4, 5] for number in range(7)]


@pytest.mark.parametrize("backend", ["HasKey(k)[Checks,Str]", "NotHasKey(k)[Str,Checks]"])
def test_an_error_in_a_branch_stays_with_its_item(backend):
    requests = [{"data": "bad", "k": 1}, {"data": "bad"}, {"data": "x", "k": 1}]
    assert outcomes(backend, requests) == [BackendError, "<bad>", "x"]


class HidesMask(dict):
    """Refuses to say whether it has a key."""

    def __contains__(self, key):
        if key == "mask":
            raise TypeError("contains")
        return super().__contains__(key)


class IsFixed(dict):
    """Refuses to be changed or copied."""

    def keys(self):
        raise TypeError("keys")

    def __setitem__(self, key, value):
        raise TypeError("set")


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("HasKey(mask)[Identity]", HidesMask),
        ("NotHasKey(mask)[Identity,Identity]", HidesMask),
        ("HasKey(other)[Identity]", IsFixed),
        ("Loop(until=mask)[Masks]", HidesMask),
        ("Send(q)", IsFixed),
        ("Observer(q)", IsFixed),
    ],
)
def test_an_item_that_cannot_be_asked_or_passed_fails_alone(backend, kind):
    with headrace.plugins.build({"backend": backend, "max": 8}) as built:
        first, bad, last = requests = [{"data": 1}, kind(data=2), {"data": 3}]
        found = built.call(requests)
    assert isinstance(found[1], BackendError)
    assert (found[0], found[2], first["result"], last["result"]) == (None, None, 1, 3)
    assert ("result" in bad) == backend.startswith("Loop")  # it has run once


@pytest.mark.parametrize(("options", "number"), [("", 3), (",seed=1", 1)])
def test_what_draws_by_a_seed_has_one_instance_by_auto(options, number):
    @headrace.register("DrawnCarries", replace=True)
    class Carries(headrace.Backend):
        auto_instances = classmethod(lambda cls, options, device, threads: threads)

        def forward(self, batch):
            """Is never called."""

    table = {"backend": f"Random(0.5{options})[DrawnCarries,DrawnCarries]"}
    config = {**table, "instance_num": "auto", "global": {"threads": 3}}
    assert headrace.explain(config)["nodes"]["main"]["instance_num"] == number


@pytest.mark.parametrize("seed", [3, 4])
def test_with_a_seed_the_draws_are_those_of_python(seed):
    draw = random.Random(seed).random
    expected = [-n if draw() < 0.5 else f"<{n}>" for n in range(1, 40)]
    requests = [{"data": n} for n in range(1, 40)]
    assert outcomes(f"Random(0.5,seed={seed})[Neg,Str]", requests) == expected


@pytest.mark.parametrize("index", [0, 1])
def test_each_instance_draws_numbers_of_its_own(index):
    word = headrace_flow.Random()
    context = headrace.InitContext(instance_index=index, children=(Gathers(),))
    word.init(word.Options(p=0.5, seed=7), context)
    draw = random.Random(7 + index).random
    batch = [{"data": number} for number in range(20)]
    word.forward(batch)
    passed = [request["result"] == request["data"] for request in batch]
    assert passed == [draw() >= 0.5 for _ in batch]


@pytest.mark.parametrize(
    "backend",
    ["Random[Neg]", "Random(2)[Neg]", "Random(true)[Neg]", "HasKey[Neg]", "HasKey(k)[Neg,Neg,Neg]"],
)
def test_wrong_options_and_brackets_are_refused(backend):
    with pytest.raises(ConfigError):
        headrace.PipelineConfig.load({"backend": backend})


@pytest.mark.parametrize(
    ("backend", "most"),
    [
        ("HasKey(k)[Four,Two]", 2),
        ("NotHasKey(k)[One,Four]", 4),
        ("Random(0.5)[One]", 64),
        ("HasKey(k)[Identity,Two]", 2),
    ],
)
def test_the_range_is_one_to_the_smallest_max(backend, most):
    node = headrace.explain({"backend": backend, "max": 64})["nodes"]["main"]
    assert node["range"] == [1, most]


def test_a_branch_that_asks_for_company_is_refused():
    with pytest.raises(ConfigError, match="Pair needs at least 2, and a branch may get a single"):
        headrace.PipelineConfig.load({"backend": "HasKey(k)[Pair,Four]", "max": 4})


def test_a_branch_that_wrote_no_result_is_an_error_of_its_items():
    requests = [{"data": 1, "k": 1}, {"data": 2}]
    assert outcomes("HasKey(k)[Silent,Neg]", requests) == [NoResultError, -2]


@pytest.mark.parametrize("backend", ["HasKey(label)[SumsNamed,Sums]", "Random(0.5)[Sums,Sums]"])
def test_branches_that_read_no_data_need_the_keys_that_both_read(backend):
    with headrace.pipe({"backend": backend}) as pipe:
        assert pipe({"left": 1, "right": 2})["result"] == 3
        with pytest.raises(InputError) as caught:
            pipe({"left": 1, "data": 3})
        assert (caught.value.key, caught.value.node) == ("right", "main")


@pytest.mark.parametrize(
    "backend", ["HasKey(left)[Sums]", "HasKey(left)[Sums,Identity]", "Random(0.5)[Sums]"]
)
def test_data_is_asked_for_where_an_item_may_need_it(backend):
    with headrace.pipe({"backend": backend}) as pipe:
        assert pipe({"data": 3, "left": 1, "right": 2})["result"] == 3
        with pytest.raises(InputError) as caught:
            pipe({"left": 1, "right": 2})
        assert caught.value.key == "data"


@pytest.mark.parametrize("backend", ["HasKey(mask)[Sums]", "HasKey(mask)[Sums,Identity]"])
def test_a_map_need_not_bring_the_key_that_decides_nor_what_one_branch_reads(backend):
    nodes = {
        "first": {"backend": "Identity", "next": "last"},
        "last": {"backend": backend, "map": "first[result:data]"},
    }
    with headrace.pipe(nodes) as pipe:
        assert pipe({"data": 3})["result"] == 3
