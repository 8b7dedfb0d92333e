"""All files of a study's report, written from its ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilcal.io.atomic import atomic_write
from distilcal.report.figures import FORMATS, save_figure, study_figure
from distilcal.report.studies.csv_table import table_csv
from distilcal.report.studies.latex import table_latex
from distilcal.report.studies.markdown import results_markdown, table_markdown
from distilcal.report.studies.page import render_study
from distilcal.report.studies.results import PAGE, named_files, read_results


def write_study(folder: Path) -> list[Path]:
    """Write the report of a study into its folder.

    Tables are written as CSV, Markdown and LaTeX, charts as SVG, PDF and PNG, and everything as one page of Markdown and one of
    HTML. What is there is replaced.

    Parameters
    ----------
    folder : Path
        The folder of a study, with its ``results.json``.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    InputError
        If the folder holds no results, or results of another format.
    MissingDependencyError
        If there are charts and matplotlib is not installed.
    """
    results = read_results(folder)
    texts: dict[str, bytes] = {}
    for name, table in named_files(results["tables"]):
        texts[f"tables/{name}.csv"] = table_csv(table)
        texts[f"tables/{name}.md"] = (table_markdown(results, table) + "\n").encode()
        texts[f"tables/{name}.tex"] = table_latex(results, table, name).encode()
    texts["results.md"] = results_markdown(results).encode()
    texts[PAGE] = render_study(results).encode()
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with atomic_write(folder / name) as file:
            file.write(text)
    return [*(folder / name for name in texts), *_write_charts(results, folder)]


def _write_charts(results: Mapping[str, Any], folder: Path) -> list[Path]:
    written = []
    for name, chart in named_files(results["figures"]):
        (folder / "figures").mkdir(exist_ok=True)
        figure = study_figure(chart)
        for suffix in FORMATS:
            path = folder / "figures" / f"{name}{suffix}"
            save_figure(figure, path)
            written.append(path)
    return written
