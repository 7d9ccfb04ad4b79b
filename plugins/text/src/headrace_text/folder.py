"""The configuration that a folder of sentence-transformers, or of a classifier of texts, with an ONNX file stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem, among
from headrace_text.model_file import Port, ports_of
from headrace_text.table import (
    ACTIVATIONS,
    CLASSES,
    FILES,
    FLAGS,
    LEARNED,
    MODULES,
    POOLING,
    SENTENCE_FILES,
    TABLE,
    TOKENIZERS,
)
from headrace_text.tokenizer_file import differences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["tables_of"]

_MODELS = ("onnx/model.onnx", "model.onnx")
_EXPORT = "Export it: optimum-cli export onnx --model NAME FOLDER."
_OF_TOKENS = ("token_embeddings", "last_hidden_state")
_KEYS = {
    "input_ids": "data",
    **{name: name for name in ("attention_mask", "token_type_ids", "position_ids")},
}
"""The inputs of a network that `Tokenize` writes, and its keys."""
_NO_LENGTH = 10**20
"""So great a length stands for none in transformers."""
_BATCH = 32
_AREA_TOKENS = 512
_SPREAD = 0.2
"""Bounds of a batch. Others measured the same, within their noise."""


def tables_of(folder: Path, ignore: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tables of the pipeline: tokens, batches by their number, the model, and what stands behind it.

    Args:
        folder: The folder.
        ignore: Files and keys that are not looked at.

    Raises:
        ConfigError: The folder lacks a file, or asks for what is not here. It has all problems, by file and key.
    """
    read = _Folder(folder, ignore)
    tables = read.tables()
    if read.problems:
        raise ConfigError(read.problems)
    return tables


class _Folder:
    """Reads the files of a folder, each held to its table. ``problems`` takes what is wrong."""

    def __init__(self, folder: Path, ignore: Sequence[str]) -> None:
        self.folder, self.root, self.ignore = folder, folder, ignore
        self.problems: list[Problem] = []
        for path in sorted(folder.glob("*.json")):
            row = FILES.get(path.name)
            if row is None or row.mark == "refused":
                problem = "this file is not known" if row is None else row.why
                self.refuse(path, problem, None if row else among(path.name, FILES, ""))

    def refuse(
        self, path: Path, problem: str, hint: str | None = None, key: str | None = None
    ) -> None:
        """Note a problem, unless the operator calls the file or key harmless."""
        name = key or path.name
        if name not in self.ignore:
            hint = f'{hint or ""} If it changes nothing, say ignore = ["{name}"].'.strip()
            self.problems.append(Problem("text", problem, file=str(path), path=key, hint=hint))

    def fail(self, path: Path, problem: str, hint: str | None = None) -> ConfigError:
        """Return an error for what nothing can be read behind."""
        return ConfigError([*self.problems, Problem("text", problem, file=str(path), hint=hint)])

    def json(self, path: Path, otherwise: Any) -> Any:
        """Return the object or list that a file holds; ``otherwise`` is the kind, and stands for a missing file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError) as error:
            raise self.fail(path, f"it cannot be read: {error}") from error
        if not isinstance(content, type(otherwise)):
            raise self.fail(path, f"it holds a JSON {type(content).__name__}")
        return content

    def keys(self, path: Path, table: str) -> dict[str, Any]:
        """Return the keys of a file that are not null, each held to its row."""
        return self.held(path, self.json(path, {}), table)

    def held(self, path: Path, keys: Any, table: str) -> dict[str, Any]:
        """Hold the keys of an object to the rows of a table."""
        rows = TABLE[table]
        values = {key: value for key, value in keys.items() if value is not None}
        for key, value in values.items():
            row = rows.get(key) or rows.get("*")
            if row is None:
                self.refuse(path, "this key is not known", among(key, rows, ""), key)
            elif not row.takes(value):
                known = f"There are: {', '.join(map(str, row.values))}."
                hint = known if row.mark == "obeyed" else None
                self.refuse(path, f"{_shown(value)}: {row.why}", hint, key)
        return values

    def place(self, *names: str) -> Path | None:
        """Return the first file that is there, in the folder of the transformer or beside it."""
        folders = dict.fromkeys((self.root, self.folder))
        paths = (folder / name for folder in folders for name in names)
        return next((path for path in paths if path.is_file()), None)

    def tables(self) -> dict[str, Any]:
        """Return the tables, of which `problems` may tell that they are wrong."""
        modules = self.modules()
        if modules:
            self.root = self.folder / str(modules[0].get("path") or "")
        model, tokenizer = self.place(*_MODELS), self.place("tokenizer.json")
        if model is None or tokenizer is None:
            problem = f"the folder has no {'tokenizer.json' if model else ' or '.join(_MODELS)}"
            raise self.fail(self.folder, problem, _EXPORT)
        config = self.keys(self.root / "config.json", "config.json")
        sentence = next(
            (name for name in SENTENCE_FILES if self.json(self.root / name, {})), SENTENCE_FILES[0]
        )
        keys = self.keys(self.root / sentence, "sentence_bert_config.json") if modules else {}
        own = self.keys(
            self.folder / "config_sentence_transformers.json", "config_sentence_transformers.json"
        )
        try:
            inputs, outputs = ports_of(model)
        except (OSError, ValueError) as error:
            raise self.fail(model, f"it cannot be read: {error}", _EXPORT) from error
        classes = own.get("model_type") == "CrossEncoder" or (
            keys.get("transformer_task") == "sequence-classification" or not modules
        )
        tokenize = self.tokens(tokenizer, config, self.root / sentence, keys) | self.prompts(own)
        behind = (
            self.classifier(outputs, model, config, own, bool(modules))
            if classes
            else self.pooled(outputs, model, modules, tokenize)
        )
        ragged: dict[str, Any] = {"ragged": "group"}
        if "attention_mask" in inputs:
            ragged = {"ragged": "pad", "pad_value": {"input_ids": config.get("pad_token_id") or 0}}
        else:
            del behind["crop"]  # nothing is padded
        area = max(_AREA_TOKENS, tokenize["max_length"])
        return {
            "tokenize": {"backend": "Tokenize", "tokenizer": self.name(tokenizer), **tokenize, "next": "encode"},
            "encode": {
                **behind,
                "model": self.name(model),
                "inputs": self.inputs(inputs, model),
                **ragged,
                "max": _BATCH,
                "batch_policy": f"Budget(cost=tokens,most={area},area=padded,spread={_SPREAD})",
            },
        }  # fmt: skip

    def name(self, path: Path) -> str:
        return _escaped(path.relative_to(self.folder).as_posix())

    def modules(self) -> list[dict[str, Any]]:
        """Return the modules, the transformer first; none where the folder is that of transformers."""
        place = self.folder / "modules.json"
        modules = self.json(place, [])
        for number, module in enumerate(modules):
            if not isinstance(module, dict):
                raise self.fail(place, f"module {number} is a JSON {type(module).__name__}")
            self.held(place, module, "modules.json")
            kind = str(module.get("type"))
            row = MODULES.get(_last(kind)) if kind.startswith("sentence_transformers.") else None
            if row is None or row.mark == "refused":
                why = f": {row.why}" if row else ""
                hint = f"There are {', '.join(_kinds('obeyed'))}."
                raise self.fail(place, f"the module {kind!r} has no backend here{why}", hint)
        kinds = [_last(module["type"]) for module in modules]
        if modules and (kinds[0] != "Transformer" or "Transformer" in kinds[1:]):
            raise self.fail(place, "the first module is no Transformer, or there are several")
        return list(modules)

    def tokens(
        self, place: Path, config: dict[str, Any], sentence: Path, keys: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options of `Tokenize` that say how texts become tokens."""
        path, tokenizer = self.root / "tokenizer_config.json", self.json(place, {})
        own = self.keys(path, "tokenizer_config.json")
        kind = str(config.get("model_type"))
        said_is = own.get("tokenizer_class") or config.get("tokenizer_class")
        name = str(said_is or CLASSES.get(kind, "TokenizersBackend"))
        family = TOKENIZERS.get(name.removesuffix("Fast"))
        if family is None:
            problem = f"{name!r} may make other tokens than tokenizer.json"
            self.refuse(path, problem, among(name, TOKENIZERS), "tokenizer_class")
        named = {**own, "tokenizer_class": name}
        for key, value, has in differences(named, tokenizer, family or ""):
            problem = f"it says {_shown(value)}, and tokenizer.json has {_shown(has)}"
            self.refuse(path, problem, None, key)
        side = own.get("truncation_side") or (tokenizer.get("truncation") or {}).get("direction")
        padding = None
        if LEARNED.get(kind):
            padding = int(config.get("pad_token_id") or 0)
        table: dict[str, Any] = {
            "max_length": self.longest(config, own, sentence, keys, padding),
            "keep": "end" if str(side).lower() == "left" else "beginning",
            "lowercase": bool(keys.get("do_lower_case")),
            "padding_token": padding,
            "tokens": False,
        }
        known: dict[str, Any] = {"keep": "beginning", "lowercase": False, "padding_token": None}
        return {key: value for key, value in table.items() if known.get(key, ...) != value}

    def longest(
        self,
        config: dict[str, Any],
        own: dict[str, Any],
        sentence: Path,
        keys: dict[str, Any],
        padding: int | None,
    ) -> int:
        """Return the most tokens of a text: as it is said, else the fewest that tokenizer or network allow."""
        positions = config.get("max_position_embeddings") or config.get("n_positions")
        of_file = own.get("model_max_length") or own.get("max_len")
        bounds = {
            (sentence, "max_seq_length"): keys.get("max_seq_length"),
            (self.root / "tokenizer_config.json", "model_max_length"): of_file,
            (self.root / "config.json", "max_position_embeddings"): positions,
        }
        lengths = []
        for (path, key), value in bounds.items():
            if value is None or value == -1:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1:
                self.refuse(path, f"expected a number of 1 or more, got {_shown(value)}", None, key)
            elif value < _NO_LENGTH:
                lengths.append(int(value))
            if key == "max_seq_length" and lengths:
                break
        if str(config.get("model_type")) in LEARNED and isinstance(positions, int):
            lengths.append(max(1, positions - (0 if padding is None else padding + 1)))
        if not lengths:
            problem = "no file says how many tokens a text may have"
            self.refuse(sentence, problem, "Write it there.", "max_seq_length")
        return min(lengths, default=1)

    def prompts(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return the options of `Tokenize` that say what stands before texts."""
        path = self.folder / "config_sentence_transformers.json"
        name = own.get("default_prompt_name")
        prompts = own.get("prompts") or {}
        if not isinstance(prompts, dict) or not all(
            isinstance(text, str | None) for text in prompts.values()
        ):
            self.refuse(path, f"expected texts by name, got {_shown(prompts)}", None, "prompts")
            return {}
        prompts = {key: _escaped(text or "") for key, text in prompts.items()}
        if name is not None and name not in prompts:
            problem = f"it is {name!r}, and prompts has {', '.join(prompts) or 'none'}"
            self.refuse(path, problem, None, "default_prompt_name")
        options = {"prompt": prompts.get(str(name), ""), "prompts": prompts}
        return {key: value for key, value in options.items() if value}

    def inputs(self, inputs: dict[str, Port], model: Path) -> dict[str, str]:
        """Return the key of each input of the network."""
        for name, port in inputs.items():
            if name not in _KEYS:
                self.refuse(model, f"the network takes {name!r}, which no text has", _EXPORT)
            elif port.type != "INT64" or any(port.shape or ()):
                problem = f"its input {name!r} is {port}, and tokens are INT64 [?, ?]"
                self.refuse(model, problem, "Export it with free axes.")
        if "input_ids" not in inputs:
            self.refuse(model, f"it has no input 'input_ids', but {', '.join(inputs)}", _EXPORT)
        return {name: key for name, key in _KEYS.items() if name in inputs}

    def output(self, outputs: dict[str, Port], names: Iterable[str], rank: int) -> str | None:
        """Return the output of a name, else the only one of a number of axes."""
        floats = {name: port for name, port in outputs.items() if port.type in ("FLOAT", "FLOAT16")}
        fits = [
            name for name, port in floats.items() if port.shape is None or len(port.shape) == rank
        ]
        named = next((name for name in names if name in fits), None)
        return named or (fits[0] if len(fits) == 1 and len(outputs) == 1 else None)

    def pooled(
        self,
        outputs: dict[str, Port],
        model: Path,
        modules: list[dict[str, Any]],
        tokenize: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the backend that makes the vector of a text, and the output that it takes."""
        place, width = self.folder / "modules.json", ""
        steps: list[str] = []
        for module in modules[1:]:
            at = self.folder / str(module.get("path") or "") / "config.json"
            if _last(module["type"]) == "Pooling":
                if steps:
                    raise self.fail(place, "a module Pooling stands behind another module")
                step, width = self.pooling(at, tokenize)
                steps.append(step)
            else:
                self.keys(at, "Normalize")
                if not steps:
                    raise self.fail(place, "a module Normalize stands before Pooling")
                steps.append(f"Normalize({width})" if width else "Normalize")
        if not steps:
            raise self.fail(place, "there is no module Pooling, so a text has a vector per token")
        output = self.output(outputs, _OF_TOKENS, 3)
        crop = {output: "input_ids"}
        if output is None:  # a whole sentence-transformer in one network, which is pooled already
            crop = {}
            output, steps = self.output(outputs, ("sentence_embedding",), 2), steps[1:]
        if output is None:
            got = ", ".join(f"{name} {port}" for name, port in outputs.items())
            problem = f"no output has a vector for each token, or for each text: {got}"
            hint = f"There are {', '.join(_OF_TOKENS)} and sentence_embedding."
            raise self.fail(model, problem, hint)
        backend = f"S[{','.join(['OnnxTensor', *steps])}]"
        return {"backend": backend, "outputs": [output], "crop": crop}

    def pooling(self, path: Path, tokenize: dict[str, Any]) -> tuple[str, str]:
        """Return the expression of `Pool`, and the option ``width`` of what it gives."""
        if not path.is_file():
            raise self.fail(path, "there is no such file")
        keys = self.keys(path, "Pooling")
        flags = [name for key, name in FLAGS.items() if keys.get(key)]
        modes = keys.get("pooling_mode") or flags or ["mean"]
        modes = [modes] if isinstance(modes, str) else modes
        for mode in modes if isinstance(modes, list) else [modes]:
            if mode not in POOLING:
                problem = f"pooling by {_shown(mode)} has no backend"
                self.refuse(path, problem, among(str(mode), POOLING), "pooling_mode")
        names = [POOLING[mode] for mode in modes if mode in POOLING] or ["mean"]
        prompts = {tokenize.get("prompt", ""), *tokenize.get("prompts", {}).values()}
        if keys.get("include_prompt") is False and prompts != {""}:
            self.refuse(
                path, "it is false, and Pool cannot leave a prompt out", None, "include_prompt"
            )
        how = names[0] if len(names) == 1 else f"[{','.join(names)}]"
        width = keys.get("embedding_dimension") or keys.get("word_embedding_dimension")
        if not width:
            return f"Pool({how})", ""
        return f"Pool({how},width={width})", f"width={int(width) * len(names)}"

    def classifier(
        self,
        outputs: dict[str, Port],
        model: Path,
        config: dict[str, Any],
        own: dict[str, Any],
        is_sentence: bool,
    ) -> dict[str, Any]:
        """Return the backend that gives the scores of classes."""
        output, path = self.output(outputs, ("logits",), 2), self.root / "config.json"
        if output is None:
            got = ", ".join(f"{name} {port}" for name, port in outputs.items())
            hint = (
                "A folder of sentence-transformers has modules.json." if not is_sentence else None
            )
            raise self.fail(model, f"no output has a number for each class, 'logits': {got}", hint)
        names = config.get("id2label") or {}
        shape = outputs[output].shape
        count = (
            len(names) or int(config.get("num_labels") or 0) or (shape[-1] if shape else None) or 1
        )
        labels = [str(names.get(str(number), f"LABEL_{number}")) for number in range(count)]
        name = own.get("activation_fn") or (config.get("sentence_transformers") or {}).get(
            "activation_fn"
        )
        name = name or config.get("sbert_ce_default_activation_function")
        if name is not None:
            known = str(name).startswith("torch.nn.") and _last(str(name)) in ACTIVATIONS
            if not known:
                hint = f"There are {', '.join(ACTIVATIONS)} of torch.nn."
                self.refuse(path, f"{_shown(name)} has no backend here", hint, "activation_fn")
            activation = ACTIVATIONS.get(_last(str(name)), "identity")
        elif count == 1 or config.get("problem_type") == "multi_label_classification":
            activation = "sigmoid"
        else:  # as transformers' classifier, and as sentence-transformers'
            is_plain = is_sentence or config.get("problem_type") == "regression"
            activation = "identity" if is_plain else "softmax"
        return {
            "backend": "S[OnnxTensor,Scores]",
            "outputs": [output],
            "crop": {},
            "activation": activation,
            "labels": [*map(_escaped, labels)],
        }


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _kinds(mark: str) -> list[str]:
    return [name for name, row in MODULES.items() if row.mark == mark]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 80 else f"{text[:79]}…"


def _escaped(text: str) -> str:
    return text.replace("${", "$${")
