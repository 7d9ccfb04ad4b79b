"""Changelogs: of the version that the distribution has, and the first version says what there is, not what was different before it."""

from __future__ import annotations

import re

import distributions
import pytest

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
EARLIER = re.compile(
    r"\b(no longer|any ?more|until now|as before|used to|formerly|previously|has moved)\b",
    re.IGNORECASE,
)
FIRST = """## 0.1.0 (unreleased)

### Added
- `Word`: what it is for.
"""


def problems(text: str, version: str) -> list[str]:
    """Return what is wrong with a changelog of a distribution that has a version."""
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    heading = rf"{re.escape(version)} \((unreleased|\d{{4}}-\d\d-\d\d)\)"
    found = []
    if not sections or not re.fullmatch(heading, sections[0][0]):
        found.append(
            f"it does not begin with '## {version} (unreleased)' or the day of its release"
        )
    for _, body in sections:
        kinds = re.findall(r"^### (.+)$", body, re.MULTILINE)
        found += [f"unknown heading {one!r}" for one in kinds if one not in KINDS]
        topics = re.findall(r"^- \*\*(.+?)\*\*", body, re.MULTILINE)
        found += [
            f"{one!r} stands there twice" for one in sorted({*topics}) if topics.count(one) > 1
        ]
    # Nobody has met what was before the first version.
    first = sections[-1][1] if sections else ""
    found += [f"{one[0]!r} in the first version" for one in EARLIER.finditer(first)]
    kinds = re.findall(r"^### (Changed|Removed|Fixed|Security)$", first, re.MULTILINE)
    return found + [f"{one!r} in the first version" for one in kinds]


@pytest.mark.parametrize("folder", distributions.folders(), ids=lambda one: one.name)
def test_the_changelog_of_each_distribution_keeps_the_rules(folder):
    text = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert problems(text, distributions.project(folder)["version"]) == []


def test_a_sound_changelog_has_no_problem_and_later_versions_may_say_what_was():
    assert problems(FIRST, "0.1.0") == []
    later = "## 0.2.0 (2027-01-01)\n\n### Fixed\n- `Word` no longer fails.\n\n" + FIRST
    assert problems(later, "0.2.0") == []


@pytest.mark.parametrize(
    ("text", "version", "said"),
    [
        (FIRST, "0.2.0", "does not begin"),
        ("", "0.1.0", "does not begin"),
        (FIRST.replace("Added", "New"), "0.1.0", "unknown heading"),
        (FIRST.replace("Added", "Fixed"), "0.1.0", "'Fixed' in the first version"),
        (FIRST.replace("what it is for", "it no longer fails"), "0.1.0", "'no longer'"),
        (FIRST.replace("what it is for", "any more"), "0.1.0", "'any more'"),
        (FIRST + "- **Life**: one.\n- **Life**: two.\n", "0.1.0", "'Life' stands there twice"),
    ],
)
def test_what_breaks_a_rule_is_told(text, version, said):
    (one,) = problems(text, version)
    assert said in one
