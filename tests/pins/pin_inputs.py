"""Tiny data and models for the pinned runs, made on the spot, always the same: nothing here depends on distilcal's insides."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from tiny import BAD, GOOD, REST, save_model

NAMES = ("down", "mixed", "up")


def make_inputs(folder: Path) -> Path:
    """All that the pinned runs read, in one folder."""
    write_reviews(folder / "train.csv", 210, 0)
    write_reviews(folder / "other.csv", 40, 1)
    write_teacher_predictions(folder / "train.csv", folder / "teacher.csv")
    for kind in ("bert", "roberta", "distilbert"):
        sizes = {"n_layers": 6} if kind == "distilbert" else {"num_hidden_layers": 6}
        # With weights of the usual size all rows of a tiny model get nearly the same logits, and a CPU that rounds otherwise
        # gives them another order: other partners, regions and bins.
        save_model(folder / "models" / kind, kind, head=False, initializer_range=0.2, **sizes)
    save_model(folder / "models" / "trained", labels=NAMES, seed=1)
    write_images(folder / "images.npz", 210)
    write_picture_teacher(folder / "models" / "resnet20.safetensors")
    write_vectors(folder / "vectors.npz", 300, 0)
    write_vectors(folder / "shifted.npz", 80, 1, shift=0.7)
    write_predictions(folder / "dev-predictions.csv", 90, seed=0)
    write_predictions(folder / "test-predictions.csv", 120, seed=1)
    write_predictions(folder / "better-predictions.csv", 120, seed=1, sharpness=1.1, noise_seed=7)
    write_predictions(folder / "shifted-predictions.csv", 80, seed=2, sharpness=3.0)
    return folder


def write_rows(path: Path, header: list[str], rows: list[list[object]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_reviews(path: Path, count: int, seed: int) -> None:
    """Made-up reviews that praise, blame, or do both; a few of them are labelled at random."""
    rng = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for i in range(count):
        kind = int(rng.integers(0, 3))
        good, bad = rng.choice(GOOD, 2).tolist(), rng.choice(BAD, 2).tolist()
        words = [bad, [good[0], bad[0]], good][kind] + rng.choice(REST, rng.integers(2, 6)).tolist()
        label = kind if rng.random() < 0.9 else int(rng.integers(0, 3))
        rows.append([f"e{seed}-{i}", " ".join(rng.permutation(words)), NAMES[label]])
    write_rows(path, ["id", "text", "label"], rows)


def write_teacher_predictions(data: Path, path: Path) -> None:
    """A teacher that is a file: logits that favour the label of each row."""
    rng = np.random.default_rng(3)
    with open(data, newline="", encoding="utf-8") as file:
        examples = list(csv.DictReader(file))
    logits = rng.normal(size=(len(examples), 3)) + 2.0 * np.array([[e["label"] == n for n in NAMES] for e in examples])
    rows = [[e["id"], e["label"], *(f"{x:.5f}" for x in row)] for e, row in zip(examples, logits, strict=True)]
    write_rows(path, ["id", "label", *(f"logit_{n}" for n in NAMES)], rows)


def write_images(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, count)
    tint = rng.integers(0, 90, (count, 1, 1, 3))  # or all images of a class would get nearly the same logits
    pixels = rng.integers(0, 60, (count, 32, 32, 3)) + tint + 50 * labels[:, None, None, None]
    np.savez(path, images=pixels.astype(np.uint8), labels=labels, classes=np.array(NAMES))


def write_picture_teacher(path: Path) -> None:
    """Weights of a ResNet-20 with padded shortcuts, named as its author's files name them; drawn at random."""
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(4)
    state = {}

    def convolution(name: str, into: int, out: int) -> None:
        state[f"{name}.weight"] = rng.normal(size=(out, into, 3, 3)) * np.sqrt(2 / (9 * into))

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = rng.uniform(0.5, 1.5, width), rng.normal(size=width) * 0.1
        state[f"{name}.running_mean"], state[f"{name}.running_var"] = rng.normal(size=width) * 0.1, rng.uniform(0.5, 2, width)

    convolution("conv1", 3, 16)
    norm("bn1", 16)
    into = 16
    for layer, width in enumerate((16, 32, 64), start=1):
        for block in range(3):
            for number in (1, 2):
                convolution(f"layer{layer}.{block}.conv{number}", into, width)
                norm(f"layer{layer}.{block}.bn{number}", width)
                into = width
    state["linear.weight"], state["linear.bias"] = rng.normal(size=(3, 64)) * 0.003, rng.normal(size=3) * 0.1
    tensors = {name: torch.from_numpy(value.astype(np.float32)) for name, value in state.items()}
    counts = {f"{n[:-5]}.num_batches_tracked": torch.tensor(1) for n in state if n.endswith("bias") and n != "linear.bias"}
    save_file({**tensors, **{n.replace("..", "."): v for n, v in counts.items()}}, path)


def write_vectors(path: Path, count: int, seed: int, shift: float = 0.0) -> None:
    """Three classes of vectors that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.random.default_rng(5).normal(size=(3, 6)) * 1.2
    np.savez(path, vectors=(centres[labels] + rng.normal(size=(count, 6)) + shift).astype(np.float32), labels=labels)


def write_predictions(path: Path, count: int, *, seed: int, sharpness: float = 2.0, noise_seed: int | None = None) -> None:
    """Logits of a classifier; labels are drawn from their softmax before they were sharpened, and perhaps made noisy."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(count, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    said = sharpness * logits
    if noise_seed is not None:
        said = said + 0.3 * np.random.default_rng(noise_seed).normal(size=said.shape)
    rows = [
        [f"row{seed}-{i}", NAMES[y], *(f"{x:.5f}" for x in row)] for i, (y, row) in enumerate(zip(labels, said, strict=True))
    ]
    write_rows(path, ["id", "label", *(f"logit_{n}" for n in NAMES)], rows)
