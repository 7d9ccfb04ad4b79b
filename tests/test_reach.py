"""What `./dev test` runs after a change: the tests that it can reach."""

from __future__ import annotations

import pytest
import reach


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["core/src/headrace/words/s.py"],
        [
            "plugins/text/src/headrace_text/folder.py",
            "libs/formats/src/headrace_formats/__init__.py",
        ],
        ["conftest.py"],
        ["plugins/new_one/src/headrace_new_one/__init__.py"],
    ],
)
def test_what_holds_for_all_reaches_all(paths):
    assert reach.reached(paths) == []


def test_a_plugin_reaches_itself_who_names_it_and_what_looks_at_all():
    found = reach.reached(["plugins/text/src/headrace_text/folder.py"])
    assert found[0] == "plugins/text/tests"
    assert "plugins/serve/tests/test_serve_scores.py" in found  # it imports headrace_text
    assert "tests/test_example_embeddings.py" in found  # its backends stand there
    assert {"tests/test_size.py", "tests/test_import_cycles.py"} <= set(found)
    assert not {"core/tests/test_core_queue.py", "plugins/trt/tests/test_trt_build.py"} & set(found)


def test_a_document_reaches_who_follows_it():
    found = reach.reached(["docs/models.md"])
    assert {"libs/models/tests/test_models_pages.py", "tests/test_prose.py"} <= set(found)
    assert not [one for one in found if one.startswith("plugins/trt")]
