"""The command ``distilcal eval``: how far the confidence of predictions can be trusted. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from distilcal.cli.console import echo, echo_json, share_bar
from distilcal.cli.options import ACCURACY, FILE, NumberRange, check_page_name
from distilcal.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from distilcal.predictions import Predictions

METHODS = ("temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram")


@click.command("eval")
@click.argument("test", type=FILE)
@click.option("--calib", type=FILE, help="Predictions on a development split: calibrate and choose the threshold on these.")
@click.option("--compare", "other", type=FILE, help="Another model's predictions on the same rows, matched by id.")
@click.option("--ood", type=FILE, multiple=True, help="Predictions on shifted data; may be given more than once.")
@click.option("--method", type=click.Choice(METHODS), default="temperature", show_default=True, help="How to calibrate.")
@click.option("--bins", type=click.IntRange(1, 1000), default=15, show_default=True, help="Bins of the binned errors.")
@click.option(
    "--closed", type=click.Choice(["right", "left"]), default="right", show_default=True, help="Closed side of a bin."
)
@click.option("--accuracy", type=ACCURACY, default=0.95, show_default=True,
              help="Accuracy required above the threshold.")  # fmt: skip
@click.option("--confidence", type=NumberRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
              help="How sure to be of that accuracy.")  # fmt: skip
@click.option("--intervals", type=click.IntRange(2, 100_000),
              help="Bootstrap resamples.  [default: 1000, fewer for very large sets]")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the resamples.")
@click.option("--probs", "unit", flag_value="probs", help="The class columns without prefix hold probabilities.")
@click.option("--logits", "unit", flag_value="logits", help="The class columns without prefix hold logits.")
@click.option("--tolerance", type=NumberRange(0, 0.1), default=0.001, show_default=True,
              help="How far a row of probabilities may be from summing to 1.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/reference/eval-json.md) and nothing else.")
@click.option("--html", type=FILE, help="Also write a self-contained report page.")
@click.option("--figure", type=FILE, help="Also write the reliability diagram as a figure for papers, .svg, .pdf or .png.")
@click.option("--save-calibrator", type=FILE, help="Also write the fitted calibrator (.json or .npz); needs --calib.")
def evaluate_command(
    test: Path,
    calib: Path | None,
    other: Path | None,
    ood: tuple[Path, ...],
    html: Path | None,
    figure: Path | None,
    save_calibrator: Path | None,
    as_json: bool,
    unit: Any,
    tolerance: float,
    **settings: Any,
) -> None:
    """Can the confidence of these predictions be trusted, how sure are we, and what would fix it?

    TEST is a .npz, .csv, .tsv, .jsonl or .parquet with one row per example: a column 'label' (name or index) and one column
    per class, prob_<class> or logit_<class>; or the columns 'confidence' and 'correct'. docs/reference/files.md says more.
    """
    source = click.get_current_context().get_parameter_source
    if calib is None and save_calibrator is not None:
        raise InputError("--save-calibrator needs --calib", remedy="give predictions on a development split")
    if calib is None and source("method") is ParameterSource.COMMANDLINE:
        raise InputError("--method needs --calib", remedy="give predictions on a development split")
    if save_calibrator is not None and save_calibrator.suffix not in (".json", ".npz"):
        raise InputError(f"{str(save_calibrator)!r} is neither .json nor .npz", remedy="give a name that ends in one of them")
    inputs = [test, *ood, *(path for path in (calib, other) if path is not None)]
    outputs = [path for path in (html, figure, save_calibrator) if path is not None]
    if html is not None:
        _need_jinja()
    if figure is not None:
        from distilcal.report.figures import check_figure_path

        check_figure_path(figure)
    from distilcal.evaluation import evaluate_model
    from distilcal.io.atomic import check_output, refuse_same_file
    from distilcal.io.predictions import read_predictions

    for path in outputs:
        check_output(path)
    refuse_same_file(inputs, outputs)
    if html is not None:
        check_page_name(html)

    def load(path: Path) -> Predictions:
        return read_predictions(path, unit=unit, name=path.stem, tolerance=tolerance, labelled=True)

    with share_bar("evaluating" if calib is None else "calibrating and evaluating", quiet=as_json) as on_progress:
        evaluation = evaluate_model(
            load(test),
            None if calib is None else load(calib),
            None if other is None else load(other),
            [load(path) for path in ood],
            on_progress=on_progress,
            **settings,
        )
    # Files first: a reader of standard output may go away.
    if html is not None:
        from distilcal.report.evaluations.page import write_page

        write_page(evaluation, html)
    if figure is not None:
        from distilcal.report.figures import reliability_figure, save_figure

        states = {"as given": evaluation.test}
        if evaluation.calibrated is not None:
            states["calibrated"] = evaluation.calibrated
        save_figure(reliability_figure(states), figure)
    if save_calibrator is not None and evaluation.calibrator is not None:
        evaluation.calibrator.save(save_calibrator)
    if as_json:
        from distilcal.report.evaluations.as_json import to_json

        echo_json(to_json(evaluation))
        return
    from distilcal.report.evaluations.terminal import show

    show(evaluation)
    if html is not None:
        echo(f"Wrote {html}: open it in a browser.")
    if figure is not None:
        echo(f"Wrote {figure}: the reliability diagram.")
    if save_calibrator is not None:
        echo(f"Wrote {save_calibrator}: apply it with distilcal.calibrate.load_calibrator.")


def _need_jinja() -> None:
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        raise MissingDependencyError("the report page needs jinja2", remedy="pip install 'distilcal[report]'")
