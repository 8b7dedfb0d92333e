"""From a few flags to a whole recipe: the defaults that the studies speak for.

A calibrated teacher hands its calibration on (P004), best at temperature 1 and with most of the weight on the teacher. So a
teacher that has to be trained is trained with cross-entropy and MDCA, every teacher is divided by the temperature that suits
dev, and the student minimises 0.1 · cross-entropy + 0.9 · KD at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distilcal.config.loading import apply_change, as_table, parse_recipe
from distilcal.config.schema import DataSettings, ModelSettings, Recipe, StageSettings, TermSettings, TrainSettings
from distilcal.errors import InputError
from distilcal.io.atomic import read_json
from distilcal.io.predictions import SUFFIXES
from distilcal.models.text import quiet_transformers, resolve_model
from distilcal.runs import main_stage

TEACHING = (TermSettings(loss="cross_entropy"), TermSettings(loss="mdca"))
LEARNING = (
    TermSettings(loss="cross_entropy", weight=0.1),
    TermSettings(loss="kd", weight=0.9, settings={"temperature": 1.0}),
)
ALONE = (TermSettings(loss="cross_entropy"),)


def recipe_from_flags(
    *,
    train: str,
    teacher: str,
    student: str | None = None,
    layers: str | None = None,
    dev: str = "",
    test: str = "",
    ood: Sequence[str] = (),
    text: str = "",
    pair: str = "",
    choices: str = "",
    label: str = "label",
    id_column: str = "",
    group: str = "",
    teacher_labels: str | None = None,
    epochs: int = 3,
    batch: int = 32,
    lr: float = 5e-5,
    max_length: int = 256,
    seed: int = 0,
    accuracy: float = 0.95,
    alone: bool = True,
    name: str = "distilled",
    changes: Sequence[str] = (),
) -> Recipe:
    """The recipe of ``distilcal distill``."""
    data = DataSettings(
        train=train,
        dev=dev,
        test=test,
        ood=tuple(ood),
        text=text,
        pair=pair,
        choices=_names(choices),
        label=label,
        id=id_column,
        group=group,
    )
    how = TrainSettings(epochs=epochs, batch=batch, lr=lr)
    kept = _numbers(layers)
    first = _teacher_stage(teacher, teacher_labels, how, max_length)
    if student is None:
        if first.predictions:
            raise InputError("a teacher known by its predictions has no layers to take", remedy="name a --student")
        kept = kept or tuple(range(0, _layer_count(first.model.name), 2))
        small = ModelSettings(name=first.model.name, layers=kept, head="new", max_length=max_length)
    else:
        small = ModelSettings(name=_run_model(student), layers=kept, head="new", max_length=max_length)
    stages = {"teacher": first}
    if alone:
        stages["alone"] = StageSettings(model=small, terms=ALONE, train=how)
    stages["student"] = StageSettings(model=small, terms=LEARNING, train=how, teacher="teacher", scale_teacher=True)
    table = as_table(Recipe(name=name, seed=seed, data=data, stages=stages, accuracy=accuracy))
    for change in changes:
        apply_change(table, change)
    return parse_recipe(table)


def _teacher_stage(teacher: str, labels: str | None, how: TrainSettings, max_length: int) -> StageSettings:
    """The stage of a teacher: its predictions, a trained model as it stands, or an encoder to be trained."""
    if Path(teacher).suffix.lower() in SUFFIXES:
        if not Path(teacher).exists():
            raise InputError("there is no such file", source=teacher, remedy="check the path")
        return StageSettings(predictions=(teacher,))
    source = _run_model(teacher)
    named = _names(labels)
    if _has_head(source):
        return StageSettings(model=ModelSettings(name=source, head="keep", labels=named, max_length=max_length))
    return StageSettings(model=ModelSettings(name=source, head="new", max_length=max_length), terms=TEACHING, train=how)


def _run_model(source: str) -> str:
    """The model of a run where a run's folder is given, else the source as it stands."""
    facts = Path(source) / "metrics.json"
    return str(Path(source) / main_stage(read_json(facts)["stages"]) / "model") if facts.exists() else source


def _config(source: str) -> dict[str, Any]:
    place = resolve_model(source)
    if Path(place).is_dir():
        found = read_json(Path(place) / "config.json")
        if not isinstance(found, dict):
            raise InputError("its config.json is no table", source=source, remedy="give a folder made by save_pretrained")
        return found
    from transformers import AutoConfig

    with quiet_transformers(source):
        return dict(AutoConfig.from_pretrained(place, trust_remote_code=False).to_dict())


def _has_head(source: str) -> bool:
    return any("ForSequenceClassification" in a or "ForMultipleChoice" in a for a in _config(source).get("architectures") or [])


def _layer_count(source: str) -> int:
    config = _config(source)
    return int(config.get("num_hidden_layers") or config.get("n_layers") or 0)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(n.strip() for n in text.split(",")) if text else ()


def _numbers(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise InputError(f"--layers {text!r} are not numbers", remedy="write them as 0,2,4") from None
