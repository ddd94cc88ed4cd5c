"""Where a captioner looks while it writes and people while they describe: DIDEC (van Miltenburg et al. 2018).

    python benchmarks/caption_gaze.py photos-captioning DIDEC

DIDEC holds `images/`, `scanpaths_DS.json` (speaker, image: the COCO objects that were fixated, with their classes),
`coco_boxes.json` and `images.json`. A person's map spreads each fixation over the box of its object; the map of the
captioner is the mean over the words of its own caption. Speakers who fixated no object of an image are left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from foveate.io import read_json
from foveate.lab import hub
from foveate.lab.data.samples import ImageRecord
from foveate.watch.cases import Gaze
from foveate.watch.gaze_agreement import CELLS, GAZE_MEASURES, evaluate_gaze

SOURCE = "github.com/emielvanmiltenburg/DIDEC"


def spread(boxes: list[list[float]], size: tuple[float, float]) -> np.ndarray:
    """(H, W) the fixations, each spread evenly over its box x, y, width, height in pixels."""
    (H, W), total = CELLS, np.zeros(CELLS)
    for x, y, width, height in boxes:
        left, top = (int(low / side * n) for low, side, n in ((x, size[0], W), (y, size[1], H)))
        right, bottom = (
            max(first + 1, round(high / side * n))
            for first, high, side, n in ((left, x + width, size[0], W), (top, y + height, size[1], H))
        )
        cells = np.zeros(CELLS)
        cells[top:bottom, left:right] = 1
        total += cells / max(cells.sum(), 1)
    return total


def read_didec(root: Path) -> list[Gaze]:
    """The photographs with one map per speaker."""
    paths, boxes, images = (
        read_json("caption_gaze", root / f"{name}.json", SOURCE) for name in ("scanpaths_DS", "coco_boxes", "images")
    )
    people = defaultdict(list)
    for speaker in paths.values():
        for image, fixated in speaker.items():
            known = {row["id"]: row["bbox"] for row in boxes.get(str(images[image]["coco_id"]), ())}
            seen = [known[thing] for thing, _ in fixated if thing in known]
            if seen:
                people[image].append(partial(spread, seen, tuple(images[image]["coco_size"])))
    found = [(image, root / "images" / f"{image}.jpg", tuple(maps)) for image, maps in people.items()]
    return [Gaze(ImageRecord(image, path), maps=maps) for image, path, maps in found if path.is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("didec", type=Path)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run, cases = hub.load(given.run), read_didec(given.didec)[: given.limit]

    def written(case: Gaze) -> torch.Tensor:
        found = run.caption(case.image.pixels())
        return found.attention.map(*CELLS)[0][: len(found.words)].double().mean(0)

    for name, scores in evaluate_gaze(given.run, "DIDEC", written, cases).summary().items():
        print(f"{name:20}", "  ".join(f"{m} {scores[m].brief}" for m in GAZE_MEASURES if m in scores))
    print(f"{len(cases)} photographs, {np.mean([len(case.maps) for case in cases]):.1f} people each")


if __name__ == "__main__":
    main()
