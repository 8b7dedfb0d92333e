"""The data map: points where the numbers are, tables that give them back, text that stays text, mistakes in one line."""

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from distilcal.cli.main import main
from distilcal.dynamics import Recorder, aum_halves, load_dynamics, regions
from distilcal.dynamics.data_map import Examples, build_map
from distilcal.io.tables import read_table
from distilcal.report.formatting import one_line
from distilcal.report.map_page import (
    render_map,
)
from distilcal.report.maps import show_map, write_map_table

pytest.importorskip("jinja2")

from recorded import CLASSES, COLUMNS, dynamics, texts_for


@pytest.fixture
def run_folder(tmp_path):
    """A run with one recorded stage, its data in another order than its dynamics."""
    d = dynamics(names=CLASSES, classes=2)
    folder = tmp_path / "run"
    rows = np.random.default_rng(1).permutation(len(d))
    for name, prefix in (("train", ""), ("dev", "dev-"), ("test", "test-")):
        with open(tmp_path / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\r\n")
            writer.writerow(["id", "text", "label"])
            writer.writerows((prefix + d.ids[i], prefix + texts_for(d)[i], CLASSES[d.labels[i]]) for i in rows)
    d.save(folder / "student" / "dynamics")
    (folder / "student" / "history.json").write_text("[]")
    (folder / "recipe.toml").write_text(
        f'[data]\ntrain = "{tmp_path}/train.csv"\ndev = "{tmp_path}/dev.csv"\ntest = "{tmp_path}/test.csv"\n'
        'ood = ["gone.csv"]\n[stages.student.model]\nname = "linear"\n[[stages.student.terms]]\nloss = "cross_entropy"\n'
    )
    return folder


def run(*arguments):
    return CliRunner().invoke(main, ["map", *map(str, arguments)])


def table_of(path):
    """The rows of a table as our own reader returns them."""
    table = read_table(path)
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*table.columns.values(), strict=True)]


# ---- the command and its table -----------------------------------------------------------------------------------------


def test_the_table_has_every_statistic_and_the_example(run_folder):
    done = run(run_folder, "--fraction", 0.25)
    assert done.exit_code == 0, done.output
    d = load_dynamics(run_folder / "student" / "dynamics")
    rows = table_of(run_folder / "student" / "map.csv")
    assert list(rows[0]) == [*COLUMNS, "text"]
    assert [r["id"] for r in rows] == d.ids[np.lexsort((d.ids, d.aum))].tolist()
    place = {id_: i for i, id_ in enumerate(d.ids.tolist())}
    inside, high = regions(d, 0.25), aum_halves(d)
    for row in rows:
        i = place[row["id"]]
        assert row["label"] == CLASSES[d.labels[i]]
        assert row["predicted"] == CLASSES[int(d.logits[i].argmax())]
        for name in ("confidence", "variability", "threshold_closeness", "aum"):
            assert float(row[name]) == pytest.approx(getattr(d, name)[i], rel=1e-5, abs=1e-9)
        for name in ("correctness", "epochs", "forgetting"):
            assert int(row[name]) == getattr(d, name)[i]
        for name, members in inside.items():
            assert row[name] == str(int(i in members))
        assert row["aum_half"] == ("high" if high[i] else "low")
        assert row["mislabelled"] == str(int(d.aum[i] < 0))
        assert row["text"] == texts_for(d)[i]
    assert sum(r["hard"] == "1" for r in rows) == 15


def test_parquet_holds_the_same_in_full(run_folder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(run_folder, "-o", tmp_path / "map.parquet").exit_code == 0
    assert not (run_folder / "student" / "map.csv").exists()
    d = load_dynamics(run_folder / "student" / "dynamics")
    found = parquet.read_table(tmp_path / "map.parquet").to_pydict()
    assert list(found) == [*COLUMNS, "text"]
    order = np.lexsort((d.ids, d.aum))
    np.testing.assert_array_equal(found["aum"], d.aum[order])
    assert found["mislabelled"] == (d.aum[order] < 0).tolist()
    assert found["text"] == texts_for(d)[order].tolist()


def test_run_stage_and_saved_folder_give_the_same_map(run_folder, tmp_path, monkeypatch):
    stage = run_folder / "student"
    assert run(run_folder).exit_code == 0
    expected = (stage / "map.csv").read_bytes()
    for given, where in ((stage, run_folder), (stage / "dynamics", stage), (".", stage), (".", stage / "dynamics")):
        for made in ("map.csv", "map.html"):
            (stage / made).unlink()
        monkeypatch.chdir(where)
        done = run(given)
        assert done.exit_code == 0, done.output
        assert (stage / "map.csv").read_bytes() == expected
        assert (stage / "map.html").exists()
    dynamics().save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")  # never into a sealed folder
    done = run(".")
    assert done.exit_code == 0, done.output
    assert list(table_of(tmp_path / "mine-map.csv")[0]) == COLUMNS
    assert "not shown: no recipe beside it" in done.output
    load_dynamics(tmp_path / "mine")


def test_a_stage_is_named_where_there_are_two(run_folder):
    dynamics(n=7).save(run_folder / "teacher" / "dynamics")
    done = run(run_folder)
    assert done.exit_code == 2
    assert "2 stages were recorded; give --stage student or teacher" in done.output
    done = run(run_folder, "--stage", "teacher")
    assert "run/teacher: 7 examples of 3 classes, 8 epochs" in done.output
    assert len(table_of(run_folder / "teacher" / "map.csv")) == 7


def test_what_is_printed(run_folder):
    text = " ".join(run(run_folder, "--svg", run_folder / "map.svg").output.split())
    d = load_dynamics(run_folder / "student" / "dynamics")
    m = build_map(d, "x")
    below = int((d.aum < 0).sum())
    for said in (
        "run/student: 60 examples of 2 classes, 8 epochs",
        f"│ all │ 60 │ {np.median(d.confidence):.3f} │ {np.median(d.variability):.3f} │ {np.median(d.aum):.3f} │",
        f"│ {m.right.mean():.1%} │ {below} │",
        f"│ hard │ 19 │ {np.median(d.confidence[m.regions['hard']]):.3f} │",
        f"most doubtful labels, 8 of {below}",
        f"{below} examples ({below / 60:.1%}) lost to another class on average",
        "Read the examples with AUM below 0",
        "map.html: open it in a browser.",
        "map.csv: 60 examples, the most doubtful label first.",
        "map.svg: the map as a figure.",
    ):
        assert said in text, said
    assert one_line(texts_for(d)[d.aum.argmin()], 100) in text


def test_text_of_users_is_no_markup_and_steers_no_terminal():
    d = dynamics(n=9, classes=2, names=("[bold]a", "b\x1b[31m"))
    d = replace(d, aum=np.linspace(-9, -1, 9))
    m = build_map(d, "n", examples=Examples({"text": np.array(["[red]x[/red] \x1b]0;owned\x07 \u202eabc"] * 9, dtype=object)}))
    console = Console(file=io.StringIO(), width=150, force_terminal=False)
    show_map(m, console)
    said = console.file.getvalue()
    assert "[red]x[/red] \ufffd]0;owned\ufffd \ufffdabc" in said
    assert "[bold]a" in said
    assert "\x1b" not in said
    assert one_line("a\n b\tc", 5) == "a b c"
    assert one_line("abcdefgh", 5) == "abcd…"


def test_no_torch_is_imported(run_folder):
    code = (
        f"import sys; sys.argv = ['distilcal', 'map', {str(run_folder)!r}]\n"
        "from distilcal.cli.main import main\n"
        "try: main()\nfinally: print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("False False")


# ---- data that is not there any more -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["moved", "no recipe", "broken recipe", "other ids", "other label"])
def test_without_the_data_the_map_goes_on_and_says_so(run_folder, tmp_path, case):
    train = tmp_path / "train.csv"
    lines = train.read_text(encoding="utf-8").splitlines()
    if case == "moved":
        train.rename(tmp_path / "elsewhere.csv")
    elif case == "no recipe":
        (run_folder / "recipe.toml").unlink()
    elif case == "broken recipe":
        (run_folder / "recipe.toml").write_text("[data\n")
    elif case == "other ids":
        train.write_text("\n".join([lines[0], *("x" + line if line.startswith("r0") else line for line in lines[1:])]) + "\n")
    else:
        d = load_dynamics(run_folder / "student" / "dynamics")
        old, new = CLASSES[d.labels[10]], CLASSES[1 - d.labels[10]]
        changed = [line.replace(old, new) if line.startswith("r010,") else line for line in lines]
        train.write_text("\n".join(changed) + "\n")
    done = run(run_folder)
    assert done.exit_code == 0, done.output
    said = next(line for line in done.output.splitlines() if "not shown" in line)
    reason = {
        "moved": "train.csv: there is no such file or folder",
        "no recipe": "no recipe beside it says where they are",
        "broken recipe": "not readable as TOML",
        "other ids": "60 of 60 ids are gone or labelled otherwise",
        "other label": "1 of 60 ids are gone or labelled otherwise",
    }[case]
    assert reason in said
    assert list(table_of(run_folder / "student" / "map.csv")[0]) == COLUMNS
    assert reason in (run_folder / "student" / "map.html").read_text(encoding="utf-8")


def test_examples_that_were_never_recorded_are_left_out(tmp_path):
    recorder = Recorder(["a", "b", "c", "d"], [0, 1, 0, 1], ["x", "y"])
    recorder.record([0, 1, 3], np.array([[2.0, 0.0], [0.0, 1.0], [np.nan, 1.0]]))
    m = build_map(recorder.dynamics(), "m", examples=Examples({"text": np.array(["A", "B", "C", "D"], dtype=object)}))
    assert m.left_out == 2
    write_map_table(m, tmp_path / "map.csv")
    assert [(r["id"], r["text"]) for r in table_of(tmp_path / "map.csv")] == [("b", "B"), ("a", "A")]
    assert "2 examples more were never recorded" in render_map(m)


def test_formulas_are_escaped_unless_they_are_to_be_kept(run_folder):
    texts = {}
    for options in ((), ("--keep-formulas",)):
        assert run(run_folder, *options).exit_code == 0
        with open(run_folder / "student" / "map.csv", newline="", encoding="utf-8") as file:
            texts[options] = {row["text"] for row in csv.DictReader(file)}
        assert "=1+1" in {row["text"] for row in table_of(run_folder / "student" / "map.csv")}
    assert "'=1+1" in texts[()]
    assert "=1+1" in texts["--keep-formulas",]


# ---- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES = {
    "no folder": (["nowhere"], "nowhere: there is no such folder"),
    "a file": (["run/recipe.toml"], "this is a file"),
    "not recorded": (["empty"], "no training dynamics were recorded here; train a stage with record = true"),
    "other stage": (["run", "--stage", "teacher"], "no stage 'teacher' was recorded; there is student"),
    "stage of a stage": (["run/student", "--stage", "student"], "--stage is for the folder of a run"),
    "suffix": (["run", "-o", "map.xlsx"], "'map.xlsx' is neither .csv nor .parquet"),
    "twice": (
        ["run", "-o", "a.csv", "--html", "a.csv"],
        "a.csv: this output is also the output 'a.csv'; give the output a name of its own",
    ),
    "the training data": (["run", "-o", "train.csv"], "train.csv: this output is the input"),
    "the dynamics": (["run", "--html", "run/student/dynamics/aum.npy"], "aum.npy: this output is the input"),
    "the recipe": (["run", "--html", "run/recipe.toml"], "recipe.toml: this output is the input"),
    "another file as the page": (["run", "--html", "r.toml"], "'r.toml' is not an .html; give a name that ends in .html"),
    "where to": (["run", "--svg", "no/where.svg"], "does not exist"),
    "a folder as output": (["run", "--html", "empty"], "this is a folder or a device"),
    "fraction": (["run", "--fraction", "0"], "0.0 is not in the range"),
    "damaged": (["damaged"], "'aum.npy' missing or damaged (wrong checksum)"),
    "nothing recorded": (["unseen"], "no example was recorded"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_exit_2_and_no_file(run_folder, name, monkeypatch):
    folder = run_folder.parent
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    dynamics(n=5).save(folder / "damaged")
    (folder / "damaged" / "aum.npy").write_bytes(b"x")
    Recorder(["a"], [0], ["x", "y"]).dynamics().save(folder / "unseen")
    before = sorted(folder.rglob("*"))
    arguments, message = MISTAKES[name]
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not done.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("kind", ["pairs", "choices", "images"])
def test_every_kind_of_example_is_found_again(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    n, rng = 24, np.random.default_rng(0)
    labels = np.arange(n) % 2
    if kind == "images":
        pixels = rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
        np.savez("train.npz", images=pixels, labels=labels, ids=[f"i{k}" for k in range(n)], classes=["0", "1"])
        data = 'train = "train.npz"\ndev = "train.npz"\ntest = "train.npz"'
    else:
        lines = ["id,premise,hypothesis,label"] + [f"i{k},premise {k},other {k},{labels[k]}" for k in range(n)]
        Path("train.csv").write_text("\n".join(lines) + "\n")
        data = 'train = "train.csv"\ndev = "train.csv"\ntest = "train.csv"'
        data += '\ntext = "id"\nchoices = ["premise", "hypothesis"]' if kind == "choices" else ""
    recorder = Recorder([f"i{k}" for k in range(n)], labels, ["0", "1"])
    recorder.record(np.arange(n), rng.normal(size=(n, 2)))
    recorder.dynamics().save("run/s/dynamics")
    Path("run/recipe.toml").write_text(f'[data]\n{data}\n[stages.s.model]\nname = "linear"\n')
    done = run("run")
    assert done.exit_code == 0, done.output
    assert "not shown" not in done.output
    rows = table_of("run/s/map.csv")
    extra = {"pairs": ["text", "pair"], "choices": ["text", "choice_0", "choice_1"], "images": []}[kind]
    assert list(rows[0]) == COLUMNS + extra
    for row in rows:
        k = row["id"][1:]
        expected = {"pairs": [f"premise {k}", f"other {k}"], "choices": [f"i{k}", f"premise {k}", f"other {k}"], "images": []}
        assert [row[title] for title in extra] == expected[kind]
    page = Path("run/s/map.html").read_text(encoding="utf-8")
    if kind == "images":
        assert len(re.findall("<img ", page)) == 20 + 7
    else:
        assert "premise 3 ⏐ other 3" in page
