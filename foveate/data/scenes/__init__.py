"""Scenes: generated pictures of shapes with questions, captions and the truth about where to look."""

from foveate.data.scenes.build import SIZES, SPLITS, make_scenes, scenes, scenes_large

__all__ = ["SIZES", "SPLITS", "make_scenes", "scenes", "scenes_large"]
