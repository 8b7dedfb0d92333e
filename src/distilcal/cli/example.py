"""The command ``distilcal example``: recipes to start from."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files

import click

from distilcal.cli.console import echo
from distilcal.errors import InputError


@click.command("example")
@click.argument("name", required=False)
def example_command(name: str | None) -> None:
    """Print a recipe to start from: distilcal example distill > my.toml. Without NAME, list them."""
    folder = files("distilcal").joinpath("config", "recipes")
    recipes = {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}
    if name is None:
        for recipe in sorted(recipes):
            title = recipes[recipe].read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            echo(f"{recipe:<20} {title}")
        return
    if name not in recipes:
        similar = get_close_matches(name, recipes, n=3, cutoff=0.3) or sorted(recipes)
        raise InputError(f"there is no example {name!r}", remedy=f"did you mean {', '.join(similar)}?")
    echo(recipes[name].read_text(encoding="utf-8"), nl=False)
