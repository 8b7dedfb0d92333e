"""Loading studies: a file or the name of one of the package's, at a scale, written out, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from distilcal.config.base import parse_settings
from distilcal.config.loading import parse_toml
from distilcal.errors import InputError
from distilcal.io.atomic import check_input
from distilcal.study.schema import SCALED, Study, with_variants
from distilcal.study.selection import without_methods
from distilcal.study.templates import check_known, closest, expand_templates, merge_tables
from distilcal.study.validation import checked_study

ALIASES = {  # numbers under which the studies were known → name
    "p000": "informed-mixup",
    "p001": "aum-saliency",
    "p002": "calibrated-student",
    "p003": "kd-or-smoothing",
    "p004": "calibration-transfer",
}


def study_names() -> dict[str, Any]:
    """Return the studies that come with the package: name → file."""
    folder = files("distilcal").joinpath("study", "papers")
    files_by_name = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files_by_name}


def study_name(source: str) -> str:
    """Return the name of a study of the package for its alias; anything else stays as it is.

    Examples
    --------
    >>> study_name("P003")
    'kd-or-smoothing'
    >>> study_name("mine.toml")
    'mine.toml'
    """
    return ALIASES.get(source.lower(), source)


def load_study(source: str, scale: str = "small", seeds: int | None = None) -> Study:
    """Load a study at a scale.

    Parameters
    ----------
    source : str
        The name of a study of the package or its alias (``p000`` … ``p004``), or a TOML file.
    scale : str
        One of the study's scales.
    seeds : int, optional
        How many seeds: the study's own first, then others. By default the study's.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        If there is no such study, file or scale, or the study is invalid.

    Examples
    --------
    >>> study = load_study("kd-or-smoothing", "small")
    >>> list(study.tasks)
    ['MRPC', 'QNLI', 'SST-2', 'MNLI']
    """
    source = study_name(source)
    try:
        return parse_study({"name": Path(source).stem, **_read_table(source)}, scale, seeds)
    except InputError as error:
        error.source = error.source or source
        raise


def _read_table(source: str) -> dict[str, Any]:
    known = study_names()
    if source in known:
        text = known[source].read_text(encoding="utf-8")
    elif source.endswith(".toml"):
        check_input(Path(source))
        try:
            text = Path(source).read_text(encoding="utf-8-sig")  # an editor may have put a mark before the first line
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", source=source, remedy="give a TOML file") from None
    else:
        raise InputError(f"there is no study {source!r}", remedy=f"did you mean {closest(source, [*known, *ALIASES])}?")
    return parse_toml(text, source)


def parse_study(table: Mapping[str, Any], scale: str, seeds: int | None = None) -> Study:
    """Build a study at one scale from the table of its file.

    Parameters
    ----------
    table : mapping
        The file as TOML has it, with the table ``scales``.
    scale : str
        One of the study's scales.
    seeds : int, optional
        How many seeds: the study's own first, then others. By default the study's.

    Returns
    -------
    Study
        With templates and variants written out, and every name checked.

    Raises
    ------
    InputError
        If there is no such scale, a key is unknown, a value is invalid, or a name refers to nothing.
    """
    changes = _scale_changes(table, scale)
    base = {key: value for key, value in table.items() if key != "scales"}
    if "changes" in base:
        raise InputError("unknown key changes", remedy="write [[variants]]")
    written_out = expand_templates(base, changes)
    metrics = written_out.get("metrics", {})
    if not isinstance(metrics, Mapping):
        raise InputError(f"metrics = {metrics!r}, expected a table", remedy="write [metrics]")
    written_out["metrics"] = {
        name: {"metric": name, **settings} if isinstance(settings, Mapping) else settings for name, settings in metrics.items()
    }
    study = parse_settings(Study, {**written_out, "scale": scale})
    if seeds is not None:
        study = study.replace(seeds=_first_seeds(study.seeds, seeds))
    return without_methods(checked_study(with_variants(study)), study.leave_out)


def _scale_changes(table: Mapping[str, Any], scale: str) -> Mapping[str, Any]:
    """What a scale changes, on top of the scale that it is like; other keys than those it may change are refused."""
    scales = table.get("scales", {})
    if not isinstance(scales, Mapping) or not all(isinstance(changes, Mapping) for changes in scales.values()):
        raise InputError("scales is not a table of tables", remedy="write [scales.small]")
    if not scales:
        raise InputError("there is no [scales] in it", remedy="write [scales.small]; a recipe is run with distilcal run")
    if scale not in scales:
        raise InputError(f"there is no scale {scale!r}", remedy=f"the scales are {', '.join(scales)}")
    changes = dict(scales[scale])
    like = changes.pop("like", "")
    for key in changes:
        if key not in SCALED:
            raise InputError(f"scales.{scale}.{key} cannot be changed by a scale", remedy=f"it may change {', '.join(SCALED)}")
    if not like:
        return changes
    others = [name for name, other in scales.items() if "like" not in other]
    check_known(like, others, f"scales.{scale}.like: there is no scale without like")
    return merge_tables(_scale_changes(table, like), changes)


def _first_seeds(own: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The first of the study's own seeds, and the smallest others if there are too few."""
    if number < 1:
        raise InputError(f"{number} seeds", remedy="give at least 1")
    seeds = list(own)[:number]
    for seed in count():
        if len(seeds) == number:
            break
        if seed not in seeds:
            seeds.append(seed)
    return tuple(seeds)
