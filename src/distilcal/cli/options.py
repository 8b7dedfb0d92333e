"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from distilcal.api import STORE
from distilcal.errors import InputError


class NumberRange(click.FloatRange):
    """A range of numbers; NaN, which is not outside of any range, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as a number, or fail with the name of its option."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path)
ACCURACY = NumberRange(0, 1, min_open=True)
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


def check_page_name(path: Path) -> None:
    """Raise an InputError unless a page to write ends in .html: another ending is that of a file which it would replace."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{str(path)!r} is not an .html", remedy="give a name that ends in .html")
