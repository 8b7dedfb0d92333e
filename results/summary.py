"""Bring README.md's table and lists of claims up to date with the studies' pages: ``python results/summary.py``."""

import re
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).parent
STUDIES = ("informed-mixup", "aum-saliency", "calibrated-student", "kd-or-smoothing", "calibration-transfer")
VERDICTS = ("holds", "fails", "no effect above δ", "undecided", "premise not met")
CLAIM = re.compile(r"^\S+ \*\*(?P<verdict>[^*]+)\*\*: (?P<text>.+?) \((?:all|\d+) of \d+\)(?P<rest>.*)$", re.MULTILINE)
TALLY = re.compile(r"\d+ (?:hold|fail|undecided|with no effect above δ|whose premises are not met)\b")
PLAIN_TALLY = {
    "hold": "holds",
    "fail": "fails",
    "with no effect above δ": "no effect above δ",
    "whose premises are not met": "premise not met",
}


def claims_of(page: str) -> list[tuple[str, str, str]]:
    """Return the verdict, the text and the tally of comparisons of every claim of a results page."""
    return [(found["verdict"], found["text"], tally(found["verdict"], found["rest"])) for found in CLAIM.finditer(page)]


def tally(verdict: str, rest: str) -> str:
    """Return how many comparisons of a claim hold, fail and so on, in the words of the verdicts."""
    counts = [count.split(" ", 1) for count in TALLY.findall(rest.split("δ = ")[0])]
    return ", ".join(f"{number} {PLAIN_TALLY.get(words, words)}" for number, words in counts) or f"1 {verdict}"


def table_row(study: str, page: str) -> str:
    """Return a study's row in the table of all studies."""
    title = page.splitlines()[0].removeprefix("# ")
    verdicts = Counter(verdict for verdict, _, _ in claims_of(page))
    cells = [
        f"[{study}]({study}/results.md)",
        title,
        field(page, r"^- work: ([\d,]+) jobs"),
        str(len(field(page, r"^- seeds: (.+)$").split(","))),
        field(page, r"^- ([\d,]+ of [\d,]+) cells"),
        " / ".join(str(verdicts[verdict]) for verdict in VERDICTS),
        f"{training_minutes(field(page, r'^- training of all stages: (.+)$'))} min",
    ]
    return f"| {' | '.join(cells)} |"


def field(page: str, pattern: str) -> str:
    """Return what the pattern's group finds in a results page."""
    found = re.search(pattern, page, re.MULTILINE)
    if found is None:
        raise SystemExit(f"A results page has no line like {pattern}: was it written by this version of `distilcal study`?")
    return found[1]


def training_minutes(duration: str) -> int:
    """Return a duration such as '1 h 5 min 12 s' in minutes, rounded."""
    seconds = {"h": 3600, "min": 60, "s": 1}
    return round(sum(float(number) * seconds[unit] for number, unit in re.findall(r"([\d.]+) (h|min|s)\b", duration)) / 60)


def claim_list(study: str, page: str) -> str:
    """Return the heading and the table of a study's claims."""
    title = page.splitlines()[0].removeprefix("# ")
    rows = (f"| {' | '.join(claim)} |" for claim in claims_of(page))
    return "\n".join([f"### {study}: {title}", "", "| verdict | claim | comparisons |", "|---|---|---|", *rows])


def replaced(readme: str, name: str, text: str) -> str:
    """Return the README with the text between the two marks of this name replaced."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = readme.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n\n{text}\n\n{end}{after}"


def updated(readme: str) -> str:
    """Return the README with its table and lists made again from the studies' pages."""
    pages = {study: (RESULTS / study / "results.md").read_text() for study in STUDIES}
    verdicts = "claims hold / fail / no effect / undecided / premise not met"
    header = f"| study | question | jobs | seeds | cells filled | {verdicts} | training, one core |"
    table = "\n".join([header, "|---|---|--:|--:|--:|--:|--:|", *(table_row(*page) for page in pages.items())])
    claims = "\n\n".join(claim_list(*page) for page in pages.items())
    return replaced(replaced(readme, "studies", table), "claims", claims)


if __name__ == "__main__":
    readme = RESULTS / "README.md"
    readme.write_text(updated(readme.read_text()))
