"""Results of a study in sentences: what was found, how to read a table or a chart, how the results were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distilcal.report.charts.marks import MOST_POINTS
from distilcal.report.charts.study import BAND
from distilcal.report.studies.cells import arrow, format_difference, format_value, format_with_std, paper_text
from distilcal.report.verdicts import verdict_words
from distilcal.selective import counted, in_percent

IN_PLURAL = {
    "holds": "hold",
    "fails": "fail",
    "no effect above δ": "with no effect above δ",
    "undecided": "undecided",
    "premise not met": "whose premises are not met",
}
ALWAYS_SAID = ("holds", "fails", "undecided")


def reading(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the findings of a study in sentences.

    Parameters
    ----------
    results : dict
        The results, as ``read_results`` returns them.

    Yields
    ------
    str
        A sentence on claims, cells, comparisons or failed jobs, in this order.
    """
    claims = Counter(claim["verdict"] for claim in results["claims"])
    if claims:
        said = [
            f"{claims[verdict]} {words}" for verdict, words in IN_PLURAL.items() if claims[verdict] or verdict in ALWAYS_SAID
        ]
        ours = sum(claim["text"].startswith("Ours: ") for claim in results["claims"])
        whose = f"of the paper, {ours} of them added by us," if ours else "of the paper,"
        yield f"Of {counted(len(results['claims']), 'claim')} {whose} at this scale: {', '.join(said)}."
        if len(results["seeds"]) == 1:
            yield "There is one seed: a verdict is about the models that were trained, and another seed may turn it."
    cells = [cell for table in results["tables"] for row in table["cells"] for cell in row if cell]
    there = sum(cell["mean"] is not None for cell in cells)
    lacking = Counter(
        "failed" if c["failed"] else "not run" for c in cells if c["mean"] is None and (c["failed"] or c["missing"])
    )
    if cells:
        yield (
            f"{there:,} of {counted(len(cells), 'cell')} of its tables have a figure"
            + "".join(f"; {count:,} {why}" for why, count in sorted(lacking.items()))
            + "."
        )
    compared = [c["difference"] for c in cells if c["difference"]]
    if compared:
        better, worse = (sum(d["better"] is way for d in compared) for way in (True, False))
        differ = sum(bool(d["significant"]) for d in compared) - better - worse
        yield (
            f"Of {counted(len(compared), 'comparison')} with another method, {better:,} are significantly better and {worse:,} "
            f"worse; {differ:,} differ in a figure that has no better side; the rest are not beyond chance."
        )
    if results["failures"]:
        yield f"Jobs that failed: {len(results['failures']):,}; the cells that need them are marked in the tables."


def claim_notes(claim: Mapping[str, Any]) -> list[str]:
    """Return what a claim is measured by, in sentences: its controls, δ and premises, and what its comparisons gave.

    Parameters
    ----------
    claim : dict
        A claim of ``results.json``.

    Returns
    -------
    list of str

    Examples
    --------
    >>> claim = {"controls": ["KD from NLL"], "delta": 0.01, "premises": [], "equal": 2, "percent": True, "digits": 2}
    >>> claim_notes({**claim, "parts": [{}, {}], "counts": {"holds": 1, "undecided": 1}})
    ['1 hold, 1 undecided.', 'Control: KD from NLL.', 'δ = 1.00%.', '2 comparisons of the same models are left out.']
    """
    notes = []
    if len(claim["parts"]) > 1:
        counts = ", ".join(f"{count} {IN_PLURAL[verdict]}" for verdict, count in claim["counts"].items())
        notes.append(f"{counts}.")
    if claim["controls"]:
        notes.append(f"{_plural('Control', claim['controls'])}: {', '.join(claim['controls'])}.")
    if claim["delta"] is not None:
        notes.append(f"δ = {format_value(claim, claim['delta'], unit=True)}.")
    if claim["premises"]:
        notes.append(f"{_plural('Premise', claim['premises'])}: {'; '.join(claim['premises'])}.")
    if claim["equal"]:
        is_left_out = "is" if claim["equal"] == 1 else "are"
        notes.append(f"{counted(claim['equal'], 'comparison')} of the same models {is_left_out} left out.")
    return notes


def power_lines(power: Mapping[str, Any], seeds: int) -> Iterator[str]:
    """Yield what a design could see of its claims, line by line.

    Parameters
    ----------
    power : mapping
        ``claims``, each with the fields of `distilcal.study.power.ClaimPower`, ``source`` and ``unread``.
    seeds : int
        Number of seeds.

    Yields
    ------
    str
        A line, without a line break.

    Examples
    --------
    >>> claim = {"text": "KD helps.", "metric": "ece", "comparisons": 4, "rows": (800, 800), "smallest": (0.02, 0.02),
    ...          "equivalence": 0.019, "delta": 0.01, "percent": True, "digits": 2}
    >>> for line in power_lines({"claims": [claim], "source": "usual spreads", "unread": {}}, seeds=3):
    ...     print(line)
    What each claim could see with a power of 80% (spreads: usual spreads)
      KD helps.
        ece, 4 comparisons, 3 seeds, 800 rows: differences from 2.00%; no effect above δ = 1.00% could not be shown (from 1.90%)
    """
    yield f"What each claim could see with a power of 80% (spreads: {power['source']})"
    if seeds == 1:
        yield "  With one seed this is about the models that are trained; of other seeds it says nothing."
    for claim in power["claims"]:
        yield f"  {claim['text']}"
        few, many = claim["rows"]
        rows = f"{few:,} rows" if few == many else f"{few:,} to {many:,} rows"
        design = f"    {claim['metric']}, {counted(claim['comparisons'], 'comparison')}, {counted(seeds, 'seed')}, {rows}"
        if claim["smallest"] is None:
            yield f"{design}: nothing is known of the spread of this metric"
            continue
        low, high = (format_value(claim, value, unit=True) for value in claim["smallest"])
        line = f"{design}: differences from {low}" + (f" to {high}" if low != high else "")
        if claim["delta"] is not None:
            delta = format_value(claim, claim["delta"], unit=True)
            can = "could" if claim["equivalence"] <= claim["delta"] else "could not"
            line += f"; no effect above δ = {delta} {can} be shown"
            if can == "could not":
                line += f" (from {format_value(claim, claim['equivalence'], unit=True)})"
        yield line
    for task, error in power["unread"].items():
        yield f"  note: {task}: the size of its test set is assumed: {error}"


def part_verdict(part: Mapping[str, Any]) -> str:
    """Return the verdict on a comparison of a claim, with the premises that are not met.

    Parameters
    ----------
    part : dict
        A part of a claim of ``results.json``.

    Returns
    -------
    str

    Examples
    --------
    >>> part_verdict({"verdict": "premise not met", "unmet": ["both are the same model here"]})
    'premise not met: both are the same model here'
    """
    return f"{part['verdict']}: {'; '.join(part['unmet'])}" if part["unmet"] else str(part["verdict"])


def part_name(part: Mapping[str, Any]) -> str:
    """Return what a comparison of a claim compares, marked if the other method is a control.

    Parameters
    ----------
    part : dict
        A part of a claim of ``results.json``.

    Returns
    -------
    str

    Examples
    --------
    >>> part_name({"what": "KD below NLL, CIFAR-10", "control": True})
    'KD below NLL, CIFAR-10 (control)'
    """
    return f"{part['what']} (control)" if part["control"] else str(part["what"])


def _plural(noun: str, things: Sequence[Any]) -> str:
    return noun if len(things) == 1 else f"{noun}s"


def table_notes(results: Mapping[str, Any], table: Mapping[str, Any], *, paper: str = "in parentheses") -> Iterator[str]:
    """Yield what a reader must know of a table: its note, how to read a cell, and what replaces the paper's data.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.
    table : dict
        One of its tables.
    paper : str
        Where a cell shows the paper's figure.

    Yields
    ------
    str
        A sentence.
    """
    if table["note"]:
        yield as_sentence(table["note"])
    cells = [cell for row in table["cells"] for cell in row if cell]
    seeds = {cell["seeds"] for cell in cells if cell["mean"] is not None}
    if seeds and any(cell["std"] is not None for cell in cells):
        yield f"Mean ± standard deviation over {'up to ' if len(seeds) > 1 else ''}{counted(max(seeds), 'seed')}."
    elif seeds:
        yield "One seed."
    if any(paper_text(cell) for cell in cells):
        yield f"{paper.capitalize()}: the paper's figure."
    marked = [cell["difference"] for cell in cells if arrow(cell)]
    if marked:
        others = list(dict.fromkeys(cell["difference"]["against"] for cell in cells if cell["difference"]))
        than = others[0] if len(others) == 1 else f"the method it is compared with ({', '.join(others)})"
        yield (
            f"▲ ▼: significantly higher, lower than {than} ({in_percent(results['level'])} level, Holm's "
            "correction over the table)" + ("; bold: better." if any(d["better"] for d in marked) else ".")
        )
    if any(cell["failed"] and cell["mean"] is not None for cell in cells):
        yield "†: some of its runs failed."
    names_by_text: dict[str, list[str]] = {}  # one note for a table, not one for each of its rows
    for name, here in (*with_stand_ins(table["columns"], table["here"]), *with_stand_ins(table["rows"], table["row_here"])):
        if here:
            names_by_text.setdefault(here, []).append(name)
    in_all = any(here and all(here) for here in (table["here"], table["row_here"]))
    if len(names_by_text) == 1 and in_all:
        yield as_sentence(f"All of it here: {next(iter(names_by_text))}")
    elif names_by_text:
        yield as_sentence("; ".join(f"{', '.join(dict.fromkeys(names))}: {here}" for here, names in names_by_text.items()))


def cell_lines(results: Mapping[str, Any], cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield all that is known of a cell, line by line.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.
    cell : dict
        A cell of one of its tables.

    Yields
    ------
    str
        A line, without a line break.
    """
    where = f"{cell['task']}, {cell['set']}" if cell["set"] else cell["task"]
    yield f"{cell['method']} on {where}: {cell['metric']}"
    if cell["mean"] is not None:
        text = format_with_std(cell, cell["mean"], cell["std"], unit=True)
        if cell["low"] is not None and cell["high"] is not None:
            low, high = format_value(cell, cell["low"], unit=True), format_value(cell, cell["high"], unit=True)
            text += f", {in_percent(results['level'])} interval {low} to {high}"
        yield text
        yield f"{counted(cell['seeds'] or 0, 'seed')}, {counted(cell['examples'] or 0, 'example')}"
    if paper_text(cell):
        yield f"paper: {paper_text(cell, unit=True)}"
    if cell["difference"]:
        d = cell["difference"]
        words = verdict_words(bool(arrow(cell)), d["better"], d["low"], d["high"], "over the table")
        yield f"against {d['against']}: {format_difference(cell, d)}, {words}"
    if cell["chosen"]:
        yield f"chosen: {cell['chosen']}"
    if cell["failed"]:
        yield f"failed: {cell['failed']}"
    if cell["missing"]:
        yield cell["missing"]
    if cell["definition"]:
        yield cell["definition"]


def chart_notes(results: Mapping[str, Any], chart: Mapping[str, Any]) -> str:
    """Return a chart's note, and how to read its kind.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.
    chart : dict
        One of its charts.

    Returns
    -------
    str
        Sentences, or an empty string.
    """
    kind = chart["kind"]
    notes = [as_sentence(chart["note"])] if chart["note"] else []
    longest = max((len(p) for s in chart["series"] for p in s["points"]), default=0)
    if kind == "scatter" and longest > 5:
        notes.append("Crosses: the mean over seeds and one standard deviation, both ways.")
    elif kind != "map" and longest > 3:
        shape = "Whiskers" if kind == "bars" else "Bars"
        if kind == "line" and all(len(s["points"]) >= BAND for s in chart["series"]):
            shape = "Bands"
        notes.append(f"{shape}: {in_percent(results['level'])} intervals.")
    if kind == "reliability":
        notes.append("Below the dashed line: overconfident. Marks grow with the rows of their bin.")
    if kind == "projection":
        notes.append("The axes have no meaning of their own; one unit is as long both ways. Stars: means of the classes.")
    if kind == "map":
        notes.append("Marks: correctness to the nearest 0.2; 0 and 1 are exact. No example can lie beyond the thin line.")
    if max((len(s["points"]) for s in chart["series"]), default=0) > MOST_POINTS:
        notes.append(f"Of more than {MOST_POINTS:,} points, as many are drawn, at random.")
    return " ".join(notes)


def facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how the results were obtained: scale, seeds, time, work and environment.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.

    Returns
    -------
    list of tuple of (str, str)
        A title and a text for each fact.
    """
    seeds = results["seeds"]
    rows = [
        ("scale", f"{results['scale']}: {results['note']}" if results["note"] else results["scale"]),
        ("seeds", ", ".join(str(s) for s in seeds)),
        ("wall time", format_duration(results["seconds"])),
        *([("training of all stages", format_duration(results["training"]))] if "training" in results else []),
        ("work", f"{work_text(results)}; {counted(results['points'], 'point')} of the grids"),
    ]
    for name, value in results["environment"].items():
        inner = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        rows.append((str(name), inner))
    return rows


def work_text(results: Mapping[str, Any]) -> str:
    """Return how many jobs a study has and how many of them were trained in this run.

    Parameters
    ----------
    results : dict
        Results with the counts ``jobs`` and ``trained``.

    Returns
    -------
    str
        A part of a sentence.

    Examples
    --------
    >>> work_text({"jobs": 12, "trained": 3})
    '12 jobs, 3 of them trained now, the others known before or failed'
    """
    return f"{counted(results['jobs'], 'job')}, {results['trained']:,} of them trained now, the others known before or failed"


def with_stand_ins(names: Sequence[str], here: Sequence[str]) -> list[tuple[str, str]]:
    """Return names of rows or columns, each with what replaces the paper's data there.

    Parameters
    ----------
    names : sequence of str
        The names.
    here : sequence of str
        The replacement for each name, empty where there is none; an empty sequence if nothing is replaced.

    Returns
    -------
    list of tuple of (str, str)
        Pairs of a name and its replacement.

    Raises
    ------
    ValueError
        If ``here`` is not empty and of another length than ``names``.

    Examples
    --------
    >>> with_stand_ins(["a", "b"], [])
    [('a', ''), ('b', '')]
    """
    return list(zip(names, here or [""] * len(names), strict=True))


def definitions(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the metrics of all tables with their definitions, each pair once.

    Parameters
    ----------
    results : dict
        The results of the study, as ``read_results`` returns them.

    Returns
    -------
    list of tuple of (str, str)
        Name and definition of each metric, in the order of the tables.
    """
    cells = [cell for table in results["tables"] for row in table["cells"] for cell in row if cell]
    return list(dict.fromkeys((cell["metric"], cell["definition"]) for cell in cells if cell["definition"]))


def as_sentence(text: str) -> str:
    """Return text with a full stop at its end, unless it ends in other punctuation.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    str
        The text, ended by a full stop, question mark, exclamation mark or colon.

    Examples
    --------
    >>> as_sentence("Mean of three seeds"), as_sentence("Why?")
    ('Mean of three seeds.', 'Why?')
    """
    return text if text.endswith((".", "?", "!", ":")) else f"{text}."


def format_duration(seconds: float | None, *, short: bool = False) -> str:
    """Return a duration as hours and minutes, minutes and seconds, or seconds.

    Parameters
    ----------
    seconds : float or None
        The duration in seconds; None is a dash.
    short : bool
        Whether to give the largest unit alone, with one decimal.

    Returns
    -------
    str
        The duration with its units.

    Examples
    --------
    >>> format_duration(3725), format_duration(75), format_duration(3725, short=True)
    ('1 h 2 min', '1 min 15 s', '1.0 h')
    """
    if seconds is None:
        return "–"
    if short and seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if short and seconds >= 60:
        return f"{seconds / 60:.1f} min"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
