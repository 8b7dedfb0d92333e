"""The command ``distilcal cascade``: what a student should hand over to its teacher. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distilcal.cli.console import echo, echo_json
from distilcal.cli.options import ACCURACY, FILE, NumberRange
from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.predictions import Predictions
    from distilcal.selective import CascadeEvaluation

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # handed over, as shown in the table
SHARE = NumberRange(0, 1, min_open=True, max_open=True)


@click.command("cascade")
@click.argument("student", type=FILE)
@click.argument("teacher", type=FILE)
@click.option("--calib", type=FILE, nargs=2, required=True, metavar="STUDENT_DEV TEACHER_DEV",
              help="Predictions of both on a development split: temperatures and thresholds are chosen on these.")  # fmt: skip
@click.option(
    "--accuracy", type=ACCURACY, default=0.95, show_default=True, help="Accuracy of kept rows, and of the whole output."
)
@click.option("--max-loss", type=SHARE, default=0.005, show_default=True, help="Accuracy that may be lost to the teacher.")
@click.option("--confidence", type=SHARE, default=0.95, show_default=True, help="How sure to be of each promise.")
@click.option("--cost", metavar="student=A,teacher=B", help="Cost of each per row, in any unit, such as student=1,teacher=40.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--figure", type=FILE, help="Also write the curve as a figure for papers, .svg, .pdf or .png.")
def cascade_command(
    student: Path,
    teacher: Path,
    calib: tuple[Path, Path],
    accuracy: float,
    max_loss: float,
    confidence: float,
    cost: str | None,
    as_json: bool,
    figure: Path | None,
) -> None:
    """What should a student hand over to its teacher, what is gained, and what can be promised?

    STUDENT and TEACHER are predictions on the same test rows, matched by id, or by position where neither has ids.
    """
    costs = None if cost is None else parse_costs(cost)
    if figure is not None:
        from distilcal.io.atomic import check_output, refuse_same_file
        from distilcal.report.figures import cascade_figure, check_figure_path, save_figure

        check_figure_path(figure)
        check_output(figure)
        refuse_same_file([student, teacher, *calib], [figure])
    from distilcal.calibrate import fit_temperature
    from distilcal.evaluation import calibrate_splits, check_overlap
    from distilcal.io.predictions import read_predictions
    from distilcal.selective import evaluate_cascade

    def calibrated(dev: Path, test: Path) -> dict[str, Predictions]:
        splits = {
            "dev": read_predictions(dev, name=dev.stem, labelled=True),
            "test": read_predictions(test, name=test.stem, labelled=True),
        }
        temperature = fit_temperature(splits["dev"])
        check_overlap(splits["test"], splits["dev"].reorder_classes(splits["test"].classes))
        return calibrate_splits(splits, temperature)

    result = evaluate_cascade(
        calibrated(calib[0], student),
        calibrated(calib[1], teacher),
        accuracy=accuracy,
        max_loss=max_loss,
        confidence=confidence,
        costs=costs,
    )
    if figure is not None:  # first: a reader of standard output may go away
        save_figure(cascade_figure(result), figure)
    if as_json:
        echo_json(result.to_dict())
        return
    _show(result)
    if figure is not None:
        echo(f"Wrote {figure}: accuracy over the share that is handed over.")


def parse_costs(text: str) -> tuple[float, float]:
    """Read the costs of student and teacher from ``student=1,teacher=40``.

    Parameters
    ----------
    text : str
        What the user wrote.

    Returns
    -------
    (float, float)

    Raises
    ------
    InputError
        If one of the two is missing or is not a positive number.

    Examples
    --------
    >>> parse_costs("teacher=40, student=1")
    (1.0, 40.0)
    """
    from distilcal.selective import check_costs

    pairs = [part.strip().partition("=")[::2] for part in text.split(",")]
    parts = dict(pairs)
    try:
        costs = float(parts["student"]), float(parts["teacher"])
    except (KeyError, ValueError):
        costs = None
    if costs is None or len(pairs) != 2:
        raise InputError(f"--cost {text!r} does not name both costs", remedy="write --cost student=1,teacher=40")
    check_costs(costs)
    return costs


def _show(result: CascadeEvaluation) -> None:
    echo(result.sentence)
    echo("\nhanded over  accuracy  95% interval    to the teacher (points)     nll    ece    cost")
    pair = result.splits["test"].cascade
    for share in SHARES:
        point = pair.nearest(share)
        cost = "–" if pair.costs is None else f"{point.cost:.4g}"
        ends = f"{100 * point.difference_low:+.1f} to {100 * point.difference_high:+.1f}"
        echo(
            f"{point.handed_over:11.0%}  {point.accuracy:8.3f}  {point.accuracy_low:.3f}–{point.accuracy_high:.3f}     "
            f"{100 * point.difference:+5.1f} ({ends:>14})   {point.nll:6.3f}  {point.ece:5.3f}  {cost:>6}"
        )
    echo("\nChosen on dev, checked on test:")
    checks = result.splits["test"].checks
    for message, check in (
        (result.accepted.message, checks["accepted"]),
        (result.output.message, checks["output"]),
        (result.loss.message, checks["loss"]),
    ):
        echo(f"- {message}\n  {check.message}")
