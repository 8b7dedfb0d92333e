"""Distillation as a classifier of scikit-learn, on vectors and on texts."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import make_blobs
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from tiny import save_model, sentences

from distilcal.errors import InputError
from distilcal.integrations.sklearn import EXPECTED_FAILED_CHECKS, DistilledClassifier
from distilcal.integrations.sklearn.distilled import as_texts

X, NUMBERS = make_blobs(150, centers=3, random_state=0, cluster_std=1.2)
Y = np.array(["dog", "cat", "ant"])[NUMBERS]
QUICK = {"epochs": 20, "batch": 8, "lr": 0.1}
WORDS, SIGNS = (np.array(column, dtype=object) for column in sentences(120, seed=0))


class Teacher(LogisticRegression):
    """Remembers how many rows it was fitted to."""

    def fit(self, X, y):
        self.rows_ = len(X)
        return super().fit(X, y)


@pytest.fixture(scope="module")
def fitted():
    return DistilledClassifier(Teacher(), **QUICK).fit(X, Y)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("encoder") / "bert", head=False, num_hidden_layers=1)


CHECKED = DistilledClassifier(LogisticRegression(), **QUICK)
CHECKS = [
    pytest.param(check, id=check.func.__name__, marks=pytest.mark.slow)
    for _, check in estimator_checks_generator(CHECKED)
    if check.func.__name__ not in EXPECTED_FAILED_CHECKS
]


@pytest.mark.filterwarnings("ignore:X has only .* examples")
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize("check", CHECKS)
def test_it_is_an_estimator_of_scikit_learn(check):
    check(clone(CHECKED))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED_FAILED_CHECKS)
def test_checks_that_do_not_apply_fail_for_the_reason_that_is_named(name):
    checks = [check for _, check in estimator_checks_generator(CHECKED) if check.func.__name__ == name]
    assert checks
    for check in checks:
        with pytest.raises(Exception, match=r"X has 1\d examples|") as caught:
            check(clone(CHECKED))
        reasons = [str(caught.value), str(caught.value.__cause__)]
        assert any("give at least 20" in reason for reason in reasons), reasons


# ---- vectors -----------------------------------------------------------------------------------------------------------


def test_vectors_are_classified_with_the_labels_of_y(fitted):
    assert fitted.classes_.tolist() == ["ant", "cat", "dog"]
    assert fitted.n_features_in_ == 2
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert (fitted.predict(X) == fitted.classes_[probs.argmax(axis=1)]).all()
    assert fitted.score(X, Y) > 0.8
    assert fitted.teacher_.rows_ <= 135  # what is held out is not shown to the teacher


def test_a_fitted_classifier_is_pickled_and_cloned(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    copy = clone(fitted)
    assert copy.get_params()["epochs"] == 20
    assert not hasattr(copy, "classes_")
    assert copy.set_params(teacher__C=0.5, epochs=2).get_params()["teacher__C"] == 0.5


def test_numbers_as_labels_keep_their_type_and_a_function_teaches_in_their_order():
    centres = np.array([X[k == NUMBERS].mean(axis=0) for k in range(3)])

    def teacher(vectors):
        distances = np.square(vectors[:, None] - centres).sum(axis=2)
        return np.exp(-distances) / np.exp(-distances).sum(axis=1, keepdims=True)

    model = DistilledClassifier(teacher, **QUICK).fit(pd.DataFrame(X, columns=["a", "b"]), NUMBERS * 10)
    assert model.classes_.tolist() == [0, 10, 20]
    assert model.predict(pd.DataFrame(X, columns=["a", "b"])).dtype == NUMBERS.dtype
    assert model.score(pd.DataFrame(X, columns=["a", "b"]), NUMBERS * 10) > 0.8
    assert model.feature_names_in_.tolist() == ["a", "b"]


def test_a_fitted_teacher_stays_as_it_is():
    teacher = Teacher().fit(X[:60], Y[:60])
    assert not hasattr(DistilledClassifier(teacher, epochs=1).fit(X, Y), "teacher_")
    frozen = clone(DistilledClassifier(FrozenEstimator(teacher), epochs=1)).fit(X, Y)
    assert not hasattr(frozen, "teacher_")


def test_the_student_outlives_its_run(fitted):
    assert fitted.student_.source is None


def test_a_run_stays_where_it_is_wanted(tmp_path):
    out, store = tmp_path / "run", tmp_path / "store"
    model = DistilledClassifier(LogisticRegression(), "mlp", epochs=2, out=out, store=store, changes=["accuracy=0.9"])
    model.set_params(changes=[*model.changes, "stages.student.model.hidden=[4]"]).fit(X, Y)
    assert (out / "report.html").exists()
    assert store.is_dir()
    assert model.predict_proba(X[:2]).shape == (2, 3)


def test_few_rows_are_not_held_out_and_very_few_are_refused():
    with pytest.warns(UserWarning, match="X has only 30 examples: none is held out"):
        DistilledClassifier(Teacher(), epochs=1).fit(X[:30], Y[:30])
    with pytest.raises(InputError, match="X has 19 examples; give at least 20"):
        DistilledClassifier(Teacher(), epochs=1).fit(X[:19], Y[:19])


def test_one_class_is_refused():
    with pytest.raises(InputError, match="y has one class only, dog"):
        DistilledClassifier(Teacher()).fit(X, ["dog"] * 150)


@pytest.mark.slow
def test_it_works_in_cross_validation_searches_pipelines_and_displays():
    import matplotlib as mpl

    mpl.use("Agg")
    model = DistilledClassifier(LogisticRegression(), **QUICK)
    assert cross_val_score(model, X, Y, cv=2).min() > 0.6
    pipeline = make_pipeline(StandardScaler(), model)
    grid = {"distilledclassifier__epochs": [1, 20], "distilledclassifier__teacher__C": [1.0]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    assert search.best_params_["distilledclassifier__epochs"] == 20
    binary = NUMBERS < 2
    display = CalibrationDisplay.from_estimator(clone(pipeline).fit(X[binary], Y[binary]), X[binary], Y[binary])
    assert len(display.prob_true)


# ---- texts -------------------------------------------------------------------------------------------------------------


def text_teacher():
    return make_pipeline(TfidfVectorizer(), LogisticRegression())


@pytest.mark.slow
def test_texts_of_every_form_give_the_same_student(encoder, tmp_path):
    settings = {"student": str(encoder), "epochs": 15, "batch": 8, "lr": 0.01, "store": tmp_path / "store"}
    forms = [WORDS.tolist(), WORDS, pd.Series(WORDS), pd.DataFrame({"text": WORDS}), WORDS.astype(str)[:, None]]
    found = [DistilledClassifier(text_teacher(), **settings).fit(form, SIGNS).predict_proba(form) for form in forms]
    for probs in found[1:]:
        np.testing.assert_array_equal(probs, found[0])
    model = DistilledClassifier(text_teacher(), **settings).fit(WORDS, SIGNS)
    assert model.score(WORDS, SIGNS) > 0.7
    assert not hasattr(model, "n_features_in_")
    assert model.student_.predict(["a great film"], accuracy=0.6)[0].confidence > 0.5
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(WORDS), model.predict_proba(WORDS))
    assert len(cross_val_score(model, WORDS, SIGNS, cv=2)) == 2


@pytest.mark.slow
def test_a_folder_of_a_model_teaches(tmp_path):
    teacher = save_model(tmp_path / "teacher", labels=("neg", "pos"), num_hidden_layers=2)
    model = DistilledClassifier(str(teacher), epochs=1, lr=0.01).fit(WORDS, SIGNS)
    assert model.predict_proba(WORDS[:5]).shape == (5, 2)
    unnamed = save_model(tmp_path / "unnamed", num_hidden_layers=2)
    named = {"teacher_labels": ["pos", "neg"], "layers": [1], "epochs": 1}
    assert DistilledClassifier(str(unnamed), **named).fit(WORDS, SIGNS).classes_.tolist() == ["neg", "pos"]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ("a film", "X is one text; put it in brackets"),
        (["a film", None], r"X, row 1 \(counting from 0\): None is not a text"),
        (np.array([["a", "b"], ["c", "d"]]), "X has 2 columns of texts"),
        (pd.DataFrame({"first": ["a"], "second": ["b"]}), "X has 2 columns of texts"),
    ],
)
def test_texts_that_are_none_are_refused(examples, message):
    with pytest.raises(InputError, match=message):
        DistilledClassifier(text_teacher()).fit(examples, ["a", "b"])


def test_what_is_not_text_is_left_to_scikit_learn():
    assert as_texts([]) is None
    assert as_texts(3) is None
    assert as_texts(pd.DataFrame({"a": [1.0], "b": [2.0]})) is None


@pytest.mark.parametrize("missing", [float("nan"), None, pd.NA])
@pytest.mark.parametrize("column", [list, pd.Series, lambda labels: np.array(labels, dtype=object)])
def test_a_missing_label_is_refused(missing, column):
    with pytest.raises(InputError, match="a label is missing"):
        DistilledClassifier(Teacher(), **QUICK).fit(X, column([missing, *["a", "b"] * 75][: len(X)]))


@pytest.mark.parametrize("column", [list, pd.Series, lambda labels: np.array(labels, dtype=object)])
def test_texts_and_numbers_as_labels_are_refused(column):
    with pytest.raises(InputError, match="label 'b' is not of the same type as 1; give y texts only or numbers only"):
        DistilledClassifier(Teacher(), **QUICK).fit(X, column([1, "b"] * 75))


@pytest.mark.parametrize("settings", [{"dev_fraction": "a"}, {"dev_fraction": -1}, {"dev_fraction": 1.5}, {"seed": -1}])
def test_settings_of_the_held_out_rows_are_named(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} = "):
        DistilledClassifier(Teacher(), **QUICK, **settings).fit(X, Y)
