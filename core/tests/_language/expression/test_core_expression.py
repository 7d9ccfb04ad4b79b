"""The composition expression: every clause of its grammar, by hand-made trees."""

import copy
import inspect
import pickle
import sys

import pytest
from expressions_by_hand import (
    Args,
    Call,
    Template,
    args,
    call,
    parse,
    read_expression,
    substitute_text,
)
from loading import refused
from refused_expressions import REFUSED

from headrace.errors import ConfigError

A, B, C, D = (Call(name) for name in "ABCD")

TREES = {
    "A": A,
    "A()": A,
    "A ( \t)\r\n": A,
    "_a.b-c/d_1": Call("_a.b-c/d_1"),
    "cv:ResizeMat": Call("cv:ResizeMat"),
    "A[B]": call("A", B),
    " A [ B , C ] ": call("A", B, C),
    "A[B[C[D]]]": call("A", call("B", call("C", D))),
    "A[B;C]": Call("A", Args(), ((B,), (C,))),
    "A[B,C;D;A]": Call("A", Args(), ((B, C), (D,), (A,))),
    "(or)B": call("B", prefix=args("or")),
    "(.onnx)B": call("B", prefix=args(".onnx")),
    "(key=mask)B": call("B", prefix=args(key="mask")),
    "(or,key=k)B(1)[C]": call("B", C, options=[1], prefix=args("or", key="k")),
    "S[A,(or)B[C]]": call("S", A, call("B", C, prefix=args("or"))),
    "HasKey(mask)[A,B]": call("HasKey", A, B, options=["mask"]),
    "Loop(until=done,limit=10)[A]": call("Loop", A, until="done", limit=10),
    "A(true,false,none)": call("A", options=[True, False, None]),
    "A(True,None,FALSE)": call("A", options=["True", "None", "FALSE"]),
    "A(1,+1,-1,-0,007)": call("A", options=[1, 1, -1, 0, 7]),
    "A(1.5,1e5,-1e-3,2.0e+1,-0.0)": call("A", options=[1.5, 1e5, -0.001, 20.0, -0.0]),
    "A(.5,1.,1E5,1e,--1,1.2.3,1_0)": call(
        "A", options=[".5", "1.", "1E5", "1e", "--1", "1.2.3", "1_0"]
    ),
    "A(1x3,.onnx,cuda:0,/a/b,a@b%c~d*+-)": call(
        "A", options=["1x3", ".onnx", "cuda:0", "/a/b", "a@b%c~d*+-"]
    ),
    r'A("a b","","1","true","\n\u00e9\ud83d\ude00\"\\\/")': call(
        "A", options=["a b", "", "1", "true", '\né\U0001f600"\\/']
    ),
    r"A('a b','\n','\"','')": call("A", options=["a b", r"\n", r"\"", ""]),
    "A('é','\"')": call("A", options=["é", '"']),
    "A([])": call("A", options=[()]),
    "A([1,[x,[]],'y'],k=[true])": call("A", options=[(1, ("x", ()), "y")], k=(True,)),
    "A(B())": call("A", options=[B]),
    "A(B)": call("A", options=["B"]),
    "A(B(1))": call("A", options=[call("B", options=[1])]),
    "A(k=B[C;D])": call("A", k=Call("B", Args(), ((C,), (D,)))),
    "A(B (x) [C],y)": call("A", options=[call("B", C, options=["x"]), "y"]),
    "A([B[C],1])": call("A", options=[(call("B", C), 1)]),
    "A(true())": call("A", options=[Call("true")]),
    "A(none=1,_x9=2)": call("A", none=1, _x9=2),
    "A($$,$x,a$,a{{b}},$${X}})": call("A", options=["$$", "$x", "a$", "a{b}", "${X}"]),
    "A('$$ { } {x} $x {{','$${X}','{{node_name}}')": call(
        "A", options=["$$ { } {x} $x {{", "${X}", "{node_name}"]
    ),
    r'A("\u0024{X}")': call("A", options=["${X}"]),
    "A(" + "9" * 640 + ")": call("A", options=[10**640 - 1]),
}


@pytest.mark.parametrize("text", TREES)
def test_tree(text):
    tree = parse(text)
    assert tree == TREES[text]
    assert hash(tree) == hash(TREES[text])
    assert parse(str(tree)) == tree
    assert str(parse(str(tree))) == str(tree)


@pytest.mark.parametrize("text", REFUSED)
def test_refused_with_its_place(text):
    (problem,) = refused(parse, text).problems
    start, end = problem.span
    assert start == REFUSED[text]
    assert start <= end <= len(text)
    assert problem.text == text
    assert problem.code in {"syntax", "placeholder"}
    assert "^" in problem.render()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A[B", "'[' is never closed"),
        ("A[B", "ended after 3 characters"),
        ("A(a=1,a=2)", "key 'a' stands twice"),
        ("A(a=1,2)", "positional value after 'a'"),
        ("A[B,(x)]", "expected a name, got ']'"),
        ("A[B](c)", "A(c)[B]"),
        ("A[B x]", "expected ',', ';' or ']'"),
        ("A[]", "empty brackets"),
        ("A[1]", "expected a name"),
        ("A[64,64]", "Options stand in ( ), backends in [ ]."),
        ('A("\u200b")', "Write it as \\u200b between double quotes.\n"),
        ("A('\u200b')", "Write it as \\u200b between double quotes."),
        ('A("\ud800")', "A lone surrogate cannot be encoded"),
        ("A({x})", "{node_name}"),
        ("A,B", "S[A,B]"),
    ],
)
def test_refusal_says_what_was_expected(text, words):
    error = refused(parse, text)
    assert words in f"{error}\n"


@pytest.mark.parametrize("value", [None, b"A", 1, A, ["A"]])
def test_only_text_is_parsed(value):
    with pytest.raises(TypeError):
        parse(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A(1)", "A(1.0)"),
        ("A(1)", "A(true)"),
        ("A(1)", "A('1')"),
        ("A(0.0)", "A(-0.0)"),
        ("A(none)", "A('none')"),
        ("A(b)", "A(b())"),
        ("A([b])", "A(b)"),
        ("A[B,C]", "A[B;C]"),
        ("(b)A", "A(b)"),
        ("A(${X})", "A('${X}')"),
        ("A(${X})", "A('$${X}')"),
        ("cv:A", "A"),
    ],
)
def test_unequal(one, other):
    assert parse(one) != parse(other)


def test_blanks_quotes_and_places_do_not_count():
    assert parse("A(b, c=1)[ D ]") == parse("A('b',c=1)[D]")
    assert len({parse("A[B]"), parse(" A[B]"), call("A", B)}) == 1
    assert parse("A") != "A"


def test_canonical_text():
    tree = parse(" ( or ) A ( 'b' , 'c d' , k = [ 1 , \"2\" ] ) [ B ( ) , C ; D ] ")
    assert str(tree) == '(or)A(b,"c d",k=[1,"2"])[B,C;D]'
    assert repr(tree) == f"parse({str(tree)!r})"
    assert repr(tree.args) == '<Args (b,"c d",k=[1,"2"])>'


def test_places():
    text = " (or)A(b, k = [1]) [ B , C(x[D]) ]"
    tree = parse(text)

    def shown(span):
        return text[slice(*span)]

    assert tree.text is text
    assert shown(tree.span) == text.strip()
    assert shown(tree.name_span) == "A"
    assert shown(tree.prefix.span) == "(or)"
    assert shown(tree.args.span) == "(b, k = [1])"
    assert [shown(span) for span in tree.args.spans] == ["b", "k = [1]"]
    assert shown(tree.args.span_of(0)) == "b"
    assert shown(tree.args.span_of("k")) == "k = [1]"
    last = tree.children[1]
    assert shown(last.span) == "C(x[D])"
    assert shown(last.args.positional[0].span) == "x[D]"
    assert last.args.positional[0].text is text
    assert parse(" A() ").span == (1, 4)
    assert A.span is None
    assert args(1).span_of(0) is None


def test_attributes():
    tree = parse("cv:R(1,a=2)[A;B,C]")
    assert (tree.name, tree.plugin, tree.part) == ("cv:R", "cv", "R")
    assert (A.plugin, A.part, A.prefix, A.phases, A.children) == (None, "A", None, (), ())
    assert tree.children == (A, B, C)
    assert tree.args.positional == (1,)
    assert tree.args.named == (("a", 2),)
    assert len(tree.args) == 2
    placeholder = parse("${P:-cv}:R")
    assert (placeholder.plugin, placeholder.part) == ("${P:-cv}", "R")
    assert parse("${P:-cv}").plugin is None


def test_frozen_and_replaced():
    tree = parse("A(1)[B]")
    with pytest.raises(AttributeError):
        tree.name = "B"
    with pytest.raises(AttributeError):
        del tree.args.named
    assert tree.replace(name="C") == parse("C(1)[B]")
    assert tree.replace(name="C").span == tree.span
    assert tree == parse("A(1)[B]")


N = 12_000  # far beyond what Python, and what its C code, does call by call


def nested(levels):
    """Nest in each way of the grammar: the text and where the innermost name or list stands."""
    brackets, lists = "A[" * levels + "B" + "]" * levels, "[" * levels + "]" * levels
    options = "A(k=" * levels + "B()" + ")" * levels
    prefixes = "(a)A[" * levels + "B" + "]" * levels
    return {
        brackets: 2 * levels,
        f"A({lists})": 1 + levels,
        options: 4 * levels,
        prefixes: 5 * levels,
        f"({lists})A": levels,
    }


@pytest.mark.parametrize("text", nested(100), ids=range(5))
def test_a_hundred_levels_are_read_from_any_depth_of_the_stack(text):
    def read(frames):
        return parse(text) if frames == 0 else read(frames - 1)

    tree = read(sys.getrecursionlimit() - len(inspect.stack()) - 60)
    assert str(tree) == text
    assert tree == read_expression(text, node_name="n", environ={})
    assert pickle.loads(pickle.dumps(tree)) == copy.deepcopy(tree) == copy.copy(tree) == tree


@pytest.mark.parametrize("way", range(5))
def test_more_levels_are_refused_where_they_begin(way):
    place = list(nested(101).values())[way]
    for levels in (101, N):
        error = refused(parse, list(nested(levels))[way])
        (problem,) = error.problems
        assert len(str(error)) < 1000
        assert (problem.code, problem.message) == ("nesting", "nested more than 100 levels deep")
        assert problem.span[0] == place


def test_a_variable_may_not_bring_in_more_levels():
    found = refused(read_expression, "A(${X})", node_name="n", environ={"X": "A(" * N})
    assert found.problems[0].code == "nesting"


@pytest.mark.parametrize(
    ("character", "named", "hint"),
    [
        ("\u200b", "U+200B ZERO WIDTH SPACE", "Remove it"),
        ("\x07", "U+0007", "Remove it"),
        ("\u00e9", "U+00E9 LATIN SMALL LETTER E WITH ACUTE", "Put the text in quotes"),
    ],
)
def test_a_character_that_may_not_stand_there_is_named_where_it_stands(character, named, hint):
    (problem,) = refused(parse, f"AB{character}").problems
    assert named in problem.message.split(",")[-1]
    assert problem.hint.startswith(hint)
    assert problem.span == (2, 3)


def test_digit_limit_of_the_interpreter_does_not_matter():
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this interpreter has no limit")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        tree = parse("A(-" + "9" * 640 + ")")
        assert parse(str(tree)) == tree
    finally:
        sys.set_int_max_str_digits(before)


def test_pickle_keeps_args_and_placeholders():
    tree = parse("A(${X}/y,'${Y:-a b} z')")
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree
    assert isinstance(again.args.positional[0], Template)
    assert pickle.loads(pickle.dumps(tree.args)) == tree.args
    assert again.text[slice(*again.args.spans[0])] == "${X}/y"


ENVIRON = {
    "M": "8",
    "WORD": "resnet",
    "PATH_": "/my models/é",
    "LIST": "[1,x]",
    "CALL": "S[A,B]",
    "SELF": "${M}",
    "NODE": "{node_name}",
    "EMPTY": "",
    "QUOTE": '"',
    "TRUE": "true",
    "HUGE": "1e999",
    "BAD": "\udc80",
}

SUBSTITUTED = {
    "A(max=${M})": call("A", max=8),
    "A(x${M},1${M},-${M}.5)": call("A", options=["x8", 18, -8.5]),
    "A('${M}',\"${M}\")": call("A", options=["8", "8"]),
    "A(${TRUE})": call("A", options=[True]),
    "A(model=${MODEL:-resnet})": call("A", model="resnet"),
    "A(${EMPTY:-1},${EMPTY},'${EMPTY}')": call("A", options=[1, "", ""]),
    "A(${NONE:-},${NONE:-7})": call("A", options=["", 7]),
    "A(${PATH_},${PATH_}/x.onnx)": call("A", options=["/my models/é", "/my models/é/x.onnx"]),
    "A(${LIST},'${LIST}')": call("A", options=[(1, "x"), "[1,x]"]),
    "A(${CALL})": call("A", options=[call("S", A, B)]),
    "A(${SELF},'${SELF}',x${SELF})": call("A", options=["${M}", "${M}", "x${M}"]),
    "A(${NODE},'${NODE}')": call("A", options=["{node_name}", "{node_name}"]),
    "A(${QUOTE},'a${QUOTE}b')": call("A", options=['"', 'a"b']),
    "A({node_name},{node_name}.0,'{node_name} {x}')": call("A", options=["n1", "n1.0", "n1 {x}"]),
    "F[node.{node_name}]": call("F", Call("node.n1")),
    "{node_name}[${WORD}.${M}]": call("n1", Call("resnet.8")),
    "${WORD}:B": Call("resnet:B"),
    "${CALL}": call("S", A, B),
    "A([[${M}],B(${M})[C]])": call("A", options=[((8,), call("B", C, options=[8]))]),
    "(${WORD})A": call("A", prefix=args("resnet")),
    "A($-${M},{{${M}}},'$${M}','{{node_name}}','$$')": call(
        "A", options=["$-8", "{8}", "${M}", "{node_name}", "$$"]
    ),
    r"""A("${NONE:-a b\"\u007d}",'${NONE:-a "b"}')""": call("A", options=['a b"}', 'a "b"']),
    r'A("\u0024{M} \u0024${M}")': call("A", options=["${M} $8"]),
}


@pytest.mark.parametrize("text", SUBSTITUTED)
def test_substituted(text):
    tree = read_expression(text, node_name="n1", environ=ENVIRON)
    assert tree == SUBSTITUTED[text]
    assert parse(str(tree)) == tree
    assert read_expression(str(tree), node_name="n2", environ={}) == tree
    again = str(parse(text))
    assert read_expression(again, node_name="n1", environ=ENVIRON) == tree


def test_node_name_is_always_text():
    tree = read_expression("A({node_name},1{node_name})", node_name="e5", environ={})
    assert tree == call("A", options=["e5", "1e5"])
    tree = read_expression("A({node_name})", node_name="true", environ={})
    assert tree == call("A", options=["true"])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("A(${NONE})", 2),
        ("A[B(x,k=[1,'${NONE}'])]", 11),
        ("A[B${NONE}]", 2),
        ("A[${CALL}]", 2),
        ("A[x${PATH_}]", 2),
        ("A[x${SELF}]", 2),
        ("A(${HUGE})", 2),
        ("A(${BAD})", 2),
        ("${NONE}", 0),
    ],
)
def test_not_substituted(text, start):
    (problem,) = refused(read_expression, text, node_name="n", environ=ENVIRON).problems
    assert (problem.code, problem.span[0], problem.text) == ("placeholder", start, text)


@pytest.mark.parametrize(
    ("text", "shown"), [("A({nod}-x)", "{nod}"), ("A({nod", "{nod"), ("{" * 9 + "a" * 90, None)]
)
def test_an_unknown_placeholder_is_shown_to_its_end(text, shown):
    error = refused(parse, text)
    assert f"unknown placeholder {shown or '{' + 'a' * 39!r}" in error.problems[0].message


def test_all_placeholder_problems_in_order():
    text = "A(${X},{node_name})[B(${Y}),${Z}]"
    error = refused(read_expression, text, node_name=None, environ={})
    assert [p.span[0] for p in error.problems] == [2, 7, 22, 28]


@pytest.mark.parametrize(
    "text",
    [
        f"A({'${M}' * N})",
        f"{'${M}' * N}",
        f"A[B${{{'x' * N}}}]",
        f"A({'k' * N}=)",
        f"A({'k' * N}=1,{'k' * N}=2)",
        f"A({'k' * N}=1,2)",
        f"A({'1' * N})",
        f"A[{'1' * N}]",
        f"A({{{'x' * N}}})",
    ],
)
def test_long_texts_are_cut_in_errors(text):
    error = refused(read_expression, text, node_name="n", environ={"M": "1"})
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("value", "said"), [(r'A("a\xb")', "unknown escape"), ("A[B", "'[' is never closed")]
)
def test_an_expression_from_the_environment_that_is_wrong(value, said):
    error = refused(read_expression, "${E}", node_name="n", environ={"E": value})
    assert f"in the value of ${{E}}: {said}" in str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${WORD}/x ${NONE:-a b}", "resnet/x a b"),
        ("$$ $x pa$$word$ $", "$$ $x pa$$word$ $"),
        ("$${M} $$${M} $$$", "${M} $${M} $$$"),
        ("{node_name} {{x}} {}", "{node_name} {{x}} {}"),
        ("${SELF}", "${M}"),
        ("", ""),
    ],
)
def test_text(text, expected):
    assert substitute_text(text, ENVIRON) == expected


@pytest.mark.parametrize(
    ("text", "starts"), [("a ${NONE} ${", [2, 10]), ("${a b}", [0]), ("${A:-${B}}", [0])]
)
def test_text_refused(text, starts):
    error = refused(substitute_text, text, ENVIRON)
    assert [p.span[0] for p in error.problems][: len(starts)] == starts


PATHS = [
    "C:\\models\\net.onnx",
    "C:\\new folder\\net v2.onnx",
    "..\\net.onnx",
    "\\\\server\\share\\net.onnx",
    "/data/my model.onnx",
    "/models/net (1).onnx",
    "/data/net[2].onnx",
    "/data/a=b.onnx",
    "/data/a&b;c#1.onnx",
    "~/it's.onnx",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "where", ["A({})", "A(model={})", "A( {} , x=3)", "A([1,{}])", "S[A,B(a={})[C]]", "S[({})A]"]
)
def test_a_path_without_quotes_is_told_how_it_is_written(where, path):
    with pytest.raises(ConfigError) as caught:
        parse(where.format(path))
    (found,) = caught.value.problems
    begin = where.index("{}")
    assert begin <= found.span[0] < begin + len(path)
    quoted = found.hint.partition(": ")[2]
    assert parse(f"A({quoted})").args.positional == (path,)
    assert "^" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["A(b c)", "A( 'a/b' c)", "A[B\\c]", "A(a=1 b=2)", "A/b\\c", "A(x) /b"]
)
def test_what_is_no_path_is_not_taken_for_one(text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "path" not in str(caught.value)
