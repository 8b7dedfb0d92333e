"""The baseline of a run on texts: TF-IDF with logistic regression, fitted in about a second on the labelled examples of train.

It is a row of the results like any other model, with predictions of every split and a temperature fitted on dev, but no model
is saved. What a network costs is worth it only if it beats this; `distilcal.pipeline.checks` warns where it does not.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import Recipe
from distilcal.data import Dataset, Texts
from distilcal.data.splits import Splits
from distilcal.errors import InputError, MissingDependencyError
from distilcal.predictions import FloatArray, IntArray, Predictions

NAMES = ("baseline", "tfidf", "tfidf-baseline")  # in the results of a run; the first that is not the name of a stage
METHOD = "TF-IDF + logistic regression"
STRENGTHS = (1.0, 10.0, 100.0)  # inverse strength of the regularisation, tried in this order while dev gets better
MAX_FEATURES = 100_000
MANY_ROWS = 2_000  # from which a word has to occur twice
MAX_CHARACTERS = 20_000_000  # that are split into words, in about ten seconds
MAX_WORK = 20_000_000  # entries of the matrix × classes that are fitted in about ten seconds per strength
MAX_STEPS = 60


@dataclass(frozen=True)
class Baseline:
    """Logistic regression on the TF-IDF of words and pairs of words.

    Attributes
    ----------
    vectorizer : TfidfVectorizer
        Turns texts into rows of a sparse matrix.
    weights : array, shape (K', D)
        Weights of the features for each class that train has.
    bias : array, shape (K',)
        Intercepts of these classes.
    present : array of int, shape (K',)
        Which classes these are.
    classes : tuple of str
        All classes.
    rows : int
        Number of examples that it was fitted on.
    seconds : float
        How long the fit took.
    """

    vectorizer: Any
    weights: FloatArray
    bias: FloatArray
    present: IntArray
    classes: tuple[str, ...]
    rows: int
    seconds: float

    @property
    def parameters(self) -> int:
        """The number of weights and intercepts."""
        return self.weights.size + self.bias.size

    def logits(self, data: Dataset) -> FloatArray:
        """Return the logits (N, K) of texts or pairs of texts.

        Parameters
        ----------
        data : Dataset
            Examples with or without labels.
        """
        known = _features(self.vectorizer, data) @ self.weights.T + self.bias
        logits = np.empty((len(data), len(self.classes)))
        # A class that train does not have is less probable than any other by the number of examples without it.
        logits[:] = known.min(axis=1, keepdims=True) - np.log(self.rows + 1)
        logits[:, self.present] = known
        return logits

    def predictions(self, data: Dataset) -> Predictions:
        """Return predictions of labelled data, with its ids, labels and classes.

        Parameters
        ----------
        data : Dataset
            Labelled texts or pairs of texts.
        """
        assert data.labels is not None
        return Predictions(
            self.logits(data),
            data.labels,
            ids=data.ids,
            classes=data.classes,
            label_probs=data.label_probs,
            name=data.name,
        )


def baseline_name(recipe: Recipe, splits: Splits) -> str | None:
    """Return the name under which the run has a baseline, or None if it has none.

    Parameters
    ----------
    recipe : Recipe
        Its setting ``baseline`` asks for one or refuses it; unset, there is one wherever it is possible.
    splits : Splits
        The data of the run.

    Returns
    -------
    str or None
        ``"baseline"``, or another name if a stage has this one.

    Raises
    ------
    InputError
        If the recipe asks for a baseline that these data cannot have.
    MissingDependencyError
        If it asks for one and scikit-learn is not installed.
    """
    if recipe.baseline is False:
        return None
    train = splits.train
    possible = isinstance(train.inputs, Texts) and len(np.unique(_labels(train))) > 1
    if recipe.baseline and not possible:
        raise InputError(
            f"baseline = true needs texts of at least two classes, got {train.input_kind}"
            + ("" if train.is_labelled.any() else " without labels"),
            remedy="leave it out",
        )
    installed = find_spec("sklearn") is not None
    if recipe.baseline and not installed:
        raise MissingDependencyError(
            "the baseline needs scikit-learn", remedy="pip install 'distilcal[train]', or set baseline = false"
        )
    if not possible or not installed:
        return None
    return next(name for name in NAMES if name not in recipe.stages)


def fit_baseline(train: Dataset, dev: Dataset) -> Baseline:
    """Fit TF-IDF with logistic regression; the strength of its regularisation is chosen by dev NLL after a temperature.

    Very large data are sampled, each class in its share, so that the fit takes less than half a minute.

    Parameters
    ----------
    train : Dataset
        Labelled texts or pairs of texts.
    dev : Dataset
        The development data, with the same classes.

    Returns
    -------
    Baseline

    Raises
    ------
    InputError
        If there is no word in the texts.

    Examples
    --------
    >>> from distilcal.data import texts
    >>> train = Dataset(texts(["a good film", "bad", "good fun", "so bad"] * 5), [1, 0, 1, 0] * 5, ("neg", "pos"))
    >>> fit_baseline(train, train).predictions(train).correct.all()
    np.True_
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    start = time.perf_counter()
    train = _sampled(train, MAX_CHARACTERS / max(1, _characters(train)))
    vectorizer = _fit_vectorizer(train)
    matrix = _features(vectorizer, train)
    classes = np.unique(_labels(train))
    fits_per_entry = len(classes) if len(classes) > 2 else 1
    part = _sampled(train, MAX_WORK / (matrix.nnz * fits_per_entry + 1))
    if part is not train:
        train, matrix = part, _features(vectorizer, part)
    regression = LogisticRegression(warm_start=True, max_iter=MAX_STEPS)
    best, lowest = None, np.inf
    for strength in STRENGTHS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the last steps change nothing that is seen
            regression.set_params(C=strength).fit(matrix, train.labels)
        weights, bias = _class_weights(regression)
        fitted = Baseline(
            vectorizer, weights, bias, regression.classes_, train.classes, len(train), time.perf_counter() - start
        )
        on_dev = fitted.predictions(dev)
        nll = float(fit_temperature(on_dev)(on_dev).row_nll.mean())
        if best is not None and nll >= lowest:
            break
        best, lowest = fitted, nll
    assert best is not None
    return best


def _labels(data: Dataset) -> IntArray:
    """The labels of the examples that have one."""
    return np.zeros(0, dtype=np.int64) if data.labels is None else data.labels[data.is_labelled]


def _sampled(data: Dataset, share: float) -> Dataset:
    """The data, or this share of them if it is less than all."""
    return data if share >= 1 else data.sample(max(2, int(share * len(data))), seed=0)


def _characters(data: Dataset) -> int:
    return sum(len(text) for part in _texts(data) for text in part)


def _texts(data: Dataset) -> list[Any]:
    """The texts of the examples; two arrays for pairs."""
    assert isinstance(data.inputs, Texts)
    return [data.inputs.text] if data.inputs.pair is None else [data.inputs.text, data.inputs.pair]


def _fit_vectorizer(train: Dataset) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=r"(?u)\b\w+\b",
        sublinear_tf=True,
        min_df=1 if len(train) < MANY_ROWS else 2,
        max_features=MAX_FEATURES,
        dtype=np.float32,
    )
    try:
        return vectorizer.fit(np.concatenate(_texts(train)))
    except ValueError as error:
        if "vocabulary" not in str(error) and "no terms remain" not in str(error).lower():
            raise
        raise InputError("there are no words in the texts", source=train.name, remedy="check the column of texts") from None


def _features(vectorizer: Any, data: Dataset) -> Any:
    """The features of texts as a sparse matrix; of pairs those of both texts and of what both have."""
    from scipy.sparse import csr_matrix, hstack

    parts = [vectorizer.transform(texts) for texts in _texts(data)]
    if len(parts) == 1:
        return parts[0]
    return csr_matrix(hstack([*parts, parts[0].multiply(parts[1]).sqrt()]))


def _class_weights(regression: Any) -> tuple[FloatArray, FloatArray]:
    """Weights and intercepts of every class; scikit-learn has one row of them for two classes."""
    weights, bias = regression.coef_.copy(), regression.intercept_.copy()
    if len(regression.classes_) > 2:
        return weights, bias
    return np.concatenate([np.zeros_like(weights), weights]), np.concatenate([np.zeros_like(bias), bias])
