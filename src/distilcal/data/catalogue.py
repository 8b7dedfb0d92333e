"""The catalogue of benchmarks: what each is, where its files are, which rule makes its classes and splits.

``load_benchmark`` reads one by name; docs/benchmarks.md shows the folders. To add one, write an entry with a reader from
``text_benchmarks`` or ``image_benchmarks``. Benchmarks with the same classes share their names, so that one can be the
out-of-domain set of another.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from distilcal.data.benchmark import PAGE, Benchmark, Kind, OnHub
from distilcal.data.benchmark_classes import (
    ANSWERED,
    CIFAR10,
    CIFAR100,
    EMOTIONS,
    EMPATHY,
    FASHION,
    FOUR,
    NEWSGROUPS,
    NLI,
    PARAPHRASE,
    POLARITY,
    TINY,
    TINY_IMAGENET,
)
from distilcal.data.benchmark_parts import read_tables
from distilcal.data.dataset import Dataset, overlap
from distilcal.data.hub_columns import goemotions_columns, hellaswag_columns
from distilcal.data.image_benchmarks import (
    read_cifar,
    read_cifar10h,
    read_cinic10,
    read_corrupted,
    read_fashion_mnist,
    read_tiny_imagenet,
    read_tiny_imagenet200,
)
from distilcal.data.table_source import Columns
from distilcal.data.text_benchmarks import (
    read_adv_glue,
    read_chaosnli,
    read_epitome,
    read_goemotions,
    read_meld,
    read_news_empathy,
    read_newsgroups,
    read_votes_on_paraphrases,
)
from distilcal.data.vader_benchmark import read_vader
from distilcal.errors import DistilcalError, InputError

DATA_VARIABLE = "DISTILCAL_DATA"
DataSource = Literal["auto", "folder", "hub"]  # auto: the folder if it is there, otherwise the hub


@dataclass(frozen=True)
class BenchmarkSummary:
    """Counts and examples of a benchmark.

    Attributes
    ----------
    benchmark : Benchmark
        Its entry in the catalogue.
    sizes : dict of str to int
        Number of examples by split.
    counts : dict of str to dict
        Number of examples by split and class.
    overlaps : dict of pairs of str to int
        Rows of the second split that read like one of the first.
    groups : dict of str to int
        Number of groups by split, where it has any.
    soft_labels : bool
        Whether a split has distributions over the classes.
    examples : tuple of (class, input)
        A few examples; none where the data are sensitive.
    """

    benchmark: Benchmark
    sizes: dict[str, int]
    counts: dict[str, dict[str, int]]
    overlaps: dict[tuple[str, str], int]
    groups: dict[str, int]
    soft_labels: bool
    examples: tuple[tuple[str, str], ...]


def load_benchmark(name: str, *, root: Path | None = None, source: DataSource = "auto") -> dict[str, Dataset]:
    """Read the splits of a benchmark.

    Parameters
    ----------
    name : str
        Its name in the catalogue.
    root : Path, optional
        The folder that holds the folders of benchmarks. By default ``$DISTILCAL_DATA``.
    source : {"auto", "folder", "hub"}
        Where it is read from; ``auto`` is its folder if there is one, otherwise the Hugging Face hub.

    Returns
    -------
    dict of str to Dataset
        Its splits among train, dev and test.

    Raises
    ------
    InputError
        If there is no such benchmark, its files are missing or damaged, or the hub cannot be reached.
    MissingDependencyError
        If the hub is needed and ``datasets`` is not installed.
    """
    benchmark = find_benchmark(name)
    if source == "hub":
        return benchmark.read_hub()
    if benchmark_source(benchmark, root=root, source=source) == "hub":
        try:
            return benchmark.read_hub()
        except DistilcalError as error:
            own = Path(_parent(root) or f"${DATA_VARIABLE}") / benchmark.folder
            error.remedy = f"{error.remedy}; or put its files in {own}, see {PAGE}"
            raise
    parent = _parent(root)
    remedy = _how_to_get(benchmark)
    if not parent:
        where = f"set {DATA_VARIABLE} to the folder that holds {benchmark.folder}/, or give root"
        raise InputError(f"no folder of benchmarks is named, for {name}", remedy=f"{where}; {remedy}")
    folder = Path(parent) / benchmark.folder
    if not folder.is_dir():
        raise InputError(f"there is no such folder, for {name} under {DATA_VARIABLE}", source=str(folder), remedy=remedy)
    return benchmark.read(folder)


def benchmark_source(
    benchmark: Benchmark, *, root: Path | None = None, source: DataSource = "auto"
) -> Literal["folder", "hub"]:
    """Return where a benchmark is read from. Reads nothing.

    Parameters
    ----------
    benchmark : Benchmark
        An entry of the catalogue.
    root : Path, optional
        The folder that holds the folders of benchmarks. By default ``$DISTILCAL_DATA``.
    source : {"auto", "folder", "hub"}
        As for ``load_benchmark``.

    Returns
    -------
    {"folder", "hub"}
        With ``auto`` the hub, if the folder does not exist and the hub has a copy that can be read.
    """
    if source != "auto":
        return source
    parent = _parent(root)
    is_here = bool(parent) and (Path(parent) / benchmark.folder).is_dir()
    return "folder" if is_here or benchmark.on_hub is None else "hub"


def _parent(root: Path | None) -> str:
    return os.environ.get(DATA_VARIABLE, "") if root is None else str(root)


def _how_to_get(benchmark: Benchmark) -> str:
    remedy = f"lay the folder out as in {PAGE}"
    if benchmark.on_hub is not None:
        return f'{remedy}, or read {benchmark.hub} with source="hub"'
    if benchmark.hub:
        return f"{remedy}; the hub has {benchmark.hub}"
    return remedy


def find_benchmark(name: str) -> Benchmark:
    """Return the entry of the catalogue with this name.

    Parameters
    ----------
    name : str
        The name of a benchmark.

    Returns
    -------
    Benchmark
        The entry.

    Raises
    ------
    InputError
        If there is no such benchmark; the error lists similar names.

    Examples
    --------
    >>> find_benchmark("sst2").classes
    ('negative', 'positive')
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=4, cutoff=0.4)
        raise InputError(
            f"there is no benchmark {name!r}", remedy=f"did you mean {', '.join(near)}?" if near else f"see {PAGE} for all"
        )
    return BENCHMARKS[name]


def summarise_benchmark(name: str, *, root: Path | None = None, source: DataSource = "auto") -> BenchmarkSummary:
    """Return counts, overlaps between splits and a few examples of a benchmark.

    Parameters
    ----------
    name, root, source
        As for ``load_benchmark``.

    Returns
    -------
    BenchmarkSummary
        What a user should know before using it.
    """
    benchmark = find_benchmark(name)
    splits = load_benchmark(name, root=root, source=source)
    counts = {}
    for split, data in splits.items():
        assert data.labels is not None
        class_counts = np.bincount(data.labels, minlength=len(data.classes)).tolist()
        counts[split] = dict(zip(data.classes, class_counts, strict=True))
    return BenchmarkSummary(
        benchmark=benchmark,
        sizes={split: len(data) for split, data in splits.items()},
        counts=counts,
        overlaps={(one, two): len(overlap(splits[one], splits[two])) for one, two in combinations(splits, 2)},
        groups={split: len(np.unique(data.groups)) for split, data in splits.items() if data.groups is not None},
        soft_labels=any(data.label_probs is not None for data in splits.values()),
        examples=() if benchmark.sensitive else _examples(next(iter(splits.values()))),
    )


def _examples(data: Dataset, most: int = 4) -> tuple[tuple[str, str], ...]:
    """Return the first example of each class, for at most this many classes."""
    assert data.labels is not None
    classes, rows = np.unique(data.labels, return_index=True)
    pairs = zip(classes[:most], rows[:most], strict=True)
    return tuple((data.classes[c], data.inputs.example(int(row))) for c, row in pairs)


# ---- entries -----------------------------------------------------------------------------------------------------------

GLUE = {"train": "train", "dev+test": "validation"}  # the test labels are hidden, so validation is halved
NO_DEV = {"train+dev": "train", "test": "test"}
AS_THERE = {"train": "train", "dev": "validation", "test": "test"}
RESEARCH = "none stated; research use"


def _epitome(mechanism: str) -> Benchmark:
    words = mechanism.replace("-", " ")
    return Benchmark(
        f"epitome_{mechanism.replace('-', '_')}", f"empathy of a response to a post: {words}", "text pair", EMPATHY,
        hub="", folder="epitome", licence="none stated for the data; academic research use only",
        paper="Sharma et al. 2020", ood=("news_empathy",), sensitive=True,
        note="Levels weak and strong are 'some'. No official split: divided 75:5:20 by seeker's post, alike for the three "
        "mechanisms. 60 pairs occur more than once. Sensitive content (mental health, self-harm): do not print rows.",
        reader=partial(read_epitome, mechanism=mechanism),
    )  # fmt: skip


def _vader(domain: str, what: str, ood: tuple[str, ...], note: str) -> Benchmark:
    return Benchmark(
        f"vader_{domain}", f"sentiment of {what}, with the votes of raters", "text", POLARITY,
        hub="", folder="vader", licence="MIT", paper="Hutto & Gilbert 2014", ood=ood,
        note="The label is the sign of the mean rating; means within ±0.5 are left out. Soft labels: shares of raters above "
        f"and below zero, zeros counted half each; where they disagree with the mean, the mean rules. {note}",
        reader=partial(read_vader, domain=domain),
    )  # fmt: skip


def _adv_glue(task: str, of: str, kind: Kind, classes: tuple[str, ...]) -> Benchmark:
    return Benchmark(
        f"adv_glue_{task}", f"adversarial examples for {of}", kind, classes,
        hub=f"AI-Secure/adv_glue/adv_{task}", folder="adv_glue", licence="CC BY-SA 4.0", paper="Wang et al. 2021",
        note="Small, for evaluation only. Made from GLUE's validation rows: who calibrates on those has seen the originals.",
        reader=partial(read_adv_glue, task=task, classes=classes),
        on_hub=OnHub({"test": "validation"}, _GLUE_NAMES[task]),
    )  # fmt: skip


_GLUE_NAMES = {
    "sst2": ("negative", "positive"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": NLI,
    "qnli": ANSWERED,
}
_VADER_NOTE = "No official split: divided 70:10:20"

_ENTRIES = (
    Benchmark(
        "goemotions_ekman", "emotion of a Reddit comment: Ekman's six, or neutral", "text", EMOTIONS,
        hub="google-research-datasets/go_emotions/simplified", folder="goemotions", licence="CC BY 4.0",
        paper="Demszky et al. 2020", ood=("meld",),
        note="28 emotions mapped to 7 classes; where several classes remain, one is drawn by a hash of the comment's id. "
        "49 dev and 42 test texts are in train too. Texts hold placeholders such as [NAME].",
        reader=read_goemotions,
        on_hub=OnHub(AS_THERE, EMOTIONS, convert=goemotions_columns, own_ids=True),
        sizes={"train": 43_410, "dev": 5_426, "test": 5_427},
    ),
    Benchmark(
        "meld", "emotion of an utterance in a television dialogue", "text", EMOTIONS,
        hub="declare-lab/MELD", folder="meld", licence="GPL-3.0 (repository)", paper="Poria et al. 2019",
        ood=("goemotions_ekman",),
        note="Groups are dialogues. Short utterances repeat: some 330 of the test stand in train. 'non-neutral', which "
        "some copies have, is left out. Fear and disgust are rare.",
        reader=read_meld,
        sizes={"train": 9_989, "dev": 1_109, "test": 2_610},
    ),
    _epitome("emotional-reactions"),
    _epitome("explorations"),
    _epitome("interpretations"),
    Benchmark(
        "news_empathy", "empathy of an essay on a news story", "text", EMPATHY,
        hub="", folder="news_empathy", licence="CC BY 4.0", paper="Buechel et al. 2018",
        ood=("epitome_emotional_reactions", "epitome_explorations", "epitome_interpretations"),
        note="empathy_bin of the authors: 1 is 'some'. Every writer wrote five essays: divided 70:10:20 by writer.",
        reader=read_news_empathy,
    ),
    Benchmark(
        "yelp", "sentiment of a review", "text", POLARITY,
        hub="fancyzhx/yelp_polarity/plain_text", folder="yelp", licence="Yelp Dataset terms of use; academic use",
        paper="Zhang et al. 2015 (rule); Yue et al. 2023 (files)",
        ood=("sst2", "vader_amazon", "vader_movie", "vader_tweet", "vader_nyt"),
        note="1-2 stars negative, 4-5 positive, 3 left out. The dev file is divided 90:10 into train and dev. Three quarters "
        "are positive. The hub has the balanced yelp_polarity of the paper, which is another sample.",
        reader=partial(read_tables, files={"train+dev": "reviews_dev.csv*", "test": "reviews_test.csv*"}, classes=POLARITY,
                       columns=Columns("text", label="polarity"), drop="-1"),
        on_hub=OnHub(NO_DEV, ("1", "2")),
        sizes={"train": 504_000, "dev": 56_000, "test": 38_000},
    ),
    Benchmark(
        "yelp_sentences", "sentiment of a sentence from a review", "text", POLARITY,
        hub="", folder="yelp", licence="Yelp Dataset terms of use; academic use", paper="Shen et al. 2017",
        ood=("sst2", "vader_amazon", "vader_movie", "vader_tweet", "vader_nyt"),
        note="The larger file (the authors' test) is divided 90:10 into train and dev, the smaller is the test. Labels come "
        "from the stars of the whole review. Lower case, numbers as _num_. Short sentences repeat across files.",
        reader=partial(read_tables, files={"train+dev": "sentences_test.tsv*", "test": "sentences_dev.tsv*"},
                       classes=POLARITY, shuffle=True),
    ),
    Benchmark(
        "sst2", "sentiment of a phrase or sentence from film reviews", "text", POLARITY,
        hub="nyu-mll/glue/sst2", folder="sst2", licence=RESEARCH, paper="Socher et al. 2013; Wang et al. 2018",
        ood=("yelp", "yelp_sentences", "adv_glue_sst2", "vader_amazon", "vader_tweet", "vader_nyt"),
        note="Train and dev are GLUE's; GLUE hides the test labels, so the test is the labelled sentence-level one, whose "
        "author stripped final stops and accents. Train holds phrases of its sentences. vader_movie holds SST sentences: no "
        "partner.",
        reader=partial(read_tables, classes=POLARITY, files={
            "train": "glue_train.tsv*", "dev": "glue_validation.tsv*", "test": "sentences_test.tsv*"}),
        on_hub=OnHub({"train": "train", "dev": "validation", "test": "SetFit/sst2@test"}, _GLUE_NAMES["sst2"]),
        sizes={"train": 67_349, "dev": 872, "test": 1_821},
    ),
    Benchmark(
        "sst2_sultan", "sentiment of a phrase or sentence from film reviews, divided as by Sultan (2023)", "text", POLARITY,
        hub="nyu-mll/glue/sst2", folder="sst2_sultan", licence=RESEARCH, paper="Socher et al. 2013; Sultan 2023",
        note="GLUE's validation is dev; 1,800 rows of train are the test. Train holds phrases of the sentences in the test.",
        reader=partial(read_tables, classes=POLARITY, rows={"test": 1800},
                       files={"train+test": "train.tsv*", "dev": "validation.tsv*"}),
        on_hub=OnHub({"train+test": "train", "dev": "validation"}, _GLUE_NAMES["sst2"], rows={"test": 1800}),
        sizes={"train": 65_549, "dev": 872, "test": 1_800},
    ),
    Benchmark(
        "snli", "does a premise entail a hypothesis (captions)", "text pair", NLI,
        hub="stanfordnlp/snli/plain_text", folder="snli", licence="CC BY-SA 4.0", paper="Bowman et al. 2015",
        ood=("mnli", "xnli_en", "chaosnli_mnli", "adv_glue_mnli"),
        note="Rows without a gold label are left out. Groups are premises.",
        reader=partial(read_tables, files={"train": "train.tsv*", "dev": "validation.tsv*", "test": "test.tsv*"},
                       classes=NLI, group="text"),
        on_hub=OnHub(AS_THERE, NLI, group="text"),
        sizes={"train": 549_367, "dev": 9_842, "test": 9_824},
    ),
    Benchmark(
        "snli_desai", "does a premise entail a hypothesis (captions), divided as by Desai & Durrett (2020)", "text pair", NLI,
        hub="stanfordnlp/snli/plain_text", folder="snli", licence="CC BY-SA 4.0", paper="Bowman et al. 2015",
        ood=("mnli", "xnli_en", "adv_glue_mnli"),
        note="The official validation set is halved into dev and test; the official test is not used. Rows without a gold "
        "label are left out. Groups are premises.",
        reader=partial(read_tables, files={"train": "train.tsv*", "dev+test": "validation.tsv*"}, classes=NLI, group="text"),
        on_hub=OnHub(GLUE, NLI, group="text"),
        sizes={"train": 549_368, "dev": 4_922, "test": 4_923},
    ),
    Benchmark(
        "mnli", "does a premise entail a hypothesis (ten genres)", "text pair", NLI,
        hub="nyu-mll/glue/mnli", folder="mnli", licence="OANC and others, see the paper", paper="Williams et al. 2018",
        ood=("snli", "xnli_en", "chaosnli_snli", "adv_glue_mnli"),
        note="The matched validation set is halved by premise into dev and test. The files of the folder have no final full "
        "stops, xnli_en and chaosnli_mnli do. 1,014 items of chaosnli_mnli are among dev and test.",
        reader=partial(read_tables, files={"train": "train.tsv*", "dev+test": "validation.tsv*"}, classes=NLI,
                       group="text"),
        on_hub=OnHub({"train": "train", "dev+test": "validation_matched"}, NLI, group="text"),
        sizes={"train": 392_702, "dev": 4_908, "test": 4_907},
    ),
    Benchmark(
        "mnli_sultan", "does a premise entail a hypothesis (ten genres), divided as by Sultan (2023)", "text pair", NLI,
        hub="nyu-mll/glue/mnli", folder="mnli_sultan", licence="OANC and others, see the paper",
        paper="Williams et al. 2018; Sultan 2023",
        note="The matched validation set is the test; 9,815 rows of train are dev.",
        reader=partial(read_tables, files={"train+dev": "train.tsv*", "test": "validation_matched.tsv*"}, classes=NLI,
                       rows={"dev": 9815}),
        on_hub=OnHub({"train+dev": "train", "test": "validation_matched"}, NLI, rows={"dev": 9815}),
        sizes={"train": 382_887, "dev": 9_815, "test": 9_815},
    ),
    Benchmark(
        "xnli_en", "does a premise entail a hypothesis (made like MNLI, later)", "text pair", NLI,
        hub="facebook/xnli/en", folder="mnli", licence="CC BY-NC 4.0", paper="Conneau et al. 2018",
        note="The English development set, for evaluation only.",
        reader=partial(read_tables, files={"test": "xnli_dev_en.tsv*"}, classes=NLI, group="text"),
        on_hub=OnHub({"test": "validation"}, NLI, group="text"),
    ),
    *(
        Benchmark(
            f"chaosnli_{of}", f"items of {of.upper()} on which people disagree, with 100 votes each", "text pair", NLI,
            hub="metaeval/chaos-mnli-ambiguity" if of == "mnli" else "", folder="chaosnli", licence="CC BY-NC 4.0",
            paper="Nie et al. 2020",
            note=f"The label is the majority of 100, not the original one. The items are from the validation set of {of}: do "
            "not calibrate on that and test here. Ids are the authors' uid.",
            reader=partial(read_chaosnli, part=part),
        )
        for of, part in (("snli", "snli"), ("mnli", "mnli_m"))
    ),
    Benchmark(
        "qqp", "do two questions ask the same", "text pair", PARAPHRASE,
        hub="nyu-mll/glue/qqp", folder="qqp", licence="Quora terms; non-commercial", paper="Wang et al. 2018",
        ood=("twitter_ppdb", "twitter_ppdb_votes", "mrpc", "paws_x_en", "adv_glue_qqp"),
        note="The test labels are hidden: validation is halved by the first question into dev and test.",
        reader=partial(read_tables, files={"train": "train.tsv*", "dev+test": "validation.tsv*"}, classes=PARAPHRASE,
                       group="text"),
        on_hub=OnHub(GLUE, _GLUE_NAMES["qqp"], Columns("question1", "question2"), group="text"),
        sizes={"train": 363_871, "dev": 20_216, "test": 20_217},
    ),
    Benchmark(
        "twitter_ppdb", "do two tweets say the same", "text pair", PARAPHRASE,
        hub="mteb/twitterurlcorpus-pairclassification", folder="twitter_ppdb", licence=RESEARCH, paper="Lan et al. 2017",
        ood=("mrpc", "paws_x_en"),
        note="4-6 of 6 votes are a paraphrase, 0-2 are none, 3 is left out. One headline stands against many tweets: the train "
        "file is divided 90:10 by first sentence into train and dev. Many pairs repeat. The hub has the test part only.",
        reader=partial(read_tables, files={"train+dev": "train.tsv*", "test": "test.tsv*"}, classes=PARAPHRASE,
                       group="text"),
        sizes={"train": 46_667, "dev": 5_060, "test": 5_060},
    ),
    Benchmark(
        "twitter_ppdb_votes", "do two tweets say the same, with the votes of six raters", "text pair", PARAPHRASE,
        hub="", folder="twitter_ppdb", licence=RESEARCH, paper="Lan et al. 2017",
        note="The test of twitter_ppdb, same rows in the same order, cased. Soft labels: shares of six. Three against three "
        "(786 pairs) is left out, as there.",
        reader=read_votes_on_paraphrases,
    ),
    Benchmark(
        "mrpc", "do two sentences of news say the same", "text pair", PARAPHRASE,
        hub="nyu-mll/glue/mrpc", folder="mrpc", licence="Microsoft Research Data licence; research",
        paper="Dolan & Brockett 2005", ood=("twitter_ppdb", "paws_x_en"),
        note="GLUE's split, its test with labels. Two thirds are paraphrases.",
        reader=partial(read_tables, files={"train": "train.tsv*", "dev": "validation.tsv*", "test": "test.tsv*"},
                       classes=PARAPHRASE),
        on_hub=OnHub(AS_THERE, ("not_equivalent", "equivalent")),
        sizes={"train": 3_668, "dev": 408, "test": 1_725},
    ),
    Benchmark(
        "paws_x_en", "do two sentences with the same words say the same", "text pair", PARAPHRASE,
        hub="google-research-datasets/paws-x/en", folder="paws_x_en", licence="free for any purpose", paper="Yang et al. 2019",
        note="The English validation set, for evaluation only: word order decides.",
        reader=partial(read_tables, files={"test": "validation.tsv*"}, classes=PARAPHRASE),
        on_hub=OnHub({"test": "validation"}, ("0", "1")),
    ),
    Benchmark(
        "qnli", "does a sentence answer a question", "text pair", ANSWERED,
        hub="nyu-mll/glue/qnli", folder="qnli", licence="CC BY-SA 4.0", paper="Wang et al. 2018", ood=("adv_glue_qnli",),
        note="The folder has the validation set only: it is divided 70:10:20 by sentence. From the hub train is GLUE's, and "
        "validation is halved by sentence into dev and test.",
        reader=partial(read_tables, files={"train+dev+test": "validation.tsv*"}, classes=ANSWERED, group="pair"),
        on_hub=OnHub(GLUE, ANSWERED, group="pair"),
        sizes={"train": 104_743, "dev": 2_732, "test": 2_731},
    ),
    Benchmark(
        "qnli_sultan", "does a sentence answer a question, divided as by Sultan (2023)", "text pair", ANSWERED,
        hub="nyu-mll/glue/qnli", folder="qnli_sultan", licence="CC BY-SA 4.0", paper="Wang et al. 2018; Sultan 2023",
        ood=("adv_glue_qnli",),
        note="GLUE's validation is the test; 5,000 rows of train are dev.",
        reader=partial(read_tables, files={"train+dev": "train.tsv*", "test": "validation.tsv*"}, classes=ANSWERED,
                       rows={"dev": 5000}),
        on_hub=OnHub({"train+dev": "train", "test": "validation"}, ANSWERED, rows={"dev": 5000}),
        sizes={"train": 99_743, "dev": 5_000, "test": 5_463},
    ),
    Benchmark(
        "hellaswag", "which of four endings continues a text", "multiple choice", FOUR,
        hub="Rowan/hellaswag", folder="hellaswag", licence="MIT", paper="Zellers et al. 2019", ood=("swag", "codah"),
        note="The test labels are hidden: validation is halved by prompt into dev and test. Prompts are 'activity: context', "
        "without the hub's bracketed marks.",
        reader=partial(read_tables, files={"train": "train*.jsonl*", "dev+test": "validation*.jsonl*"}, classes=FOUR,
                       columns=Columns("query", choices=("endings",)), group="prompt"),
        on_hub=OnHub(GLUE, FOUR, Columns("prompt", choices=("endings",)), "prompt", convert=hellaswag_columns),
        sizes={"train": 39_905, "dev": 5_021, "test": 5_021},
    ),
    Benchmark(
        "swag", "which of four endings continues a caption", "multiple choice", FOUR,
        hub="allenai/swag/regular", folder="swag", licence="MIT", paper="Zellers et al. 2018", ood=("hellaswag", "codah"),
        note="The folder has 500 rows of the validation set, for evaluation only. From the hub train is there, and validation "
        "is halved into dev and test.",
        reader=partial(read_tables, files={"test": "validation*.jsonl*"}, classes=FOUR, group="prompt",
                       columns=Columns("startphrase", choices=("choices",), label="answer")),
        on_hub=OnHub(GLUE, FOUR, Columns("startphrase", choices=("ending0", "ending1", "ending2", "ending3")), "prompt"),
        sizes={"train": 73_547, "dev": 10_004, "test": 10_004},
    ),
    Benchmark(
        "codah", "which of four endings continues a sentence, written to mislead", "multiple choice", FOUR,
        hub="jaredfern/codah/codah", folder="codah", licence="ODC-BY 1.0", paper="Chen et al. 2019", ood=("hellaswag", "swag"),
        note="No official split but folds: divided 70:10:20 by prompt.",
        reader=partial(read_tables, files={"train+dev+test": "full_data.tsv*"}, classes=FOUR, group="prompt",
                       header=("category", "prompt", "a", "b", "c", "d", "label"),
                       columns=Columns("prompt", choices=("a", "b", "c", "d"))),
    ),
    _adv_glue("sst2", "sst2", "text", POLARITY),
    _adv_glue("qqp", "qqp", "text pair", PARAPHRASE),
    _adv_glue("mnli", "mnli, matched", "text pair", NLI),
    _adv_glue("qnli", "qnli", "text pair", ANSWERED),
    *(
        Benchmark(
            name, f"newsgroup of a message{words}", "text", NEWSGROUPS,
            hub="SetFit/20_newsgroups", folder="twenty_newsgroups", licence="none stated; public posts", paper="Lang 1995",
            note="The split by date, in which 2,160 test messages share a subject with train; train is divided 90:10 by "
            f"subject into train and dev. {note}",
            reader=partial(read_newsgroups, raw=raw),
            sizes={"train": 10_183, "test": 7_532},
        )
        for name, words, raw, note in (
            ("twenty_newsgroups", "", False, "Header, quoted lines, the lines that introduce them and a signature after dashes "
             "are stripped; messages that are then empty are left out."),
            ("twenty_newsgroups_raw", ", header and all", True, "The header leaks the group: to compare with older figures."))
    ),
    Benchmark(
        "cifar10", "object in a picture of 32 × 32", "image", CIFAR10,
        hub="uoft-cs/cifar10", folder="cifar10", licence=RESEARCH, paper="Krizhevsky 2009",
        ood=("cifar10_c", "cinic10_imagenet"),
        note="Train is divided 90:10 into train and dev. The folder may hold the first images of train only; the hub has "
        "all 50,000. The test is in official order.",
        reader=partial(read_cifar, classes=CIFAR10), on_hub=OnHub(NO_DEV, CIFAR10),
        sizes={"train": 45_000, "dev": 5_000, "test": 10_000},
    ),
    Benchmark(
        "cifar10h", "the test of CIFAR-10 with the choices of some 50 people each", "image", CIFAR10,
        hub="", folder="cifar10h", licence="CC BY-NC-SA 4.0", paper="Peterson et al. 2019",
        note="Needs the folder cifar10 beside it. The label is CIFAR-10's; people's majority is another on 0.8 % of images.",
        reader=read_cifar10h,
    ),
    Benchmark(
        "cifar100", "object in a picture of 32 × 32, fine classes", "image", CIFAR100,
        hub="uoft-cs/cifar100", folder="cifar100", licence=RESEARCH, paper="Krizhevsky 2009", ood=("cifar100_c",),
        note="Train is divided 90:10 into train and dev. The sheets stand in class order: rows are shuffled.",
        reader=partial(read_cifar, classes=CIFAR100, shuffle=True),
        # The hub spells crab as "cra".
        on_hub=OnHub(NO_DEV, tuple("cra" if name == "crab" else name for name in CIFAR100), Columns(label="fine_label")),
        sizes={"train": 45_000, "dev": 5_000, "test": 10_000},
    ),
    Benchmark(
        "cinic10", "object in a picture of 32 × 32, from ImageNet and CIFAR-10", "image", CIFAR10,
        hub="flwrlabs/cinic10", folder="cinic10", licence="CC BY 4.0 (hub copy); ImageNet terms", paper="Darlow et al. 2018",
        note="The authors' image folders; 'valid' is dev. 60,000 of the 270,000 are CIFAR-10 itself: for a model trained on "
        "that, use cinic10_imagenet. All of it takes 0.9 GB of memory.",
        reader=read_cinic10, on_hub=OnHub(AS_THERE, CIFAR10), sizes={"train": 90_000, "dev": 90_000, "test": 90_000},
    ),
    Benchmark(
        "cinic10_imagenet", "the test of CINIC-10 without what came from CIFAR-10", "image", CIFAR10,
        hub="", folder="cinic10", licence="ImageNet terms; non-commercial research", paper="Darlow et al. 2018",
        note="Files named cifar10-... are left out.",
        reader=partial(read_cinic10, only_imagenet=True),
    ),
    *(
        Benchmark(
            f"{of}_c", f"the test of {official} under corruptions", "image", classes,
            hub="", folder=f"{of}_c", licence="CC BY 4.0", paper="Hendrycks & Dietterich 2019",
            note="Every CORRUPTION.npy of the folder in five severities; ids are CORRUPTION-SEVERITY-IMAGE, groups the images. "
            "A corruption takes 150 MB of memory: hold only those you want.",
            reader=partial(read_corrupted, classes=classes),
        )
        for of, official, classes in (("cifar10", "CIFAR-10", CIFAR10), ("cifar100", "CIFAR-100", CIFAR100))
    ),
    Benchmark(
        "tiny_imagenet10", "object in a picture of 64 × 64, ten classes", "image", TINY,
        hub="zh-plus/tiny-imagenet", folder="tiny_imagenet10", licence="ImageNet terms; non-commercial research",
        paper="Stanford CS231N",
        note="Train is divided 90:10 into train and dev; the official validation images are the test. A few are grey and are "
        "made RGB. The hub has all 200 classes.",
        reader=read_tiny_imagenet,
    ),
    Benchmark(
        "tiny_imagenet", "object in a picture of 64 × 64", "image", TINY_IMAGENET,
        hub="zh-plus/tiny-imagenet", folder="tiny_imagenet", licence="ImageNet terms; non-commercial research",
        paper="Stanford CS231N",
        note="Train is divided 90:10 into train and dev; the official validation images are the test. Classes are WordNet ids, "
        "from the hub in its order. All of it takes 1.4 GB of memory.",
        reader=read_tiny_imagenet200, on_hub=OnHub({"train+dev": "train", "test": "valid"}, ()),
        sizes={"train": 90_000, "dev": 10_000, "test": 10_000},
    ),
    Benchmark(
        "fashion_mnist", "garment in a picture of 28 × 28", "image", FASHION,
        hub="zalando-datasets/fashion_mnist", folder="fashion_mnist", licence="MIT", paper="Xiao et al. 2017",
        note="Train is divided 90:10 into train and dev. Grey, repeated for red, green and blue. The hub has all.",
        reader=read_fashion_mnist, on_hub=OnHub(NO_DEV, ("T - shirt / top", *FASHION[1:])),
    ),
    _vader("movie", "a snippet of a film review", ("vader_amazon", "vader_tweet", "vader_nyt", "yelp"),
           f"{_VADER_NOTE}. 7,517 of the 10,605 snippets are SST sentences: no out-of-domain set for sst2."),
    _vader("amazon", "a sentence of a product review", ("vader_movie", "vader_tweet", "vader_nyt", "yelp", "sst2"),
           f"{_VADER_NOTE} by review."),
    _vader("tweet", "a tweet", ("vader_movie", "vader_amazon", "vader_nyt", "yelp", "sst2"),
           f"{_VADER_NOTE}. The mean is that of the ratings; the authors' file has another for 196 tweets."),
    _vader("nyt", "a sentence of a newspaper's opinion page", ("vader_movie", "vader_amazon", "vader_tweet", "yelp", "sst2"),
           f"{_VADER_NOTE} by article."),
)  # fmt: skip
BENCHMARKS: dict[str, Benchmark] = {entry.name: entry for entry in _ENTRIES}
