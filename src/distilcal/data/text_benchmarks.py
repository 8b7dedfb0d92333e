"""Readers of text benchmarks: each reads a folder, laid out as in docs/benchmarks.md, and returns its splits by name.

To add one, write a function here (``benchmark_parts.read_tables`` serves most tables) and an entry in ``catalogue.BENCHMARKS``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from distilcal.data.benchmark_classes import EKMAN, EMOTIONS, EMPATHY, NEWSGROUPS, NLI, PARAPHRASE
from distilcal.data.benchmark_parts import (
    SplitsByName,
    divide,
    find_file,
    find_table,
    read_json_file,
    shuffled,
    text_hashes,
    with_content_ids,
)
from distilcal.data.dataset import Dataset, Texts, number_repeated, texts
from distilcal.data.table_source import Columns, dataset_from_table
from distilcal.errors import InputError
from distilcal.io.tables import Table


def read_goemotions(folder: Path) -> SplitsByName:
    """Read comments labelled with Ekman's six emotions or neutral; of several labels one is drawn by a hash of the id.

    Parameters
    ----------
    folder : Path
        The folder with train, dev and test.tsv*, emotions.txt and ekman_mapping.json.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    fine = find_file(folder, "emotions.txt").read_text(encoding="utf-8").split()
    coarse = {e: c for c, members in read_json_file(find_file(folder, "ekman_mapping.json")).items() for e in members}
    index = [EMOTIONS.index(coarse.get(e, e)) for e in fine]
    splits: SplitsByName = {}
    for name in ("train", "dev", "test"):
        table = find_table(folder, f"{name}.tsv*", header=("text", "labels", "id"))
        ids = table.texts("id")
        labels = []
        for id_, numbers in zip(ids, table.texts("labels"), strict=True):
            candidates = sorted({index[int(number)] for number in numbers.split(",")})
            labels.append(candidates[_draw(id_) % len(candidates)])
        splits[name] = Dataset(texts(table.texts("text")), np.array(labels), EMOTIONS, np.array(ids))
    return splits


def ekman_label(id_: str, emotions: Sequence[str]) -> str:
    """Return the one of Ekman's emotions, or neutral, that stands for the fine emotions of a comment.

    Parameters
    ----------
    id_ : str
        Of the comment; a hash of it draws one where several remain.
    emotions : sequence of str
        Its fine emotions, one or more.

    Returns
    -------
    str

    Examples
    --------
    >>> ekman_label("eebbqej", ["annoyance", "disapproval"])
    'anger'
    """
    coarse = {fine: emotion for emotion, members in EKMAN.items() for fine in members}
    candidates = sorted({EMOTIONS.index(coarse.get(emotion, emotion)) for emotion in emotions})
    return EMOTIONS[candidates[_draw(id_) % len(candidates)]]


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def read_meld(folder: Path) -> SplitsByName:
    """Read utterances, grouped by dialogue; the label non-neutral, which some copies have, is left out.

    Parameters
    ----------
    folder : Path
        The folder with train, dev and test_sent_emo.csv*.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    splits: SplitsByName = {}
    for name in ("train", "dev", "test"):
        table = find_table(folder, f"{name}_sent_emo.csv*")
        labels = np.array(table.texts("Emotion"))
        dialogue = np.array([f"{name}-{d}" for d in table.texts("Dialogue_ID")])
        ids = np.array([f"{d}-{u}" for d, u in zip(dialogue, table.texts("Utterance_ID"), strict=True)])
        kept = np.flatnonzero(labels != "non-neutral")
        inputs = texts(table.texts("Utterance")).take(kept)
        splits[name] = Dataset(inputs, labels[kept], EMOTIONS, ids[kept], groups=dialogue[kept])
    return splits


def read_epitome(folder: Path, mechanism: str) -> SplitsByName:
    """Read posts and responses, divided 75 : 5 : 20 by seeker's post, alike for the three mechanisms, whatever the labels.

    Parameters
    ----------
    folder : Path
        The folder with a file MECHANISM-reddit.csv* per mechanism.
    mechanism : str
        The mechanism of empathy that is labelled, as in the name of its file.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    table = find_table(folder, f"{mechanism}-reddit.csv*")
    labels = np.array([int(level != "0") for level in table.texts("level")])
    posts = table.texts("sp_id")
    ids = number_repeated(np.array([f"{s}-{r}" for s, r in zip(posts, table.texts("rp_id"), strict=True)]))
    inputs = texts(table.texts("seeker_post"), table.texts("response_post"))
    whole = Dataset(inputs, labels, EMPATHY, ids, groups=np.array(posts))
    parts = divide(replace(whole, labels=None), "train+dev+test", (0.75, 0.05, 0.2))
    return {name: whole.select(np.isin(whole.ids, part.ids)) for name, part in parts.items()}


def read_news_empathy(folder: Path) -> SplitsByName:
    """Read essays on news, divided by writer.

    Parameters
    ----------
    folder : Path
        The folder with messages.csv*.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    table = find_table(folder, "messages.csv*")
    labels = np.array([int(v) for v in table.texts("empathy_bin")])
    ids, writers = np.array(table.texts("message_id")), np.array(table.texts("response_id"))
    return divide(Dataset(texts(table.texts("essay")), labels, EMPATHY, ids, groups=writers), "train+dev+test")


def read_votes_on_paraphrases(folder: Path) -> SplitsByName:
    """Read pairs with the share of six raters who called them paraphrases; ties are left out, as in the corpus.

    Parameters
    ----------
    folder : Path
        The folder with test_votes.tsv*.

    Returns
    -------
    dict of str to Dataset
        The split test, with label distributions of shape (N, 2).

    Raises
    ------
    InputError
        If a file is missing.
    """
    table = find_table(folder, "test_votes.tsv*")
    votes, raters = (np.array(table.values(c), dtype=np.int64) for c in ("votes", "n_annotators"))
    share = votes / raters
    inputs = texts(table.texts("sentence1"), table.texts("sentence2"))
    data = Dataset(inputs, (share > 0.5).astype(np.int64), PARAPHRASE, label_probs=np.c_[1 - share, share])
    return {"test": with_content_ids(data.select(share != 0.5), "text")}


def read_chaosnli(folder: Path, part: str) -> SplitsByName:
    """Read pairs with the shares of a hundred raters; the label is their majority.

    Parameters
    ----------
    folder : Path
        The folder with chaosNLI_PART.jsonl*.
    part : str
        The part of the corpus, as in the name of its file.

    Returns
    -------
    dict of str to Dataset
        The split test, with label distributions of shape (N, 3).

    Raises
    ------
    InputError
        If a file is missing.
    """
    table = find_table(folder, f"chaosNLI_{part}.jsonl*")
    letters = {name[0]: i for i, name in enumerate(NLI)}
    labels = np.array([letters[v] for v in table.texts("majority_label")])
    examples = table.values("example")
    inputs = texts([e["premise"] for e in examples], [e["hypothesis"] for e in examples])
    votes = np.array(table.values("label_dist"))
    return {"test": Dataset(inputs, labels, NLI, np.array(table.texts("uid")), votes, text_hashes(inputs.text))}


def read_adv_glue(folder: Path, task: str, classes: Sequence[str]) -> SplitsByName:
    """Read adversarial examples of one GLUE task.

    Parameters
    ----------
    folder : Path
        The folder with dev_ann.json*.
    task : str
        The task's key in the file.
    classes : sequence of str
        The names of the task's classes, in order.

    Returns
    -------
    dict of str to Dataset
        The split test.

    Raises
    ------
    InputError
        If the file is missing or does not have the task.
    """
    path = find_file(folder, "dev_ann.json*")
    tasks = read_json_file(path)
    if task not in tasks:
        raise InputError(f"there is no task {task!r}; it has {', '.join(tasks)}", source=str(path), remedy="get the whole file")
    values = {key: [row[key] for row in tasks[task]] for key in tasks[task][0] if not key.startswith("original_")}
    values["id"] = [f"{task}-{i}" for i in values["idx"]]
    return {"test": dataset_from_table(Table(str(path), values), Columns(), classes)}


def read_newsgroups(folder: Path, *, raw: bool = False) -> SplitsByName:
    """Read messages, grouped by subject.

    Parameters
    ----------
    folder : Path
        The folder with train.jsonl* and test.jsonl*.
    raw : bool, default False
        Whether to keep whole messages. Otherwise only their bodies are kept (see `body_of`), without those that are then empty.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test.

    Raises
    ------
    InputError
        If a file is missing.
    """
    splits: SplitsByName = {}
    for names in ("train+dev", "test"):
        table = find_table(folder, f"{names.partition('+')[0]}.jsonl*")
        message = table.texts("text")
        labels = np.array(table.texts("label_name"))
        ids = np.array([f"{g}/{i}" for g, i in zip(labels, table.texts("id"), strict=True)])
        threads = text_hashes(_subject(m) or i for m, i in zip(message, ids, strict=True))
        splits |= divide(shuffled(Dataset(texts(message), labels, NEWSGROUPS, ids, groups=threads)), names)
    return splits if raw else {name: _bodies(part) for name, part in splits.items()}


def _bodies(data: Dataset) -> Dataset:
    assert isinstance(data.inputs, Texts)
    bodies = [body_of(m) for m in data.inputs.text]
    return replace(data, inputs=texts(bodies)).select(np.array([bool(b) for b in bodies]))


QUOTED = re.compile(r"\s*(\w{0,3}[>|}]|:)")
ATTRIBUTION = re.compile(r"\b(writes|wrote)\b.{0,3}$|\b(says|said):\s*$", re.IGNORECASE)  # at the end of a line
SOURCE = re.compile(r"\s*in (article|<)", re.IGNORECASE)
DASHES = re.compile(r"\s*--+\s*$")
SUBJECT = re.compile(r"^subject:\s*(?:re(?:\^\d+)?:\s*)*(.*)$", re.IGNORECASE | re.MULTILINE)
SIGNATURE_LINES = 10


def body_of(message: str) -> str:
    """Return a message without its header, quoted lines, the lines that introduce them, and a signature after dashes.

    Parameters
    ----------
    message : str
        A message whose header ends with an empty line.

    Returns
    -------
    str
        The body, without blanks around it; empty if nothing is left.

    Examples
    --------
    >>> body_of("From: me\\nSubject: x\\n\\nA. Reader writes:\\n> a quote\\nMy answer.\\n--\\nMy name")
    'My answer.'
    """
    _, _, body = message.replace("\r", "").partition("\n\n")
    lines = [
        line for line in body.split("\n") if not (QUOTED.match(line) or SOURCE.match(line) or ATTRIBUTION.search(line[-12:]))
    ]
    start = max(0, len(lines) - SIGNATURE_LINES)
    end = next((i for i in range(start, len(lines)) if DASHES.match(lines[i])), len(lines))
    return "\n".join(lines[:end]).strip()


def _subject(message: str) -> str:
    match = SUBJECT.search(message.partition("\n\n")[0])
    return match.group(1).strip() if match else ""
