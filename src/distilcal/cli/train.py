"""The commands that train: run and distill."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.console import echo, is_main_process, let_threads_sleep, log_to_console, plain_warnings
from distilcal.cli.options import ACCURACY, FOLDER, NumberRange, dry_option, set_option, store_option, track_option

if TYPE_CHECKING:
    from distilcal.config.schema import Recipe

DEFAULT_OUT = Path("runs") / "distilled"


@click.command("run")
@click.argument("recipe", type=FOLDER)
@click.option("--out", type=FOLDER, help="Folder of the run.  [default: runs/NAME]")
@click.option("--only", default="", metavar="A,B", help="Only these stages and those they need.")
@store_option
@set_option
@dry_option
@track_option
def run_command(
    recipe: Path, out: Path | None, only: str, store: Path, changes: tuple[str, ...], dry_run: bool, track: str
) -> None:
    """Run a recipe: train what is not in the store, evaluate every model, write a report.

    RECIPE is a TOML file; 'distilcal example' prints one. An interrupted run resumes when it is started again.
    """
    let_threads_sleep()
    from distilcal.config.loading import load_recipe, only_stages

    loaded = load_recipe(recipe, changes)
    if only:
        loaded = only_stages(loaded, [name.strip() for name in only.split(",")])
    run_and_show(loaded, out, store, dry_run, track)


@click.command("distill")
@click.option(
    "--train", required=True, help="Training data: .csv .tsv .jsonl .parquet, a folder, hub:NAME@SPLIT, benchmark:NAME."
)
@click.option(
    "--teacher",
    required=True,
    help="Hub name or folder of a model, a network for images (resnet20), predictions (.npz .csv …), or a run.",
)
@click.option(
    "--student", help="Hub name, folder, or a network for images (resnet8).  [default: every second layer of the teacher]"
)
@click.option("--layers", help="Layers of the student to keep, as 0,2,4.")
@click.option("--dev", default="", help="Development data.  [default: a tenth of train]")
@click.option("--test", default="", help="Test data.  [default: a fifth of train]")
@click.option("--unlabelled", multiple=True, help="Further training data without labels; may be given more than once.")
@click.option("--ood", multiple=True, help="Data from another domain; may be given more than once.")
@click.option("--classes", help="Classes in order, as neg,pos.  [default: as found in train]")
@click.option("--text", default="", help="Column of texts.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--choices", default="", help="Columns of choices, as a,b,c, or one that holds lists; --text is then the prompt.")
@click.option("--label", default="label", show_default=True, help="Column of labels.")
@click.option("--id", "id_column", default="", help="Column of ids.  [default: id, or made from content]")
@click.option("--group", default="", help="Column of groups that are never split between train and test.")
@click.option(
    "--teacher-labels", help="What the teacher's outputs stand for, in order, as neg,pos; if it calls them LABEL_0, …"
)
@click.option("--epochs", type=click.IntRange(1), help="Passes over the data.  [default: 3, or more for 300 steps]")
@click.option("--batch", type=click.IntRange(1), help="Examples in a batch.  [default: 16 below 2,000 examples, else 32]")
@click.option("--lr", type=NumberRange(0, min_open=True),
              help="Learning rate.  [default: 5e-5; networks for images 1e-3, linear and mlp 0.01]")  # fmt: skip
@click.option("--labelled-share", type=NumberRange(0, 1, min_open=True),
              help="Share of labelled examples in the student's batches.  [default: as in the data]")  # fmt: skip
@click.option("--max-length", type=click.IntRange(8), default=256, show_default=True, help="Tokens of a text.")
@click.option("--accuracy", type=ACCURACY, default=0.95, show_default=True,
              help="Accuracy required of the answers that are not handed over to a human.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--alone/--no-alone", default=True, show_default=True, help="Also train the student without its teacher, to compare."
)
@click.option("--budget", metavar="TIME", help="A time, as 30m or 1h30m: try several students, choose the best on dev.")
@click.option("--out", type=FOLDER, help="Folder of the run.  [default: runs/distilled]")
@store_option
@set_option
@dry_option
@track_option
def distill_command(out: Path | None, store: Path, changes: tuple[str, ...], dry_run: bool, **flags: Any) -> None:
    """Turn data and a teacher into a smaller student whose confidence can be trusted.

    A teacher that is trained for these classes is used as it is; an encoder without a head is trained first, with MDCA
    beside cross-entropy. Its logits are divided by its temperature on dev. The student learns from labels and teacher.
    The recipe is written into the run's folder, to be changed and run again.
    """
    let_threads_sleep()
    from distilcal.api import distill

    flags["unlabelled"] = [Path(source) for source in flags["unlabelled"]]  # a list of str would be texts
    with plain_warnings():
        if dry_run:
            echo(distill(**flags, out=out, store=store, changes=changes, dry_run=True))
            echo(f"results would go to {out or DEFAULT_OUT}")
            return
        with log_to_console() as console:
            result = distill(**flags, out=out, store=store, changes=changes, progress=console.show_progress)
    show_run(result.folder)
    if flags["budget"] is not None:
        show_choice(result.folder)


def show_choice(folder: Path) -> None:
    """Print what was chosen within a budget, and where all that was tried is shown."""
    from distilcal.io.atomic import read_json
    from distilcal.report.frontier import PAGE

    for sentence in read_json(folder / "budget.json")["reasons"]:
        echo(sentence)
    echo(f"All that was tried: {folder / PAGE}, and budget.json beside it.")


def run_and_show(recipe: Recipe, out: Path | None, store: Path, dry_run: bool, track: str = "") -> None:
    """Run a recipe and print its results; with ``dry_run`` print what would be done."""
    folder = out if out is not None else Path("runs") / recipe.name
    with plain_warnings():
        from distilcal.pipeline import plan, run_recipe
        from distilcal.pipeline.preflight import check_folders
        from distilcal.pipeline.tracking import check_tracker, track_run

        check_folders(folder, store)
        if track:
            check_tracker(track)
        if dry_run:
            echo(plan(recipe, store))
            echo(f"results would go to {folder}")
            return
        with log_to_console() as console, track_run(track, recipe, folder) as on_epoch:
            run_recipe(recipe, folder, store, on_progress=console.show_progress, on_epoch=on_epoch)
    show_run(folder)


def show_run(folder: Path) -> None:
    """Print the results of a finished run, and what to do next."""
    if not is_main_process():
        return
    from distilcal.report.runs.terminal import show_runs
    from distilcal.runs import read_run, summarise_runs

    with plain_warnings():
        show_runs(summarise_runs([read_run(folder)]))
    echo(f"Wrote {folder}: report.html to look at, a model in every stage's folder.")
    echo(f"Next: distilcal predict {folder} new.csv -o labelled.csv")
