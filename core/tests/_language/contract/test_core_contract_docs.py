"""What `help` says about the backend contract: its example runs and keeps the rules."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap

import pytest

import headrace
from headrace import hookspecs, policies, words
from headrace_testing import BackendConformance, certify


@pytest.fixture
def scale():
    """The class in the docstring of Backend."""
    doc = inspect.getdoc(headrace.Backend)
    code = re.search(r"::\n\n((?:    .*\n|\n)+)", doc)[1]
    names = {"__name__": "hrt_documented", "headrace": headrace}
    program = "import pydantic\nfrom headrace.errors import InputError\n" + textwrap.dedent(code)
    exec(compile(program, "help", "exec"), names)
    return headrace.register(names["Scale"], replace=True)


def test_the_example_of_the_contract_runs(scale):
    with headrace.pipe({"backend": "Scale", "factor": 3, "max": 4}) as pipe:
        assert pipe({"data": 2})["result"] == 6
        with pytest.raises(headrace.errors.RequestsFailed) as caught:
            pipe([{"data": 2}, {"data": "2"}])
    good, bad = caught.value.errors
    assert good is None
    assert (type(bad), bad.key) == (headrace.errors.InputError, "data")


def test_the_example_of_the_contract_keeps_the_rules_about_what_it_does(scale):
    class Documented(BackendConformance):
        expression = "Scale"

        def make_item(self, k):
            return {"data": k + 0.5}

    certificate = certify(Documented)
    assert certificate.problem is None
    bad = {verdict.id: verdict.detail for verdict in certificate.rules if not verdict.good}
    # A class that a docstring holds is in no module, from which another process could import it.
    assert set(bad) <= {"resolves", "imports-lazily", "missing-library"}, bad


def attributes(doc: str) -> set[str]:
    section = doc.partition("Attributes:")[2]
    names = re.findall(r"^ {4}([a-z_A-Z, ]+): ", section, re.MULTILINE)
    return {name for line in names for name in line.split(", ")}


def test_every_attribute_of_the_contract_is_documented():
    public = {name for name in headrace.Backend.__annotations__ if not name.startswith("_")}
    assert attributes(inspect.getdoc(headrace.Backend)) == public


GROUPS = {type(group) for group in vars(headrace.InitContext()).values()} & {
    one for one in vars(headrace.InitContext).values() if dataclasses.is_dataclass(one)
}


@pytest.mark.parametrize(
    "cls", [headrace.InitContext, *sorted(GROUPS, key=str), words.Bracket, words.Place]
)
def test_every_field_of_the_context_and_of_a_group_is_documented(cls):
    fields = {field.name for field in dataclasses.fields(cls)}
    assert attributes(inspect.getdoc(cls)) == fields


def test_the_contract_fits_in_one_head():
    assert len(dataclasses.fields(headrace.InitContext)) <= 16
    assert len(GROUPS) == 5
    own = [name for name in headrace.Backend.__annotations__ if not name.startswith("_")]
    assert len(own) <= 16


@pytest.mark.parametrize("name", ["init", "forward", "warm_up", "describe", "close"])
def test_every_method_that_authors_write_is_documented(name):
    assert len(inspect.getdoc(getattr(headrace.Backend, name)).splitlines()) >= 3


@pytest.mark.parametrize("module", [hookspecs, policies])
def test_every_public_name_of_the_other_contracts_is_documented(module):
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isfunction(found) or inspect.isclass(found):
            assert inspect.getdoc(found), name
