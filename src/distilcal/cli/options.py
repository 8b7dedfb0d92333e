"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from distilcal.api import STORE

FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path)
ACCURACY = click.FloatRange(0, 1, min_open=True)
store_option = click.option("--store", type=FOLDER, envvar="DISTILCAL_STORE", default=STORE, show_default=True,
                            help="Where trained stages and cached outputs are kept.")  # fmt: skip
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, as stages.student.train.epochs=5."
)
dry_option = click.option("--dry-run", is_flag=True, help="Show what would be done and what is already in the store.")
track_option = click.option("--track", default="", metavar="[tensorboard|wandb|mlflow]",
                            help="Log losses and metrics to this tracker; its files go to track/ in the run.")  # fmt: skip
keep_formulas_option = click.option("--keep-formulas", is_flag=True,
                                    help="In a .csv, write texts that a spreadsheet would run as they are.")  # fmt: skip
