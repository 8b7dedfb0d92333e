"""examples/ask_llm.py against a small local server: from the first request to predictions, and on after failures and a kill."""

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from chat_server import probability_of_praise, serving
from tiny import save_model, sentences, write_csv

from distilcal.data import read_dataset
from distilcal.io.predictions import read_predictions

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "ask_llm.py"


def command(folder, *arguments):
    return [sys.executable, str(SCRIPT), str(folder / "more.csv"), "-o", str(folder / "answers.jsonl"), "--model", "tiny",
            "--classes", "neg,pos", *map(str, arguments)]  # fmt: skip


def environment(server):
    return {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "secret"}


def ask(server, folder, *arguments, code=0):
    done = subprocess.run(
        command(folder, *arguments), env=environment(server), capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    write_csv(tmp_path / "more.csv", 40, 0)
    return tmp_path


@pytest.mark.parametrize("codes", [["--codes"], []], ids=["codes", "names"])
def test_answers_become_predictions_through_failures(folder, codes):
    texts = list(dict.fromkeys(sentences(40, 0)[0]))
    with serving(failures=[429, 500, 503, 429]) as server:
        done = ask(server, folder, *codes)
        requests = server.requests
    assert f"{len(texts)} texts, {len(texts)} of them without an answer" in done.stdout
    assert set(server.asked.values()) == {1}
    assert len(requests) == len(texts) + 4  # each failure was tried again
    assert {request["path"] for request in requests} == {"/v1/chat/completions"}
    assert {request["key"] for request in requests} == {"Bearer secret"}
    settings = [(r["model"], r["logprobs"], r["top_logprobs"], r["max_tokens"], r["temperature"]) for r in requests]
    assert set(settings) == {("tiny", True, 5, 1, 0)}
    predictions = read_predictions(folder / "answers.jsonl", classes=("neg", "pos"))
    data = read_dataset(folder / "more.csv")
    by_id = dict(zip(data.ids, data.inputs.text, strict=True))
    expected = [probability_of_praise(by_id[id_]) for id_ in predictions.ids]
    np.testing.assert_allclose(predictions.probs[:, 1], expected, atol=1e-6)


@pytest.mark.slow
def test_a_killed_run_continues_where_it_was(folder):
    with serving(delay=0.1) as server:
        process = subprocess.Popen(command(folder, "--workers", "2"), env=environment(server), stdout=subprocess.DEVNULL)
        deadline = time.time() + 300
        while sum(server.asked.values()) < 8 and time.time() < deadline:
            time.sleep(0.02)
        process.kill()
        process.wait()
        answers = folder / "answers.jsonl"
        before = answers.read_text().count("\n")
        assert 0 < before < 40
        with open(answers, "a", encoding="utf-8") as file:
            file.write('{"text": "a line that was cut o')
        server.delay = 0.0
        server.asked.clear()
        done = ask(server, folder)
        texts = set(sentences(40, 0)[0])
        assert f"{len(texts)} texts, {len(texts) - before} of them without an answer" in done.stdout
        assert sum(server.asked.values()) == len(texts) - before
        assert f"{len(texts) - before} new answers, 0 that could not be used" in done.stdout
        assert len(read_predictions(answers, classes=("neg", "pos"))) == len(texts)
        server.asked.clear()
        ask(server, folder)
        assert not server.asked


def test_a_server_without_log_probabilities_gives_labels(folder):
    with serving(logprobs=False) as server:
        ask(server, folder, "--codes")
    predictions = read_predictions(folder / "answers.jsonl", classes=("neg", "pos"))
    assert predictions.one_hot
    assert len(set(predictions.predicted)) == 2


def test_a_text_that_the_server_refuses_is_skipped(folder):
    refused = sentences(40, 0)[0][3]
    with serving(refused=[refused]) as server:
        done = ask(server, folder)
    assert "skipped: " in done.stderr
    assert "1 that could not be used" in done.stdout
    assert refused not in {json.loads(line)["text"] for line in (folder / "answers.jsonl").read_text().splitlines()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--classes", "pos"], "at least two"),
        (["--classes", ",".join(f"c{i}" for i in range(30)), "--codes"], "30 classes and 26 letters; leave out --codes"),
        (["--text", "words"], "there is no column 'words'"),
    ],
)
def test_mistakes_are_one_line(folder, change, words):
    with serving() as server:
        done = ask(server, folder, *change, code=1)
        assert not server.requests
    assert words in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_a_server_that_keeps_failing_ends_the_run_and_keeps_the_answers(folder):
    with serving(failures=[200] * 5 + [401] * 1000) as server:
        done = ask(server, folder, "--workers", "1", code=1)
    assert done.stderr.startswith("error: ")
    assert "the same command continues from there" in done.stderr
    assert (folder / "answers.jsonl").read_text().count("\n") == 5


# ---- the guide ---------------------------------------------------------------------------------------------------------


def blocks(kind):
    """The blocks of the guide, each as one command or program."""
    guide = (ROOT / "examples" / "llm_teacher.md").read_text(encoding="utf-8")
    return [block.replace("\\\n", " ") for block in re.findall(rf"```{kind}\n(.*?)```", guide, flags=re.S)]


def write_table(path, rows, seed, *, labelled):
    made, labels = sentences(rows, seed)
    names = {"pos": "positive", "neg": "negative"}
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"] if labelled else ["text"])
        writer.writerows([text, names[label]] if labelled else [text] for text, label in zip(made, labels, strict=True))


@pytest.mark.slow
def test_the_commands_of_the_guide_lead_to_a_student(tmp_path):
    write_table(tmp_path / "labelled.csv", 150, 0, labelled=True)
    write_table(tmp_path / "dev.csv", 60, 1, labelled=True)
    write_table(tmp_path / "more.csv", 300, 2, labelled=False)
    save_model(tmp_path / "encoder", head=False, initializer_range=0.2)  # so that every CPU learns the same

    def run(command, server):
        command = command.replace("examples/ask_llm.py", str(SCRIPT)).replace("distilbert-base-uncased", "encoder")
        command = command.replace("distilcal distill", f"{sys.executable} -m distilcal distill --epochs 8 --lr 0.01 --no-alone")
        command = re.sub(r"^python ", f"{sys.executable} ", re.sub(r"^export .*\n", "", command))
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment(server), capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    ask_command, distill_command = blocks("sh")
    with serving() as server:
        run(ask_command, server)
        plan = run(distill_command, server).stdout
        log = run(distill_command.replace("--dry-run", ""), server).stderr
    [program] = blocks("python")
    loaded = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert loaded.stdout.startswith("Predictions('answers', ")
    assert re.search(r"teacher has predictions of train (\d+) of \1, dev 60 of 60, test ", plan)
    assert "the teacher's logits are divided by " in log
    stages = json.loads((tmp_path / "runs" / "llm" / "metrics.json").read_text())["stages"]
    assert stages["student"]["sets"]["test"]["given"]["accuracy"]["value"] > 0.7
    example = json.loads(blocks("json")[0])
    assert set(example) == set(json.loads((tmp_path / "answers.jsonl").read_text().splitlines()[0]))
