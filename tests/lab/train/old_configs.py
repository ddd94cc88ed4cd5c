"""Settings as version 0.1 wrote them, all fields of all tasks and models, and what they mean today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from foveate.lab.models import (
    MODELS,
    BFANSettings,
    LSTMCaptionerSettings,
    MatchingDANSettings,
    MCANSettings,
    ReasoningDANSettings,
    SCANSettings,
)
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Conv, Stored
from foveate.lab.tasks.inputs import Constraint
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train import Adam, Recipe, Training, to_config

CONV = {"channels": [8, 8], "blocks": 0, "size": 56, "start": "random", "trained": True, "kind": "conv"}
STORED = {"store": "f.h5", "kind": "stored"}
TRAINING = Training(Adam(1e-3), epochs=2)
VQA_OLD = {
    "data": "vqa-v2",
    "images": STORED,
    "mechanism": "entmax",
    "mechanism_options": {"alpha": 1.25},
    "loss": "cross-entropy",
    "guidance": 0.5,
    "guidance_loss": "js",
    "ccr": 0.25,
    "ccs": 2.0,
    "ccr_margin": 0.3,
    "ccs_margin": 0.4,
    "word_dim": 50,
    "words": "glove",
    "max_tokens": 11,
    "min_count": 2,
    "max_answers": 3000,
    "group": True,
    "limit": 7,
    "rule": "lenient",
    "look_size": [7, 9],
}
VQA_NEW = VQASettings(
    dataset="vqa-v2",
    images=Stored("f.h5"),
    mechanism="entmax",
    mechanism_options={"alpha": 1.25},
    loss="cross-entropy",
    guidance=0.5,
    guidance_loss="js",
    ccr=Constraint(weight=0.25, margin=0.3),
    ccs=Constraint(weight=2.0, margin=0.4),
    word_dim=50,
    words="glove",
    max_tokens=11,
    min_count=2,
    max_answers=3000,
    group=True,
    limit=7,
    rule="lenient",
    map_size=(7, 9),
)
CAPTIONING_OLD = {
    "data": "coco-karpathy",
    "train_split": "train+restval",
    "images": STORED,
    "mechanism": "tvmax",
    "mechanism_options": {"smoothness": 0.01},
    "word_dim": 64,
    "hidden": 128,
    "score_dim": 32,
    "dropout": 0.3,
    "min_count": 2,
    "max_words": 30,
    "beams": 5,
    "length_penalty": 0.7,
    "no_repeat": 3,
    "ccr": 0.25,
    "ccs": 2.0,
    "ccr_margin": 0.3,
    "ccs_margin": 0.4,
    "limit": 7,
    "spice": True,
}
CAPTIONING_NEW = CaptioningSettings(
    dataset="coco-karpathy",
    train_split="train+restval",
    images=Stored("f.h5"),
    mechanism="tvmax",
    mechanism_options={"smoothness": 0.01},
    model=LSTMCaptionerSettings(hidden=128, score_dim=32, dropout=0.3),
    word_dim=64,
    min_count=2,
    max_words=30,
    beams=5,
    length_penalty=0.7,
    no_repeat=3,
    ccr=Constraint(weight=0.25, margin=0.3),
    ccs=Constraint(weight=2.0, margin=0.4),
    limit=7,
    spice=True,
)
MATCHING_OLD = {
    "data": "flickr8k",
    "train_split": "val",
    "images": CONV,
    "mechanism": "sparsemax",
    "mechanism_options": {},
    "margin": 0.3,
    "negatives": "soft",
    "softness": 0.25,
    "easy_batches": 235,
    "easy": "random",
    "ccr": 0.25,
    "ccs": 2.0,
    "ccr_margin": 0.35,
    "ccs_margin": 0.4,
    "ccr_after": 470,
    "ccs_after": 588,
    "word_dim": 64,
    "words": "glove",
    "word_std": 0.06,
    "min_count": 2,
    "max_words": 80,
    "forget": 0.1,
    "captions_each": 2,
    "folds": 5,
    "limit": 7,
}
MATCHING_NEW = MatchingSettings(
    dataset="flickr8k",
    train_split="val",
    images=Conv((8, 8), blocks=0, size=56),
    mechanism="sparsemax",
    ranking=Ranking(margin=0.3, negatives="soft", softness=0.25, warmup_steps=235, warmup_negatives="random"),
    ccr=Constraint(weight=0.25, margin=0.35, after=470),
    ccs=Constraint(weight=2.0, margin=0.4, after=588),
    word_dim=64,
    words="glove",
    word_std=0.06,
    min_count=2,
    max_words=80,
    word_dropout=0.1,
    captions_per_example=2,
    folds=5,
    limit=7,
)


@dataclass(frozen=True)
class Old:
    """The settings of a run of version 0.1, as they were written, and what they mean."""

    task: str
    settings: Mapping[str, Any]
    expected: Any

    def config(self) -> dict[str, Any]:
        """The whole `config.json`."""
        recipe = to_config(Recipe("a-b-c", self.task, self.expected, TRAINING, "about", "runs/first"))
        return json.loads(json.dumps({**recipe, "format": 1, "settings": self.settings}))


def with_model(old: Mapping[str, Any], new: Any, fields: Mapping[str, Any], model: Any) -> tuple[dict[str, Any], Any]:
    return {**old, "model": dict(fields)}, replace(new, model=model)


MDAN = {**MATCHING_OLD, "ccr": 0.0, "ccs": 0.0}
MDAN_NEW = replace(
    MATCHING_NEW,
    model=MatchingDANSettings(),
    ccr=replace(MATCHING_NEW.ccr, weight=0.0),
    ccs=replace(MATCHING_NEW.ccs, weight=0.0),
)
CASES: dict[str, Old] = {
    "mcan": Old(
        "vqa",
        *with_model(
            VQA_OLD,
            VQA_NEW,
            {"hidden": 64, "heads": 4, "layers": 2, "dropout": 0.2, "kind": "mcan"},
            MCANSettings(hidden=64, heads=4, layers=2, dropout=0.2),
        ),
    ),
    "rdan": Old(
        "vqa",
        *with_model(
            VQA_OLD,
            VQA_NEW,
            {"hidden": 64, "steps": 3, "dropout": 0.2, "word_mechanism": "sparsemax", "kind": "rdan"},
            ReasoningDANSettings(hidden=64, reasoning_steps=3, dropout=0.2, word_mechanism="sparsemax"),
        ),
    ),
    "lstm": Old("captioning", CAPTIONING_OLD, CAPTIONING_NEW),
    "scan": Old(
        "matching",
        *with_model(
            MATCHING_OLD,
            MATCHING_NEW,
            {
                "hidden": 64,
                "directions": "concatenate",
                "dropout": 0.2,
                "direction": "i2t",
                "temperature": 4.0,
                "aggregate": "mean",
                "lse": 5.0,
                "kind": "scan",
            },
            SCANSettings(64, "concatenate", 0.2, direction="i2t", temperature=4.0, aggregate="mean", lse=5.0),
        ),
    ),
    "bfan": Old(
        "matching",
        *with_model(
            MATCHING_OLD,
            MATCHING_NEW,
            {
                "hidden": 64,
                "directions": "concatenate",
                "dropout": 0.2,
                "focal": "equal",
                "temperature": 7.0,
                "word_mechanism": "sparsemax",
                "kind": "bfan",
            },
            BFANSettings(64, "concatenate", 0.2, focal="equal", temperature=7.0, word_mechanism="sparsemax"),
        ),
    ),
    "mdan": Old(
        "matching",
        *with_model(
            MDAN,
            MDAN_NEW,
            {"hidden": 64, "dropout": 0.2, "steps": 3, "word_mechanism": "sparsemax", "kind": "mdan"},
            MatchingDANSettings(hidden=64, dropout=0.2, reasoning_steps=3, word_mechanism="sparsemax"),
        ),
    ),
}
SETTINGS = {name: kind.Settings for name, kind in TASKS.items()}


def older(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as version 0.1 wrote it."""
    kind, settings = SETTINGS[config["task"]], dict(config["settings"])
    model, renamed = dict(settings["model"]), MODELS[settings["model"]["kind"]].renamed
    settings["model"] = {
        next((old for old, new in renamed.items() if new == name), name): model[name] for name in model
    }
    for old, path in kind.renamed.items():
        group, _, field = path.rpartition(".")
        settings[old] = config["settings"][group][field] if group else settings.pop(field)
    groups = {path.partition(".")[0] for path in kind.renamed.values() if "." in path}
    flat = {name: value for name, value in settings.items() if name in kind.renamed or name not in groups}
    return {**config, "format": 1, "settings": flat}


def is_younger(recipe: Recipe) -> bool:
    """True if a group of its settings uses a field that version 0.1 did not have."""
    known = [path for path in SETTINGS[recipe.task].renamed.values() if "." in path]
    for group in {path.partition(".")[0] for path in known}:
        part = getattr(recipe.settings, group)
        changed = [name for name, value in vars(part).items() if value != getattr(type(part)(), name)]
        if any(f"{group}.{name}" not in known for name in changed):
            return True
    return False
