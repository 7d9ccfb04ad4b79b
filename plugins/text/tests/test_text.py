"""`Tokenize`, `Pool` and `Normalize` against the library tokenizers and numpy."""

from __future__ import annotations

import json
import pickle
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

import headrace
from headrace import errors

pytestmark = pytest.mark.first("texts have the tokens of the library")

tokenizers = pytest.importorskip("tokenizers")

WORDS = ("[UNK]", "[CLS]", "[SEP]", "zoë", "a", "b", "c")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    made.enable_padding(length=20)  # which the backend switches off
    made.enable_truncation(3)
    path = tmp_path_factory.mktemp("text") / "tokenizer.json"
    made.save(str(path))
    return path


def run(file, data, **options):
    """Run one request, and return its dict."""
    request = {"data": data}
    with headrace.pipe({"backend": "Tokenize", "tokenizer": str(file), **options}) as pipe:
        pipe(request)
    return request


def encoded(file, *given):
    """Return what the library gives without padding and truncation."""
    made = tokenizers.Tokenizer.from_file(str(file))
    made.no_padding()
    made.no_truncation()
    return made.encode(*given)


@pytest.mark.parametrize("given", ["a b c", "zoë", "unknown words", "", "a " * 100])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_text_has_the_tokens_of_the_library(file, given, kind):
    request, wanted = run(file, kind(given)), encoded(file, given)
    assert request["result"].tolist() == wanted.ids
    assert request["result"].dtype == np.int64
    assert request["token_type_ids"].tolist() == wanted.type_ids
    assert request["attention_mask"].tolist() == [1] * len(wanted.ids)
    assert request["tokens"] == len(wanted.ids)


@pytest.mark.parametrize("pair", [("a", "b c"), ["zoë", b"c"]])
def test_two_texts_have_two_types(file, pair):
    texts = [one if isinstance(one, str) else one.decode() for one in pair]
    request, wanted = run(file, pair), encoded(file, *texts)
    assert request["result"].tolist() == wanted.ids
    assert request["token_type_ids"].tolist() == wanted.type_ids
    assert 1 in wanted.type_ids


def test_a_prompt_stands_before_texts_and_not_before_tokens(file):
    assert run(file, "c", prompt="a b ")["result"].tolist() == encoded(file, "a b c").ids
    wanted = encoded(file, "a b", "c").ids
    assert run(file, ("b", "c"), prompt="a ")["result"].tolist() == wanted
    assert run(file, [5, 6], prompt="a ")["result"].tolist() == [5, 6]


def test_a_long_text_is_cut_or_refused(file):
    cut = run(file, "a b c a b c", max_length=4)
    assert cut["result"].tolist() == [1, 4, 5, 2]
    assert run(file, [4, 5, 6], max_length=2)["result"].tolist() == [4, 5]
    for data in ("a b c", [4, 5, 6, 4, 5]):
        with pytest.raises(errors.LimitError, match="has 5 tokens, and max_length is 4") as caught:
            run(file, data, max_length=4, too_long="refuse")
        assert caught.value.limit == 4
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.limit, str(again)) == (4, str(caught.value))


def test_who_sends_a_text_that_is_too_long_is_told_so(file):
    serve = pytest.importorskip("headrace_serve")
    model = {"backend": "Tokenize", "tokenizer": str(file), "max_length": 4, "too_long": "refuse"}
    with serve.Server({"m": model}, port=0) as server:
        for text, words in (
            ("a b c", "has 5 tokens"),
            ("a" * 65_537, "has 65537 or more characters"),
        ):
            with pytest.raises(HTTPError) as caught:
                urlopen(f"{server.url}/run/m", text.encode())
            answer = json.load(caught.value)
            assert (caught.value.code, answer["code"]) == (400, "limit")
            assert words in answer["error"]


def cut(file, *given, most, direction="right"):
    """Return what the library gives, cut by itself."""
    made = tokenizers.Tokenizer.from_file(str(file))
    made.no_padding()
    made.enable_truncation(most, direction=direction)
    return made.encode(*given)


@pytest.mark.parametrize(("keep", "direction"), [("beginning", "right"), ("end", "left")])
def test_texts_and_pairs_are_cut_as_the_library_cuts_them(file, keep, direction):
    random = np.random.default_rng(0)
    for most in (3, 4, 7, 8):
        options = {"max_length": most, "keep": keep}
        with headrace.pipe({"backend": "Tokenize", "tokenizer": str(file), **options}) as pipe:
            for _ in range(50):
                one, two = (" ".join(random.choice(WORDS[3:], n)) for n in random.integers(0, 9, 2))
                for given in ((one,), (one, two)):
                    request = {"data": given[0] if len(given) == 1 else given}
                    pipe(request)
                    wanted = cut(file, *given, most=most, direction=direction)
                    assert request["result"].tolist() == wanted.ids
                    assert request["token_type_ids"].tolist() == wanted.type_ids


def test_blanks_cost_no_token_and_the_words_behind_them_are_read(file):
    for data in (" " * 60_000 + "a", (" " * 60_000 + "a", " " * 60_000 + "b")):
        found = run(file, data, max_length=8)["result"].tolist()
        assert found == encoded(file, *((data,) if isinstance(data, str) else data)).ids


@pytest.mark.parametrize("too_long", ["cut", "refuse"])
@pytest.mark.parametrize(
    ("text", "words", "limit"),
    [
        ("a" * 65_537, "has 65537 or more characters", 65_536),
        ("é" * 600_000, "has 1200000 bytes", 1 << 20),
        (b"a" * (1 << 21), "has 2097152 bytes", 1 << 20),
        ("\ufdfa" * 300_000, "has 147456 or more characters", 65_536),
        ("\ufdfa" * 4096, "has 73728 or more characters after normalization", 65_536),
    ],
)
def test_a_text_of_great_cost_is_refused_whatever_becomes_of_long_ones(
    file, tmp_path, text, words, limit, too_long
):
    said = json.loads(file.read_text())
    said["normalizer"] = {"type": "NFKC"}
    (tmp_path / "t.json").write_text(json.dumps(said))
    options = {"max_length": 8192, "too_long": too_long}
    for data in (text, ("a", text)):
        with pytest.raises(errors.LimitError, match=words) as caught:
            run(tmp_path / "t.json", data, **options)
        assert caught.value.limit == limit
        assert isinstance(caught.value, errors.InputError)


def test_small_letters_and_positions(file):
    assert run(file, "A ZOË b", lowercase=True)["result"].tolist() == encoded(file, "a zoë b").ids
    assert run(file, "a b")["position_ids"].tolist() == [0, 1, 2, 3]
    found = run(file, [4, 1, 5, 1, 6], padding_token=1)["position_ids"]
    assert found.tolist() == [2, 1, 3, 1, 4]  # as RoBERTa of transformers counts


def test_max_length_leaves_room_for_special_tokens(file):
    assert run(file, "a b", max_length=2)["result"].tolist() == [1, 2]
    with pytest.raises(errors.SetupError, match="max_length is 1, and a text has 2 special"):
        run(file, "a", max_length=1)
    with pytest.raises(errors.LimitError, match="3 special tokens, and max_length is 2"):
        run(file, ("a", "b"), max_length=2)


PROMPTS = {"query": "a ", "passage": "b ", "other": "c "}


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ({}, "zoë "),
        ({"prompt_name": "other"}, "c "),
        ({"input_type": "query"}, "a "),
        ({"input_type": "search_query"}, "a "),
        ({"input_type": "document"}, "b "),
        ({"input_type": "search_document"}, "b "),
        ({"input_type": "other"}, "c "),
    ],
)
def test_a_request_names_its_prompt(file, said, prompt):
    options = {"tokenizer": str(file), "prompt": "zoë ", "prompts": PROMPTS}
    request = {"data": "c", **said}
    with headrace.pipe({"backend": "Tokenize", **options}) as pipe:
        pipe(request)
    assert request["result"].tolist() == encoded(file, prompt + "c").ids


def test_a_kind_without_a_prompt_has_the_default_one(file):
    request = {"data": "c", "input_type": "document"}
    with headrace.pipe({"backend": f"Tokenize('{file}',prompt='a ')"}) as pipe:
        pipe(request)
    assert request["result"].tolist() == encoded(file, "a c").ids


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"prompt_name": "querry"}, "one of query, passage, other.*(?s:.*)Did you mean 'query'"),
        ({"prompt_name": 1}, "one of query"),
        ({"input_type": "image"}, "one of query, search_query"),
        ({"prompt_name": "query", "input_type": "query"}, "not both"),
    ],
)
def test_an_unknown_prompt_is_refused_with_those_that_there_are(file, said, words):
    options = {"tokenizer": str(file), "prompts": PROMPTS}
    with (
        headrace.pipe({"backend": "Tokenize", **options}) as pipe,
        pytest.raises(errors.InputError, match=words),
    ):
        pipe({"data": "c", **said})


def test_tokens_may_be_refused_and_the_error_names_the_client_that_sends_them(file):
    for options in ({"tokens": False}, {}):
        with pytest.raises(errors.InputError) as caught:
            run(file, [7] if not options else [4], **options)
        assert "check_embedding_ctx_length=False" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        None,
        1,
        1.5,
        [],
        [7],
        [-1],
        [1.0],
        [True],
        ["a", 1],
        ["a", "b", "c"],
        {"a": 1},
        b"\xff",
        "\ud800",
    ],
)
def test_what_is_no_text_is_refused_alone(file, data):
    requests = [{"data": "a"}, {"data": data}, {"data": "b"}]
    with (
        headrace.pipe({"backend": "Tokenize", "tokenizer": str(file), "max": 3}) as pipe,
        pytest.raises(errors.RequestsFailed) as caught,
    ):
        pipe(requests)
    assert [type(one) for one in caught.value.errors] == [type(None), errors.InputError, type(None)]
    assert requests[2]["result"].tolist() == [1, 5, 2]


def test_a_file_that_is_no_tokenizer(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(errors.SetupError, match=r"is no tokenizer[^\0]*tokenizer\.json"):
        headrace.pipe({"backend": "Tokenize", "tokenizer": str(tmp_path / "t.json")})


ROWS = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
WAYS = {
    "mean": ROWS.astype(np.float64).mean(axis=0),
    "weighted_mean": np.average(ROWS.astype(np.float64), axis=0, weights=np.arange(1, 8)),
    "mean_sqrt": ROWS.astype(np.float64).sum(axis=0) / np.sqrt(7),
    "cls": ROWS[0],
    "last": ROWS[6],
    "max": ROWS.max(axis=0),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_of_pooling(way):
    with headrace.pipe({"backend": f"Pool({way})"}) as pipe:
        found = pipe({"data": ROWS})["result"]
        half = pipe({"data": ROWS.astype(np.float16)})["result"]
        named = pipe({"data": {"last_hidden_state": ROWS, "pooler_output": ROWS[0]}})["result"]
    assert (found.dtype, half.dtype) == (np.float32, np.float32)
    assert np.allclose(found, WAYS[way], atol=1e-6)
    assert np.allclose(half, WAYS[way], atol=1e-2)
    assert np.array_equal(found, named)
    assert not np.shares_memory(found, ROWS)


def test_several_ways_are_joined_and_the_width_is_told():
    with headrace.pipe({"backend": "Pool([max,cls],width=5)"}) as pipe:
        found = pipe({"data": ROWS})["result"]
        (node,) = pipe.describe()["nodes"].values()
    assert np.array_equal(found, np.concatenate([WAYS["max"], WAYS["cls"]]))
    assert node["tree"]["built"]["outputs"]["result"]["shape"] == [None, 10]


LOGITS = np.array([2.0, -1.0, 0.5], np.float32)


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [
        ("identity", LOGITS),
        ("sigmoid", 1 / (1 + np.exp(-LOGITS.astype(np.float64)))),
        ("softmax", np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum()),
        ("tanh", np.tanh(LOGITS.astype(np.float64))),
    ],
)
def test_scores(activation, wanted):
    request = {"data": LOGITS}
    with headrace.pipe({"backend": f"Scores({activation})", "labels": ["a", "b", "c"]}) as pipe:
        pipe(request)
        huge = pipe({"data": np.array([1000, -1000, 0], np.float32)})["result"]
    assert np.allclose(request["result"], wanted, atol=1e-6)
    assert request["labels"] == ["a", "b", "c"]
    assert np.array_equal(request["logits"], LOGITS)
    assert np.isfinite(huge).all()
    with headrace.pipe({"backend": "Scores"}) as pipe:
        pipe(request)
    assert request["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_scores_of_another_number_of_classes_are_refused():
    with (
        headrace.pipe({"backend": "Scores", "labels": ["a"]}) as pipe,
        pytest.raises(errors.InputError, match=r"floats \[1\]"),
    ):
        pipe({"data": LOGITS})
    with pytest.raises(errors.SetupError, match="width is 2, and labels has 1 names"):
        headrace.pipe({"backend": "Scores(width=2)", "labels": ["a"]})


def test_a_vector_gets_the_length_1():
    with headrace.pipe({"backend": "Normalize"}) as pipe:
        assert np.allclose(pipe({"data": np.array([3.0, 4.0])})["result"], [0.6, 0.8])
        assert pipe({"data": np.zeros(3, np.float32)})["result"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("backend", "data", "words"),
    [
        ("Pool", ROWS[0], r"floats \[tokens, width\]"),
        ("Pool(mean,width=4)", ROWS, r"floats \[tokens, 4\]"),
        ("Pool", ROWS[:0], "floats"),
        ("Pool", np.ones((2, 2), np.int64), "int64"),
        ("Pool", {"other": ROWS}, "dict"),
        ("Normalize", ROWS, r"floats \[width\]"),
        ("Normalize(width=4)", ROWS[0], r"floats \[4\]"),
        ("Normalize", [1.0], "list"),
        ("Normalize", None, "NoneType"),
    ],
)
def test_other_arrays_are_refused(backend, data, words):
    with headrace.pipe({"backend": backend}) as pipe, pytest.raises(errors.InputError, match=words):
        pipe({"data": data})
