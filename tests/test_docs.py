"""Blocks of the documentation that are marked as tested are run, and print what stands below them."""

import contextlib
import functools
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
BLOCK = re.compile(r"<!-- tested: (\S+) -->\n```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)
EXAMPLES = [(page, *found) for page in PAGES for found in BLOCK.findall(page.read_text(encoding="utf-8"))]
# Blocks that import torch or train.
TRAINS = ("distill-", "dynamics-", "training-", "mixing-", "models-", "losses-", "integrations-")
# Blocks that read what another one writes.
READS = {"distill-python": "distill-predict", "dynamics-map": "dynamics-recorder", "dynamics-page": "dynamics-recorder"}


@pytest.fixture(scope="module")
def run_block(tmp_path_factory):
    """A function that runs a block, after the one whose files it reads; each runs once, and is asserted to end well.

    The folder is as `make eval` leaves it, with the made-up reviews of docs/guides/distill.md.
    """
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for command in (["examples/make_predictions.py", "demo"], ["examples/make_reviews.py", "reviews"]):
        subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
    blocks = {name: (kind, block) for _, name, kind, block, _ in EXAMPLES}

    @functools.cache
    def run_in_folder(name):
        if name in READS:
            run_in_folder(READS[name])
        kind, block = blocks[name]
        if kind == "console":
            return output_of_shell(block.split("\n", 1)[0].removeprefix("$ "), folder)
        return output_of_training(block, folder) if name.startswith(TRAINS) else output_of_python(block, folder)

    return run_in_folder


def output_of_shell(line, folder):
    line = line.replace("distilcal ", f"{Path(sys.executable).parent / 'distilcal'} ")
    return output_of_process(line.replace("python ", f"{sys.executable} ", 1) if line.startswith("python ") else line, folder)


def output_of_python(block, folder):
    return output_of_process([sys.executable, "-c", block], folder)


def output_of_process(command, folder):
    # Readline, which pytest imports, exports COLUMNS to children that inherit the environment without being given it.
    shell = isinstance(command, str)
    done = subprocess.run(command, cwd=folder, shell=shell, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_of_training(block, folder):
    """Run a block in this process: torch and transformers, which take longer to import than most blocks to run, are here."""
    import torch

    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which are errors here, and of no concern to a reader who runs the block
        exec(compile(block, "block", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def same(got: str, expected: str) -> None:
    assert [line.rstrip() for line in got.strip().splitlines()] == [line.rstrip() for line in expected.strip().splitlines()]


@pytest.mark.parametrize(
    ("name", "kind", "block", "output"),
    [pytest.param(*e[1:], id=e[1], marks=[pytest.mark.slow] if e[1].startswith(TRAINS) else []) for e in EXAMPLES],
)
def test_documented_output(run_block, name, kind, block, output):
    same(run_block(name), block.split("\n", 1)[1] if kind == "console" else output)


def test_blocks_have_names_of_their_own():
    assert len({e[1] for e in EXAMPLES}) == len(EXAMPLES)


def test_there_are_examples_on_every_subject():
    assert {e[1] for e in EXAMPLES} >= {
        "readme-python",
        "readme-shell",
        "contributing-metric",
        "files-npz",
        "calibration-table",
        "distill-dry-run",
        "training-fit",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_readme_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"make ([\w-]+)", (ROOT / "README.md").read_text(encoding="utf-8"))) <= targets


def test_paths_of_the_contributing_table_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| you add |", 1)[1].split("\n\n", 1)[0]
    paths = {word for word in re.findall(r"`([^`]+)`", table) if re.fullmatch(r"[\w/-]+(/|\.\w+)", word)}
    assert len(paths) > 20
    for path in paths:
        assert (ROOT / "src" / "distilcal" / path).exists() or (ROOT / path).exists(), path


def test_names_of_the_contributing_table_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| you add |", 1)[1].split("\n\n", 1)[0]
    names = set(re.findall(r"`([A-Z]\w+)`", table))
    assert len(names) > 8
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "distilcal").rglob("*.py"))
    for name in names:
        assert re.search(rf"^(class {name}\b|{name}\b.*=)", source, flags=re.M), name


def test_pages_that_the_package_names_exist():
    for path in (ROOT / "src").rglob("*.py"):
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{path.name} names {page}"


REFERENCED = [
    (page, *entry)
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    for entry in re.findall(
        r"^::: (\S+)(?:\n    options:\n      members: \[(.*)\])?", page.read_text(encoding="utf-8"), flags=re.M
    )
]


@pytest.mark.parametrize(("page", "module", "members"), REFERENCED, ids=lambda value: getattr(value, "stem", value))
def test_members_of_the_reference_exist(page, module, members):
    found = importlib.import_module(module)
    assert found.__doc__
    for member in filter(None, members.split(", ")):
        assert getattr(found, member).__doc__, f"{page.name} lists {module}.{member}, which has no docstring"


def test_documented_json_keys_are_those_that_are_written():
    from samples import make

    from distilcal.evaluation import evaluate_model
    from distilcal.report.evaluations.as_json import to_json

    text = (ROOT / "docs" / "reference" / "eval-json.md").read_text(encoding="utf-8")
    test = make(200, 3)
    content = to_json(evaluate_model(test, make(300, 3, seed=1), test, [make(100, 3, seed=2)], intervals=20))

    def keys(value):
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in test_metric_names:
                    yield key
                yield from keys(item)
        elif isinstance(value, list):
            for item in value:
                yield from keys(item)

    from distilcal.metrics import METRICS

    test_metric_names = {*METRICS, "bins", "variant", "threshold", "norm", "grid"}
    for key in set(keys(content)):
        assert f"`{key}`" in text, key
