"""Model cards: the README.md of a shipped student, as model hubs show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilcal import __version__
from distilcal.config.schema import Recipe
from distilcal.errors import MissingDependencyError
from distilcal.io.atomic import atomic_write
from distilcal.models.inputs import FrozenInputs, TokenInputs
from distilcal.models.pretrained import PACKAGE
from distilcal.models.text import TextNetwork
from distilcal.report.formatting import format_number, one_line
from distilcal.report.runs.answer import answer_sentences, decide
from distilcal.report.studies.markdown import escape_markdown
from distilcal.runs import Run, read_run, summarise_runs

if TYPE_CHECKING:
    from distilcal.export.student import TorchStudent

DIAGRAM = "reliability.png"
LONGEST_CELL = 1000  # characters of a cell of a table
TASKS = {
    "texts": "text-classification",
    "choices": "multiple-choice",
    "images": "image-classification",
    "vectors": "tabular-classification",
}


def write_card(student: TorchStudent, folder: Path) -> None:
    """Write the model card of a student, with its reliability diagram where its run and matplotlib are at hand.

    Parameters
    ----------
    student : TorchStudent
        The student.
    folder : Path
        Where ``README.md`` and ``reliability.png`` are written.
    """
    run, recipe = None, None
    if student.source is not None and student.source.exists:
        run, recipe = read_run(student.source.run), student.source.recipe()
    diagram = _draw_diagram(student, run, folder / DIAGRAM)
    with atomic_write(folder / "README.md") as file:
        file.write(model_card(student, run, recipe, diagram=diagram).encode())


def model_card(student: TorchStudent, run: Run | None = None, recipe: Recipe | None = None, *, diagram: str = "") -> str:
    """Return the model card of a student as Markdown.

    Parameters
    ----------
    student : TorchStudent
        The student.
    run : Run, optional
        Its run, which knows accuracy, calibration and speed.
    recipe : Recipe, optional
        The recipe of the run.
    diagram : str, default ""
        Markdown of the reliability diagram, or why there is none.

    Returns
    -------
    str
    """
    sections = [_front_matter(student), _introduction(student, run)]
    if run is not None and student.source is not None:
        facts = run.facts["stages"][student.source.stage]
        sections += [_answer(run, student.source.stage), _quality(run, facts), diagram, _hand_over(run, facts)]
    sections.append(_usage(student))
    if recipe is not None:
        sections.append(_recipe_section(recipe))
    return "\n\n".join(filter(None, sections)) + "\n"


def _front_matter(student: TorchStudent) -> str:
    """The metadata in YAML; values of users are written as JSON strings, which are YAML too."""
    library = "transformers" if _is_transformers(student) else "distilcal"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {TASKS[student.input_kind]}"]
    lines += ["tags:", *(f"- {tag}" for tag in ("distilcal", "calibration", "knowledge-distillation"))]
    base = _base_model(student)
    if base:
        lines.append(f"base_model: {json.dumps(base)}")
    return "\n".join([*lines, "metrics:", "- accuracy", "---"])


def _base_model(student: TorchStudent) -> str:
    """The hub name of the model that it was trained from; empty for folders and networks without one."""
    name = student.classifier.settings.name
    reads_tokens = isinstance(student.classifier.inputs, (TokenInputs, FrozenInputs))
    is_hub_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists()
    return name if reads_tokens and is_hub_name and not name.startswith(PACKAGE) else ""


def _is_transformers(student: TorchStudent) -> bool:
    return isinstance(student.classifier.network, TextNetwork)


def _introduction(student: TorchStudent, run: Run | None) -> str:
    classifier = student.classifier
    name = student.name if run is None else str(run.facts["name"])
    rows = [("classes", ", ".join(student.classes)), ("parameters", f"{classifier.parameters:,}")]
    rows.append(("size in float32", f"{4 * classifier.parameters / 1e6:.1f} MB"))
    inputs = classifier.inputs
    if isinstance(inputs, FrozenInputs):
        inputs = inputs.token_inputs
    if isinstance(inputs, TokenInputs):
        rows.append(("longest text", f"{inputs.max_length} tokens; longer ones are cut"))
    rows.append(("calibration", _calibration_words(student)))
    if run is not None and student.source is not None:
        milliseconds = run.facts["stages"][student.source.stage]["ms_per_example"]
        rows.append(("speed", f"{milliseconds:.2f} ms per example in batches of 32, with torch on the machine that trained it"))
    return "\n".join(
        [
            f"# {_literal(Path(name).name or name)}",
            "",
            f"A classifier of {student.input_kind} whose probabilities are calibrated, written by distilcal {__version__}.",
            "",
            *_table(["", ""], rows),
        ]
    )


def _calibration_words(student: TorchStudent) -> str:
    from distilcal.export.pretrained import can_fold

    calibrator = student.calibrator
    if calibrator is None and student.folded is None:
        return "none"
    kind = calibrator.kind if calibrator is not None else student.folded["kind"]  # type: ignore[index]
    if calibrator is None or can_fold(calibrator, student.classifier):
        return f"{kind}, part of the weights: the softmax of the logits is calibrated"
    return f"{kind}, beside the weights: load it with distilcal, other programs do not apply it"


def _answer(run: Run, stage: str) -> str:
    """The answer of the run's report, if it is about this model."""
    answer = decide(summarise_runs([run])) if stage == run.main else None
    return "" if answer is None else escape_markdown(" ".join(answer_sentences(answer)))


def _quality(run: Run, facts: Mapping[str, Any]) -> str:
    lines = ["## Accuracy and calibration", ""]
    rows = []
    for split in ("test", *run.facts["ood"]):
        states = facts["sets"][split]
        scores = states["calibrated"] or states["given"]
        name = "test (as the training data)" if split == "test" else f"{split} (other data)"
        cells = [name, f"{run.facts['sizes'][split]:,}"]
        cells += [_with_interval(scores[metric]) for metric in ("accuracy", "nll", "ece")]
        rows.append([*cells, format_number(scores["ece"]["null"]), format_number(states["given"]["ece"]["value"])])
    head = ["data", "rows", "accuracy", "NLL", "ECE", "ECE of a perfect model", "ECE before calibration"]
    lines += _table(head, rows)
    definition = facts["sets"]["test"]["given"]["ece"]["definition"]
    lines += [
        "",
        f"95 % bootstrap intervals. ECE: {escape_markdown(definition)}; chance alone gives a perfect model some.",
    ]
    return "\n".join(lines)


def _hand_over(run: Run, facts: Mapping[str, Any]) -> str:
    limit = facts["threshold"]
    if limit is None:
        return ""
    lines = ["## When to hand over to a human", "", escape_markdown(_sentence(limit["message"]))]
    if limit["confidence"] is not None:
        rows = []
        for split in ("test", *run.facts["ood"]):
            accepted = facts["sets"][split]["accepted"]
            rows.append([split, format_number(accepted["coverage"]), format_number(accepted["accuracy"])])
        lines += ["", *_table(["data", "share accepted", "accuracy of accepted answers"], rows)]
        lines += ["", "The promise is about data like those it was chosen on; on other data look at the table."]
    return "\n".join(lines)


def _usage(student: TorchStudent) -> str:
    lines = ["## How to use it", ""]
    if _is_transformers(student) and student.input_kind == "texts":
        lines += [
            "With transformers (`truncation=True` cuts texts where training did):",
            "",
            "```python",
            "from transformers import pipeline",
            "",
            'classify = pipeline("text-classification", model="FOLDER")',
            'classify(["a text"], top_k=None, truncation=True)',
            "```",
            "",
        ]
    example = {
        "texts": '["a text"]',
        "choices": '[("a prompt", ["an ending", "another"])]',
        "images": "pixels  # uint8 (N, H, W, 3)",
        "vectors": "vectors  # float (N, D)",
    }[student.input_kind]
    argument = example.partition("  #")
    lines += [
        "With distilcal, which also hands over what it cannot promise:",
        "",
        "```python",
        "import distilcal as dc",
        "",
        'student = dc.load("FOLDER")',
        f"student.predict({argument[0]}, accuracy={student.required_accuracy:g}){''.join(argument[1:])}",
        "```",
        "",
        "As an ONNX file in 8 bits, which needs neither torch nor transformers:",
        "",
        "```sh",
        "distilcal export FOLDER student.onnx --int8 --dev dev.csv --test test.csv",
        "```",
    ]
    return "\n".join(lines)


def _recipe_section(recipe: Recipe) -> str:
    from distilcal.config.loading import to_toml

    # Only the names of local files and folders: the rest of a path is of no use elsewhere.
    text = re.sub(r'"/(?:[^"\\]|\\.)*/([^"/]+)"', r'"\1"', to_toml(recipe))
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"## How it was trained\n\nThe recipe, for `distilcal run`:\n\n{fence}toml\n{text.rstrip()}\n{fence}"


def _draw_diagram(student: TorchStudent, run: Run | None, path: Path) -> str:
    """Draw the reliability diagrams of test and other domains; return the Markdown that shows them."""
    if run is None or student.source is None:
        return ""
    from distilcal.report.figures import reliability_figure, save_figure

    diagrams = run.diagrams[student.source.stage]
    shown = {split: diagrams[split].get("calibrated", diagrams[split]["given"]) for split in ("test", *run.facts["ood"][:2])}
    try:
        save_figure(reliability_figure(shown), path)
    except MissingDependencyError:
        return "There is no reliability diagram: matplotlib was not installed when this card was written."
    return f"![Reliability diagrams: accuracy over confidence]({DIAGRAM})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_literal, row))} |"


def _literal(text: str) -> str:
    """Text of others as one line that Markdown shows as it is."""
    return escape_markdown(one_line(text, LONGEST_CELL))


def _with_interval(metric: Mapping[str, Any]) -> str:
    return f"{format_number(metric['value'])} [{format_number(metric['low'])}, {format_number(metric['high'])}]"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
