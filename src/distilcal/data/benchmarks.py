"""Readers of benchmarks: each takes a folder, laid out as in docs/benchmarks.md, and returns its splits by name.

To add one, write a function here (``read_tables`` serves most tables) and an entry in ``catalogue.BENCHMARKS``. Whatever is
divided at random is divided by ``divide`` with one fixed seed, and files that stand in class order are shuffled with it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Choices, Dataset, Images, Texts, choices, number_repeated, texts
from distilcal.data.image_source import import_pillow, read_sheet
from distilcal.data.sources import read_dataset
from distilcal.data.table_source import Columns, dataset_from_table
from distilcal.errors import InputError
from distilcal.io.atomic import open_npz
from distilcal.io.tables import Table, read_table

SplitsByName = dict[str, Dataset]
Group = Literal["", "text", "pair", "prompt"]  # which part of the input tells what must not be divided
SEED = 20  # of every division and shuffle: part of what a benchmark is
SHARES = {
    "train+dev": (0.9, 0.1),
    "dev+test": (0.5, 0.5),
    "train+dev+test": (0.7, 0.1, 0.2),
}
LARGEST = 1 << 28  # bytes of an archive's member that are read into memory


def _names(listed: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in listed.split(","))


EMOTIONS = ("anger", "disgust", "fear", "joy", "neutral", "sadness", "surprise")
EMPATHY = ("none", "some")
POLARITY = ("negative", "positive")
NLI = ("entailment", "neutral", "contradiction")
ANSWERED = ("entailment", "not_entailment")
PARAPHRASE = ("different", "paraphrase")
FOUR = ("0", "1", "2", "3")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = _names("T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot")
TINY = _names(
    """Egyptian cat, golden retriever, goldfish, jellyfish, orange, school bus, sports car, steel arch bridge,
    sulphur butterfly, teapot"""
)
NEWSGROUPS = _names(
    """alt.atheism, comp.graphics, comp.os.ms-windows.misc, comp.sys.ibm.pc.hardware, comp.sys.mac.hardware, comp.windows.x,
    misc.forsale, rec.autos, rec.motorcycles, rec.sport.baseball, rec.sport.hockey, sci.crypt, sci.electronics, sci.med,
    sci.space, soc.religion.christian, talk.politics.guns, talk.politics.mideast, talk.politics.misc, talk.religion.misc"""
)
CIFAR100 = _names(
    """apple, aquarium_fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus, butterfly, camel,
    can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch, crab, crocodile, cup, dinosaur,
    dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo, keyboard, lamp, lawn_mower, leopard, lion,
    lizard, lobster, man, maple_tree, motorcycle, mountain, mouse, mushroom, oak_tree, orange, orchid, otter, palm_tree,
    pear, pickup_truck, pine_tree, plain, plate, poppy, porcupine, possum, rabbit, raccoon, ray, road, rocket, rose, sea,
    seal, shark, shrew, skunk, skyscraper, snail, snake, spider, squirrel, streetcar, sunflower, sweet_pepper, table,
    tank, telephone, television, tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow_tree, wolf, woman,
    worm"""
)


# ---- what readers share ------------------------------------------------------------------------------------------------


def divide(whole: Dataset, names: str, shares: Sequence[float] = ()) -> SplitsByName:
    """Parts named as in ``SHARES``, ``train+dev`` for instance, in those shares or the given; a single name is the whole."""
    *first, last = names.split("+")
    parts: SplitsByName = {}
    left = 1.0
    for name, share in zip(first, shares or SHARES.get(names, ()), strict=False):
        parts[name], whole = _by_group(whole, share / left)
        left -= share
    return {**parts, last: whole}


def _by_group(data: Dataset, fraction: float) -> tuple[Dataset, Dataset]:
    """Two parts that share no group, or without groups no text. Groups have equal chances, whatever their size."""
    keys = _hashes(data.inputs.contents(loosely=True)) if data.groups is None else data.groups
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    taken, _ = data.select(first).split(fraction, seed=SEED, grouped=False)
    inside = np.isin(data.ids[first], taken.ids)[group]
    return data.select(inside), data.select(~inside)


def with_content_ids(data: Dataset, group: Group = "") -> Dataset:
    """The same data with ids made from content, a group for each distinct text, pair or prompt, and no blanks around texts.

    Some splits have such blanks and others not, and some tokenisers make a token of them.
    """
    inputs = data.inputs
    match inputs:
        case Texts(text, pair):
            inputs = texts([t.strip() for t in text], None if pair is None else [t.strip() for t in pair])
        case Choices(prompt, endings):
            inputs = choices([t.strip() for t in prompt], [[t.strip() for t in row] for row in endings])
    groups = _keys(getattr(inputs, group)) if group else None
    return replace(data, inputs=inputs, ids=np.array([], dtype=str), groups=groups)


def shuffled(data: Dataset) -> Dataset:
    """The same rows in a fixed random order."""
    return data.select(np.random.default_rng(SEED).permutation(len(data)))


def _keys(values: Iterable[str]) -> NDArray[np.str_]:
    """Short hashes of texts, whatever their case and spacing: an array of the texts would take the longest one's room."""
    return _hashes(" ".join(v.casefold().split()).encode() for v in values)


def _hashes(contents: Iterable[bytes]) -> NDArray[np.str_]:
    return np.array([hashlib.blake2b(content, digest_size=8).hexdigest() for content in contents])


def _file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        what = ", ".join(f.name for f in found) or "none"
        raise InputError(
            f"one file {pattern} is needed, and there is {what}", source=str(folder), remedy="see docs/benchmarks.md"
        )
    return found[0]


def _table(folder: Path, pattern: str, header: Sequence[str] | None = None) -> Table:
    """A table of the folder. Quotes in .tsv files are part of the text."""
    path = _file(folder, pattern)
    return read_table(path, quoted=".tsv" not in path.name, header=header)


def read_tables(
    folder: Path,
    files: Mapping[str, str],
    classes: Sequence[str],
    columns: Columns | None = None,
    *,
    group: Group = "",
    header: Sequence[str] | None = None,
    drop: str = "",
    shuffle: bool = False,
) -> SplitsByName:
    """SplitsByName from one table each; a table named ``dev+test`` is divided. Rows labelled ``drop`` are left out."""
    columns = columns or Columns()
    splits: SplitsByName = {}
    for names, pattern in files.items():
        table = _table(folder, pattern, header)
        if drop:
            labels = table.values(columns.label)
            table = table.select([row for row, label in enumerate(labels) if label != drop])
        data = with_content_ids(dataset_from_table(table, columns, classes), group)
        splits |= divide(shuffled(data) if shuffle else data, names)
    return splits


# ---- text --------------------------------------------------------------------------------------------------------------


def read_goemotions(folder: Path) -> SplitsByName:
    """Ekman's six emotions and neutral. Where raters left several, one is drawn by a hash of the comment's id."""
    fine = _file(folder, "emotions.txt").read_text(encoding="utf-8").split()
    coarse = {e: c for c, members in _json(_file(folder, "ekman_mapping.json")).items() for e in members}
    index = [EMOTIONS.index(coarse.get(e, e)) for e in fine]
    splits: SplitsByName = {}
    for name in ("train", "dev", "test"):
        table = _table(folder, f"{name}.tsv*", header=("text", "labels", "id"))
        ids = table.texts("id")
        labels = []
        for i, given in zip(ids, table.texts("labels"), strict=True):
            found = sorted({index[int(v)] for v in given.split(",")})
            labels.append(found[0] if len(found) == 1 else found[_draw(i) % len(found)])
        splits[name] = Dataset(texts(table.texts("text")), np.array(labels), EMOTIONS, np.array(ids))
    return splits


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def read_meld(folder: Path) -> SplitsByName:
    """Utterances, grouped by dialogue; the label non-neutral, which some copies have, is left out."""
    splits: SplitsByName = {}
    for name in ("train", "dev", "test"):
        table = _table(folder, f"{name}_sent_emo.csv*")
        labels = np.array(table.texts("Emotion"))
        dialogue = np.array([f"{name}-{d}" for d in table.texts("Dialogue_ID")])
        ids = np.array([f"{d}-{u}" for d, u in zip(dialogue, table.texts("Utterance_ID"), strict=True)])
        kept = np.flatnonzero(labels != "non-neutral")
        inputs = texts(table.texts("Utterance")).take(kept)
        splits[name] = Dataset(inputs, labels[kept], EMOTIONS, ids[kept], groups=dialogue[kept])
    return splits


def read_epitome(folder: Path, mechanism: str) -> SplitsByName:
    """Posts and responses, divided 75 : 5 : 20 by seeker's post, alike for the three mechanisms: labels have no part in it."""
    table = _table(folder, f"{mechanism}-reddit.csv*")
    labels = np.array([int(level != "0") for level in table.texts("level")])
    posts = table.texts("sp_id")
    ids = number_repeated(np.array([f"{s}-{r}" for s, r in zip(posts, table.texts("rp_id"), strict=True)]))
    inputs = texts(table.texts("seeker_post"), table.texts("response_post"))
    whole = Dataset(inputs, labels, EMPATHY, ids, groups=np.array(posts))
    parts = divide(replace(whole, labels=None), "train+dev+test", (0.75, 0.05, 0.2))
    return {name: whole.select(np.isin(whole.ids, part.ids)) for name, part in parts.items()}


def read_news_empathy(folder: Path) -> SplitsByName:
    """Essays on news, divided by writer."""
    table = _table(folder, "messages.csv*")
    labels = np.array([int(v) for v in table.texts("empathy_bin")])
    ids, writers = np.array(table.texts("message_id")), np.array(table.texts("response_id"))
    return divide(Dataset(texts(table.texts("essay")), labels, EMPATHY, ids, groups=writers), "train+dev+test")


def read_votes_on_paraphrases(folder: Path) -> SplitsByName:
    """Pairs with the share of six raters who said paraphrase; three against three is left out, as in the corpus."""
    table = _table(folder, "test_votes.tsv*")
    votes, raters = (np.array(table.values(c), dtype=np.int64) for c in ("votes", "n_annotators"))
    share = votes / raters
    inputs = texts(table.texts("sentence1"), table.texts("sentence2"))
    data = Dataset(inputs, (share > 0.5).astype(np.int64), PARAPHRASE, label_probs=np.c_[1 - share, share])
    return {"test": with_content_ids(data.select(share != 0.5), "text")}


def read_chaosnli(folder: Path, part: str) -> SplitsByName:
    """Pairs with the shares of a hundred raters; the label is their majority."""
    table = _table(folder, f"chaosNLI_{part}.jsonl*")
    letters = {name[0]: i for i, name in enumerate(NLI)}
    labels = np.array([letters[v] for v in table.texts("majority_label")])
    examples = table.values("example")
    inputs = texts([e["premise"] for e in examples], [e["hypothesis"] for e in examples])
    votes = np.array(table.values("label_dist"))
    return {"test": Dataset(inputs, labels, NLI, np.array(table.texts("uid")), votes, _keys(inputs.text))}


def read_adv_glue(folder: Path, task: str, classes: Sequence[str]) -> SplitsByName:
    """Adversarial examples of one GLUE task."""
    path = _file(folder, "dev_ann.json*")
    tasks = _json(path)
    if task not in tasks:
        raise InputError(f"there is no task {task!r}; it has {', '.join(tasks)}", source=str(path), remedy="get the whole file")
    values = {key: [row[key] for row in tasks[task]] for key in tasks[task][0] if not key.startswith("original_")}
    values["id"] = [f"{task}-{i}" for i in values["idx"]]
    return {"test": dataset_from_table(Table(str(path), values), Columns(), classes)}


def _json(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def read_newsgroups(folder: Path, *, raw: bool = False) -> SplitsByName:
    """Messages, grouped by subject; unless ``raw``, their bodies only, without those that are then empty."""
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        table = _table(folder, f"{names.partition('+')[0]}.jsonl*")
        message = table.texts("text")
        labels = np.array(table.texts("label_name"))
        ids = np.array([f"{g}/{i}" for g, i in zip(labels, table.texts("id"), strict=True)])
        threads = _keys(_subject(m) or i for m, i in zip(message, ids, strict=True))
        splits |= divide(shuffled(Dataset(texts(message), labels, NEWSGROUPS, ids, groups=threads)), names)
    return splits if raw else {name: _bodies(part) for name, part in splits.items()}


def _bodies(data: Dataset) -> Dataset:
    assert isinstance(data.inputs, Texts)
    bodies = [body_of(m) for m in data.inputs.text]
    return replace(data, inputs=texts(bodies)).select(np.array([bool(b) for b in bodies]))


QUOTED = re.compile(r"\s*(\w{0,3}[>|}]|:)")
ATTRIBUTION = re.compile(r"\b(writes|wrote)\b.{0,3}$|\b(says|said):\s*$", re.IGNORECASE)  # at the end of a line
SOURCE = re.compile(r"\s*in (article|<)", re.IGNORECASE)
DASHES = re.compile(r"\s*--+\s*$")
SUBJECT = re.compile(r"^subject:\s*(?:re(?:\^\d+)?:\s*)*(.*)$", re.IGNORECASE | re.MULTILINE)
SIGNATURE_LINES = 10


def body_of(message: str) -> str:
    """A message without its header, quoted lines, the lines that introduce them, and a signature after dashes.

    >>> body_of("From: me\\nSubject: x\\n\\nA. Reader writes:\\n> a quote\\nMy answer.\\n--\\nMy name")
    'My answer.'
    """
    _, _, body = message.replace("\r", "").partition("\n\n")
    lines = [
        line for line in body.split("\n") if not (QUOTED.match(line) or SOURCE.match(line) or ATTRIBUTION.search(line[-12:]))
    ]
    start = max(0, len(lines) - SIGNATURE_LINES)
    end = next((i for i in range(start, len(lines)) if DASHES.match(lines[i])), len(lines))
    return "\n".join(lines[:end]).strip()


def _subject(message: str) -> str:
    found = SUBJECT.search(message.partition("\n\n")[0])
    return found.group(1).strip() if found else ""


# ---- VADER: a table, or the archive in which its authors gave it -------------------------------------------------------

VADER = {
    "amazon": "amazonReviewSnippets",
    "movie": "movieReviewSnippets",
    "nyt": "nytEditorialSnippets",
    "tweet": "tweets",
}
VADER_ARCHIVE = "hutto_ICWSM_2014.tar.gz"


def read_vader(folder: Path, domain: str) -> SplitsByName:
    """Texts whose mean rating is beyond ±0.5, with the shares of raters above and below zero; zeros count half each."""
    rows = _vader_rows(folder, domain)
    ratings = [np.array(r.split(","), dtype=np.int64) for _, r, _ in rows]
    mean = np.array([r.mean() for r in ratings])
    up = np.array([np.mean((np.sign(r) + 1) / 2) for r in ratings])
    kept = np.flatnonzero(np.abs(mean) > 0.5)
    ids = np.array([f"{domain}-{name}" for name, _, _ in rows])
    documents = np.array([f"{domain}-{name.partition('_')[0]}" for name, _, _ in rows])
    inputs = texts([" ".join(text.split()) for _, _, text in rows]).take(kept)
    labels = (mean > 0).astype(np.int64)
    # A tweet or snippet of a film review is a document of its own: there, equal texts are what must stay together.
    groups = documents[kept] if domain in ("amazon", "nyt") else None
    data = Dataset(inputs, labels[kept], POLARITY, ids[kept], np.c_[1 - up, up][kept], groups)
    return divide(data, "train+dev+test")


def _vader_rows(folder: Path, domain: str) -> list[tuple[str, str, str]]:
    """Id, ratings with commas between, and text."""
    if sorted(folder.glob("ratings.tsv*")):
        table = _table(folder, "ratings.tsv*")
        rows = zip(*(table.texts(c) for c in ("domain", "id", "ratings", "text")), strict=True)
        return [(name, ratings, text) for d, name, ratings, text in rows if d == domain]
    archives = [f for f in sorted(folder.iterdir()) if re.fullmatch(r"(vadersentiment-.*|hutto_.*)\.tar\.gz", f.name.lower())]
    if not archives:
        raise InputError(
            "neither ratings.tsv.gz nor an archive of VADER is in it",
            source=str(folder),
            remedy="get vaderSentiment-3.3.2.tar.gz, see docs/benchmarks.md",
        )
    path = archives[0]
    raw = path.read_bytes()
    if path.name.lower() != VADER_ARCHIVE.lower():
        raw = _members(raw, [VADER_ARCHIVE], path)[0]
    names = [f"{VADER[domain]}_{what}.txt" for what in ("GroundTruth", "anonDataRatings")]
    truth, rated = (_lines(content) for content in _members(raw, names, path))
    ratings = {fields[0]: fields[3].strip("[]").replace(" ", "") for fields in rated}
    return [(fields[0], ratings[fields[0]], fields[2]) for fields in truth]


def _members(archive: bytes, names: Sequence[str], path: Path) -> list[bytes]:
    """The contents of files in a tar.gz by their last names; nothing is written to disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        for member in opened:
            name = member.name.rpartition("/")[2]
            if name in names and member.isfile() and member.size <= LARGEST:
                content = opened.extractfile(member)
                assert content is not None
                found[name] = content.read()
    missing = [n for n in names if n not in found]
    if missing:
        raise InputError(f"{missing[0]} is not in it", source=str(path), remedy="get vaderSentiment-3.3.2.tar.gz again")
    return [found[n] for n in names]


def _lines(content: bytes) -> list[list[str]]:
    return [line.rstrip("\r").split("\t") for line in content.decode("utf-8-sig").split("\n") if line.strip()]


# ---- images ------------------------------------------------------------------------------------------------------------


def read_cifar(folder: Path, classes: Sequence[str], *, shuffle: bool = False) -> SplitsByName:
    """Sheets of images; those that stand in class order are to be shuffled."""
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        data = _sheet(folder, names.partition("+")[0], classes)
        splits |= divide(shuffled(data) if shuffle else data, names)
    return splits


def read_cifar10h(folder: Path) -> SplitsByName:
    """The test images of CIFAR-10, which must stand in the folder cifar10 beside, with the shares of human choices."""
    with open_npz(_file(folder, "counts.npz")) as arrays:
        counts = arrays["counts"].astype(np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return {"test": replace(_sheet(folder.parent / "cifar10", "test", CIFAR10), label_probs=shares)}


def _sheet(folder: Path, split: str, classes: Sequence[str]) -> Dataset:
    with open_npz(_file(folder, "labels.npz")) as arrays:
        labels = arrays["label_names"][arrays[f"{split}_labels"]]
    return Dataset(read_sheet(_file(folder, f"{split}*.webp"), side=32), labels, tuple(classes))


def read_fashion_mnist(folder: Path) -> SplitsByName:
    """28 × 28 pixels of grey, three times for red, green and blue."""
    with open_npz(_file(folder, "fashion_mnist*.npz")) as arrays:
        held = {key: arrays[key] for key in arrays}
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        split = names.partition("+")[0]
        pixels = np.repeat(held[f"{split}_images"][..., None], 3, axis=3)
        splits |= divide(Dataset(Images(pixels), held["label_names"][held[f"{split}_labels"]], FASHION), names)
    return splits


def read_tiny_imagenet(folder: Path) -> SplitsByName:
    """64 × 64 pixels, read from the zip; the official validation images are the test."""
    pillow = import_pillow()
    splits: SplitsByName = {}
    with zipfile.ZipFile(_file(folder, "tiny_imagenet10.zip")) as archive:
        lines = archive.read("classes.txt").decode("utf-8").splitlines()
        names = {wnid: name.partition(",")[0].strip() for wnid, _, name in (line.partition("\t") for line in lines)}
        for parts, top in (("train+dev", "train/"), ("test", "val/")):
            ids = sorted(m for m in archive.namelist() if m.startswith(top) and m.endswith(".JPEG"))
            pixels = np.stack([np.asarray(pillow.open(io.BytesIO(archive.read(i))).convert("RGB")) for i in ids])
            labels = np.array([names[i.split("/")[1]] for i in ids])
            splits |= divide(shuffled(Dataset(Images(pixels), labels, TINY, np.array(ids))), parts)
    return splits


def read_cinic10(folder: Path, *, only_imagenet: bool = False) -> SplitsByName:
    """Folders train, valid and test of pictures by class; ``only_imagenet``: the test without what came from CIFAR-10."""
    wanted = {"test": "test"} if only_imagenet else {"train": "train", "dev": "valid", "test": "test"}
    splits: SplitsByName = {}
    for split, name in wanted.items():
        if not (folder / name).is_dir():
            raise InputError(f"there is no folder {name!r}", source=str(folder), remedy="see docs/benchmarks.md")
        data = read_dataset(folder / name, classes=CIFAR10)
        data = replace(data, ids=np.char.add(f"{name}/", data.ids))
        if only_imagenet:
            data = data.select(np.array(["/cifar10-" not in i for i in data.ids]))
        splits[split] = shuffled(data)
    return splits


def read_corrupted(folder: Path, classes: Sequence[str]) -> SplitsByName:
    """The test images under every corruption whose .npy is there, in five severities; groups are the images."""
    files = [f for f in sorted(folder.glob("*.npy")) if f.stem != "labels"]
    labels = _array(_file(folder, "labels.npy"))
    if not files:
        raise InputError("no corruption is in it", source=str(folder), remedy="put in fog.npy, frost.npy or another")
    count = len(labels) // 5
    pixels = np.empty((len(files) * len(labels), 32, 32, 3), dtype=np.uint8)
    ids: list[str] = []
    for k, file in enumerate(files):
        values = _array(file)
        if values.shape != (5 * count, 32, 32, 3) or values.dtype != np.uint8:
            raise InputError(
                f"{values.dtype} of shape {values.shape} for {len(labels)} labels",
                source=str(file),
                remedy="it must hold the images in five severities, uint8 of shape (5 × N, 32, 32, 3)",
            )
        pixels[k * len(labels) : (k + 1) * len(labels)] = values
        ids += [f"{file.stem}-{i // count + 1}-{i % count:05d}" for i in range(len(labels))]
    groups = np.array([i.rpartition("-")[2] for i in ids])
    data = Dataset(Images(pixels), np.tile(labels.astype(np.int64), len(files)), tuple(classes), np.array(ids), groups=groups)
    return {"test": data}


def _array(path: Path) -> NDArray[Any]:
    """A .npy, mapped and not yet read; pickles are refused."""
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise InputError("this is no .npy of numbers, or it is cut off", source=str(path), remedy="get it again") from None
    return mapped
