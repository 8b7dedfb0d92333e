"""Settings from Python: every rule that needs no data holds wherever settings are built."""

from itertools import pairwise

import pytest
from pydantic import ValidationError

from distilcal.config.base import Settings, parse_settings
from distilcal.config.loading import parse_recipe, with_values
from distilcal.config.schema import (
    DataSettings,
    ModelSettings,
    Recipe,
    StageSettings,
    TermSettings,
    TrainSettings,
    ViewSettings,
    ordered_stages,
)
from distilcal.errors import InputError
from distilcal.study.schema import ClaimSettings, TableSettings

CE = TermSettings(loss="cross_entropy")
MIXED = TermSettings(loss="cross_entropy", view="mixed")
LINEAR = ModelSettings(name="linear")
DATA = DataSettings(train="t.csv")
MAP = StageSettings(model=LINEAR, terms=(CE,), record=True)


def mixing(**view):
    return StageSettings(model=LINEAR, terms=(CE, MIXED), views={"mixed": ViewSettings(**view)}, map="map", teacher="map")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DataSettings(corrupt=("fog", "fog")), "corrupt contains 'fog' twice; name each entry once"),
        (lambda: DataSettings(dev_fraction=0.5, test_fraction=0.5), "leave nothing to train on; lower one of them"),
        (lambda: ModelSettings(pairs="apart"), "pairs = 'apart' is for frozen encoders; add frozen = true"),
        (lambda: ModelSettings(dropout=1.0), "dropout = 1.0, expected a number below 1"),
        (lambda: ModelSettings(std=(0.1, 0.1, 0.0)), "std[2] = 0.0, expected a number above 0"),
        (lambda: ModelSettings(hidden=(8, 0)), "hidden[1] = 0, expected a number above 0"),
        (lambda: TrainSettings(choose="last", choose_among=(1,)), "choose_among has no effect with choose = 'last'"),
        (lambda: TrainSettings(schedule="steps"), "schedule = 'steps' needs milestones"),
        (lambda: TrainSettings(optimizer="lion"), "optimizer = 'lion', expected one of 'adamw', 'sgd'; choose one of them"),
        (lambda: TermSettings(loss="kd", settings=3), "settings = 3, expected a table"),
        (lambda: ViewSettings(kind="mixup", holes=2), "holes has no effect with kind = 'mixup' and pairs = 'random'"),
        (lambda: ViewSettings(kind="manifold", teacher="mixed"), "cannot see what is mixed inside the student"),
        (lambda: ViewSettings(pairs="similar", variant="author_code"), "add candidates = 'batch'"),
        (lambda: ViewSettings(kind="manifold", layers=(1,), pairs="halves"), "a hidden layer mixes examples of one batch"),
        (lambda: ViewSettings(pairs="regions", regions=("easy",)), "regions = ('easy',), expected at least 2 entries"),
        (lambda: StageSettings(), "model needs either a name or start_from"),
        (lambda: StageSettings(model=LINEAR, predictions=("p.npz",)), "both predictions and a model"),
        (lambda: StageSettings(model=LINEAR, terms=(TermSettings(loss="rkd"),)), "the term 'rkd' needs a teacher"),
        (lambda: StageSettings(model=LINEAR, terms=(MIXED,), record=True), "no term on the plain view to record"),
        (lambda: StageSettings(model=LINEAR, terms=(CE,), views={"plain": ViewSettings()}), "choose another name"),
        (lambda: StageSettings(model=LINEAR, terms=(CE,), views={"m": ViewSettings()}), "views.m is used by no term"),
        (
            lambda: StageSettings(model=LINEAR, terms=(MIXED,), views={"mixed": ViewSettings(pairs="halves")}),
            "views.mixed: pairs = 'halves' needs a map",
        ),
        (lambda: Recipe(data=DATA), "no stages; add [stages.student]"),
        (lambda: Recipe(stages={"a": MAP}), "data.train is empty"),
        (lambda: Recipe(data=DATA, stages={"report.html": MAP}), "stages.report.html: a run saves a file under this name"),
        (lambda: Recipe(data=DATA, stages={"a b": MAP}), "invalid name 'a b' in stages; use letters, digits"),
        (
            lambda: Recipe(data=DATA, stages={"map": MAP.replace(record=False), "s": mixing()}),
            "stages.s uses the map of 'map', which records none; add record = true to stages.map",
        ),
        (
            lambda: Recipe(data=DATA, stages={"map": MAP, "s": mixing(pairs="similar", saliency="features")}),
            "stages.s.views.mixed: the map 'map' holds no saliency of features; add record_features = true to stages.map",
        ),
        (
            lambda: Recipe(
                data=DATA,
                stages={
                    "map": MAP,
                    "files": StageSettings(predictions=("p.npz",)),
                    "s": mixing(teacher="mixed").replace(teacher="files"),
                },
            ),
            "the teacher 'files' is known by its predictions and cannot see mixed examples; use teacher = 'clean'",
        ),
    ],
)
def test_a_broken_rule_is_an_input_error(build, words):
    with pytest.raises(InputError) as caught:
        build()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, ValidationError)


def test_settings_are_frozen_and_hashable():
    with pytest.raises(ValidationError):
        DATA.train = "other.csv"
    assert hash(DATA) == hash(DataSettings(train="t.csv"))
    assert {DATA: 1}[DataSettings(train="t.csv")] == 1
    assert DATA.replace(limit=3) != DATA


def test_a_copy_is_checked_unless_it_is_meant_not_to_be():
    assert TrainSettings().replace(epochs=5).epochs == 5
    with pytest.raises(InputError, match="epochs = 0"):
        TrainSettings().replace(epochs=0)
    with pytest.raises(InputError, match="unknown key epoch"):
        TrainSettings().replace(epoch=1)
    assert TrainSettings().model_copy(update={"epochs": 0}).epochs == 0


def test_an_integer_is_a_number_and_nothing_else_is_converted():
    made = TrainSettings(lr=1, milestones=[80, 120])
    assert isinstance(made.lr, float)
    assert made.milestones == (80, 120)
    for wrong in (
        {"epochs": True},
        {"epochs": "3"},
        {"epochs": 3.0},
        {"lr": "1"},
        {"lr": True},
        {"nesterov": 1},
        {"clip": None},
    ):
        with pytest.raises(InputError, match="expected"):
            TrainSettings(**wrong)


def test_further_keys_of_a_term_are_settings_of_its_loss():
    term = parse_settings(TermSettings, {"loss": "kd", "temperature": 2, "settings": {"t_squared": False}})
    assert term.settings == {"temperature": 2, "t_squared": False}
    assert str(term) == "1·kd"
    assert str(TermSettings(loss="kd", weight=0.25, view="mixup")) == "0.25·kd (mixup)"


def test_a_table_of_the_wrong_kind_is_named_by_its_path():
    for table, path, words in [
        (3, "model", "model = 3, expected a table"),
        ([], "", "expected a table, got []"),
        ({"dropout": "much"}, "model", "model.dropout = 'much', expected a number; change it"),
        ({"nmae": "m"}, "model", "unknown key model.nmae; did you mean name or mean"),
        ({"qqqqq": "m"}, "model", "unknown key model.qqqqq; keys: name, start_from"),
    ]:
        with pytest.raises(InputError) as caught:
            parse_settings(ModelSettings, table, path)
        assert words in str(caught.value)


def test_errors_inside_lists_and_tables_have_their_whole_path():
    for model, table, words in [
        (StageSettings, {"views": {"m": {"regions": ["easy", "hrad"]}}}, "views.m.regions[1] = 'hrad', expected one of 'easy'"),
        (StageSettings, {"views": {"m": {"alhpa": 1.0}}}, "unknown key views.m.alhpa; did you mean alpha"),
        (TableSettings, {"rows": [{}, {"mehtod": "a"}]}, "unknown key rows[1].mehtod; did you mean method"),
        (ClaimSettings, {"pairs": [["a", 1]]}, "pairs[0][1] = 1, expected text in quotes; change it"),
    ]:
        with pytest.raises(InputError) as caught:
            parse_settings(model, table)
        assert words in str(caught.value)


def test_errors_of_pydantic_that_have_no_words_of_ours_keep_its_own():
    class Odd(Settings):
        value: bytes = b""

    with pytest.raises(InputError, match="value = 3: Input should be a valid bytes"):
        Odd(value=3)


def test_stages_come_after_those_they_depend_on_and_else_in_their_order():
    def stage(**keys):
        return {"model": {"name": "m"}, "terms": [{"loss": "cross_entropy"}], **keys}

    stages = {"d": stage(teacher="c"), "a": stage(), "c": stage(teacher="a"), "b": stage(), "e": stage(map="./a")}
    recipe = parse_recipe({"data": {"train": "t"}, "stages": stages})
    assert ordered_stages(recipe) == ["a", "c", "d", "b", "e"]
    with pytest.raises(InputError) as caught:
        with_values(recipe, [("stages.a.teacher", "d")])
    cycle = str(caught.value).split("cycle: ")[1].split(";")[0].split(" → ")
    assert cycle[0] == cycle[-1]
    teachers = {"d": "c", "c": "a", "a": "d"}
    assert all(teachers[name] == needed for name, needed in pairwise(cycle))


def test_a_stage_like_something_that_is_no_table():
    with pytest.raises(InputError, match=r"stages.b = 3, expected a table|stages.a = 3, expected a table"):
        parse_recipe({"data": {"train": "t"}, "stages": {"a": 3, "b": {"like": "a"}}})
