"""What results/README.md says of claims is what the studies' own pages say."""

import runpy
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def summary():
    return runpy.run_path(str(RESULTS / "summary.py"))


def test_table_and_claims_are_those_of_the_studies(summary):
    readme = (RESULTS / "README.md").read_text()
    assert readme == summary["updated"](readme), "run `python results/summary.py`"


def test_every_claim_of_a_page_is_read(summary):
    for study in summary["STUDIES"]:
        page = (RESULTS / study / "results.md").read_text()
        stated = int(summary["field"](page, r"^- Of (\d+) claims"))
        claims = summary["claims_of"](page)
        assert len(claims) == stated
        assert {verdict for verdict, _, _ in claims} <= set(summary["VERDICTS"])


def test_tally_uses_the_words_of_verdicts(summary):
    page = "? **undecided**: Ours is better (T. 2). (all of 3) 1 hold, 2 undecided, 1 whose premises are not met. δ = 1%.\n"
    assert summary["claims_of"](page) == [("undecided", "Ours is better (T. 2).", "1 holds, 2 undecided, 1 premise not met")]
    assert summary["tally"]("fails", " δ = 0.010. Premise: 3 undecided") == "1 fails"


def test_page_without_an_expected_line_is_refused(summary):
    with pytest.raises(SystemExit, match="was it written by this version"):
        summary["table_row"]("x", "# A page\n")
