"""A word says in its own class how it is planned, built and what keys it needs; nothing else knows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace
from headrace import errors
from headrace._plan.element import Named
from headrace._plan.word import Word, needs_of

SOURCE = Path(headrace.__file__).parent


class Twice(Word):
    """Run the instance that the first name stands for twice: ``Twice[name,X]``, where X is ``name``.

    It brings a name into scope, is gone once it is built, and needs what X needs.
    """

    takes = 2
    _names = 1
    _wiring = True

    @classmethod
    def _plan(cls, use):
        name, inside = use.children
        key = name.name
        if key.startswith("no"):
            use.add("twice", f"{key!r} is no name for this", name)
            return None
        child = use.child(inside)
        if child is None:
            return None
        frames = (*use.scope.frames, {key: Named(key, child)})
        use.element.phases = [[child, use.plan(name, frames=frames)]]
        return use.element

    @classmethod
    def combine_ranges(cls, children):
        return children[0].range

    @classmethod
    def _needs(cls, element, built):
        return needs_of(element.children[0], built)

    @classmethod
    def _build(cls, building, element, at):
        child, _ = element.children
        return building.backend(element, (building.child(child, at),), at)

    def _prepare(self, building, element, at):
        self.node_name = building.name

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        outcomes = self.child(batch)
        if outcomes is not None:
            return outcomes
        for request in batch:
            request["data"] = request.pop("result")
        return self.child(batch)

    def describe(self):
        return {"node": self.node_name}


class Mask(headrace.Backend):
    reads = ("mask",)

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("data", request["mask"]) + 1


headrace.register("WordTwice", Twice, replace=True)
headrace.register("WordMask", Mask, replace=True)


def test_a_word_of_its_own_is_planned_built_and_run():
    with headrace.pipe({"backend": "S[Identity,WordTwice[again,WordMask]]"}) as pipe:
        assert pipe({"data": 1, "mask": 0})["result"] == 3
        (tree,) = (node["tree"] for node in pipe.describe()["nodes"].values())
    assert tree["children"][1]["built"] == {"node": "main"}


def test_what_it_reports_has_a_place():
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": "WordTwice[nothing,Identity]"})
    (found,) = caught.value.problems
    assert found.text[slice(*found.span)] == "nothing"


def test_the_keys_that_it_needs_are_needed_where_a_request_enters():
    with headrace.pipe({"backend": "WordTwice[again,WordMask]"}) as pipe:
        assert pipe({"mask": 1})["result"] == 3
        with pytest.raises(errors.InputError, match="mask"):
            pipe({"data": 1})
    graph = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "WordTwice[again,WordMask]", "map": "a[result:data]"},
    }
    with pytest.raises(errors.ConfigError, match="reads 'mask'"):
        headrace.PipelineConfig.load(graph)


def test_an_option_that_only_its_child_has_is_known():
    config = {"backend": "WordTwice[again,Loop(until=mask)[WordMask]]", "limit": 3}
    headrace.PipelineConfig.load(config)
    with pytest.raises(errors.ConfigError, match="limits"):
        headrace.PipelineConfig.load({**config, "limits": 3})


@pytest.mark.parametrize("package", ["_plan", "_build"])
def test_planner_and_builder_import_no_word(package):
    for file in SOURCE.joinpath(package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not [m for m in modules if m and m.startswith("headrace.words")], file.name


TWO_BATCHINGS = (
    "IoC[InstancesRegister[Reflect[backend]],Register(x)[Batching[InstanceDispatcher]],"
    "Register[Batching[InstanceDispatcher]];Forward[node.{node_name}]]"
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"backend": "S[(or)Identity,Identity]"},
            "(or) cannot stand before the first element of S",
        ),
        ({"backend": "IoC[Identity,Identity;Identity]"}, "'Identity' stands twice before ';'"),
        ({"backend": "IoC[Identity;S[Identity],Identity]"}, "IoC has one front after ';'"),
        ({"backend": "DI[S[Identity],Identity]"}, "S is to depend on Identity, and has a bracket"),
        ({"backend": "S[Queue(q)]"}, "Queue only declares a queue: S cannot call it"),
        ({"backend": "S[List[Identity]]"}, "List only builds others: S cannot call it"),
        ({"backend": "Proxy[main.0(a=1)]"}, "Proxy takes a name here, without ( ) and [ ]"),
        ({"backend": "S[DagDispatcher]"}, "so node 'main' would call itself"),
        ({"backend": "Identity", "node_entrypoint": TWO_BATCHINGS}, "a node has one Batching"),
        (
            {"backend": "Identity", "node_entrypoint": "IoC[Batching;Reflect[backend]]"},
            "Batching ends in no Batching[InstanceDispatcher]",
        ),
        (
            {"entrypoint": "Process[DagDispatcher]", "a": {"backend": "Identity"}},
            "DagDispatcher cannot stand in Process",
        ),
        (
            {"backend": "h", "init": "Process[Register(h)[Identity]]"},
            "Register cannot stand in Process",
        ),
        (
            {
                "a": {"backend": "CatSplit[Identity,(or)Identity,Identity]"},
            },
            "CatSplit does not understand the prefix (or)",
        ),
        (
            {
                "a": {"backend": "CatSplit[Identity,S[Repost[b]],Identity]"},
                "b": {"backend": "Identity"},
            },
            "Repost[b] cannot stand in the middle of CatSplit",
        ),
        ({"backend": "Batching[Identity]"}, "Batching belongs in init or node_entrypoint, not in"),
        ({"backend": "Register[Identity]"}, "Register belongs in init or node_entrypoint, not in"),
        (
            {"a": {"node_entrypoint": "Register[Batching[InstanceDispatcher]]"}},
            "InstanceDispatcher finds no instances: InstancesRegister[...] comes before it",
        ),
        ({"backend": "S[InstanceDispatcher]"}, "stands in Batching[InstanceDispatcher] only"),
        (
            {"a": {"node_entrypoint": "List[Register(x)[Identity],Register(x)[Identity]]"}},
            "'x' is registered twice",
        ),
        (
            {"a": {"init": "Register('x y')[Identity]", "node_entrypoint": "Identity"}},
            "Register: name: String should match pattern",
        ),
        (
            {"a": {"init": "List[Proxy[x],Register(x)[Identity]]", "node_entrypoint": "x"}},
            "nothing has registered 'x' before this place",
        ),
        (
            {"a": {"init": "InstancesRegister[Identity]", "node_entrypoint": "Proxy[a.1]"}},
            "nothing has registered 'a.1' before this place",
        ),
        (
            {"a": {"init": "Register[Batching]", "node_entrypoint": "DI[node.a,Identity]"}},
            "Batching needs what it depends on and cannot be called",
        ),
        ({"backend": "S[Repost[nowhere]]"}, "no node is called 'nowhere'"),
        ({"backend": "Proxy[nobody]"}, "no instance is called 'nobody'"),
        ({"backend": "InstanceFromParam[which]"}, "InstanceFromParam needs the parameter 'which'"),
        ({"backend": "InstanceFromParam[w]", "w": "A[B]"}, "'w' is to be the name of an instance"),
        ({"backend": "Reflect[which]"}, "node 'main' needs the key 'which'"),
        ({"backend": "Reflect[a]", "a": "S[Reflect[a]]"}, "'a' uses itself: a uses a"),
        ({"backend": "IoC[Identity]"}, "IoC has 2 phases in brackets, separated by ';', got 1"),
        ({"backend": "S[Identity;Identity]"}, "S has one phase in brackets, got 2 separated"),
        ({"backend": "CatSplit[Identity,Identity]"}, "CatSplit takes 3 in brackets, got 2"),
        (
            {"backend": "Random(0.5)[Identity,Identity,Identity]"},
            "Random takes 1 to 2 in brackets, got 3",
        ),
        ({"backend": "S"}, "S takes 1 or more in brackets, got 0"),
        ({"backend": "Identity[Identity]"}, "Identity takes nothing in brackets"),
        (
            {"backend": "Z[Identity]", "define": {"Z": "S[Identity]"}},
            "Z[...] goes to Identity, which takes nothing in brackets",
        ),
        ({"backend": "ModelLoader(x.onnx)[Identity]"}, "ModelLoader takes no positional args"),
        (
            {"backend": "HasKey(a,b,c)[Identity]"},
            "HasKey takes at most 1 positional (key), got 3",
        ),
        (
            {"backend": "ModelLoader(model=x.onnx)[Identity]"},
            "a branch of ModelLoader begins with suffixes: (.onnx)Identity",
        ),
        (
            {"backend": "ModelLoader(model=x.onnx)[('')Identity]"},
            "a branch of ModelLoader begins with suffixes: (.onnx)Identity",
        ),
        (
            {"backend": "ModelLoader(model=x.onnx)[(.trt)Identity]"},
            "ModelLoader has no branch for the model 'x.onnx': it has .trt",
        ),
        ({"backend": "Call(f)"}, "a function is named as package.module:name"),
        ({"backend": "Call(no.such:f)"}, "Call needs the module 'no'"),
        ({"backend": "Call(html.no_such:f)"}, "Call needs the module 'html.no_such'"),
    ],
)
def test_what_a_word_refuses_it_says(config, message):
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    assert [p for p in caught.value.problems if message in p.message], caught.value


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ({"max": 2}, "a"),
        ({"init": "InstancesRegister[Reflect[backend]]"}, "a.init"),
        ({"node_entrypoint": "Register[Batching[Reflect[backend]]]"}, "a.node_entrypoint"),
    ],
)
def test_a_node_without_backend_is_told_where_the_user_wrote_what_needs_it(node, path):
    with pytest.raises(errors.ConfigError, match="node 'a' needs the key 'backend'") as caught:
        headrace.PipelineConfig.load({"a": node})
    assert path in [found.path for found in caught.value.problems]
