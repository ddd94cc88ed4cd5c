"""Small files in the publishers' formats, so that a whole table runs end to end; its numbers mean nothing."""

from foveate.lab.papers.tables.tiny.tiny_run import TINY_SETTINGS, make_files, prepare_tiny, run_tiny

__all__ = ["TINY_SETTINGS", "make_files", "prepare_tiny", "run_tiny"]
