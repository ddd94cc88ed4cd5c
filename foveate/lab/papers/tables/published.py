"""The files of the publishers that the tables need, by the publishers' names."""

from __future__ import annotations

from foveate.lab.papers.tables.table import FeatureFile, PublishedFile

QUOTED = "The rows marked as quoted are systems of other authors as the paper prints them; nothing is trained for them."
VQA_SITE = "visualqa.org/download.html"
COCO_SITE = "cocodataset.org"
KARPATHY = "Karpathy's caption_datasets.zip"
SCAN_SITE = "data.zip of SCAN (github.com/kuanghuei/SCAN)"
FLICKR_SITE = "Flickr30k images (shannon.cs.illinois.edu/DenotationGraph)"
VQA_PLACES = ("", "Questions", "questions", "Annotations", "annotations")
COCO_PLACES = ("", "images", "Images/mscoco", "coco-images")
RESNET = "hf:microsoft/resnet-152"

GLOVE = PublishedFile("glove.6B.300d.txt", "glove.6B.zip (nlp.stanford.edu/projects/glove)", ("", "glove"))


def vqa_files(version: int, *, test: bool = True, choice: bool = False) -> tuple[PublishedFile, ...]:
    """Questions and annotations of VQA; those of the test splits have no answers."""
    prefix = "v2_" if version == 2 else ""
    tasks = ("OpenEnded", "MultipleChoice") if choice else ("OpenEnded",)
    subsets = ("train2014", "val2014", *(("test-dev2015", "test2015") if test else ()))
    names = [f"{prefix}{task}_mscoco_{subset}_questions.json" for task in tasks for subset in subsets]
    names += [f"{prefix}mscoco_{subset}_annotations.json" for subset in ("train2014", "val2014")]
    return tuple(PublishedFile(name, VQA_SITE, VQA_PLACES) for name in names)


HAT = (
    *vqa_files(1, test=False),
    PublishedFile("vqahat_val", "VQA-HAT (computing.ece.vt.edu/~abhshkdz/vqa-hat)"),
)


def grid_feats(*splits: str) -> tuple[FeatureFile, ...]:
    """The grid features of Jiang et al. 2020, one directory of <image_id>.pth per subset of COCO."""
    return tuple(
        FeatureFile(
            f"grid-feats/{split}.h5",
            PublishedFile(
                f"grid-feats/{SUBSETS[split]}", "grid-feats-vqa (github.com/facebookresearch/grid-feats-vqa)"
            ),
            "grid-feats",
        )
        for split in splits
    )


SUBSETS = {"train": "train2014", "val": "val2014", "test": "test2015"}


def coco_resnet(*splits: str) -> tuple[FeatureFile, ...]:
    """14x14 features of a ResNet-152 for the images of COCO."""
    return tuple(
        FeatureFile(
            f"resnet-152-448/{split}.h5",
            PublishedFile(SUBSETS[split], f"{COCO_SITE} ({SUBSETS[split]}.zip)", COCO_PLACES),
            RESNET,
            size=448,
        )
        for split in splits
    )


def coco_vgg(*splits: str) -> tuple[FeatureFile, ...]:
    """14x14 features of VGG-19 for the images of COCO, computed with another program and saved as .npy."""
    return tuple(
        FeatureFile(
            f"vgg-19-448/{split}.h5",
            PublishedFile(
                f"vgg-19-448/{SUBSETS[split]}",
                "your own: <image_id>.npy (512, 14, 14), see docs/reproduce.md",
            ),
            "npy",
        )
        for split in splits
    )


def scan_features(dataset: str, *splits: str) -> tuple[FeatureFile, ...]:
    """The 36 regions that SCAN published for Flickr30K (f30k_precomp) and COCO (coco_precomp)."""
    published = PublishedFile(dataset, SCAN_SITE)
    return tuple(
        FeatureFile(f"{dataset}/{split}.h5", published, "scan", split=SCAN_SPLITS.get(split, split)) for split in splits
    )


SCAN_SPLITS = {"val": "dev"}
FLICKR_KARPATHY = PublishedFile("dataset_flickr30k.json", KARPATHY)
COCO_KARPATHY = PublishedFile("dataset_coco.json", KARPATHY, ("", "annotations"))
ENTITIES = tuple(
    PublishedFile(name, "Flickr30k Entities (github.com/BryanPlummer/flickr30k_entities)", places)
    for name, places in (
        ("Sentences", ("entities", "Flickr30kEntities", "flickr30k_entities", "")),
        ("Annotations", ("entities", "Flickr30kEntities", "flickr30k_entities", "")),
    )
)
INSTANCES = tuple(
    PublishedFile(f"instances_{subset}.json", f"{COCO_SITE} (annotations_trainval2014.zip)", ("", "annotations"))
    for subset in ("train2014", "val2014")
)
FLICKR_LISTS = (
    PublishedFile("results_20130124.token", FLICKR_SITE, ("", "flickr30k-images")),
    *(
        PublishedFile(f"flickr30k_{split}.txt", "the splits of m-RNN (Mao et al. 2015): one image file per line")
        for split in ("train", "val", "test")
    ),
)
FLICKR_IMAGES = PublishedFile("flickr30k-images", FLICKR_SITE)
COCO_IMAGES = PublishedFile("val2014", f"{COCO_SITE} (val2014.zip)", COCO_PLACES)
FLICKR_BOXES = FeatureFile(
    "flickr30k-bottom-up.h5",
    PublishedFile(
        "flickr30k_resnet101_faster_rcnn_genome_36.tsv",
        "bottom-up attention's tools/generate_tsv.py on the Flickr30k images (github.com/peteanderson80)",
    ),
    "bottom-up",
)
FLICKR_14 = FeatureFile("flickr30k-resnet-152-448.h5", FLICKR_IMAGES, RESNET, size=448)
FLICKR_8 = FeatureFile("flickr30k-resnet-152-256.h5", FLICKR_IMAGES, RESNET, size=256)
FLICKR_VGG = FeatureFile(
    "flickr30k-vgg-19-448.h5",
    PublishedFile("flickr30k-vgg-19-448", "your own: <name>.npy (512, 14, 14), see docs/reproduce.md"),
    "npy",
)
COCO_8 = FeatureFile(
    "coco-resnet-152-256.h5",
    PublishedFile("coco-images", f"{COCO_SITE}: a directory with train2014 and val2014 inside"),
    RESNET,
    size=256,
)
