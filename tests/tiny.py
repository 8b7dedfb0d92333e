"""Tiny text models and data, made on the spot: real architectures, a few thousand parameters, learned in a second."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from distilcal.data import Dataset, texts

GOOD = "great lovely superb fun charming brilliant moving sharp".split()  # noqa: SIM905
BAD = "awful dull boring clumsy weak noisy stale flat".split()  # noqa: SIM905
REST = "film plot actor scene music script the a of with".split()  # noqa: SIM905
ARCHITECTURES = ("bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2", "deberta", "mpnet", "electra")


def sentences(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Made-up reviews whose words mostly tell the label."""
    rng = np.random.default_rng(seed)
    made, labels = [], []
    for _ in range(count):
        good = rng.random() < 0.5
        telling = [rng.choice(GOOD if (rng.random() < 0.85) == good else BAD) for _ in range(rng.integers(1, 4))]
        words = telling + list(rng.choice(REST, size=rng.integers(2, 9)))
        made.append(" ".join(rng.permutation(words)))
        labels.append("pos" if good else "neg")
    return made, labels


def reviews(count: int = 60, seed: int = 0, **named: object) -> Dataset:
    made, labels = sentences(count, seed)
    return Dataset(texts(made), np.array(labels), ("neg", "pos"), **named)  # type: ignore[arg-type]


def write_csv(path: Path, count: int, seed: int, *, ids: bool = False) -> Path:
    made, labels = sentences(count, seed)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"] if ids else ["text", "label"])
        for i, (text, label) in enumerate(zip(made, labels, strict=True)):
            writer.writerow([f"r{seed}-{i}", text, label] if ids else [text, label])
    return path


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *REST]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **special)


def config(kind: str, **changes: object):
    from transformers import AutoConfig

    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"max_position_embeddings": 40, "pad_token_id": 0}
    if kind == "distilbert":
        sizes |= {"dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32}
    if kind.startswith("deberta"):
        sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return AutoConfig.for_model(kind, **{**sizes, **changes})


def save_model(folder: Path, kind: str = "bert", *, labels: tuple[str, ...] = (), head: bool = True, seed: int = 0, **changes):
    """A model in a folder, with a head for the labels or as an encoder alone."""
    import torch
    from transformers import AutoModelForSequenceClassification

    named = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config(kind, **named, **changes))
    (model if head else model.base_model).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
