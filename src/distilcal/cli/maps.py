"""The command ``distilcal map``: a data map of a model's training dynamics. It does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distilcal.cli.console import echo
from distilcal.cli.options import FOLDER, NumberRange, check_page_name, keep_formulas_option
from distilcal.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from distilcal.dynamics import Dynamics
    from distilcal.dynamics.data_map import Examples


@click.command("map")
@click.argument("run", type=FOLDER)
@click.option("--stage", default="", help="Which stage of the run, if more than one was recorded.")
@click.option("-o", "--output", type=FOLDER, help="The table, .csv or .parquet.  [default: map.csv in the stage's folder]")
@click.option("--html", type=FOLDER, help="The page.  [default: map.html in the stage's folder]")
@click.option("--svg", type=FOLDER, help="Also write the map as a figure for papers, .svg, .pdf or .png.")
@click.option("--figure", type=FOLDER, help="The same as --svg; both may be given.")
@click.option("--fraction", type=NumberRange(0, 1, min_open=True), default=0.33, show_default=True,
              help="Share of the examples in each region.")  # fmt: skip
@click.option("--disjoint", is_flag=True, help="No example in two regions: the ambiguous first.")
@keep_formulas_option
def map_command(
    run: Path,
    stage: str,
    output: Path | None,
    html: Path | None,
    svg: Path | None,
    figure: Path | None,
    fraction: float,
    disjoint: bool,
    keep_formulas: bool,
) -> None:
    """Show which training examples are easy, ambiguous or hard for a model, and which labels to doubt.

    RUN is the folder of a run with a stage that was trained with record = true, the folder of such a stage, or one that
    Dynamics.save wrote (docs/guides/maps.md).
    """
    location = find_map(run, stage)
    if output is None:
        output = location.output_folder / f"{location.stem}.csv"
    if html is None:
        html = location.output_folder / f"{location.stem}.html"
    if find_spec("jinja2") is None:
        raise MissingDependencyError("the page needs jinja2", remedy="pip install 'distilcal[report]'")
    from distilcal.dynamics import load_dynamics
    from distilcal.dynamics.data_map import build_map
    from distilcal.io.atomic import check_output, refuse_same_file
    from distilcal.report.map_page import write_map_page
    from distilcal.report.maps import check_table_name, show_map, write_map_table

    check_table_name(output)
    figures = [path for path in (svg, figure) if path is not None]
    outputs = [output, html, *figures]
    for path in outputs:
        check_output(path)
    refuse_same_file(_input_files(location), outputs)
    check_page_name(html)
    if figures:
        from distilcal.report.figures import check_figure_path, map_figure, save_figure

        for path in figures:
            check_figure_path(path)
    dynamics = load_dynamics(location.folder)
    examples, why_not = _load_examples(dynamics, location.recipe)
    data_map = build_map(dynamics, location.name, fraction=fraction, disjoint=disjoint, examples=examples, why_not=why_not)
    write_map_table(data_map, output, escape_formulas=not keep_formulas)
    write_map_page(data_map, html)
    for path in figures:
        save_figure(map_figure(data_map), path)
    show_map(data_map)
    echo(f"Wrote {html}: open it in a browser.")
    echo(f"Wrote {output}: {len(data_map):,} examples, the most doubtful label first.")
    for path in figures:
        echo(f"Wrote {path}: the map as a figure.")


@dataclass(frozen=True)
class MapLocation:
    """Where training dynamics are saved and where their table and page go.

    Attributes
    ----------
    folder : Path
        The folder that `distilcal.dynamics.load_dynamics` reads.
    name : str
        The name of the map: run and stage, or the folder.
    output_folder : Path
        Where the table and the page are written unless the user names other files.
    stem : str
        Their file name without its suffix.
    recipe : Path or None
        The recipe of the run, which names the training data; None for dynamics outside of a run.
    """

    folder: Path
    name: str
    output_folder: Path
    stem: str
    recipe: Path | None


def find_map(run: Path, stage: str = "") -> MapLocation:
    """Find the recorded training dynamics that a folder holds.

    Parameters
    ----------
    run : Path
        The folder of a run, of one of its stages, or of saved dynamics.
    stage : str, default ""
        The stage of a run; needed if several were recorded.

    Returns
    -------
    MapLocation

    Raises
    ------
    InputError
        If there is no such folder, nothing was recorded in it, or the stage is ambiguous or unknown.
    """
    from distilcal.io.folders import MANIFEST

    if not run.is_dir():
        problem = "this is a file" if run.exists() else "there is no such folder"
        raise InputError(problem, source=str(run), remedy="give the folder of a run, or of a saved map")
    run = Path(abspath(run)) if run.name in ("", "..") else run  # the parent of "." is no other folder

    def has_dynamics(folder: Path) -> bool:
        return (folder / MANIFEST).exists() and (folder / "confidence.npy").exists()

    if has_dynamics(run) or has_dynamics(run / "dynamics"):
        if stage:
            raise InputError("--stage is for the folder of a run", source=str(run), remedy="leave it out")
        if has_dynamics(run / "dynamics"):
            return _stage_location(run)
        if run.name == "dynamics":
            return replace(_stage_location(Path(abspath(run)).parent), folder=run, output_folder=run.parent)
        return MapLocation(folder=run, name=run.name, output_folder=run.parent, stem=f"{run.name}-map", recipe=None)
    stages = sorted(f.name for f in run.iterdir() if has_dynamics(f / "dynamics"))
    if not stages:
        raise InputError("no training dynamics were recorded here", source=str(run), remedy="train a stage with record = true")
    if stage and stage not in stages:
        raise InputError(f"no stage {stage!r} was recorded", source=str(run), remedy=f"there is {', '.join(stages)}")
    if not stage and len(stages) > 1:
        raise InputError(f"{len(stages)} stages were recorded", source=str(run), remedy=f"give --stage {' or '.join(stages)}")
    return _stage_location(run / (stage or stages[0]))


def _stage_location(folder: Path) -> MapLocation:
    stage = Path(abspath(folder))
    recipe = stage.parent / "recipe.toml"
    if recipe.exists():
        return MapLocation(folder / "dynamics", f"{stage.parent.name}/{stage.name}", folder, "map", recipe)
    return MapLocation(folder / "dynamics", stage.name, folder, "map", None)


def _input_files(location: MapLocation) -> list[str | Path]:
    """The files of the dynamics and, where the recipe can be read, those of the training data."""
    files: list[str | Path] = list(location.folder.iterdir())
    if location.recipe is None:
        return files
    from distilcal.config.loading import load_recipe

    files.append(location.recipe)
    try:
        data = load_recipe(location.recipe).data
    except InputError:
        return files  # the map is drawn without its examples then
    return [*files, *filter(None, (data.train, data.dev, data.test, *data.ood, *(data.unlabelled or ())))]


def _load_examples(dynamics: Dynamics, recipe: Path | None) -> tuple[Examples | None, str]:
    """The training examples in the order of the dynamics, matched by id; or None, and the reason."""
    import numpy as np

    from distilcal.config.loading import load_recipe
    from distilcal.data import Choices, Images, Texts
    from distilcal.data.splits import read_splits
    from distilcal.dynamics.data_map import Examples

    if recipe is None:
        return None, "no recipe beside it says where they are"
    try:
        # Other domains have no part in what is trained on, and may be large.
        data = read_splits(load_recipe(recipe).data.replace(ood=(), corrupt=(), unlabelled=None)).labelled
    except (InputError, OSError) as error:
        return None, str(error)
    assert data.labels is not None
    order = np.argsort(data.ids, kind="stable")
    rows = order[np.searchsorted(data.ids[order], dynamics.ids).clip(max=len(data) - 1)]
    labels = np.array(data.classes, dtype=object)[data.labels[rows]]
    changed = (data.ids[rows] != dynamics.ids) | (labels != np.array(dynamics.classes, dtype=object)[dynamics.labels])
    if changed.any():
        # Ids that count rows may stand for other examples by now: better no text than a wrong one.
        count = f"{int(changed.sum()):,} of {len(dynamics):,}"
        return None, f"the training data have changed: {count} ids are gone or labelled otherwise"
    match data.inputs:
        case Texts(text, pair):
            return Examples({"text": text[rows]} if pair is None else {"text": text[rows], "pair": pair[rows]}), ""
        case Choices(prompt, endings):
            titles = [f"choice_{name}" for name in data.classes]
            return Examples({"text": prompt[rows], **{t: endings[rows, k] for k, t in enumerate(titles)}}), ""
        case Images(pixels):
            return Examples(picture=lambda row: pixels[rows[row]]), ""
    return None, "they are vectors of numbers"
