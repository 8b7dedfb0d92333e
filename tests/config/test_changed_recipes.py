"""The package's recipes, changed at random, are read and written back alike, or are one line of an error."""

import math
import random
from copy import deepcopy
from pathlib import Path

import pytest
from pydantic import BaseModel

import distilcal.config.schema as schema
from distilcal.config.loading import parse_recipe, parse_toml, to_toml
from distilcal.errors import InputError

# fmt: off
ODD_VALUES = (
    0, -1, 2, 0.5, 1e308, -1e-9, math.nan, math.inf, 2**70, True, None, "", "x", "../x", "a\nb", "\x1b[31m", "teacher", "mixup",
    [], {}, [[]], [1, 2], ["a", "a"], [{}], [None], {"a": 1}, {"": ""}, "auto", "1", "é" * 300,
)
# fmt: on
KEYS = sorted(
    {
        key
        for model in vars(schema).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for key in model.model_fields
    }
)
RECIPES = [
    parse_toml(path.read_text(), path.name) for path in sorted((Path(schema.__file__).parent / "recipes").glob("*.toml"))
]


def places(value, path=()):
    """The paths of a table and of everything in it."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in entries for place in places(entry, (*path, key)))]


def at(value, path):
    for key in path:
        value = value[key]
    return value


def change(table, rng):
    """Replace a value, take one away, or add a key."""
    *parents, last = rng.choice(places(table)[1:])
    owner = at(table, parents)
    odd = deepcopy(rng.choice([*ODD_VALUES, at(table, rng.choice(places(table)))]))
    kind = rng.choice(["replace", "replace", "add", "remove"])
    if kind == "remove":
        del owner[last]
    elif kind == "add" and isinstance(owner[last], dict):
        owner[last][rng.choice(KEYS)] = odd
    else:
        owner[last] = odd


def read_or_refused(table):
    """The recipe, or the message why it is none."""
    try:
        return parse_recipe(table)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_recipe_is_read_and_written_alike_or_refused_in_one_line(seed):
    rng = random.Random(seed)
    read = 0
    for _ in range(60):
        table = deepcopy(rng.choice(RECIPES))
        for _ in range(rng.choice([1, 1, 2])):
            change(table, rng)
        recipe = read_or_refused(table)
        if isinstance(recipe, str):
            assert recipe.isprintable(), table
        else:
            assert parse_recipe(parse_toml(to_toml(recipe), "written")) == recipe
            read += 1
    assert read


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"against": "alone", "kind": 1}, "unknown key endpoints.kind"),
        ({"against": "alone", "metrics": [1]}, "endpoints.metrics"),
        ({"against": 1}, "endpoints.against = 1, expected text"),
    ],
)
def test_a_table_that_may_be_left_out_is_explained_like_any_other(table, message):
    with pytest.raises(InputError, match=message):
        parse_recipe({"data": {"train": "t.csv"}, "stages": {}, "endpoints": table})
