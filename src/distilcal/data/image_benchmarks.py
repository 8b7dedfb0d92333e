"""Readers of image benchmarks: each reads a folder, laid out as in docs/benchmarks.md, and returns its splits by name."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.benchmark_classes import CIFAR10, FASHION, TINY, TINY_IMAGENET
from distilcal.data.benchmark_parts import (
    SplitsByName,
    divide,
    find_file,
    shuffled,
)
from distilcal.data.dataset import Dataset, Images
from distilcal.data.image_source import import_pillow, read_picture_files, read_sheet
from distilcal.data.sources import read_dataset
from distilcal.errors import InputError
from distilcal.io.atomic import open_npz


def read_cifar(folder: Path, classes: Sequence[str], *, shuffle: bool = False) -> SplitsByName:
    """Read CIFAR-10 or CIFAR-100 from sheets of images of 32 × 32 pixels.

    Parameters
    ----------
    folder : Path
        The folder with train*.webp, test*.webp and labels.npz.
    classes : sequence of str
        The names of the classes, in order.
    shuffle : bool, default False
        Whether to shuffle the images, for sheets that are in the order of the classes.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    MissingDependencyError
        If Pillow is not installed.
    """
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        data = _sheet(folder, names.partition("+")[0], classes)
        splits |= divide(shuffled(data) if shuffle else data, names)
    return splits


def read_cifar10h(folder: Path) -> SplitsByName:
    """Read the test images of CIFAR-10 with the shares of human choices.

    Parameters
    ----------
    folder : Path
        The folder with counts.npz; the images are read from the folder cifar10 beside it.

    Returns
    -------
    dict of str to Dataset
        The split test, with label distributions of shape (N, 10).

    Raises
    ------
    InputError
        If a file is missing.
    MissingDependencyError
        If Pillow is not installed.
    """
    with open_npz(find_file(folder, "counts.npz")) as arrays:
        counts = arrays["counts"].astype(np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return {"test": replace(_sheet(folder.parent / "cifar10", "test", CIFAR10), label_probs=shares)}


def _sheet(folder: Path, split: str, classes: Sequence[str]) -> Dataset:
    with open_npz(find_file(folder, "labels.npz")) as arrays:
        labels = arrays["label_names"][arrays[f"{split}_labels"]]
    return Dataset(read_sheet(find_file(folder, f"{split}*.webp"), side=32), labels, tuple(classes))


def read_fashion_mnist(folder: Path) -> SplitsByName:
    """Read images of 28 × 28 grey pixels, repeated for red, green and blue.

    Parameters
    ----------
    folder : Path
        The folder with fashion_mnist*.npz.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    with open_npz(find_file(folder, "fashion_mnist*.npz")) as arrays:
        held = {key: arrays[key] for key in arrays}
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        split = names.partition("+")[0]
        pixels = np.repeat(held[f"{split}_images"][..., None], 3, axis=3)
        splits |= divide(Dataset(Images(pixels), held["label_names"][held[f"{split}_labels"]], FASHION), names)
    return splits


def read_tiny_imagenet(folder: Path) -> SplitsByName:
    """Read images of 64 × 64 pixels from the zip; the official validation images are the test.

    Parameters
    ----------
    folder : Path
        The folder with tiny_imagenet10.zip.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    MissingDependencyError
        If Pillow is not installed.
    """
    pillow = import_pillow()
    splits: SplitsByName = {}
    with zipfile.ZipFile(find_file(folder, "tiny_imagenet10.zip")) as archive:
        lines = archive.read("classes.txt").decode("utf-8").splitlines()
        names = {wnid: name.partition(",")[0].strip() for wnid, _, name in (line.partition("\t") for line in lines)}
        for parts, top in (("train+dev", "train/"), ("test", "val/")):
            ids = sorted(m for m in archive.namelist() if m.startswith(top) and m.endswith(".JPEG"))
            pixels = np.stack([np.asarray(pillow.open(io.BytesIO(archive.read(i))).convert("RGB")) for i in ids])
            labels = np.array([names[i.split("/")[1]] for i in ids])
            splits |= divide(shuffled(Dataset(Images(pixels), labels, TINY, np.array(ids))), parts)
    return splits


def read_tiny_imagenet200(folder: Path) -> SplitsByName:
    """Read Tiny-ImageNet as it is published: train/WNID/images, and val/images with val_annotations.txt, which is the test.

    Parameters
    ----------
    folder : Path
        The folder with the folders train and val.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    MissingDependencyError
        If Pillow is not installed.
    """
    train = sorted((folder / "train").glob("*/images/*.JPEG"))
    annotations = find_file(folder / "val", "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    names_and_labels = [line.split("\t")[:2] for line in annotations]
    test = [folder / "val" / "images" / name for name, _ in names_and_labels]
    splits: SplitsByName = {}
    for parts, files, labels in (
        ("train+dev", train, [file.parents[1].name for file in train]),
        ("test", test, [label for _, label in names_and_labels]),
    ):
        if not files:
            raise InputError("no picture is in train/WNID/images", source=str(folder), remedy="see docs/benchmarks.md")
        ids = np.array([file.relative_to(folder).as_posix() for file in files])
        data = Dataset(Images(read_picture_files(files)), np.array(labels), TINY_IMAGENET, ids)
        splits |= divide(shuffled(data), parts)
    return splits


def read_cinic10(folder: Path, *, only_imagenet: bool = False) -> SplitsByName:
    """Read folders train, valid and test of pictures by class.

    Parameters
    ----------
    folder : Path
        The folder with these three folders.
    only_imagenet : bool, default False
        Whether to return only the test, without the images that came from CIFAR-10.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test; only test with ``only_imagenet``.

    Raises
    ------
    InputError
        If one of the folders does not exist.
    MissingDependencyError
        If Pillow is not installed.
    """
    folders = {"test": "test"} if only_imagenet else {"train": "train", "dev": "valid", "test": "test"}
    splits: SplitsByName = {}
    for split, name in folders.items():
        if not (folder / name).is_dir():
            raise InputError(f"there is no folder {name!r}", source=str(folder), remedy="see docs/benchmarks.md")
        data = read_dataset(folder / name, classes=CIFAR10)
        data = replace(data, ids=np.char.add(f"{name}/", data.ids))
        if only_imagenet:
            data = data.select(np.array(["/cifar10-" not in i for i in data.ids]))
        splits[split] = shuffled(data)
    return splits


def read_corrupted(folder: Path, classes: Sequence[str]) -> SplitsByName:
    """Read the test images under every corruption whose .npy is in the folder, in five severities.

    Parameters
    ----------
    folder : Path
        The folder with labels.npy and a file such as fog.npy per corruption: uint8 of shape (5 · N, 32, 32, 3).
    classes : sequence of str
        The names of the classes, in the order of the labels.

    Returns
    -------
    dict of str to Dataset
        The split test; its groups are the images.

    Raises
    ------
    InputError
        If labels.npy is missing, if there is no corruption, or if a file does not have the shape or type that the labels imply.
    """
    files = [f for f in sorted(folder.glob("*.npy")) if f.stem != "labels"]
    labels = _array(find_file(folder, "labels.npy"))
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
    """Return a .npy, mapped and not yet read; pickles are refused."""
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise InputError("this is no .npy of numbers, or it is cut off", source=str(path), remedy="get it again") from None
    return mapped
