"""The commands that train and use models: run, distill, predict, report, example, data. Heavy imports are inside."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distilcal.cli.console import counting_bar, is_main_process, let_threads_sleep, log_to_console, plain_warnings
from distilcal.errors import InputError

if TYPE_CHECKING:
    from distilcal.config.schema import Recipe

FOLDER = click.Path(path_type=Path)
STORE = "distilcal-store"
store_option = click.option("--store", type=FOLDER, envvar="DISTILCAL_STORE", default=STORE, show_default=True,
                            help="Where trained stages and cached outputs are kept.")  # fmt: skip
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, as stages.student.train.epochs=5."
)
dry_option = click.option("--dry-run", is_flag=True, help="Say what would be done and what is already in the store.")


@click.command("run")
@click.argument("recipe", type=FOLDER)
@click.option("--out", type=FOLDER, help="Folder of the run.  [default: runs/NAME]")
@click.option("--only", default="", metavar="A,B", help="Only these stages and those they need.")
@store_option
@set_option
@dry_option
def run_command(recipe: Path, out: Path | None, only: str, store: Path, changes: tuple[str, ...], dry_run: bool) -> None:
    """Carry out a recipe: train what is not in the store, measure every model, write a report.

    RECIPE is a TOML file; 'distilcal example' makes one. Killed runs go on where they stopped when started again.
    """
    let_threads_sleep()
    from distilcal.config.loading import load_recipe, only_stages

    found = load_recipe(recipe, changes)
    if only:
        found = only_stages(found, [name.strip() for name in only.split(",")])
    carry_out_recipe(found, out, store, dry_run)


@click.command("distill")
@click.option(
    "--train", required=True, help="Training data: .csv .tsv .jsonl .parquet, a folder, hub:NAME@SPLIT, benchmark:NAME."
)
@click.option("--teacher", required=True, help="Hub name or folder of a model, predictions of one (.npz .csv …), or a run.")
@click.option("--student", help="Hub name or folder.  [default: every second layer of the teacher]")
@click.option("--layers", help="Layers of the student to keep, as 0,2,4.")
@click.option("--dev", default="", help="Development data.  [default: a tenth of train]")
@click.option("--test", default="", help="Test data.  [default: a fifth of train]")
@click.option("--ood", multiple=True, help="Data from another domain; may be given more than once.")
@click.option("--text", default="", help="Column of texts.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--choices", default="", help="Columns of choices, as a,b,c, or one that holds lists; --text is then the prompt.")
@click.option("--label", default="label", show_default=True, help="Column of labels.")
@click.option("--id", "id_column", default="", help="Column of ids.  [default: id, or made from content]")
@click.option("--group", default="", help="Column of groups that are never split between train and test.")
@click.option("--teacher-labels", help="What the teacher's outputs stand for, in order, as neg,pos; if it only says LABEL_0, …")
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=5e-5, show_default=True)
@click.option("--max-length", type=click.IntRange(8), default=256, show_default=True, help="Tokens of a text.")
@click.option("--accuracy", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
              help="Accuracy wanted among the answers that are not handed over to a human.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--alone/--no-alone", default=True, show_default=True, help="Also train the student without its teacher, to compare."
)
@click.option("--out", type=FOLDER, help="Folder of the run.  [default: runs/distilled]")
@store_option
@set_option
@dry_option
def distill_command(out: Path | None, store: Path, changes: tuple[str, ...], dry_run: bool, **flags: Any) -> None:
    """Turn data and a teacher into a smaller student whose confidence can be trusted.

    A teacher that is trained for these classes is used as it stands; an encoder without a head is trained first, with MDCA
    beside cross-entropy. Its logits are divided by the temperature that suits dev. The student learns from labels and teacher.
    The recipe is written into the run's folder, to be changed and run again.
    """
    let_threads_sleep()
    from distilcal.pipeline.distill import DistillSettings, recipe_for_distillation

    if out is not None:
        flags["name"] = out.resolve().name
    recipe = recipe_for_distillation(DistillSettings(**flags), changes)
    carry_out_recipe(recipe, out, store, dry_run)


@click.command("predict")
@click.argument("run", type=FOLDER)
@click.argument("data")
@click.option("-o", "--output", type=FOLDER, required=True, help="A .csv: id, label, confidence, hand_over.")
@click.option("--stage", default="", help="Which model of the run.  [default: its student]")
@click.option("--text", default="", help="Column of texts, if other than in the run's own data.")
@click.option("--pair", default="", help="Column of second texts.")
@click.option("--id", "id_column", default="", help="Column of ids.")
def predict_command(run: Path, data: str, output: Path, stage: str, text: str, pair: str, id_column: str) -> None:
    """Label new data with a model of a run: label, calibrated confidence, and whether to hand over to a human."""
    let_threads_sleep()
    from distilcal.pipeline import predict_file

    with plain_warnings(), counting_bar("predicting") as on_progress:
        written = predict_file(
            run, data, output, stage=stage, text=text, pair=pair, id_column=id_column, on_progress=on_progress
        )
    if written.threshold is None:
        click.echo(f"Wrote {output}: {written.rows:,} rows, all to hand over: no confidence reached the accuracy on dev.")
        return
    share = written.handed_over / written.rows
    click.echo(
        f"Wrote {output}: {written.rows:,} rows, {written.handed_over:,} of them ({share:.0%}) "
        f"below {written.threshold:.3f}, to hand over."
    )


@click.command("report")
@click.argument("runs", type=FOLDER, nargs=-1, required=True)
@click.option("--html", type=FOLDER, help="Also write a self-contained page.")
def report_command(runs: tuple[Path, ...], html: Path | None) -> None:
    """Compare the models of one or more runs: accuracy, calibration, size and speed, in and out of domain."""
    from distilcal.io.atomic import check_output
    from distilcal.report.runs import show_runs, write_runs_page
    from distilcal.runs import read_run, summarise_runs

    if html is not None:
        check_output(html)
    summary = summarise_runs([read_run(folder) for folder in runs])
    if html is not None:
        write_runs_page(summary, html)
    show_runs(summary)
    if html is not None:
        click.echo(f"Wrote {html}: open it in a browser.")


@click.command("example")
@click.argument("name", required=False)
def example_command(name: str | None) -> None:
    """Print a recipe to start from: distilcal example distill > my.toml. Without NAME, list them."""
    found = {
        f.name.removesuffix(".toml"): f
        for f in files("distilcal").joinpath("config", "recipes").iterdir()
        if f.name.endswith(".toml")
        for f in files("distilcal").joinpath("config", "recipes").iterdir()
        if f.name.endswith(".toml")
    }
    if name is None:
        for key in sorted(found):
            first = found[key].read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            click.echo(f"{key:<20} {first}")
        return
    if name not in found:
        near = get_close_matches(name, found, n=3, cutoff=0.3) or sorted(found)
        raise InputError(f"there is no example {name!r}", remedy=f"did you mean {', '.join(near)}?")
    click.echo(found[name].read_text(encoding="utf-8"), nl=False)


@click.group("data")
def data_command() -> None:
    """The benchmarks of the papers: what there is, and what is in it."""


@data_command.command("list")
def list_command() -> None:
    """All benchmarks, and whether they are here (under $DISTILCAL_DATA)."""
    from rich.console import Console
    from rich.table import Table

    from distilcal.data.catalogue import BENCHMARKS

    root = os.environ.get("DISTILCAL_DATA")
    table = Table(title="benchmarks", title_justify="left")
    for title in ("name", "task", "kind", "classes", "here"):
        table.add_column(title, justify="right" if title == "classes" else "left")
    for name, b in BENCHMARKS.items():
        here = "yes" if root and (Path(root) / b.folder).is_dir() else "no"
        table.add_row(name, b.task, b.kind, str(len(b.classes)), here)
    Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(table)
    if not root:
        click.echo("Set DISTILCAL_DATA to the folder that holds them; docs/benchmarks.md describes its layout.")


@data_command.command("show")
@click.argument("name")
def show_command(name: str) -> None:
    """Counts, classes, overlaps between splits, a few examples, licence and source of a benchmark."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from distilcal.data.catalogue import summarise_benchmark

    found = summarise_benchmark(name)
    b = found.benchmark
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    console.print(Text(f"{name}: {b.task} ({b.kind}, {len(b.classes)} classes)", style="bold"))
    table = Table()
    table.add_column("class")
    for split, size in found.sizes.items():
        table.add_column(f"{split} ({size:,})", justify="right")
    for c in b.classes:
        table.add_row(Text(c), *(f"{found.counts[split].get(c, 0):,}" for split in found.sizes))
    console.print(table)
    lines = [f"{first} and {second} share {rows:,} examples" for (first, second), rows in found.overlaps.items() if rows]
    lines += [f"{split} has {count:,} groups" for split, count in found.groups.items()]
    lines += ["with the raters' votes as soft labels"] if found.soft_labels else []
    for title, text in (("paper", b.paper), ("licence", b.licence), ("hub", b.hub), ("usual other domains", ", ".join(b.ood))):
        lines += [f"{title}: {text}"] if text else []
    for line in [*lines, f"note: {b.note}" if b.note else "", *(f"{c}: {text[:200]}" for c, text in found.examples)]:
        if line:
            console.print(Text(line))


# ---- parts -------------------------------------------------------------------------------------------------------------


def carry_out_recipe(recipe: Recipe, out: Path | None, store: Path, dry_run: bool) -> None:
    folder = out if out is not None else Path("runs") / recipe.name
    with plain_warnings():
        from distilcal.pipeline import plan, run_recipe

        if dry_run:
            _show_plan(plan(recipe, store), folder)
            return
        with log_to_console() as console:
            run_recipe(recipe, folder, store, on_progress=console.show_progress)
        if not is_main_process():
            return
        from distilcal.report.runs import show_runs
        from distilcal.runs import read_run, summarise_runs

        show_runs(summarise_runs([read_run(folder)]))
    click.echo(f"Wrote {folder}: report.html to look at, a model in every stage's folder.")
    click.echo(f"Next: distilcal predict {folder} new.csv -o labelled.csv")


def _show_plan(made: Any, folder: Path) -> None:
    counts = ", ".join(f"{data.name} {len(data):,}" for data in made.splits)
    click.echo(f"data: {counts}; {len(made.splits.train.classes)} classes")
    from distilcal.selective import counted

    for o in made.overlaps:
        click.echo(f"note: {counted(o.rows, 'example')} of {o.second} ({o.share:.1%}) also in {o.first}")
    for stage in made.stages:
        what = ", ".join(map(str, stage.settings.terms))
        if stage.settings.predictions:
            doing = f"known by its predictions ({', '.join(stage.settings.predictions)})"
        elif not what:
            doing = "used as it stands"
        else:
            doing = "in the store" if stage.done else f"would train {stage.settings.train.epochs} epochs"
        taught = f", taught by {stage.settings.teacher}" if stage.settings.teacher else ""
        click.echo(f"{stage.name}: {doing}{taught}{f': {what}' if what else ''} [{stage.key}]")
    click.echo(f"results would go to {folder}")


COMMANDS = (run_command, distill_command, predict_command, report_command, example_command, data_command)
