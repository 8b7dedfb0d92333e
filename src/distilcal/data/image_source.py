"""Images from picture files: folders by class, and sheets that hold many small images."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.data.dataset import Dataset, Images
from distilcal.errors import InputError, MissingDependencyError
from distilcal.io.atomic import check_input

WITH_ALPHA = ("RGBA", "LA", "PA")  # modes of Pillow; others may have one transparent colour
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
# What a file of these suffixes may be, whatever its name says. Pillow knows more, and runs Ghostscript for one of them.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
SHOWN_KINDS = 5  # of files that are not read


def import_pillow() -> Any:
    """Return the module ``PIL.Image``, or raise a MissingDependencyError."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError("pictures need Pillow", remedy="pip install 'distilcal[train]'") from None
    return Image


def as_rgb(picture: Any) -> Any:
    """Return a picture in red, green and blue of 8 bits, the way up that its camera noted, on white where it is transparent.

    Pillow would cut grey of 16 bits off at 255, which leaves it white, and round decimal numbers to 0, which is black. It would
    drop transparency, and show the colours that some program left in pixels that nobody sees.

    Parameters
    ----------
    picture : PIL.Image.Image
        A picture of any mode.

    Returns
    -------
    PIL.Image.Image
        In mode RGB.

    Raises
    ------
    InputError
        If its pixels are decimal numbers, or numbers that 16 bits do not hold, of which it is not known what is white.

    Examples
    --------
    >>> np.asarray(as_rgb(import_pillow().fromarray(np.full((1, 1), 0x8080, np.uint16)))).tolist()
    [[[128, 128, 128]]]
    """
    from PIL import ImageOps

    pillow = import_pillow()
    picture = ImageOps.exif_transpose(picture)
    low, high = picture.getextrema() if picture.mode == "I" else (0, 0)
    if picture.mode == "F" or low < 0 or high > 65535:
        kind = "decimal numbers" if picture.mode == "F" else "numbers below 0 or above 65,535"
        raise InputError(f"the pixels of this picture are {kind}", remedy="save it with 8 or 16 bits")
    if picture.mode == "I" or picture.mode.startswith("I;16"):  # older versions of Pillow call 16 bits I
        values, transparent = np.asarray(picture), picture.info.get("transparency")
        shades = (values // 257).astype(np.uint8)
        picture = pillow.fromarray(shades if transparent is None else np.where(values == transparent, np.uint8(255), shades))
    if picture.mode in WITH_ALPHA or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = pillow.alpha_composite(pillow.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def read_sheet(path: Path, *, side: int, across: int = 100) -> Images:
    """Read the images of a sheet: one lossless picture that holds them in a grid.

    Parameters
    ----------
    path : Path
        The picture.
    side : int
        Width and height of each image in pixels.
    across : int
        Number of images in a row of the grid.

    Returns
    -------
    Images
        The images, row by row.

    Raises
    ------
    InputError
        If the picture is no such grid.
    """
    with import_pillow().open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    height, width = pixels.shape[:2]
    if height % side or width != side * across:
        raise InputError(f"a sheet of {width} × {height} pixels is no grid of {across} × {side}", source=str(path))
    grid = pixels.reshape(-1, side, across, side, 3)  # (rows, side, across, side, 3)
    return Images(grid.swapaxes(1, 2).reshape(-1, side, side, 3))


def resize_images(images: Images, side: int) -> Images:
    """Return the images as squares of this many pixels a side.

    Parameters
    ----------
    images : Images
        Images of any size.
    side : int
        Height and width of the result, in pixels.

    Returns
    -------
    Images
        The resized images; the same object if they have this size already.

    Raises
    ------
    MissingDependencyError
        If the images have another size and Pillow is not installed.

    Examples
    --------
    >>> resize_images(Images(np.zeros((2, 6, 4, 3), np.uint8)), 8).pixels.shape
    (2, 8, 8, 3)
    """
    if images.pixels.shape[1:3] == (side, side):
        return images
    pillow = import_pillow()
    return Images(np.stack([np.asarray(pillow.fromarray(pixels).resize((side, side))) for pixels in images.pixels]))


def read_image_folder(path: Path, classes: Sequence[str] | None = None, size: int | None = None) -> Dataset:
    """Read pictures that are laid out as ``CLASS/PICTURE.png``.

    Parameters
    ----------
    path : Path
        The folder that holds a folder per class.
    classes : sequence of str, optional
        Names and order of the classes. By default the folders in alphabetical order.
    size : int, optional
        Width and height to which pictures are scaled. By default they must all have one size.

    Returns
    -------
    Dataset
        The pictures; ids are their paths within the folder.

    Raises
    ------
    InputError
        If there are no pictures, one cannot be read, or sizes differ.
    """
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files: list[Path] = []
    labels: list[str] = []
    skipped = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
    for folder in folders:
        pictures, others = find_pictures(folder)
        skipped += others
        if not pictures and classes is None:
            raise InputError(
                "there are no pictures of this class",
                source=str(folder),
                remedy=f"give {', '.join(IMAGE_SUFFIXES)}, or remove it",
            )
        files += pictures
        labels += [folder.name] * len(pictures)
    if not files:
        raise InputError("no folder of pictures per class is in it", source=str(path), remedy="lay it out as CLASS/PICTURE.png")
    _warn_of_skipped(path, skipped)
    names = tuple(folder.name for folder in folders) if classes is None else tuple(classes)
    ids = np.array([str(file.relative_to(path)) for file in files])
    return Dataset(Images(read_picture_files(files, size)), np.array(labels), names, ids, name=str(path))


def read_pictures(path: Path, size: int | None = None) -> Dataset:
    """Read all pictures below a folder, without labels.

    Parameters
    ----------
    path : Path
        The folder; pictures may be in folders in it, whose names do not matter.
    size : int, optional
        Width and height to which pictures are scaled. By default they must all have one size.

    Returns
    -------
    Dataset
        The pictures; ids are their paths within the folder, with the folder's name before.

    Raises
    ------
    InputError
        If there are no pictures, one cannot be read, or sizes differ.
    """
    files, skipped = find_pictures(path)
    if not files:
        raise InputError("there are no pictures in it", source=str(path), remedy=f"give {', '.join(IMAGE_SUFFIXES)}")
    _warn_of_skipped(path, skipped)
    ids = np.array([str(Path(path.name) / file.relative_to(path)) for file in files])
    return Dataset(Images(read_picture_files(files, size)), ids=ids, name=str(path))


def find_pictures(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return all pictures in a folder and in the folders in it, and what else is there; hidden files are neither.

    Parameters
    ----------
    folder : Path
        The folder.

    Returns
    -------
    pictures, others : list of Path
        Files whose suffix is that of a picture that is read, sorted; and other files and links to folders, which are not.

    Raises
    ------
    OSError
        If a folder cannot be listed: without its pictures the data would be others.
    """

    def fail(error: OSError) -> None:
        raise error

    found: list[Path] = []
    links: list[Path] = []  # not followed: they may lead in a circle
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
        links += [Path(place, name) for name in folders if Path(place, name).is_symlink()]
    pictures = sorted(file for file in found if file.suffix.lower() in IMAGE_SUFFIXES)
    return pictures, [*(file for file in found if file.suffix.lower() not in IMAGE_SUFFIXES), *links]


def _warn_of_skipped(folder: Path, skipped: Sequence[Path]) -> None:
    """Say how many files beside the pictures are not read, by their suffix: some may be pictures of another format."""
    if not skipped:
        return
    kinds = Counter(map(_kind_of_skipped, sorted(skipped)))
    named = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(SHOWN_KINDS))
    more = ", …" if len(kinds) > SHOWN_KINDS else ""
    message = f"{folder}: not read: {named}{more}; what is read are {', '.join(IMAGE_SUFFIXES)}"
    warnings.warn(message, stacklevel=1)  # this line, so that each folder is named once


def _kind_of_skipped(file: Path) -> str:
    if file.is_dir():
        return "folder by link"
    suffix = file.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return f"{suffix} outside the folders of classes"
    return repr(suffix)[1:-1] or "without a suffix"  # a name may hold control characters


def read_picture_files(files: Sequence[Path], size: int | None = None) -> NDArray[np.uint8]:
    """Read pictures of one size.

    Parameters
    ----------
    files : sequence of Path
        The pictures, at least one.
    size : int, optional
        Width and height to which they are scaled. By default they must all have one size.

    Returns
    -------
    ndarray of uint8, shape (N, height, width, 3)

    Raises
    ------
    InputError
        If one cannot be read, or sizes differ.
    """
    first = _read_picture(files[0], size)
    height, width = first.shape[:2]
    pixels = np.empty((len(files), *first.shape), dtype=np.uint8)
    for i, file in enumerate(files):
        picture = _read_picture(file, size)
        if picture.shape != first.shape:
            raise InputError(
                f"this picture has {picture.shape[1]} × {picture.shape[0]} pixels, others {width} × {height}",
                source=str(file),
                remedy="scale them all to one size: size = ... in [data] or --size",
            )
        pixels[i] = picture
    return pixels


def _read_picture(file: Path, size: int | None) -> NDArray[np.uint8]:
    pillow = import_pillow()
    check_input(file)
    try:
        with pillow.open(file, formats=FORMATS) as opened:
            picture = as_rgb(opened)
    except InputError as error:
        error.source = str(file)
        raise
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError):  # SyntaxError: a damaged part of a .png
        raise InputError("this picture cannot be read", source=str(file), remedy="fix or remove it") from None
    if size is not None and picture.size != (size, size):
        picture = picture.resize((size, size))
    return np.asarray(picture)
