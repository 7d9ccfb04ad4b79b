"""Configurations that wire themselves mean the same as nodes, links and numbers of instances."""

import threading
from importlib import metadata

import pytest

import headrace
from headrace.errors import ConfigError, InputError, LimitError

QUEUED = "InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]]"
ALONE = "InstancesRegister[Reflect[backend]]"
OFFERED = metadata.distribution("headrace-flow").entry_points.select(group="headrace.rewriters")
WORDS = sorted(name for name in OFFERED.names if name[0].isupper())
THREADS = "InstancesRegister[BackgroundThread[Reflect[backend]]]"


@pytest.fixture(autouse=True)
def names():
    made = {"Up": str.upper, "Rev": lambda text: text[::-1], "Twice": lambda text: text * 2}
    for name, function in made.items():
        headrace.register(name, function, replace=True)


def nodes(config):
    """The expression and the number of instances of each node, as they are planned."""
    plan = headrace.PipelineConfig.load(config).plan()
    return {name: (one.expression, one.instance_num) for name, one in plan.nodes.items()}


def answer(config, data="ab", **keys):
    with headrace.pipe(config) as pipe:
        return pipe({"data": data, **keys})["result"]


def refused(config):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    return caught.value.problems


# One node.


@pytest.mark.parametrize(
    ("form", "expression", "instances"),
    [
        (f"IoC[{QUEUED};Forward[node.{{node_name}}]]", "Up", 2),
        (f"IoC[{QUEUED};Proxy[node.{{node_name}}]]", "Up", 2),
        (
            f"IoC[{THREADS},Register[DI[Batching,InstanceDispatcher]];Forward[node.main]]",
            "BackgroundThread[Up]",
            2,
        ),
        (
            f"List[{THREADS},Register[Aspect[Batching,InstanceDispatcher]]]",
            "BackgroundThread[Up]",
            2,
        ),
        (f"List[{ALONE},Register[Block[Batching,InstanceDispatcher]]]", "Up", 2),
        ("List[InstancesRegister[BackendProxy],Register[Batching[InstanceDispatcher]]]", "Up", 2),
        (f"IoC[{ALONE},InstanceDispatcher,Aspect[Batching,InstanceDispatcher];Aspect]", "Up", 2),
        (f"IoC[{ALONE},Batching,InstanceDispatcher;DI[Batching,InstanceDispatcher]]", "Up", 2),
        ("Batching[Reflect[backend]]", "Up", 1),
        ("Register[Batching[Reflect[backend]]]", "Up", 1),
        (f"IoC[{ALONE},Register[Batching[main.0]];Forward[node.main]]", "Up", 1),
        ("Reflect[backend]", "Up", 1),
        ("Register[Reflect[backend]]", "Up", 1),
        ("IoC[Reflect[backend];Reflect]", "Up", 1),
        ("IoC[Rev,Reflect[backend];S[Rev,Reflect,Rev]]", "IoC[Rev,Up;S[Rev,Up,Rev]]", 1),
        ("S[Rev,ProxyFromParam[backend],Rev]", "S[Rev,Up,Rev]", 1),
    ],
)
def test_a_node_may_be_put_together_in_many_ways(form, expression, instances):
    alone = {"backend": "Up", "node_entrypoint": form, "instance_num": 2}
    shared = {"global": {"node_entrypoint": form}, "main": {"backend": "Up", "instance_num": 2}}
    for config in (alone, shared):
        assert nodes(config) == {"main": (expression, instances)}
        assert answer(config) == "AB"


def written(config):
    """What `instance_num` of each node says once the configuration is translated, and how many it has."""
    found = headrace.explain(config)["nodes"]
    return {
        n: (one["keys"]["instance_num"]["value"], one["instance_num"]) for n, one in found.items()
    }


class Carries(headrace.Backend):
    """Carries an instance for each thread."""

    auto_instances = classmethod(lambda cls, options, device, threads: threads)

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("form", "found"),
    [
        (f"IoC[{QUEUED};Forward[node.main]]", ("auto", 4)),
        ("Batching[Reflect[backend]]", (1, 1)),
        ("Reflect[backend]", (1, 1)),
    ],
)
def test_a_node_that_says_its_number_has_it_with_auto_too(form, found, shared):
    headrace.register("Carries", Carries)
    both = {"instance_num": "auto"}, {"threads": 4}
    own, above = ({}, {**both[0], **both[1]}) if shared else both
    config = {"global": above, "main": {"backend": "Carries", "node_entrypoint": form, **own}}
    assert written(config) == {"main": found}


def test_what_waits_for_nodes_has_its_own_number_and_they_have_auto():
    headrace.register("Carries", Carries)
    above = {"instance_num": "auto", "threads": 66}
    wired = {"backend": "Carries", "node_entrypoint": f"IoC[{QUEUED};S[Rev,Forward[node.a]]]"}
    assert written({"global": above, "a": wired}) == {"a": (32, 32), "a_instances": ("auto", 2)}
    front = {"entrypoint": "S[Up,Forward[node.a]]", **above}
    assert written({"global": front, "a": {"backend": "Carries"}}) == {
        "entrypoint": (32, 32),
        "a": ("auto", 2),
    }
    once = {"backend": "Carries", "node_entrypoint": "Register[Random(1.0)[node.b,node.b]]"}
    assert written({"global": above, "a": once, "b": {"backend": "Carries"}}) == {
        "a": (32, 32),
        "b": ("auto", 2),
    }


@pytest.mark.parametrize(
    ("init", "expression", "left"),
    [
        (f"List[{QUEUED}]", "Up", None),
        (f"List[Queue(q,max=2),{QUEUED}]", "Up", "Queue"),
        (f"List[Queue(q),Rev,{QUEUED}]", "Up", "IoC"),
        ("List[Queue(q),Rev]", "Up", "IoC"),
        ("Register[Batching[S[Up,Rev,Rev]]]", "S[Up,Rev,Rev]", None),
    ],
)
def test_what_init_registers_is_the_node_and_what_it_only_builds_stays(init, expression, left):
    config = {"backend": "Up", "init": init}
    plan = headrace.PipelineConfig.load(config).plan().nodes["main"]
    assert (plan.expression, plan.init and plan.init.name) == (expression, left)
    assert answer(config) == "AB"


def test_init_and_node_entrypoint_are_the_two_phases_of_one_expression():
    front = "IoC[InstanceDispatcher,Aspect[Batching,InstanceDispatcher];Aspect]"
    config = {"backend": "Up", "init": ALONE, "node_entrypoint": front, "instance_num": 3}
    assert nodes(config) == {"main": ("Up", 3)}


def test_what_stands_before_the_queue_of_a_node_is_a_node_that_calls_it():
    wired = {
        "node_entrypoint": f"IoC[{QUEUED};S[Rev,Forward[node.a]]]",
        "instance_num": 2,
        "max": 4,
    }
    config = {"a": {"backend": "Up", "next": "b", **wired}, "b": {"backend": "Twice"}}
    found = nodes(config)
    assert found["a"] == ("S[Rev,Forward[node.a_instances]]", 32)
    assert found["a_instances"] == ("Up", 2)
    assert answer(config) == "BABA"


def test_a_node_without_a_queue_that_calls_others_waits_with_many_requests():
    config = {
        "pick": {"node_entrypoint": "Register[Random(1.0)[node.up,node.rev]]"},
        "up": {"backend": "Up"},
        "rev": {"backend": "Rev"},
    }
    assert nodes(config)["pick"] == ("Random(1.0)[node.up,node.rev]", 32)
    assert answer(config) == "AB"


def test_other_names_of_words_are_those_of_core():
    config = {"backend": "IoC[Up,Rev;S[Proxy[Up],InstanceFromParam[which]]]", "which": "Rev"}
    assert nodes(config) == {"main": ("IoC[Up,Rev;S[Forward[Up],Forward[Rev]]]", 1)}
    assert answer(config) == "BA"
    assert answer({"backend": "S[ProxyFromParam[post,Up],Rev]"}) == "BA"
    config = {"backend": "ModelLoadder[(.a)Up,(.b)Rev]", "model": "x.b"}
    assert answer(config) == "ba"
    config = {"backend": "Reflect[inner]", "inner": "IoC[Up;Proxy[Up]]"}
    assert answer(config) == "AB"
    for text in ("With[BackgroundThread,Up]", "DI[BackgroundThread,S,Up]", "S[Aspect[S,Up],Rev]"):
        assert answer({"backend": text}) in ("AB", "BA")
    assert nodes({"backend": "DI[BackgroundThread,S,Up]"})["main"] == ("BackgroundThread[S[Up]]", 1)


@pytest.mark.parametrize(
    ("config", "path", "at", "advice"),
    [
        (
            {
                "own": {"backend": "Up", "init": f"List[Register(w)[Rev],{QUEUED}]"},
                "n": {"backend": "w"},
            },
            "own.init",
            "Register",
            "Write it as the backend of a node of its own, and call it by Forward[node.w].",
        ),
        (
            {"x": {"backend": "Up"}, "y": {"backend": "S[Rev,Proxy[x.0]]"}},
            "y.backend",
            "Proxy",
            "Write Forward[node.x], which goes through the queue.",
        ),
        (
            {
                "a": {
                    "node_entrypoint": "IoC[Up,InstancesRegister[S[Up,Rev]],Register[Batching[InstanceDispatcher]];Forward[node.a]]"
                }
            },
            "a.node_entrypoint",
            "Up",
            "Write IoC[Up;...] in backend: each instance has its own.",
        ),
        (
            {"backend": "Batching[Up]"},
            "main.backend",
            "Batching",
            "Leave it out: each node has a queue.",
        ),
        (
            {"backend": "S[Up,DagDispatcher]"},
            "main.backend",
            "DagDispatcher",
            "Link the nodes by next.",
        ),
        (
            {"backend": "S[List[Up]]"},
            "main.backend",
            "List",
            "Write S[...] to run several one after the other.",
        ),
        (
            {"backend": "Up", "init": "List[Queue(q),Queue(r)]"},
            "main.init",
            "Queue",
            "Write this Queue in the init of another node.",
        ),
        (
            {"backend": "Up", "node_entrypoint": f"List[{ALONE}]"},
            "main.node_entrypoint",
            "List",
            "Write Register[DI[Batching,InstanceDispatcher]] in it.",
        ),
        (
            {"backend": "Up", "node_entrypoint": "Batching[InstanceDispatcher]"},
            "main.node_entrypoint",
            "InstanceDispatcher",
            "Write InstancesRegister[...] before it.",
        ),
        (
            {"a": {"node_entrypoint": "Batching[Reflect[backend]]"}},
            "a.node_entrypoint",
            "Reflect",
            'Write backend = "..." in the node.',
        ),
        (
            {"backend": "IoC[Up;InstanceFromParam[which]]"},
            "main.backend",
            "InstanceFromParam",
            "Write which = ... in node 'main', with the name of an instance.",
        ),
        ({"backend": "With[Up]"}, "main.backend", "With", "Write With[W,X]"),
        ({"backend": "DI[S[Up],Rev]"}, "main.backend", "S", "Write Rev into its bracket"),
    ],
)
def test_what_no_table_can_say_names_the_word_and_what_to_write(config, path, at, advice):
    (found,) = refused(config)
    assert (found.code, found.path) == ("wiring", path)
    assert found.text[slice(*found.span)] == at
    assert found.hint.startswith(advice)


def test_all_of_them_are_reported_together():
    config = {
        "a": {"backend": "Batching[Up]"},
        "b": {"backend": "S[List[Up]]"},
        "entrypoint": "HasKey(k)[DagDispatcher]",
    }
    assert [one.path for one in refused(config)] == ["a.backend", "b.backend", "global.entrypoint"]


def test_an_error_in_what_is_translated_is_shown_where_it_was_written(tmp_path):
    text = f'[a]\nbackend = "S[Up,Revv]"\nnode_entrypoint = "IoC[{QUEUED};Forward[node.a]]"\n'
    text += '[b]\nnode_entrypoint = "Batching[S[Up,Rve]]"\n'
    (tmp_path / "a.toml").write_text(text)
    found = refused(tmp_path / "a.toml")
    assert [(one.path, one.line, one.suggestion) for one in found] == [
        ("a.backend", 2, "Rev"),
        ("b.node_entrypoint", 5, "Rev"),
    ]


def test_the_configuration_is_given_as_it_was_written():
    config = {"backend": "Up", "node_entrypoint": f"IoC[{QUEUED};Forward[node.{{node_name}}]]"}
    assert headrace.PipelineConfig.load(config).to_dict() == config


# Before all nodes.

TWO = {"a": {"backend": "Up", "next": "b"}, "b": {"backend": "Rev"}}


@pytest.mark.parametrize(
    ("front", "added", "expected"),
    [
        ("DagDispatcher", {}, "BA"),
        ("S[DagDispatcher]", {}, "BA"),
        ("S[Twice,DagDispatcher]", {"entrypoint": ("Twice", 1)}, "BABA"),
        ("S[Twice,Rev,DagDispatcher]", {"entrypoint": ("S[Twice,Rev]", 1)}, "ABAB"),
        ("S[DagDispatcher,Twice]", {"exit": ("Twice", 1)}, "BABA"),
        ("S[Rev,DagDispatcher,Twice]", {"entrypoint": ("Rev", 1), "exit": ("Twice", 1)}, "ABAB"),
    ],
)
def test_what_stands_before_and_after_the_graph_is_a_node(front, added, expected):
    config = {"global": {"entrypoint": front}, **TWO}
    assert nodes(config) == {**added, "a": ("Up", 1), "b": ("Rev", 1)}
    assert answer(config) == expected


@pytest.mark.parametrize("front", ["Forward[node.main]", "DagDispatcher"])
def test_a_front_that_only_hands_on_is_nothing(front):
    assert nodes({"entrypoint": front, "backend": "Up"}) == {"main": ("Up", 1)}


def test_a_front_that_calls_nodes_is_their_first():
    config = {
        "entrypoint": "S[Forward[node.a],Forward[node.b]]",
        "a": {"backend": "Up"},
        "b": {"backend": "Rev"},
    }
    assert nodes(config)["entrypoint"] == ("S[Forward[node.a],Forward[node.b]]", 32)
    assert answer(config) == "BA"


def test_many_requests_wait_in_a_front_at_a_time():
    meeting = threading.Barrier(8)

    def meet(text):
        meeting.wait(60)
        return text

    headrace.register("Meet", meet, replace=True)
    config = {
        "entrypoint": "S[Up,Forward[node.main]]",
        "main": {"backend": "Meet", "instance_num": 8},
    }
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": str(n)}) for n in range(8)]
        assert [one.result(60)["result"] for one in futures] == [str(n) for n in range(8)]


@pytest.mark.parametrize(
    ("config", "at", "advice"),
    [
        (
            {"entrypoint": "HasKey(k)[DagDispatcher]", **TWO},
            "DagDispatcher",
            "Write DagDispatcher in S or in Restart",
        ),
        (
            {"entrypoint": "S[Up,(or)DagDispatcher]", **TWO},
            "DagDispatcher",
            "Write DagDispatcher in S or in Restart",
        ),
        (
            {"entrypoint": "Forward[node.a]", **TWO},
            "Forward",
            "Put DagDispatcher where the walk is to begin",
        ),
        (
            {"entrypoint": "S[Restart[DagDispatcher],Up]", **TWO},
            "Up",
            "Write it into a node that the last one leads to",
        ),
        (
            {
                "entrypoint": "S[Twice,DagDispatcher]",
                "a": {"backend": "Up"},
                "b": {"backend": "Rev"},
            },
            "Twice",
            "Lead them to one node by next, or write it into each.",
        ),
        (
            {"global": {"entrypoint": "S[Twice,DagDispatcher]"}, "entrypoint": {"backend": "Up"}},
            "Twice",
            "Give that node another name.",
        ),
    ],
)
def test_what_no_link_can_say_names_the_word_and_what_to_write(config, at, advice):
    (found,) = refused(config)
    assert (found.code, found.path) == ("wiring", "global.entrypoint")
    assert found.text[slice(*found.span)] == at
    assert found.hint.startswith(advice)


# Restart.


class AgainFromB(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"] + 1
            if request["result"] < 5:
                request["restart"] = "b"


@pytest.fixture
def counting():
    headrace.register("AgainFromB", AgainFromB, replace=True)
    headrace.register("AddTen", lambda number: number + 10, replace=True)


RESTART = {"entrypoint": "Restart[DagDispatcher]"}


def test_restart_enters_again_at_the_node_that_the_item_names(counting):
    config = {**RESTART, "a": {"backend": "AddTen", "next": "b"}, "b": {"backend": "AgainFromB"}}
    assert nodes(config)["b"][0] == "S[AgainFromB,Restart(nodes=[a,b])]"
    with headrace.pipe(config) as pipe:
        for _ in range(2):  # the same dict may be sent again
            request = {"data": -9}
            assert pipe(request) == {"data": -9, "result": 5}


def test_a_restart_that_the_request_brings_is_none(counting):
    config = {**RESTART, "a": {"backend": "AddTen"}, "b": {"backend": "AddTen"}}
    answered = {"data": 1, "node_name": "a", "restart": "b"}
    with headrace.pipe(config) as pipe:
        assert pipe(answered) == {"data": 1, "node_name": "a", "result": 11}


def test_restart_stops_at_its_limit(counting):
    config = {"entrypoint": "Restart(limit=3)[DagDispatcher]", "b": {"backend": "AgainFromB"}}
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 2})["result"] == 5  # three runs
        with pytest.raises(LimitError) as caught:
            pipe({"data": 1})
        assert caught.value.limit == 3


def test_a_restart_at_an_unknown_node_names_the_key_and_the_nearest_node(counting):
    class Astray(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request.update(result=1, restart="bb")

    headrace.register("Astray", Astray, replace=True)
    with headrace.pipe({**RESTART, "b": {"backend": "Astray"}}) as pipe:
        with pytest.raises(InputError) as caught:
            pipe({"data": 1})
        assert (caught.value.key, caught.value.hint) == ("restart", "Did you mean 'b'?")


# Names of others.


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("around", ["{}", "DI[BackgroundThread,{}]", "With[BackgroundThread,{}]"])
def test_a_backend_that_is_called_as_a_word_is_that_backend(name, around, tmp_path):
    if around.startswith(name):
        pytest.skip("it stands for itself alone")
    path = tmp_path / "mine.py"
    path.write_text(f"import headrace\nheadrace.register({name!r}, lambda data: data + ['mine'])\n")
    config = {"import": [str(path)], "backend": around.format(name)}
    assert answer(config, []) == ["mine"]
