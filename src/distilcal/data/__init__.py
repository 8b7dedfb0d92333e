"""Data: what a model reads and what is true, from files, folders, arrays and hubs; splits that do not leak."""

from distilcal.data.benchmark import Benchmark
from distilcal.data.catalogue import BENCHMARKS, load_benchmark, summarise_benchmark
from distilcal.data.corruptions import CORRUPTIONS, corrupted
from distilcal.data.dataset import Choices, Dataset, Images, Role, Texts, Vectors, choices, overlap, texts
from distilcal.data.image_source import read_sheet
from distilcal.data.sources import read_dataset, read_unlabelled
from distilcal.data.table_source import Columns
from distilcal.data.unlabelled import add_unlabelled, labelled_first, labelled_part
from distilcal.io.tables import read_table

__all__ = [
    "BENCHMARKS",
    "CORRUPTIONS",
    "Benchmark",
    "Choices",
    "Columns",
    "Dataset",
    "Images",
    "Role",
    "Texts",
    "Vectors",
    "add_unlabelled",
    "choices",
    "corrupted",
    "labelled_first",
    "labelled_part",
    "load_benchmark",
    "overlap",
    "read_dataset",
    "read_sheet",
    "read_table",
    "read_unlabelled",
    "summarise_benchmark",
    "texts",
]
