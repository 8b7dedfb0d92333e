"""The command ``distilcal predict``: labels for new data with any student."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.cascade import parse_costs
from distilcal.cli.console import counting_bar, echo, let_threads_sleep, plain_warnings
from distilcal.cli.options import ACCURACY, FILE, NumberRange, keep_formulas_option

if TYPE_CHECKING:
    from distilcal.inference import PredictedFile


@click.command("predict")
@click.argument("model")
@click.argument("data")
@click.option("-o", "--output", type=FILE, required=True,
              help="A .csv: id, label, confidence, hand_over, and the columns of DATA.")  # fmt: skip
@click.option("--stage", default="", help="Which model of a run.  [default: its student]")
@click.option("--text", default="", help="Column of texts, if other than in the run's own data.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--choices", default="", help="Columns of choices, as a,b,c, or one that holds lists; --text is then the prompt.")
@click.option("--id", "id_column", default="", help="Column of ids.")
@click.option("--accuracy", type=ACCURACY,
              help="Accuracy required of answers that are not handed over.  [default: that of the model's run]")  # fmt: skip
@click.option("--threshold", "confidence", type=NumberRange(0, 1),
              help="Lowest confidence of these answers, in place of an accuracy.")  # fmt: skip
@click.option("--max-loss", type=NumberRange(0, 1, min_open=True, max_open=True),
              help="In place of both: the accuracy that may be lost to the teacher; .005 is half a point.")  # fmt: skip
@click.option("--defer-to", metavar="TEACHER",
              help="Who answers instead of a human: a model as MODEL, RUN/STAGE, or the URL of a distilcal serve.")  # fmt: skip
@click.option("--cost", metavar="student=A,teacher=B",
              help="Cost of each per row, in any unit, such as student=1,teacher=40.  [default: their time]")  # fmt: skip
@click.option("--probs", is_flag=True, help="Write the probability of every class too, as prob_CLASS.")
@click.option("--no-columns", is_flag=True, help="Leave out the columns of DATA.")
@click.option("--size", type=click.IntRange(1), help="Width and height to scale pictures to.  [default: that of the run]")
@keep_formulas_option
def predict_command(
    model: str,
    data: str,
    output: Path,
    stage: str,
    accuracy: float | None,
    confidence: float | None,
    max_loss: float | None,
    defer_to: str | None,
    cost: str | None,
    probs: bool,
    no_columns: bool,
    keep_formulas: bool,
    size: int | None,
    **columns: str,
) -> None:
    """Label new data: label, calibrated confidence, and whether to hand over to a human.

    MODEL is the folder of a run, a folder that save_pretrained wrote, or an .onnx, which needs no torch. DATA is a .csv .tsv
    .jsonl .parquet, a folder of pictures, an .npz or hub:NAME@SPLIT; labels are not read. Columns of DATA that are called like
    ours become input_NAME. With --defer-to, a teacher answers what would be handed over, and the column answered_by tells who
    answered.
    """
    let_threads_sleep()
    costs = None if cost is None else parse_costs(cost)
    from distilcal.api import load
    from distilcal.inference.files import check_labelled_file, predict_file

    check_labelled_file(data, output)
    with plain_warnings(), counting_bar("predicting") as on_progress:
        student = load(model, stage)
        written = predict_file(
            student,
            data,
            output,
            **_reading(Path(model), size, **columns),
            accuracy=accuracy,
            confidence=confidence,
            max_loss=max_loss,
            defer_to=defer_to,
            costs=costs,
            probs=probs,
            keep_columns=not no_columns,
            escape_formulas=not keep_formulas,
            on_progress=on_progress,
        )
    summary = _promise(written) if defer_to is None else _shares(written, defer_to, costs)
    echo(f"Wrote {output}: {written.rows:,} rows, {summary}")


def _reading(model: Path, size: int | None, text: str, pair: str, choices: str, id_column: str) -> dict[str, Any]:
    """How to read the data: as the user asks, else as the run did."""
    from distilcal.data import Columns

    ending_columns = tuple(name.strip() for name in choices.split(",")) if choices else ()
    run = model.parent if (model.parent / "metrics.json").exists() else model  # MODEL may be RUN/STAGE
    if not model.is_dir() or not (run / "recipe.toml").exists():
        return {"columns": Columns(text=text, pair=pair, choices=ending_columns, id=id_column), "size": size}
    from distilcal.config.loading import load_recipe

    settings = load_recipe(run / "recipe.toml").data
    columns = Columns(
        text=text or settings.text,
        pair=pair or settings.pair,
        choices=ending_columns or settings.choices,
        id=id_column,
    )
    return {"columns": columns, "size": size or settings.size or None}


def _promise(written: PredictedFile) -> str:
    """What is to be handed over, in words."""
    if written.acceptance is None:
        return "hand_over empty: the model has no dev predictions, so no accuracy can be promised."
    if written.acceptance.confidence is None:
        return "all to hand over: no confidence reached the accuracy on dev."
    share = written.handed_over / written.rows
    return f"{written.handed_over:,} of them ({share:.0%}) below {written.acceptance.confidence:.3f}, to hand over."


def _shares(written: PredictedFile, teacher: str, costs: tuple[float, float] | None) -> str:
    """Who answered how many, in words."""
    by_student = written.rows - written.by_teacher - written.handed_over
    parts = [f"{by_student:,} answered by the student", f"{written.by_teacher:,} by {teacher}"]
    if written.handed_over:
        parts.append(f"{written.handed_over:,} by nobody, to hand over")
    summary = ", ".join(parts)
    assert written.acceptance is not None
    if written.acceptance.confidence is None:
        summary += "; no confidence of the student could promise it on dev"
    if written.cost is not None and costs is not None:
        summary += f"; {written.cost * costs[1]:.4g} per row, {written.cost:.0%} of the cost of the teacher alone"
    elif written.cost is not None:
        summary += f"; about {written.cost:.0%} of the time of the teacher alone"
    return f"{summary}."
