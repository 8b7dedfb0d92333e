"""A study file of the wrong shape is one clear error, wherever in the file it is."""

import copy
import tomllib
from pathlib import Path

import pytest

from distilcal.errors import InputError
from distilcal.study.loading import load_study, parse_study

TINY = Path(__file__).parents[1] / "pins" / "tiny_study.toml"
WITH_NETWORKS = """
name = "pairs"
[networks.big]
model = { name = "mlp", hidden = [16] }
[networks.little]
model = { name = "linear" }
[places]
home = [{ task = "near", set = "home" }]
[tasks.near]
pair = "big/little"
data = { train = "vectors.npz" }
sets = { home = "test" }
networks = { little = { title = "small" } }
stages = { student = { train = { epochs = 2 } } }
here = { home = "{student.title}" }
[stages.student]
network = "{student}"
train = { epochs = 1 }
terms = [{ loss = "cross_entropy" }]
[methods]
Student = { stage = "student" }
[metrics]
accuracy = {}
[[tables]]
name = "one"
rows = [{ method = "Student" }]
columns = [{ places = "home", metric = "accuracy" }]
[scales.small]
tasks = { near = { data = { limit = 10 } } }
"""
ODD = (3, "x", [], [1], {"a": 1})


def paths(value, path=()):
    """Every place in nested tables and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from paths(part, (*path, key))


def with_value(table, path, value):
    changed = part = copy.deepcopy(table)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return changed


@pytest.mark.parametrize("text", [TINY.read_text(encoding="utf-8"), WITH_NETWORKS], ids=["tiny", "networks"])
def test_any_value_in_any_place_is_accepted_or_refused_in_one_line(text):
    table = {"name": "hostile", **tomllib.loads(text)}
    parse_study(table, "small")
    messages = []
    for path in paths(table):
        for value in ODD:
            try:
                parse_study(with_value(table, path, value), "small")
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("text", ["v = " + "[" * 3_000, f"seeds = [{'9' * 5000}]"])
def test_what_no_toml_parser_reads_is_one_line(tmp_path, text):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(InputError, match=r"s\.toml: "):
        load_study(str(tmp_path / "s.toml"))


def test_the_mark_that_some_editors_put_first_is_no_part_of_a_study(tmp_path):
    (tmp_path / "s.toml").write_text(WITH_NETWORKS, encoding="utf-8-sig")
    assert load_study(str(tmp_path / "s.toml")).name == "pairs"
