"""The data map of a model's training dynamics in sentences, on the terminal and as a table.

`distilcal.dynamics.data_map` builds it; ``map_page.py`` draws it. To say one thing more of a map, yield a sentence in
``reading`` or ``next_steps``, which the terminal and the page both show; a column of the table is an entry in
``_table_columns``. The
examples themselves come from the caller: a map knows ids only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distilcal.dynamics.data_map import DataMap, RowIndices
from distilcal.errors import InputError
from distilcal.io.atomic import atomic_write
from distilcal.io.tables import import_pyarrow
from distilcal.report.console import build_console, print_list, prose_width
from distilcal.report.formatting import csv_bytes, format_number, format_percent, join_listed, one_line
from distilcal.selective import counted

SHOWN = 8  # doubtful labels on the terminal
CHUNK_ROWS = 20_000


def shown_classes(m: DataMap) -> tuple[str, ...]:
    """Return the names of the classes as they are shown: single lines that cannot steer a terminal."""
    return tuple(one_line(name, 200) for name in m.dynamics.classes)


def example_text(m: DataMap, row: int, most: int) -> str:
    """Return an example in one line; empty where it is not text."""
    columns = {} if m.examples is None else m.examples.columns
    return one_line(" ⏐ ".join(str(values[row]) for values in columns.values()), most)


# ---- words -------------------------------------------------------------------------------------------------------------


def reading(m: DataMap) -> Iterator[str]:
    """What the map says, in sentences that are true of every map."""
    d = m.dynamics
    yield (
        f"The label had a probability of {np.median(d.confidence):.2f} in the median example and was predicted in "
        f"{m.right.mean():.0%} of the epochs."
    )
    parts = [f"{m.right[rows].mean():.0%} in the {name}" for name, rows in m.regions.items() if len(rows)]
    if parts:
        yield f"By region that is {join_listed(parts)} examples."
    if len(m.doubtful):
        yield (
            f"{counted(len(m.doubtful), 'example')} ({len(m.doubtful) / len(m):.1%}) lost to another class on average "
            "(AUM below 0): mislabelled, or hard."
        )
    else:
        yield "No label lost to another class on average (AUM below 0)."
    hard = m.regions["hard"]
    if len(hard):
        share, of_hard = m.class_shares(), m.class_shares(hard)
        most = int((of_hard - share).argmax())
        if of_hard[most] - share[most] >= 0.05:
            name = shown_classes(m)[most]
            yield f"The class {name} makes up {share[most]:.0%} of all examples and {of_hard[most]:.0%} of the hard ones."
    if m.left_out:
        yield f"{counted(m.left_out, 'example')} more were never recorded and are not in the map."


def next_steps(m: DataMap) -> Iterator[str]:
    """What to do now, most useful first."""
    most = int(m.dynamics.epochs.max())
    if len(m.doubtful) > len(m) / 2:
        yield "Train longer, or a stronger model, before you trust this map: most labels still lose to another class."
    elif len(m.doubtful):
        yield (
            "Read the examples with AUM below 0, the first rows of the table (column mislabelled): "
            "fix or drop the wrong labels, keep the hard examples."
        )
    if most < 4:
        yield f"Record more epochs: {most} say{'s' if most == 1 else ''} little about variability; the paper took five or six."
    yield "Choose what to train on, or to mix, by the columns easy, ambiguous and hard of the table."


# ---- terminal ----------------------------------------------------------------------------------------------------------


def show_map(m: DataMap, console: Console | None = None) -> None:
    """Print regions, the most doubtful labels, what they mean and what to do next."""
    if console is None:
        console = build_console()
    console.print(_region_table(m))
    console.print(Text("confidence, variability and AUM: medians; right: mean share of the epochs", style="dim"))
    lowest = m.by_aum[:SHOWN]
    lowest = lowest[m.dynamics.aum[lowest] < 0]
    if len(lowest):
        console.print(_doubtful_table(m, lowest))
    if m.why_not:
        console.print(Text(f"the examples themselves are not shown: {one_line(m.why_not, 500)}", style="dim"), soft_wrap=True)
    console.print()
    console.print(Text(" ".join(reading(m))), width=prose_width(console))
    console.print(Text("\nNext", style="bold"))
    print_list(console, next_steps(m))


def _region_table(m: DataMap) -> Table:
    title = f"{one_line(m.name, 200)}: {counted(len(m), 'example')} of {len(m.dynamics.classes)} classes, {m.epochs}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("region", no_wrap=True)
    for name in ("examples", "confidence", "variability", "AUM", "right", "AUM < 0"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("classes")
    for row in region_rows(m):
        numbers = (f"{row['count']:,}", *(format_number(row[key]) for key in ("confidence", "variability", "aum")))
        table.add_row(row["title"], *numbers, format_percent(row["right"]), f"{row['doubtful']:,}", Text(row["classes"]))
    return table


def _doubtful_table(m: DataMap, rows: RowIndices) -> Table:
    with_text = m.examples is not None and bool(m.examples.columns)
    table = Table(title=f"most doubtful labels, {len(rows)} of {len(m.doubtful):,}", title_justify="left", expand=True)
    table.add_column("AUM", justify="right", no_wrap=True)
    table.add_column("confidence", justify="right", no_wrap=True)
    for name in ("label", "model says"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("example" if with_text else "id", no_wrap=True, overflow="ellipsis", ratio=1)
    classes = shown_classes(m)
    d = m.dynamics
    for row in rows.tolist():
        example = example_text(m, row, 300) if with_text else one_line(str(d.ids[row]), 80)
        names = (Text(classes[int(d.labels[row])]), Text(classes[int(m.predicted[row])]))
        table.add_row(f"{d.aum[row]:.2f}", f"{d.confidence[row]:.3f}", *names, Text(example))
    return table


def region_rows(m: DataMap) -> list[dict[str, Any]]:
    """Return all examples, then each region, with its three largest classes as text."""
    names = shown_classes(m)
    rows = []
    for region in m.region_statistics():
        share = region.class_shares
        order = np.argsort(-share, kind="stable")[:3]
        classes = ", ".join(f"{names[k]} {share[k]:.0%}" for k in order if share[k])
        more = int((share > 0).sum()) - 3
        if more > 0:
            classes += f", {more} more"
        rows.append({**vars(region), "title": region.name, "classes": classes})
    return rows


# ---- table -------------------------------------------------------------------------------------------------------------


def check_table_name(path: Path) -> None:
    """Refuse a table that is neither .csv nor .parquet, or for which a package is missing, before any work."""
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{str(path)!r} is neither .csv nor .parquet", remedy="give a name that ends in one of them")
    if path.suffix == ".parquet":
        import_pyarrow()


def write_map_table(m: DataMap, path: Path) -> None:
    """One row per example with every statistic and the example itself, the most doubtful label first."""
    check_table_name(path)
    columns = _table_columns(m)
    with atomic_write(path) as file:
        if path.suffix == ".parquet":
            pyarrow, parquet = import_pyarrow()
            parquet.write_table(pyarrow.table({title: values[m.by_aum] for title, values in columns.items()}), file)
            return
        # Text stays as it is, as in all our files: what a spreadsheet makes of a leading = is for its import to say.
        file.write(csv_bytes([list(columns)]))
        for start in range(0, len(m), CHUNK_ROWS):
            rows = m.by_aum[start : start + CHUNK_ROWS]
            file.write(csv_bytes(zip(*(_cells(values[rows]) for values in columns.values()), strict=True)))


def _table_columns(m: DataMap) -> dict[str, NDArray[Any]]:
    d = m.dynamics
    classes = np.array(d.classes, dtype=object)
    inside = {name: np.zeros(len(m), dtype=bool) for name in m.regions}
    for name, rows in m.regions.items():
        inside[name][rows] = True
    statistics = ("confidence", "variability", "correctness", "epochs", "forgetting", "threshold_closeness", "aum")
    return {
        "id": np.asarray(d.ids).astype(object),
        "label": classes[d.labels],
        "predicted": classes[m.predicted],
        **{name: np.asarray(getattr(d, name)) for name in statistics},
        **inside,
        "aum_half": np.where(m.high_aum, "high", "low").astype(object),
        "mislabelled": np.asarray(d.aum < 0),
        **({} if m.examples is None else m.examples.columns),
    }


def _cells(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "f":
        return [f"{v:.6g}" for v in values.tolist()]
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    if values.dtype.kind == "O":  # csv leaves a bare carriage return unquoted, and no reader takes it back
        return [str(v).replace("\r\n", "\n").replace("\r", "\n") for v in values]
    cells: list[Any] = values.tolist()
    return cells
