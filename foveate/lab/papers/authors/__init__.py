"""Checkpoints that the authors of papers published, as runs of foveate."""

from foveate.lab.papers.authors.conversion import Published, PublishedFiles
from foveate.lab.papers.authors.released_matchers import read_bfan, read_scan
from foveate.lab.papers.authors.released_mcan import read_mcan
from foveate.lab.papers.authors.writing import AUTHORS, import_run

__all__ = ["AUTHORS", "Published", "PublishedFiles", "import_run", "read_bfan", "read_mcan", "read_scan"]
