"""The command line: what it prints, and that every mistake is one line, exit code 2 and no file."""

import json
import subprocess
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner
from samples import make

from distilcal import Predictions
from distilcal.calibrate import FITS, load_calibrator
from distilcal.cli.evaluate import METHODS
from distilcal.cli.main import main

FAST = ["--intervals", "40"]


@pytest.fixture
def folder(tmp_path):
    make(1500, 4, seed=1, scale=3).save(tmp_path / "dev.npz")
    test = make(1200, 4, seed=2, scale=3)
    test.save(tmp_path / "test.npz")
    Predictions.from_logits(test.logits / 2, test.labels, ids=test.ids).save(tmp_path / "other.csv")
    make(600, 4, seed=3, scale=6).save(tmp_path / "shifted.parquet")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def everything(folder):
    return [
        "eval", folder / "test.npz", "--calib", folder / "dev.npz", "--compare", folder / "other.csv",
        "--ood", folder / "shifted.parquet", *FAST,
    ]  # fmt: skip


def test_the_whole_tour(folder):
    done = run(*everything(folder), "--html", folder / "r.html", "--save-calibrator", folder / "t.json")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for said in (
        "test: 1,200 rows, 4 classes",
        "top-label, 15 equal-width bins, (lo, hi], L1 norm",
        "in and out of domain",
        "other against test, both as given: 1,200 rows shared",
        "Overconfident by",
        "Temperature ",
        "fixes",
        "On shifted accuracy",
        "other is better on",
        "Next",
        "Wrote",
    ):
        assert said in text, said
    assert (folder / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    fitted = load_calibrator(folder / "t.json")
    assert f"Temperature {fitted.value:.2f}" in text


def test_json_is_json_and_nothing_else(folder):
    done = run(*everything(folder), "--json")
    assert done.exit_code == 0
    content = json.loads(done.stdout)
    assert content["schema"] == "distilcal.eval/1"
    assert set(content) == {"schema", "test", "calibration", "threshold", "ood", "comparison", "resamples", "reading", "next"}
    one = content["test"]["metrics"]["ece"]
    assert set(one) == {"value", "low", "high", "null", "null_high", "beyond_chance", "definition", "params"}
    assert one["beyond_chance"] is True
    assert content["calibration"]["test"]["metrics"]["ece"]["value"] < one["value"]
    assert content["calibration"]["temperature"] > 1
    assert content["threshold"]["checks"][0]["name"] == "test"
    assert content["ood"][0]["before"]["name"] == "shifted"
    assert content["comparison"]["differences"]["ece"]["better"] == "b"
    assert sum(content["test"]["reliability"]["count"]) == 1200
    assert len(content["test"]["per_class"]) == 4


def test_json_of_an_infinite_figure_is_null(tmp_path):
    Predictions.from_probs([[1.0, 0.0], [0.5, 0.5], [0.4, 0.6]], [1, 0, 1]).save(tmp_path / "x.csv")
    content = json.loads(run("eval", tmp_path / "x.csv", "--json", *FAST).stdout)
    assert content["test"]["metrics"]["nll"]["value"] is None


def test_a_csv_of_probabilities_from_anywhere(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["label,ham,spam"]
    for _ in range(300):
        p = rng.uniform(0.05, 0.95)
        lines.append(f"{'spam' if rng.random() < p else 'ham'},{1 - p:.4f},{p:.4f}")
    (tmp_path / "mail.csv").write_text("\n".join(lines) + "\n")
    done = run("eval", tmp_path / "mail.csv", "--probs", *FAST)
    assert done.exit_code == 0, done.output
    assert "No miscalibration can be told from chance" in " ".join(done.output.split())


def test_bare_confidences(tmp_path):
    p = make(400, 3)
    Predictions.from_confidences(p.confidence, p.correct).save(tmp_path / "x.csv")
    done = run("eval", tmp_path / "x.csv", "--html", tmp_path / "r.html", *FAST)
    assert done.exit_code == 0, done.output
    assert "ece" in done.output
    assert "nll" not in done.output


@pytest.mark.parametrize("method", METHODS)
def test_every_method(folder, method):
    done = run("eval", folder / "test.npz", "--calib", folder / "dev.npz", "--method", method, "--json", *FAST)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["calibration"]["method"] == method


def test_the_listed_methods_are_all():
    assert list(METHODS) == list(FITS)


def test_bins_and_side_reach_the_table(folder):
    done = run("eval", folder / "test.npz", "--bins", 10, "--closed", "left", *FAST)
    assert "10 equal-width bins, [lo, hi), L1 norm" in " ".join(done.output.split())


MISTAKES = {
    "missing file": (["eval", "nowhere.npz"], "nowhere.npz: there is no such file"),
    "test split for calibration": (["eval", "dev.npz", "--calib", "test.npz"], "is named a test split"),
    "same rows": (["eval", "test.npz", "--calib", "copy.npz"], "the test would be on the rows of the fit"),
    "wrong extension": (["eval", "notes.txt"], "cannot read '.txt'"),
    "nan": (["eval", "nan.csv"], "nan.csv, line 3: nan is not a probability"),
    "ragged": (["eval", "ragged.csv"], "ragged.csv, line 2: 2 fields"),
    "other classes": (["eval", "test.npz", "--ood", "names.csv"], "has classes 'a', 'b'"),
    "no shared id": (["eval", "test.npz", "--compare", "ids.npz"], "share no id"),
    "no folder": (["eval", "test.npz", "--html", "no/where/r.html"], "does not exist"),
    "calibrator without calib": (["eval", "test.npz", "--save-calibrator", "c.json"], "needs --calib"),
    "calibrator name": (["eval", "test.npz", "--calib", "dev.npz", "--save-calibrator", "c.txt"], "neither .json nor .npz"),
    "unit that is not there": (["eval", "test.npz", "--probs"], "it holds logits, not probs"),
    "truncated": (["eval", "cut.npz"], "damaged or cut off"),
    "pickle": (["eval", "pickle.npz"], "never loaded"),
    "empty": (["eval", "empty.csv"], "the file is empty"),
    "one class": (["eval", "one.csv"], "only one class"),
    "repeated id": (["eval", "twice.csv"], "line 3: duplicate id 'x'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_exit_2_and_no_file(folder, name, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "copy.npz").write_bytes((folder / "test.npz").read_bytes())
    (folder / "notes.txt").write_text("x")
    (folder / "nan.csv").write_text("label,prob_a,prob_b\na,0.5,0.5\na,nan,0.5\n")
    (folder / "ragged.csv").write_text("label,prob_a,prob_b\na,0.5\n")
    (folder / "names.csv").write_text("label,prob_a,prob_b\na,0.5,0.5\n")
    (folder / "empty.csv").write_text("")
    (folder / "one.csv").write_text("label,prob_a\na,1\n")
    (folder / "twice.csv").write_text("id,label,prob_a,prob_b\nx,a,0.5,0.5\nx,a,0.5,0.5\n")
    (folder / "cut.npz").write_bytes((folder / "test.npz").read_bytes()[:500])
    np.savez(folder / "pickle.npz", logits=np.array([{}], dtype=object), labels=[0])
    ids = make(50, 4)
    Predictions.from_logits(ids.logits, ids.labels, ids=[f"z{i}" for i in range(50)]).save(folder / "ids.npz")
    before = sorted(f.name for f in folder.iterdir())
    arguments, said = MISTAKES[name]
    done = run(*arguments, *FAST, *(["--html", "r.html"] if "--html" not in arguments else []))
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.output
    assert sorted(f.name for f in folder.iterdir()) == before


def test_names_in_files_are_not_markup(tmp_path):
    p = make(200, 2)
    Predictions.from_logits(p.logits, p.labels, classes=["[bold]x[/bold]", "[/nope]"]).save(tmp_path / "[red]t.npz")
    done = run("eval", tmp_path / "[red]t.npz", *FAST)
    assert done.exit_code == 0, done.output
    assert "[red]t: 200 rows" in done.output


def test_help_is_fast_and_heavy_modules_stay_out():
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from distilcal.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'scipy', 'torch', 'rich', 'jinja2', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_eval_never_imports_torch(folder):
    code = (
        "import sys; sys.modules['torch'] = None\n"  # importing it now raises
        "import distilcal, distilcal.metrics, distilcal.calibrate, distilcal.selective\n"
        "from distilcal.cli.main import main\n"
        f"main(['eval', {str(folder / 'test.npz')!r}, '--intervals', '20', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"]


def test_a_command_that_trains_names_the_extra_that_is_missing(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from distilcal.cli.main import main\n"
        f"main(['distill', '--train', {str(tmp_path / 'train.csv')!r}, '--teacher', 'x/y'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: training needs torch; pip install 'distilcal[train]'\n"


def test_output_to_a_pipe_has_no_colour_and_fits_its_tables(folder):
    command = [sys.executable, "-m", "distilcal", "eval", str(folder / "test.npz"), *FAST]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b[" not in done.stdout
    assert "…" not in done.stdout
    assert done.stderr == ""


OUTPUT_MISTAKES = {
    "input as output": (
        ["--html", "test.npz"],
        "test.npz: this output is the input 'test.npz'; give the output a name of its own",
    ),
    "one name twice": (["--html", "o.json", "--save-calibrator", "o.json"], "o.json: this output is also the output 'o.json'"),
    "a folder": (["--html", "sub"], "not a file"),
    "a device": (["--html", "/dev/null"], "not a file"),
    "another file as a page": (["--html", "rival.csv"], "'rival.csv' is not an .html; give a name that ends in .html"),
    "bins": (["--bins", "0"], "--bins"),
    "accuracy in percent": (["--accuracy", "95"], "--accuracy"),
    "unknown option": (["--colour"], "--colour"),
    "seed": (["--seed", "-1"], "--seed"),
}


@pytest.mark.parametrize("name", OUTPUT_MISTAKES)
def test_outputs_and_options_are_checked_before_any_work(folder, name, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "sub").mkdir()
    before = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}
    arguments, said = OUTPUT_MISTAKES[name]
    done = run("eval", "test.npz", "--calib", "dev.npz", *FAST, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()} == before


def test_method_without_calib_is_refused(folder):
    done = run("eval", folder / "test.npz", "--method", "vector")
    assert done.exit_code == 2
    assert "--method needs --calib" in done.stderr


def test_a_link_is_written_through(folder):
    (folder / "real.html").write_text("old")
    (folder / "link.html").symlink_to(folder / "real.html")
    assert run("eval", folder / "test.npz", "--html", folder / "link.html", *FAST).exit_code == 0
    assert (folder / "link.html").is_symlink()
    assert (folder / "real.html").read_text(encoding="utf-8").startswith("<!doctype")


def test_a_reader_that_goes_away_loses_no_file(folder):
    command = f"{sys.executable} -m distilcal eval {folder / 'test.npz'} --intervals 20 --html {folder / 'r.html'} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (folder / "r.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("example", 0), ("schema recipe", 0), ("study", 0), ("check store", 1), ("eval test.npz --json", 0)],
)
def test_a_reader_that_goes_away_changes_no_exit_code(folder, arguments, code):
    (folder / "store" / "stages" / "mine").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m distilcal {arguments} | true"],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")


def test_a_reader_that_goes_away_does_not_stop_a_repair(tmp_path):
    left = [tmp_path / name / "stages" / ".0123456789abcdef0123.abcdefgh.part" for name in "ab"]
    for part in left:
        part.mkdir(parents=True)
    command = f"{sys.executable} -m distilcal check --repair {tmp_path / 'a'} {tmp_path / 'b'} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(part.exists() for part in left)


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_is_as_good_as_one_that_nobody_reads(folder, stream):
    command = f"{sys.executable} -m distilcal eval {folder / 'test.npz'} --intervals 20 --html {folder / 'r.html'} {stream}>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "r.html").exists()


def test_a_mistake_has_its_exit_code_where_it_cannot_be_told(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "distilcal", "eval", str(folder / "nothing.npz")], stderr=full, check=False
        )
    assert done.returncode == 2


def test_a_current_folder_that_was_deleted_is_named(folder, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    refused = CliRunner().invoke(main, ["eval", str(folder / "test.npz"), "--html", "r.html"])
    assert (refused.exit_code, refused.stderr) == (
        2,
        "error: the current folder does not exist any more; change to one that does\n",
    )


def test_output_that_cannot_be_written_is_said(folder):
    command = [sys.executable, "-m", "distilcal", "eval", str(folder / "test.npz"), "--intervals", "20"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_a_terminal_without_the_signs_shows_others(folder):
    command = [sys.executable, "-m", "distilcal", "eval", str(folder / "test.npz"), "--intervals", "20"]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "smooth_ece" in done.stdout


def test_narrow_windows_show_fewer_columns(folder):
    from io import StringIO

    from rich.console import Console

    from distilcal.evaluation import evaluate_model
    from distilcal.report.evaluations.terminal import show

    found = evaluate_model(
        Predictions.load(folder / "test.npz", name="test"), Predictions.load(folder / "dev.npz", name="dev"), intervals=20
    )
    for width in (80, 110, 160):
        text = StringIO()
        show(found, Console(file=text, width=width))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert any("debiased_ece" in line for line in lines)
        assert ("L1 norm" in text.getvalue()) == (width == 160)


def test_the_threshold_is_watched_out_of_domain(folder):
    p = make(900, 4, seed=5, scale=3)
    noise = 4 * np.random.default_rng(0).normal(size=p.logits.shape)
    Predictions.from_logits(p.logits + noise, p.labels).save(folder / "noisy.npz")
    sets = ["--calib", folder / "dev.npz", "--ood", folder / "noisy.npz"]
    done = run("eval", folder / "test.npz", *sets, "--accuracy", 0.8, *FAST)
    text = " ".join(done.output.split())
    assert "it does not hold" in text
    assert "Do not use the threshold on noisy as it is" in text
    assert "of those right" in text


def test_an_accuracy_of_one_is_promised_by_nothing(folder):
    done = run("eval", folder / "test.npz", "--calib", folder / "dev.npz", "--accuracy", 1, *FAST)
    assert done.exit_code == 0, done.output
    assert "No threshold can promise 100% accuracy" in " ".join(done.output.split())


def test_no_option_that_is_a_number_takes_nan():
    commands = [main, *main.commands.values()]
    options = [param for command in commands for param in command.params if isinstance(param.type, click.FloatRange)]
    assert len(options) > 10
    for option in options:
        with pytest.raises(click.BadParameter, match="nan is not a number"):
            option.type.convert("nan", option, None)
