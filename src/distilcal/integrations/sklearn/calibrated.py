"""Our calibrators around any classifier of scikit-learn."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils import assert_all_finite, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from distilcal.calibrate import FITS
from distilcal.errors import InputError, list_names
from distilcal.predictions import FloatArray, Predictions

FLOOR = 1e-6  # of probabilities whose logits are calibrated: no temperature would change a probability of exactly 0
READS_LOGITS = ("temperature", "vector", "matrix", "dirichlet")


class CalibratedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated by one of our methods.

    Parameters
    ----------
    estimator : classifier
        With ``predict_proba`` or ``decision_function``. Without ``cv`` it is fitted already.
    method : {"temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram"}, default "temperature"
        How to calibrate.
    cv : int or splitter, optional
        None: the estimator stays as it is, and `fit` calibrates it on other data than it was fitted on. Otherwise `fit`
        calibrates on the predictions of a cross-validation with copies of the estimator, and fits one copy on all rows.

    Attributes
    ----------
    classes_ : array, shape (K,)
        The classes, in the order of the columns of `predict_proba`.
    estimator_ : classifier
        The fitted classifier.
    calibrator_ : Calibrator
        The fitted calibrator, with a report of its fit.

    Notes
    -----
    Forests and neighbours give probabilities of exactly 0, which have no logit: below 1e-6 they count as that for temperature,
    vector, matrix and dirichlet. Isotonic and histogram take them as they are.

    ``sklearn.base.clone``, and thus every search and cross-validation, forgets a fit. Wrap a fitted estimator in
    ``sklearn.frozen.FrozenEstimator`` there, or give ``cv``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = make_classification(600, random_state=0)
    >>> model = GaussianNB().fit(X[:300], y[:300])
    >>> calibrated = CalibratedClassifier(model).fit(X[300:], y[300:])
    >>> calibrated.calibrator_.value > 1  # naive Bayes is overconfident
    True
    >>> calibrated.predict_proba(X[:5]).shape
    (5, 2)
    """

    def __init__(self, estimator: Any, *, method: str = "temperature", cv: Any = None):
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Any, y: Any) -> CalibratedClassifier:
        """Fit the calibrator, and with ``cv`` the classifier too.

        Parameters
        ----------
        X : array, shape (N, D), or what else the estimator reads
            The examples. Without ``cv``, others than those that the estimator was fitted on.
        y : array, shape (N,)
            Their labels.

        Returns
        -------
        CalibratedClassifier
            Itself.

        Raises
        ------
        InputError
            If there is no such method, if the estimator is not fitted, or if it does not know a label.
        """
        if self.method not in FITS:
            near = get_close_matches(str(self.method), FITS, n=2, cutoff=0.5) or list(FITS)
            raise InputError(f"there is no method {self.method!r}", remedy=f"did you mean {', '.join(near)}?")
        method = _response_method(self.estimator)
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if self.cv is None:
            self.estimator_ = self.estimator
            _check_is_fitted(self.estimator)
            scores = getattr(self.estimator_, method)(X)
        else:
            splits = check_cv(self.cv, y, classifier=True)
            self.estimator_ = clone(self.estimator).fit(X, y)
            _check_two_classes(self.estimator_.classes_)
            scores = cross_val_predict(self.estimator, X, y, cv=splits, method=method)
        self.classes_ = np.asarray(self.estimator_.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        labels = _class_indices(y, self.classes_)
        self.calibrator_ = FITS[self.method](self._as_predictions(scores, method, labels))
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Return calibrated probabilities.

        Parameters
        ----------
        X : array, shape (N, D), or what else the estimator reads
            The examples.

        Returns
        -------
        array, shape (N, K)
            One column per class, in the order of ``classes_``.
        """
        check_is_fitted(self)
        method = _response_method(self.estimator_)
        scores = getattr(self.estimator_, method)(X)
        return self.calibrator_(self._as_predictions(scores, method, None)).probs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each example.

        Parameters
        ----------
        X : array, shape (N, D), or what else the estimator reads
            The examples.

        Returns
        -------
        array, shape (N,)
        """
        check_is_fitted(self)
        classes: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return classes

    def _as_predictions(self, scores: Any, method: str, labels: NDArray[np.int64] | None) -> Predictions:
        """Probabilities, or scores as logits; the score of two classes is the logit of the second."""
        scores = np.asarray(scores, dtype=np.float64)
        if method == "predict_proba":
            if self.method in READS_LOGITS:
                scores = scores.clip(min=FLOOR)
                scores = scores / scores.sum(axis=1, keepdims=True)
            return Predictions.from_probs(scores, labels, name="dev")
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        if scores.shape[1] != len(self.classes_):
            raise InputError(
                f"decision_function has {scores.shape[1]} columns for {len(self.classes_)} classes",
                remedy='set decision_function_shape="ovr"',
            )
        return Predictions.from_logits(scores, labels, name="dev")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def _response_method(estimator: Any) -> str:
    for name in ("predict_proba", "decision_function"):
        if hasattr(estimator, name):
            return name
    raise InputError(
        f"{type(estimator).__name__} has neither predict_proba nor decision_function", remedy="give a classifier with one"
    )


def _check_is_fitted(estimator: Any) -> None:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise InputError(
            f"this {type(estimator).__name__} is not fitted, or a copy that forgot its fit",
            remedy="fit it on other data first (in a search or cross-validation, in a FrozenEstimator), or give cv=5",
        ) from None


def _check_two_classes(classes: NDArray[Any]) -> None:
    if len(classes) < 2:
        raise InputError(
            f"y has one class only, {list_names(classes.tolist())}", remedy="give examples of at least two classes"
        )


def _class_indices(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """The column of each label."""
    _check_two_classes(classes)
    present, inverse = np.unique(y, return_inverse=True)
    unknown = [label for label in present if label not in classes]
    if unknown:
        raise InputError(
            f"label {list_names(unknown[:1])} is not among the classes of the estimator: {list_names(classes.tolist())}",
            remedy="calibrate on examples of its classes",
        )
    order = np.argsort(classes)
    columns: NDArray[np.int64] = order[np.searchsorted(classes, present, sorter=order)]
    return columns[inverse]
