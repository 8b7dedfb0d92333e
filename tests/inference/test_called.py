"""What functions and classifiers answer: probabilities are matched with classes by name wherever they have names."""

from __future__ import annotations

import numpy as np
import pytest

from distilcal.errors import InputError
from distilcal.inference.called import check_probs, read_answer

CLASSES = ("neg", "pos")
ANSWER = {"pos": [0.9, 0.3], "neg": [0.1, 0.7]}  # not in the order of the classes
EXPECTED = [[0.1, 0.9], [0.7, 0.3]]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_a_table_are_matched_by_name(library):
    frame = pytest.importorskip(library).DataFrame(ANSWER)
    assert check_probs(frame, 2, CLASSES, "teacher").tolist() == EXPECTED
    assert read_answer(frame, 2, CLASSES, "teacher").probs.tolist() == EXPECTED
    with pytest.raises(InputError, match="teacher: the columns of the answer are 'pos', 'neg', the classes 'no', 'yes'; name"):
        check_probs(frame, 2, ("no", "yes"), "teacher")
    with pytest.raises(InputError, match=r"expected probabilities of shape \(2, 3\), got \(2, 2\)"):
        check_probs(frame, 2, ("neg", "pos", "neutral"), "teacher")


def test_columns_that_are_counted_have_the_order_of_the_classes():
    pandas = pytest.importorskip("pandas")
    assert check_probs(pandas.DataFrame(EXPECTED), 2, CLASSES, "teacher").tolist() == EXPECTED
    numbered = pandas.DataFrame(np.array(EXPECTED), columns=[1, 0])
    assert check_probs(numbered, 2, ("0", "1"), "teacher").tolist() == [row[::-1] for row in EXPECTED]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_complex_numbers_are_no_probabilities(library):
    make = np.array if library == "numpy" else pytest.importorskip("torch").tensor
    with pytest.raises(InputError, match="teacher: the probabilities are complex numbers; return real ones"):
        check_probs(make([[0.2 + 0.3j, 0.8]]), 1, CLASSES, "teacher")
