"""Attention as the labels of FiftyOne: plain dictionaries, so that FiftyOne need not be installed."""

from __future__ import annotations

from typing import Any

import torch

from foveate.attention.attended import Attended
from foveate.ops.density import Ellipses


def fiftyone_labels(attended: Attended, label: str, level: float) -> list[dict[str, Any]]:
    """See `Attended.to_fiftyone`."""
    maps = attended.map().detach().cpu()
    ellipses = None if attended.density is None else attended.density.ellipses(level)
    result = []
    for i, image in enumerate(maps):
        boxes = [] if ellipses is None else _boxes(ellipses, i, label)
        heatmap = {
            "_cls": "Heatmap",
            "map": image.numpy(),
            "range": [0.0, float(image.max()) if image.numel() else 0.0],
        }
        result.append({"heatmap": heatmap, "detections": {"_cls": "Detections", "detections": boxes}})
    return result


def _boxes(ellipses: Ellipses, i: int, label: str) -> list[dict[str, Any]]:
    """Bounding boxes [left, top, width, height] of the ellipses of one example that have weight."""
    parts = (ellipses.centre[i], ellipses.radii[i], ellipses.angle[i], ellipses.weight[i])
    centre, radii, angle, weight = (part.detach().cpu().double() for part in parts)
    turn = torch.stack([angle.cos(), angle.sin()], -1)  # of the longer half axis
    across = torch.stack([-angle.sin(), angle.cos()], -1)
    half = ((radii[:, :1] * turn).square() + (radii[:, 1:] * across).square()).sqrt()
    found = []
    for c, h, w in zip(centre.tolist(), half.tolist(), weight.tolist(), strict=True):
        if w > 0:
            box = [c[0] - h[0], c[1] - h[1], 2 * h[0], 2 * h[1]]
            found.append({"_cls": "Detection", "label": label, "bounding_box": box, "confidence": w})
    return found
