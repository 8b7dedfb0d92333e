"""DistillationTrainer: the numbers of our own loop, however a step is divided, and rows without labels or without a teacher."""

from pathlib import Path

import numpy as np
import pytest
import torch
from distillation_cases import DATA, LOGITS, TEACHER, assert_same_weights, examples, student, train, train_both, weights
from processes import launch
from tiny import reviews, tokenizer
from torch.nn.functional import cross_entropy
from transformers import Trainer

from distilcal.config.schema import ModelSettings
from distilcal.integrations.transformers import DynamicsCallback, loss_func
from distilcal.losses import kd, mdca
from distilcal.models import build_classifier
from distilcal.predictions import Predictions

# ---- the same as our own loop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [{"cross_entropy": 0.1, "kd": {"weight": 0.9, "temperature": 2.0}}, {"cross_entropy": 1.0, "mdca": 0.5}],
    ids="-".join,
)
def test_losses_and_weights_are_those_of_our_own_loop(tmp_path, monkeypatch, terms):
    own_losses, losses, own_weights, found = train_both(tmp_path, monkeypatch, terms)
    assert len(own_losses) == 12
    np.testing.assert_allclose(losses, own_losses, rtol=0, atol=1e-6)
    assert_same_weights(found, own_weights)


def test_loss_func_trains_the_same_weights_as_terms(tmp_path):
    terms = {"cross_entropy": 1.0, "mdca": {"weight": 0.5}, "confidence_penalty": 0.1}
    ours = train(tmp_path / "a", named={"terms": terms, "teacher": None})
    plain = train(tmp_path / "b", kind=Trainer, named={"compute_loss_func": loss_func(terms)})
    assert_same_weights(weights(plain), weights(ours))


# ---- parts of a step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [32, 27])
def test_four_parts_of_eight_train_the_weights_of_one_of_thirty_two(tmp_path, count):
    data = [dict(example) for example in DATA[:count]]
    for i in (0, 1, 2, 9, 20):
        data[i]["label"] = -100 if i % 2 else -1
    whole = train(tmp_path / "a", data=data, per_device_train_batch_size=32, num_train_epochs=3)
    parts = train(tmp_path / "b", data=data, per_device_train_batch_size=8, gradient_accumulation_steps=4, num_train_epochs=3)
    np.testing.assert_allclose(np.add.reduceat(parts.losses, [0, 4, 8]), whole.losses, atol=1e-6)
    assert_same_weights(weights(parts), weights(whole), atol=2e-6)


def test_loss_func_in_parts_is_that_of_the_whole(tmp_path):
    data = [dict(example) for example in DATA[:27]]
    for i in (0, 9, 20):
        data[i]["label"] = -100
    named = {"compute_loss_func": loss_func("focal", gamma=2.0)}
    whole = train(tmp_path / "a", kind=Trainer, data=data, named=named, per_device_train_batch_size=32)
    changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    parts = train(tmp_path / "b", kind=Trainer, data=data, named=named, **changes)
    assert_same_weights(weights(parts), weights(whole))


PROGRAM = """
import sys
import torch
torch.set_num_threads(1)
sys.path[:0] = sys.argv[2:3]
from distillation_cases import DATA, train, weights
data = [{**e, "label": -1} if i % 5 in (0, 1) else e for i, e in enumerate(DATA[:30])]
trainer = train(sys.argv[1], data=data, per_device_train_batch_size=4, ddp_backend="gloo", logging_steps=1)
assert trainer.args.world_size == 2
torch.save([weights(trainer), trainer.state.log_history], f"{sys.argv[1]}/{trainer.args.process_index}.pt")
torch.distributed.destroy_process_group()  # else threads of gloo abort the process now and then while Python ends
"""


@pytest.mark.slow
def test_two_processes_of_four_train_the_weights_of_one_of_eight(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = launch([tmp_path / "program.py", tmp_path, Path(__file__).parents[1]], 2)
    assert done.returncode == 0, done.stderr[-3000:]
    data = [{**e, "label": -1} if i % 5 in (0, 1) else e for i, e in enumerate(DATA[:30])]
    data += data[:2]  # Accelerate fills up the last batch of the second process
    teacher = Predictions(LOGITS[[*range(30), 0, 1]], ids=TEACHER.ids, classes=TEACHER.classes)
    data = [{**e, "id": f"r{i}"} for i, e in enumerate(data)]
    alone = train(tmp_path / "alone", data=data, named={"teacher": teacher}, logging_steps=1)
    for rank in (0, 1):
        found, logs = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert_same_weights(found, weights(alone), atol=2e-6)
        for name in ("loss", "loss_cross_entropy", "loss_kd"):
            expected = [entry[name] for entry in alone.state.log_history if name in entry]
            np.testing.assert_allclose([entry[name] for entry in logs if name in entry], expected, atol=1e-5)


def test_a_whole_batch_loss_sees_the_parts(tmp_path):
    changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 1}
    found = train(tmp_path, named={"terms": {"mdca": 1.0}}, **changes)
    model, read = student().train(), tokenizer()
    values = []
    for part in (DATA[:8], DATA[8:16]):
        batch = read.pad([{k: e[k] for k in ("input_ids", "attention_mask")} for e in part], return_tensors="pt")
        values.append(float(mdca(model(**batch).logits.detach(), torch.tensor([e["label"] for e in part]))))
    np.testing.assert_allclose(found.losses, np.array(values) / 2, atol=1e-6)


# ---- labels, teachers, evaluation --------------------------------------------------------------------------------------


def test_rows_without_labels_take_part_in_terms_that_need_none(tmp_path):
    data = [dict(example) for example in DATA[:8]]
    data[3]["label"], data[5]["label"] = -1, -100
    found = train(tmp_path, data=data, named={"terms": {"cross_entropy": 1.0, "kd": 2.0}}, max_steps=1)
    batch = tokenizer().pad([{k: e[k] for k in ("input_ids", "attention_mask")} for e in data], return_tensors="pt")
    logits = student().train()(**batch).logits.detach()
    keep = [i for i in range(8) if i not in (3, 5)]
    labels = torch.tensor([data[i]["label"] for i in keep])
    expected = cross_entropy(logits[keep], labels) + 2 * kd(logits, torch.tensor(LOGITS[:8]))
    np.testing.assert_allclose(found.losses, [float(expected)], atol=1e-6)


def test_rows_without_a_teacher_are_taught_by_their_labels(tmp_path, caplog):
    some = TEACHER.select([0, 2, 3, 6, 7, 20])
    terms = {"cross_entropy": 1.0, "kd": 2.0}
    found = train(tmp_path / "a", data=DATA[:8], named={"terms": terms, "teacher": some}, max_steps=1)
    assert "lack 3 of 8 rows" in caplog.text
    batch = tokenizer().pad([{k: e[k] for k in ("input_ids", "attention_mask")} for e in DATA[:8]], return_tensors="pt")
    logits = student().train()(**batch).logits.detach()
    known = [0, 2, 3, 6, 7]
    expected = cross_entropy(logits, torch.tensor([e["label"] for e in DATA[:8]]))
    expected = expected + 2 * kd(logits[known], torch.tensor(LOGITS[known]))
    np.testing.assert_allclose(found.losses, [float(expected)], atol=1e-6)
    named = {"teacher": some, "terms": terms}
    whole = train(tmp_path / "b", named=named, per_device_train_batch_size=32)
    parts = train(tmp_path / "c", named=named, per_device_train_batch_size=8, gradient_accumulation_steps=4)
    assert_same_weights(weights(parts), weights(whole), atol=2e-6)


def test_data_without_a_column_of_labels_learn_from_the_teacher_alone(tmp_path):
    data = [{k: v for k, v in e.items() if k != "label"} for e in DATA]
    found = train(tmp_path / "a", data=data)
    only = train(tmp_path / "b", named={"terms": {"kd": 0.9}})
    assert_same_weights(weights(found), weights(only))


@pytest.mark.parametrize("columns", ["removed", "kept"])
def test_a_teacher_is_found_by_id_and_its_classes_by_name(tmp_path, columns):
    import datasets

    order = np.random.default_rng(0).permutation(32)
    shuffled = Predictions(LOGITS[order][:, ::-1], [0] * 32, ids=TEACHER.ids[order], classes=["pos", "neg"])
    data = datasets.Dataset.from_list(DATA).cast_column("label", datasets.ClassLabel(names=["neg", "pos"]))
    found = train(
        tmp_path / "a",
        data=data,
        model=student(id2label={0: "LABEL_0", 1: "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1}),
        named={"teacher": shuffled, "eval_dataset": data},
        remove_unused_columns=columns == "removed",
        train_sampling_strategy="random",
        dataloader_num_workers=int(columns == "removed"),
        eval_strategy="epoch",
    )
    expected = train(tmp_path / "b", train_sampling_strategy="random")
    assert_same_weights(weights(found), weights(expected), atol=0)


@pytest.mark.parametrize("kind", ["model", "classifier"])
def test_a_teacher_that_is_a_model_is_run_on_the_students_inputs(tmp_path, kind):
    names = {"id2label": {0: "pos", 1: "neg"}, "label2id": {"pos": 0, "neg": 1}}
    teacher = student(seed=7, hidden_dropout_prob=0.5, **names).eval()
    with torch.no_grad():
        logits = np.stack([teacher(input_ids=torch.tensor([e["input_ids"]])).logits[0].numpy() for e in DATA])
    cached = Predictions(logits, [0] * 32, ids=TEACHER.ids, classes=["pos", "neg"])
    if kind == "classifier":
        teacher.save_pretrained(tmp_path / "teacher")
        tokenizer().save_pretrained(tmp_path / "teacher")
        teacher = build_classifier(ModelSettings(name=str(tmp_path / "teacher"), head="keep"), reviews(4))
    data = [{k: v for k, v in e.items() if k != "id"} for e in DATA]
    with_features = {"kd": 1.0, "rkd": 0.01, "crd": {"dim": 4, "negatives": 6}}
    assert len(train(tmp_path / "c", data=data, named={"teacher": teacher, "terms": with_features}).losses) == 4
    live = train(tmp_path / "a", data=data, named={"teacher": teacher})
    looked_up = train(tmp_path / "b", named={"teacher": cached})
    assert_same_weights(weights(live), weights(looked_up), atol=1e-5)


def test_evaluation_needs_no_teacher_and_gives_the_cross_entropy(tmp_path):
    dev = [{k: v for k, v in e.items() if k != "id"} for e in examples(20, seed=5)]
    dev[4]["label"] = -1
    found = train(tmp_path, named={"eval_dataset": dev}, per_device_eval_batch_size=32)
    metrics = found.evaluate()
    output = found.predict(dev)
    labels = torch.tensor([e["label"] for e in dev])
    expected = cross_entropy(torch.tensor(output.predictions), labels, ignore_index=-1)
    np.testing.assert_allclose(metrics["eval_loss"], float(expected), rtol=1e-5)
    assert output.predictions.shape == (20, 2)


def test_each_term_is_logged(tmp_path):
    found = train(tmp_path, logging_steps=1, per_device_train_batch_size=8, gradient_accumulation_steps=2)
    logs = [entry for entry in found.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for entry in logs:
        np.testing.assert_allclose(entry["loss"], 0.1 * entry["loss_cross_entropy"] + 0.9 * entry["loss_kd"], rtol=1e-5)


def test_the_callback_records_beside_it(tmp_path):
    recording = DynamicsCallback()
    train(tmp_path, named={"callbacks": [recording]}, num_train_epochs=2)
    assert recording.dynamics().epochs.tolist() == [2] * 32
    partly = DynamicsCallback(ids=[f"r{i}" for i in range(32)])
    data = [{**e, "label": -1} if i < 8 or i % 2 else e for i, e in enumerate(DATA)]  # no row of the first batch is labelled
    train(tmp_path, data=data, named={"callbacks": [partly]}, num_train_epochs=2)
    assert partly.dynamics().ids.tolist() == [f"r{i}" for i in range(8, 32, 2)]
    assert partly.dynamics().epochs.tolist() == [2] * 12


def test_a_model_that_returns_a_tuple_is_evaluated(tmp_path):
    found = train(tmp_path, model=student(return_dict=False), named={"eval_dataset": DATA})
    assert found.predict(DATA).predictions.shape == (32, 2)
