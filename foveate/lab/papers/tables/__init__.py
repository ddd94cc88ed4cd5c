"""The tables of the five papers: what each needs, the trainings behind its rows, and its numbers."""

from foveate.lab.papers.tables.captioning_tables import CAPTIONING_TABLES
from foveate.lab.papers.tables.matching_tables import MATCHING_TABLES
from foveate.lab.papers.tables.table import Column, FeatureFile, PaperRow, PaperRun, PublishedFile, Table
from foveate.lab.papers.tables.vqa_tables import VQA_TABLES

TABLES: dict[str, Table] = dict(sorted({**VQA_TABLES, **MATCHING_TABLES, **CAPTIONING_TABLES}.items()))

__all__ = ["TABLES", "Column", "FeatureFile", "PaperRow", "PaperRun", "PublishedFile", "Table"]
