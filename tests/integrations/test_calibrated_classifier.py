"""Our calibrators around classifiers of scikit-learn."""

import sys

import numpy as np
import pytest
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from distilcal import Predictions
from distilcal.calibrate import FITS
from distilcal.errors import InputError, MissingDependencyError
from distilcal.integrations.sklearn import CalibratedClassifier

ALL, Y = make_classification(900, n_classes=3, n_informative=6, flip_y=0.1, random_state=0)
NAMES = np.array(["dog", "cat", "ant"])[Y]
TRAIN, DEV, TEST = slice(0, 300), slice(300, 600), slice(600, 900)


@pytest.fixture(scope="module")
def bayes():
    return GaussianNB().fit(ALL[TRAIN], NAMES[TRAIN])


@parametrize_with_checks([CalibratedClassifier(LogisticRegression(), cv=3)])
def test_it_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([CalibratedClassifier(LogisticRegression(), method=m, cv=3) for m in FITS if m != "temperature"])
def test_every_method_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", FITS)
def test_a_fitted_classifier_is_calibrated_as_its_predictions(bayes, method):
    calibrated = CalibratedClassifier(bayes, method=method).fit(ALL[DEV], NAMES[DEV])
    assert calibrated.classes_.tolist() == ["ant", "cat", "dog"]
    assert calibrated.n_features_in_ == ALL.shape[1]
    classes = tuple(bayes.classes_)
    expected = FITS[method](Predictions.from_probs(bayes.predict_proba(ALL[DEV]), NAMES[DEV], classes=classes))
    test = Predictions.from_probs(bayes.predict_proba(ALL[TEST]), NAMES[TEST], classes=classes)
    np.testing.assert_allclose(calibrated.predict_proba(ALL[TEST]), expected(test).probs, atol=1e-5)
    predicted = calibrated.predict(ALL[TEST])
    assert (predicted == calibrated.classes_[expected(test).probs.argmax(axis=1)]).all()
    assert calibrated.score(ALL[TEST], NAMES[TEST]) == (predicted == NAMES[TEST]).mean()


@pytest.mark.parametrize("estimator", [LinearSVC(), RidgeClassifier(), SVC()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_a_decision_function_are_logits(estimator, classes):
    rows = classes > Y
    X, y = ALL[rows], NAMES[rows]
    estimator.fit(X[:200], y[:200])
    calibrated = CalibratedClassifier(estimator).fit(X[200:400], y[200:400])
    probs = calibrated.predict_proba(X[400:])
    assert probs.shape[1] == classes
    assert (calibrated.predict(X[400:]) == estimator.predict(X[400:])).mean() > 0.95
    assert log_loss(y[400:], probs) < np.log(classes)


def test_probabilities_of_zero_are_calibrated_too():
    forest = RandomForestClassifier(20, random_state=0).fit(ALL[TRAIN], NAMES[TRAIN])
    assert (forest.predict_proba(ALL[DEV]) == 0).any()
    calibrated = CalibratedClassifier(forest).fit(ALL[DEV], NAMES[DEV])
    assert calibrated.calibrator_.fit.converged
    assert log_loss(NAMES[TEST], calibrated.predict_proba(ALL[TEST])) < log_loss(NAMES[TEST], forest.predict_proba(ALL[TEST]))


def test_cross_validation_fits_the_classifier_too():
    calibrated = CalibratedClassifier(GaussianNB(), cv=4).fit(ALL[:600], NAMES[:600])
    alone = GaussianNB().fit(ALL[:600], NAMES[:600])
    assert (calibrated.predict(ALL[TEST]) == alone.predict(ALL[TEST])).all()
    assert calibrated.calibrator_.fit.rows == 600
    assert log_loss(NAMES[TEST], calibrated.predict_proba(ALL[TEST])) < log_loss(NAMES[TEST], alone.predict_proba(ALL[TEST]))


def test_it_works_in_searches_pipelines_and_displays(bayes):
    import matplotlib as mpl

    mpl.use("Agg")
    scores = cross_val_score(CalibratedClassifier(FrozenEstimator(bayes)), ALL[DEV], NAMES[DEV], scoring="neg_log_loss", cv=3)
    assert len(scores) == 3
    pipeline = make_pipeline(StandardScaler(), CalibratedClassifier(GaussianNB(), cv=3))
    grid = {"calibratedclassifier__method": ["temperature", "vector"], "calibratedclassifier__estimator__var_smoothing": [1e-9]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=3).fit(ALL[:300], NAMES[:300])
    assert search.best_params_["calibratedclassifier__method"] in ("temperature", "vector")
    binary = Y < 2
    fitted = CalibratedClassifier(GaussianNB(), cv=3).fit(ALL[binary], Y[binary])
    display = CalibrationDisplay.from_estimator(fitted, ALL[binary], Y[binary])
    assert len(display.prob_true)


def test_dev_may_lack_a_class(bayes):
    rows = NAMES[DEV] != "cat"
    assert CalibratedClassifier(bayes).fit(ALL[DEV][rows], NAMES[DEV][rows]).predict_proba(ALL[TEST]).shape == (300, 3)


def test_what_does_not_fit_is_refused(bayes):
    with pytest.raises(InputError, match="label 'bee' is not among the classes of the estimator: 'ant', 'cat', 'dog'"):
        CalibratedClassifier(bayes).fit(ALL[:2], ["ant", "bee"])
    with pytest.raises(InputError, match="there is no method 'temprature'; did you mean temperature"):
        CalibratedClassifier(bayes, method="temprature").fit(ALL[:2], ["ant", "cat"])
    with pytest.raises(InputError, match="this GaussianNB is not fitted.*or give cv=5"):
        CalibratedClassifier(GaussianNB()).fit(ALL[:2], ["ant", "cat"])
    with pytest.raises(InputError, match="Ridge has neither predict_proba nor decision_function"):
        from sklearn.linear_model import Ridge

        CalibratedClassifier(Ridge()).fit(ALL[:2], [0, 1])
    svc = SVC(decision_function_shape="ovo").fit(*make_classification(200, n_classes=4, n_informative=6, random_state=0))
    with pytest.raises(InputError, match="decision_function has 6 columns for 4 classes"):
        CalibratedClassifier(svc).fit(ALL[:2], [0, 1])
    one = GaussianNB().fit(ALL[:9], [0] * 9)
    with pytest.raises(InputError, match="one class only"):
        CalibratedClassifier(one).fit(ALL[:9], [0] * 9)


def test_a_missing_scikit_learn_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("distilcal.integrations.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'distilcal\[sklearn\]'"):
        import distilcal.integrations.sklearn  # noqa: F401
