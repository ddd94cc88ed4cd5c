"""The tables of captioning: Martins et al. 2020 (003)."""

from __future__ import annotations

from foveate.lab.papers.tables.published import COCO_8, COCO_KARPATHY, FLICKR_8, FLICKR_KARPATHY, INSTANCES
from foveate.lab.papers.tables.table import Column, PaperRow, PaperRun, Table

_NAMES = {"softmax": "", "sparsemax": "-sparsemax", "TVmax": "-tvmax"}
_COCO = {name: (PaperRun(f"captioning-lstm-coco{end}"),) for name, end in _NAMES.items()}
_FLICKR = {name: (PaperRun(f"captioning-lstm-flickr30k{end}"),) for name, end in _NAMES.items()}
_ENCODER = "The paper does not name its ResNet; ours is the ResNet-152 from transformers."
_BATCH = "The paper does not report the batch size; ours is 16 images with all their captions."
_TABLE_1 = {
    "MSCOCO": {
        "softmax": (18.4, 0.967, 52.9, 29.9, 24.9, 3.76),
        "sparsemax": (18.9, 0.990, 53.5, 31.5, 25.3, 3.69),
        "TVmax": (18.5, 0.974, 53.1, 29.9, 25.1, 3.17),
    },
    "Flickr30k": {
        "softmax": (13.5, 0.443, 44.2, 19.9, 19.1, 6.09),
        "sparsemax": (13.7, 0.444, 44.3, 20.7, 19.3, 5.84),
        "TVmax": (13.3, 0.438, 44.2, 20.5, 19.0, 3.97),
    },
}

CAPTIONING_TABLES: dict[str, Table] = {
    "003-table-1": Table(
        "captions on COCO and Flickr30k with three output attentions",
        "Martins et al. 2020, table 1",
        (
            Column("SPICE", "spice", "test", 100),
            Column("CIDEr", "cider-d", "test"),
            Column("ROUGE-L", "rouge-l", "test", 100),
            Column("BLEU-4", "bleu-4", "test", 100),
            Column("METEOR", "meteor", "test", 100),
            Column("REP", "rep", "test"),
        ),
        tuple(
            PaperRow(f"{name}, {data}", numbers, (_COCO if data == "MSCOCO" else _FLICKR)[name])
            for data, rows in _TABLE_1.items()
            for name, numbers in rows.items()
        ),
        (COCO_KARPATHY, *INSTANCES, FLICKR_KARPATHY),
        (COCO_8, FLICKR_8),
        (
            _ENCODER,
            _BATCH,
            "Captions are generated with three beams; the paper does not say how many it uses.",
            "METEOR, SPICE and the server's tokenizer need Java and the extra `captions`.",
            "REP was defined for one reference. With several, an n-gram may occur as often as in the reference that "
            "has most of them, and the length is the mean of theirs; the paper does not say what it does.",
        ),
    ),
    "003-table-2": Table(
        "captions and attention rated by people",
        "Martins et al. 2020, table 2 and appendix B",
        (Column("caption (1-5)", "quality"), Column("attention relevance (1-5)", "attention relevance")),
        (
            PaperRow("softmax", (3.50, 3.38), _COCO["softmax"]),
            PaperRow("sparsemax", (3.71, 3.89), _COCO["sparsemax"]),
            PaperRow("TVmax", (3.87, 4.10), _COCO["TVmax"]),
        ),
        (COCO_KARPATHY, *INSTANCES),
        (COCO_8,),
        (
            _ENCODER,
            _BATCH,
            "In the paper, six people rated 100 images. The command samples 100 images of the test split with the seed "
            "and freezes a study of them; people rate it with `foveate rate`, and the command, when repeated, prints "
            "their mean ratings.",
        ),
        kind="ratings",
    ),
    "003-figures": Table(
        "attention, length, objects and time of the captions on COCO",
        "Martins et al. 2020, §4",
        (
            Column("JS between words", "js between words", "test"),
            Column("zero area (%)", "zero area", "test", 100),
            Column("objects mentioned (%)", "mentioned", "test", 100),
            Column("words", "words", "test"),
            Column("time against softmax", "seconds", "test", relative=True),
        ),
        (
            PaperRow("softmax", (0.12, None, 27.4, 9.0, 1.0), _COCO["softmax"]),
            PaperRow("sparsemax", (0.29, 34.0, 27.5, 9.0, 1.1), _COCO["sparsemax"]),
            PaperRow("TVmax", (0.34, 25.0, 28.2, 9.5, 1.3), _COCO["TVmax"]),
        ),
        (COCO_KARPATHY, *INSTANCES),
        (COCO_8,),
        (
            _ENCODER,
            _BATCH,
            "The JS divergence is in bits; the paper does not state the base. The time is that of generating the "
            "captions, without computing the metrics, divided by that of softmax, which is therefore always evaluated.",
            "The paper prints no zero area for softmax; it is 0, because no weight of softmax is.",
            "Objects are counted once per category and image, under the synonyms with which CHAIR (Rohrbach et al. "
            "2018) counts the categories of COCO, in singular or plural; the paper does not say how it matches them.",
        ),
    ),
}
