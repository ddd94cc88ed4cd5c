"""Makes the files of a table in a small version, and runs the table on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from foveate.io import write_json
from foveate.lab.models import (
    BFANSettings,
    LSTMCaptionerSettings,
    MatchingDANSettings,
    MCANSettings,
    ReasoningDANSettings,
    SCANSettings,
)
from foveate.lab.papers.tables.run import Session, check_files, evaluate_all, make_stores, measure_all, train_all
from foveate.lab.papers.tables.table import Table
from foveate.lab.papers.tables.tiny_files import (
    coco_grids,
    coco_images,
    coco_instances,
    coco_karpathy,
    coco_vgg,
    entity_annotations,
    entity_sentences,
    flickr_boxes,
    flickr_images,
    flickr_karpathy,
    flickr_list,
    flickr_tokens,
    flickr_vgg,
    glove,
    hat_maps,
    scan_directory,
    vqa_annotations,
    vqa_questions,
)
from foveate.lab.train.processes import make_accelerator
from foveate.registry import optional

_TRAINING = ("epochs=1", "evaluate_every=1", "workers=0")
_SCAN = ("hidden=16", "word_dim=8", "min_count=1", "batch_size=8", "ccr.after=0", "ccs.after=0")
TINY_SETTINGS: Mapping[type, tuple[str, ...]] = {
    MCANSettings: (*_TRAINING, "hidden=16", "heads=2", "layers=1", "min_count=1", "batch_size=16"),
    ReasoningDANSettings: (*_TRAINING, "hidden=16", "word_dim=8", "batch_size=16"),
    SCANSettings: (*_TRAINING, *_SCAN),
    BFANSettings: (*_TRAINING, *_SCAN),
    MatchingDANSettings: (*_TRAINING, "hidden=16", "word_dim=8", "batch_size=8"),
    LSTMCaptionerSettings: (
        *_TRAINING,
        *("model.hidden=16", "score_dim=16", "word_dim=8", "min_count=1", "batch_size=8"),
        *("max_words=6", "beams=2", "spice=false"),
    ),
}

# Who makes a file, by the beginning or the end of its name.
MAKERS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("_questions.json", vqa_questions),
    ("_annotations.json", vqa_annotations),
    ("vqahat_val", hat_maps),
    ("glove.6B.300d.txt", glove),
    ("grid-feats/", coco_grids),
    ("flickr30k-vgg-19-448", flickr_vgg),
    ("vgg-19-448/", coco_vgg),
    ("flickr30k-images", flickr_images),
    ("coco-images", coco_images),
    ("dataset_flickr30k.json", flickr_karpathy),
    ("dataset_coco.json", coco_karpathy),
    ("results_20130124.token", flickr_tokens),
    ("flickr30k_resnet101", flickr_boxes),
    ("flickr30k_", flickr_list),
    ("_precomp", scan_directory),
    ("Sentences", entity_sentences),
    ("Annotations", entity_annotations),
    ("instances_", coco_instances),
    ("2014", coco_images),
    ("2015", coco_images),
)


def make_files(table: Table, root: Path) -> None:
    """Write small versions of all files that a table needs and that are not there yet."""
    for file in table.missing(root):
        path = root / file.places[0] / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        next(maker for part, maker in MAKERS if part in file.name)(path)


def run_tiny(session: Session) -> Mapping[str, list[dict[str, float]]]:
    """Run a table on small files with small models, from the publishers' formats to the last number."""
    if session.table.kind == "measurement":
        return measure_all(session, 1, 0.1)
    small = prepare_tiny(session)
    train_all(small)
    return evaluate_all(small)


def prepare_tiny(session: Session) -> Session:
    """Make the files and stores of a table, and return its session with small models."""
    root = tiny_data(session.out)
    small = replace(session, root=root, small=TINY_SETTINGS, progress=False)
    if make_accelerator().is_main_process:
        make_files(session.table, root)
    make_accelerator().wait_for_everyone()
    check_files(session.name, session.table, root)
    encodes = any(feature.is_encoder for feature in session.table.features)
    make_stores(small, tiny_encoder(session.out / "encoder") if encodes else None)
    return small


def tiny_data(out: Path) -> Path:
    """The directory of the small files below that of all runs."""
    return out / "data"


def tiny_encoder(directory: Path) -> str:
    """The name of a ResNet with a few random weights, written to a directory in the format of transformers."""
    transformers = optional("reproduce --tiny", "transformers", extra="hf")
    if make_accelerator().is_main_process and not (directory / "config.json").is_file():
        config = transformers.ResNetConfig(
            embedding_size=4, hidden_sizes=[4, 4, 8, 8], depths=[1, 1, 1, 1], layer_type="basic"
        )
        transformers.ResNetModel(config).save_pretrained(directory)
        settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 64, "width": 64}}
        write_json(directory / "preprocessor_config.json", settings)
    make_accelerator().wait_for_everyone()
    return f"hf:{directory}"
