"""The configuration that a folder of sentence-transformers with an ONNX file stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["tables_of"]

_WAYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
_FILES = ("onnx/model.onnx", "model.onnx")
_TAIL_BYTES = 256 << 10
_MASKS = ("attention_mask", "token_type_ids")
_BATCH = 32
_AREA_TOKENS = 512
_SPREAD = 0.2
"""Bounds of a batch. `python -m benchmarks.embeddings.clients` measures others: they differ by less than its noise."""


def tables_of(folder: Path) -> dict[str, Any]:
    """Return the tables of the pipeline: tokens, batches by their number, the model, pooling, length 1.

    Raises:
        ConfigError: The folder lacks a file, or asks for what is not here. It names it.
    """
    model = next((name for name in _FILES if (folder / name).is_file()), None)
    if model is None or not (folder / "tokenizer.json").is_file():
        what = f"the folder has no {'tokenizer.json' if model else ' or '.join(_FILES)}"
        raise _wrong(folder, what, "Export it: optimum-cli export onnx --model NAME FOLDER.")
    prompt = _prompt(folder)
    said = _json(folder / "sentence_bert_config.json", {})
    config = _json(folder / "config.json", {})
    if said.get("do_lower_case"):
        what = "do_lower_case is true, and texts are not changed before their tokens"
        raise _wrong(folder / "sentence_bert_config.json", what)
    longest = said.get("max_seq_length") or config.get("max_position_embeddings") or 512
    inputs = {"input_ids": "data", **{name: name for name in _inputs(folder / model)}}
    steps = ",".join(["OnnxTensor", *_steps(folder, prompt)])
    area = max(_AREA_TOKENS, longest)
    return {
        "tokenize": {
            "backend": "Tokenize",
            "tokenizer": "tokenizer.json",
            "max_length": longest,
            "prompt": prompt.replace("$", "$$"),
            "next": "encode",
        },
        "encode": {
            "backend": f"S[{steps}]",
            "model": model,
            "inputs": inputs,
            "ragged": "pad",
            "pad_value": {"input_ids": config.get("pad_token_id") or 0},
            "max": _BATCH,
            "batch_policy": f"Budget(cost=tokens,most={area},area=padded,spread={_SPREAD})",
        },
    }


def _steps(folder: Path, prompt: str) -> list[str]:
    """Return the elements behind the model."""
    place, steps, width = folder / "modules.json", [], ""
    for module in _json(place, []):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            at = folder / str(module.get("path")) / "config.json"
            how, number = _pooling(at, _json(at), prompt)
            width = f"width={number}" if number else ""
            steps.append(f"Pool({how},{width})" if width else f"Pool({how})")
        elif kind == "Normalize":
            steps.append(f"Normalize({width})" if width else kind)
        elif kind != "Transformer":
            what = f"the module {module.get('type')!r} has no backend here"
            raise _wrong(place, what, "There are Transformer, Pooling and Normalize.")
    if not any(one.startswith("Pool") for one in steps):
        raise _wrong(place, "there is no module Pooling, so a text has a vector per token")
    return steps


def _pooling(place: Path, said: dict[str, Any], prompt: str) -> tuple[str, Any]:
    """Return the way of pooling, and the width of the vectors if it is said."""
    chosen = [key for key, on in said.items() if key.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in _WAYS:
        what = f"pooling by {', '.join(chosen) or 'nothing'} has no backend here"
        raise _wrong(place, what, f"One of {', '.join(_WAYS)}.")
    if prompt and said.get("include_prompt") is False:
        raise _wrong(place, "include_prompt is false, and Pool cannot leave a prompt out")
    return _WAYS[chosen[0]], said.get("word_embedding_dimension")


def _prompt(folder: Path) -> str:
    said = _json(folder / "config_sentence_transformers.json", {})
    name = said.get("default_prompt_name")
    prompts = said.get("prompts") or {}
    if name is not None and name not in prompts:
        what = f"default_prompt_name is {name!r}, and prompts has {', '.join(prompts) or 'none'}"
        raise _wrong(folder / "config_sentence_transformers.json", what)
    return "" if name is None else str(prompts[name])


def _inputs(model: Path) -> list[str]:
    """Return which masks a model takes: their names stand at the end of its file, each after its length."""
    with model.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        tail = file.read()
    return [name for name in _MASKS if bytes((10, len(name))) + name.encode() in tail]


def _json(path: Path, otherwise: Any = None) -> Any:
    """Return what a file holds: an object or a list, as ``otherwise`` is, which stands for a file that is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if otherwise is None:
            raise _wrong(path, "there is no such file") from error
        return otherwise
    except (OSError, ValueError) as error:
        raise _wrong(path, f"it cannot be read: {error}") from error
    if not isinstance(found, type({} if otherwise is None else otherwise)):
        raise _wrong(path, f"it holds a JSON {type(found).__name__}")
    return found


def _wrong(path: Path, what: str, hint: str | None = None) -> ConfigError:
    return ConfigError(Problem("text", what, file=str(path), hint=hint))
