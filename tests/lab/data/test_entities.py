"""Flickr30k Entities: sentences, boxes, and the link of every phrase to a caption."""

import pytest

from foveate.errors import DataError
from foveate.lab.data.entities import EntityPhrase, link_phrases, parse_sentence, read_boxes, read_sentences
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.data.vocabulary import tokenize
from foveate.ops.boxes import Box

XML = """<annotation>
	<filename>1000092795.jpg</filename>
	<size>
		<width>{width}</width>
		<height>200</height>
		<depth>3</depth>
	</size>
	{objects}
</annotation>"""


def boxed(names, box):
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return "<object>" + "".join(f"<name>{n}</name>" for n in names) + f"<bndbox>{sides}</bndbox></object>"


def flagged(name, scene, absent):
    return f"<object><name>{name}</name><scene>{scene}</scene><nobndbox>{absent}</nobndbox></object>"


def write(directory, sentences, objects, stem="1000092795", width=100):
    for name in ("Sentences", "Annotations"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "Sentences" / f"{stem}.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (directory / "Annotations" / f"{stem}.xml").write_text(XML.format(width=width, objects="".join(objects)))
    return directory


def dataset(*texts, name="1000092795_abc.jpg"):
    captions = tuple(Caption(i, name, text, tokenize(text)) for i, text in enumerate(texts))
    return Dataset("flickr", "train", (ImageRecord(name, lambda: None),), captions=captions)


def test_sentences_of_the_publisher(tmp_path):
    line = "[/EN#1/people/other Two young guys] with [/EN#2/bodyparts shaggy hair] look , [/EN#0/notvisual it] ."
    write(tmp_path, [line, "Nothing here .", ""], [])
    first, second = read_sentences(tmp_path / "Sentences" / "1000092795.txt")
    assert " ".join(first.words) == "Two young guys with shaggy hair look , it ."
    assert first.phrases == (
        EntityPhrase(0, 3, "1", ("people", "other")),
        EntityPhrase(4, 6, "2", ("bodyparts",)),
        EntityPhrase(8, 9, "0", ("notvisual",)),
    )
    assert second.phrases == ()


def test_an_open_phrase_is_refused(tmp_path):
    write(tmp_path, ["fine", "[/EN#5/people A man walks ."], [])
    with pytest.raises(
        DataError, match=r"every phrase closed by '\]', got one of entity 5 open at the end of line 2 of .*txt"
    ):
        read_sentences(tmp_path / "Sentences" / "1000092795.txt")
    assert parse_sentence("a [ lonely ] bracket").words == ("a", "[", "lonely", "]", "bracket")


def test_boxes_are_pixels_from_one_in_the_annotated_size(tmp_path):
    objects = [
        boxed(["1"], (1, 1, 100, 200)),
        boxed(["2", "3"], (11, 21, 50, 60)),
        boxed(["2"], (0, 1, 5, 5)),
        flagged("4", 1, 0),
        flagged("5", 0, 1),
        flagged("6", 1, 1),
    ]
    found = read_boxes(write(tmp_path, [""], objects) / "Annotations" / "1000092795.xml")
    assert (found.width, found.height) == (100, 200)
    assert found.boxes == {
        "1": (Box(0, 0, 1, 1),),
        "2": (Box(0.1, 0.1, 0.5, 0.3), Box(0, 0, 0.05, 0.025)),
        "3": (Box(0.1, 0.1, 0.5, 0.3),),
    }
    assert (found.scene, found.absent) == ({"4", "6"}, {"5", "6"})
    reasons = [found.reason(EntityPhrase(0, 1, name, ("x",))) for name in "1234560"]
    assert reasons == [None, None, None, "scene", "nobndbox", "scene", "notvisual"]
    assert found.reason(EntityPhrase(0, 1, "9", ("notvisual",))) == "notvisual"
    assert found.reason(EntityPhrase(0, 1, "9", ("people",))) == "no annotation"


@pytest.mark.parametrize(
    ("objects", "width", "message"),
    [
        (
            [boxed(["8"], (1, 1, 150, 10))],
            100,
            r"inside the 100 x 200 image, got \(0, 0, 150, 10\) for entity 8 in .*xml",
        ),
        ([boxed(["8"], (20, 1, 10, 10))], 100, "expected a box inside .* for entity 8"),
        ([boxed(["8"], ("x", 1, 10, 10))], 100, "expected a whole number in <xmin>, got 'x' for entity 8 in .*xml"),
        ([], "", "expected a whole number in <size/width>, got '' for the image in .*xml"),
        (["<object>"], 100, "expected XML in .*xml, got mismatched tag.*; the file may be truncated"),
    ],
)
def test_broken_annotations_are_named(tmp_path, objects, width, message):
    write(tmp_path, [""], objects, width=width)
    with pytest.raises(DataError, match=message):
        read_boxes(tmp_path / "Annotations" / "1000092795.xml")


def test_declared_entities_are_not_expanded(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text('<!DOCTYPE a [<!ENTITY x "xxxxxxxx">]><annotation>&x;</annotation>')
    with pytest.raises(DataError, match=r"expected plain XML in .*a.xml, got a document type"):
        read_boxes(path)


DEFAULTS = f'[<!ATTLIST a x CDATA "{"y" * 30_000}">]'  # each of the elements would hold a copy


@pytest.mark.parametrize(
    "document_type", [DEFAULTS, 'SYSTEM "file:///etc/hostname"', 'PUBLIC "x" "http://localhost/x"']
)
def test_document_types_are_rejected(tmp_path, document_type):
    path, size = tmp_path / "a.xml", "<size><width>4</width><height>2</height></size>"
    path.write_text(f"<!DOCTYPE annotation {document_type}><annotation>{size}{'<a/>' * 1000}</annotation>")
    with pytest.raises(DataError, match=r"expected plain XML in .*a.xml, got a document type"):
        read_boxes(path)


def test_annotations_without_bound_are_not_parsed(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text("<a>" * 400_000)
    with pytest.raises(DataError, match=r"expected at most 1048576 bytes in .*a.xml, got more"):
        read_boxes(path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        DataError, match=r"expected the file .*1.txt, got none; Flickr30k Entities publishes annotations.zip"
    ):
        read_sentences(tmp_path / "1.txt")
    with pytest.raises(DataError, match=r"expected the file .*1.xml, got none"):
        read_boxes(tmp_path / "1.xml")
    with pytest.raises(DataError, match="link_phrases: expected the directory"):
        link_phrases(dataset("A dog"), tmp_path / "none")


def test_every_phrase_is_linked_or_counted(tmp_path):
    directory = write(
        tmp_path,
        [
            "[/EN#5/scene A beach] with [/EN#9/people nobody] .",
            "[/EN#1/people A blond girl] 's [/EN#2/clothing short-sleeved T-shirt] , [/EN#0/notvisual it] .",
            "[/EN#3/other !] [/EN#6/other Rain] !",
            "[/EN#1/people Somebody] unrelated to all of these captions .",
        ],
        [boxed(["1"], (1, 1, 50, 100)), boxed(["1", "2"], (51, 1, 100, 100)), flagged("5", 1, 0), flagged("6", 0, 1)],
    )
    captions = ["A blonde girl's short sleeved t shirt, it.", "A beach with nobody.", "Rain!", "Sunny"]
    linked = link_phrases(dataset(*captions), directory)
    assert linked.counts == {
        "linked": 2, "notvisual": 1, "scene": 1, "no annotation": 1, "no words": 1, "nobndbox": 1, "no caption": 1,
    }  # fmt: skip
    first, second, third, last = linked.dataset.captions
    assert [first.words(p) for p in first.phrases] == [
        ("a", "blonde", "girl"),
        ("short", "sleeved", "t", "shirt"),
        ("it",),
    ]
    girl, shirt, it = first.phrases
    assert girl.boxes == (Box(0, 0, 0.5, 0.5), Box(0.5, 0, 1, 0.5))
    assert shirt.boxes == girl.boxes[1:]
    assert (girl.entity, girl.kinds, girl.unlinked) == ("1", ("people",), None)
    assert (it.boxes, it.unlinked) == ((), "notvisual")
    assert [p.unlinked for p in second.phrases] == ["scene", "no annotation"]
    assert [p.unlinked for p in third.phrases] == ["nobndbox"]
    assert last.phrases == ()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1", "cp037", "utf-7"])
@pytest.mark.parametrize("entity", ['<!ENTITY x "xxxxxxxx">', '<!ENTITY x SYSTEM "file:///etc/hostname">'])
def test_entities_are_rejected_in_every_encoding(tmp_path, encoding, entity):
    path = tmp_path / "a.xml"
    text = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [{entity}]><annotation>&x;</annotation>'
    path.write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=r"read_boxes: expected (plain )?XML in .*a\.xml, got"):
        read_boxes(path)


def test_annotations_in_another_encoding_are_read(tmp_path):
    text = "<annotation><size><width>4</width><height>2</height></size></annotation>"
    for encoding in ("utf-16", "latin-1", "utf-8-sig"):
        declaration = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
        (tmp_path / "a.xml").write_bytes((declaration + text).encode(encoding))
        assert read_boxes(tmp_path / "a.xml").width == 4


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a" * 300])
def test_names_of_images_do_not_lead_elsewhere(tmp_path, name):
    for part in ("Sentences", "Annotations"):
        (tmp_path / "entities" / part).mkdir(parents=True)
    data = Dataset("flickr", "val", (ImageRecord(name, tmp_path / "x.jpg"),))
    with pytest.raises(DataError, match="expected a file name without a directory"):
        link_phrases(data, tmp_path / "entities")


def test_images_without_annotation_are_counted(tmp_path):
    for part in ("Sentences", "Annotations"):
        (tmp_path / "entities" / part).mkdir(parents=True)
    data = Dataset("flickr", "val", (ImageRecord("7.jpg", tmp_path / "7.jpg"),))
    linked = link_phrases(data, tmp_path / "entities")
    assert (linked.dataset, linked.missing) == (data, ("7.jpg",))


def test_a_sentence_too_long_to_align_is_rejected(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100_000)
    with pytest.raises(DataError, match="expected lines of at most 2000 characters"):
        read_sentences(tmp_path / "a.txt")
