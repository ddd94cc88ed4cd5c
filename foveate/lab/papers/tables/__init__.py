"""The tables of the five papers: what each needs, the trainings behind its rows, and its numbers."""

from foveate.tables.captioning_tables import CAPTIONING_TABLES
from foveate.tables.matching_tables import MATCHING_TABLES
from foveate.tables.table import Column, FeatureFile, PaperRow, PaperRun, PublishedFile, Table
from foveate.tables.vqa_tables import VQA_TABLES

TABLES: dict[str, Table] = dict(sorted({**VQA_TABLES, **MATCHING_TABLES, **CAPTIONING_TABLES}.items()))

__all__ = ["TABLES", "Column", "FeatureFile", "PaperRow", "PaperRun", "PublishedFile", "Table"]
