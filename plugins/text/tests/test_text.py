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
        for text, words in (("a b c", "has 5 tokens"), ("a" * 999, "has 999 characters")):
            with pytest.raises(HTTPError) as caught:
                urlopen(f"{server.url}/run/m", text.encode())
            answer = json.load(caught.value)
            assert (caught.value.code, answer["code"]) == (400, "limit")
            assert words in answer["error"]


@pytest.mark.parametrize("words", [64, 100_000])
def test_of_a_very_long_text_only_the_beginning_is_read(file, words):
    text = "a b c zoë " * words
    library = tokenizers.Tokenizer.from_file(str(file))
    library.no_padding()
    library.enable_truncation(8)
    short = text[:400]  # with whole texts it takes minutes
    wanted = library.encode(short).ids
    assert run(file, text, max_length=8)["result"].tolist() == wanted
    assert run(file, text.encode(), max_length=8)["result"].tolist() == wanted
    pair = run(file, (text, text), max_length=8)
    assert pair["result"].tolist() == library.encode(short, short).ids
    spaces = " " * 127
    assert run(file, (spaces + "a", spaces + " b"), max_length=8)["result"].tolist() == [1, 4, 2, 2]
    assert run(file, " " * 255 + "a", max_length=8)["result"].tolist() == [1, 4, 2]
    assert run(file, " " * 256 + "a", max_length=8)["result"].tolist() == [1, 2]
    with pytest.raises(errors.LimitError, match="characters, and max_length allows 256") as caught:
        run(file, text, max_length=8, too_long="refuse")
    assert caught.value.limit == 256


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
    with pytest.raises(errors.SetupError, match="is no tokenizer"):
        headrace.pipe({"backend": "Tokenize", "tokenizer": str(tmp_path / "t.json")})


ROWS = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
WAYS = {
    "mean": ROWS.astype(np.float64).mean(axis=0),
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
