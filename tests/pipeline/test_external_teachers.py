"""Teachers that are known by their predictions only: which rows they know, and runs with answers of a language model."""

import csv
import json
import logging
import re

import numpy as np
import pytest
from shell import command
from tiny import reviews, save_model, write_csv

from distilcal import InputError, Predictions
from distilcal.config.loading import parse_recipe
from distilcal.config.schema import StageSettings
from distilcal.data import Dataset, texts
from distilcal.data.splits import Splits
from distilcal.pipeline.preflight import check_endpoint_rows, check_known_rows
from distilcal.pipeline.stage import Stage, plan_stages

TEXTS = ["good", "bad", "good", "fine"]
OWN_IDS = ["r1", "r2", "r3", "r4"]


def some_data(ids=(), labels=(1, 0, 1, 1), classes=("neg", "pos"), **named):
    return Dataset(texts(TEXTS), labels, classes, np.array(ids), **named)


def stage_of(path, *records, classes=("neg", "pos")):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Stage("llm", "key", StageSettings(predictions=(str(path),)), path.parent, path.parent, classes)


def about(*texts_or_ids, key="text"):
    return [{key: value, "top_logprobs": {"pos": -0.1 * (i + 1)}} for i, value in enumerate(texts_or_ids)]


@pytest.mark.parametrize("ids", [(), OWN_IDS], ids=["ids from content", "own ids"])
def test_answers_about_texts_are_found_by_content(tmp_path, ids):
    data = some_data(ids)
    stage = stage_of(tmp_path / "a.jsonl", *about("bad", "good", "unheard of"))
    assert stage.knows(data).tolist() == [True, True, True, False]
    known = stage.known_predictions(data)
    assert known.ids.tolist() == data.ids[:3].tolist()
    assert known.labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(known.probs[:, 1], np.exp([-0.2, -0.1, -0.2]), atol=1e-6)
    assert stage.coverage(Splits(data, data, data)) == (
        "data 3 of 4, data 3 of 4, data 3 of 4; 1 row of its predictions about nothing in the data"
    )
    with pytest.raises(InputError, match="the predictions of 'llm' lack 1 of the 4 rows of 'data', the first with id"):
        stage.predictions(data)


def test_answers_about_ids_are_found_by_id(tmp_path):
    data = some_data(OWN_IDS)
    stage = stage_of(tmp_path / "a.jsonl", *about("r4", "r2", key="id"))
    assert stage.knows(data).tolist() == [False, True, False, True]
    np.testing.assert_allclose(stage.known_predictions(data).probs[:, 1], np.exp([-0.2, -0.1]), atol=1e-6)
    with pytest.raises(InputError, match="'llm' have none of the 4 rows of 'data'; check that both use the same ids"):
        stage_of(tmp_path / "b.jsonl", *about("x", "y", key="id")).known_predictions(data)


def test_all_rows_have_the_labels_and_classes_of_the_data(tmp_path):
    stage = stage_of(tmp_path / "a.jsonl", *about("good", "bad", "fine"))
    data = some_data(OWN_IDS, classes=("pos", "neg"), labels=[1, 0, 1, 1], name="dev")
    predictions = stage.predictions(data)
    assert (predictions.classes, predictions.name) == (("pos", "neg"), "dev")
    assert predictions.labels.tolist() == data.labels.tolist()
    np.testing.assert_array_equal(stage.outputs(data)["logits"], predictions.logits)
    np.testing.assert_allclose(predictions.probs[:, 0], np.exp([-0.1, -0.2, -0.1, -0.3]), atol=1e-6)
    unlabelled = stage.known_predictions(Dataset(texts(TEXTS), classes=("neg", "pos")))
    assert not unlabelled.is_labelled.any()


def test_several_files_may_be_about_different_rows(tmp_path):
    first = stage_of(tmp_path / "a.jsonl", *about("good", "bad"))
    Predictions([[0.0, 3.0]], ids=["r4"], classes=["neg", "pos"]).save(tmp_path / "b.npz")
    settings = StageSettings(predictions=(*first.settings.predictions, str(tmp_path / "b.npz")))
    both = Stage("llm", "key", settings, tmp_path, tmp_path, ("neg", "pos"))
    assert both.knows(some_data(OWN_IDS)).all()
    Predictions([[0.0, 3.0]], classes=["neg", "pos"]).save(tmp_path / "b.npz")
    with pytest.raises(InputError, match="'b' has no ids; add an id column to every file"):
        Stage("llm", "key", settings, tmp_path, tmp_path, ("neg", "pos")).knows(some_data(OWN_IDS))


def test_predictions_without_ids_are_refused(tmp_path):
    Predictions([[0.0, 3.0]], classes=["neg", "pos"]).save(tmp_path / "b.npz")
    settings = StageSettings(predictions=(str(tmp_path / "b.npz"),))
    with pytest.raises(InputError, match="the predictions of 'llm' have no ids"):
        Stage("llm", "key", settings, tmp_path, tmp_path, ("neg", "pos")).knows(some_data())


def test_a_temperature_needs_rows_of_dev(tmp_path):
    splits = Splits(reviews(60, 0), reviews(30, 1, name="dev"), reviews(30, 2))
    answers = about(*splits.train.inputs.text, *splits.dev.inputs.text[:19])
    path = tmp_path / "a.jsonl"
    student = {"model": {"name": "x", "head": "new"}, "terms": [{"loss": "kd"}], "teacher": "llm"}
    stages = {"llm": {"predictions": [str(path)]}, "student": {**student, "scale_teacher": True}}
    recipe = parse_recipe({"data": {"train": "t.csv"}, "stages": stages})
    stage_of(path, *answers)
    known = len({*splits.dev.inputs.text[:19], *splits.train.inputs.text} & set(splits.dev.inputs.text))
    assert known < 20
    stage = plan_stages(recipe, splits, tmp_path)["llm"]
    with pytest.raises(InputError, match=rf"'llm' have {known} of the 30 rows of dev, too few for its temperature"):
        check_known_rows(stage, [recipe.stages["student"]], splits)
    check_known_rows(stage, [recipe.stages["student"].replace(scale_teacher=False)], splits)
    check_known_rows(stage, [], splits)


# ---- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    save_model(folder / "encoder", head=False)
    return folder


def write_answers(path, source, answer, *, key="text"):
    with open(source, encoding="utf-8") as file:
        records = [{key: row[key], **answer(row, i)} for i, row in enumerate(csv.DictReader(file))]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def soft(row, i):
    return {
        "top_logprobs": [{"token": f" {row['label']}", "logprob": -0.05 if i % 5 else -2.0}, {"token": "?", "logprob": -4.0}]
    }


def hard(row, i):
    return {"label": row["label"] if i % 7 else "pos"}


def distil(place, tmp_path, *arguments, code=0):
    where = ["--out", tmp_path / "run", "--store", tmp_path / "store", "--student", place / "encoder", "--no-alone"]
    learn = ["--epochs", "8", "--lr", "0.01"]
    return command("distill", "--train", place / "train.csv", *learn, *where, *arguments, code=code)


def test_a_student_of_log_probabilities(place, tmp_path):
    answers = write_answers(tmp_path / "answers.jsonl", place / "train.csv", soft)
    done = distil(place, tmp_path, "--teacher", answers, "--dry-run")
    assert "teacher has predictions of train 210 of 210, dev 30 of 30, test 60 of 60\n" in done.output
    distil(place, tmp_path, "--teacher", answers)
    stages = json.loads((tmp_path / "run" / "metrics.json").read_text())["stages"]
    assert stages["teacher"]["calibrator"] == "temperature"
    assert stages["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7


def test_a_student_of_labels_without_confidence(place, tmp_path, caplog):
    answers = write_answers(tmp_path / "answers.jsonl", place / "train.csv", hard, key="id")
    with caplog.at_level(logging.INFO, logger="distilcal"):
        done = distil(place, tmp_path, "--teacher", answers)
    assert "Against teacher (teaches student), on the same rows: accuracy" in done.output
    assert "-inf" not in done.output
    assert "the answers of teacher have no confidence, so no temperature is fitted" in caplog.text
    assert "the teacher's logits are divided" not in caplog.text
    stages = json.loads((tmp_path / "run" / "metrics.json").read_text())["stages"]
    assert stages["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7
    calibrator = json.loads((tmp_path / "run" / "teacher" / "calibrator.json").read_text())
    assert calibrator["value"] == 1.0
    assert "labels without a confidence have no temperature" in calibrator["fit"]["message"]


def test_answers_about_a_part_of_the_data(place, tmp_path, caplog):
    write_csv(tmp_path / "more.csv", 120, 3)
    answers = write_answers(tmp_path / "answers.jsonl", place / "train.csv", soft)
    more = write_answers(tmp_path / "more.jsonl", tmp_path / "more.csv", soft)
    lines = answers.read_text().splitlines()[:-20] + more.read_text().splitlines()[:-30]
    answers.write_text("\n".join([*lines, json.dumps({"text": "unheard of", "label": "pos"})]))
    with caplog.at_level(logging.INFO, logger="distilcal"):
        distil(place, tmp_path, "--teacher", answers, "--unlabelled", tmp_path / "more.csv")
    coverage = re.search(
        r"teacher has predictions of train (\d+) of (\d+), dev (\d+) of 30, test (\d+) of 60; (.*)", caplog.text
    )
    known, rows, dev, test = (int(number) for number in coverage.groups()[:4])
    assert known + dev + test + 50 == rows + 90
    assert coverage.group(5) == "1 row of its predictions about nothing in the data"
    assert "taught by labels alone" in caplog.text
    assert "the teacher's logits are divided by" in caplog.text  # with the rows of dev that it knows
    stages = json.loads((tmp_path / "run" / "metrics.json").read_text())["stages"]
    complete = {name for name, covered in (("dev", dev == 30), ("test", test == 60)) if covered}
    assert set(stages["teacher"]["sets"]) == complete
    assert stages["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7


@pytest.mark.parametrize("more", [["--dry-run"], []], ids=["dry run", "run"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("answers.jsonl", '{"id": "r0-1", "label": "pos"}\n{"id": "r0-2", "label": "positive"}\n', "line 2: there is no class"),
        ("answers.jsonl", '{"id": "other", "label": "pos"}\n', "have none of the 210 rows of 'train'"),
        ("api.csv", "id,prob_up,prob_down\nr0-1,0.5,0.5\n", "api.csv: 'api' has classes 'up', 'down', not 'neg', 'pos'"),
        ("api.csv", "prob_neg,prob_pos\n0.5,0.5\n", "have no ids"),
    ],
    ids=["class", "rows", "columns", "ids"],
)
def test_what_a_teachers_file_rules_out_is_found_before_training(place, tmp_path, more, name, content, words):
    (tmp_path / name).write_text(content)
    done = distil(place, tmp_path, "--teacher", tmp_path / name, *more, code=2)
    assert words in done.stderr
    assert "training" not in done.stderr


def test_eval_of_answers_needs_labels(place, tmp_path):
    answers = write_answers(tmp_path / "answers.jsonl", place / "train.csv", hard)
    done = command("eval", answers, code=2)
    assert f"{answers}: there is no label column; add a column 'label' with the class of every row;" in done.stderr


def test_votes_of_labelled_rows_only_stay_out_of_a_teachers_predictions(tmp_path):
    """Rows without a label have no votes either, and predictions have them of all rows or of none."""
    votes = np.array([[0.2, 0.8], [0, 0], [0.1, 0.9], [0, 0]])
    data = some_data(OWN_IDS, labels=(1, -1, 1, -1), label_probs=votes)
    teacher = Predictions.from_probs(np.full((4, 2), 0.5), ids=data.ids, classes=("neg", "pos"))
    teacher.save(tmp_path / "teacher.npz")
    settings = StageSettings(predictions=(str(tmp_path / "teacher.npz"),))
    stage = Stage("teacher", "key", settings, tmp_path, tmp_path, ("neg", "pos"))
    assert stage.known_predictions(data).label_probs is None
    assert stage.known_predictions(data.select([0, 2])).label_probs.tolist() == votes[[0, 2]].tolist()


def test_a_control_without_all_rows_is_refused_before_training(tmp_path):
    data = some_data(OWN_IDS)
    splits = Splits(*(data.with_role(role, role) for role in ("train", "dev", "test")))
    check_endpoint_rows(stage_of(tmp_path / "all.jsonl", *about("bad", "good", "fine")), splits)
    with pytest.raises(InputError, match="endpoints compare 'llm' .* its predictions have 3 of the 4 rows of 'dev'"):
        check_endpoint_rows(stage_of(tmp_path / "some.jsonl", *about("bad", "good")), splits)
