"""Datasets: records, the embedded Scenes, readers of published formats, and the feature store."""

from functools import partial

from foveate.lab.data.coco import read_coco, read_coco_karpathy
from foveate.lab.data.feature_store import (
    FeatureRecord,
    FeatureStore,
    StoreDescription,
    stack_features,
    unstack_features,
)
from foveate.lab.data.flickr import read_flickr, read_flickr_lists
from foveate.lab.data.flickr_questions import read_flickr_questions
from foveate.lab.data.jsonl import read_folder
from foveate.lab.data.precomp import read_scan_captions
from foveate.lab.data.samples import Caption, Dataset, ImageRecord, Object, Phrase, Question, Source
from foveate.lab.data.scenes import scenes, scenes_large
from foveate.lab.data.shards import read_shards
from foveate.lab.data.vocabulary import AnswerVocabulary, Vocabulary, normalise_answer, tokenize
from foveate.lab.data.vqa_files import read_hat, read_vqa

_VQA_SPLITS = ("train", "val", "test", "test-dev")
_ALL = ("questions", "captions", "phrases", "objects", "regions")
DATASETS: dict[str, Source] = {
    "scenes": Source(scenes, ("train", "val", "test"), _ALL, embedded=True, takes=("count",)),
    "scenes-large": Source(scenes_large, ("train", "val", "test"), _ALL, embedded=True, takes=("count",)),
    "vqa-v2": Source(partial(read_vqa, version=2), _VQA_SPLITS, ("questions",)),
    "vqa-v1": Source(partial(read_vqa, version=1), _VQA_SPLITS, ("questions",)),
    "vqa-v1-choice": Source(partial(read_vqa, version=1, task="choice"), _VQA_SPLITS, ("questions",)),
    "vqa-coco": Source(read_vqa, ("train", "val"), ("questions",)),
    "vqa-hat": Source(read_hat, ("train", "val"), ("questions", "human maps")),
    "coco": Source(read_coco, ("train", "val"), ("captions", "objects")),
    "coco-karpathy": Source(
        read_coco_karpathy, ("train", "restval", "train+restval", "val", "test"), ("captions", "objects")
    ),
    "flickr8k": Source(partial(read_flickr, name="flickr8k"), ("train", "val", "test"), ("captions", "phrases")),
    "flickr30k": Source(partial(read_flickr, name="flickr30k"), ("train", "val", "test"), ("captions", "phrases")),
    "flickr8k-questions": Source(read_flickr_questions, ("train", "val", "test"), ("questions", "regions")),
    "flickr30k-questions": Source(
        partial(read_flickr_questions, name="flickr30k"), ("train", "val", "test"), ("questions", "regions")
    ),
    "flickr30k-mrnn": Source(read_flickr_lists, ("train", "val", "test"), ("captions",)),
    "f30k-precomp": Source(
        partial(read_scan_captions, name="f30k_precomp"), ("train", "val", "test"), ("captions",), takes=()
    ),
    "coco-precomp": Source(
        partial(read_scan_captions, name="coco_precomp"), ("train", "val", "test", "testall"), ("captions",), takes=()
    ),
    "folder": Source(
        read_folder,
        ("all", "train", "val", "test"),
        ("questions", "captions", "objects"),
        takes=("allow_outside", "split_seed", "fold"),
    ),
    "shards": Source(read_shards, ("all", "train", "val", "test"), ("captions",), takes=()),
}

__all__ = [
    "DATASETS",
    "AnswerVocabulary",
    "Caption",
    "Dataset",
    "FeatureRecord",
    "FeatureStore",
    "ImageRecord",
    "Object",
    "Phrase",
    "Question",
    "Source",
    "StoreDescription",
    "Vocabulary",
    "normalise_answer",
    "read_coco",
    "read_coco_karpathy",
    "read_flickr",
    "read_flickr_lists",
    "read_flickr_questions",
    "read_folder",
    "read_hat",
    "read_scan_captions",
    "read_shards",
    "read_vqa",
    "scenes",
    "scenes_large",
    "stack_features",
    "tokenize",
    "unstack_features",
]
