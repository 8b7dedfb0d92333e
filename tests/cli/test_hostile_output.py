"""What users call their classes, ids, texts and files never steers the terminal of somebody who looks at them."""

import json
import logging
import re
import warnings
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.table import Table
from rich.text import Text

import distilcal
from distilcal import Predictions
from distilcal.cli.console import echo, echo_json, log_to_console, plain_warnings
from distilcal.cli.main import main
from distilcal.report.console import build_console
from distilcal.report.formatting import printable

HOSTILE = "a\x1b[31m\x1b]0;t\x07\r\u202eb\u2066c\x9b2Jd\x85\u2028e"
SAFE = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*")  # line feeds only


def run(*arguments, code=0):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output + done.stderr
    for text in (done.stdout, done.stderr):
        assert SAFE.fullmatch(text), repr(text)
    if code == 2:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions of two models whose class names, ids and file names are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    for split, rows in (("dev", 400), (HOSTILE, 300)):
        labels = rng.integers(0, 3, rows)
        ids = [f"{split}{i}{HOSTILE}" for i in range(rows)]
        for model, signal in (("student", 3.0), ("teacher", 4.0)):
            logits = signal * np.eye(3)[labels] + rng.normal(size=(rows, 3))
            predictions = Predictions.from_logits(logits, labels, ids=ids, classes=[HOSTILE, f"x{HOSTILE}", "y"])
            predictions.save(folder / f"{model}{split}.npz")
    return folder


def test_eval_and_cascade(folder):
    student, teacher = folder / f"student{HOSTILE}.npz", folder / f"teacher{HOSTILE}.npz"
    options = ["--calib", folder / "studentdev.npz", "--compare", teacher, "--ood", teacher, "--intervals", 20]
    page = folder / f"{HOSTILE}.html"
    shown = run("eval", student, *options, "--html", page).stdout
    assert "\ufffd[31m" in shown
    assert f"Wrote {printable(str(page))}" in shown
    assert json.loads(run("eval", student, *options, "--json").stdout)["test"]
    run("cascade", student, teacher, "--calib", folder / "studentdev.npz", folder / "teacherdev.npz")


def test_json_keeps_the_value(capsys):
    echo_json({HOSTILE: [HOSTILE, "é\ud800"]})
    printed = capsys.readouterr().out
    assert SAFE.fullmatch(printed)
    assert json.loads(printed) == {HOSTILE: [HOSTILE, "é\ud800"]}


def test_mistakes_name_what_is_hostile(folder, tmp_path):
    run("eval", tmp_path / f"{HOSTILE}.csv", code=2)
    run("eval", folder, f"--{HOSTILE}", code=2)
    run("map", tmp_path / HOSTILE, code=2)
    run("data", "show", HOSTILE, code=2)
    run("predict", tmp_path / HOSTILE, tmp_path / HOSTILE, "-o", tmp_path / f"{HOSTILE}.csv", code=2)
    run("report", tmp_path / HOSTILE, code=2)
    run("run", tmp_path / f"{HOSTILE}.toml", code=2)
    run("study", "run", HOSTILE, code=2)
    table = tmp_path / f"{HOSTILE}.csv"
    table.write_text(f'label,prob_a,prob_b\n"{HOSTILE}",0.5,0.5\n', encoding="utf-8")
    run("eval", table, code=2)
    table.write_text(f'text,label\n"{HOSTILE}",a\n"x","{HOSTILE}"\n', encoding="utf-8")
    run("distill", "--train", table, "--teacher", HOSTILE, "--out", tmp_path / "out", "--store", tmp_path / "s", code=2)


def test_a_run_its_report_its_map_and_its_predictions(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 2
    data = tmp_path / f"data{HOSTILE}.npz"
    vectors = (labels[:, None] + rng.normal(size=(300, 3))).astype(np.float32)
    ids = [f"{i}{HOSTILE}" for i in range(300)]
    np.savez(data, vectors=vectors, labels=labels, classes=[HOSTILE, "y"], ids=ids)
    recipe = tmp_path / f"{HOSTILE}.toml"
    recipe.write_text(
        f'name = "small"\n[data]\ntrain = {json.dumps(str(data))}\n[stages.student]\nmodel = {{ name = "linear" }}\n'
        'record = true\ntrain = { epochs = 2, lr = 0.01 }\nterms = [{ loss = "cross_entropy" }]\n',
        encoding="utf-8",
    )
    place = tmp_path / f"run{HOSTILE}"
    where = ["--out", place, "--store", tmp_path / "store"]
    run("run", recipe, *where, "--dry-run")
    run("run", recipe, *where)
    run("report", place, "--html", tmp_path / f"{HOSTILE}.html")
    metrics = (place / "metrics.json").read_bytes()
    run("report", place, "--html", place / "metrics.json", code=2)
    run("report", place, "--html", recipe, code=2)  # a recipe is no page
    assert (place / "metrics.json").read_bytes() == metrics
    run("map", place)
    run("predict", place, data, "-o", tmp_path / f"{HOSTILE}.csv")


def test_log_lines_and_warnings(capsys):
    with log_to_console(), plain_warnings():
        logging.getLogger("distilcal.test").warning("%s\nerror: not ours", HOSTILE)
        warnings.simplefilter("always")
        warnings.warn(HOSTILE, stacklevel=1)
        echo(HOSTILE)
    printed = capsys.readouterr()
    assert SAFE.fullmatch(printed.err + printed.out)
    assert printed.err.count("\n") == 2


def test_tables_keep_their_width():
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE))
    table.add_row("[bold]" + HOSTILE)
    file = StringIO()
    build_console(file).print(table)
    assert SAFE.fullmatch(file.getvalue())
    assert len({len(line) for line in file.getvalue().splitlines()}) == 1


def test_everything_is_printed_through_what_cleans():
    root = Path(distilcal.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "console.py":
            assert "click.echo(" not in text, path
        if path != root / "report" / "console.py":
            assert not re.search(r"\bConsole\((?!\)\.is_jupyter|width)", text), path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_keeps_the_value_where_standard_output_lacks_its_characters(monkeypatch, encoding):
    output = TextIOWrapper(BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", output)
    echo_json({"é": 1, "ł": HOSTILE, "\x7f": 2})
    assert json.loads(output.buffer.getvalue().decode(encoding)) == {"é": 1, "ł": HOSTILE, "\x7f": 2}
