"""The sizes of data against the paper's, and what tables would take on a GPU."""

from __future__ import annotations

import pytest
from shell import command

from distilcal.config.schema import DataSettings
from distilcal.data.catalogue import BENCHMARKS
from distilcal.errors import InputError
from distilcal.study.analysis import fill_table
from distilcal.study.cost import table_costs
from distilcal.study.expand import expand
from distilcal.study.loading import load_study
from distilcal.study.run import StudyResults, training_size
from distilcal.study.scheduler import Outcome
from distilcal.study.sizes import check_sizes, expected_sizes, size_differences, sources_on_hub

STUDY = """
[metrics]
accuracy = {}
[data]
train = "benchmark:mrpc"
ood = ["benchmark:twitter_ppdb", "benchmark:vader_movie@train+test"]
[tasks.pairs]
sets = { home = "test", tweets = "twitter_ppdb" }
[stages.plain]
model = { name = "bert-base-uncased", max_length = 100 }
train = { epochs = 4, choose = "last" }
terms = [{ loss = "cross_entropy" }]
[stages.mixed]
like = "plain"
terms = [{ loss = "cross_entropy", view = "mixed" }]
views.mixed = { kind = "mixup" }
[methods]
Plain = { stage = "plain" }
Mixed = { stage = "mixed" }
[[tables]]
name = "one"
rows = [{ method = "Plain" }]
columns = [{ task = "pairs", set = "home", metric = "accuracy" }, { task = "pairs", set = "tweets", metric = "accuracy" }]
[[tables]]
name = "both"
rows = [{ method = "Plain" }, { method = "Mixed", against = "Plain" }]
columns = [{ task = "pairs", set = "home", metric = "accuracy" }]
[scales.full]
[scales.small]
data = { limit = 100 }
"""


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    """A study on a folder of MRPC that is whole but for its training set, and on tweets and films of a few rows."""
    rows = {"mrpc": {"train": 30, "validation": 408, "test": 1725}, "twitter_ppdb": {"train": 40, "test": 5060}}
    for folder, files in rows.items():
        (tmp_path / folder).mkdir()
        for name, number in files.items():
            lines = [f"{name} a {i}\t{name} b {i}\t{('different', 'paraphrase')[i % 2]}" for i in range(number)]
            (tmp_path / folder / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *lines, ""]))
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    path = tmp_path / "s.toml"
    path.write_text(STUDY.replace(', "benchmark:vader_movie@train+test"', ""))
    return path


def test_sizes_are_those_of_the_splits_that_are_read():
    data = DataSettings(
        train="benchmark:mrpc", test="benchmark:qqp@dev+test", ood=("benchmark:snli", "other.csv", "benchmark:xnli_en")
    )
    assert expected_sizes(data) == {
        "train": ("mrpc", 3668),
        "dev": ("mrpc", 408),
        "test": ("qqp", 40433),
        "ood 0": ("snli", 9824),
    }
    assert expected_sizes(DataSettings(train="benchmark:mrpc@train+dev")) == {"train": ("mrpc", 4076)}
    assert expected_sizes(DataSettings(train="some.csv")) == {}
    assert training_size(DataSettings(train="benchmark:mrpc", limit=100), read=False) == 100
    assert training_size(DataSettings(train="benchmark:mrpc", limit=10**6), read=False) == 3668
    assert training_size(DataSettings(train="some.csv"), read=False) == 10_000


def test_every_benchmark_of_a_study_at_full_scale_states_its_sizes():
    """Those that do not are divided by us, or made by people whose papers do not say how many there are."""
    unstated = set()
    for name in ("informed-mixup", "aum-saliency", "calibrated-student", "kd-or-smoothing", "calibration-transfer"):
        study = load_study(name, "full", seeds=1)
        for job in expand(study).jobs.values():
            sources = (job.data.train, *job.data.ood)
            benchmarks = [source.removeprefix("benchmark:") for source in sources if source.startswith("benchmark:")]
            named = {source.partition("@")[0] for source in benchmarks}
            unstated |= {name for name in named if not BENCHMARKS[name].sizes}
    assert unstated <= {"epitome_emotional_reactions", "epitome_explorations", "epitome_interpretations", "news_empathy"}


def test_other_sizes_stop_a_study_before_it_trains(study_file, tmp_path):
    study = load_study(str(study_file), "full")
    (difference,) = size_differences(study)
    assert str(difference) == "pairs: train has 30 examples of mrpc, the paper 3,668"
    assert size_differences(load_study(str(study_file), "small")) == []
    done = command("study", study_file, "--scale", "full", "--store", tmp_path / "store", "--out", tmp_path / "out", code=2)
    assert "at scale full the data must be the paper's: pairs: train has 30 examples of mrpc, the paper 3,668" in done.stderr
    assert "--any-size" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_flag_lets_them_through_and_marks_the_columns(study_file, tmp_path):
    study = load_study(str(study_file), "full")
    with pytest.raises(InputError):
        check_sizes(study)
    marked = check_sizes(study, any_size=True)
    told = "train of 30 examples, the paper's 3,668"
    assert marked.tasks["pairs"].here == {"test": told, "home": told, "tweets": told}
    graph = expand(marked)
    results = StudyResults(marked, graph, Outcome(), tmp_path)
    assert fill_table(results, marked.tables[0])["here"] == [told, told]


def test_a_dry_run_does_not_read_the_hub(study_file, tmp_path, monkeypatch):
    assert sources_on_hub(DataSettings(train="benchmark:mrpc")) == []
    assert sources_on_hub(DataSettings(train="benchmark:mrpc", source="hub")) == ["benchmark:mrpc"]
    assert sources_on_hub(DataSettings(train="hub:a/b@train", ood=("benchmark:qqp", "x.csv"))) == [
        "hub:a/b@train",
        "benchmark:qqp",
    ]
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path / "none"))
    said = command("study", study_file, "--scale", "full", "--dry-run", "--store", tmp_path / "store").output
    assert "benchmark:mrpc would come from the hub, which a dry run does not read" in said
    assert "GPU-hours for one: bert-base-uncased; 3,668 examples; 4 epochs; 1 run" in said
    assert "GPU-hours for the whole study: bert-base-uncased; 3,668 examples; 4 epochs; 2 runs" in said
    assert "GPU-hours" not in command("study", study_file, "--dry-run", "--store", tmp_path / "store").output


def test_costs_count_operations_of_every_run_once(study_file):
    study = load_study(str(study_file), "full")
    one, both, whole = table_costs(study, expand(study), lambda job: 1000)
    seconds = 6 * 85.1e6 * 50 * 1000 * 4 / 25e12  # operations of 50 tokens
    assert one.gpu_hours == pytest.approx(seconds / 3600)
    assert both.gpu_hours == whole.gpu_hours == pytest.approx(3 * seconds / 3600)  # the second has a view beside the plain one
    assert (one.runs, both.runs) == (1, 2)


def test_costs_of_networks_for_images_are_counted():
    pytest.importorskip("torch")
    study = load_study("calibrated-student", "full", seeds=1)
    *tables, whole = table_costs(study, expand(study), lambda job: 45_000)
    assert "wrn_40_2" in whole.networks
    assert all(0 < table.gpu_hours <= whole.gpu_hours for table in tables)
    assert 10 < whole.gpu_hours < 2000
