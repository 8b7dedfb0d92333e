"""The results of a study: tables beside the paper's, claims with their verdicts, charts; as files, a page, on the terminal.

Reads ``results.json`` in the study's folder and trains nothing. `write_study` writes the files and `show_study` prints.
"""

from distilcal.report.studies.files import write_study
from distilcal.report.studies.page import render_study
from distilcal.report.studies.results import read_results
from distilcal.report.studies.terminal import show_study

__all__ = ["read_results", "render_study", "show_study", "write_study"]
