"""Made-up film reviews as CSV files, and a tiny BERT trained on some of them, to try distilling without any download.

    python examples/make_reviews.py reviews

writes train.csv and other.csv (text, label), unlabelled.csv (text), and the folder tiny-bert as ``save_pretrained`` makes it.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

GOOD = ["great", "lovely", "superb", "fun", "charming", "brilliant", "moving", "sharp"]
BAD = ["awful", "dull", "boring", "clumsy", "weak", "noisy", "stale", "flat"]
REST = ["film", "plot", "actor", "scene", "music", "script", "the", "a", "of", "with"]


def reviews(count: int, seed: int, *, telling: float) -> list[tuple[str, str]]:
    """Texts and labels; a word of praise or blame tells the label with probability ``telling``."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        good = rng.random() < 0.5
        words = [rng.choice(GOOD if (rng.random() < telling) == good else BAD) for _ in range(rng.integers(1, 4))]
        words += list(rng.choice(REST, size=rng.integers(2, 12)))
        rows.append((" ".join(rng.permutation(words)), "positive" if good else "negative"))
    return rows


def write(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *REST]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **special)


def trained(rows: list[tuple[str, str]], words: PreTrainedTokenizerFast) -> BertForSequenceClassification:
    """A BERT of four layers after some epochs of plain cross-entropy: as overconfident as such teachers are."""
    names = ["positive", "negative"]  # not the order of the data: distilcal matches classes by name
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
    named = {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes, **named))
    inputs = words([text for text, _ in rows], padding=True, return_tensors="pt")
    labels = torch.tensor([names.index(label) for _, label in rows])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(12):
        for part in torch.randperm(len(rows)).split(32):
            batch = {name: inputs[name][part] for name in ("input_ids", "attention_mask")}
            loss = torch.nn.functional.cross_entropy(model(**batch).logits, labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reviews")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "train.csv", ("text", "label"), reviews(1500, 0, telling=0.85))
    write(folder / "other.csv", ("text", "label"), reviews(400, 1, telling=0.7))
    write(folder / "unlabelled.csv", ("text",), [(text,) for text, _ in reviews(100, 2, telling=0.85)])
    words = tokenizer()
    trained(reviews(600, 3, telling=0.85), words).save_pretrained(folder / "tiny-bert")
    words.save_pretrained(folder / "tiny-bert")
    print(f"Wrote {folder}: train.csv, other.csv, unlabelled.csv and the model tiny-bert.")


if __name__ == "__main__":
    main()
