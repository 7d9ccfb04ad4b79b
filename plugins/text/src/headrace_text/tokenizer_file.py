"""Compares ``tokenizer_config.json`` with ``tokenizer.json``: transformers builds some tokenizers again from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["differences"]

_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}


def differences(
    facts: dict[str, Any], tokenizer: dict[str, Any], family: str
) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, its value, and what the tokenizer has in its place.

    Args:
        facts: ``tokenizer_config.json``.
        tokenizer: ``tokenizer.json``.
        family: Which class builds the tokenizer again, ``bert`` or ``roberta``. ``""``: none does.
    """
    keys = ("normalizer", "pre_tokenizer", "post_processor")
    parts = [step for key in keys for step in _parts(tokenizer.get(key))]
    kinds = {part.get("type"): part for part in parts}
    if family == "bert" or "do_lower_case" in facts:
        yield from _of_bert(facts, kinds, family)
    if family == "roberta" or "add_prefix_space" in facts:
        has_space = kinds.get("ByteLevel", {}).get("add_prefix_space")
        value = bool(facts.get("add_prefix_space"))
        if "ByteLevel" in kinds and has_space is not value:
            yield "add_prefix_space", value, has_space
    single = next(
        (part["single"] for part in parts if part.get("type") == "TemplateProcessing"), None
    )
    for key, at in (("add_bos_token", 0), ("add_eos_token", -1)):
        if key in facts and single is not None:
            is_there = "SpecialToken" in single[at]
            if is_there is not bool(facts[key]):
                yield key, facts[key], is_there


def _of_bert(
    facts: dict[str, Any], kinds: dict[Any, Any], family: str
) -> Iterator[tuple[str, Any, Any]]:
    own = kinds.get("BertNormalizer")
    if family == "bert" and own is None:
        yield "tokenizer_class", facts.get("tokenizer_class"), "no BertNormalizer"
    elif own is None:
        value, is_there = bool(facts["do_lower_case"]), "Lowercase" in kinds
        if value is not is_there:
            yield "do_lower_case", value, is_there
    else:
        for key, name in _BERT.items():
            said_is = facts.get(key, _DEFAULTS[key])
            if said_is != own.get(name):
                yield key, said_is, own.get(name)


def _parts(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a sequence, and of sequences in it."""
    if not isinstance(part, dict):
        return []
    inner = next(
        (part[key] for key in ("normalizers", "pretokenizers", "processors") if key in part), None
    )
    return [part] if inner is None else [step for each in inner for step in _parts(each)]
