"""Readers of benchmarks on made-up folders, and the hub without a network."""

import gzip
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from distilcal.data import sources
from distilcal.data.benchmark_classes import CIFAR10, CIFAR100, NEWSGROUPS
from distilcal.data.catalogue import BENCHMARKS, load_benchmark
from distilcal.data.text_benchmarks import body_of
from distilcal.errors import InputError


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("From: a\nSubject: b\n\nOnly this.", "Only this."),
        ("From: a\n\nIn article <1@x> y writes:\n>quoted\nJD> quoted\n: quoted\nkept > here", "kept > here"),
        ("From: a\n\nSomeone (some@one) wrote:\n| quoted\nfirst\n\nsecond\n-- \nname\nplace", "first\n\nsecond"),
        (
            "From: a\n\none\n--\n" + "\n".join(f"line {i}" for i in range(12)),
            "one\n--\n" + "\n".join(f"line {i}" for i in range(12)),
        ),
        ("From: a\n\n> all quoted\n", ""),
        ("no header at all", ""),
    ],
)
def test_body_of_a_message(message, body):
    assert body_of(message) == body
    assert body_of(message.replace("\n", "\r\n")) == body


def newsgroups(folder):
    """Twelve messages a group; in each, every third is quotes only and pairs share a subject."""
    rows = [
        {
            "id": str(i),
            "label": k,
            "label_name": group,
            "text": f"Subject: {'Re: ' if i % 2 else ''}{group} {i // 2}\nFrom: x\n\n> quote\n"
            + ("" if i % 3 == 0 else f"{i} on {group}"),
        }
        for k, group in enumerate(NEWSGROUPS)
        for i in range(24)
    ]
    for name in ("train", "test"):
        write(folder / f"{name}.jsonl", "\n".join(map(json.dumps, rows)))


def test_messages_of_one_subject_stay_together_and_empty_ones_go(tmp_path):
    newsgroups(tmp_path / "twenty_newsgroups")
    raw = load_benchmark("twenty_newsgroups_raw", root=tmp_path)
    bodies = load_benchmark("twenty_newsgroups", root=tmp_path)
    assert [len(d) for d in raw.values()] == [432, 48, 480]
    assert not set(raw["train"].groups) & set(raw["dev"].groups)
    for split in raw:
        assert bodies[split].ids.tolist() == [i for i in raw[split].ids if int(i.split("/")[1]) % 3]
        assert "quote" not in " ".join(bodies[split].inputs.text)


def test_meld_leaves_out_what_is_no_class(tmp_path):
    emotions = ["joy", "anger", "non-neutral", "neutral", "joy", "fear"]
    rows = [f'{i},"Well, {i}",A,{e},x,{i // 2},{i % 2}' for i, e in enumerate(emotions)]
    for split in ("train", "dev", "test"):
        text = "\n".join(["Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID", *rows])
        write(tmp_path / "meld" / f"{split}_sent_emo.csv", text)
    splits = load_benchmark("meld", root=tmp_path)
    assert [splits["dev"].classes[i] for i in splits["dev"].labels] == ["joy", "anger", "neutral", "joy", "fear"]
    assert splits["dev"].ids.tolist() == ["dev-0-0", "dev-0-1", "dev-1-1", "dev-2-0", "dev-2-1"]
    assert splits["dev"].groups.tolist() == ["dev-0", "dev-0", "dev-1", "dev-2", "dev-2"]


def test_qqp_from_a_folder(tmp_path):
    rows = "".join(f"who is {i // 2}?\twho was {i}?\t{i % 2}\n" for i in range(40))
    for file in ("train.tsv.gz", "validation.tsv"):
        write(tmp_path / "qqp" / file, f"question1\tquestion2\tlabel\n{rows}")
    splits = load_benchmark("qqp", root=tmp_path)
    assert [len(d) for d in splits.values()] == [40, 20, 20]
    assert splits["train"].inputs.pair[3] == "who was 3?"
    assert splits["train"].classes[splits["train"].labels[3]] == "paraphrase"
    assert not set(splits["dev"].groups) & set(splits["test"].groups)


def picture(path, seed):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_cinic10_from_its_folders(tmp_path):
    pytest.importorskip("PIL")
    first = {}
    for s, split in enumerate(("train", "valid", "test")):
        for k, label in enumerate(CIFAR10):
            first[split, label] = picture(tmp_path / "cinic10" / split / label / f"n0{k}_7.png", seed=100 * s + k)
            picture(tmp_path / "cinic10" / split / label / f"cifar10-train-{k}.png", seed=50 + 100 * s + k)
    splits = load_benchmark("cinic10", root=tmp_path)
    assert [len(d) for d in splits.values()] == [20, 20, 20]
    dev = splits["dev"]
    row = dev.ids.tolist().index("valid/cat/n03_7.png")
    assert np.array_equal(dev.inputs.pixels[row], first["valid", "cat"])
    assert dev.classes[dev.labels[row]] == "cat"
    assert 1 + np.count_nonzero(np.diff(dev.labels)) > 10  # not in the order of classes

    only = load_benchmark("cinic10_imagenet", root=tmp_path)
    assert sorted(only["test"].ids) == [f"test/{label}/n0{k}_7.png" for k, label in enumerate(CIFAR10)]
    assert list(only) == ["test"]
    shutil.rmtree(tmp_path / "cinic10" / "valid")
    with pytest.raises(InputError, match="valid"):
        load_benchmark("cinic10", root=tmp_path)


def test_cifar_from_sheets_and_the_choices_of_people(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels, labels = {}, {}
    (tmp_path / "cifar10").mkdir()
    for split, count in (("train", 200), ("test", 100)):
        pixels[split] = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        labels[f"{split}_labels"] = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        sheet = pixels[split].reshape(-1, 100, 32, 32, 3).swapaxes(1, 2).reshape(-1, 3200, 3)
        image.fromarray(sheet).save(tmp_path / "cifar10" / f"{split}_some.webp", lossless=True)
    names = np.array(CIFAR10)[::-1]  # names, not positions, say what a label means
    np.savez(tmp_path / "cifar10" / "labels.npz", label_names=names, **labels)
    splits = load_benchmark("cifar10", root=tmp_path)
    assert [len(d) for d in splits.values()] == [180, 20, 100]
    assert np.array_equal(splits["test"].inputs.pixels, pixels["test"])
    assert splits["test"].labels.tolist() == (9 - labels["test_labels"]).tolist()

    (tmp_path / "cifar10h").mkdir()
    counts = np.ones((100, 10), dtype=np.uint8)
    counts[:, 3] = 31
    np.savez(tmp_path / "cifar10h" / "counts.npz", counts=counts)
    human = load_benchmark("cifar10h", root=tmp_path)["test"]
    assert human.ids.tolist() == splits["test"].ids.tolist()
    assert human.labels.tolist() == splits["test"].labels.tolist()
    assert human.label_probs[0].tolist() == [0.025] * 3 + [0.775] + [0.025] * 6


@pytest.mark.parametrize(("name", "classes"), [("cifar10_c", CIFAR10), ("cifar100_c", CIFAR100)])
def test_corrupted_images_from_arrays(tmp_path, name, classes):
    folder = tmp_path / name
    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = np.tile([2, 0, len(classes) - 1], 5).astype(np.uint8)  # 3 images in 5 severities
    np.save(folder / "labels.npy", labels)
    with pytest.raises(InputError, match="no corruption"):
        load_benchmark(name, root=tmp_path)
    pixels = {c: rng.integers(0, 256, (15, 32, 32, 3)).astype(np.uint8) for c in ("frost", "snow")}
    for corruption, values in pixels.items():
        np.save(folder / f"{corruption}.npy", values)
    data = load_benchmark(name, root=tmp_path)["test"]
    assert (len(data), data.ids[0], data.ids[16], data.ids[29]) == (30, "frost-1-00000", "snow-1-00001", "snow-5-00002")
    assert np.array_equal(data.inputs.pixels[16], pixels["snow"][1])
    assert data.labels.tolist() == np.tile(labels, 2).tolist()
    assert data.groups[[1, 4, 16]].tolist() == ["00001"] * 3

    np.save(folder / "snow.npy", pixels["snow"][:10])
    with pytest.raises(InputError, match="15 labels"):
        load_benchmark(name, root=tmp_path)
    np.save(folder / "snow.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"snow\.npy.*no \.npy of numbers"):
        load_benchmark(name, root=tmp_path)


class Fake:
    """As much of a table of ``datasets`` as is read."""

    def __init__(self, columns, **features):
        self.columns, self.column_names = columns, list(columns)
        self.features = {c: features.get(c) for c in columns}

    def __getitem__(self, name):
        return self.columns[name]


@pytest.fixture
def hub(monkeypatch):
    held, asked = {}, []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return held[split]

    monkeypatch.setattr(sources, "_import_datasets", lambda: SimpleNamespace(load_dataset=load_dataset))
    return held, asked


def test_hub_rows_without_label_are_left_out(hub):
    held, asked = hub
    names = SimpleNamespace(names=["entailment", "neutral", "contradiction"])
    for split in ("train", "validation", "test"):
        columns = {"premise": list("abcd"), "hypothesis": list("wxyz"), "label": [2, -1, 0, 1]}
        held[split] = Fake(columns, label=names)
    splits = load_benchmark("snli", source="hub")
    assert asked == [("stanfordnlp/snli", "plain_text", s) for s in held]
    assert splits["dev"].labels.tolist() == [2, 0, 1]
    assert splits["dev"].inputs.text.tolist() == ["a", "c", "d"]
    assert (splits["dev"].role, splits["dev"].classes) == ("dev", BENCHMARKS["snli"].classes)


def test_hub_names_become_ours_and_validation_is_halved(hub):
    held, _ = hub
    names = SimpleNamespace(names=["not_duplicate", "duplicate"])
    for split in ("train", "validation"):
        questions = [f"{split} {i} " for i in range(20)]
        held[split] = Fake({"question1": questions, "question2": questions, "label": [0, 1] * 10}, label=names)
    splits = load_benchmark("qqp", source="hub")
    assert [len(d) for d in splits.values()] == [20, 10, 10]
    assert [splits["train"].classes[i] for i in splits["train"].labels[:2]] == ["different", "paraphrase"]
    assert splits["train"].inputs.text[0] == "train 0"


def test_hub_choices_and_images(hub):
    held, _ = hub
    endings = {f"ending{k}": [f"{k} of {i}" for i in range(8)] for k in range(4)}
    for split in ("train", "validation"):
        labels = [i % 4 for i in range(8)]
        held[split] = Fake({"startphrase": [f"{split} {i}" for i in range(8)], **endings, "label": labels},
                           label=SimpleNamespace(names=list("0123")))  # fmt: skip
    splits = load_benchmark("swag", source="hub")
    assert splits["train"].inputs.endings[5].tolist() == [f"{k} of 5" for k in range(4)]
    assert [len(d) for d in splits.values()] == [8, 4, 4]

    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    feature = type("Image", (), {})()
    for split in ("train", "test"):
        columns = {"img": [image.fromarray(p) for p in pixels], "label": [9, 0] * 10}
        held[split] = Fake(columns, img=feature, label=SimpleNamespace(names=list(CIFAR10)))
    splits = load_benchmark("cifar10", source="hub")
    assert [len(d) for d in splits.values()] == [18, 2, 20]
    assert np.array_equal(splits["test"].inputs.pixels, pixels)
    assert splits["test"].labels.tolist() == [9, 0] * 10
