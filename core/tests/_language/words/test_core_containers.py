"""The containers: S with its prefixes, CatSplit, and what divides a batch."""

from __future__ import annotations

import pytest
from loading import Divides, load

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ConfigError,
    NoResultError,
    RequestsFailed,
    SetupError,
)
from headrace.words import Bracket

seen: list = []


def backend(function, **body):
    """Make a backend of a function of one request; None writes no result."""

    def forward(self, batch):
        seen.append((self._label(), [request["data"] for request in batch]))
        outcomes = []
        for request in batch:
            try:
                result = function(request)
            except ValueError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            if result is not None:
                request["result"] = result
        return outcomes

    return type("Made", (headrace.Backend,), {"forward": forward, **body})


def failing(bad, **body):
    """Make a backend that fails this data and passes all other on."""

    def give(request):
        if request["data"] == bad:
            raise ValueError(bad)
        return request["data"]

    return backend(give, **body)


def failed(config, requests):
    """Give the errors of requests that run in one batch, of which some fail."""
    with headrace.pipe(config) as pipe, pytest.raises(RequestsFailed) as caught:
        pipe(requests)
    return caught.value.errors


class Whole(headrace.Backend):
    """Raises for the whole batch when one item is bad."""

    def forward(self, batch):
        seen.append(("Whole", [request["data"] for request in batch]))
        for request in batch:
            if "bad" in request["data"]:
                raise ValueError("bad")
        for request in batch:
            request["result"] = request["data"]


class Fix(headrace.Backend):
    """Gathers the data of a batch in the first result."""

    def forward(self, batch):
        seen.append(("Fix", [request["data"] for request in batch]))
        for request in batch:
            request["result"] = [r["data"] for r in batch]


class Infer(headrace.Backend):
    def forward(self, batch):
        seen.append(("Infer", [(r["data"], r.get("request_size")) for r in batch]))
        for request in batch:
            if "bad" in request["data"]:
                raise ValueError("bad in the batch")
            request["result"] = [f"{data}!" for data in request["data"]]


class Rerun(Infer):
    rerun = True


class Split(headrace.Backend):
    def forward(self, batch):
        for index, request in enumerate(batch):
            request["result"] = request["data"][index]


class Needs(headrace.Backend):
    class Options(headrace.Options):
        model: str
        only: int = 0

    def init(self, options, context):
        self.model = options.model

    def forward(self, batch):
        for request in batch:
            request["result"] = self.model


class Ends(headrace.Backend):
    def init(self, options, context):
        context.batch.at_end(lambda: None)

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


@pytest.fixture(autouse=True)
def backends(nothing_registered):
    seen.clear()
    table = {
        "Inc": backend(lambda r: r["data"] + 1),
        "Even": backend(lambda r: r["data"] if r["data"] % 2 == 0 else None),
        "Never": backend(lambda r: None),
        "Neg": backend(lambda r: -r["data"]),
        "Str": backend(lambda r: f"<{r['data']}>"),
        "FailOnBad": failing("bad"),
        "One": backend(lambda r: r["data"], max=1),
        "FailOnX": failing("x!"),
        "OneBad": failing("bad", max=1),
        "TwoUp": backend(lambda r: r["data"], min=2),
        **{cls.__name__: cls for cls in (Ends, Whole, Fix, Infer, Rerun, Split, Divides)},
        "Contiguous": backend(lambda r: r["data"]),
        "Post": backend(lambda r: [f"{x}?" for x in r["data"]]),
        "NeedsA": Needs,
    }
    for name, cls in table.items():
        headrace.register(name, cls)


def outcomes(expression, data, keys=None, **more):
    """Run a list in one batch; give the result of each, or the class of its error."""
    requests = [{"data": d, **(keys or {}).get(i, {})} for i, d in enumerate(data)]
    with headrace.pipe({"backend": expression, "max": 64, **more}) as pipe:
        try:
            pipe(requests)
            errors = [None] * len(requests)
        except RequestsFailed as failed:
            errors = failed.errors
    for request, given in zip(requests, data, strict=True):
        assert request["data"] is given
    return [
        r.get("result") if e is None else type(e) for r, e in zip(requests, errors, strict=True)
    ]


# S.


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("S[Inc,Inc,Neg]", [-3, -4]),  # one after the other
        ("Sequential[Inc]", [2, 3]),
        ("S[Even,Inc]", [NoResultError, 3]),  # who has no result fails at the next plain element
        ("S[Even,Inc,Inc]", [NoResultError, 4]),
        ("S[Inc,Even]", [2, NoResultError]),
        ("S[Even,(or)Neg]", [-1, 2]),  # (or) takes who is not ready, on the data that it has
        ("S[Inc,Even,(or)Neg,Inc]", [3, -2]),
        ("S[Even,(or)Never,(or)Neg,Str]", ["<-1>", "<2>"]),
        ("S[Even,(or)Never]", [NoResultError, 2]),
        ("S[Inc,(or)Neg]", [2, 3]),
        ("S[Even,(or)S[Inc,Neg]]", [-2, 2]),
        ("S[(key=k)Neg]", [-1, 2]),  # (key=k) lets in who has the key
        ("S[Inc,(key=k)Neg,Str]", ["<-2>", "<3>"]),
        ("S[Even,(key=k)Neg,(or)Str]", ["<1>", 2]),
        ("S[Never,(or,key=k)Neg,(or)Str]", [-1, "<2>"]),
        ("S[Inc,(or,key=k)Neg]", [2, 3]),
        ("S[(key=k)Never,(or)Str]", ["<1>", 2]),
        ("Divides(k)[Neg,Str]", [-1, "<2>"]),
    ],
)
def test_what_comes_of_two_items_of_which_the_first_has_a_key(expression, expected):
    assert outcomes(expression, [1, 2], {0: {"k": None}}) == expected


def test_who_has_a_result_stays_beside_one_that_has_none():
    assert outcomes("S[Even,Inc,Inc]", [2, 4, 1, 6]) == [4, 6, NoResultError, 8]


def test_who_is_passed_by_stays_as_it_is():
    outcomes("S[Even,(or)Neg,Str]", [1, 2])
    assert seen == [("Even", [1, 2]), ("Neg", [1]), ("Str", [-1, 2])]


def test_an_item_that_fails_is_passed_on_to_nobody():
    assert outcomes("S[FailOnBad,Str]", ["a", "bad", "c"]) == ["<a>", BackendError, "<c>"]
    assert seen == [("FailOnBad", ["a", "bad", "c"]), ("Str", ["a", "c"])]
    assert outcomes("S[OneBad,Str]", ["a", "bad", "c"]) == ["<a>", BackendError, "<c>"]


def test_an_element_of_max_one_runs_item_by_item_and_does_not_count():
    keys = {0: {"request_size": 5}, 1: {"request_size": 3}}  # one item, whatever its weight
    assert outcomes("S[One,Inc]", [1, 2, 3], keys) == [2, 3, 4]
    assert seen == [("One", [1]), ("One", [2]), ("One", [3]), ("Inc", [1, 2, 3])]


def test_an_element_with_too_few_items_left_fails_them_or_is_filled_up():
    text = "S[FailOnBad,TwoUp]"
    assert outcomes(text, ["a", "bad"], min=2) == [BatchRangeError, BackendError]
    seen.clear()
    assert outcomes(text, ["a", "bad"], min=2, pad=True) == ["a", BackendError]
    assert seen[-1] == ("TwoUp", ["a", "a"])


@pytest.mark.parametrize(
    ("left", "weights"),
    [([4, 1], [4, 1, 1]), ([1, 4], [1, 4, 1]), ([1, 2], [1, 2, 2, 1]), ([4], None), ([2, 3], None)],
)
@pytest.mark.parametrize(
    "text", ["S[FailOnBad,Six]", "CatSplit[S[FailOnBad,Fix],SixGathered,Split]"]
)
def test_copies_of_any_items_that_are_left_fill_up_exactly(text, left, weights):
    """``weights``: of the batch that runs; None where no copies give a weight of 6."""
    took = []

    def six(request):
        took.append(request.get("request_size"))
        return request["data"]

    headrace.register("Six", backend(six, min=6, max=6))
    headrace.register("SixGathered", type("SixGathered", (Infer,), {"min": 6, "max": 6}))
    keys = {i: {"request_size": weight} for i, weight in enumerate([*left, 6 - sum(left)])}
    data = [*"ab"[: len(left)], "bad"]
    found = outcomes(text, data, keys, pad=True, min=6, max=6, batching_timeout=60_000)
    if weights is None:
        assert found == [BatchRangeError] * len(left) + [BackendError]
    elif text.startswith("S["):
        assert (found, took) == ([*data[:-1], BackendError], weights)
    else:
        assert found == [*(f"{one}!" for one in data[:-1]), BackendError]
        gathered = [data[left.index(weight)] for weight in weights]
        assert seen[-1] == ("Infer", [(gathered, 6)])


@pytest.mark.parametrize(
    ("text", "named", "said"),
    [
        ("S[FailOnBad,Six]", "Six", "copies of what is left give no weight of 6 to 6"),
        (
            "CatSplit[S[FailOnBad,Fix],Six,Split]",
            "CatSplit",
            "only a weight of 4 is left for infer",
        ),
    ],
)
def test_what_no_copies_fill_up_is_told_so(text, named, said):
    headrace.register("Six", type("Six", (Infer,), {"min": 6, "max": 6}))
    requests = [{"data": "a", "request_size": 4}, {"data": "bad", "request_size": 2}]
    (error, _) = failed({"backend": text, "pad": True, "batching_timeout": 60_000}, requests)
    assert (error.weight, error.min, error.max, error.backend) == (4, 6, 6, named)
    assert said in str(error)
    assert "pad = true" not in str(error)


def test_a_batch_that_the_last_of_a_sequence_refuses_runs_none_of_it():
    with headrace.plugins.build({"backend": "S[Inc,TwoUp]", "max": 4}) as built:
        (outcome,) = built.call([{"data": 1}])
    assert isinstance(outcome, BatchRangeError)
    assert seen == []


@pytest.mark.parametrize("text", ["S[Inc,(key=k)TwoUp]", "S[Inc,(or)TwoUp]"])
def test_an_element_under_a_condition_may_not_ask_for_company(text):
    with pytest.raises(ConfigError, match="TwoUp needs at least 2"):
        load({"backend": text, "min": 2, "max": 4})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("S[Inc,(key=k)InitMadeRange(2,4)]", "InitMadeRange needs at least 2, and a branch may"),
        ("Divides(k)[InitMadeRange(2,4)]", "InitMadeRange needs at least 2, and a branch may get"),
        ("S[InitMadeRange(1,2),InitMadeRange(4,8)]", "at least 4, InitMadeRange takes at most 2"),
    ],
)
def test_ranges_that_only_init_knows_are_refused_in_plain_words(text, problem):
    class InitMadeRange(headrace.Backend):
        class Options(headrace.Options):
            positional = ("low", "high")
            low: int
            high: int

        def init(self, options, context):
            self.min, self.max = options.low, options.high

        def forward(self, batch):
            raise AssertionError("it is never built to the end")

    headrace.register("InitMadeRange", InitMadeRange, replace=True)
    with pytest.raises(SetupError) as caught:
        headrace.pipe({"backend": text, "max": 8})
    assert problem in caught.value.what
    assert "ValueError" not in str(caught.value)
    assert caught.value.node == "main"
    assert text.startswith(caught.value.backend)


def test_everything_passes_untouched():
    for data in (b"x", "x", 1.5, None, [1], {"a": 1}, object(), (1, 2)):
        for text in ("Identity", "S[Identity,Identity]"):
            (result,) = outcomes(text, [data])
            assert result is data


# CatSplit.


def test_cat_split_gathers_infers_once_and_splits():
    keys = {0: {"request_size": 2}}
    assert outcomes("CatSplit[Fix,Infer,Split]", ["a", "b", "c"], keys) == ["a!", "b!", "c!"]
    assert seen == [("Fix", ["a", "b", "c"]), ("Infer", [(["a", "b", "c"], 4)])]


def test_an_error_of_infer_fails_all_with_an_error_of_its_own_each():
    config = {"backend": "CatSplit[Fix,Infer,Split]", "max": 8}
    first, second = failed(config, [{"data": "a"}, {"data": "bad"}])
    assert type(first) is type(second) is BackendError
    assert first is not second
    assert isinstance(first.__cause__, ValueError)


def test_an_infer_that_says_rerun_is_run_for_each_item_alone():
    text = "CatSplit[Fix,Rerun,Split]"
    assert outcomes(text, ["a", "bad", "c"]) == ["a!", BackendError, "c!"]


def test_what_the_batch_that_failed_has_left_in_its_requests_is_gone_when_they_run_alone():
    class LeavesMore(Fix):
        def forward(self, batch):
            super().forward(batch)
            if len(batch) > 1:
                for request in batch:
                    request["more"] = True

    headrace.register("LeavesMore", LeavesMore)
    requests = [{"data": "a", "own": 1}, {"data": "bad"}]
    failed({"backend": "CatSplit[LeavesMore,Rerun,Split]", "max": 8}, requests)
    assert (requests[0]["result"], requests[0]["own"]) == ("a!", 1)
    assert "more" not in requests[0]


def test_an_item_that_cat_fails_is_not_gathered_again():
    class Picky(Fix):
        def forward(self, batch):
            super().forward(batch)
            return [ValueError("x") if r["data"] == "x" else None for r in batch]

    headrace.register("Picky", Picky)
    text = "CatSplit[Picky,Rerun,Split]"
    assert outcomes(text, ["a", "x", "bad"]) == ["a!", BackendError, BackendError]
    assert [data for name, data in seen if name == "Fix"] == [["a", "x", "bad"], ["a"], ["bad"]]


def test_an_item_that_split_fails_runs_no_infer_again():
    text = "CatSplit[Fix,Rerun,S[Split,FailOnX]]"
    assert outcomes(text, ["a", "x", "c"]) == ["a!", BackendError, "c!"]
    assert [name for name, _ in seen].count("Infer") == 1


def test_an_item_that_cannot_be_gathered_fails_alone():
    text = "CatSplit[S[FailOnBad,Fix],Infer,Split]"
    assert outcomes(text, ["bad", "b", "c"]) == [BackendError, "b!", "c!"]
    assert outcomes(text, ["bad", "bad"]) == [BackendError, BackendError]


def test_where_cat_fails_all_items_each_has_its_error_and_infer_does_not_run():
    config = {"backend": "CatSplit[FailOnBad,Infer,Split]", "max": 4}
    found = failed(config, [{"data": "bad"}, {"data": "bad"}])
    assert [str(one.__cause__) for one in found] == ["bad", "bad"]
    assert "Infer" not in [name for name, _ in seen]


def test_what_cat_has_left_is_filled_up_to_the_min_of_infer_where_the_node_says_pad():
    headrace.register("Least", type("Least", (Infer,), {"min": 3, "max": 8}))
    text = "CatSplit[S[FailOnBad,Fix],Least,Split]"
    assert outcomes(text, ["a", "bad", "c"]) == [BatchRangeError, BackendError, BatchRangeError]
    assert "Infer" not in [name for name, _ in seen]
    assert outcomes(text, ["a", "bad", "c"], pad=True) == ["a!", BackendError, "c!"]
    assert seen[-1] == ("Infer", [(["a", "c", "c"], 3)])
    assert outcomes(text, ["a", "bad", "bad"], pad=True) == ["a!", BackendError, BackendError]
    assert outcomes(text, ["bad"], pad=True) == [BackendError]
    weights = {0: {"request_size": 2}}
    assert outcomes(text, ["a", "bad"], weights, pad=True) == ["a!", BackendError]
    assert seen[-1] == ("Infer", [(["a", "a"], 4)])


def test_a_closed_pipeline_inside_of_infer_is_the_outcome_of_all_items():
    @headrace.register("InferClosed", replace=True)
    class InferClosed(headrace.Backend):
        def forward(self, batch):
            raise ClosedError("the one inside")._passing()

    with headrace.plugins.build({"backend": "CatSplit[Fix,InferClosed,Split]", "max": 4}) as built:
        found = built.call([{"data": "a"}, {"data": "b"}])
    assert [type(error) for error in found] == [ClosedError, ClosedError]
    assert found[0] is not found[1]


def test_the_range_of_cat_split_is_that_of_the_one_in_the_middle():
    headrace.register("Narrow", type("Narrow", (Infer,), {"min": 2, "max": 5}))
    node = headrace.explain({"backend": "CatSplit[Fix,Narrow,Split]", "max": 64})["nodes"]["main"]
    assert node["range"] == [2, 5]


def test_the_whole_form_runs():
    text = (
        "IoC[NeedsA(model=m.onnx),Infer;"
        "CatSplit[S[Contiguous,Fix],S[Contiguous,Infer,Reflect[post_processor,Identity]],Split]]"
    )
    assert outcomes(text, ["a", "b"]) == ["a!", "b!"]
    assert outcomes(text, ["a"], post_processor="Post") == ["a!?"]


# Who wrote no result.


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("Never", {}),
        ("S[Identity,S[Identity,Never]]", {}),
        ("S[Identity,BackgroundThread[Never]]", {}),
        ("BackgroundThread[S[Identity,Never]]", {}),
        ("S[Identity,Never,Identity]", {}),
        ("S[S[Inc,S[Inc,Never]],Inc]", {}),
        ("S[Never,(key=k)Inc]", {}),
        ("S[Never,(key=k)Inc]", {"k": 1}),
        ("S[Inc,(key=k)Never,(or,key=j)Inc,(key=k)Inc,Inc]", {"k": 1}),
        ("S[Ends,Never]", {}),
    ],
)
def test_the_error_names_the_backend_that_wrote_no_result(text, request_):
    with headrace.pipe({"backend": text}) as pipe, pytest.raises(NoResultError) as caught:
        pipe({"data": 1, **request_})
    assert caught.value.backend == "Never"
    assert "Never wrote no 'result'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CatSplit[Never,Infer,Split]", "cat"),
        ("CatSplit[Fix,Never,Split]", "infer"),
        ("CatSplit[Fix,Infer,S[Identity,Never]]", "CatSplit"),
    ],
)
def test_cat_split_names_which_part_wrote_no_result(text, named):
    with headrace.pipe({"backend": text}) as pipe, pytest.raises(NoResultError) as caught:
        pipe({"data": "a"})
    assert f"{named} wrote no 'result'" in str(caught.value)


# The contract of containers that others write.


class Around(headrace.Backend):
    takes = (1, None)
    bracket = Bracket(prefixes=("*", "key="))

    def init(self, options, context):
        seen.append(context.expression.prefixes)
        self.children = context.children

    def forward(self, batch):
        return self.children[0](batch)


def test_a_container_is_given_the_prefixes_of_its_children():
    headrace.register("Around", Around)
    assert outcomes("Around[(a,2,key=k)Inc,Inc]", [1]) == [2]
    assert seen[0] == ((("a", 2), {"key": "k"}), ((), {}))


@pytest.mark.parametrize("backend", ["Again", "CatSplit[Fix,Again2,Split]"])
def test_an_item_alone_is_filled_up_to_the_min_or_is_not_run_again(backend):
    weights = []

    def forward(self, batch):
        weights.append(sum(r.get("request_size", 1) for r in batch))
        Whole.forward(self, batch)

    least = {"rerun": True, "min": 2, "max": 4, "forward": forward}
    for name in ("Again", "Again2"):
        headrace.register(name, type("Again", (Whole,), least))
    assert outcomes(backend, ["a", "bad"]) == [BackendError, BackendError]
    assert weights == [2]
    assert outcomes(backend, ["a", "bad"], pad=True) == ["a", BackendError]
    assert outcomes(backend, ["a", "bad"], {k: {"request_size": 2} for k in (0, 1)})[0] == "a"
    assert set(weights[1:]) <= {2, 4}
    weights.clear()
    assert outcomes(backend, ["bad"], pad=True) == [BackendError]
    assert weights == [2]


@pytest.mark.parametrize(
    ("most", "together"),
    [([None], 64), ([1], 64), ([2, None], 2), ([4, 2], 2), ([1, 4], 4), ([1, None], 64)],
)
def test_branches_take_the_smallest_max_of_those_that_go_together(most, together):
    for number, one in enumerate(most):
        headrace.register(f"Most{number}", backend(lambda request: 1, max=one))
    text = f"Divides(k)[{','.join(f'Most{number}' for number in range(len(most)))}]"
    node = headrace.explain({"backend": text, "max": 64})["nodes"]["main"]
    assert node["range"] == [1, together]
