"""The composition expression: round trip and refusal over generated texts and trees."""

import pickle

import pytest
from expressions_by_hand import Args, Call, parse, read_expression
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError

ALPHABET = "ab1.-/_:$ \t\n(){}[],;=+@%~*\"'\\eué\u200b\U0001f600"
PIECES = [
    *"ABx1()[]{},;=\"'$\\ \n",
    "${X}",
    "${X:-d}",
    "{node_name}",
    "$${",
    "{{",
    "}}",
    "{{node_name}}",
    "\\u0024",
    "\\ud800",
    "1e5",
    "true",
    "cv:",
    "é",
]
ENVIRON = {"X": "${X}", "Y": "1"}

names = st.from_regex(
    r"([a-z0-9][a-z0-9_.-]{0,3}:)?([A-Za-z_]|\{node_name\}|\$\{X(:-[a:]*)?\})[A-Za-z0-9_.\-/]{0,4}",
    fullmatch=True,
)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,3}", fullmatch=True)
texts = (
    st.text(st.characters(codec="utf-8"))
    | st.text(ALPHABET)
    | st.lists(st.sampled_from(PIECES)).map("".join)
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)


def _args(values):
    named = st.dictionaries(keys, values, max_size=3).map(lambda d: tuple(d.items()))
    return st.builds(Args, st.lists(values, max_size=3).map(tuple), named)


def _call(children):
    values = st.recursive(
        leaves | children.map(lambda c: c.replace(prefix=None)),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=4,
    )
    phase = st.lists(children, min_size=1, max_size=3).map(tuple)
    return st.builds(
        Call,
        names,
        _args(values),
        st.lists(phase, max_size=2).map(tuple),
        prefix=st.none() | _args(values).filter(len),
    )


trees = st.recursive(st.builds(Call, names), _call, max_leaves=6)


@given(trees)
@settings(max_examples=100, deadline=None)
def test_trees_survive_their_text(tree):
    text = str(tree)
    again = parse(text)
    assert again == tree
    assert hash(again) == hash(tree)
    assert str(again) == text
    assert pickle.loads(pickle.dumps(tree)) == tree


@given(texts)
@settings(max_examples=300, deadline=None)
@example("${node_name}")
@example("${{node_name}")
@example("$${{node_name}}")
def test_texts_survive(text):
    tree = Call("A", Args((text,)))
    assert parse(str(tree)) == tree
    assert parse(str(tree)).args.positional == (text,)
    assert read_expression(str(tree), node_name="n", environ={}) == tree


def _outcome(make):
    try:
        return make(), ()
    except ConfigError as error:
        return None, error.problems


def _check(text):
    """Whatever the text, it is a tree that survives, or refused with a place inside it."""
    tree, problems = _outcome(lambda: parse(text))
    for problem in problems:
        start, end = problem.span
        assert 0 <= start <= end <= len(text)
        assert problem.render()
    if tree is None:
        return
    again = parse(str(tree))
    assert again == tree
    assert str(again) == str(tree)
    new, problems = _outcome(lambda: read_expression(text, node_name="n", environ=ENVIRON))
    # What a placeholder brings in when it is the whole expression may be no expression.
    assert all(p.code == "placeholder" or "in the value of" in p.message for p in problems)
    if new is not None:
        assert read_expression(str(again), node_name="n", environ=ENVIRON) == new
        assert parse(str(new)) == new


@pytest.mark.parametrize("around", ["{}", "A({})", "A('{}')", 'A("{}")'])
@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
@settings(max_examples=250, deadline=None)
def test_any_text(around, text):
    _check(around.replace("{}", text))


@given(trees, st.data())
@settings(max_examples=100, deadline=None)
def test_mutated_text(tree, data):
    text = str(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        drop = data.draw(st.integers(0, 2))
        text = text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + drop :]
    _check(text)
