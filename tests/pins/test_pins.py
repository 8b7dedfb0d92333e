"""Today's numbers, pinned through the command line, so that moving and renaming modules is seen to change none of them.

What the commands print and write is compared with pinned/*.json; ``pinning`` says how, and how to pin anew. Timings, paths of
the machine and the environment are left out. Names in the store that hash trained weights (outputs, measured) are compared only
with DISTILCAL_PIN_EXACT=1: other CPUs round otherwise. Keys of stages hash the files of the tiny models, which name the version
of transformers: they are compared if those files are the pinned ones.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
from pin_inputs import make_inputs
from pinning import PINNED, as_number, check, exact, file_digests, names_below, read_table, repinning, short_digest, without
from shell import command

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")
pytestmark = pytest.mark.slow  # a minute and a half together: make test-all runs them

TIMES = ("seconds", "ms_per_example", "ms_spread")
# What is said about predictions that are pinned, and a model beside them: tests/pipeline/test_checks.py, test_baseline.py.
CHECKS = ("warnings", "macro_f1", "near_overlaps", "baseline")
FEW = 6  # stages of a run whose figures are pinned in full
DIGESTS = () if exact() else ("digests",)  # of rounded floats: elsewhere they may be rounded to the other side
CHIEF = ("accuracy", "nll", "ece")
STUDIES = ("informed-mixup", "aum-saliency", "calibrated-student", "kd-or-smoothing", "calibration-transfer")
SCALES = ("small", "full")


def expanded_jobs(name: str, scale: str) -> dict[str, tuple[str, str, dict]]:
    """Every job of a study: label → (task, stage, its recipe with all it depends on as a plain table).

    THE ONLY PLACE IN THESE TESTS THAT KNOWS MODULES OF DISTILCAL: when they move, change these lines and nothing else. Where a
    job waits for a choice between points of a grid, the first point stands for it.
    """
    from distilcal.config.loading import as_table
    from distilcal.study.expand import expand, job_recipe
    from distilcal.study.loading import load_study

    graph = expand(load_study(name, scale))
    first = {choice.id: choice.jobs[0] for choice in graph.choices.values()}
    found = [(job.label, (job.task, job.name, as_table(job_recipe(graph, id_, first)[0]))) for id_, job in graph.jobs.items()]
    assert len(dict(found)) == len(found), "two jobs have one label"
    return dict(found)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all inputs. Whether they are the pinned ones, byte for byte, is in the second."""
    torch.set_num_threads(1)
    folder = make_inputs(tmp_path_factory.mktemp("pins"))
    digests = file_digests(folder)
    path = PINNED / "inputs.json"
    if repinning():
        check("inputs", digests)
    shutil.copy(Path(__file__).parent / "tiny_study.toml", folder)
    return folder, json.loads(path.read_text(encoding="utf-8")) == digests


@pytest.fixture
def place(made, monkeypatch):
    """The folder of the inputs, to work in: all names are relative to it."""
    monkeypatch.chdir(made[0])
    for name in ("DISTILCAL_STORE", "DISTILCAL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("COLUMNS", "150")
    return made[0]


@pytest.fixture
def leave_out(made):
    """The parts of what is pinned that say nothing here."""
    return () if exact() else ("hashes of weights",) if made[1] else ("hashes of weights", "keys")


def changes(*said: str) -> list[str]:
    return [word for change in said for word in ("--set", change)]


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def names_in_store(store):
    """What a store holds, by name: stages and points by what determines them, shards of outputs by the rows in them."""
    shards = sorted({name for owner in names_below(store / "outputs") for name in names_below(store / "outputs" / owner)})
    keys = {"folders": names_below(store), "stages": names_below(store / "stages"), "points": names_below(store / "points")}
    return {**keys, "shards": shards}, {kind: names_below(store / kind) for kind in ("outputs", "measured")}


def found_in_run(run, store):
    """The numbers of a run: metrics without times, history of every stage, and names in the store."""
    facts = without(read_json(run / "metrics.json"), *TIMES, *CHECKS)
    facts["stages"] = {name: without(stage, "classes") for name, stage in facts["stages"].items()}
    keys, hashes = names_in_store(store)
    keys["stage"] = {name: stage.pop("key") for name, stage in facts["stages"].items()}
    history = {name: without(read_json(run / name / "history.json"), *TIMES) for name in facts["stages"]}
    definitions = {}
    few = len(facts["stages"]) <= FEW
    for stage in facts["stages"].values():
        if not few and stage["threshold"] is not None:
            stage["threshold"].pop("message")
        for name, figures in stage["sets"].items():
            for when in ("given", "calibrated"):
                if figures[when] is not None:
                    figures[when] = short_figures(figures[when], definitions, whole=few and (name, when) == ("test", "given"))
    return {"run": facts, "definitions": definitions, "history": history, "keys": keys, "hashes of weights": hashes}


def short_figures(figures, definitions, *, whole):
    """Every figure as a list (value, low, high, null, beyond chance), or the chief ones with one sum of all numbers.

    What each means is said once for all of a run.
    """
    rows = {}
    for name, figure in figures.items():
        definition = [figure.get("definition"), figure.get("params")]
        assert definitions.setdefault(name, definition) == definition
        rows[name] = [value for key, value in figure.items() if key not in ("definition", "params")]
    if whole:
        return rows
    numbers = [number for row in rows.values() for number in row if isinstance(number, float)]
    beyond = sum(True in row for row in rows.values())
    return {**{name: rows[name][0] for name in CHIEF}, "sum of all": math.fsum(numbers), "beyond chance": beyond}


# ---- recipes -----------------------------------------------------------------------------------------------------------

TEXTS = ("data.train=train.csv", "data.ood=['other.csv']", "data.limit=96", "data.limit_test=0", "accuracy=0.6")
TEACHER = "{name='resnet20_padded', weights='models/resnet20.safetensors', labels=['down','mixed','up'], mean=[0.5,0.5,0.5]}"
IMAGES = ("data.train=images.npz", "data.limit=48", f"stages.teacher.model={TEACHER}", "accuracy=0.4")


def shrunk(stage, model="", epochs=2, lr=0.003):
    """A stage that learns in a second, from a tiny model."""
    named = [f"stages.{stage}.model.name=models/{model}"] if model else []
    return (*named, f"stages.{stage}.train.epochs={epochs}", f"stages.{stage}.train.lr={lr}")


RECIPES = {
    "aum_saliency": (*TEXTS, *shrunk("map", "bert", epochs=1)),
    "born_again": (*TEXTS, *(s for name in ("first", "second", "third") for s in shrunk(name, "distilbert", lr=0.002))),
    "calibrated_student": (
        *IMAGES,
        "data.limit_test=25",
        "data.corrupt=['frost:3']",
        "stages.alone.train.epochs=1",
        "stages.alone.train.lr=0.002",
    ),
    "cross_architecture": (*TEXTS, *shrunk("teacher", "roberta"), *shrunk("student", "bert")),
    "demo": (
        *TEXTS,
        "data.unlabelled=['other.csv']",
        "data.limit_unlabelled=40",
        *(s for name in ("teacher", "alone") for s in shrunk(name, "bert")),
        *(s for name in ("labelled-only", "hard-labels", "student") for s in shrunk(name)),
    ),
    "distill": (*TEXTS, *shrunk("teacher", "bert"), *shrunk("alone", "distilbert"), *shrunk("student", "distilbert")),
    "frozen": (*TEXTS, *shrunk("teacher", "bert", 4, 0.01), *shrunk("student", "bert", 4, 0.01)),
    "images": (*IMAGES, "stages.student.model.name=resnet8", "stages.student.train.epochs=2", "stages.student.train.lr=0.02"),
    "informed_mixup": (*TEXTS, *shrunk("map", "bert")),
    "predictions_teacher": (*TEXTS, "data.ood=[]", *shrunk("student", "distilbert")),
    "reverse": (*TEXTS, *shrunk("teacher", "distilbert"), *shrunk("student", "bert")),
    "self_distillation": (*TEXTS, *shrunk("teacher", "distilbert"), *shrunk("student", "distilbert")),
}


def carried_out(name):
    """The folders of an example's run and of its store; it is carried out if it was not yet."""
    run, store = Path("runs") / name, Path("stores") / name
    if not run.exists():
        Path(f"{name}.toml").write_text(command("example", name).stdout, encoding="utf-8")
        command("run", f"{name}.toml", "--out", run, "--store", store, *changes(*RECIPES[name]))
    return run, store


def test_every_example_is_pinned():
    listed = command("example").stdout.splitlines()
    assert [line.split()[0] for line in listed] == sorted(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_an_example_gives_the_pinned_numbers(name, place, leave_out):
    check(f"recipe-{name}", found_in_run(*carried_out(name)), leave_out)


def test_a_run_that_is_carried_out_again_trains_nothing(place):
    """The keys of a run are found again: what is in the store is not trained, and no key is new."""
    _, store = carried_out("distill")
    before = names_in_store(store)
    again = command("run", "distill.toml", "--out", "runs/again", "--store", store, *changes(*RECIPES["distill"]), "--dry-run")
    checks = re.compile("warning: |note: .* nearly the same as ")
    lines = [re.sub(r" \[\w+\]$", "", line) for line in again.stdout.splitlines() if not checks.match(line)]
    check("again", {"said": lines})
    assert names_in_store(store) == before


def test_distill_gives_the_pinned_numbers(place, leave_out):
    """A teacher that is used as it stands, and an encoder that is trained first."""
    for name, teacher, more in (("given", "models/trained", []), ("trained", "models/bert", ["--no-alone"])):
        run, store = Path("runs") / f"distilled-{name}", Path("stores") / f"distilled-{name}"
        command("distill", "--train", "train.csv", "--teacher", teacher, "--ood", "other.csv", "--epochs", 2, "--lr", 0.01,
                "--accuracy", 0.6, "--out", run, "--store", store, *more, *changes("data.limit=96"))  # fmt: skip
        check(f"distill-{name}", found_in_run(run, store), leave_out)


def test_predict_gives_the_pinned_labels(place):
    run, _ = carried_out("distill")
    found = {}
    for stage in ("teacher", "student"):
        command("predict", run, "other.csv", "-o", f"labelled-{stage}.csv", "--stage", stage, "--no-columns")
        found[stage] = read_table(f"labelled-{stage}.csv")
    command("predict", run, "other.csv", "-o", "labelled.csv", "--no-columns")
    assert read_table("labelled.csv") == found["student"]
    check("predict", found)


def test_map_gives_the_pinned_table(place):
    run, _ = carried_out("informed_mixup")
    found = {}
    for name, options in (("map", ()), ("disjoint", ("--fraction", 0.25, "--disjoint"))):
        said = command("map", run, "-o", f"{name}.csv", "--html", f"{name}.html", *options).stdout
        rows = read_table(f"{name}.csv")
        found[name] = {
            "said": [line.rstrip() for line in said.splitlines() if not line.startswith(("┏", "┡", "└"))],
            "table": rows,
        }
    rows = found["map"]["table"]
    found["map"]["table"] = [rows[0], *rows[1::2]]  # every second one, and a hash of all
    found["digests"] = {"map": rounded_digest(rows), "disjoint": rounded_digest(found["disjoint"].pop("table"))}
    check("map", found, DIGESTS)


# ---- predictions of other programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram"])
def test_eval_gives_the_pinned_json(method, place):
    everything = ("--ood", "shifted-predictions.csv", "--compare", "better-predictions.csv") if method == "temperature" else ()
    said = command("eval", "test-predictions.csv", "--calib", "dev-predictions.csv", *everything, "--method", method,
                   "--accuracy", 0.7, "--intervals", 100, "--json").stdout  # fmt: skip
    found = json.loads(said)
    if method != "temperature":  # what is not calibrated is pinned once
        found = {key: value for key, value in found.items() if key not in ("test", "comparison", "ood")}
        found["calibration"]["test"] = {n: f["value"] for n, f in found["calibration"]["test"]["metrics"].items()}
    else:
        found["digests"] = []
        for part in (found["test"], found["calibration"]["test"], *found["ood"][0].values()):
            found["digests"].append(rounded_digest(part.pop("reliability")))
            part["metrics"] = short_figures(part["metrics"], found.setdefault("definitions", {}), whole=True)
    check(f"eval-{method}", found, DIGESTS)


def rounded_digest(value):
    """A hash of what is too long to be pinned in full, floats to six digits."""
    return short_digest(
        json.dumps(json.loads(json.dumps(value), parse_float=lambda text: f"{float(text):.6f}"), sort_keys=True)
    )


# What a dry run estimates: time, costs, and what each claim could see.
ESTIMATES = ("note: ", "roughly ", "What each claim could see", "  ")

# ---- studies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_the_pinned_jobs(name, scale, tmp_path, monkeypatch):
    """What --dry-run prints without data, and the recipe of every job, hashed for each stage of each task."""
    (tmp_path / "no-data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTILCAL_DATA", "no-data")
    monkeypatch.delenv("DISTILCAL_STORE", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)  # nothing is asked of the hub
    lines = command("study", name, "--scale", scale, "--dry-run").stdout.splitlines()
    told = [line for line in lines if not line.startswith(ESTIMATES)]
    stages = [line for line in told if " · " in line]
    said = {
        "lines": len(stages),
        "digest of lines": short_digest("\n".join(stages)),
        "sums": [t for t in told if t not in stages],
    }
    groups = {}
    for label, (task, stage, table) in sorted(expanded_jobs(name, scale).items()):
        groups.setdefault(f"{task} · {stage}", []).append([label, table])
    jobs = {key: [len(group), short_digest(json.dumps(group, sort_keys=True))] for key, group in groups.items()}
    count = sum(number for number, _ in jobs.values())
    check(f"study-{name}-{scale}", {"said": said, "count": count, "jobs": jobs})


def test_the_recipes_of_jobs_have_the_pinned_fields():
    """Where all hashes of jobs differ, this says which field came, went or was renamed."""
    tables = [table for name in STUDIES for _, _, table in expanded_jobs(name, "small").values()]
    check("study-fields", {"fields": sorted({path for table in tables for path in field_paths(table)})})


def field_paths(value, path=""):
    """The fields of a recipe, with a star for the names of stages and views and for places in lists."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from field_paths(part, f"{path}.*" if path.endswith(("stages", "views")) else f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for part in value:
            yield from field_paths(part, f"{path}.*")
    else:
        yield path


def test_a_tiny_study_gives_the_pinned_results(place, leave_out):
    """Six methods, a grid, variants, claims, figures and theorems; in a process of its own, as studies are."""
    out, store = Path("runs") / "tiny-study", Path("stores") / "tiny-study"
    command("study", "tiny_study.toml", "--out", out, "--store", store, "--processes", 1, "--threads", 1)
    results = read_json(out / "results.json")
    for key in ("environment", "seconds", "training", "trained", "command"):
        results.pop(key)
    files = sorted(f.relative_to(out).as_posix() for f in out.rglob("*") if f.is_file() and not f.name.startswith("."))
    tables = {f.name: read_table(f) for f in sorted((out / "tables").glob("*.csv"))}
    tables |= {f.name: f.read_text(encoding="utf-8").splitlines() for f in sorted((out / "tables").glob("*.md"))}
    keys, hashes = names_in_store(store)
    check(
        "tiny-study",
        {"results": results, "files": files, "tables": tables, "keys": keys, "hashes of weights": hashes},
        leave_out,
    )


def test_a_dry_run_of_the_tiny_study_says_what_it_would_do(place):
    found = {}
    for scale in SCALES:
        lines = command("study", "tiny_study.toml", "--scale", scale, "--store", "stores/none", "--dry-run").stdout.splitlines()
        found[scale] = [line for line in lines if not line.startswith(ESTIMATES)]
    check("tiny-study-dry-run", found)


# ---- the comparison itself ----------------------------------------------------------------------------------------------


def test_a_difference_is_named_by_its_path(monkeypatch):
    from pinning import differences

    monkeypatch.delenv("DISTILCAL_PIN_EXACT", raising=False)
    pinned = {"a": [1.0, {"b": 2}], "c": "x 0.123", "d": True}
    assert differences(pinned, {"a": [1.00005, {"b": 2}], "c": "x 0.124", "d": True}) == []
    assert differences(pinned, {"a": [1.001, {"b": 3}], "c": "y 0.123", "d": 1, "e": 0}) == [
        "/e: there, but not pinned",
        "/a/0: 1.001, pinned is 1.0",
        "/a/1/b: 3, pinned is 2",
        "/c: 'y 0.123', pinned is 'x 0.123'",
        "/d: 1, pinned is True",
    ]
    assert differences([1, 2], [1])
    monkeypatch.setenv("DISTILCAL_PIN_EXACT", "1")
    assert differences([1.0], [1.0 + 1e-15]) == [f"/0: {1.0 + 1e-15!r}, pinned is 1.0"]
    assert as_number("0.5") == 0.5
    assert as_number("e0-5") == "e0-5"
