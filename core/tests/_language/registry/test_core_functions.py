"""Functions as backends: registered ones, and those that a configuration names."""

from __future__ import annotations

import collections
import functools
import textwrap

import pytest
from loading import python, write

import headrace
from headrace.errors import (
    BackendError,
    ConfigError,
    ContractError,
    InputError,
    MissingDependencyError,
    PluginError,
    RequestsFailed,
    SetupError,
)

pytestmark = pytest.mark.first("call a Python function: plain, on a batch, or asynchronous")


def answers(backend, items, **keys):
    """Run all items in one batch; per item its result, or its error."""
    requests = [dict(item) for item in items]
    with headrace.pipe({"backend": backend, "max": 16, **keys}) as pipe:
        try:
            pipe(requests)
        except RequestsFailed as failed:
            pairs = zip(requests, failed.errors, strict=True)
            return [request["result"] if error is None else error for request, error in pairs]
    return [request["result"] for request in requests]


def halve(number):
    return 12 // number


def test_a_function_is_called_per_item_and_what_it_raises_fails_its_item_alone():
    headrace.register("HalveIt", halve)
    one, zero, nothing, three = answers("HalveIt", [{"data": 1}, {"data": 0}, {}, {"data": 3}])
    assert (one, three) == (12, 4)
    assert type(zero) is BackendError
    assert isinstance(zero.__cause__, ZeroDivisionError)
    assert isinstance(nothing, InputError)
    assert nothing.key == "data"


def test_functions_compose_with_words_and_classes():
    headrace.register("UpperFn", str.upper)
    headrace.register("Tail", functools.partial(lambda start, text: text[start:], 1))
    headrace.register("Add", collections.Counter("aab").__getitem__)
    found = answers("S[UpperFn,(key=k)Tail]", [{"data": "abc", "k": 1}, {"data": "abc"}])
    assert found == ["BC", "ABC"]
    assert answers("Add", [{"data": "a"}, {"data": "b"}]) == [2, 1]


def test_a_function_that_is_decorated_keeps_being_a_function():
    @headrace.register
    def Doubled(text):  # noqa: N802 - the name in expressions
        """Write a text twice."""
        return text * 2

    @headrace.register("BatchSizes", batched=True)
    def sizes(texts):
        return [len(texts)] * len(texts)

    assert Doubled("ab") == "abab"
    assert answers("S[Doubled,Doubled]", [{"data": "a"}]) == ["aaaa"]
    assert answers("BatchSizes", [{"data": "a"}] * 3) == [3, 3, 3]
    tree = headrace.explain({"backend": "Doubled"})["nodes"]["main"]["tree"]
    assert tree["name"] == "Doubled"


def test_a_function_for_batches_gets_all_data_at_once_and_an_error_fails_all_that_were_given():
    calls = []

    def total(numbers):
        calls.append(list(numbers))
        return [sum(numbers) // n for n in numbers]

    headrace.register("TotalOver", total, batched=True)
    first, nothing, second = answers("TotalOver", [{"data": 1}, {}, {"data": 3}])
    assert (calls, first, second) == ([[1, 3]], 4, 1)
    assert isinstance(nothing, InputError)
    bad = answers("TotalOver", [{"data": 0}, {"data": 3}])
    assert [type(error.__cause__) for error in bad] == [ZeroDivisionError] * 2
    assert bad[0] is not bad[1]
    assert len(calls) == 2, "it may have had effects, so it is not run again"


@pytest.mark.parametrize(
    ("results", "message"),
    [([1], "1 results for 2 items"), ([1, 2, 3], "3 results"), ("ab", "a str"), (None, "NoneType")],
)
def test_a_wrong_number_of_results_is_a_contract_error_for_all(results, message):
    headrace.register("WrongNumber", lambda batch: results, batched=True)
    for error in answers("WrongNumber", [{"data": 1}, {"data": 2}]):
        assert isinstance(error, ContractError)
        assert message in str(error)


def test_a_sequence_that_is_no_list_is_taken_row_by_row():
    headrace.register("RowByRow", lambda batch: collections.deque(batch), batched=True)
    assert answers("RowByRow", [{"data": 1}, {"data": 2}]) == [1, 2]


def test_what_no_pipeline_can_call_is_refused():
    async def slow(data):
        return data

    class Slow:
        async def __call__(self, data):
            return data

    for function in (slow, Slow()):
        with pytest.raises(PluginError, match="asynchronous"):
            headrace.register("SlowOne", function)
    with pytest.raises(PluginError, match="name"):
        headrace.register(lambda data: data)
    with pytest.raises(PluginError, match="for functions"):
        headrace.register("Cls", type("Cls", (), {"forward": lambda self, b: None}), batched=True)


CELL = """
import headrace
@headrace.register
class CellWord:
    def forward(self, batch):
        for request in batch:
            request["result"] = {0}
@headrace.register("cell")
def function(data):
    return {0}
"""


def test_a_cell_of_a_notebook_that_is_run_again_replaces_what_it_registered():
    for value in (1, 2):
        exec(CELL.format(value), {"__name__": "__main__"})
        assert answers("CellWord", [{"data": 0}]) == [value]
        assert answers("cell", [{"data": 0}]) == [value]


def test_an_imported_file_that_has_changed_is_read_again_by_the_next_pipeline(tmp_path):
    path = tmp_path / "word.py"
    config = {"import": [str(path)], "backend": "File"}
    text = "import headrace\n{}\nheadrace.register('File', lambda data: {})\n"
    path.write_text(text.format("", 1), encoding="utf-8")
    with headrace.pipe(config) as first:
        assert first({"data": 0})["result"] == 1
        path.write_text(text.format("", 2), encoding="utf-8")  # as long, within the same second
        with headrace.pipe(config) as second:
            assert second({"data": 0})["result"] == 2
        assert first({"data": 0})["result"] == 1
        path.write_text(text.format("1 / 0", 3), encoding="utf-8")
        with pytest.raises(ConfigError, match="line 2: ZeroDivisionError"):
            headrace.pipe(config)
        path.write_text(text.format("", 2), encoding="utf-8")
        with headrace.pipe(config) as third:
            assert third({"data": 0})["result"] == 2


# Call.


def test_call_composes_what_the_configuration_names():
    assert answers("S[Call(textwrap:dedent),Call(builtins:len)]", [{"data": "  ab"}]) == [2]
    for written, code in (("int", "backend"), ("len,batched=true", "contract")):
        (failed,) = answers(f"Call(builtins:{written})", [{"data": {}}])
        assert (failed.code, failed.backend) == (code, "Call")
        assert f"It calls builtins:{written[:3]}." in str(failed)
    inline = """Call("builtins:sorted",batched=true,kwargs='{"reverse": true}')"""
    assert answers(inline, [{"data": 1}, {"data": 2}]) == [2, 1]
    table = answers("Call(textwrap:indent)", [{"data": "ab"}], kwargs={"prefix": "> "})
    assert table == ["> ab"]
    both = {"Call::kwargs": {"base": 2}}
    assert answers("Call(builtins:int)", [{"data": "101"}], **both) == [5]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("Call(nowhere_to_be_found:f)", "'nowhere_to_be_found', which cannot be found"),
        ("Call(json.nowhere:f)", "'json.nowhere'"),
        ("Call(json.decoder.deeper:f)", "'json.decoder.deeper'"),
        ("Call(textwrap)", "package.module:name"),
        ("Call('os:system; rm')", "package.module:name"),
        ("Call", "needs the option 'function'"),
        ("Call(builtins:len,kwargs='[1]')", "kwargs"),
        ("Call(builtins:len,kwargs='{1}')", "no JSON object"),
        ("Call(builtins:len)[Identity]", "takes nothing in brackets"),
    ],
)
def test_a_call_that_cannot_be_is_told_before_anything_is_built(expression, message):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": expression})
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_name_that_the_module_does_not_have_is_told_with_the_nearest_one():
    with pytest.raises(SetupError, match="textwrap has no 'dedemt'") as caught:
        headrace.pipe({"backend": "Call(textwrap:dedemt)"})
    assert (caught.value.backend, caught.value.hint) == ("Call", "Did you mean 'dedent'?")


@pytest.mark.parametrize("use", ["Call", "Forward[Call]", "S[Call,Call]"])
def test_a_call_that_an_ioc_builds_is_called_by_its_name(use):
    assert answers(f"IoC[Call(html:unescape);{use}]", [{"data": "&lt;"}]) == ["<"]


def test_a_call_is_checked_without_importing_anything(tmp_path):
    write(tmp_path / "heavy_package" / "__init__.py", "raise SystemError('imported')\n")
    write(tmp_path / "heavy_package" / "inner.py", "def work(data):\n    return data\n")
    program = textwrap.dedent("""
        import sys, headrace
        headrace.explain({"backend": "S[Call(heavy_package.inner:work),Call(colorsys:rgb_to_yiq)]"})
        try:
            headrace.explain({"backend": "Call(heavy_package.innr:work)"})
        except headrace.errors.ConfigError as error:
            print("'heavy_package.innr', which cannot be found" in str(error))
        print("heavy_package" in sys.modules, "colorsys" in sys.modules)
        try:
            headrace.pipe({"backend": "Call(heavy_package.inner:work)"})
        except headrace.errors.SetupError as error:
            print(error.node, error.backend)
    """)
    done = python("-c", program, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (["True", "False False", "main Call"], "")


def test_a_call_is_refused_where_imports_are(monkeypatch):
    config = {"backend": "S[Identity,Call(builtins:len)]"}
    with pytest.raises(ConfigError, match="not allowed") as caught:
        headrace.pipe(config, allow_import=False)
    assert [problem.code for problem in caught.value.problems] == ["import_refused"]
    with pytest.raises(ConfigError, match="not allowed"):
        headrace.explain({"backend": "Call(os:system)"}, allow_import=False)
    monkeypatch.setenv("HEADRACE_IMPORT", "maybe")
    with pytest.raises(ConfigError, match="HEADRACE_IMPORT=maybe refuses it"):
        headrace.pipe(config)


def test_a_call_whose_module_needs_a_library_says_so(tmp_path, monkeypatch):
    (tmp_path / "lacks_something.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError):
        headrace.pipe({"backend": "Call(lacks_something:nowhere_to_be_found)"})


def test_a_call_that_is_nothing_to_call_is_told_when_it_is_built():
    for path, message in (
        ("math:pi", "a float, not callable"),
        ("asyncio:sleep", "asynchronous"),
        ("textwrap:shorten", "takes other arguments than it is given: missing.* 'width'"),
        ("collections.abc:Mapping.nothing", "has no 'Mapping.nothing'"),
    ):
        with pytest.raises((SetupError, ConfigError), match=message):
            headrace.pipe({"backend": f"Call({path})"})
