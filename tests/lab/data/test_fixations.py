"""Where people looked, from every form of file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab.data.fixations import read_fixations
from foveate.lab.data.samples import ImageRecord
from foveate.metrics import fixation_maps
from foveate.watch.cases import Gaze
from foveate.watch.gaze_agreement import GAZE_MEASURES, OTHERS, OWN_MEAN, PEOPLE, evaluate_gaze

GAZE = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "gaze" / "mcs"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("images/clock/a.jpg", "images/b.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (200, 100)).save(path)
    return tmp_path


def points(gaze: Gaze) -> list[list[list[float]]]:
    return [person.round(4).tolist() for person in gaze.people]


def search18(**changes) -> dict[str, object]:
    trial = {"name": "a.jpg", "subject": 2, "task": "clock", "bbox": [20, 10, 40, 20], "X": [100.0, 20.0, 50.0],
             "Y": [50.0, 10.0, 25.0], "T": [200, 180, 210], "correct": 1, "split": "train"}  # fmt: skip
    return {**trial, **changes}


def test_coco_search18(root: Path) -> None:
    trials = [
        search18(),
        search18(subject=3, X=[100, 150], Y=[50, 75], split="valid"),
        search18(subject=4, correct=0),
        search18(subject=5, X=[100.0], Y=[50.0]),
        search18(name="none.jpg"),
        search18(name="b.jpg", task="cup", X=[840.0, 1680.0], Y=[525.0, 525.0], bbox=[0, 0, 840, 1050]),
    ]
    (root / "fixations.json").write_text(json.dumps(trials))
    clock, cup = read_fixations(root)
    assert (clock.task, cup.task) == ("clock", "cup")
    assert points(clock) == [[[0.1, 0.1], [0.25, 0.25]], [[0.75, 0.75]]], "the first is left out, and so are failures"
    assert clock.boxes[0] == pytest.approx((0.1, 0.1, 0.3, 0.3))
    assert points(cup) == [[[1.0, 0.5]]], "in pixels of the screen"
    assert cup.boxes[0] == pytest.approx((0, 0, 0.5, 1.0))
    whole = read_fixations(root, drop_first=False)[0]
    assert points(whole)[0][0] == [0.5, 0.5]
    assert len(whole.people) == 3
    assert points(read_fixations(root, "valid")[0]) == [[[0.75, 0.75]]]
    with pytest.raises(DataError, match="got none of split 'test'"):
        read_fixations(root, "test")


def test_lines_tables_and_matlab_say_the_same(root: Path) -> None:
    io = pytest.importorskip("scipy.io")
    lines = [
        {"image": "a.jpg", "subject": "x", "x": [0.5, 0.25, 0.75], "y": [0.5, 0.1, 0.2]},
        {"image": "a.jpg", "subject": "y", "x": [0.5, 0.3], "y": [0.5, 0.3]},
        {"image": "b.jpg", "subject": "x", "x": [0.5, 0.6], "y": [0.5, 0.7], "found": False},
    ]
    (root / "fixations.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    expected = [[[0.25, 0.1], [0.75, 0.2]], [[0.3, 0.3]]]
    found = read_fixations(root)
    assert [points(one) for one in found] == [expected]
    (root / "fixations.jsonl").unlink()
    rows = ["image,subject,x,y", *(f"a.jpg,{s},{x * 200},{y * 100}" for s, x, y in
            (("x", 0.5, 0.5), ("x", 0.25, 0.1), ("y", 0.5, 0.5), ("x", 0.75, 0.2), ("y", 0.3, 0.3)))]  # fmt: skip
    (root / "fixations.csv").write_text("\n".join(rows))
    assert points(read_fixations(root)[0]) == expected
    (root / "fixations.csv").unlink()
    subjects = [{"fix_x": np.array([100.0, 50, 150]), "fix_y": np.array([50.0, 10, 20])},
                {"fix_x": np.array([100.0, 60]), "fix_y": np.array([50.0, 30])}]  # fmt: skip
    cells = np.empty(1, dtype=object)
    cells[0] = {"img": "a.jpg", "subjects": np.array(subjects, dtype=object)}
    io.savemat(root / "fixations.mat", {"fixations": cells})
    assert points(read_fixations(root)[0]) == expected


def test_maps_of_people(root: Path) -> None:
    for name, side in (("maps/a_1.png", 0), ("maps/a_2.png", 1), ("maps/ann/b.png", 0)):
        pixels = np.zeros((4, 4), np.uint8)
        pixels[:, 2 * side : 2 * side + 2] = 255
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)
    a, b = read_fixations(root)
    assert (a.image.id, len(a.maps), b.image.id, len(b.maps)) == ("a.jpg", 2, "b.jpg", 1)
    assert a.maps[1]()[0].tolist()[0] == 0
    half = torch.zeros(4, 4)
    half[:, :2] = 1
    found = evaluate_gaze("half", "maps", lambda case: half, [a, b])
    assert found.scores["half"][1, GAZE_MEASURES.index("cc")].item() == pytest.approx(1)
    assert found.scores[PEOPLE][0, GAZE_MEASURES.index("cc")].item() == pytest.approx(-1)
    assert set(found.summary()["half"]) == {"cc", "sim", "kl"}


def test_errors(root: Path) -> None:
    with pytest.raises(DataError, match=r"expected the directory .*maps"):
        read_fixations(root)
    (root / "fixations.json").write_text("{")
    with pytest.raises(DataError, match=r"expected JSON in .*fixations\.json"):
        read_fixations(root)
    for trial, message in (
        (search18(name=3), "the name of an image in 'name' in entry 0"),
        (search18(X="far"), "lists of numbers x and y"),
        (search18(X=[1.0]), "as many finite numbers x as y"),
        (search18(X=[9000.0] * 3), "expected fixations within a.jpg of 200 x 100 pixels, got up to x = 9000"),
    ):
        (root / "fixations.json").write_text(json.dumps([trial]))
        with pytest.raises(DataError, match=message):
            read_fixations(root)


def cases(people: int = 3) -> list[Gaze]:
    """Six images whose people look at one place each, another in every image."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(6):
        place = rng.uniform(0.2, 0.8, 2)
        seen = tuple(np.clip(place + rng.normal(0, 0.03, (4, 2)), 0, 1) for _ in range(people))
        found.append(Gaze(ImageRecord(str(number), lambda: np.zeros((8, 8, 3), np.uint8)), "thing", seen))
    return found


def test_the_map_of_the_truth_is_as_good_as_people_and_the_rest_are_not() -> None:
    data = cases()

    def truth(case: Gaze) -> torch.Tensor:
        return fixation_maps(torch.from_numpy(np.concatenate(case.people))[None], 32, 32)[0]

    found = evaluate_gaze("truth", "planted", truth, data)
    summary = found.summary()
    assert found.people == 3
    for measure in ("nss", "auc-judd", "auc-borji", "auc-shuffled", "cc", "sim", "gain"):
        means = {name: row[measure].mean for name, row in summary.items()}
        assert means["truth"] >= means[PEOPLE] > max(means[n] for n in ("uniform", "centre", OWN_MEAN, OTHERS)), measure
    assert summary["truth"]["kl"].mean == pytest.approx(0, abs=1e-6)
    assert summary["uniform"]["nss"].mean == 0
    assert summary["uniform"]["auc-borji"].mean == 0.5
    assert summary[OTHERS]["gain"].mean == 0
    alone = evaluate_gaze("truth", "planted", truth, cases(people=1))
    assert PEOPLE not in {name for name, row in alone.summary().items() if row}
    with pytest.raises(DataError, match="at least two images"):
        evaluate_gaze("truth", "planted", truth, data[:1])


@pytest.mark.skipif(not GAZE.is_dir(), reason="needs the search data")
def test_people_agree_on_photographs(tmp_path: Path) -> None:
    trials = json.loads((GAZE / "mcs.json").read_text())
    (tmp_path / "images").symlink_to(GAZE / "images")
    lines = [
        {"image": one["image"], "task": one["target"], **{key: trial[key] for key in ("subject", "found", "x", "y")}}
        for one in trials[:120]
        for trial in one["trials"]
    ]
    (tmp_path / "fixations.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = read_fixations(tmp_path)
    summary = evaluate_gaze("centre again", "search", lambda case: torch.ones(4, 4), data).summary()
    assert summary[PEOPLE]["nss"].low > summary["centre"]["nss"].high


def test_the_command_compares_a_run_with_people(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = [search18(), search18(name="b.jpg", X=[100.0, 180.0], Y=[50.0, 20.0])]
    (root / "fixations.json").write_text(json.dumps(trials))
    command = ["evaluate-attention", "scenes-vqa", "--data", "fixations", "--root", str(root), "--out", str(root / "o")]
    assert main([*command, "--question", "What colour is the {task}?"]) == 0
    assert "2 cases, 2 images, 1.0 people per case" in capsys.readouterr().out
    first = json.loads((root / "o" / "gaze.json").read_text())["maps of"]
    assert set(first["scenes-vqa"]) == set(GAZE_MEASURES)
    assert "scenes-vqa" in (root / "o" / "gaze.html").read_text()
    assert main([*command, "--question", "Is there a green square?"]) == 0
    assert json.loads((root / "o" / "gaze.json").read_text())["maps of"]["scenes-vqa"] != first["scenes-vqa"]
    assert main([*command, "--split", "nowhere"]) == 1
    assert "got none of split 'nowhere'" in capsys.readouterr().err
