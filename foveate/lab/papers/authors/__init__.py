"""Checkpoints that the authors of papers published, as runs of foveate."""

from foveate.lab.papers.authors.conversion import Published, PublishedFiles
from foveate.lab.papers.authors.released import AUTHORS, import_run, read_bfan, read_mcan, read_scan

__all__ = ["AUTHORS", "Published", "PublishedFiles", "import_run", "read_bfan", "read_mcan", "read_scan"]
