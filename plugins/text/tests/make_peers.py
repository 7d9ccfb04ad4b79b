"""Write folders with random weights, and what sentence-transformers makes of texts by them: `python make_peers.py OUT`.

`test_text_peers` runs it where sentence-transformers, onnx and onnxscript are installed. ``OUT/answers.json`` has the vectors, scores
and tokens by folder, and the requests that they answer.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

torch.manual_seed(0)
OUT = Path(sys.argv[1])
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
LONGEST = 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "a",
    "fox",
    "Café",
    "naïve",
    "ÉCOLE",
    "jumps",
    "over",
    "東京",
    "мир",
    "שלום",
    "lazy",
    "DOG",
    "running",
    "1",
    "23",
    "can't",
    "state-of-the-art",
]


def odd_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts: words, blanks, controls, letters of all scripts, special tokens, long ones and none."""
    chosen = random.Random(seed)
    letters = [chr(one) for one in range(0x20, 0x3000) if unicodedata.category(chr(one)) != "Cn"]
    made = [
        "",
        " ",
        "\n",
        "a",
        "[CLS]",
        "<s> </s>",
        " " * 300 + "fox",
        "\ufdfa",
        "e\u0301",
        "\u200b",
        "😀👍🏽",
        "\x00\x07x",
    ]
    while len(made) < count:
        kind, length = chosen.randrange(5), int(2 ** chosen.uniform(0, 8))
        if kind == 0:
            made.append("".join(chosen.choices(letters, k=length)))
        elif kind == 1:
            made.append("".join(chosen.choices([*" \t\n  ", *"abcXYZ", "é", "ß", "İ"], k=length)))
        else:
            made.append(
                chosen.choice([" ", "  ", ", "]).join(
                    chosen.choices([*WORDS, *SPECIAL, *ROBERTA], k=length)
                )
            )
    return made[:count]


TEXTS = odd_texts(1000)
CORPUS = [*odd_texts(400, 1), *(" ".join(WORDS) for _ in range(50))]


def trained(
    model: Any, trainer: Any, before: Any, normalizer: Any = None, corpus: Any = CORPUS
) -> Tokenizer:
    """Return a tokenizer that was trained on the corpus."""
    made = Tokenizer(model)
    made.pre_tokenizer, made.normalizer = before, normalizer or made.normalizer
    made.train_from_iterator(corpus, trainer)
    return made


def wordpiece(lowercase: bool = True, special: list[str] = SPECIAL) -> dict[str, int]:
    made = trained(
        models.WordPiece(unk_token=special[1]),
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=lowercase),
    )  # fmt: skip
    return made.get_vocab()


def bpe(special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    made = trained(
        models.BPE(), trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), pre_tokenizers.ByteLevel(add_prefix_space=False),
    )  # fmt: skip
    said = json.loads(made.to_str())["model"]
    return said["vocab"], [tuple(one) for one in said["merges"]]


def unigram(special: list[str], unk: str) -> list[tuple[str, float]]:
    made = trained(
        models.Unigram(), trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unk, show_progress=False),
        pre_tokenizers.Metaspace(), normalizers.NFKC(), [" ".join(WORDS)] * 50,
    )  # fmt: skip
    return [tuple(one) for one in json.loads(made.to_str())["model"]["vocab"]]


def tokenizers() -> dict[str, Any]:
    """Return a tokenizer of each class, by the name of a case."""
    vocab, merges = bpe(ROBERTA)
    pieces = unigram(ROBERTA, "<unk>")
    gpt, gpt_merges = bpe(["<|endoftext|>"])
    t5 = unigram(["<pad>", "</s>", "<unk>"], "<unk>")
    albert = unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "<unk>")
    deberta = unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], "[UNK]")
    fast = Tokenizer(
        models.WordLevel({w: n for n, w in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]")
    )
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    t = transformers
    return {
        "bert": t.BertTokenizer(vocab=wordpiece()),
        "bert_cased": t.BertTokenizer(vocab=wordpiece(False), do_lower_case=False),
        "bert_accents": t.BertTokenizer(vocab=wordpiece(), strip_accents=False, tokenize_chinese_chars=False),
        "mpnet": t.MPNetTokenizer(vocab=wordpiece(special=["<s>", "[UNK]", "</s>", "<pad>", "<mask>", "<unk>"])),
        "roberta": t.RobertaTokenizer(vocab=vocab, merges=merges),
        "roberta_prefix": t.RobertaTokenizer(vocab=vocab, merges=merges, add_prefix_space=True),
        "xlm_roberta": t.XLMRobertaTokenizer(vocab=pieces),
        "camembert": t.CamembertTokenizer(vocab=pieces),
        "t5": t.T5Tokenizer(vocab=t5, extra_ids=0),
        "albert": t.AlbertTokenizer(vocab=albert),
        "deberta_v2": t.DebertaV2Tokenizer(vocab=deberta),
        "gpt2": t.GPT2Tokenizer(vocab=gpt, merges=gpt_merges, pad_token="<|endoftext|>"),
        "gpt_neox": t.GPTNeoXTokenizer(vocab=gpt, merges=gpt_merges, pad_token="<|endoftext|>"),
        "qwen2": t.Qwen2Tokenizer(vocab=gpt, merges=gpt_merges),
        "llama": t.LlamaTokenizer(vocab=vocab, merges=merges),
        "gemma": t.GemmaTokenizer(vocab=vocab, merges=merges),
        "fast": t.PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"),
    }  # fmt: skip


def network(kind: str, size: int, pad: int, **more: Any) -> Any:
    """Return a network with random weights, greater than those at which training begins, so that texts differ."""
    t, of_roberta = transformers, {"max_position_embeddings": LONGEST + pad + 1}
    kinds = {
        "bert": (t.BertConfig, t.BertModel, {"max_position_embeddings": LONGEST}),
        "distilbert": (t.DistilBertConfig, t.DistilBertModel, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": LONGEST}),
        "roberta": (t.RobertaConfig, t.RobertaModel, of_roberta),
        "xlm_roberta": (t.XLMRobertaConfig, t.XLMRobertaModel, of_roberta),
        "mpnet": (t.MPNetConfig, t.MPNetModel, of_roberta),
        "bert_classes": (t.BertConfig, t.BertForSequenceClassification, {"max_position_embeddings": LONGEST}),
        "roberta_classes": (t.RobertaConfig, t.RobertaForSequenceClassification, of_roberta),
    }  # fmt: skip
    config, model, own = kinds[kind]
    made = model(
        config(
            **{
                **TINY,
                **own,
                "vocab_size": size,
                "pad_token_id": pad,
                "initializer_range": 0.3,
                **more,
            }
        )
    )
    return made.eval()


class Wrapped(torch.nn.Module):
    """Gives the output of a name."""

    def __init__(self, model: Any, names: list[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.output)


def export(model: Any, path: Path, names: list[str]) -> None:
    """Write a network as ONNX, with free axes."""
    output = "logits" if hasattr(model, "classifier") else "last_hidden_state"
    ids = torch.randint(5, 20, (2, 7))
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }
    given["position_ids"] = torch.arange(7).expand(2, 7)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    path.parent.mkdir(exist_ok=True)
    torch.onnx.export(
        Wrapped(model, names, output), tuple(given[name] for name in names), str(path), input_names=names,
        output_names=[output], dynamic_shapes=(tuple(axes for _ in names),), dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


BERT = ["input_ids", "attention_mask", "token_type_ids"]
bases: dict[str, Path] = {}
cases: dict[str, Path] = {}


def base(
    name: str, kind: str, tokenizer: Any, names: list[str], *, classes: bool = False, **more: Any
) -> None:
    """Write a folder with a network and a tokenizer, of which the cases are copies."""
    place = bases[name] = OUT / "bases" / name
    model = network(kind, len(tokenizer), tokenizer.pad_token_id, **more)
    (OUT / "parts").mkdir(parents=True, exist_ok=True)
    model.save_pretrained(OUT / "parts" / name)
    tokenizer.model_max_length = LONGEST
    tokenizer.save_pretrained(OUT / "parts" / name)
    if classes:
        shutil.copytree(OUT / "parts" / name, place)
    else:
        transformer = Transformer(str(OUT / "parts" / name))
        SentenceTransformer(modules=[transformer, Pooling(32, "mean"), Normalize()]).save(
            str(place)
        )
    export(model, place / "onnx" / "model.onnx", names)


def case(name: str, of: str = "bert", **files: Any) -> None:
    """Write a copy in which files have other keys. None deletes a key, or a file. A list stands for a whole file."""
    place = cases[name] = OUT / name
    shutil.copytree(bases[of], place)
    for path, said in files.items():
        at = place / path
        if said is None:
            at.unlink()
            continue
        known = json.loads(at.read_text()) if at.exists() and isinstance(said, dict) else {}
        made = (
            {key: value for key, value in {**known, **said}.items() if value is not None}
            if isinstance(said, dict)
            else said
        )
        at.parent.mkdir(exist_ok=True)
        at.write_text(json.dumps(made))


def write_cases(made: dict[str, Any]) -> None:
    sentence, pooling, tokens = (
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "tokenizer_config.json",
    )
    own = "config_sentence_transformers.json"
    base("bert", "bert", made["bert"], BERT)
    base("cased", "bert", made["bert_cased"], BERT)
    base("distilbert", "distilbert", made["bert"], BERT[:2])
    base("positions", "bert", made["bert"], [*BERT, "position_ids"])
    base("roberta", "roberta", made["roberta"], BERT[:2])
    base("roberta_positions", "roberta", made["roberta"], [*BERT[:2], "position_ids"])
    base("xlm_roberta", "xlm_roberta", made["xlm_roberta"], BERT[:2])
    base("mpnet", "mpnet", made["mpnet"], BERT[:2])
    for name in bases:
        case(name, name)
    kinds = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
    for kind in kinds:
        case(
            f"length_{kind}",
            **{sentence: None, f"sentence_{kind}_config.json": {"max_seq_length": 12}},
        )
    case(
        "two_lengths",
        **{sentence: {"max_seq_length": 14}, "sentence_xlnet_config.json": {"max_seq_length": 9}},
    )
    case("model_max_length", **{tokens: {"model_max_length": 11}})
    case("no_length", **{tokens: {"model_max_length": None}})
    case("max_len", **{tokens: {"model_max_length": None, "max_len": 13}})
    case("no_class", **{tokens: {"tokenizer_class": None}})
    case("roberta_no_length", "roberta", **{tokens: {"model_max_length": LONGEST}})
    case("truncation_left", **{tokens: {"truncation_side": "left"}})
    case("padding_left", **{tokens: {"padding_side": "left"}})
    case("lower", "cased", **{sentence: {"do_lower_case": True}})
    case("lower_roberta", "roberta", **{sentence: {"do_lower_case": True}})
    for way in Pooling.POOLING_MODES:
        case(f"pooling_{way}", **{pooling: {"pooling_mode": way}})
    case("pooling_list", **{pooling: {"pooling_mode": ["max", "cls"]}})
    flags = [
        "cls_token",
        "max_tokens",
        "mean_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ]
    off = {f"pooling_mode_{one}": False for one in flags} | {
        "pooling_mode": None,
        "embedding_dimension": None,
        "word_embedding_dimension": 32,
    }
    for flag in flags:
        case(f"flag_{flag}", **{pooling: {**off, f"pooling_mode_{flag}": True}})
    case(
        "flags_joined",
        **{pooling: {**off, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
    )
    case("no_flag", **{pooling: off})
    modules = json.loads((bases["bert"] / "modules.json").read_text())
    case("no_normalize", **{"modules.json": modules[:2]})
    old = [
        {**one, "type": f"sentence_transformers.models.{one['type'].rpartition('.')[2]}"}
        for one in modules
    ]
    case("old_types", **{"modules.json": old})
    prompts = {
        "prompts": {"query": "fox $ ${x} : ", "document": ""},
        "default_prompt_name": "query",
    }
    case("prompt", **{own: prompts})
    case("prompt_by_name", **{own: {**prompts, "default_prompt_name": None}})
    case("include_prompt", **{own: prompts, pooling: {"include_prompt": False}})
    case("truncate_dim", **{own: {"truncate_dim": 8}})
    case("other_case", **{tokens: {"do_lower_case": False}})
    case("other_prefix", "roberta", **{tokens: {"add_prefix_space": True}})
    path = [{**modules[0], "path": "0_Transformer"}, *modules[1:]]
    case("path", **{"modules.json": path})
    inner = cases["path"] / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", tokens, "model.safetensors", "onnx"):
        shutil.move(cases["path"] / name, inner / name)
    (cases["path"] / sentence).unlink()
    (inner / sentence).write_text('{"max_seq_length": 10}')
    base("scores", "bert_classes", made["bert"], BERT, classes=True, num_labels=1)
    base("classes", "bert_classes", made["bert"], BERT, classes=True, num_labels=3)
    base("roberta_scores", "roberta_classes", made["roberta"], BERT[:2], classes=True, num_labels=1)
    for name in ("scores", "classes", "roberta_scores"):
        case(name, name)
    identity = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    case("scores_identity", "scores", **{"config.json": identity})
    older = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    case("scores_older", "scores", **{"config.json": older})
    saved = OUT / "bases" / "scores_saved"
    CrossEncoder(str(OUT / "parts" / "scores")).save_pretrained(str(saved))
    shutil.copytree(bases["scores"] / "onnx", saved / "onnx")
    bases["scores_saved"] = saved
    case("scores_saved", "scores_saved")


def main() -> None:
    made = tokenizers()
    write_cases(made)
    pairs = list(zip(TEXTS[:300], reversed(TEXTS[:300]), strict=True))
    answers: dict[str, Any] = {}
    for name, place in cases.items():
        if "scores" in name or "classes" in name:
            model = CrossEncoder(str(place), device="cpu")
            if name == "classes":  # as the pipeline of transformers
                model.activation_fn = torch.nn.Softmax(dim=-1)
            found = np.stack([np.atleast_1d(model.predict([one])[0]) for one in pairs])
            answers[name] = {"pairs": pairs, "found": found.tolist()}
            continue
        model = SentenceTransformer(str(place), device="cpu")
        more = {"prompt_name": "query"} if name == "prompt_by_name" else {}
        few = TEXTS if name in ("bert", "roberta", "xlm_roberta") else TEXTS[:200]
        found = np.stack([model.encode([one], show_progress_bar=False, **more)[0] for one in few])
        answers[name] = {"texts": few, "found": found.tolist(), "more": more}
    for name, tokenizer in made.items():
        place = OUT / "tokenizers" / name
        tokenizer.model_max_length = LONGEST
        tokenizer.save_pretrained(place)
        again = transformers.AutoTokenizer.from_pretrained(place)
        ids = [again(one, truncation=True)["input_ids"] for one in TEXTS]
        two = [again([one], [other], truncation=True)["input_ids"][0] for one, other in pairs]
        answers[f"tokenizers/{name}"] = {
            "texts": TEXTS,
            "ids": ids,
            "pairs": pairs,
            "pair_ids": two,
        }
    (OUT / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
