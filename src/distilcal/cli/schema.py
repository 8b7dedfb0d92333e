"""The command that prints the JSON Schema of recipes and studies."""

from __future__ import annotations

import click

from distilcal.cli.console import echo_json


@click.command("schema")
@click.argument("kind", type=click.Choice(["recipe", "study"]))
def schema_command(kind: str) -> None:
    """Print the JSON Schema of a recipe or a study, with which an editor completes and checks the TOML file.

    \b
    distilcal schema recipe > recipe.schema.json
    and as the first line of the recipe, for Taplo or VS Code's Even Better TOML:
    #:schema ./recipe.schema.json
    """
    if kind == "recipe":
        from distilcal.config.json_schema import recipe_json_schema

        schema = recipe_json_schema()
    else:
        from distilcal.study.json_schema import study_json_schema

        schema = study_json_schema()
    echo_json(schema)
