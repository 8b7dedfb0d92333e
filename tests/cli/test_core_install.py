"""Without the optional packages every command works, or says in one line which extra to install."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from recorded import dynamics

from distilcal.cli.main import main
from distilcal.errors import EXTRAS, MissingDependencyError, optional_packages

# Every command with plausible arguments, and the extra that it needs beside the core; "" if none.
CASES = {
    "eval": [
        (["eval", "p.csv", "--ood", "p.csv"], ""),
        (["eval", "p.csv", "--html", "out.html"], "report"),
        (["eval", "p.csv", "--figure", "out.svg"], "figures"),
        (["eval", "p.parquet"], "parquet"),
    ],
    "cascade": [(["cascade", "p.csv", "p.csv", "--calib", "c.csv", "c.csv"], "")],
    "run": [(["run", "recipe.toml"], "train"), (["run", "recipe.toml", "--dry-run"], "train")],
    "distill": [(["distill", "--train", "d.csv", "--teacher", "encoder"], "train")],
    "predict": [
        (["predict", "run", "d.csv", "-o", "out.csv"], "train"),
        (["predict", "saved", "d.csv", "-o", "out.csv"], "train"),
        (["predict", "hub-name", "d.csv", "-o", "out.csv"], "train"),
        (["predict", "x.onnx", "d.csv", "-o", "out.csv"], "onnx"),
    ],
    "export": [(["export", "run", "out.onnx"], "train"), (["export", "saved", "out"], "train")],
    "serve": [(["serve", "run"], "serve"), (["serve", "x.onnx"], "serve")],
    "report": [(["report", "--help"], "")],
    "example": [(["example"], ""), (["example", "distill"], "")],
    "data": [(["data", "list"], "")],
    "study": [(["study"], "train"), (["study", "p000", "--dry-run"], "train")],
    "sweep": [(["sweep", "recipe.toml", "--grid", "stages.student.train.lr=1e-5,3e-5"], "train")],
    "map": [(["map", "map", "-o", "map.csv", "--html", "map.html"], "report")],
    "check": [(["check", "--help"], "")],
    "schema": [(["schema", "recipe"], "train"), (["schema", "study"], "train")],
}

PROGRAM = """
import sys
from importlib.machinery import PathFinder

missing = set(sys.argv.pop(1).split(","))

class Installed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in missing:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
from distilcal.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("core")
    (place / "p.csv").write_text("id,label,prob_a,prob_b\n1,a,.9,.1\n2,b,.2,.8\n3,a,.6,.4\n4,b,.3,.7\n")
    (place / "c.csv").write_text("id,label,prob_a,prob_b\n5,a,.8,.2\n6,b,.1,.9\n7,a,.7,.3\n8,b,.4,.6\n")
    (place / "d.csv").write_text("text,label\ngood,pos\nbad,neg\n")
    command = main.commands["example"]
    (place / "recipe.toml").write_text(CliRunner().invoke(command, ["distill"]).output, encoding="utf-8")
    for folder in ("run", "saved", "encoder"):
        (place / folder).mkdir()
    (place / "run" / "metrics.json").write_text('{"stages": {}}')
    (place / "saved" / "distilcal.json").write_text("{}")
    for name in ("saved/config.json", "encoder/config.json"):
        (place / name).write_text("{}")
    for name in ("p.parquet", "x.onnx"):
        (place / name).write_bytes(b"PAR1")
    dynamics().save(place / "map")
    return place


def run_without(missing, arguments, place):
    """A command in a Python in which these packages are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(missing), *arguments],
        cwd=place, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_every_command_is_among_the_cases():
    new = set(main.commands) - set(CASES)
    assert not new, f"enter {new} in CASES, with the extra that it needs"
    assert all(isinstance(main.commands[name], click.Command) for name in CASES)


@pytest.mark.parametrize(
    ("arguments", "extra"), [pytest.param(*case, id=" ".join(case[0])) for cases in CASES.values() for case in cases]
)
def test_the_core_install_works_or_names_the_extra(place, arguments, extra):
    before = sorted(place.rglob("*"))
    done = run_without(EXTRAS, arguments, place)
    if not extra:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(f"; pip install 'distilcal[{extra}]'")
    assert sorted(place.rglob("*")) == before  # nothing was written


@pytest.mark.parametrize("command", ["run", "distill", "predict", "export", "sweep"])
def test_torch_alone_may_be_missing(place, command):
    done = run_without(["torch"], CASES[command][0][0], place)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("needs torch; pip install 'distilcal[train]'")


def test_from_python_the_error_is_the_same():
    def load(name):
        with optional_packages("a model"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(MissingDependencyError, match=r"a model needs torch; pip install 'distilcal\[train\]'"):
        load("torch.nn")
    with pytest.raises(ModuleNotFoundError, match="ours") as caught:
        load("distilcal.ours")
    assert not isinstance(caught.value, MissingDependencyError)  # a fault of ours stays one
