"""Script: a generator per request, against a slow loop that calls the same functions one by one."""

from __future__ import annotations

import gc
import queue
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import (
    BackendError,
    ClosedError,
    ConfigError,
    ContractError,
    DeadlineExceededError,
    InputError,
    SetupError,
)
from headrace_flow import call

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""

HEAD = "from headrace_flow import call\n"

CASCADE = (
    HEAD
    + """
def page(request):
    boxes = yield call("detect", request["data"])
    texts = yield [call("read", box) for box in boxes]
    rounds = 0
    while sum(texts) % 7 and rounds < 5:
        texts = yield [call("read", one) for one in texts]
        rounds += 1
    return {"texts": texts, "rounds": rounds}
"""
)


def detect(number):
    return [number * place % 11 for place in range(number % 5)]


def read(box):
    return box * 3 + 1


def slow_loop(number):
    """Run the cascade in plain Python, one function after the other."""
    texts = [read(box) for box in detect(number)]
    rounds = 0
    while sum(texts) % 7 and rounds < 5:
        texts = [read(one) for one in texts]
        rounds += 1
    return {"texts": texts, "rounds": rounds}


headrace.register("ScriptDetect", detect)
headrace.register("ScriptRead", read)


class Gate:
    """What a test sees and steers of the backend ``ScriptHold``, which keeps every request, by their handles."""

    def __init__(self):
        self.came, self.context = queue.Queue(), None

    def kept(self):
        """Wait for a request that is kept."""
        return self.came.get(timeout=WAIT_S)

    def finish(self, handle, outcome):
        """End a request; ``forward`` may be about to return."""
        assert self.context.request.finish(handle, outcome)


@pytest.fixture
def gate():
    control = Gate()

    class ScriptHold(headrace.Backend):
        keeps = True
        max = 64

        def init(self, options, context):
            control.context = context

        def forward(self, batch):
            for request in batch:
                control.came.put(control.context.request.keep(request))
            return [headrace.PENDING for _ in batch]

    headrace.register("ScriptHold", ScriptHold, replace=True)
    return control


@pytest.fixture
def nodes(tmp_path):
    """A function that makes the nodes of a configuration whose first node is the script of a text."""

    def make(text, name="page", **others):
        file = tmp_path / "pages.py"
        file.write_text(text, encoding="utf-8")
        others = {
            key: one if isinstance(one, dict) else {"backend": one} for key, one in others.items()
        }
        return {"script": {"backend": f"Script('{file}:{name}')"}, **others}

    return make


@pytest.fixture
def said(monkeypatch):
    """Where the scripts of a test put what they say: ``sys.script_said``; ``sys.script_begun`` counts those that began."""
    found = queue.Queue()
    monkeypatch.setattr(sys, "script_begun", [], raising=False)
    monkeypatch.setattr(sys, "script_said", found, raising=False)
    return found


def until(holds):
    """Wait until something holds."""
    for _ in range(int(WAIT_S * 1000)):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never held")


SAYS = (
    "import sys\n"
    + HEAD
    + """
def page(request):
    sys.script_begun.append(request["data"])
    try:
        value = yield call("hold", request["data"])
        return value
    except GeneratorExit:
        sys.script_said.put("exit")
        raise
    finally:
        sys.script_said.put("finally")
"""
)


# What a script gives.


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(numbers=st.lists(st.integers(0, 40), min_size=1, max_size=24), most=st.integers(1, 8))
def test_many_requests_at_a_time_give_what_a_slow_loop_gives(nodes, numbers, most):
    config = nodes(CASCADE, detect="ScriptDetect", read={"backend": "ScriptRead", "max": most})
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": number} for number in numbers])
        found = [future.result(WAIT_S)["result"] for future in futures]
        stats = pipe.stats()["nodes"]
    expected = [slow_loop(number) for number in numbers]
    assert found == expected
    assert stats["detect"]["ok"] == len(numbers)
    assert stats["read"]["ok"] == sum(len(one["texts"]) * (one["rounds"] + 1) for one in expected)


def test_the_calls_of_different_requests_share_batches(nodes):
    begins, seen = threading.Event(), []

    @headrace.register("ScriptBatches", batched=True, replace=True)
    def batches(values):
        seen.append(len(values))
        if len(seen) == 1:
            begins.wait(WAIT_S)
        return values

    text = HEAD + "def page(request):\n    return (yield [call('one', k) for k in range(3)])\n"
    with headrace.pipe(nodes(text, one={"backend": "ScriptBatches", "max": 64})) as pipe:
        futures = [pipe.submit({"data": 0}) for _ in range(11)]
        while pipe.stats()["nodes"]["one"]["submitted"] < 33:
            pass
        begins.set()
        assert [one.result(WAIT_S)["result"] for one in futures] == [[0, 1, 2]] * 11
    assert seen == [3, 30]


def test_a_call_takes_keys_and_gives_the_whole_request(nodes):
    class ScriptArea(headrace.Backend):
        reads = ("data", "width")
        writes = ("result", "unit")

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"] * request["width"]
                request["unit"] = "px"

    headrace.register("ScriptArea", ScriptArea, replace=True)
    text = (
        HEAD
        + "def page(request):\n    return (yield call('area', 2, whole=True, width=request['width']))\n"
    )
    with headrace.pipe(nodes(text, area="ScriptArea")) as pipe:
        found = pipe({"data": None, "width": 21})
    assert found == {
        "data": None,
        "width": 21,
        "result": {"data": 2, "width": 21, "result": 42, "unit": "px"},
    }


def test_a_return_without_a_value_is_none_and_an_empty_list_goes_on(nodes):
    text = HEAD + "def page(request):\n    assert (yield []) == []\n"
    with headrace.pipe(nodes(text)) as pipe:
        assert pipe({"data": 1}) == {"data": 1, "result": None}


def test_a_script_may_be_written_in_several_functions(nodes):
    text = HEAD + (
        "def page(request):\n    return (yield from twice(request['data']))\n"
        "def twice(data):\n    return (yield call('one', (yield call('one', data))))\n"
    )
    with headrace.pipe(nodes(text, one="ScriptRead")) as pipe:
        assert pipe({"data": 1})["result"] == read(read(1))


def test_a_script_cannot_change_the_request(nodes):
    text = HEAD + (
        "def page(request):\n    request['data'] = request['more'] = 5\n"
        "    yield call('one', 1)\n    return request['data']\n"
    )
    with headrace.pipe(nodes(text, one="Identity")) as pipe:
        assert pipe({"data": 1}) == {"data": 1, "result": 5}


def test_it_may_be_the_backend_of_a_node_and_call_another_script(nodes, tmp_path):
    nodes(
        HEAD
        + "def page(request):\n    return sum((yield [call('inner', k) for k in range(request['data'])]))\n"
        "def inner(request):\n    return (yield call('read', request['data']))\n"
    )
    config = {
        "main": {"backend": "Script(pages.py:page)", "instance_num": 2},
        "inner": {"backend": "Script(pages.py:inner)"},
        "read": {"backend": "ScriptRead"},
    }
    loaded = headrace.PipelineConfig.load(config, base=tmp_path)
    with headrace.pipe(loaded) as pipe:
        futures = [pipe.submit({"data": n, "node_name": "main"}) for n in range(20)]
        found = [one.result(WAIT_S)["result"] for one in futures]
    assert found == [sum(map(read, range(n))) for n in range(20)]


def test_a_node_with_each_is_called_with_a_list(nodes):
    text = (
        HEAD + "def page(request):\n    return (yield call('read', None, boxes=request['data']))\n"
    )
    config = nodes(text, read={"backend": "ScriptRead", "each": "boxes"})
    with headrace.pipe(config) as pipe:
        assert pipe({"data": [1, 2, 3]})["result"] == [4, 7, 10]
        assert pipe({"data": []})["result"] == []
        with pytest.raises(InputError, match="once per element"):
            pipe({"data": 5})


def test_parts_of_a_called_node_are_parts_of_the_request(nodes):
    def words(text):
        yield from text.split()
        return len(text)

    headrace.register("ScriptWords", words, replace=True)
    text = HEAD + "def page(request):\n    return (yield call('words', request['data']))\n"
    with headrace.pipe(nodes(text, words="ScriptWords")) as pipe:
        assert [*pipe.stream({"data": "a b"})] == ["a", "b", {"data": "a b", "result": 3}]


# Errors.


def spelt(word):
    yield from word
    return word


PARTS = """
from headrace_flow import part

def named(request):
    return (yield [call("spell", "ab", parts="first"), call("spell", "cd", parts="second")])

def hidden(request):
    plan = yield call("spell", "think", parts=False)
    return (yield call("spell", "say"))

def own(request):
    yield part("begins")
    word = yield call("spell", "a")
    yield part(word * 2)
    yield part("ends")
    return word
"""


@pytest.mark.parametrize(
    ("name", "parts", "result"),
    [
        ("named", [("first", "a"), ("first", "b"), ("second", "c"), ("second", "d")], ["ab", "cd"]),
        ("hidden", ["s", "a", "y"], "say"),
        ("own", ["begins", "a", "aa", "ends"], "a"),
    ],
)
def test_a_script_says_what_becomes_of_parts(nodes, tmp_path, name, parts, result):
    headrace.register("ScriptSpelt", spelt, replace=True)
    with headrace.pipe(nodes(HEAD + PARTS, name, spell={"backend": "ScriptSpelt"})) as pipe:
        *found, last = pipe.stream({"data": 0})
        assert (sorted(found) if name == "named" else found) == parts
        assert last["result"] == result
        assert pipe({"data": 0})["result"] == result


@pytest.mark.parametrize("parts", [None, 1, ["a"]])
def test_what_becomes_of_parts_is_said_by_a_bool_or_a_text(parts):
    with pytest.raises(ValueError, match="parts is True, False or a text"):
        call("a", 1, parts=parts)


def odd_fails(number):
    if number % 2:
        raise InputError(key="data", expected="an even number", got=str(number))
    return number


headrace.register("ScriptOdd", odd_fails)


def test_the_first_error_of_a_list_is_raised_in_the_generator(nodes):
    text = HEAD + (
        "def page(request):\n    try:\n        yield [call('odd', k) for k in (0, 3, 2, 1)]\n"
        "    except Exception as error:\n        return error.got\n"
    )
    with headrace.pipe(nodes(text, odd={"backend": "ScriptOdd", "max": 4})) as pipe:
        assert pipe({"data": 0})["result"] == "3"
        assert pipe.stats()["nodes"]["odd"]["ok"] == 2  # the others have run to their end


def test_an_error_that_is_not_caught_is_that_of_the_request(nodes):
    text = HEAD + "def page(request):\n    yield call('odd', 3)\n"
    with headrace.pipe(nodes(text, odd="ScriptOdd")) as pipe:
        with pytest.raises(InputError, match="an even number") as caught:
            pipe({"data": 0})
        assert caught.value.node == "odd"


def test_errors_are_values_where_the_call_says_so(nodes):
    text = HEAD + (
        "def page(request):\n    got = yield [call('odd', k, errors='return') for k in (0, 1, 2)]\n"
        "    one = yield call('odd', 5, errors='return')\n"
        "    return [type(each).__name__ for each in [*got, one]]\n"
    )
    with headrace.pipe(nodes(text, odd="ScriptOdd")) as pipe:
        assert pipe({"data": 0})["result"] == ["int", "InputError", "int", "InputError"]


def test_what_the_script_raises_fails_its_request_alone(nodes):
    text = HEAD + ("def page(request):\n    yield call('one', 1)\n    return 1 / request['data']\n")
    with headrace.pipe(nodes(text, one="Identity")) as pipe:
        futures = pipe.submit([{"data": 0}, {"data": 2}])
        with pytest.raises(BackendError, match="division") as caught:
            futures[0].result(WAIT_S)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert futures[1].result(WAIT_S)["result"] == 0.5


def test_a_node_that_is_unknown_at_the_call_is_an_error_with_the_nearest_name(nodes):
    text = HEAD + "def page(request):\n    return (yield call(request['data'], 4))\n"
    with headrace.pipe(nodes(text, read="ScriptRead", other="Identity")) as pipe:
        assert pipe({"data": "read", "node_name": "script"})["result"] == 13
        with pytest.raises(InputError, match="no node is called 'raed'") as caught:
            pipe({"data": "raed", "node_name": "script"})
        assert caught.value.hint == "Did you mean 'read'?"


@pytest.mark.parametrize("yielded", ["5", "[call('one', 1), 5]", "None", "'one'"])
def test_yielding_something_else_is_an_error(nodes, yielded):
    text = HEAD + f"def page(request):\n    yield {yielded}\n"
    with (
        headrace.pipe(nodes(text, one="Identity")) as pipe,
        pytest.raises(ContractError, match="page yielded something"),
    ):
        pipe({"data": 1, "node_name": "script"})


def test_a_request_without_data_is_refused(nodes):
    text = HEAD + "def page(request):\n    yield []\n"
    with headrace.pipe(nodes(text)) as pipe, pytest.raises(InputError):
        pipe({"other": 1})


def test_a_call_with_wrong_arguments_is_refused():
    with pytest.raises(TypeError, match="the name of a node, got int"):
        call(5, 1)
    with pytest.raises(ValueError, match="'raise' or 'return'"):
        call("node", 1, errors="none")


# What is checked before anything is built.


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "def page(request):\n    yield call('raed', 1)\n",
        HEAD
        + "def page(request):\n    yield from more()\ndef more():\n    yield [call('raed', k) for k in 'ab']\n",
        "from headrace_flow import call as ask\ndef page(request):\n    yield ask('raed', 1)\n",
        "import headrace_flow as flow\ndef page(request):\n    yield flow.call('raed', 1)\n",
        "import headrace_flow.script\ndef page(request):\n    yield headrace_flow.script.call('raed', 1)\n",
    ],
)
def test_a_constant_name_of_no_node_is_an_error_before_anything_is_built(nodes, text):
    built = []

    class ScriptNeverBuilt(headrace.Backend):
        def init(self, options, context):
            built.append(self)

        def forward(self, batch):
            raise AssertionError

    headrace.register("ScriptNeverBuilt", ScriptNeverBuilt, replace=True)
    with pytest.raises(ConfigError, match="calls the node 'raed'") as caught:
        headrace.pipe(nodes(text + "raise SystemError\n", read="ScriptNeverBuilt"))
    assert "Did you mean 'read'?" in str(caught.value)
    assert built == []


def test_calls_of_other_scripts_in_the_file_are_not_checked(nodes):
    text = HEAD + (
        "def page(request):\n    yield call('one', 1)\ndef other(request):\n    yield call('two', 1)\n"
    )
    with headrace.pipe(nodes(text, one="Identity")) as pipe:
        assert pipe({"data": 1})["result"] is None


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (HEAD + "def page(request):\n    yield []\n", "pgae", "Did you mean 'page'"),
        (HEAD + "def page(request:\n", "page", "cannot be read as Python"),
        (HEAD, "a b", "named as pages.py:page"),
    ],
)
def test_a_wrong_script_is_an_error_of_the_configuration(nodes, text, name, said):
    with pytest.raises(ConfigError, match=said):
        headrace.pipe(nodes(text, name, one="Identity"))


def test_a_missing_file_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match="no such file"):
        headrace.pipe(
            {"script": {"backend": "Script(nowhere.py:page)"}, "one": {"backend": "Identity"}}
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def page(request):\n    return 1\n", "no generator function"),
        ("page = 5\n", "no generator function"),
        ("raise SystemExit(3)\ndef page(request):\n    yield []\n", "SystemExit: 3"),
    ],
)
def test_what_is_no_script_is_an_error_of_the_setup(nodes, text, said):
    with pytest.raises(SetupError, match=said):
        headrace.pipe(nodes(HEAD + text, one="Identity"))


def test_each_script_has_the_helpers_beside_its_file_and_reads_them_again(tmp_path):
    text = (
        HEAD
        + "from helper import FACTOR\ndef page(request):\n    return FACTOR * (yield call('one', 3))\n"
    )
    for folder, factor in (("a", 10), ("b", 20)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pages.py").write_text(text)
        (tmp_path / folder / "helper.py").write_text(f"FACTOR = {factor}\n")

    def answer(folder):
        script = {"backend": f"Script('{tmp_path / folder / 'pages.py'}:page')"}
        with headrace.pipe({"script": script, "one": {"backend": "Identity"}}) as pipe:
            return pipe({"data": 0})["result"]

    assert [answer("a"), answer("b")] == [30, 60]
    (tmp_path / "a" / "helper.py").write_text("FACTOR = 50\n")
    assert [answer("a"), answer("b")] == [150, 60]


def test_it_is_refused_where_code_may_not_be_imported(nodes):
    text = HEAD + "raise SystemError\ndef page(request):\n    yield []\n"
    with pytest.raises(ConfigError, match="imports are refused"):
        headrace.pipe(nodes(text, one="Identity"), allow_import=False)


def test_where_others_wait_for_its_result_it_is_refused_and_closed(nodes, said, gate):
    config = nodes(SAYS, hold="ScriptHold")
    script = config["script"]["backend"]
    config["script"]["backend"] = f"S[{script},Identity]"
    with headrace.pipe(config) as pipe:
        with pytest.raises(ContractError, match="returned PENDING"):
            pipe({"data": 1})
        assert [said.get(timeout=WAIT_S) for _ in range(2)] == ["exit", "finally"]


# Ends.


def was_ended(said):
    """Wait until the generator was closed, once."""
    assert [said.get(timeout=WAIT_S) for _ in range(2)] == ["exit", "finally"]
    assert said.empty()


def overdue(pipe, said, came):
    """Send a request whose time is over after it has come to some place; on a slow machine it takes more than one.

    Args:
        pipe: The pipeline.
        said: What the generators say at their end.
        came: Tells whether one has come there.

    Returns:
        A function that waits until all that were sent and began have been closed, each once.
    """
    timeout = 0.05
    while True:
        with pytest.raises(DeadlineExceededError):
            pipe.submit({"data": 1}, timeout=timeout).result(WAIT_S)
        if came():
            break
        timeout *= 2

    def all_ended():
        count = len(sys.script_begun)
        found = [said.get(timeout=WAIT_S) for _ in range(2 * count)]
        assert sorted(found) == ["exit"] * count + ["finally"] * count

    return all_ended


def test_a_cancellation_ends_it_and_withdraws_its_calls(nodes, said, gate):
    with headrace.pipe(nodes(SAYS, hold="ScriptHold")) as pipe:
        future = pipe.submit({"data": 1})
        kept = gate.kept()
        while not future.cancel():
            pass
        was_ended(said)
        while not gate.context.request.unwanted(kept):
            pass
        assert not gate.context.request.finish(kept, "too late")


def test_a_close_that_does_not_drain_ends_it(nodes, said, gate):
    with headrace.pipe(nodes(SAYS, hold="ScriptHold")) as pipe:
        future = pipe.submit({"data": 1})
        gate.kept()
        pipe.close(drain=False)
        with pytest.raises(ClosedError):
            future.result(WAIT_S)
        was_ended(said)


def test_a_close_that_drains_lets_it_go_on_to_its_end(nodes, said, gate):
    text = SAYS.replace("return value", "return (yield call('read', value))")
    with headrace.pipe(nodes(text, hold="ScriptHold", read="ScriptRead")) as pipe:
        future = pipe.submit({"data": 1})
        kept = gate.kept()
        closing = threading.Thread(target=pipe.close)
        closing.start()
        until(lambda: not pipe.ready)
        while not gate.context.request.finish(kept, 4):
            pass
        assert future.result(WAIT_S)["result"] == read(4)
        closing.join(WAIT_S)
        assert said.get(timeout=WAIT_S) == "finally"


def test_a_deadline_while_the_generator_runs_ends_it_at_its_next_yield(nodes, said, monkeypatch):
    goes_on, runs = threading.Event(), threading.Event()
    monkeypatch.setattr(
        sys, "script_gate", lambda: (runs.set(), goes_on.wait(WAIT_S)), raising=False
    )
    text = SAYS.replace("value = yield", "yield call('hold', 1); sys.script_gate(); value = yield")
    with headrace.pipe(nodes(text, hold="Identity")) as pipe:
        all_ended = overdue(pipe, said, runs.is_set)
        goes_on.set()
        all_ended()


@pytest.mark.parametrize("raises", ["", "; 1 / 0"])
def test_a_deadline_ends_it_also_where_it_raises_while_it_is_closed(nodes, said, gate, raises):
    text = SAYS.replace('put("finally")', f'put("finally"){raises}')
    with headrace.pipe(nodes(text, hold="ScriptHold")) as pipe:
        all_ended = overdue(pipe, said, lambda: not gate.came.empty())
        all_ended()
        assert not gate.context.request.finish(gate.kept(), 1)


def test_a_dict_that_is_sent_again_begins_anew(nodes, said, gate):
    with headrace.pipe(nodes(SAYS, hold="ScriptHold")) as pipe:
        request = {"data": 1}
        for number in range(20):
            future = pipe.submit(request)
            gate.kept()
            while not future.cancel():
                pass
            future = pipe.submit(request)
            kept = gate.kept()
            while not gate.context.request.finish(kept, number):
                pass
            assert future.result(WAIT_S)["result"] == number


def test_ten_thousand_that_are_suspended_hold_no_thread(nodes, gate, tmp_path):
    count = 10_000
    nodes(HEAD + "def page(request):\n    return (yield call('hold', request['data'])) + 1\n")
    config = {
        "main": {"backend": "Script(pages.py:page)", "queue_size": 2 * count},
        "hold": {"backend": "ScriptHold", "max": 64},
    }
    with headrace.pipe(headrace.PipelineConfig.load(config, base=tmp_path)) as pipe:
        before = threading.active_count()
        futures = pipe.submit([{"data": number, "node_name": "main"} for number in range(count)])
        kept = [gate.kept() for _ in range(count)]
        until(lambda: pipe.stats()["nodes"]["hold"]["waiting"] == count)
        assert threading.active_count() - before <= 16
        assert not any(future.done() for future in futures)
        finishing = threading.Thread(
            target=lambda: [gate.finish(one, one.request["data"] * 2) for one in kept]
        )
        finishing.start()
        finishing.join(WAIT_S)
        found = [one.result(WAIT_S)["result"] for one in futures]
    assert found == [2 * number + 1 for number in range(count)]


def test_nothing_of_a_request_is_left_behind(nodes, said):
    text = (
        HEAD
        + "def page(request):\n    yield call('odd', request['data'], errors='return')\n    yield call('odd', 1)\n"
    )
    config = nodes(text, odd="ScriptOdd")
    from headrace_flow.script import _Run

    with headrace.pipe(config) as pipe:
        for number in range(200):
            with pytest.raises(InputError):
                pipe({"data": number})
        for _ in range(1000):
            gc.collect()
            if not any(isinstance(one, _Run) for one in gc.get_objects()):
                break
        assert not any(isinstance(one, _Run) for one in gc.get_objects())
