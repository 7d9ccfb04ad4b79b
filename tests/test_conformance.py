"""Our own plugins keep every rule, and every rule has its page."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import entry_points

import pytest
from pages import ROOT, Page, shell

from headrace._language.registry.registry import registry
from headrace_testing import certify
from headrace_testing.conformance import rules


def load_script():
    spec = importlib.util.spec_from_file_location("rules_script", ROOT / "scripts" / "rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORDS = [p for p in entry_points(group="headrace.conformance") if p.dist.name == "headrace-testing"]


@pytest.mark.parametrize("point", {p.value: p for p in WORDS}.values(), ids=lambda p: p.name)
def test_words_of_core_that_run_requests_are_certified(point):
    certificate = certify(point.load(), promised=registry.find(point.name)[0].load())
    left = {v.id: v.detail for v in certificate.rules if not v.good}
    assert (certificate.certified, left, certificate.expected_failures) == (True, {}, {})


def test_words_of_core_are_offered_for_certification_as_those_of_plugins_are():
    assert {"Identity", "S", "Sequential"} <= {point.name for point in WORDS}
    done = shell("headrace conformance Identity IoC --json", ROOT)
    found = {c["backend"]: c["certified"] for c in json.loads(done.stdout)["certificates"]}
    assert (done.returncode, found) == (1, {"Identity": True, "IoC": False})


@pytest.mark.slow
def test_a_backend_and_a_distribution_are_certified_without_an_exception(tmp_path):
    """All others of headrace-cv are in its own tests, rule by rule."""
    out = tmp_path / "certificate.json"
    done = shell(f"headrace conformance cv:CropMat headrace-ort --certificate {out}", ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["certified"] is True
    certificates = {(c["distribution"], c["backend"]): c for c in written["certificates"]}
    assert set(certificates) == {("headrace-cv", "CropMat"), ("headrace-ort", "OnnxTensor")}
    for certificate in certificates.values():
        assert certificate["expected_failures"] == {}
        assert [rule["id"] for rule in certificate["rules"]] == list(rules())
        outcomes = {rule["id"]: rule["outcome"] for rule in certificate["rules"]}
        # `rerun` promises nothing where it is False, and `right-answers` where the class has no `expected`.
        for promise in ("rerun", "right-answers"):
            assert outcomes.pop(promise) in ("passed", "not_applicable")
        assert set(outcomes.values()) == {"passed"}
    heavy = {
        rule["id"]: rule["detail"] for rule in certificates["headrace-ort", "OnnxTensor"]["rules"]
    }
    assert "onnxruntime" in heavy["imports-lazily"]
    assert "onnxruntime" in heavy["missing-library"]


def test_every_rule_has_a_page():
    named = {path.name for path in load_script().pages()}
    assert named == {"README.md", *(f"{identifier}.md" for identifier in rules())}


def test_every_page_shows_a_backend_that_breaks_the_rule():
    shown = load_script().broken()
    # These two are broken by a conformance class, not by a backend.
    assert set(rules()) - set(shown) == {"resolves", "items"}


def test_the_class_that_the_page_of_rules_shows_is_certified():
    page = ROOT / "docs" / "rules" / "README.md"
    names: dict[str, type] = {}
    exec(Page(page, text=load_script().pages()[page]).block("python", "BackendConformance"), names)
    assert certify(names["ResizeMatConformance"]).certified
