"""Settings of recipes: what to train on what, from which teacher.

Each setting is defined once, with its default, its bounds and a description; the documentation, the JSON Schema for editors
(``distilcal schema recipe``) and error messages come from here. Every rule that needs no data is a bound of a field or a small
validator on the model that it is about. What needs data, models or files is checked in `distilcal.pipeline.preflight`.
Recipes are read and written in `distilcal.config.loading`.

To add a setting: a field with a description, and a validator if it depends on others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from distilcal.config.base import FiniteSettings, ListOf, Settings, allow_any_key, check_no_duplicates, collect_unknown_keys
from distilcal.errors import InputError

LONGEST_NAME = 100  # file systems allow 255 bytes, of which names of temporary files take some
DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))
MOST_EPOCHS, MOST_STEPS, LARGEST_BATCH = 100_000, 100_000_000, 1_000_000
LONGEST_TEXT = 1_000_000  # tokens
MOST_LAYERS, WIDEST_LAYER = 100, 1_000_000  # of a perceptron
LARGEST_IMAGE = 4096  # pixels a side
LARGEST_SEED = 2**32 - 1  # what every generator accepts
LARGEST_COUNT = 1_000_000  # as a setting of a loss
SHOWN_STAGES = 12  # of a cycle


def _check_file_name(name: str) -> str:
    """Refuse a name that no folder can have on Windows."""
    if name.endswith(".") or name.partition(".")[0].lower() in DEVICES:
        raise InputError(f"{name!r} cannot be the name of a folder on every system", remedy="choose another name")
    return name


# Of runs and stages, which are folders.
Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=LONGEST_NAME), AfterValidator(_check_file_name)
]
RESERVED = (
    "manifest.json",
    "metrics.json",
    "evaluation.json",
    "report.html",
    "recipe.toml",
    "environment.json",
    "budget.json",
    "frontier.html",
    "frontier.svg",
    "points.csv",
    "best.toml",
    "sweep.json",
    "data",
    "track",
)  # files and folders of a run, beside its stages
NEED_A_TEACHER = ("kd", "hard_kd", "rkd", "crd")  # losses that compare with a teacher


class DataSettings(FiniteSettings):
    """Which examples to train and test on: files, folders, ``hub:NAME/CONFIG@SPLIT`` or ``benchmark:NAME``."""

    train: str = Field(default="", description="Training data; `benchmark:NAME` brings its own dev and test.")
    dev: str = Field(default="", description="Development data; empty: held out of `train`, `dev_fraction` of it.")
    test: str = Field(default="", description="Test data; empty: held out of `train`, `test_fraction` of it.")
    ood: ListOf[str] = Field(default=(), description="Data of other domains to test on.")
    unlabelled: ListOf[str] | None = Field(
        default=None,
        description="Further training examples without labels, for terms that need none (`kd`, `rkd`); labels in them are not "
        "read. Rows of `train` with an empty label are added to them.",
    )
    source: Literal["auto", "folder", "hub"] | None = Field(
        default=None,
        description="Where a `benchmark:NAME` comes from: its folder under `$DISTILCAL_DATA`, or the Hugging Face hub; unset "
        "or `auto`: the folder if it is there, otherwise the hub.",
    )
    corrupt: ListOf[str] = Field(
        default=(), description='Corruptions of `test` to test on: `"frost:3"`, or `"frost"` for all five severities.'
    )
    dev_fraction: float = Field(default=0.1, gt=0, lt=1, description="Share of `train` that is held out as dev.")
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="Share of `train` that is held out as test.")
    limit: int = Field(
        default=0,
        ge=0,
        description="Train on at most this many labelled examples, each class in its share; 0: all of them. Unlabelled ones "
        "are not limited.",
    )
    limit_unlabelled: int | None = Field(
        default=None, ge=1, description="Use at most this many of the unlabelled examples; unset: all of them."
    )
    limit_test: int = Field(default=0, ge=0, description="The same for dev, test and each other domain.")
    soft_labels: bool = Field(
        default=False, description="Train on the votes of the raters (columns `label_prob_<class>`) where the data have them."
    )
    classes: ListOf[str] = Field(default=(), description="Names of the classes, in order; empty: as found in `train`.")
    text: str = Field(default="", description="Column of texts; empty: the usual names.")
    pair: str = Field(default="", description="Column of second texts; empty: the usual names.")
    choices: ListOf[str] = Field(default=(), description="Columns of the choices of a multiple-choice task.")
    label: str = Field(default="label", description="Column of labels.")
    id: str = Field(default="", description="Column of ids; empty: `id`, or computed from the content.")
    group: str = Field(
        default="", description="Column of groups; examples of one group are never split between train, dev and test."
    )
    size: int = Field(default=0, ge=0, le=LARGEST_IMAGE, description="Scale images to this many pixels a side; 0: as they are.")
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="Seed of the splits and corruptions.")

    @model_validator(mode="after")
    def check_corruptions(self) -> Self:
        check_no_duplicates(self.corrupt, "corrupt")
        return self

    @model_validator(mode="after")
    def check_fractions(self) -> Self:
        if self.dev_fraction + self.test_fraction >= 1:
            raise InputError(
                f"dev_fraction = {self.dev_fraction:g} and test_fraction = {self.test_fraction:g} leave nothing to train on",
                remedy="lower one of them",
            )
        return self


class ModelSettings(FiniteSettings):
    """A network: a text encoder, a network for images, or a head on vectors."""

    name: str = Field(
        default="",
        description="Hub name, folder or `package:NAME/FOLDER` of a text encoder; the name of a network for images; "
        "`linear` or `mlp` for vectors.",
    )
    start_from: str = Field(default="", description="Stage whose trained network this one starts as, in place of `name`.")
    layers: ListOf[int] = Field(default=(), description="Keep only these layers of a text encoder, counted from 0; empty: all.")
    head: Literal["auto", "new", "keep"] = Field(
        default="auto", description="Train a new head, keep the model's own, or keep it if it is for these classes."
    )
    labels: ListOf[str] = Field(
        default=(), description="Classes of the model's outputs, in order, if it only calls them LABEL_0, LABEL_1, …."
    )
    dropout: float | None = Field(default=None, ge=0, lt=1, description="Probability of dropout; unset: the model's own.")
    max_length: int = Field(default=256, ge=4, le=LONGEST_TEXT, description="Tokens after which a text is cut off.")
    frozen: bool = Field(default=False, description="Keep the encoder as it is, cache its features and train a head on them.")
    pairs: Literal["together", "apart"] = Field(
        default="together",
        description="How a frozen encoder reads two texts: together, or each alone as sentence encoders do: "
        "(u, v, |u - v|, u·v).",
    )
    hidden: ListOf[Annotated[int, Field(gt=0, le=WIDEST_LAYER)]] = Field(
        default=(),
        max_length=MOST_LAYERS,
        description="Widths of the hidden layers of a perceptron on vectors or frozen features; empty: linear.",
    )
    weights: str = Field(
        default="", description="`.safetensors` file of a network for images; `$DISTILCAL_DATA` in it is replaced."
    )
    mean: ListOf[float] = Field(
        default=(0.4914, 0.4822, 0.4465), min_length=3, max_length=3, description="Means of the channels of images in [0, 1]."
    )
    std: ListOf[Annotated[float, Field(gt=0)]] = Field(
        default=(0.2023, 0.1994, 0.2010), min_length=3, max_length=3, description="Standard deviations of the channels."
    )
    augment: bool = Field(default=True, description="Crop and flip images in training.")

    @model_validator(mode="after")
    def check_layers(self) -> Self:
        check_no_duplicates(self.layers, "layers")
        return self

    @model_validator(mode="after")
    def check_pairs(self) -> Self:
        if self.pairs == "apart" and not self.frozen:
            raise InputError("pairs = 'apart' is for frozen encoders", remedy="add frozen = true, or leave out pairs")
        return self


class TrainSettings(FiniteSettings):
    """How to train: the optimizer, its schedule, and which epoch to keep."""

    epochs: int = Field(default=3, ge=1, le=MOST_EPOCHS, description="Passes over the training data.")
    batch: int = Field(
        default=32,
        ge=0,
        le=LARGEST_BATCH,
        description="Examples in a batch, over all processes; 0: 16 for fewer than 2,000 training examples, else 32.",
    )
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="Optimizer.")
    lr: float = Field(default=5e-5, gt=0, description="Learning rate at its highest.")
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay; `adamw` spares biases and norms.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of `sgd`.")
    nesterov: bool = Field(default=False, description="Nesterov's momentum for `sgd`.")
    schedule: Literal["none", "linear", "cosine", "steps"] = Field(
        default="linear",
        description="Learning rate after the warm-up: constant, linear or cosine to 0, or times `gamma` after each of the "
        "`milestones`.",
    )
    warmup: float = Field(default=0.0, ge=0, lt=1, description="Share of all steps in which the learning rate rises from 0.")
    milestones: ListOf[int] = Field(
        default=(), description="For `steps`: epochs after which the learning rate is multiplied by `gamma`."
    )
    gamma: float = Field(default=0.1, gt=0, description="Factor of the learning rate at each milestone.")
    clip: float = Field(default=1.0, ge=0, description="Largest norm of the gradient; 0: not clipped.")
    freeze_embeddings: bool = Field(
        default=False,
        description="Keep the word embeddings of a text encoder as they are. They are half of the weights of a small encoder, "
        "and on a CPU their gradient and update are up to half of a step.",
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        description="Parts that a batch is split into for less memory. The gradient is that of the whole batch, for every "
        "loss; losses over a whole batch cost a second forward pass, and batch norms see the parts.",
    )
    labelled_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of labelled examples in every batch, where unlabelled ones take part; unset: as in the data. An "
        "epoch sees every example at least once, and repeats those of the kind that is too rare for this share.",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format; `auto` is bfloat16 on a GPU that has it and float32 elsewhere."
    )
    choose: Literal["calibrated_nll", "nll", "accuracy", "last"] = Field(
        default="calibrated_nll",
        description="Epoch to keep: the best by this metric on dev, or the last. `calibrated_nll` is the NLL after the "
        "temperature that is fitted on dev; `nll` prefers earlier epochs, which are less sure of themselves.",
    )
    choose_among: ListOf[PositiveInt] = Field(
        default=(), description="Keep only a model after so many epochs, such as `[2, 4, 8]`; empty: after any epoch."
    )
    min_steps: PositiveInt | None = Field(
        default=None,
        le=MOST_STEPS,
        description="Train for more `epochs` where the data are so few that these would be fewer steps.",
    )
    patience: int = Field(default=0, ge=0, description="Stop after so many epochs without a better one, by `choose`; 0: never.")

    @model_validator(mode="after")
    def check_accumulate(self) -> Self:
        if self.batch % self.accumulate:
            raise InputError(
                f"batch = {self.batch} cannot be split into {self.accumulate} equal parts", remedy="change batch or accumulate"
            )
        return self

    @model_validator(mode="after")
    def check_choose_among(self) -> Self:
        too_late = [epoch for epoch in self.choose_among if epoch > self.epochs]
        if too_late:
            raise InputError(
                f"choose_among contains {too_late[0]}, outside the epochs 1 to {self.epochs}", remedy="leave it out"
            )
        if self.choose_among and self.choose == "last":
            raise InputError("choose_among has no effect with choose = 'last'", remedy="leave out one of them")
        return self

    @model_validator(mode="after")
    def check_schedule(self) -> Self:
        if self.schedule == "steps" and not self.milestones:
            raise InputError("schedule = 'steps' needs milestones", remedy="give the epochs, as milestones = [80, 120]")
        return self


class TermSettings(FiniteSettings):
    """One term of the sum that is minimised: a loss, its weight, and the view of the batch that it sees.

    Further keys are settings of the loss: ``{ loss = "kd", weight = 0.9, temperature = 2.0 }``.
    """

    model_config = ConfigDict(json_schema_extra=allow_any_key)

    loss: str = Field(default="cross_entropy", description="Name of the loss.")
    weight: float = Field(default=1.0, ge=0, description="Factor of the loss in the sum.")
    view: str = Field(default="plain", description="View that the loss sees: `plain`, a kind of mixing, or one of `views`.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the loss.")

    @model_validator(mode="before")
    @classmethod
    def collect_loss_settings(cls, values: Any) -> Any:
        return collect_unknown_keys(cls, values)

    @model_validator(mode="after")
    def check_loss_settings(self) -> Self:
        for name, value in self.settings.items():
            if not isinstance(value, bool | int | float | str):
                raise InputError(f"{name} = {value!r}, expected a number, text, true or false", remedy="change it")
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{name} = {value!r}, expected a finite number", remedy="change it")
            if isinstance(value, int) and abs(value) > LARGEST_COUNT:
                raise InputError(f"{name} = {value!r}, expected at most {LARGEST_COUNT:,}", remedy="change it")
        return self

    def __str__(self) -> str:
        view = "" if self.view == "plain" else f" ({self.view})"
        return f"{self.weight:g}·{self.loss}{view}"


class ViewSettings(FiniteSettings):
    """A way of a batch through the student: which examples are mixed with which, where, and how much."""

    kind: Literal["mixup", "manifold", "cutmix", "cutout"] = Field(
        default="mixup", description="How examples are changed; `manifold` mixes at the features, or after `layers`."
    )
    pairs: Literal["random", "regions", "halves", "similar", "dissimilar"] = Field(
        default="random",
        description="Partners: random in the batch; random in the other region or AUM half; or by saliency in the other half.",
    )
    regions: ListOf[Literal["easy", "ambiguous", "hard"]] = Field(
        default=("easy", "ambiguous"),
        min_length=2,
        max_length=2,
        description="For `regions`: the two regions of the map; each example of one is mixed with one of the other.",
    )
    fraction: float = Field(default=0.33, gt=0, le=1, description="For `regions`: share of the examples in each region.")
    disjoint: bool = Field(default=False, description="For `regions`: no example is in two regions.")
    candidates: Literal["all", "batch"] = Field(
        default="all", description="Draw partners from the whole training set, or from the same batch."
    )
    any_half: bool = Field(
        default=False, description="For `similar` and `dissimilar`: among all examples, not in the other AUM half only."
    )
    halves: Literal["random"] | None = Field(
        default=None,
        description="For `halves`, `similar` and `dissimilar`: divide the examples at random; unset: by their AUM.",
    )
    saliency: Literal["logits", "features"] = Field(
        default="logits",
        description="For `similar` and `dissimilar`: what is compared; features also differ where there are two classes.",
    )
    layers: ListOf[NonNegativeInt] = Field(
        default=(),
        description="For `manifold`: layers of which one is drawn for each batch, 0 is the input; empty: the features.",
    )
    alpha: float | None = Field(
        default=None, ge=0, description="Shares are drawn from Beta(alpha, alpha); unset: 0.4, for `cutmix` 1."
    )
    shares: Literal["batch", "sample"] = Field(default="batch", description="Draw one share for the batch or for each example.")
    probability: float = Field(default=1.0, ge=0, le=1, description="Probability that a batch is changed at all.")
    length: int = Field(default=16, ge=1, description="For `cutout`: side of a hole in pixels.")
    holes: int = Field(default=1, ge=1, description="For `cutout`: number of holes.")
    teacher: Literal["clean", "mixed"] = Field(
        default="clean", description="What the teacher sees: each example as it is, or what the student sees."
    )
    variant: Literal["paper", "author_code"] = Field(
        default="paper", description="For `similar` and `dissimilar`: targets of the paper, or of its released code."
    )

    @model_validator(mode="after")
    def check_settings_in_use(self) -> Self:
        """Refuse a setting that the view's kind or pairs ignores: it would not have the effect that was meant."""
        mixes = self.kind != "cutout"
        by_region = self.pairs == "regions"
        by_saliency = self.pairs in ("similar", "dissimilar")
        in_use = {
            "pairs": mixes,
            "regions": by_region,
            "fraction": by_region,
            "disjoint": by_region,
            "candidates": self.pairs != "random",
            "any_half": by_saliency and self.halves is None,
            "halves": by_saliency or self.pairs == "halves",
            "saliency": by_saliency,
            "variant": by_saliency,
            "layers": self.kind == "manifold",
            "alpha": mixes,
            "shares": mixes,
            "length": not mixes,
            "holes": not mixes,
        }
        for name, used in in_use.items():
            if not used and getattr(self, name) != type(self).model_fields[name].default:
                raise InputError(
                    f"{name} has no effect with kind = {self.kind!r} and pairs = {self.pairs!r}", remedy="change one of them"
                )
        return self

    @model_validator(mode="after")
    def check_layers(self) -> Self:
        if any(self.layers) and self.pairs != "random" and self.candidates == "all":
            raise InputError(
                "a hidden layer mixes examples of one batch", remedy="add candidates = 'batch', or leave out layers"
            )
        return self

    @model_validator(mode="after")
    def check_teacher(self) -> Self:
        if self.teacher == "mixed" and self.kind == "manifold":
            raise InputError(
                "a teacher cannot see what is mixed inside the student", remedy="use kind = 'mixup', or teacher = 'clean'"
            )
        return self

    @model_validator(mode="after")
    def check_variant(self) -> Self:
        if self.variant == "author_code" and self.candidates == "all":
            raise InputError("variant = 'author_code' pairs examples by saliency in a batch", remedy="add candidates = 'batch'")
        return self


def _add_like(schema: dict[str, Any]) -> None:
    """Add the key ``like``, which `distilcal.config.loading` resolves, to the JSON Schema of a stage."""
    text = "Stage that this one inherits from: model, train and each view key by key, everything else as a whole."
    schema["properties"]["like"] = {"type": "string", "title": "Like", "description": text}


class StageSettings(Settings):
    """One model: trained with terms, used as it is (no terms), or known by its predictions only."""

    model_config = ConfigDict(json_schema_extra=_add_like)

    model: ModelSettings = Field(default=ModelSettings(), description="The network.")
    terms: ListOf[TermSettings] = Field(
        default=(), description="Terms of the sum that is minimised; empty: the model is used as it is."
    )
    train: TrainSettings = Field(default=TrainSettings(), description="How to train.")
    views: dict[str, ViewSettings] = Field(default_factory=dict, description="Views of the batch by name, for the terms.")
    record: bool = Field(
        default=False, description="Record the model's outputs on each training example over the epochs: its map."
    )
    record_features: bool = Field(
        default=False, description="With `record`: also record the saliency of the features, for pairs by it."
    )
    map: str = Field(default="", description="Stage, or folder (with a `/`), whose map gives the regions and AUM halves.")
    teacher: str = Field(default="", description="Stage whose outputs `kd`, `rkd` and `crd` compare with.")
    scale_teacher: bool = Field(
        default=False, description="Divide the teacher's logits by the temperature that is fitted on dev."
    )
    teacher_grid: ListOf[PositiveFloat] | None = Field(
        default=None,
        min_length=3,
        max_length=3,
        description="With `scale_teacher`: first, last and step of the temperatures among which the best on dev is taken; "
        "unset: the exact optimum.",
    )
    teacher_input: Literal["auto", "cached", "live"] = Field(
        default="auto",
        description="Use the teacher's cached outputs, or run it on inputs that change (augmented images); `auto`: run it if "
        "they change.",
    )
    unlabelled: bool | None = Field(
        default=None,
        description="Whether to learn from the unlabelled examples; unset: if a term can. `false`: a control without them.",
    )
    predictions: ListOf[str] = Field(
        default=(), description="Files of predictions of a model that is not at hand, in place of `model`."
    )
    calibrate: Literal["temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram", "none"] = Field(
        default="temperature", description="Calibrator that is fitted on dev after training."
    )

    @model_validator(mode="after")
    def check_model_or_predictions(self) -> Self:
        has_model = bool(self.terms or self.model.name or self.model.start_from)
        if self.predictions and has_model:
            raise InputError("both predictions and a model", remedy="give one of them")
        if not self.predictions and bool(self.model.name) == bool(self.model.start_from):
            raise InputError("model needs either a name or start_from", remedy="name the network")
        return self

    @model_validator(mode="after")
    def check_teacher(self) -> Self:
        taught = [term.loss for term in self.terms if term.loss in NEED_A_TEACHER]
        if taught and not self.teacher:
            raise InputError(f"the term {taught[0]!r} needs a teacher", remedy='add teacher = "STAGE"')
        return self

    @model_validator(mode="after")
    def check_weights(self) -> Self:
        if self.terms and not any(term.weight for term in self.terms):
            raise InputError("every term has weight 0, so nothing would be learned", remedy="raise one of them")
        return self

    @model_validator(mode="after")
    def check_record(self) -> Self:
        if self.record and not any(term.view == "plain" for term in self.terms):
            raise InputError("no term on the plain view to record", remedy="add one, or leave out record")
        return self

    @model_validator(mode="after")
    def check_views(self) -> Self:
        used = [term.view for term in self.terms]
        for name, view in self.views.items():
            if name == "plain":
                raise InputError("views.plain: the plain view is the unchanged batch", remedy="choose another name")
            if name not in used:
                raise InputError(f"views.{name} is used by no term", remedy=f'add view = "{name}" to a term, or leave it out')
            if view.pairs != "random" and not self.map:
                raise InputError(
                    f"views.{name}: pairs = {view.pairs!r} needs a map",
                    remedy='add map = "STAGE", a stage with record = true',
                )
        return self


class EndpointSettings(Settings):
    """What decides whether the main model is worth its trouble: means over test and all other domains, beside a control."""

    against: str = Field(default="alone", description="Stage that is the control.")
    metrics: ListOf[Literal["accuracy", "nll", "brier", "ece"]] = Field(
        default=("accuracy", "nll", "ece"), min_length=1, description="What is compared."
    )
    state: Literal["calibrated", "given"] = Field(
        default="calibrated", description="Compare after each model's temperature, fitted on dev, or as trained."
    )


class Recipe(FiniteSettings):
    """Data, stages in any order, and the seed of the models."""

    name: Name = Field(default="run", description="Name of the run; results are saved in `runs/NAME`.")
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="Seed of the models and of the order of the data.")
    data: DataSettings = Field(default=DataSettings(), description="The data.")
    stages: dict[Name, StageSettings] = Field(default_factory=dict, description="The models by name.")
    accuracy: float = Field(
        default=0.95, gt=0, le=1, description="Target accuracy among the answers that are not handed over to a human."
    )
    train_predictions: bool = Field(default=False, description="Also save each model's predictions on the training data.")
    baseline: bool | None = Field(
        default=None,
        description="Whether TF-IDF with logistic regression is a row of the results; unset: wherever `train` has labelled "
        "texts or pairs of texts.",
    )
    endpoints: EndpointSettings | None = Field(
        default=None, description="Control and metrics that decide, fixed before anything is trained; unset: none."
    )

    @model_validator(mode="after")
    def check_complete(self) -> Self:
        if not self.stages:
            raise InputError("no stages", remedy="add [stages.student] with a model and terms")
        if not self.data.train:
            raise InputError("data.train is empty", remedy="name the training data")
        return self

    @model_validator(mode="after")
    def check_stage_names(self) -> Self:
        for name in self.stages:
            if name.lower() in RESERVED:
                raise InputError(f"stages.{name}: a run saves a file under this name", remedy="choose another name")
        by_lower_case = {name.lower(): name for name in self.stages}
        for name in self.stages:
            other = by_lower_case[name.lower()]
            if other != name:
                raise InputError(
                    f"stages.{name} and stages.{other} are one folder where capitals do not matter",
                    remedy="choose another name for one of them",
                )
        return self

    @model_validator(mode="after")
    def check_endpoints(self) -> Self:
        if self.endpoints is not None and self.endpoints.against not in self.stages:
            raise InputError(
                f"endpoints.against: there is no stage {self.endpoints.against!r}",
                remedy=f"name one of {', '.join(self.stages)}",
            )
        return self

    @model_validator(mode="after")
    def check_dependencies(self) -> Self:
        ordered_stages(self)
        return self

    @model_validator(mode="after")
    def check_maps(self) -> Self:
        """The stage that a map comes from must record it, with features where a view compares them."""
        for name, stage in self.stages.items():
            recorded = self.stages.get(stage.map)
            if recorded is None:
                continue
            if not recorded.record:
                raise InputError(
                    f"stages.{name} uses the map of {stage.map!r}, which records none",
                    remedy=f"add record = true to stages.{stage.map}",
                )
            for key, view in stage.views.items():
                if view.saliency == "features" and not recorded.record_features:
                    raise InputError(
                        f"stages.{name}.views.{key}: the map {stage.map!r} holds no saliency of features",
                        remedy=f"add record_features = true to stages.{stage.map}",
                    )
        return self

    @model_validator(mode="after")
    def check_teachers_of_views(self) -> Self:
        for name, stage in self.stages.items():
            teacher = self.stages.get(stage.teacher)
            if teacher is None or not teacher.predictions:
                continue
            for key, view in stage.views.items():
                if view.teacher == "mixed":
                    raise InputError(
                        f"stages.{name}.views.{key}: the teacher {stage.teacher!r} is known by its predictions and cannot see "
                        "mixed examples",
                        remedy="use teacher = 'clean'",
                    )
        return self


# ---- how stages depend on each other -----------------------------------------------------------------------------------


def is_folder(map_source: str) -> bool:
    """Return whether a map is read from a folder, not from a stage.

    Parameters
    ----------
    map_source : str
        The setting ``map`` of a stage.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_folder("runs/a/map"), is_folder("map")
    (True, False)
    """
    return "/" in map_source


def dependencies(stage: StageSettings) -> list[str]:
    """Return the names of the stages that must be trained before this one.

    Parameters
    ----------
    stage : StageSettings
        The stage.

    Returns
    -------
    list of str
        Its teacher, the stage it starts from and that of its map, as far as it has them.
    """
    map_stage = "" if is_folder(stage.map) else stage.map
    return [name for name in (stage.teacher, stage.model.start_from, map_stage) if name]


def ordered_stages(recipe: Recipe) -> list[str]:
    """Return the names of the stages, each after those it depends on and otherwise in the order of the recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe.

    Returns
    -------
    list of str

    Raises
    ------
    InputError
        If a stage depends on one that does not exist, or stages depend on each other in a cycle.
    """
    _check_dependencies_exist(recipe.stages)
    sorter = TopologicalSorter({name: dependencies(stage) for name, stage in recipe.stages.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))  # graphlib lists a stage before those that depend on it
        shown = cycle if len(cycle) <= SHOWN_STAGES else [*cycle[: SHOWN_STAGES - 2], "…", cycle[-1]]
        raise InputError(
            f"stages depend on each other in a cycle: {' → '.join(shown)}", remedy="remove one of these dependencies"
        ) from None
    position = {name: index for index, name in enumerate(recipe.stages)}
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def _check_dependencies_exist(stages: Mapping[str, StageSettings]) -> None:
    for name, stage in stages.items():
        for needed in dependencies(stage):
            if needed not in stages:
                raise InputError(
                    f"stages.{name} depends on {needed!r}, which is not a stage",
                    remedy=f"the stages are {', '.join(stages)}; the map of a folder is written as {'./' + needed!r}",
                )
