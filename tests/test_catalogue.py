"""The catalogue: nothing is left out."""

from __future__ import annotations

import functools

import catalogue


@functools.cache
def texts() -> str:
    """Return all pages, one after the other."""
    return "\n".join(catalogue.pages().values())


def test_every_backend_of_every_distribution_is_on_the_page():
    text = texts()
    from headrace._language.registry.discovery import CORE_BACKENDS

    for name in CORE_BACKENDS:
        assert f"## {name}\n" in text or f"`{name}`" in text
    for folder in catalogue.folders():
        about = catalogue.project(folder)
        assert f"# {about['name']} {about['version']}\n" in text
        for name in about.get("entry-points", {}).get("headrace.backends", {}):
            assert f"## {name}\n" in text or f"Also written `{name}`" in text


def test_every_option_is_on_the_page_with_its_meaning():
    from headrace._language.registry.registry import registry

    text = " ".join(texts().split())
    for name in ("DecodeMat", "LetterBoxMat", "NMS", "OnnxTensor", "Loop"):
        (spec,) = registry.find(name)
        for option, field in spec.load().Options.model_fields.items():
            assert f"| `{option}` |" in text
            assert " ".join(field.description.split()).replace("|", "\\|") in text
