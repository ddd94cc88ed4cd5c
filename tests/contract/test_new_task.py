"""What CONTRIBUTING says about adding a task, done in a temporary package: one directory and one row.

The task counts the objects of a scene. Its package has the files of the tasks of foveate.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from foveate.apps.cli import compare as demo_module
from foveate.apps.cli import main
from foveate.apps.report import ReportRun, write_report
from foveate.lab import hub
from foveate.lab.data.scenes import make_scenes
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import Adam, Recipe, Training, from_config, to_config, train_recipe
from foveate.lab.train.records import History

NAME = "counting"
RUN = "runs/first"
FILES = {
    "__init__": '"""Counting the objects of an image."""\n',
    "settings": '''"""Everything about counting that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from foveate.attention import MECHANISMS
from foveate.registry import lookup
from foveate.lab.tasks.images import Conv, Images


@dataclass(frozen=True)
class CountingSettings:
    """Settings of counting.

    Attributes:
        images: how images become features.
        mechanism: attention over the image.
        most: the largest number.
        limit: use only the first images of every split; None uses all.
    """

    images: Images = field(default_factory=lambda: Conv((8, 8), blocks=0, size=28))
    mechanism: str = "softmax"
    most: int = 12
    limit: int | None = None

    def __post_init__(self) -> None:
        lookup("mechanism", self.mechanism, MECHANISMS)
''',
    "data": '''"""Images with the number of their objects, as examples and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.lab.data.samples import Dataset
from foveate.lab.tasks.images import ImageReader, ImageSource


@dataclass(frozen=True)
class CountBatch:
    """B images (B, 3, h, w) and the numbers (B,) of their objects."""

    images: Tensor
    numbers: Tensor


class CountExamples:
    """The images of a split."""

    def __init__(self, data: Dataset, source: ImageSource, most: int) -> None:
        self.data, self.images, self.most = data, ImageReader(source), most

    def __len__(self) -> int:
        return len(self.data.images)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = self.data.images[number]
        return self.images(image), min(self.most, len(self.data.objects_of(image.id)))

    def fingerprint(self) -> str:
        return self.images.fingerprint(self.data)


def collate(examples: list[tuple[Tensor, int]]) -> CountBatch:
    images, numbers = zip(*examples, strict=True)
    return CountBatch(torch.stack(images), torch.tensor(numbers))
''',
    "predictor": '''"""A trained model that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foveate.attention import Attended
from foveate.lab.tasks.images import ImageLike, to_pixels
from foveate.lab.tasks.task import Predictor


@dataclass(frozen=True)
class Count:
    """The number of objects, and where the model looked."""

    number: int
    attention: Attended


@dataclass(frozen=True)
class CountPredictor(Predictor[Any, Any]):
    """Counts objects: `fv.load(run).count(image)`."""

    def count(self, image: ImageLike) -> Count:
        preprocess = self.model.image.preprocess
        pixels = preprocess.pixels(to_pixels(image))[None]
        with torch.no_grad():
            scores, attended = self.model(preprocess.normalise(pixels))
        return Count(int(scores.argmax()), attended)
''',
    "report": '''"""What reports and the demo show of counting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foveate.lab.tasks.presentation import Demo, DrawnExample, Presentation, fraction


def draw_counts(predictors: Mapping[str, Any], examples: Any, count: int) -> Iterator[DrawnExample]:
    """Draw the same images for all predictors."""
    from foveate.plot import compare

    for image in examples.data.images[:count]:
        found = {name: predictor.count(image.pixels()) for name, predictor in predictors.items()}
        maps = {f"{name}: {one.number}": one.attention for name, one in found.items()}
        yield DrawnExample(f"Image {image.id}", "", "; ".join(maps), compare(image.pixels(), maps))


PRESENTATION = Presentation(
    headlines={"accuracy": "right numbers"},
    measures={"accuracy": fraction("images whose number is right", "higher")},
    title="What they count",
    about="The first images of the split.",
    draw=draw_counts,
    commands=(("count the objects of your own image", "python count.py RUN image.jpg"),),
)
DEMO = Demo("counting-pool-scenes", "runs/first", ("softmax", "sparsemax"), ("softmax", "sparsemax"))
''',
    "task": '''"""Counting: images to numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import Attended, mechanism
from foveate.lab.data import DATASETS
from foveate.lab.tasks.presentation import Demo, Presentation
from foveate.lab.tasks.task import Loss, Metrics, Task

from counting.data import CountBatch, CountExamples, collate
from counting.predictor import CountPredictor
from counting.report import DEMO, PRESENTATION
from counting.settings import CountingSettings


class Pool(nn.Module):
    """One look at the image; the number follows from what was seen."""

    def __init__(self, image: nn.Module, attend: nn.Module, most: int) -> None:
        super().__init__()
        self.image, self.attend = image, attend
        self.scores, self.numbers = nn.Linear(image.dim, 1), nn.Linear(image.dim, most + 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Attended]:
        seen = self.image(images)
        look = self.attend(self.scores(seen.values).squeeze(-1), seen.values, grid=seen.grid, mask=seen.mask)
        return self.numbers(look.context), look


class CountMetrics(Metrics[Tensor, CountBatch]):
    """The fraction of images whose number is right."""

    def __init__(self) -> None:
        self.right = self.total = 0

    def update(self, prediction: Tensor, batch: CountBatch) -> None:
        self.right += int((prediction == batch.numbers).sum())
        self.total += len(prediction)

    def state(self) -> dict[str, Any]:
        return {"right": self.right, "total": self.total}

    def merge(self, state: Mapping[str, Any]) -> None:
        self.right, self.total = self.right + state["right"], self.total + state["total"]

    def compute(self) -> dict[str, float]:
        return {"accuracy": self.right / self.total}


@dataclass(frozen=True)
class Counting(Task[CountingSettings, Pool, Any, CountBatch, Tensor]):
    """How many objects an image shows."""

    Settings: ClassVar[type] = CountingSettings
    objective: ClassVar[str] = "accuracy"
    presentation: ClassVar[Presentation] = PRESENTATION
    demo: ClassVar[Demo | None] = DEMO

    settings: CountingSettings

    @classmethod
    def from_data(cls, settings: CountingSettings, root: Path | None) -> Counting:
        return cls(settings)

    @classmethod
    def from_vocabulary(cls, settings: CountingSettings, vocabulary: Mapping[str, Any]) -> Counting:
        return cls(settings)

    def vocabulary(self) -> dict[str, Any]:
        return {}

    def build_model(self) -> Pool:
        chosen = self.settings
        return Pool(chosen.images.build_encoder(None), mechanism(chosen.mechanism), chosen.most)

    def examples(self, split: str, root: Path | None) -> CountExamples:
        chosen = self.settings
        data = DATASETS["scenes"].read(root, split, count=chosen.limit, need_images=True)
        return CountExamples(data, chosen.images.source(root, split, None), chosen.most)

    def collate(self, examples: Sequence[Any]) -> CountBatch:
        return collate(list(examples))

    def run(self, model: Pool, batch: CountBatch) -> Tensor:
        return model(model.image.preprocess.normalise(batch.images))[0]

    def loss(self, model: Pool, batch: CountBatch, step: int) -> Loss:
        total = functional.cross_entropy(self.run(model, batch), batch.numbers, reduction="sum")
        return Loss(total, len(batch.numbers))

    def predict(self, model: Pool, batch: CountBatch) -> Tensor:
        return self.run(model, batch).argmax(-1)

    def metrics(self) -> CountMetrics:
        return CountMetrics()

    def predictor(self, model: Pool) -> CountPredictor:
        return CountPredictor(self, model)
''',
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the package of the task."""
    place = tmp_path_factory.mktemp("package")
    (place / NAME).mkdir()
    for name, text in FILES.items():
        (place / NAME / f"{name}.py").write_text(text)
    return place


@pytest.fixture(autouse=True)
def counting(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The modules of the task, with its row in the table for one test."""
    monkeypatch.syspath_prepend(package)
    for name in [module for module in sys.modules if module.partition(".")[0] == NAME]:
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module(f"{NAME}.task")
    monkeypatch.setitem(TASKS, NAME, module.Counting)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.fixture
def recipe(counting: ModuleType) -> Recipe:
    settings = counting.CountingSettings(limit=12)
    return Recipe(f"{NAME}-pool-scenes", NAME, settings, Training(Adam(1e-2), epochs=2, batch_size=4))


@pytest.fixture
def run(recipe: Recipe) -> str:
    train_recipe(recipe, Path(RUN), progress=False)
    return RUN


def test_its_recipe_goes_through_json(recipe: Recipe) -> None:
    assert from_config(json.loads(json.dumps(to_config(recipe)))) == recipe


def test_it_is_trained_and_loaded(run: str, counting: ModuleType) -> None:
    assert 0 <= History.load(Path(run), "accuracy").best.metrics["accuracy"] <= 1
    loaded = hub.load(run)
    assert type(loaded.task) is counting.Counting
    found = loaded.count(make_scenes(split="val", count=1).images[0].pixels())
    assert 0 <= found.number <= 12
    assert found.attention.map(5, 5).shape == (1, 5, 5)


def test_a_training_that_is_interrupted_goes_on(recipe: Recipe, run: str) -> None:
    before = Path(run, "metrics.json").read_text()
    train_recipe(recipe, Path(run), resume=True, progress=False)
    assert Path(run, "metrics.json").read_text() == before


def test_it_is_evaluated(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", run, "mechanism=tvmax", "--split", "test", "--out", "test.json"]) == 0
    assert f"{run} mechanism=tvmax on test" in capsys.readouterr().out
    assert set(json.loads(Path("test.json").read_text())["metrics"]) == {"accuracy"}
    assert main(["predict", run, "--out", "rows.json"]) == 1
    assert "expected a run whose task has a result file" in capsys.readouterr().err


def test_it_is_reported(run: str) -> None:
    path = write_report(Path("report"), "Counting", [ReportRun("softmax", (run,))], examples=2)
    page = path.read_text(encoding="utf-8")
    assert "images whose number is right" in page
    assert "<h2>What they count</h2>" in page
    assert page.count('class="sheet charts"') == 1
    assert page.count("<img") == 4 + 2  # a panel per curve, two images
    assert "count the objects of your own image" in page


def test_its_demo_runs(run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo_module, "QUICK_IMAGES", 8)
    monkeypatch.setattr(demo_module, "QUICK_STEPS", 2)
    assert main(["demo", "--task", NAME, "--quick", "--examples", "1", "--out", "demo"]) == 0
    out = capsys.readouterr().out
    assert f"{NAME} on Scenes, val, 2 steps from {run}" in out
    assert "right numbers" in out
    page = Path("demo/report.html").read_text(encoding="utf-8")
    assert page.count('class="sheet charts"') == 1
    assert page.count("<img") == 4 + 1  # a panel per curve, one image
    assert {path.name for path in Path("demo").iterdir()} == {"quick-softmax", "quick-sparsemax", "report.html"}


def test_its_demo_trains_from_scratch(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "QUICK_IMAGES", 8)
    monkeypatch.setattr(demo_module, "QUICK_STEPS", 2)
    monkeypatch.setitem(RECIPES, recipe.name, lambda: recipe)
    scratch = ["demo", "--task", NAME, "--quick", "--from-scratch", "--mechanisms", "tvmax", "--examples", "0"]
    assert main([*scratch, "--out", "demo"]) == 0
    assert Path("demo/scratch-first/model.safetensors").exists()
    capsys.readouterr()
    assert main(["compare", NAME, "--mechanisms", "softmax,tvmax", "--seeds", "1", "--scratch", "", "--out", "c"]) == 0
    assert "right numbers" in capsys.readouterr().out


def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks"]) == 0
    out = capsys.readouterr().out
    assert NAME in out
    assert "How many objects an image shows." in out
