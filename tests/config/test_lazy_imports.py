"""What `distilcal eval` does not need, it does not import: it starts in a fraction of a second, with few packages installed."""

import subprocess
import sys

import numpy as np
import pytest

HEAVY = ("pydantic", "torch", "transformers", "jinja2", "matplotlib", "tomli_w")


def imported_heavy_packages(*statements):
    report = f"import sys; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    code = "\n".join([*statements, report])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.strip().splitlines()[-1]


def run_command(*arguments):
    return (
        "from distilcal.cli.main import main",
        f"try: main({[str(argument) for argument in arguments]!r})",
        "except SystemExit as stop: assert stop.code == 0, stop.code",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    for seed, name in enumerate(("test.csv", "dev.csv")):
        rng = np.random.default_rng(seed)
        rows = [f"{rng.integers(3)},{a},{b},{1 - a - b}" for a, b, _ in rng.dirichlet([1, 1, 1], size=60)]
        (folder / name).write_text("\n".join(["label,prob_0,prob_1,prob_2", *rows]))
    return folder


def test_the_package_imports_nothing_heavy():
    assert imported_heavy_packages("import distilcal") == "[]"


def test_the_help_of_eval_imports_nothing_heavy():
    assert imported_heavy_packages(*run_command("eval", "--help")) == "[]"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_eval_imports_nothing_heavy(folder, more):
    calibrated = ("eval", folder / "test.csv", "--calib", folder / "dev.csv")
    assert imported_heavy_packages(*run_command(*calibrated, *more)) == "[]"


def test_a_page_imports_jinja_when_it_is_asked_for(folder, tmp_path):
    pytest.importorskip("jinja2")
    assert imported_heavy_packages(*run_command("eval", folder / "test.csv", "--html", tmp_path / "p.html")) == "['jinja2']"
