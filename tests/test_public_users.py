"""Each public name of core has a user outside of it: a distribution, an example, a template or a page."""

from __future__ import annotations

import json
import re

import made_pages
import public_names
from distributions import ROOT

PLACES = (
    *("cli/src", "testing/src", "libs/*/src", "plugins/*/src"),
    *("examples", "docs", "benchmarks"),
    *("*.md", "*/README.md", "*/*/README.md"),
)
"""Where users are looked for; the templates of `headrace new` are below ``cli/src``."""
NOT_USERS = {"ARCHITECTURE.md", "CHANGELOG.md", "how_core_works.md", "internals.md", "policies.md"}
"""What tells of core itself."""

EXEMPT = {
    "BatchRequest": "what BatchRecord.requests holds",
    "BestFit": "best_fit in a configuration",
    "Expression": "what who tests a container gives to InitContext",
    "Stores": "what who tests shared objects gives to InitContext",
    "NODE_NAME": "a reserved key of requests, of the predecessor too",
}
"""Names that nobody writes, with what stands for them."""


def names():
    """Return the public names of core and of the classes among them, with where each stands."""
    modules = json.loads(public_names.FILE.read_text(encoding="utf-8"))["modules"]
    for module, found in modules.items():
        if module.partition(".")[0] == "headrace":
            for name, about in found.items():
                yield name, module
                members = about.get("members", {}) if isinstance(about, dict) else {}
                yield from ((member, f"{module}.{name}") for member in members)


def test_each_public_name_of_core_has_a_user():
    files = {
        path
        for place in PLACES
        for found in ROOT.glob(place)
        for path in ([found] if found.is_file() else found.rglob("*"))
        if path.suffix in {".py", ".md", ".toml"} and path.name not in NOT_USERS
        if not made_pages.is_made(path)  # of the code, which names everything
    }
    assert len(files) > 400
    written = {
        word for path in files for word in re.findall(r"\w+", path.read_text("utf-8", "replace"))
    }
    every = dict(names())
    assert len(every) > 150
    alone = {f"{where}.{name}" for name, where in every.items() if name not in written}
    assert alone == {f"{every[name]}.{name}" for name in EXEMPT}
