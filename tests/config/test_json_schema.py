"""JSON Schema for editors: every example recipe and every paper's study is valid, misspelt ones are not."""

import copy
import json
import tomllib
from importlib.resources import files

import pytest
from shell import command

jsonschema = pytest.importorskip("jsonschema")

RECIPES = sorted(files("distilcal").joinpath("config", "recipes").iterdir(), key=lambda file: file.name)
PAPERS = sorted(files("distilcal").joinpath("study", "papers").iterdir(), key=lambda file: file.name)
FILES = [("recipe", file) for file in RECIPES] + [("study", file) for file in PAPERS]
CASES = [pytest.param(kind, file, id=file.name) for kind, file in FILES if file.name.endswith(".toml")]


@pytest.fixture(scope="module")
def validators():
    found = {}
    for kind in ("recipe", "study"):
        schema = json.loads(command("schema", kind).stdout)
        jsonschema.Draft202012Validator.check_schema(schema)
        found[kind] = jsonschema.Draft202012Validator(schema)
    return found


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_files_of_the_package_are_valid(kind, file, validators):
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    validators[kind].validate(table)
    stage = next(iter(table["stages"]))
    for change in ({"epohcs": 3}, {"train": {"epochs": "3"}}, {"train": {"epochs": 0}}, {"calibrate": "temprature"}):
        wrong = copy.deepcopy(table)
        wrong["stages"][stage] |= change
        assert not validators[kind].is_valid(wrong), change


def test_keys_that_are_free_or_only_in_files_are_valid(validators):
    stages = {"a": {"model": {"name": "m"}}, "b": {"like": "a", "terms": [{"loss": "kd", "temperature": 2.0}]}}
    validators["recipe"].validate({"data": {"train": "t.csv"}, "stages": stages})
    validators["study"].validate({"metrics": {"ece": {"bins": 10}}, "scales": {"small": {"seeds": [1], "stages": stages}}})
    assert not validators["study"].is_valid({"scales": {"small": {"tables": []}}})
    assert not validators["study"].is_valid({"changes": {}})


def test_what_a_study_lists_once_is_valid(validators):
    study = {
        "each": {"network": {"bert": {"lr": 0.1}}, "loss": ["kd"]},
        "pairs": {"cifar": ["A/B"]},
        "networks": {"A": {"title": "a", "model": {"name": "m"}}},
        "tasks": {"{cifar}": {"pair": "{cifar}", "stages": {"s": {"terms": {"0": {"weight": 2.0}}}}}},
        "stages": {"{network}": {"network": "{student}", "train": {"lr": "{network.lr}"}}},
        "places": {"all": [{"task": "A/B"}]},
        "tables": [{"rows": "all", "columns": ["all", {"places": "all", "scaled": True}]}],
    }
    validators["study"].validate(study)
    for wrong in ({"pairs": {"cifar": ["A"]}}, {"stages": {"a": {"train": {"lr": "fast"}}}}, {"places": "all"}):
        assert not validators["study"].is_valid({**study, **wrong}), wrong


def test_every_setting_is_described(validators):
    for validator in validators.values():
        definitions = [validator.schema, *validator.schema["$defs"].values()]
        for definition in definitions:
            for name, entry in definition.get("properties", {}).items():
                assert entry.get("description"), (definition["title"], name)
