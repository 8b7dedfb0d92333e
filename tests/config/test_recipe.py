"""Recipes: every field once, every mistake named by its path."""

from importlib.resources import files

import pytest

from distilcal.config.loading import as_table, load_recipe, parse_recipe, to_toml
from distilcal.config.schema import Recipe, ordered_stages
from distilcal.errors import InputError

BASIC = """
name = "r"
[data]
train = "t.csv"
[stages.teacher]
model = { name = "bert", head = "new" }
terms = [{ loss = "focal", gamma = 2.0 }]
[stages.student]
model = { name = "small", layers = [0, 2] }
teacher = "teacher"
terms = [{ loss = "cross_entropy", weight = 0.1 }, { loss = "kd", weight = 0.9, temperature = 4 }]
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(BASIC)
    return file


def test_a_recipe_is_read_with_its_defaults(path):
    recipe = load_recipe(path)
    student = recipe.stages["student"]
    assert student.model.layers == (0, 2)
    assert student.train.epochs == 3
    assert student.terms[1].settings == {"temperature": 4}
    assert student.terms[1].weight == 0.9
    assert ordered_stages(recipe) == ["teacher", "student"]


def test_what_is_written_is_read_back(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
    assert parse_recipe(as_table(recipe)) == recipe


def test_set_changes_any_field(path):
    changes = ["stages.student.train.epochs=7", "data.train=other.csv", "stages.student.model.layers=[1]", "seed=5"]
    recipe = load_recipe(path, [*changes, "stages.student.train.schedule=cosine"])
    assert (recipe.stages["student"].train.epochs, recipe.data.train, recipe.seed) == (7, "other.csv", 5)
    assert recipe.stages["student"].model.layers == (1,)
    assert recipe.stages["student"].train.schedule == "cosine"
    assert load_recipe(path, ["stages.student.terms.0.weight=0.25"]).stages["student"].terms[0].weight == 0.25


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stages.student.train.epoch=7", "unknown key stages.student.train.epoch; did you mean epochs"),
        ("date.train=x", "unknown key date; did you mean data"),
        ("stages.student.terms.9.weight=1", "there is no entry '9' in a list of 2"),
        ("stages.student.terms.first.weight=1", "there is no entry 'first' in a list of 2"),
        ("stages.student.train.choose_among=[0, 2]", "stages.student.train.choose_among[0] = 0, expected a number above 0"),
        (
            "stages.student.train.epochs=2.5",
            "stages.student.train.epochs = 2.5, expected an integer; change it, or leave it out for the default, 3",
        ),
        ("stages.student.train.epochs=true", "stages.student.train.epochs = true, expected an integer"),
        ("stages.student.train.epochs='3'", "stages.student.train.epochs = '3', expected an integer"),
        ("stages.student.train.lr=true", "stages.student.train.lr = true, expected a number"),
        ("stages.student.train.lr=nan", "stages.student.train.lr = nan, expected a finite number"),
        ("stages.student.train.nesterov=1", "stages.student.train.nesterov = 1, expected true or false"),
        ("data.train=3", "data.train = 3, expected text in quotes"),
        ("data.ood=['a', 3]", "data.ood[1] = 3, expected text in quotes"),
        ("data=3", "data = 3, expected a table; write it as [data] with keys"),
        ("stages=3", "stages = 3, expected a table"),
        ("stages.student=3", "stages.student = 3, expected a table"),
        ("stages.student.terms.0=3", "stages.student.terms[0] = 3, expected a table"),
        ("stages.student.train.choose_among=[1, 9]", "choose_among contains 9, outside the epochs 1 to 3"),
        ("stages.student.model.mean=[1.0]", "expected at least 3 entries"),
        ("stages.student.train.epochs=0", "stages.student.train.epochs = 0, expected at least 1"),
        ("stages.student.train.schedule=cosin", "expected one of 'none', 'linear', 'cosine', 'steps'; did you mean 'cosine'?"),
        ("stages.student.train.schedule=steps", "needs milestones"),
        ("stages.student.model.layers=3", "stages.student.model.layers = 3, expected a list; write layers = [3]"),
        ("stages.student.train.accumulate=3", "cannot be split into 3 equal parts"),
        ("stages.student.teacher=nobody", "'nobody', which is not a stage; the stages are teacher, student"),
        ("stages.teacher.teacher=student", "in a cycle: teacher → student → teacher"),
        ("stages.student.teacher=", "stages.student: the term 'kd' needs a teacher"),
        ("stages.student.predictions=['x.npz']", "stages.student: both predictions and a model"),
        ("stages.student.model.name=", "stages.student: model needs either a name or start_from"),
        ("data.dev_fraction=-0.5", "data.dev_fraction = -0.5, expected a number above 0"),
        ("data.dev_fraction=0.9", "leave nothing to train on"),
        ("stages...x=1", "unknown key"),
        ("seed=-1", "seed = -1, expected at least 0"),
        ("stages.student.model.layers=[0,0]", "stages.student.model: layers contains 0 twice"),
        ("stages.student.model.max_length=0", "stages.student.model.max_length = 0, expected at least 4"),
        ("stages.student.train.momentum=-1", "stages.student.train.momentum = -1, expected at least 0"),
        ("data.train=", "data.train is empty"),
        ("name=a/b", "name = 'a/b', expected letters, digits, dashes"),
        ("nothing", "expected key=value"),
        ("name.x=1", "name is not a table"),
    ],
)
def test_mistakes_are_named_by_their_path(path, change, words):
    with pytest.raises(InputError) as caught:
        load_recipe(path, [change])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_recipe(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(InputError, match="not readable as TOML"):
        load_recipe(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="this is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(InputError, match="no stages"):
        Recipe()


EXAMPLES = sorted(f.name for f in files("distilcal").joinpath("config", "recipes").iterdir() if f.name.endswith(".toml"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_recipe_whose_losses_exist(name, tmp_path):
    from distilcal.views import build_term

    text = files("distilcal").joinpath("config", "recipes", name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    (tmp_path / name).write_text(text, encoding="utf-8")
    recipe = load_recipe(tmp_path / name)
    known = {"n_data": 9, "classes": 2, "labels": None, "features": 3, "teacher_features": 3}
    for stage in recipe.stages.values():
        for term in stage.terms:
            if term.loss != "crd":
                build_term(term.loss, term.weight, term.view, term.settings, known)


def test_a_stage_is_like_another_but_for_what_it_says(tmp_path):
    (tmp_path / "r.toml").write_text("""
[data]
train = "train.csv"
[stages.a]
model = { name = "bert", head = "new", max_length = 32 }
train = { epochs = 7, lr = 1e-3 }
terms = [{ loss = "cross_entropy", smoothing = 0.1 }]
[stages.b]
like = "a"
model = { layers = [0] }
train = { lr = 1e-4 }
[stages.c]
like = "b"
terms = [{ loss = "brier" }]
""")
    made = load_recipe(tmp_path / "r.toml", ["stages.a.train.epochs=2", "stages.b.train.batch=8"])
    a, b, c = (made.stages[name] for name in "abc")
    assert (b.model.name, b.model.max_length, b.model.layers) == ("bert", 32, (0,))
    assert (b.train.epochs, b.train.lr, b.train.batch) == (2, 1e-4, 8)
    assert b.terms == a.terms
    assert c.train == b.train
    assert [t.loss for t in c.terms] == ["brier"]
    assert "like" not in to_toml(made)
    with pytest.raises(InputError, match=r"like = '.' is not another stage"):
        load_recipe(tmp_path / "r.toml", ["stages.a.like='c'"])
