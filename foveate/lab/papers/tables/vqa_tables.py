"""The tables of visual question answering: Farinhas et al. 2021 (000), Farinhas 2021 (001), Nam et al. 2017 (004)."""

from __future__ import annotations

from collections.abc import Callable

from foveate.lab.papers.tables.integration import measure_integration
from foveate.lab.papers.tables.published import GLOVE, HAT, QUOTED, coco_resnet, coco_vgg, grid_feats, vqa_files
from foveate.lab.papers.tables.table import Column, FeatureFile, PaperRow, PaperRun, Table

KINDS = (
    ("Yes/No", "accuracy/yes/no"),
    ("Number", "accuracy/number"),
    ("Other", "accuracy/other"),
    ("Overall", "accuracy"),
)
VAL = Column("val Overall", "accuracy", "val", 100)
SERVER = tuple(
    Column(f"{split} {name}", metric, split, 100) for split in ("test-dev", "test") for name, metric in KINDS
)
ON_SERVER = (
    "The answers of test-dev and test-standard are not public: the command writes result files for the evaluation "
    "server and also prints the accuracy on val, which the paper does not report."
)
SPLIT_WORDS = (
    "The vocabulary comes from our tokenizer and the questions of the training split; the authors use a word list from "
    "train, val, test and Visual Genome."
)
# Options of test-MCA (Farinhas 2021, §6.3.1): K up to 5, 20 iterations, 3 random starts.
TEST_MCA = (
    "mechanism=multimodal",
    "mechanism_options.max_components=5",
    "mechanism_options.iterations=20",
    "mechanism_options.start=random",
    "mechanism_options.likelihood=point",
    "mechanism_options.background=false",
)
BATCH = (
    "Because of a broadcasting error, the released code scores the mixture of an example on the weights of all "
    'examples in its evaluation batch of eight. The recipe chooses K* in the same way (criterion="batch"), on eight '
    "consecutive examples."
)
EQUATION = (
    "The code behind the thesis' choice of K* is not public; ours is its equation, the penalised likelihood of each "
    "example by itself, with the λ printed. With it nearly every example has one component."
)
# The three ways to choose K*: all options, since a run of any mechanism may be evaluated with them.
_CHOICE = ("mechanism=multimodal", "mechanism_options.max_components=4", "mechanism_options.iterations=10")
_PRINTED = (
    *_CHOICE,
    *("mechanism_options.penalty=5", "mechanism_options.floor=1e-6", "mechanism_options.likelihood=point"),
    *("mechanism_options.background=false", "mechanism_options.start=random"),
)
CRITERIA = {
    "released code": (*_PRINTED, "mechanism_options.criterion=batch"),
    "equation 15 as printed": (*_PRINTED, "mechanism_options.criterion=equation"),
    "ours": (
        *_CHOICE,
        *("mechanism_options.penalty=0.3", "mechanism_options.floor=cell", "mechanism_options.likelihood=cell"),
        *("mechanism_options.background=true", "mechanism_options.start=spread", "mechanism_options.criterion=own"),
    ),
}


def _test_mca(penalty: float) -> tuple[str, ...]:
    return (*TEST_MCA, f"mechanism_options.penalty={penalty:g}")


def _run(recipe: str, *changes: str) -> tuple[PaperRun, ...]:
    return (PaperRun(recipe, changes),)


def _row(name: str, recipe: str, *numbers: float) -> PaperRow:
    """A row of the thesis: the accuracies on test-dev and test; it has none on val."""
    return PaperRow(name, (None, *numbers), _run(recipe))


_DISCRETE, _UNIMODAL, _MULTIMODAL = (
    _run("vqa-mcan-vqa2-grid"),
    _run("vqa-mcan-vqa2-unimodal"),
    _run("vqa-mcan-vqa2-multimodal"),
)
_RELEASED = (
    "A batch size of 16, a learning rate of 5e-5 and decays after 10 and 12 epochs are those of the released "
    "configuration; the paper states min(2.5 t 1e-5, 5e-4) in epoch t and a third decay "
    "(lr=5e-4 schedule.warmup=20 schedule.at=10,12,14)."
)
_MCAN, _SOFT, _SPARSE = "vqa-mcan-vqa2", "2D continuous softmax", "2D continuous sparsemax"
_THESIS = _run(f"{_MCAN}-continuous")
_SIX_TWO = (
    _row("Discrete softmax", _MCAN, 83.40, 43.59, 55.91, 65.83, 83.47, 42.99, 56.33, 66.13),
    _row(f"{_SOFT}, N = 100", f"{_MCAN}-continuous", 83.40, 44.80, 55.88, 65.96, 83.79, 44.33, 56.04, 66.27),
    _row(f"{_SOFT}, N = 49", f"{_MCAN}-continuous-49", 83.32, 44.29, 55.78, 65.82, 83.57, 43.70, 56.07, 66.12),
    _row(f"{_SPARSE}, N = 100", f"{_MCAN}-sparsemax", 83.10, 44.12, 55.95, 65.79, 83.38, 43.91, 56.14, 66.10),
    _row(f"{_SPARSE}, N = 49", f"{_MCAN}-sparsemax-49", 83.38, 44.25, 55.87, 65.88, 83.69, 43.00, 56.09, 66.10),
)
_MCA = {
    10: ((None, 83.30, 44.60, 55.81, 65.86, 83.76, 44.08, 56.00, 66.21), (58.58, 20.81, 8.02, 6.77, 5.82)),
    100: ((None, 83.35, 44.75, 55.86, 65.92, 83.77, 44.28, 56.02, 66.25), (84.87, 11.22, 2.51, 1.00, 0.41)),
    500: ((None, 83.39, 44.75, 55.87, 65.95, 83.79, 44.36, 56.04, 66.27), (96.17, 3.30, 0.40, 0.10, 0.03)),
}
_NO_TEST = (*vqa_files(2, test=False), GLOVE)
_FOUR_ONE = {
    "2D-Num": 25.749633,
    "2D-Num-Circle": 5.290754,
    "2D-Num-Polar": 0.247879,
    "1D-Num": 0.023887,
    "1D-Naive": 0.014022,
    "chords (ours)": None,
}
_RESNET = "The ResNet is the one from transformers, trained on ImageNet; its weights are not those of the authors."


def _accuracies(
    title: str,
    source: str,
    rows: tuple[PaperRow, ...],
    features: Callable[..., tuple[FeatureFile, ...]],
    differs: tuple[str, ...],
) -> Table:
    """Accuracies on VQA v2: on val, and on the two test splits of the evaluation server."""
    files, stores = (*vqa_files(2), GLOVE), features("train", "val", "test")
    return Table(title, source, (VAL, *SERVER), rows, files, stores, (ON_SERVER, *differs))


_NONE = (None,) * 5
# Systems of other authors in table 1 of Nam et al. 2017.
_QUOTED: dict[str, tuple[float | None, ...]] = {
    "iBOWIMG": (76.5, 35.0, 42.6, 55.7, 61.7, 76.8, 35.0, 42.6, 55.9, 62.0),
    "DPPnet": (80.7, 37.2, 41.7, 57.2, 62.5, 80.3, 36.9, 42.2, 57.4, 62.7),
    "VQA team": (80.5, 36.8, 43.1, 57.8, 62.7, 80.6, 36.5, 43.7, 58.2, 63.1),
    "SAN": (79.3, 36.6, 46.1, 58.7, None, None, None, None, 58.9, None),
    "NMN": (81.2, 38.0, 44.0, 58.6, None, None, None, None, 58.7, None),
    "ACK": (81.0, 38.4, 45.2, 59.2, None, 81.1, 37.1, 45.8, 59.4, None),
    "DMN+": (80.5, 36.8, 48.3, 60.3, None, None, None, None, 60.4, None),
    "MRN (ResNet)": (82.3, 38.8, 49.3, 61.7, 66.2, 82.4, 38.2, 49.4, 61.8, 66.3),
    "HieCoAtt (ResNet)": (79.7, 38.7, 51.7, 61.8, 65.8, None, None, None, 62.1, 66.1),
    "RAU (ResNet)": (81.9, 39.0, 53.0, 63.3, 67.7, 81.7, 38.2, 52.8, 63.2, 67.3),
    "MCB (ResNet)": (82.2, 37.7, 54.8, 64.2, 68.6, *_NONE),
}

VQA_TABLES: dict[str, Table] = {
    "000-table-1": _accuracies(
        "accuracy on VQA v2 with discrete, unimodal and multimodal attention",
        "Farinhas et al. 2021, table 1",
        (
            PaperRow("Discrete softmax", (None, 86.76, 52.90, 60.78, 70.59, 86.91, 53.22, 61.10, 70.94), _DISCRETE),
            PaperRow("Unimodal continuous", (None, 86.57, 53.69, 60.38, 70.41, 86.73, 53.55, 60.75, 70.73), _UNIMODAL),
            PaperRow(
                "Multimodal continuous", (None, 86.62, 53.23, 60.46, 70.42, 86.88, 53.31, 60.79, 70.79), _MULTIMODAL
            ),
        ),
        grid_feats,
        (_RELEASED, SPLIT_WORDS, BATCH),
    ),
    "000-table-2": Table(
        "JS divergence from human attention",
        "Farinhas et al. 2021, table 2",
        (Column("JS divergence", "js", "val"),),
        (
            PaperRow("Discrete softmax", (0.64,), _DISCRETE, ("dataset=vqa-hat",)),
            PaperRow("Unimodal continuous", (0.59,), _UNIMODAL, ("dataset=vqa-hat",)),
            PaperRow("Multimodal continuous", (0.54,), _MULTIMODAL, ("dataset=vqa-hat",)),
        ),
        (*_NO_TEST, *HAT),
        grid_feats("train", "val"),
        (
            "The divergence from each annotator's map is computed in bits on a 14x14 grid and averaged; the paper "
            "states neither the base nor the grid, but its figure 7 shows values above ln 2, so its unit is not nats.",
            _RELEASED,
        ),
    ),
    "000-shares": Table(
        "fractions of examples with K* = 1 to 4 components",
        "Farinhas et al. 2021, §6.1",
        tuple(Column(f"K* = {k}", f"components = {k}", "val", 100) for k in range(1, 5)),
        tuple(
            PaperRow(f"Multimodal continuous, {name}", (80.8, 12.4, 4.4, 2.4), _MULTIMODAL, changes)
            for name, changes in CRITERIA.items()
        ),
        _NO_TEST,
        grid_feats("train", "val"),
        (
            BATCH,
            "The paper's numbers stand beside all three criteria; they come from the released code. Ours takes the "
            "covariance of a cell into account, has a background, and a λ of 0.3.",
            "Measured on val; the paper does not name the split.",
        ),
    ),
    "001-table-4.1": Table(
        "seconds per integral of a truncated paraboloid times a Gaussian",
        "Farinhas 2021, table 4.1",
        (Column("running time", "seconds"),),
        tuple(PaperRow(name, (seconds,)) for name, seconds in _FOUR_ONE.items()),
        differs=(
            "Times depend on the machine; compare the order of the methods. 1D-Naive sums 100 angles over [0, 2π); the "
            "thesis counts the end twice.",
        ),
        kind="measurement",
        measure=measure_integration,
    ),
    "001-table-6.2": _accuracies(
        "accuracy on VQA v2 with continuous attention",
        "Farinhas 2021, table 6.2",
        _SIX_TWO,
        coco_resnet,
        (SPLIT_WORDS, _RESNET),
    ),
    "001-table-6.3": _accuracies(
        "accuracy on VQA v2 with mixtures",
        "Farinhas 2021, table 6.3",
        (
            *(row for row in _SIX_TWO if "49" not in row.name),
            _row("2-MCA", f"{_MCAN}-2-mca", 83.35, 44.28, 56.07, 65.97, 83.59, 43.65, 56.24, 66.21),
            _row("4-MCA", f"{_MCAN}-4-mca", 83.39, 43.52, 55.96, 65.85, 83.72, 43.47, 56.03, 66.14),
            *(PaperRow(f"test-MCA, λ = {k}", found[0], _THESIS, _test_mca(k)) for k, found in _MCA.items()),
        ),
        coco_resnet,
        (SPLIT_WORDS, _RESNET, EQUATION),
    ),
    "001-table-6.4": Table(
        "number of components of test-MCA",
        "Farinhas 2021, table 6.4",
        tuple(Column(f"K* = {k}", f"components = {k}", "val", 100) for k in range(1, 6)),
        tuple(PaperRow(f"λ = {k}", found[1], _THESIS, _test_mca(k)) for k, found in _MCA.items()),
        _NO_TEST,
        coco_resnet("train", "val"),
        (EQUATION, "Measured on val; the thesis does not name the split."),
    ),
    "004-table-1": Table(
        "accuracy of r-DAN on VQA v1, open-ended and multiple choice",
        "Nam et al. 2017, table 1",
        (
            *(
                Column(f"{split} {name}", metric, split, 100)
                for split in ("test-dev", "test")
                for name, metric in (*KINDS, ("MC", "multiple choice"))
            ),
        ),
        (
            *(PaperRow(name, numbers, quoted=True) for name, numbers in _QUOTED.items()),
            PaperRow("DAN (VGG)", (82.1, 38.2, 50.2, 62.0, 67.0, *_NONE), _run("vqa-rdan-vqa1-vgg")),
            PaperRow(
                "DAN (ResNet)",
                (83.0, 39.1, 53.9, 64.3, 69.1, 82.8, 38.1, 54.0, 64.2, 69.0),
                _run("vqa-rdan-vqa1"),
            ),
        ),
        vqa_files(1, choice=True),
        (*coco_vgg("train", "val", "test"), *coco_resnet("train", "val", "test")),
        (
            QUOTED,
            "The paper trains on train + val and validates on test-dev, whose answers are not public; we evaluate on "
            "val during training although it is part of the training data; the last epochs differ little.",
            "The paper does not say where dropout is applied.",
            _RESNET,
        ),
    ),
}
