"""What names mean: instances in scope, nesting, nodes, schedulers, late building."""

from __future__ import annotations

import re
import sys
import threading
from functools import partial

import loading
import pytest
from sending import Leaves

import headrace
from headrace.words import Bracket

made: list[str] = []


def tag(name, **body):
    """Make a backend that puts its name, and what is inside, around ``data``."""

    class Options(headrace.Options):
        a: int | str = ""
        b: int | str = ""

    def init(self, options, context):
        made.append(name)
        self.shown = f"{name}{options.a}{options.b}"
        self.children = context.children
        self.serial = made.count(name)
        self.context = context

    def forward(self, batch):
        for request in batch:
            inner = []
            for child in self.children:
                child([request])
                inner.append(request.pop("result"))
            request["result"] = f"{self.shown}[{','.join(inner)}]" if inner else self.shown

    def close(self):
        made.append(f"-{name}")

    attributes = {"Options": Options, "init": init, "forward": forward, "close": close, **body}
    return type(name, (headrace.Backend,), attributes)


class Dep(headrace.Backend):
    """Runs its child, and shows its own name around the result."""

    takes = 1

    def init(self, options, context):
        made.append("Dep")
        (self.child,) = context.children

    def forward(self, batch):
        outcomes = self.child(batch)
        for request in batch:
            if "result" in request:
                request["result"] = f"Dep[{request['result']}]"
        return outcomes


@pytest.fixture(autouse=True)
def backends(nothing_registered):
    made.clear()
    table = {name: tag(name, takes=(0, None)) for name in "ABCD"}
    table |= {name: tag(name) for name in "XY"}
    table["Dep"] = Dep
    table["Two"] = tag("Two", takes=2)
    for name, cls in table.items():
        headrace.register(name, cls)


def written(expression, keys):
    return expression if isinstance(expression, dict) else {"backend": expression, **keys}


def run(expression, node=None, **keys):
    request = {"data": 0} if node is None else {"data": 0, "node_name": node}
    with headrace.pipe(written(expression, keys)) as pipe:
        return pipe(request)["result"]


def explained(source, node="main"):
    return headrace.explain(source)["nodes"][node]


def problems(expression, **keys):
    return loading.problems(written(expression, keys))


def problem(expression, **keys):
    (only,) = problems(expression, **keys)
    return only


# Names.


def test_a_name_means_an_instance_first_and_then_a_backend():
    assert run("IoC[X;A[X]]") == "A[X]"
    assert run("IoC[X;A[X,X,Y]]") == "A[X,X,Y]"
    assert made.count("X") == 2


def test_an_element_of_the_first_phase_sees_the_earlier_ones_only():
    assert run("IoC[X,A[X];A]") == "A[X]"
    assert made.count("X") == 1
    made.clear()
    assert run("IoC[A[X],X;A]") == "A[X]"
    assert made.count("X") == 2


def test_names_of_an_ioc_are_seen_inside_it_only():
    assert run("A[IoC[X;X],X]") == "A[X,X]"
    assert made.count("X") == 2


def test_every_copy_of_an_ioc_holds_one_set():
    run("IoC[X;S[X,X]]", instance_num=3)
    assert made.count("X") == 3


def test_children_are_built_left_to_right_and_closed_right_to_left():
    run("IoC[C;A[B[X],Y]]")
    assert made == ["C", "X", "B", "Y", "A", "-A", "-Y", "-B", "-X", "-C"]


def test_a_child_that_its_container_builds_is_closed_after_it():
    def init(self, options, context):
        (child,) = context.children
        self.children, self.shown = [child.build()], "Late"

    headrace.register("Late", tag("Late", takes=1, bracket=Bracket(late=True), init=init))
    assert run("Late[X]") == "Late[X]"
    assert made == ["X", "-Late", "-X"]


WRONG = {
    "arity": (
        "IoC[X] IoC[X,Y] IoC[X;Y;A] IoC[X;Y,A] S[X;Y] A[X;Y] S X[Y] Two[X] Dep "
        "IoC[A;A[X]] IoC[Dep[Y];Dep[X]] IoC[Dep[Y];Dep[X,Y]] "
        "Dep[X,Y] Leaves(node=x)[X] IoC[S[X];Sequential[S[Y],X]] Forward Reflect"
    ),
    "args": "IoC[X;A[X(a=1)]] A(1) S(1)[X]",
    "twice": "IoC[X,X;X]",
    "unknown_instance": "Forward[node.nope] Forward[X] Leaves(node=x)",
    "word": "Forward[node.main(x=1)] Forward[X[Y]] S[Leaves(node=main),X]",
    "missing_option": "Reflect[k]",
    "prefix": "A[(or)X] S[(or)X,Y] S[X,(ro)Y] S[X,(kye=a)Y] S[X,(key=3)Y] (or)X",
    "unknown_backend": "no:X",
}


@pytest.mark.parametrize(
    ("code", "expression"),
    [(code, expression) for code, many in WRONG.items() for expression in many.split()],
)
def test_wrong_expressions_are_one_problem_each_with_a_place(code, expression):
    headrace.register("Leaves", Leaves, replace=True)
    found = problem(expression)
    assert (found.code, found.path) == (code, "main.backend")
    assert found.span is not None


@pytest.mark.parametrize(
    "prefix", ["(true)", "(none)", "(5)", '("a b")', "([1])", "(orr)", "(kye=)"]
)
def test_a_prefix_that_nobody_understands_is_shown_as_it_is_written(prefix):
    found = problem(f"S[X,{prefix.replace('=', '=a')}Y]")
    assert found.message == f"S does not understand the prefix {prefix}"
    assert found.suggestion == {"(orr)": "or", "(kye=)": "key="}.get(prefix)


def test_an_error_shows_the_text_a_caret_and_the_nearest_name():
    found = problem("S[A,BakgroundThread[X]]")
    assert found.render() == (
        "main.backend: unknown backend 'BakgroundThread'\n"
        "    S[A,BakgroundThread[X]]\n"
        "        ^^^^^^^^^^^^^^^\n"
        "  Did you mean 'BackgroundThread'?"
    )


# Reflect and instances by name.


def test_reflect_builds_what_stands_in_the_parameter_else_its_default():
    assert run("A[Reflect[post,X]]") == "A[X]"
    assert run("A[Reflect[post,X]]", post="Y(a=1)") == "A[Y1]"
    assert run({"global": {"post": "Y"}, "main": {"backend": "A[Reflect[post]]"}}) == "A[Y]"


@pytest.mark.parametrize(
    "keys",
    [{"p": "Reflect[p]"}, {"p": "B[Reflect[q]]", "q": "Reflect[p,X]"}, {"p": "Reflect[backend]"}],
)
def test_a_parameter_that_reaches_itself_is_an_error(keys):
    assert problem("A[Reflect[p]]", **keys).code == "cycle"


def test_a_misspelt_parameter_gets_the_nearest_key_of_its_node():
    first = problems({"a": {"backend": "Reflect[befor]", "before": "X"}})[0]
    assert (first.code, first.suggestion) == ("missing_option", "before")


# Nodes.


def test_a_backend_may_have_an_option_that_is_called_name():
    class Options(headrace.Options):
        name: str = "?"

    def init(self, options, context):
        self.shown, self.children = options.name, ()

    headrace.register("Named", tag("Named", Options=Options, init=init))
    assert run("Named", name="from its node") == "from its node"
    nodes = {"a": {"backend": "Named", "next": "b"}, "b": {"backend": "Named"}}
    assert run({"name": "for all", **nodes}, "a") == "for all"
    assert problem("X", name="x").code == "unknown_key"


def test_in_the_bracket_of_a_misspelt_word_names_are_no_backends():
    found = problem("S[X,Reflct[nowhere]]")
    assert (found.code, found.suggestion) == ("unknown_backend", "Reflect")


def test_what_stands_in_a_bracket_of_the_wrong_size_is_looked_at_all_the_same():
    found = problems("BackgroundThread[X,Nope]")
    assert [one.code for one in found] == ["arity", "unknown_backend"]


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "A[" * 101 + "X" + "]" * 101},
        {"backend": "Zzzz"},
        {"backend": "S["},
        {"backend": "X", "batch_policy": "Nope"},
        {"backend": "X", "global": {"probes": ["Nope"]}},
    ],
)
def test_beside_what_cannot_be_looked_into_a_key_may_be_known_there(config):
    shared = {**config.pop("global", {}), "somebodys": 1}
    (found,) = problems({**config, "global": shared})
    assert "somebodys" not in found.message


def test_what_stands_below_an_unknown_name_is_looked_at():
    assert [one.suggestion for one in problems("Zzzz[Idntity]")] == [None, "Identity"]


def test_an_alias_of_no_node_is_an_unknown_instance():
    assert problem("Forward[node.nope]", max=4).code == "unknown_instance"


def test_an_unknown_option_is_told_with_those_there_are():
    assert problem("X(no=1)").hint == "It has a, b."
    assert problem("Identity(no=1)").hint.startswith("It has none: a function is")


def test_nodes_are_built_after_those_they_name_else_in_file_order():
    headrace.pipe(nodes(one="A[Forward[node.three]]", two="B", three="C")).close()
    assert made[:3] == ["C", "A", "B"]


def nodes(**backends):
    return {name: {"backend": backend} for name, backend in backends.items()}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (nodes(x="Forward[node.x]"), "'x' {}"),
        (nodes(x="A[Forward[node.y]]", y="B[Forward[node.x]]"), "'x' {}: x needs y needs x"),
        ({"x": {"backend": "A[Reflect[p]]", "p": "Forward[node.x]"}}, "'x' {}"),
    ],
)
def test_nodes_that_need_each_other_are_an_error(source, said):
    found = problem(source)
    assert found.code == "cycle"
    assert found.message == f"node {said.format('is needed to build itself')}"


def test_an_alias_builds_nothing_of_the_node_that_answers():
    assert run(nodes(x="X", d="Forward[node.x]", e="Forward[node.d]"), "e") == "X"
    assert made.count("X") == 1


# Depth.


def test_sequences_directly_in_sequences_are_joined():
    assert run("S[X," * 99 + "S[Y]" + "]" * 99) == "Y"
    inner = "A[" * 40 + "S[" * 60 + "X" + "]" * 100
    text = "S[" * 60 + "A[" * 39 + "Reflect[p]" + "]" * 99
    assert run(text, p=inner) == "A[" * 79 + "X" + "]" * 79


def test_hundred_levels_of_anything_else_run_and_one_more_is_refused():
    assert run("A[" * 100 + "X" + "]" * 100) == "A[" * 100 + "X" + "]" * 100
    assert run("A[" * 100 + "X(a=1)" + "]" * 100) == "A[" * 100 + "X1" + "]" * 100
    text = "A[" * 101 + "X" + "]" * 101
    found = problem(text)
    assert (found.code, found.span) == ("nesting", (202, 203))


@pytest.mark.parametrize(
    "expression",
    [
        "A(a=" + "[" * 20_000 + "]" * 20_000 + ")",
        "A[S(a=1)[" * 60 + "X" + "]]" * 60,
    ],
)
def test_any_other_nesting_is_refused_with_its_place(expression):
    found = problems(expression)
    assert "nesting" in {p.code for p in found}
    assert all(p.span is not None for p in found)


def test_nesting_through_parameters_counts():
    sixty = "A[" * 60 + "{}" + "]" * 60
    found = problems(sixty.format("Reflect[p]"), p=sixty.format("X"))
    assert {p.code for p in found} == {"nesting"}
    keys = {f"p{i}": f"Reflect[p{i + 1}]" for i in range(500)}
    assert {p.code for p in problems("Reflect[p0]", **keys, p500="X")} == {"nesting"}


def calls(count):
    nodes = {f"n{i}": {"backend": f"A[Forward[node.n{i + 1}]]"} for i in range(count)}
    return {**nodes, f"n{count}": {"backend": "X"}}


def test_calls_that_nest_through_names_of_nodes_count():
    if getattr(
        sys, "_is_gil_enabled", lambda: True
    )():  # without that lock a call takes more frames
        assert run(calls(90)) == "A[" * 90 + "X" + "]" * 90
    for count in (120, 180):
        found = problems(calls(count))
        assert {p.code for p in found} == {"nesting"}
        assert all(p.span is not None for p in found)


# Threads.


class Owner(headrace.Backend):
    owns_thread = True

    def init(self, options, context):
        self.idents = [threading.get_ident()]

    def forward(self, batch):
        self.idents.append(threading.get_ident())
        for request in batch:
            request["result"] = request["data"]

    def close(self):
        self.idents.append(threading.get_ident())
        made.append("one" if len(set(self.idents)) == 1 else "several")
        made.append("own" if self.idents[0] != threading.main_thread().ident else "main")


@pytest.mark.parametrize(
    "keys",
    [
        {"backend": "Owner"},
        {"backend": "S[Identity,Owner]"},
        {"backend": "S[Identity,BackgroundThread[Owner]]"},
        {"backend": "IoC[Owner;S[Owner,Identity]]"},
        {"backend": "BackgroundThread[IoC[Owner;S[Owner,Identity]]]"},
        {"backend": "IoC[Owner,S[Owner];S]"},
        {"backend": "IoC[X;BackgroundThread[S[Owner,X]]]"},
    ],
)
def test_a_backend_that_owns_its_thread_is_made_run_and_closed_in_one(keys):
    headrace.register(Owner)
    with headrace.pipe({"main": keys}) as pipe:
        for _ in range(3):
            pipe({"data": 0})
    assert set(made) - {"X", "-X"} == {"one", "own"}


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("IoC[Owner;S[BackgroundThread[S[X,Owner]],Owner]]", "Owner"),
        ("BackgroundThread[IoC[Owner;S[BackgroundThread[Owner],Owner]]]", "Owner"),
        ("IoC[Owner,S[Owner];BackgroundThread[S]]", "Owner"),
        ("IoC[Owner;S[BackgroundThread[X],BackgroundThread[Owner]]]", "Owner"),
    ],
)
def test_an_owner_of_a_thread_is_not_called_by_name_in_another_one(expression, name):
    headrace.register(Owner)
    found = problem(expression)
    assert (found.code, found.path) == ("thread", "main.backend")
    assert found.message.startswith(f"{name} owns its thread")
    assert found.text[slice(*found.span)] == name


def test_one_thread_is_put_around_all_of_an_instance():
    headrace.register(Owner)
    node = explained({"backend": "S[Identity,Owner]"})
    assert (node["owns_thread"], node["run_by"]) == (True, "own thread")
    assert explained({"backend": "S[Identity,BackgroundThread[Owner]]"})["owns_thread"] is False


@pytest.mark.parametrize(
    ("keys", "owned"),
    [({}, False), ({"device": ["cpu", "cuda"]}, True), ({"device": "cuda", "on": "cpu"}, False)],
)
def test_options_and_device_may_say_that_a_backend_needs_a_thread_of_its_own(keys, owned):
    class Somewhere(Owner):
        owns_thread = False

        class Options(headrace.Options):
            on: str = ""

        @classmethod
        def needs_thread(cls, options, device):
            return "cuda" in (options.on or device or "")

    headrace.register(Somewhere)
    config = {"backend": "S[Identity,Somewhere]", **keys}
    assert explained(config)["owns_thread"] is owned
    assert headrace.plugins.resolve(config).children[1].owns_thread is owned
    with headrace.pipe(config) as pipe:
        pipe({"data": 0})
    assert (made == ["one", "own"]) is owned


# Ranges.


SIXTEEN = "greedy(batch_sizes=[16])"


class Few(headrace.Backend):
    min, max = 2, 8

    def forward(self, batch):
        """Never called."""


def test_a_container_that_says_nothing_has_the_range_of_what_is_inside():
    headrace.register(Few)
    for text in ("A[Few]", "Dep[Few]", "BackgroundThread[Few]"):
        assert explained({"backend": text, "max": 64})["range"] == [2, 8]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"backend": "X"}, [1, 1]),
        ({"backend": "X", "max": 5}, [1, 5]),
        ({"backend": "X", "batch_sizes": [2, 4]}, [2, 4]),
        ({"backend": "X", "batch_sizes": [2, 4], "max": 8}, [2, 4]),
        ({"backend": "Few", "batch_sizes": [3, 6, 16]}, [3, 6]),
        ({"backend": "Few"}, [2, 8]),
        ({"backend": "Few", "min": 3, "max": 100}, [3, 8]),
    ],
)
def test_the_node_narrows_the_range_of_its_backend(keys, expected):
    headrace.register(Few)
    assert explained(keys)["range"] == expected


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"backend": "Few", "max": 1}, "max", "Few takes 2 to 8, and the node says max = 1"),
        ({"backend": "Few", "min": 9}, "min", "the node says min = 9"),
        (
            {"backend": "Twenty", "min": 2, "max": 3},
            "max",
            "20 to any number, and the node says min",
        ),
        ({"backend": "Few", "batch_sizes": [1, 16]}, "batch_sizes", "says batch_sizes = [1, 16]"),
        ({"backend": "Eight", "batch_sizes": [16], "min": 1}, "batch_sizes", "says min = 1, batch"),
        ({"backend": "Eight", "batch_policy": SIXTEEN}, "batch_policy", "says batch_sizes = [16]"),
        ({"backend": "S[Few,Twenty]"}, "backend", "S: Twenty needs at least 20"),
        ({"backend": "IoC[Few;S[Forward[Few],Twenty]]"}, "backend", "Forward takes at most 8"),
        ({"backend": "S[Few,X]", "max": 1}, "max", "no batch fits: S takes 2 to 8"),
        ({"backend": "S[(key=k)Few]"}, "backend", "S: Few needs"),
        ({"backend": "A[Few,Twenty]"}, "backend", "Few takes at most 8"),
    ],
)
def test_an_empty_range_is_an_error_of_the_configuration(keys, key, message):
    headrace.register(Few)
    headrace.register("Eight", type("Eight", (Few,), {"min": 1}))
    headrace.register("Twenty", type("Twenty", (Few,), {"min": 20, "max": None}))
    found = problem({"main": keys})
    assert (found.code, found.path) == ("range", f"main.{key}")
    assert message in found.message


# Policies.


class Patient(headrace.policies.BatchPolicy, headrace.policies.DispatchPolicy):
    """Takes everything, and the first free instance."""

    class Options(headrace.Options):
        patience: int = 1
        pad: bool = False  # a key of every node

    seen: list = []  # noqa: RUF012

    def __init__(self, options=None):
        super().__init__(options)
        self.seen.append(self)

    def cut(self, queue, instance, now):
        return headrace.policies.Cut(1)

    def choose(self, weight, free):
        return free[0]


def made_policies(**keys):
    headrace.register(Patient)
    Patient.seen.clear()
    assert run({"backend": "X", **keys}) == "X"
    return Patient.seen


def test_the_options_of_a_policy_are_keys_of_the_node_or_args():
    (policy,) = made_policies(batch_policy="Patient", patience=4, pad=True)
    assert (policy.options.patience, policy.options.pad) == (4, True)
    (policy,) = made_policies(batch_policy="Patient(patience=3)", patience=4)
    assert policy.options.patience == 3
    (policy,) = made_policies(dispatch_policy="Patient", **{"Patient::patience": 5})
    assert policy.options.patience == 5


def test_the_policies_of_core_alone_are_named_with_its_name_before_them():
    headrace.register(Patient)
    loading.load({"backend": "X", "batch_policy": "headrace:greedy"})
    assert problem("X", batch_policy="headrace:Patient").code == "unknown_policy"


def test_a_policy_of_a_plugin_that_is_not_installed_says_what_to_install(known_elsewhere):
    known_elsewhere("Elsewhere", "headrace-elsewhere", known_elsewhere.policies)
    for text in ("Elsewhere", "Elsewhere(most=3)", "elsewhere:Elsewhere"):
        hint = problem("X", batch_policy=text).hint
        install = "comes with headrace-elsewhere. Install it: pip install headrace-elsewhere"
        assert hint.startswith(f"'Elsewhere' {install}")
        assert re.search(r"\. There are: [^.]*greedy", hint)


def test_one_class_for_both_keys_is_made_once():
    assert len(made_policies(batch_policy="Patient", dispatch_policy="Patient")) == 1
    three = "Patient(patience=3)"
    for batch, dispatch in ((three, "Patient"), ("Patient", three), (three, three)):
        (policy,) = made_policies(batch_policy=batch, dispatch_policy=dispatch)
        assert policy.options.patience == 3


TWO_OPINIONS = {"batch_policy": "Patient(patience=1)", "dispatch_policy": "Patient(patience=2)"}


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"batch_policy": "Patiens"}, "unknown_policy", "batch_policy"),
        ({"dispatch_policy": "greedy"}, "policy", "dispatch_policy"),
        ({"batch_policy": "Patient(x=1)"}, "unknown_option", "batch_policy"),
        ({"batch_policy": "Patient(patience=x)"}, "option", "batch_policy"),
        ({"batch_policy": "Patient[X]"}, "arity", "batch_policy"),
        ({"batch_policy": "Patient("}, "syntax", "batch_policy"),
        (TWO_OPINIONS, "policy", "dispatch_policy"),
        ({"dispatch_policy": "Patient[X]"}, "arity", "dispatch_policy"),
        ({"batch_policy": "Patient", "patience": "x"}, "option", "patience"),
        ({"batch_policy": "X"}, "policy", "batch_policy"),
        ({"patience": 3}, "unknown_key", "patience"),
        ({"backend": "Patient"}, "unknown_backend", "backend"),
    ],
)
def test_what_is_wrong_with_policies_is_reported_at_once(keys, code, key):
    headrace.register(Patient)
    found = problem({"backend": "X", **keys})
    assert (found.code, found.path) == (code, f"main.{key}")


@pytest.mark.parametrize("name", ["node.a", "Forward[node.a]"])
def test_what_hands_items_to_a_queue_takes_any_number_of_them(name):
    headrace.register(Few)
    config = {"a": {"backend": "Few"}, "b": {"backend": f"S[X,(or){name}]", "max": 8}}
    assert explained(config, "b")["range"] == [1, 8]


def steps_of(load):
    """Count the lines of planning and of graphs that are run, each turn of a comprehension included."""
    count = 0

    def step(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.endswith(("links.py", "planner.py", "route.py")):
            return None
        count += event == "line"
        return step

    outer = sys.gettrace()
    sys.settrace(step)
    try:
        load()
    finally:
        sys.settrace(outer)
    return count


@pytest.mark.parametrize("keys", ["", "map", "leaves"])
def test_planning_takes_as_many_steps_for_each_of_many_nodes_as_of_few(keys):
    steps = []
    for count in (40, 80):
        many = {f"n{k}": {"backend": "Identity", "next": f"n{k + 1}"} for k in range(count)}
        many[f"n{count}"] = {"backend": "Identity"}
        for k in range(count if keys == "map" else 0):
            many[f"n{k + 1}"]["map"] = f"n{k}[result:data]"
        if keys == "leaves":
            headrace.register("Leaves", Leaves, replace=True)
            many["n1"]["backend"] = "Leaves(node=n0)"
        steps.append(steps_of(partial(loading.load, many)) / count)
    assert steps[1] < steps[0] * 1.1
