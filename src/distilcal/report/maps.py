"""The data map of a model's training dynamics in sentences, on the terminal and as a table.

`distilcal.dynamics.data_map` builds it; ``map_page.py`` draws it. To add a sentence about a map, yield it in
``reading`` or ``next_steps``, which the terminal and the page both show; to add a column to the table, add an entry to
``_table_columns``. The examples themselves come from the caller: dynamics hold only their ids.
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
from distilcal.io.tables import import_pyarrow, write_csv
from distilcal.report.console import build_console, print_list, prose_width
from distilcal.report.formatting import format_number, format_percent, join_listed, one_line
from distilcal.selective import counted

DOUBTFUL_ROWS = 8  # doubtful labels on the terminal


def shown_classes(data_map: DataMap) -> tuple[str, ...]:
    """Return the names of the classes as they are shown: single lines that cannot steer a terminal.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Returns
    -------
    tuple of str
    """
    return tuple(one_line(name, 200) for name in data_map.dynamics.classes)


def example_text(data_map: DataMap, row: int, most: int) -> str:
    """Return an example as one line of text.

    Parameters
    ----------
    data_map : DataMap
        The map.
    row : int
        The row of the example in the dynamics.
    most : int
        Longest result, in characters.

    Returns
    -------
    str
        Its columns with bars between them; empty where the example is not text or not known.
    """
    if data_map.examples is None:
        return ""
    columns = data_map.examples.columns.values()
    return one_line(" ⏐ ".join(str(values[row]) for values in columns), most)


# ---- sentences -------------------------------------------------------------------------------------------------------


def reading(data_map: DataMap) -> Iterator[str]:
    """Yield what the map says, in sentences that are true of every map.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Yields
    ------
    str
    """
    dynamics = data_map.dynamics
    yield (
        f"The label had a probability of {np.median(dynamics.confidence):.2f} in the median example and was predicted in "
        f"{data_map.right.mean():.0%} of the epochs."
    )
    parts = [f"{data_map.right[rows].mean():.0%} in the {name}" for name, rows in data_map.regions.items() if len(rows)]
    if parts:
        yield f"By region that is {join_listed(parts)} examples."
    doubtful = len(data_map.doubtful)
    if doubtful:
        yield (
            f"{counted(doubtful, 'example')} ({doubtful / len(data_map):.1%}) lost to another class on average "
            "(AUM below 0): mislabelled, or hard."
        )
    else:
        yield "No label lost to another class on average (AUM below 0)."
    yield from _hard_class_sentence(data_map)
    if data_map.left_out:
        yield f"{counted(data_map.left_out, 'example')} more were never recorded and are not in the map."


def _hard_class_sentence(data_map: DataMap) -> Iterator[str]:
    """The class that is most over-represented among the hard examples, if it is so by five points."""
    hard = data_map.regions["hard"]
    if not len(hard):
        return
    share, hard_share = data_map.class_shares(), data_map.class_shares(hard)
    k = int((hard_share - share).argmax())
    if hard_share[k] - share[k] >= 0.05:
        name = shown_classes(data_map)[k]
        yield f"The class {name} makes up {share[k]:.0%} of all examples and {hard_share[k]:.0%} of the hard ones."


def next_steps(data_map: DataMap) -> Iterator[str]:
    """Yield what to do with the map, most useful first.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Yields
    ------
    str
    """
    epochs = int(data_map.dynamics.epochs.max())
    if len(data_map.doubtful) > len(data_map) / 2:
        yield "Train longer, or a stronger model, before you trust this map: most labels still lose to another class."
    elif len(data_map.doubtful):
        yield (
            "Read the examples with AUM below 0, the first rows of the table (column mislabelled): "
            "fix or drop the wrong labels, keep the hard examples."
        )
    if epochs < 4:
        verb = "says" if epochs == 1 else "say"
        yield f"Record more epochs: {epochs} {verb} little about variability; the paper took five or six."
    yield "Choose what to train on, or to mix, by the columns easy, ambiguous and hard of the table."


# ---- terminal ----------------------------------------------------------------------------------------------------------


def show_map(data_map: DataMap, console: Console | None = None) -> None:
    """Print the regions, the most doubtful labels, what they mean and what to do next.

    Parameters
    ----------
    data_map : DataMap
        The map.
    console : rich.console.Console, optional
        Where to print; standard output by default.
    """
    if console is None:
        console = build_console()
    console.print(_region_table(data_map))
    console.print(Text("confidence, variability and AUM: medians; right: mean share of the epochs", style="dim"))
    lowest = data_map.by_aum[:DOUBTFUL_ROWS]
    lowest = lowest[data_map.dynamics.aum[lowest] < 0]
    if len(lowest):
        console.print(_doubtful_table(data_map, lowest))
    if data_map.why_not:
        console.print(
            Text(f"the examples themselves are not shown: {one_line(data_map.why_not, 500)}", style="dim"), soft_wrap=True
        )
    console.print()
    console.print(Text(" ".join(reading(data_map))), width=prose_width(console))
    console.print(Text("\nNext", style="bold"))
    print_list(console, next_steps(data_map))


def _region_table(data_map: DataMap) -> Table:
    classes = len(data_map.dynamics.classes)
    examples = counted(len(data_map), "example")
    title = f"{one_line(data_map.name, 200)}: {examples} of {classes} classes, {data_map.epochs}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("region", no_wrap=True)
    for name in ("examples", "confidence", "variability", "AUM", "right", "AUM < 0"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("classes")
    for row in region_rows(data_map):
        numbers = (f"{row['count']:,}", *(format_number(row[key]) for key in ("confidence", "variability", "aum")))
        table.add_row(row["title"], *numbers, format_percent(row["right"]), f"{row['doubtful']:,}", Text(row["classes"]))
    return table


def _doubtful_table(data_map: DataMap, rows: RowIndices) -> Table:
    with_text = data_map.examples is not None and bool(data_map.examples.columns)
    table = Table(title=f"most doubtful labels, {len(rows)} of {len(data_map.doubtful):,}", title_justify="left", expand=True)
    table.add_column("AUM", justify="right", no_wrap=True)
    table.add_column("confidence", justify="right", no_wrap=True)
    for name in ("label", "model says"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("example" if with_text else "id", no_wrap=True, overflow="ellipsis", ratio=1)
    classes = shown_classes(data_map)
    dynamics = data_map.dynamics
    for row in rows.tolist():
        example = example_text(data_map, row, 300) if with_text else one_line(str(dynamics.ids[row]), 80)
        names = (Text(classes[int(dynamics.labels[row])]), Text(classes[int(data_map.predicted[row])]))
        table.add_row(f"{dynamics.aum[row]:.2f}", f"{dynamics.confidence[row]:.3f}", *names, Text(example))
    return table


def region_rows(data_map: DataMap) -> list[dict[str, Any]]:
    """Return statistics of all examples, then of each region, with its three largest classes as text.

    Parameters
    ----------
    data_map : DataMap
        The map.

    Returns
    -------
    list of dict
        The fields of the region's statistics, with ``title`` and ``classes`` as they are shown.
    """
    names = shown_classes(data_map)
    rows = []
    for region in data_map.region_statistics():
        share = region.class_shares
        largest = np.argsort(-share, kind="stable")[:3]
        classes = ", ".join(f"{names[k]} {share[k]:.0%}" for k in largest if share[k])
        more = int((share > 0).sum()) - 3
        if more > 0:
            classes += f", {more} more"
        rows.append({**vars(region), "title": region.name, "classes": classes})
    return rows


# ---- table -------------------------------------------------------------------------------------------------------------


def check_table_name(path: Path) -> None:
    """Refuse a table that cannot be written, before any work.

    Parameters
    ----------
    path : Path
        Where the table is to be written.

    Raises
    ------
    InputError
        If the suffix is neither .csv nor .parquet.
    MissingDependencyError
        If it is .parquet and pyarrow is not installed.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{str(path)!r} is neither .csv nor .parquet", remedy="give a name that ends in one of them")
    if path.suffix == ".parquet":
        import_pyarrow()


def write_map_table(data_map: DataMap, path: Path, *, escape_formulas: bool = True) -> None:
    """Write one row per example with every statistic and the example itself, the most doubtful label first.

    Parameters
    ----------
    data_map : DataMap
        The map.
    path : Path
        The file; its suffix is .csv or .parquet. It is written whole or not at all.
    escape_formulas : bool, default True
        Whether texts that a spreadsheet would run get an apostrophe before them in a .csv; see
        ``distilcal.io.tables.write_csv``.

    Raises
    ------
    InputError
        If the suffix is another.
    MissingDependencyError
        If pyarrow is needed and not installed.
    """
    check_table_name(path)
    columns = _table_columns(data_map)
    with atomic_write(path) as file:
        if path.suffix == ".parquet":
            pyarrow, parquet = import_pyarrow()
            parquet.write_table(pyarrow.table({title: values[data_map.by_aum] for title, values in columns.items()}), file)
            return
        cells = {title: _csv_cells(values[data_map.by_aum]) for title, values in columns.items()}
        write_csv(file, cells, escape_formulas=escape_formulas)


def _table_columns(data_map: DataMap) -> dict[str, NDArray[Any]]:
    dynamics = data_map.dynamics
    classes = np.array(dynamics.classes, dtype=object)
    in_region = {name: np.zeros(len(data_map), dtype=bool) for name in data_map.regions}
    for name, rows in data_map.regions.items():
        in_region[name][rows] = True
    statistics = ("confidence", "variability", "correctness", "epochs", "forgetting", "threshold_closeness", "aum")
    return {
        "id": np.asarray(dynamics.ids).astype(object),
        "label": classes[dynamics.labels],
        "predicted": classes[data_map.predicted],
        **{name: np.asarray(getattr(dynamics, name)) for name in statistics},
        **in_region,
        "aum_half": np.where(data_map.high_aum, "high", "low").astype(object),
        "mislabelled": np.asarray(dynamics.aum < 0),
        **({} if data_map.examples is None else data_map.examples.columns),
    }


def _csv_cells(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "f":
        return [f"{value:.6g}" for value in values.tolist()]
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    cells: list[Any] = values.tolist()
    return cells
