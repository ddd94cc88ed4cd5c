"""COCO annotation files and Karpathy's COCO splits in their publishers' layouts."""

import json
import tracemalloc

import pytest
from PIL import Image

from foveate.errors import DataError, UnknownName
from foveate.lab.data.coco import read_coco, read_coco_karpathy
from foveate.lab.metrics.repetition import count_mentions
from foveate.lab.tasks.captioning.data import object_names
from foveate.ops.boxes import Box

CAPTIONS, INSTANCES = "captions_val2014.json", "instances_val2014.json"


def listed(number, subset="val2014", width=640, height=480):
    return {
        "license": 3,
        "file_name": f"COCO_{subset}_{number:012d}.jpg",
        "coco_url": "",
        "height": height,
        "width": width,
        "date_captured": "2013-11-14 11:18:45",
        "id": number,
    }


def caption(number, image, text="A bicycle replica with a clock as the front wheel. "):
    return {"image_id": image, "id": number, "caption": text}


def instance(number, image, box, category=18, **more):
    record = {"segmentation": [[1.0, 2.0, 3.0, 4.0]], "area": 10.5, "iscrowd": 0, "image_id": image}
    return record | {"bbox": box, "category_id": category, "id": number} | more


CATEGORIES = [
    {"supercategory": "animal", "id": 18, "name": "dog"},
    {"supercategory": "outdoor", "id": 11, "name": "fire hydrant"},
]


@pytest.fixture
def root(tmp_path):
    notes, directory = tmp_path / "annotations", tmp_path / "val2014"
    notes.mkdir()
    directory.mkdir()
    images = [listed(42), listed(7, width=100, height=200)]
    write(notes / CAPTIONS, images, [caption(1, 7, "Two dogs."), caption(2, 42), caption(3, 42)])
    found = [
        instance(90, 7, [10.0, 20.0, 30.0, 40.0]),
        instance(91, 7, [0, 0, 100.4, 200.9], category=11, iscrowd=1),
        instance(92, 42, [5.0, 5.0, 0.0, 3.0]),
    ]
    write(notes / INSTANCES, images, found, categories=CATEGORIES)
    for image in images:
        Image.new("RGB", (20, 10)).save(directory / image["file_name"])
    return tmp_path


def write(path, images, annotations, **more):
    content = {"info": {"year": 2014}, "images": images, "licenses": [], "annotations": annotations} | more
    path.write_text(json.dumps(content))


def change(path, work):
    content = json.loads(path.read_text())
    work(content)
    path.write_text(json.dumps(content))


def test_captions_and_objects(root):
    data = read_coco(root, "val")
    assert (data.name, data.split, [p.id for p in data.images]) == ("coco-2014", "val", [42, 7])
    assert (data.image(7).width, data.image(7).height) == (100, 200)
    assert data.image(7).pixels().shape == (10, 20, 3)
    assert [c.id for c in data.captions_of(42)] == [2, 3]
    assert data.captions[1].text == "A bicycle replica with a clock as the front wheel."
    assert data.captions[0].tokens == ("two", "dogs")
    dog, crowd = data.objects_of(7)
    assert (dog.id, dog.name, dog.box) == (90, "dog", Box(0.1, 0.1, 0.4, 0.3))
    assert dict(dog.attributes) == {}
    assert (crowd.name, dict(crowd.attributes)) == ("fire hydrant", {"crowd": "yes"})
    assert crowd.box == Box(0, 0, 1, 1)  # within a pixel of the border: cut off
    assert data.objects_of(42) == ()  # zero width: left out


def test_one_of_the_two_files_is_enough(root):
    notes = root / "annotations"
    (notes / CAPTIONS).rename(root / "kept.json")
    only = read_coco(root, "val")
    assert (only.captions, len(only.objects_of(7))) == ((), 2)
    (root / "kept.json").rename(root / CAPTIONS)
    (notes / INSTANCES).unlink()
    only = read_coco(root, "val")
    assert (len(only.captions), only.objects) == (3, {})


def test_years_and_image_names_of_2017(root):
    notes = root / "annotations"
    (root / "images" / "val2017").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(root / "images" / "val2017" / "000000000005.jpg")
    write(notes / "captions_val2017.json", [listed(5) | {"file_name": "000000000005.jpg"}], [caption(9, 5)])
    assert read_coco(root, "val").name == "coco-2014"
    data = read_coco(root, "val", year=2017)
    assert (data.name, data.images[0].source.name) == ("coco-2017", "000000000005.jpg")
    with pytest.raises(
        DataError, match=r"expected captions_val2015.json or instances_val2015.json in .*cocodataset.org"
    ):
        read_coco(root, "val", year=2015)


def test_images_absent_or_elsewhere(root):
    (root / "val2014").rename(root / "photos")
    with pytest.raises(DataError, match=r"read_coco: expected the image 42 of .*captions_val2014.json, got none in"):
        read_coco(root, "val")
    assert read_coco(root, "val", image_dir=root / "photos").image(42).source.parent == root / "photos"
    assert read_coco(root, "val", need_images=False).image(42).source.name == "COCO_val2014_000000000042.jpg"


@pytest.mark.parametrize(
    ("file", "work", "message"),
    [
        (
            CAPTIONS,
            lambda c: c["annotations"].append(caption(2, 7)),
            "expected different id in .*captions_.*, got 2 twice",
        ),
        (CAPTIONS, lambda c: c["images"].append(listed(7)), "expected different id in .*captions_.*, got 7 twice"),
        (
            CAPTIONS,
            lambda c: c["annotations"][0].update(image_id=8),
            "expected the image 8 of annotation 1 among the",
        ),
        (CAPTIONS, lambda c: c["annotations"][0].pop("caption"), r"expected 'caption' \(str\) in every record of"),
        (CAPTIONS, lambda c: c["images"][0].pop("width"), r"expected 'width' \(int\) in every record"),
        (
            INSTANCES,
            lambda c: c["annotations"][0].update(bbox=[90.0, 0, 20, 5]),
            r"inside the 100 x 200 image, got \(90.0",
        ),
        (
            INSTANCES,
            lambda c: c["annotations"][0].update(bbox=[-3, 0, 20, 5]),
            "for instance 90 in .*instances_val2014",
        ),
        (
            INSTANCES,
            lambda c: c["annotations"][0].update(bbox=[1, 2]),
            r"expected bbox as \[x, y, width, height\], got \[1",
        ),
        (
            INSTANCES,
            lambda c: c["annotations"][0].update(category_id=5),
            "expected a category of .*, got 5 for instance 90",
        ),
    ],
)
def test_broken_records_are_named(root, file, work, message):
    change(root / "annotations" / file, work)
    listing = json.loads((root / "annotations" / CAPTIONS).read_text())["images"]
    if file == CAPTIONS and len(listing) == 2:
        change(root / "annotations" / INSTANCES, lambda c: c.update(images=listing))
    with pytest.raises(DataError, match=message):
        read_coco(root, "val")


def test_outlines_are_not_held(root):
    outline = [[0.5 + i for i in range(200)]]
    found = [instance(n, 7, [10.0, 20.0, 30.0, 40.0], segmentation=outline) for n in range(500)]
    path = root / "annotations" / INSTANCES
    write(path, [listed(42), listed(7, width=100, height=200)], found, categories=CATEGORIES)
    tracemalloc.start()
    read_coco(root, "val")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * path.stat().st_size  # 6 times with the outlines


def test_missing_files_and_split(root):
    with pytest.raises(
        DataError, match=r"expected captions_train2014.json or .* in .*; annotations and images come from"
    ):
        read_coco(root, "train")
    with pytest.raises(UnknownName, match="split of COCO"):
        read_coco(root, "test")


def karpathy(tmp_path, splits=("train", "restval", "val", "test")):
    images = []
    for i, split in enumerate(splits):
        directory = "train2014" if split == "train" else "val2014"
        name = f"COCO_{directory}_{100 + i:012d}.jpg"
        (tmp_path / directory).mkdir(exist_ok=True)
        Image.new("RGB", (3, 2)).save(tmp_path / directory / name)
        sentences = [
            {"tokens": ["a", "man"], "raw": f"A man, number {j}.", "imgid": i, "sentid": 10 * i + j} for j in range(5)
        ]
        images.append(
            {"filepath": directory, "sentids": [], "filename": name, "imgid": i, "split": split}
            | {"sentences": sentences, "cocoid": 100 + i}
        )
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return tmp_path


def test_karpathy_splits(tmp_path):
    root = karpathy(tmp_path)
    for i, split in enumerate(("train", "restval", "val", "test")):
        data = read_coco_karpathy(root, split)
        assert (data.name, data.split, [p.id for p in data.images]) == ("coco", split, [100 + i])
        assert [c.id for c in data.captions] == [10 * i + j for j in range(5)]
        assert data.captions[1].tokens == ("a", "man", "number", "1")
        assert data.images[0].pixels().shape == (2, 3, 3)
    assert [p.id for p in read_coco_karpathy(root, "train+restval").images] == [100, 101]


def test_karpathy_errors(tmp_path):
    root = karpathy(tmp_path)
    with pytest.raises(UnknownName, match=r"split of dataset_coco.json: .* got 'tests'; did you mean 'test'"):
        read_coco_karpathy(root, "tests")
    (root / "val2014" / "COCO_val2014_000000000103.jpg").unlink()
    with pytest.raises(
        DataError,
        match=r"expected the image COCO_val2014_000000000103.jpg of .*dataset_coco.json, got none in .*val2014",
    ):
        read_coco_karpathy(root, "test")
    assert read_coco_karpathy(root, "test", need_images=False).images[0].source.parent == root / "val2014"
    change(root / "dataset_coco.json", lambda c: c["images"][2]["sentences"][0].pop("sentid"))
    with pytest.raises(DataError, match="expected 'sentid'"):
        read_coco_karpathy(root, "val")
    change(root / "dataset_coco.json", lambda c: c["images"][2].update(sentences=[]))
    with pytest.raises(DataError, match=r"expected captions for image 102 in .*dataset_coco.json, got none"):
        read_coco_karpathy(root, "val")
    (root / "dataset_coco.json").unlink()
    with pytest.raises(
        DataError, match=r"expected dataset_coco.json in .*; the dataset_.* come in Karpathy's caption_datas"
    ):
        read_coco_karpathy(root, "val")


def test_objects_have_the_names_under_which_captions_mention_them(root):
    """Two persons and a bus are two kinds: "two people and a man near a bus" mentions both."""

    def people(content):
        content["categories"] += [{"id": 1, "name": "person"}, {"id": 6, "name": "bus"}]
        content["annotations"] += [
            instance(100 + place, 42, [0, 0, 20, 20], category=kind) for place, kind in enumerate((1, 1, 6))
        ]

    change(root / "annotations" / INSTANCES, people)
    data = read_coco(root, "val", need_images=False)
    kinds = [names for names in object_names(data, 42) if names[0] in ("person", "bus")]
    assert len(kinds) == 2
    assert count_mentions(["two", "people", "and", "a", "man", "near", "a", "bus"], kinds) == 2
    assert count_mentions(["women", "on", "minibuses"], kinds) == 2
    assert count_mentions(["a", "fire", "hydrant"], kinds) == 0
