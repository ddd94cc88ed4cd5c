"""Every recipe of the papers, field by field, against the papers' settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate.lab.data.vocabulary import SPECIAL, AnswerVocabulary, Vocabulary
from foveate.lab.papers.paper_recipes import PAPER_RECIPES
from foveate.lab.papers.tables import TABLES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.train import from_config, override, to_config
from foveate.lab.train.recipe import encode

# Farinhas 2021, table 6.1 (page 62) and §6.2: everything about MCAN on VQA v2.
MCAN = {
    "settings.dataset": "vqa-v2",
    "settings.train_split": "train",  # "trained only on the train split", as 000 §6.1
    "settings.answer_split": "train+val",  # the list of 3 129 answers of the released MCAN
    "settings.min_count": 9,
    "settings.word_dim": 300,  # word embeddings size
    "settings.words": "glove.6B.300d.txt",
    "settings.max_tokens": 14,  # Yu et al. 2019, §4.2
    "settings.loss": "bce",  # Yu et al. 2019, §3.3
    "settings.rule": "official",
    "settings.model.kind": "mcan",
    "settings.model.hidden": 512,  # multi-head attention hidden size, MLP size in flatten layers
    "settings.model.heads": 8,  # number of attention heads
    "settings.model.layers": 6,  # number of MCA layers
    "settings.model.dropout": 0.1,  # dropout rate
    "training.optimiser.kind": "adam",  # optimizer
    "training.optimiser.betas": [0.9, 0.98],  # the released configuration
    "training.optimiser.eps": 1e-9,
    "training.schedule.factor": 0.2,  # learning rate decay ratio
    "training.schedule.warmup": 4,  # min(2.5 t 1e-5, 1e-4): a quarter more per epoch
    "training.clip": None,
}
THESIS = {
    **MCAN,
    "training.optimiser.lr": 1e-4,
    "training.schedule.at": [10, 12],
    "training.epochs": 13,  # number of epochs
    "training.batch_size": 64,  # batch size
    "settings.images.store": "resnet-152-448/{split}.h5",  # 14x14 of a ResNet, §6.2.2
}
BASIS = {"count": 100, "variance": 0.001}  # N and Σ̃ of table 6.1; centres linearly spaced
# Padding of table 6.1; floor and positions (cell l at l / √L, §5.3) of the released code.
CONTINUOUS = {"basis": BASIS, "floor": 1e-6, "padding": True, "positions": "ends"}
K_MCA = {**CONTINUOUS, "likelihood": "point"}  # equation 5.16 has no trace term
# Farinhas et al. 2021, §6.1; the batch of 16, the rate of 5e-5 and decays at 10 and 12 are the released configuration.
GRID = {
    **MCAN,
    "training.optimiser.lr": 5e-5,
    "training.schedule.at": [10, 12],
    "training.epochs": 15,  # "a maximum of 15 epochs"
    "training.batch_size": 16,
    "settings.images.store": "grid-feats/{split}.h5",  # grid features of Jiang et al.
}
MIXTURE = {
    "basis": BASIS,
    "floor": 1e-6,
    "max_components": 4,  # k_max = 4
    "penalty": 5.0,  # λ = 5, §6.1
    "criterion": "batch",  # the weights of a batch of eight, in the released code
    "likelihood": "point",  # equation 7 has no trace term
    "background": False,
    "start": "random",  # "random initializations"
    "iterations": 10,  # "5 and 10 iterations of the EM algorithm during training and testing", §6.1
}
# Nam et al. 2017, §4.1 (page 5).
DAN = {
    "settings.word_dim": 512,  # "the dimension of every hidden layer, including word embedding, ... 512"
    "settings.model.hidden": 512,
    "settings.model.reasoning_steps": 2,  # K = 2
    "settings.model.dropout": 0.5,
    "training.optimiser.kind": "sgd",
    "training.optimiser.lr": 0.1,
    "training.optimiser.momentum": 0.9,
    "training.optimiser.weight_decay": 0.0005,
    "training.clip": 0.1,
    "training.epochs": 60,
    "training.schedule.at": [30],  # "dropped to 0.01 after 30 epochs"
    "training.schedule.factor": 0.1,
    "training.batch_size": 128,
}
R_DAN = {
    **DAN,
    "settings.dataset": "vqa-v1",
    "settings.train_split": "train+val",  # §4.2.1
    "settings.max_answers": 2000,  # C
    "settings.loss": "cross-entropy",  # equation 15
    "settings.rule": "lenient",  # equation 23
    "settings.images.store": "resnet-152-448/{split}.h5",
}
M_DAN = {
    **DAN,
    "settings.dataset": "flickr30k-mrnn",  # 29 783 / 1 000 / 1 000, §4.3.1
    "settings.ranking.margin": 100.0,  # m
    "settings.ranking.negatives": "sampled",  # quadruplets, equation 20
    "settings.images.store": "flickr30k-resnet-152-448.h5",
}
# Lee et al. 2018, §4.2 and the released arguments; Chen et al. 2021 use the same (§4.1).
SCAN = {
    "settings.dataset": "f30k-precomp",
    "settings.images.store": "f30k_precomp/{split}.h5",  # 36 regions
    "settings.word_dim": 300,
    "settings.min_count": 4,
    "settings.word_range": 0.1,  # U(-0.1, 0.1)
    "settings.rank_parts": 1,
    "settings.ranking.margin": 0.2,
    "settings.ranking.negatives": "hardest",  # --max_violation
    "settings.ranking.warmup_steps": 0,
    "settings.model.hidden": 1024,
    "settings.model.bidirectional": "average",  # --bi_gru
    "settings.model.dropout": 0.0,
    "settings.model.image_start": "xavier",
    "training.optimiser.kind": "adam",
    "training.optimiser.lr": 2e-4,
    "training.schedule.at": [15],  # --lr_update
    "training.schedule.factor": 0.1,
    "training.epochs": 30,
    "training.batch_size": 128,
    "training.clip": 2.0,  # --grad_clip
    "training.reduction": "sum",  # the released loss is a sum
}
T2I = {"settings.model.kind": "scan", "settings.model.direction": "t2i", "settings.model.temperature": 9.0}
I2T = {"settings.model.kind": "scan", "settings.model.direction": "i2t", "settings.model.temperature": 4.0}
AVG, LSE = ({"settings.model.aggregate": name} for name in ("mean", "lse"))
# Liu et al. 2019 and the released arguments: λ = 20, 15 epochs on Flickr30K without a decay.
BFAN = {**SCAN, "settings.model.kind": "bfan", "settings.model.temperature": 20.0, "training.epochs": 15}
BFAN["training.schedule.at"] = []
COCO = {
    "settings.dataset": "coco-precomp",
    "settings.images.store": "coco_precomp/{split}.h5",
    "settings.rank_parts": 5,  # five folds of 1K
    "training.optimiser.lr": 5e-4,
    "training.epochs": 20,
}
# Martins et al. 2020, §3 and §4 (page 6).
CAPTIONS = {
    "settings.dataset": "coco-karpathy",
    "settings.train_split": "train+restval",  # 113 287 images
    "settings.images.store": "coco-resnet-152-256.h5",  # 256x256 pixels, 8x8 cells
    "settings.word_dim": 256,
    "settings.min_count": 5,
    "settings.model.hidden": 512,  # d and g
    "training.optimiser.kind": "adam",
    "training.optimiser.lr": 1e-4,
    "training.optimiser.betas": [0.8, 0.999],
    "training.schedule.kind": "decay",
    "training.schedule.after": 10,
    "training.schedule.factor": 0.99,
    "training.epochs": 50,
}
FLICKR = {
    **CAPTIONS,
    "settings.dataset": "flickr30k",
    "settings.train_split": "train",
    "settings.images.store": "flickr30k-resnet-152-256.h5",
}
SOFTMAX: tuple[str, dict[str, Any]] = ("softmax", {})
SPARSEMAX: tuple[str, dict[str, Any]] = ("sparsemax", {})
TVMAX: tuple[str, dict[str, Any]] = ("tvmax", {"smoothness": 0.01})  # λ = 0.01, §4

Fields = dict[str, Any]
PAPERS: dict[str, tuple[tuple[str, dict[str, Any]], Fields]] = {
    "vqa-mcan-vqa2": (SOFTMAX, THESIS),
    "vqa-mcan-vqa2-continuous": (("continuous-softmax", CONTINUOUS), THESIS),
    "vqa-mcan-vqa2-continuous-49": (("continuous-softmax", CONTINUOUS | {"basis": BASIS | {"count": 49}}), THESIS),
    "vqa-mcan-vqa2-sparsemax": (("continuous-sparsemax", CONTINUOUS), THESIS),
    "vqa-mcan-vqa2-sparsemax-49": (("continuous-sparsemax", CONTINUOUS | {"basis": BASIS | {"count": 49}}), THESIS),
    # "number of iterations: 2, 5" (caption of table 6.3)
    "vqa-mcan-vqa2-2-mca": (("k-mca", K_MCA | {"components": 2, "iterations": 2}), THESIS),
    "vqa-mcan-vqa2-4-mca": (("k-mca", K_MCA | {"components": 4, "iterations": 5}), THESIS),
    "vqa-mcan-vqa2-grid": (SOFTMAX, GRID),
    "vqa-mcan-vqa2-unimodal": (("continuous-softmax", {"basis": BASIS, "floor": 1e-6}), GRID),
    "vqa-mcan-vqa2-multimodal": (("multimodal", MIXTURE), GRID),
    "vqa-rdan-vqa1": (SOFTMAX, R_DAN),
    "vqa-rdan-vqa1-vgg": (SOFTMAX, R_DAN | {"settings.images.store": "vgg-19-448/{split}.h5"}),
    "matching-scan-flickr30k": (SOFTMAX, SCAN | T2I | AVG),
    "matching-scan-flickr30k-i2t": (SOFTMAX, SCAN | I2T | LSE | {"settings.model.lse": 5.0}),
    "matching-bfan-flickr30k": (SOFTMAX, BFAN | {"settings.model.focal": "prob"}),
    "matching-bfan-flickr30k-equal": (SOFTMAX, BFAN | {"settings.model.focal": "equal"}),
    "matching-scan-coco": (SOFTMAX, SCAN | T2I | AVG | COCO | {"training.schedule.at": [10]}),
    "matching-scan-coco-i2t": (
        SOFTMAX,
        SCAN | I2T | LSE | COCO | {"settings.model.lse": 20.0, "training.schedule.at": [10]},
    ),
    "matching-bfan-coco": (SOFTMAX, BFAN | COCO | {"settings.model.focal": "prob", "training.schedule.at": [15]}),
    "matching-bfan-coco-equal": (
        SOFTMAX,
        BFAN | COCO | {"settings.model.focal": "equal", "training.schedule.at": [15]},
    ),
    "matching-mdan-flickr30k": (SOFTMAX, M_DAN),
    "matching-mdan-flickr30k-vgg": (SOFTMAX, M_DAN | {"settings.images.store": "flickr30k-vgg-19-448.h5"}),
    "captioning-lstm-coco": (SOFTMAX, CAPTIONS),
    "captioning-lstm-coco-sparsemax": (SPARSEMAX, CAPTIONS),
    "captioning-lstm-coco-tvmax": (TVMAX, CAPTIONS),
    "captioning-lstm-flickr30k": (SOFTMAX, FLICKR),
    "captioning-lstm-flickr30k-sparsemax": (SPARSEMAX, FLICKR),
    "captioning-lstm-flickr30k-tvmax": (TVMAX, FLICKR),
}


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields by path; mappings of options stay whole."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        whole = not isinstance(value, dict) or name == "mechanism_options"
        found |= {prefix + name: value} if whole else flat(value, f"{prefix}{name}.")
    return found


def test_every_recipe_is_compared() -> None:
    assert set(PAPERS) == set(PAPER_RECIPES)
    assert {run.recipe for table in TABLES.values() for run in table.runs()} == set(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_fields_are_those_of_the_paper(name: str) -> None:
    (mechanism, options), fields = PAPERS[name]
    found = flat(encode(PAPER_RECIPES[name]()))
    assert found["name"] == name
    assert {path: found[path] for path in fields} == fields
    assert (found["settings.mechanism"], found["settings.mechanism_options"]) == (mechanism, options)
    assert (found["settings.ccr.weight"], found["settings.ccs.weight"], found["settings.limit"]) == (0.0, 0.0, None)
    assert found["start"] is None


@pytest.mark.parametrize("name", PAPERS)
def test_builds_and_survives_the_way_through_json(name: str) -> None:
    recipe = PAPER_RECIPES[name]()
    assert from_config(to_config(recipe)) == recipe
    small = replace(recipe.settings, model=replace(recipe.settings.model, hidden=16), word_dim=4)
    vocabulary = Inputs(Vocabulary((*SPECIAL, "a")), 8).to_json()
    if recipe.task == "vqa":
        vocabulary["answers"] = AnswerVocabulary(("yes", "no")).to_json()
    assert TASKS[recipe.task].from_vocabulary(small, vocabulary).build_model()


def test_ridge_and_split() -> None:
    """What no field of a recipe holds: the ridge of 0.01 (000 §6.1, 001 table 6.1) and K-MCA's start (001 §6.3.1)."""
    for name in ("vqa-mcan-vqa2-continuous", "vqa-mcan-vqa2-multimodal", "vqa-mcan-vqa2-4-mca"):
        assert PAPER_RECIPES[name]().settings.attention().ridge == 0.01
    assert type(PAPER_RECIPES["vqa-mcan-vqa2-4-mca"]().settings.attention().fit).__name__ == "SplitMixture"


def test_rates() -> None:
    thesis, paper = (PAPER_RECIPES[name]().training for name in ("vqa-mcan-vqa2", "vqa-mcan-vqa2-grid"))
    rates = [thesis.optimiser.lr * thesis.schedule.rate(epoch, 13) for epoch in range(13)]
    assert rates == pytest.approx([min(2.5 * t * 1e-5, 1e-4) for t in range(1, 11)] + [2e-5] * 2 + [4e-6])
    rates = [paper.optimiser.lr * paper.schedule.rate(epoch, 15) for epoch in range(15)]
    assert rates == pytest.approx([min(1.25 * t, 5) * 1e-5 for t in range(1, 11)] + [1e-5] * 2 + [2e-6] * 3)


def test_the_printed_schedule_is_the_one_that_the_page_names() -> None:
    """§6.1 of Farinhas et al. 2021: min(2.5 t 1e-5, 5e-4), times 0.2 every two epochs after the tenth."""
    changes = ["lr=5e-4", "schedule.warmup=20", "schedule.at=10,12,14"]
    training = override(PAPER_RECIPES["vqa-mcan-vqa2-multimodal"](), changes).training
    rates = [training.optimiser.lr * training.schedule.rate(epoch, 15) for epoch in range(15)]
    later = [0.2, 0.2, 0.04, 0.04, 0.008]
    printed = [min(2.5 * t * 1e-5, 5e-4) * factor for t, factor in enumerate([1.0] * 10 + later, start=1)]
    assert rates == pytest.approx(printed)
    command = f"foveate train vqa-mcan-vqa2-multimodal {' '.join(changes)} "
    assert command in (Path(__file__).resolve().parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("error")
def test_the_released_criterion_is_at_home_in_its_recipe() -> None:
    settings = PAPER_RECIPES["vqa-mcan-vqa2-multimodal"]().settings
    assert settings.attention().fit.criterion == "batch"
    for name, criterion in (("released code", "batch"), ("equation 15 as printed", "equation"), ("ours", "own")):
        row = next(row for row in TABLES["000-shares"].rows if name in row.name)
        fit = override(PAPER_RECIPES["vqa-mcan-vqa2-grid"](), row.changes).settings.attention().fit
        assert fit.criterion == criterion
        assert row.paper == (80.8, 12.4, 4.4, 2.4)


def test_another_mechanism_keeps_only_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    base = PAPER_RECIPES["vqa-mcan-vqa2-multimodal"]()
    changed = override(base, ["mechanism=softmax"]).settings
    assert changed.mechanism_options == {}
    assert "max_components" in capsys.readouterr().err
    changed.attention()
    one = override(base, ["mechanism=continuous-softmax"]).settings
    assert set(one.mechanism_options) == {"basis", "floor"}
    one.attention()


def test_test_mca_of_the_thesis_keeps_basis_and_padding() -> None:
    row = next(row for row in TABLES["001-table-6.3"].rows if row.name == "test-MCA, λ = 100")
    options = override(PAPER_RECIPES["vqa-mcan-vqa2-continuous"](), row.changes).settings.mechanism_options
    assert options == CONTINUOUS | {
        "max_components": 5,  # K_max
        "iterations": 20,  # caption of table 6.3
        "penalty": 100.0,  # λ = 100
        "start": "random",
        "likelihood": "point",
        "background": False,
    }
