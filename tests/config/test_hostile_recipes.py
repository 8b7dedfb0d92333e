"""Recipes with absurd, endless or nested values are one line of an error, never a traceback."""

import math
from copy import deepcopy

import pytest

from distilcal.config.loading import apply_change, load_recipe, parse_recipe, to_toml
from distilcal.config.schema import ordered_stages
from distilcal.errors import InputError

TRAINED = {"model": {"name": "linear"}, "terms": [{"loss": "cross_entropy"}]}


def recipe(stages=None, **more):
    return {"data": {"train": "t.csv"}, "stages": stages or {"student": TRAINED}, **more}


def with_change(path, value):
    table = recipe({"student": deepcopy(TRAINED)})
    place = table
    *parents, last = path.split(".")
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    place[last] = value
    return table


@pytest.mark.parametrize(
    "path",
    [
        "accuracy",
        "data.dev_fraction",
        "stages.student.train.lr",
        "stages.student.train.gamma",
        "stages.student.train.clip",
        "stages.student.train.weight_decay",
        "stages.student.train.warmup",
        "stages.student.train.momentum",
        "stages.student.model.dropout",
        "stages.student.terms.0.weight",
        "stages.student.terms.0.temperature",
        "stages.student.terms.0.smoothing",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(path, value):
    with pytest.raises(InputError, match="expected a finite number") as error:
        parse_recipe(with_change(path, value))
    assert path.split(".")[-1] in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("accuracy", 0.0, "accuracy = 0.0, expected a number above 0"),
        ("accuracy", 1.5, "accuracy = 1.5, expected at most 1"),
        ("accuracy", "0.9", "accuracy = '0.9', expected a number"),
        ("data.source", "disk", "data.source = 'disk', expected one of 'auto', 'folder', 'hub'"),
        ("data.source", 3, "data.source = 3, expected one of"),
        ("stages.student.teacher_input", "x" * 5000, "x…, expected one of"),
        ("seed", 2**40, "expected at most 4,294,967,295"),
        ("seed", 10**400, "seed = an integer of more than 30 digits"),
        ("data.size", 10**6, "expected at most 4,096"),
        ("stages.student.train.gamma", -0.1, "expected a number above 0"),
        ("stages.student.train.epochs", 10**9, "epochs = 1000000000, expected at most 100,000"),
        ("stages.student.train.batch", 10**9, "expected at most 1,000,000"),
        ("stages.student.train.min_steps", 10**12, "expected at most 100,000,000"),
        ("stages.student.train.lr", 10**400, "stages.student.train.lr"),
        ("stages.student.model.max_length", 10**9, "expected at most 1,000,000"),
        ("stages.student.model.hidden", [10**9], "hidden[0] = 1000000000, expected at most 1,000,000"),
        ("stages.student.model.hidden", [8] * 200, "expected at most 100 entries"),
        ("stages.student.terms.0.weight", -1.0, "weight = -1.0, expected at least 0"),
        ("stages.student.terms.0.weight", 0, "every term has weight 0"),
        ("stages.student.terms.0.negatives", 10**9, "expected at most 1,000,000"),
        ("stages.student.terms.0.gamma", [1.0], "expected a number, text, true or false"),
        ("stages.student.terms.0.gamma", {"a": {"b": 1}}, "expected a number, text, true or false"),
        ("name", "x" * 101, "expected at most 100 characters"),
        ("name", "nul.txt", "cannot be the name of a folder on every system"),
        ("name", "a/b", "expected letters, digits, dashes, dots and underscores"),
        ("name", "a\n", "expected letters, digits, dashes, dots and underscores"),
    ],
)
def test_absurd_values_are_refused(path, value, words):
    with pytest.raises(InputError) as error:
        parse_recipe(with_change(path, value))
    assert words in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["a" * 300, "é", "..", "a/b", "a\\b", "a\n", "a\0b", "", "-x", "CON", "aux.1", "x."])
def test_names_that_no_folder_can_have_are_refused(name):
    with pytest.raises(InputError) as error:
        parse_recipe(recipe({name: TRAINED}))
    assert "stages" in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("name", ["data", "Track", "metrics.json", "sweep.json"])
def test_names_of_files_of_a_run_are_reserved(name):
    with pytest.raises(InputError, match="a run saves a file under this name"):
        parse_recipe(recipe({name: TRAINED}))


def test_names_that_differ_in_capitals_are_one_folder_on_some_systems():
    with pytest.raises(InputError, match="are one folder where capitals do not matter"):
        parse_recipe(recipe({"Student": TRAINED, "student": TRAINED}))


def chain(count, key):
    stages = {"s0": dict(TRAINED)}
    for number in range(1, count):
        before = f"s{number - 1}"
        if key == "like":
            stages[f"s{number}"] = {"like": before}
        elif key == "start_from":
            stages[f"s{number}"] = {**TRAINED, "model": {"start_from": before}}
        else:
            stages[f"s{number}"] = {**TRAINED, "teacher": before}
    return stages


@pytest.mark.parametrize("key", ["like", "teacher", "start_from"])
def test_a_chain_of_two_thousand_stages(key):
    stages = chain(2000, key)
    parsed = parse_recipe(recipe(dict(reversed(stages.items()))))
    assert len(ordered_stages(parsed)) == 2000
    assert parsed.stages["s1999"].terms[0].loss == "cross_entropy"
    assert "s1999" in to_toml(parsed)


@pytest.mark.parametrize("key", ["like", "teacher", "start_from"])
def test_a_circle_of_two_thousand_stages(key):
    stages = chain(2000, key)
    if key == "like":
        stages["s0"] = {"like": "s1999"}
    elif key == "teacher":
        stages["s0"]["teacher"] = "s1999"
    else:
        stages["s0"]["model"] = {"start_from": "s1999"}
    with pytest.raises(InputError, match="is not another stage|in a cycle") as error:
        parse_recipe(recipe(stages))
    assert len(str(error.value)) < 1000


def test_what_is_like_no_table_is_refused():
    with pytest.raises(InputError, match=r"stages.b = 3, expected a table"):
        parse_recipe(recipe({"b": {"like": "a"}, "a": 3}))


@pytest.mark.parametrize("text", ["v = " + "[" * 3_000, "v = " + "{a=" * 3_000, "a" + ".a" * 3_000 + " = 1"])
def test_deep_nesting_is_one_line(tmp_path, text):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError):
        load_recipe(tmp_path / "r.toml")


def test_deep_nesting_in_a_change_is_one_line(tmp_path):
    (tmp_path / "r.toml").write_text('[data]\ntrain = "t.csv"\n[stages.s]\nmodel = { name = "linear" }\n')
    for change in ("stages.s.train.lr=" + "[" * 3_000, "stages.s" + ".a" * 3_000 + "=1"):
        with pytest.raises(InputError):
            load_recipe(tmp_path / "r.toml", [change])


def test_a_change_of_nothing_is_refused():
    with pytest.raises(InputError, match="expected key=value"):
        apply_change({}, "=1")


PLAIN = '[data]\ntrain = "t.csv"\nood = ["o.csv"]\n[stages.s]\nmodel = { name = "linear" }\n'


def test_the_mark_that_some_editors_put_first_is_no_part_of_a_recipe(tmp_path):
    (tmp_path / "r.toml").write_text(PLAIN, encoding="utf-8-sig")
    assert load_recipe(tmp_path / "r.toml").data.train == "t.csv"


def test_numbers_of_thousands_of_digits_are_one_line(tmp_path):
    (tmp_path / "r.toml").write_text(f"{PLAIN}train = {{ epochs = {'9' * 5000} }}\n")
    with pytest.raises(InputError, match=r"r\.toml: not readable as TOML"):
        load_recipe(tmp_path / "r.toml")
    (tmp_path / "r.toml").write_text(PLAIN)
    for change, said in ((f"stages.s.train.epochs={'9' * 5000}", "expected an integer"), ("data.ood.²=x", "no entry '²'")):
        with pytest.raises(InputError, match=said):
            load_recipe(tmp_path / "r.toml", [change])


def test_long_lists_are_compared_in_a_moment():
    with pytest.raises(InputError, match="layers contains 7 twice"):
        parse_recipe(recipe({"s": {"model": {"name": "linear", "layers": [*range(100_000), 7]}}}))
