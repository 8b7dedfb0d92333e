"""A call of distill that fails loses nothing: kept answers, the runs of others, and what a finished run has."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import distilcal as dc
from distilcal.errors import InputError
from distilcal.pipeline import asking, in_memory

VECTORS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
LABELS = np.where(VECTORS[:, 0] > 0, "yes", "no")


def halves(rows):
    return np.full((len(rows), 2), 0.5)


def steep(rows):
    positive = 1 / (1 + np.exp(-4 * rows[:, 0]))
    return np.column_stack([1 - positive, positive])


def distil(tmp_path, teacher, **settings):
    settings = {"out": tmp_path / "run", "epochs": 1, "lr": 0.05, "alone": False, "progress": False, **settings}
    return dc.distill((VECTORS, LABELS), teacher, "linear", store=tmp_path / "store", **settings)


def test_answers_before_a_bad_one_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "CHUNK", 40)
    (tmp_path / "bad").touch()

    def teacher(rows):
        with (tmp_path / "asked").open("a") as file:
            file.write(f"{len(rows)} ")
        is_bad = (tmp_path / "bad").exists() and (tmp_path / "asked").read_text().count(" ") == 3
        return halves(rows) * (np.nan if is_bad else 1)

    monkeypatch.setattr(in_memory, "callable_teacher", lambda function: asking.AskedTeacher(function, "teacher", identity="1"))
    with pytest.raises(InputError, match="is no distribution"):
        distil(tmp_path, teacher)
    assert [path.name for path in (tmp_path / "run" / "data").iterdir()] == ["answers"]
    (tmp_path / "bad").unlink()
    distil(tmp_path, teacher)
    assert (tmp_path / "asked").read_text() == "40 40 40 40 20 20 40 "
    assert not (tmp_path / "run" / "data" / "answers").exists()


def test_a_run_that_another_call_started_meanwhile_stays(tmp_path):
    other = tmp_path / "runs" / "other" / "metrics.json"

    def teacher(rows):
        other.parent.mkdir(parents=True)
        other.write_text("{}")
        return halves(rows) * 3

    with pytest.raises(InputError, match="is no distribution"):
        distil(tmp_path, teacher, out=tmp_path / "runs" / "mine")
    assert other.exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]


@pytest.mark.parametrize(
    "change",
    ["stages.student.terms=[{loss='kdd'}]", "stages.student.terms=[{loss='rkd'}]", "stages.student.terms=[{loss='crd'}]"],
)
def test_a_finished_run_stays_as_it_is(tmp_path, change):
    distil(tmp_path, steep)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert tmp_path / "run" / "data" / "teacher.npz" in before
    with pytest.raises(InputError):
        distil(tmp_path, dc.Predictions.from_probs(halves(VECTORS), ids=dc.load_dataset((VECTORS, LABELS)).ids,
                                                   classes=["no", "yes"]), changes=[change])  # fmt: skip
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_teacher_without_features_is_refused_before_it_is_asked(tmp_path):
    asked = []
    with pytest.raises(InputError, match=r"stages.student.terms\[0\]: the teacher 'teacher' is known by its predictions"):
        distil(tmp_path, asked.append, changes=["stages.student.terms=[{loss='rkd'}]"])
    assert not asked
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["predictions", "a file of them", "a network that is trained"])
def test_names_for_the_outputs_of_a_teacher_are_refused_where_they_mean_nothing(tmp_path, kind):
    predictions = dc.Predictions.from_probs(steep(VECTORS), ids=dc.load_dataset((VECTORS, LABELS)).ids, classes=["no", "yes"])
    predictions.save(tmp_path / "teacher.npz")
    teachers = {"predictions": predictions, "a file of them": tmp_path / "teacher.npz", "a network that is trained": "mlp"}
    with pytest.raises(InputError, match="teacher_labels = 'yes', 'no' is .*; leave it out"):
        distil(tmp_path, teachers[kind], teacher_labels=["yes", "no"])
    assert not (tmp_path / "run").exists()
