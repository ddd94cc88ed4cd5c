"""Scenes: generated images of shapes with questions, captions and the true region of each question."""

from foveate.lab.data.scenes.make import SIZES, SPLITS, make_scenes, scenes, scenes_large

__all__ = ["SIZES", "SPLITS", "make_scenes", "scenes", "scenes_large"]
