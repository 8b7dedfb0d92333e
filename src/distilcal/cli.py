"""The command line. Each command is one function that calls one function of the library; heavy imports are inside."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal import __version__
from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.assess import Assessment

FILE = click.Path(path_type=Path)
METHODS = ("temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram")


class Commands(click.Group):
    """Prints an InputError as one line and exits with code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.echo("error: " + " ".join(str(error).split()), err=True)
            ctx.exit(2)
        except MemoryError:
            click.echo("error: there is not enough memory for this input; take a sample of rows", err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="distilcal")
def main() -> None:
    """Classifiers that know when they are wrong: measure how far a confidence can be trusted, and mend it."""


@main.command("eval")
@click.argument("test", type=FILE)
@click.option("--calib", type=FILE, help="Predictions on a development split: calibrate and choose the threshold on these.")
@click.option("--compare", "other", type=FILE, help="Another model's predictions on the same rows, matched by id.")
@click.option("--ood", type=FILE, multiple=True, help="Predictions on shifted data; may be given more than once.")
@click.option("--method", type=click.Choice(METHODS), default="temperature", show_default=True, help="How to calibrate.")
@click.option("--bins", type=click.IntRange(1), default=15, show_default=True, help="Bins of the binned errors.")
@click.option(
    "--closed", type=click.Choice(["right", "left"]), default="right", show_default=True, help="Closed side of a bin."
)
@click.option("--accuracy", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
              help="Accuracy wanted above the threshold.")  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
              help="How sure to be of that accuracy.")  # fmt: skip
@click.option("--intervals", type=click.IntRange(2), help="Bootstrap resamples.  [default: 1000, fewer for very large sets]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the resamples.")
@click.option("--probs", "unit", flag_value="probs", help="The class columns without prefix hold probabilities.")
@click.option("--logits", "unit", flag_value="logits", help="The class columns without prefix hold logits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema in docs/eval-json.md) and nothing else.")
@click.option("--html", type=FILE, help="Also write a self-contained report page.")
@click.option("--save-calibrator", type=FILE, help="Also write the fitted calibrator (.json or .npz); needs --calib.")
def evaluate_command(
    test: Path,
    calib: Path | None,
    other: Path | None,
    ood: tuple[Path, ...],
    html: Path | None,
    save_calibrator: Path | None,
    as_json: bool,
    unit: Any,
    **settings: Any,
) -> None:
    """Can the confidence of these predictions be trusted, how sure are we, and what would fix it?

    TEST is a .npz, .csv, .tsv, .jsonl or .parquet with one row per example: a column 'label' (name or index) and one column
    per class, prob_<class> or logit_<class>; or the columns 'confidence' and 'correct'. docs/files.md says more.
    """
    if save_calibrator is not None and calib is None:
        raise InputError("--save-calibrator needs --calib", remedy="give predictions on a development split")
    if save_calibrator is not None and save_calibrator.suffix not in (".json", ".npz"):
        raise InputError(f"{str(save_calibrator)!r} is neither .json nor .npz", remedy="give a name that ends in one of them")
    for path in (html, save_calibrator):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"the folder {str(path.parent)!r} does not exist", remedy="make it first")
    if html is not None:
        _need_jinja()
    from distilcal.assess import assess
    from distilcal.predictions import Predictions

    def load(path: Path | None) -> Predictions | None:
        return None if path is None else Predictions.load(path, unit=unit, name=path.stem)

    first = Predictions.load(test, unit=unit, name=test.stem)
    shifted = [Predictions.load(path, unit=unit, name=path.stem) for path in ood]
    with _progress("measuring", quiet=as_json) as progress:
        assessment = assess(first, load(calib), load(other), shifted, progress=progress, **settings)
    if as_json:
        from distilcal.report.as_json import to_json

        click.echo(json.dumps(to_json(assessment), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        from distilcal.report.terminal import show

        show(assessment)
    if html is not None:
        from distilcal.report.page import write_page

        write_page(assessment, html)
    if save_calibrator is not None and assessment.calibrator is not None:
        assessment.calibrator.save(save_calibrator)
    if not as_json:
        _say_written(assessment, html, save_calibrator)


def _say_written(assessment: Assessment, html: Path | None, save_calibrator: Path | None) -> None:
    if html is not None:
        click.echo(f"Wrote {html}: open it in a browser.")
    if save_calibrator is not None:
        click.echo(f"Wrote {save_calibrator}: apply it with distilcal.calibrate.load_calibrator.")


def _need_jinja() -> None:
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        raise InputError("the report page needs jinja2", remedy="pip install 'distilcal[report]'")


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[Callable[[float], None] | None]:
    """A progress bar on a terminal's standard error, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
