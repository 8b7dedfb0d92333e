"""Runs as one self-contained HTML page, and as HTML to be shown within a page."""

from __future__ import annotations

from pathlib import Path

from distilcal import __version__
from distilcal.report.charts.scales import unit_axis
from distilcal.report.evaluations.page import CHART, COUNTS, MOST_CLASSES, reliability_chart
from distilcal.report.frontier import PAGE
from distilcal.report.html import render_template, write_text
from distilcal.report.runs.answer import answer_sentences, decide
from distilcal.report.runs.charts import cascade_charts, confidence_charts, reliability_diagrams, scatter_chart, training_chart
from distilcal.report.runs.sentences import cascade_sentence, endpoint_sentences, reading, run_warnings
from distilcal.report.runs.tables import STATES, domain, table_rows
from distilcal.report.verdicts import winner
from distilcal.runs import RunSummary

CURVES = (("nll", "NLL on dev"), ("ece", "ECE on dev"), ("entropy", "mean entropy of the posterior on dev, in nats"))


def write_runs_page(summary: RunSummary, path: Path) -> None:
    """Write one self-contained page on the runs, whole or not at all.

    It links to the page about a search within a budget, if that is in the same folder.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    path : Path
        The HTML file.
    """
    frontier = path.with_name(PAGE)
    write_text(render_runs(summary, frontier=frontier.name if frontier.exists() else ""), path)


def render_runs(summary: RunSummary, *, frontier: str = "") -> str:
    """Return the page on the runs as HTML.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.
    frontier : str
        Address of the page about the search that chose the student; empty: there was none.

    Returns
    -------
    str
    """
    tables = [{"name": split, "where": domain(split), "rows": table_rows(summary, split)} for split in summary.sets]
    curves = [training_chart(summary, metric, title) for metric, title in CURVES]
    answer = decide(summary)
    classes = summary.main.facts.get("classes") or []
    return render_template(
        "runs.html.jinja",
        s=summary,
        warnings=run_warnings(summary),
        answer=[*([] if answer is None else answer_sentences(answer)), *endpoint_sentences(summary)],
        confidences=confidence_charts(summary),
        cascades=cascade_charts(summary),
        cascade_sentence=cascade_sentence(summary),
        classes=classes[:MOST_CLASSES],
        classes_left_out=len(classes[MOST_CLASSES:]),
        runs=summary.runs,
        frontier=frontier,
        reading=list(reading(summary)),
        chart=CHART,
        counts=COUNTS,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        sets=list(summary.sets),
        tables=tables,
        scatters=[scatter_chart(summary, split) for split in summary.sets],
        curves=[curve for curve in curves if curve["lines"]],
        diagrams=list(reliability_diagrams(summary)),
        definitions=_definitions(summary),
        winner=winner,
        version=__version__,
    )


def render_summary(summary: RunSummary) -> str:
    """Return the tables, the sentences and the main model's reliability on test as HTML, to be shown within a page.

    Parameters
    ----------
    summary : RunSummary
        One or several runs.

    Returns
    -------
    str
    """
    main = summary.main
    answer = decide(summary)
    states = main.run.diagrams.get(main.stage, {}).get("test", {})
    diagrams = [
        {"name": f"{main.title}, {STATES[state]}", **reliability_chart(states[state])} for state in STATES if state in states
    ]
    return render_template(
        "result.html.jinja",
        warnings=run_warnings(summary),
        answer=[*([] if answer is None else answer_sentences(answer)), *endpoint_sentences(summary)],
        cascade_sentence=cascade_sentence(summary),
        tables=[{"name": split, "where": domain(split), "rows": table_rows(summary, split)} for split in summary.sets],
        main=main.number,
        reading=list(reading(summary)),
        chart=CHART,
        unit_x=CHART.x_ticks(unit_axis()),
        unit_y=CHART.y_ticks(unit_axis()),
        diagrams=diagrams,
        folder=str(summary.runs[0].folder),
    )


def _definitions(summary: RunSummary) -> list[dict[str, str]]:
    metrics = summary.main.facts["sets"].get("test", {}).get("given", {})
    return [{"name": name, "here": metric["definition"]} for name, metric in metrics.items() if "definition" in metric]
