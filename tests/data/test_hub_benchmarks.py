"""Benchmarks from the hub, read by ``datasets`` itself from local copies with the hub's own features, splits and layout.

Features and split names are those of the data sets' cards and dataset_infos.json: of huggingface/datasets (glue, snli, swag,
hellaswag, yelp_polarity, go_emotions, cifar10, cifar100) and, on the hub, of flwrlabs/cinic10, zh-plus/tiny-imagenet and
SetFit/sst2.
"""

from __future__ import annotations

import numpy as np
import pytest

from distilcal.config.schema import DataSettings
from distilcal.data.benchmark_classes import CIFAR10, CIFAR100, EKMAN, EMOTIONS, NLI
from distilcal.data.catalogue import BENCHMARKS, benchmark_source, load_benchmark
from distilcal.data.splits import read_splits
from distilcal.errors import InputError, MissingDependencyError

datasets = pytest.importorskip("datasets")
image = pytest.importorskip("PIL.Image")

TEXT = datasets.Value("string")
INDEX = datasets.Value("int32")
FINE = [emotion for members in EKMAN.values() for emotion in members] + ["neutral"]
FINE.sort(key=lambda name: (name == "neutral", name))  # the hub's order: by the alphabet, neutral last


def labels(*names):
    return datasets.ClassLabel(names=list(names))


PICTURE = datasets.Image()
HUB = {  # repository/config → features and splits with their numbers of rows here
    "nyu-mll/glue/sst2": ({"sentence": TEXT, "label": labels("negative", "positive"), "idx": INDEX},
                          {"train": 4000, "validation": 20, "test": 5}),
    "SetFit/sst2": ({"text": TEXT, "label": datasets.Value("int64"), "label_text": TEXT},
                    {"train": 9, "validation": 4, "test": 12}),
    "nyu-mll/glue/mrpc": ({"sentence1": TEXT, "sentence2": TEXT, "label": labels("not_equivalent", "equivalent"), "idx": INDEX},
                          {"train": 30, "validation": 10, "test": 20}),
    "nyu-mll/glue/qqp": ({"question1": TEXT, "question2": TEXT, "label": labels("not_duplicate", "duplicate"), "idx": INDEX},
                         {"train": 30, "validation": 20, "test": 5}),
    "nyu-mll/glue/mnli": ({"premise": TEXT, "hypothesis": TEXT, "label": labels(*NLI), "idx": INDEX},
                          {"train": 11000, "validation_matched": 20, "validation_mismatched": 20, "test_matched": 5,
                           "test_mismatched": 5}),
    "nyu-mll/glue/qnli": ({"question": TEXT, "sentence": TEXT, "label": labels("entailment", "not_entailment"), "idx": INDEX},
                          {"train": 6000, "validation": 20, "test": 5}),
    "stanfordnlp/snli/plain_text": ({"premise": TEXT, "hypothesis": TEXT, "label": labels(*NLI)},
                                    {"test": 20, "validation": 20, "train": 30}),
    "allenai/swag/regular": ({"video-id": TEXT, "fold-ind": TEXT, "startphrase": TEXT, "sent1": TEXT, "sent2": TEXT,
                              "gold-source": TEXT, "ending0": TEXT, "ending1": TEXT, "ending2": TEXT, "ending3": TEXT,
                              "label": labels("0", "1", "2", "3")}, {"train": 30, "validation": 20, "test": 5}),
    "Rowan/hellaswag": ({"ind": INDEX, "activity_label": TEXT, "ctx_a": TEXT, "ctx_b": TEXT, "ctx": TEXT,
                         "endings": datasets.List(TEXT), "source_id": TEXT, "split": TEXT, "split_type": TEXT, "label": TEXT},
                        {"train": 30, "test": 5, "validation": 20}),
    "fancyzhx/yelp_polarity/plain_text": ({"text": TEXT, "label": labels("1", "2")}, {"train": 50, "test": 20}),
    "google-research-datasets/go_emotions/simplified": (
        {"text": TEXT, "labels": datasets.List(labels(*FINE)), "id": TEXT}, {"train": 30, "validation": 10, "test": 10}),
    "uoft-cs/cifar10": ({"img": PICTURE, "label": labels(*CIFAR10)}, {"train": 30, "test": 10}),
    "uoft-cs/cifar100": ({"img": PICTURE, "fine_label": labels(*("cra" if c == "crab" else c for c in CIFAR100)),
                          "coarse_label": labels(*(f"coarse {i}" for i in range(20)))}, {"train": 30, "test": 10}),
    "flwrlabs/cinic10": ({"image": PICTURE, "label": labels(*CIFAR10)}, {"train": 20, "validation": 20, "test": 20}),
    "zh-plus/tiny-imagenet": ({"image": PICTURE, "label": labels("n01443537", "n01629819", "n01641577")},
                              {"train": 30, "valid": 10}),
}  # fmt: skip
HIDDEN = [f"nyu-mll/glue/{task}" for task in ("sst2", "qqp", "mnli", "qnli")]  # labels of their test splits
READ = {  # benchmark → sizes of train, dev and test in these copies
    "sst2": (4000, 20, 12),
    "sst2_sultan": (2200, 20, 1800),
    "mrpc": (30, 10, 20),
    "qqp": (30, 10, 10),
    "mnli": (11000, 10, 10),
    "mnli_sultan": (1185, 9815, 20),
    "qnli": (6000, 10, 10),
    "qnli_sultan": (1000, 5000, 20),
    "snli": (30, 20, 20),
    "snli_desai": (30, 10, 10),
    "swag": (30, 10, 10),
    "hellaswag": (30, 10, 10),
    "yelp": (45, 5, 20),
    "goemotions_ekman": (30, 10, 10),
    "cifar10": (27, 3, 10),
    "cifar100": (27, 3, 10),
    "cinic10": (20, 20, 20),
    "tiny_imagenet": (27, 3, 10),
}


def value(feature, column, split, row):
    """What stands in a column of a copy: a text of its own, a picture, or a class."""
    if isinstance(feature, datasets.ClassLabel):
        return row % len(feature.names)
    if isinstance(feature, datasets.Image):
        seed = row + 1000 * len(split)
        return image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3)).astype(np.uint8))
    if isinstance(feature, datasets.List):
        return [row % 28, (row + 9) % 28] if column == "labels" else [f"[mark] ending {k} of {row}" for k in range(4)]
    if column == "label_text":
        return ("negative", "positive")[row % 2]
    if feature is TEXT:
        return str(row % 4) if column == "label" else f"{column} of {split} {row} "
    return row % 2 if column == "label" else row


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A folder with OWNER/NAME for each repository, with a card and Parquet files as on the hub."""
    root = tmp_path_factory.mktemp("hub")
    datasets.disable_progress_bars()
    configs = {}
    for name, (columns, splits) in HUB.items():
        owner, repository, config = (*name.split("/"), "default")[:3]
        folder = root / owner / repository
        lines = configs.setdefault(folder, ["---", "configs:"])
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            features = datasets.Features(columns)
            table = {c: [value(f, c, split, row) for row in range(rows)] for c, f in columns.items()}
            if name in HIDDEN and split.startswith("test"):
                table["label"] = [-1] * rows
            path = folder / config / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_dict(table, features=features).to_parquet(str(path))
            lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    for folder, lines in configs.items():
        (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return root


@pytest.fixture
def hub(copies, monkeypatch):
    """The copies in place of the hub: ``load_dataset`` takes a folder of the name where there is one."""
    cache = copies / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("DISTILCAL_DATA", raising=False)
    monkeypatch.chdir(copies)


@pytest.mark.parametrize("name", READ)
def test_the_hub_s_features_become_our_splits(name, hub):
    splits = load_benchmark(name)
    assert tuple(len(splits[split]) for split in ("train", "dev", "test")) == READ[name]
    entry = BENCHMARKS[name]
    for split, data in splits.items():
        assert data.role == split
        assert data.is_labelled.all()
        if name != "tiny_imagenet":
            assert data.classes == entry.classes
    assert entry.on_hub is not None
    assert set(entry.sizes) == {"train", "dev", "test"}


def test_every_benchmark_of_the_hub_that_a_paper_uses_is_read_here():
    assert {name for name, entry in BENCHMARKS.items() if entry.on_hub and entry.sizes} == set(READ)


def test_labels_and_texts_are_those_of_the_hub(hub):
    glue = load_benchmark("mrpc")["dev"]
    assert glue.labels.tolist() == [0, 1] * 5
    assert glue.inputs.text[3] == "sentence1 of validation 3"
    assert load_benchmark("sst2")["test"].labels.tolist() == [0, 1] * 6
    swag = load_benchmark("hellaswag")["train"]
    assert swag.inputs.prompt[2] == "activity_label of train 2 : ctx_a of train 2 Ctx_b of train 2"
    assert swag.inputs.endings[2].tolist() == [f"ending {k} of 2" for k in range(4)]
    assert swag.labels[:6].tolist() == [0, 1, 2, 3, 0, 1]
    crabs = load_benchmark("cifar100")["test"]
    assert crabs.labels.tolist() == list(range(10))
    assert crabs.classes[26] == "crab"
    fine = load_benchmark("goemotions_ekman")["test"]
    assert fine.ids[4] == "id of test 4 "
    groups = {e: k for k, members in EKMAN.items() for e in members} | {"neutral": "neutral"}
    for row in range(10):
        assert EMOTIONS[fine.labels[row]] in {groups[FINE[row]], groups[FINE[row + 9]]}


def test_a_copy_with_other_classes_is_refused(hub, monkeypatch):
    entry = BENCHMARKS["mrpc"]
    other = type(entry.on_hub)(entry.on_hub.splits, ("no", "yes"))
    with pytest.raises(InputError, match="its classes are not_equivalent, equivalent, expected no, yes"):
        other.read_split(entry.hub, "train", entry.classes)


def test_the_source_of_a_recipe_s_data(hub, monkeypatch, tmp_path):
    """auto takes the folder if it is there, the hub otherwise; folder and hub take what they say."""
    entry = BENCHMARKS["mrpc"]
    assert benchmark_source(entry) == "hub"
    assert len(read_splits(DataSettings(train="benchmark:mrpc")).train) == 30
    assert len(read_splits(DataSettings(train="benchmark:mrpc@train", dev="benchmark:mrpc", test="benchmark:mrpc")).dev) == 10
    (tmp_path / "mrpc").mkdir()
    for file, rows in (("train", 7), ("validation", 5), ("test", 3)):
        lines = [f"{file} a {i}\t{file} b {i}\t{('different', 'paraphrase')[i % 2]}" for i in range(rows)]
        (tmp_path / "mrpc" / f"{file}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines, ""]))
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    assert benchmark_source(entry) == "folder"
    assert len(read_splits(DataSettings(train="benchmark:mrpc")).train) == 7
    assert len(read_splits(DataSettings(train="benchmark:mrpc", source="hub")).train) == 30
    with pytest.raises(InputError, match="there is no such folder, for qqp"):
        read_splits(DataSettings(train="benchmark:qqp", source="folder"))
    with pytest.raises(InputError, match="not read from the hub"):
        read_splits(DataSettings(train="benchmark:meld", source="hub"))


def test_without_folder_hub_or_package_the_error_names_both_ways(hub, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    with pytest.raises(
        InputError, match=rf"hub:nyu-mll/glue/mrpc@train: cannot be loaded.*or put its files in {tmp_path}/mrpc"
    ):
        load_benchmark("mrpc")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'distilcal\[hub\]'; or put its files in"):
        load_benchmark("mrpc")


def test_tiny_imagenet_is_read_as_published(tmp_path):
    """train/WNID/images, and the official validation images with their annotations as the test."""
    folder = tmp_path / "tiny_imagenet"
    with pytest.raises(InputError, match=r"val_annotations\.txt is needed"):
        (folder / "val" / "images").mkdir(parents=True)
        load_benchmark("tiny_imagenet", root=tmp_path)
    lines = []
    for i in range(20):
        wnid = ("n01443537", "n12267677")[i % 2]
        pixels = np.random.default_rng(i).integers(0, 256, (64, 64, 3)).astype(np.uint8)
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t62\t62")
        image.fromarray(pixels).save(folder / "val" / "images" / f"val_{i}.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("\n".join([*lines, ""]))
    with pytest.raises(InputError, match="no picture is in train/WNID/images"):
        load_benchmark("tiny_imagenet", root=tmp_path)
    for i in range(30):
        place = folder / "train" / ("n01443537", "n12267677")[i % 2] / "images"
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(100 + i).integers(0, 256, (64, 64)).astype(np.uint8)  # grey
        image.fromarray(pixels).save(place / f"{i}.JPEG")
    splits = load_benchmark("tiny_imagenet", root=tmp_path)
    assert [len(data) for data in splits.values()] == [27, 3, 20]
    test = splits["test"]
    assert test.classes == BENCHMARKS["tiny_imagenet"].classes
    assert {test.classes[label] for label in test.labels} == {"n01443537", "n12267677"}
    row = test.ids.tolist().index("val/images/val_3.JPEG")
    assert test.classes[test.labels[row]] == "n12267677"
    assert test.inputs.pixels.shape == (20, 64, 64, 3)
