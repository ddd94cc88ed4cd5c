"""Faithfulness of looks against passes written out by hand, on tiny models and on a run that reads one cell."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate.attention import Attended
from foveate.errors import DataError, ShapeError, UnknownName
from foveate.lab.features import ImageFeatures
from foveate.metrics import deletion
from foveate.metrics.faithfulness import randomisation
from foveate.ops.boxes import Box
from foveate.watch import Case
from foveate.watch.faithful import CENTRE, OWN, RANDOM, TRUTH, UNIFORM, Faithfulness, ask, faithfulness, region_map
from foveate.watch.layouts import Layout
from foveate.watch.look_methods import RunCall
from foveate.watch.looking import Look, Word
from foveate.watch.measure import budget, compare_methods, lookers_of
from foveate.watch.prompts import make_inputs
from tests.watch.processors import PROCESSORS
from tests.watch.test_planted import build
from tests.watch.test_relevance import chain, positive_mean, recorded
from tests.watch.tiny import small

IMAGE = (np.random.default_rng(0).random((60, 100, 3)) * 255).astype(np.uint8)
QUIET = {"show": False, "batch_size": 16}
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


class Reader(nn.Module):
    """Features of 4 x 4 cells: the mean brightness of each."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        cells = F.avg_pool2d(images.mean(1, keepdim=True), images.shape[-1] // 4)
        return ImageFeatures(cells.flatten(2).mT * self.scale, grid=(4, 4))


@dataclass
class OneCell:
    """A run whose two words are the log-probabilities exp(brightness - 1) of cells 5 and 10."""

    model: nn.Module

    def read_images(self, images):
        return torch.stack([torch.from_numpy(one.copy()).movedim(-1, 0) for one in images])

    def scores_of(self, images, text, said):
        features = self.model.image(images.float() / 255)
        values = features.values[..., 0]
        if features.mask is not None:
            values = values * features.mask
        return values[:, [5, 10]] - 1


def one_cell():
    model = nn.Module()
    model.image = Reader()
    return OneCell(model)


def looked(run, cells, image=None):
    """A look in which word t attends to cells[t]."""
    pixels = np.zeros((32, 32, 3), np.uint8) if image is None else image
    if image is None:
        pixels[8:16, 8:16] = pixels[16:24, 16:24] = 255
    maps = [F.one_hot(torch.tensor(cell), 16).float()[None] for cell in cells]
    words = tuple(Word(f"w{t}", Attended(torch.zeros(1, 0), one, grid=(4, 4))) for t, one in enumerate(maps))
    layout = Layout.regular(torch.arange(16), 4, 4)
    source = RunCall(run, "", "w0 w1")
    return Look("w0 w1", words, pixels, torch.stack(maps, 2)[None], ("run",), layout, source)


def test_a_map_that_is_used_costs_its_bits_and_one_that_is_not_costs_nothing():
    run = one_cell()
    right = looked(run, (5, 10)).faithfulness(steps=16, fill=torch.zeros(1), **QUIET)
    # One of sixteen cells is 1/16 of the image; a bright cell is worth one nat.
    for way in ("pixels", "tokens"):
        torch.testing.assert_close(right.costs(1 / 16, way)[OWN], torch.full((2,), 1 / math.log(2)).double())
    wrong = looked(run, (0, 3)).faithfulness(steps=16, fill=torch.zeros(1), **QUIET)
    for way in ("pixels", "tokens"):
        assert wrong.costs(1 / 16, way)[OWN].abs().max() == 0
    assert right.unit == "bits"
    assert right.words == ("w0", "w1")
    assert "removing" not in right.sentence()
    assert right.sentence().startswith("Removing the 20 % that it looks at most costs 1.4 bits, a random 20 % ")


def test_every_way_of_taking_away_and_every_kind_of_map_has_a_curve():
    run = one_cell()
    ways = ("pixels", "tokens", "kept", "mean", "road")
    extra = {"mine": torch.eye(4)[None]}
    found = looked(run, (5, 10)).faithfulness(
        ways=ways, truth=[(0.25, 0.25, 0.5, 0.5)], maps=extra, steps=4, draws=2, **QUIET
    )
    assert tuple(found.curves) == ways
    for way in ways:
        assert set(found.curves[way]) == {OWN, TRUTH, UNIFORM, CENTRE, RANDOM, "mine"}
        assert all(curve.scores.shape == (2, 5) for curve in found.curves[way].values())
    assert set(found.at_region) == set(ways) - {"kept"}
    # Word 0 reads the region, word 1 does not: exactly one cell goes.
    torch.testing.assert_close(found.at_region["tokens"][TRUTH], torch.tensor([1 / math.log(2), 0]).double())
    assert set(found.region_above("tokens")) == {OWN, UNIFORM, CENTRE, RANDOM, "mine"}
    # Keeping everything costs nothing, keeping nothing costs all that there is.
    kept = found.curves["kept"][OWN].scores
    torch.testing.assert_close(kept[:, -1], found.curves["pixels"][OWN].scores[:, 0])
    assert (found.drops("kept")[OWN] <= found.drops("kept")[RANDOM]).all()
    assert len(str(found).splitlines()) == 9
    assert found.plot("road").axes[0].get_legend() is not None
    assert found.to_json()["summary"][OWN]["tokens, 20%"][0] > 0


def test_curves_are_those_of_a_loop_over_images():
    """A classifier by its processor, cell by cell, with blurred holes."""
    import transformers

    torch.manual_seed(0)
    config = small("ViTConfig", num_labels=5)
    model = transformers.ViTForImageClassification(config).eval()
    processor = PROCESSORS["ViT"]()
    seen = fv.look(model, IMAGE, processor=processor)
    found = seen.faithfulness(ways=("pixels",), steps=4, **QUIET)
    clear = torch.from_numpy(IMAGE).movedim(-1, 0)[None].float() / 255
    from foveate.metrics.faithfulness import blurred

    soft, weights = blurred(clear), seen.words[0].attention.map()[0]
    logits = model(**make_inputs(model, processor, IMAGE, "", seen.source.family)).logits[0]
    best = int(logits.argmax())
    order = weights.flatten().argsort(descending=True)
    H, W = weights.shape
    for place, count in enumerate((0, 4, 8, 12, 16)):
        count = 0 if place == 0 else 1 + int((H * W - 1) * place / 4)
        gone = torch.zeros(H * W).index_fill(0, order[:count], 1).reshape(1, 1, H, W)
        cells = F.interpolate(gone, IMAGE.shape[:2], mode="nearest-exact")
        changed = ((clear * (1 - cells) + soft * cells) * 255).round().byte()[0].movedim(0, -1).numpy()
        row = model(**make_inputs(model, processor, changed, "", seen.source.family)).logits[0]
        expected = row.double().log_softmax(-1)[best].item() / math.log(2)
        assert found.curves["pixels"][OWN].scores[0, place].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["LLaVA", "BLIP-2", "Qwen2-VL", "BLIP captioner"])
def test_words_are_scored_as_generation_scored_them(name):
    model, processor, _ = build(name)
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=3, processor=processor)
    found = seen.faithfulness(steps=1, draws=1, **QUIET)
    made = model.generate(
        **seen.source.inputs, max_new_tokens=3, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    tokens = [
        (row[0].double().log_softmax(-1)[token] / math.log(2)).item()
        for row, token in zip(made.logits, seen.source.said.new, strict=True)
    ]
    words = ask(seen.source).words
    expected = [sum(tokens[place + len(tokens) + 1] for place in places) for _, places in words]
    assert found.curves["pixels"][OWN].scores[:, 0].tolist() == pytest.approx(expected, abs=2e-4)
    assert found.unit == "bits"


def test_masking_all_tokens_is_the_intervention():
    model, processor, _ = build("CLIP")
    seen = fv.look(model, IMAGE, "what is this", processor=processor)
    found = seen.faithfulness(ways=("tokens",), steps=2, **QUIET)
    inputs = seen.source.inputs
    with torch.no_grad(), fv.watch.intervene(model, keys=seen.layout.tokens, layers=seen.source.family.attends):
        none = model(**inputs).logits_per_image[0, 0]
    half = seen.layout.tokens[seen.layout.at_tokens(_top(seen, 1 + (math.prod(seen.layout.grid) - 1) // 2)) > 0.5]
    with torch.no_grad(), fv.watch.intervene(model, keys=half, layers=seen.source.family.attends):
        some = model(**inputs).logits_per_image[0, 0]
    rows = found.curves["tokens"][OWN].scores[0]
    assert rows.tolist() == pytest.approx([model(**inputs).logits_per_image.item(), some.item(), none.item()], abs=1e-4)
    assert found.unit == "points"


def _top(seen, count):
    weights = seen.words[0].attention.map()[0]
    chosen = weights.flatten().argsort(descending=True)[:count]
    return torch.zeros(weights.numel(), dtype=torch.float64).index_fill(0, chosen, 1).reshape(weights.shape)


@pytest.mark.parametrize(
    "name", ["ViT", "Swin", "DETR", "ViLT", *[pytest.param(n, marks=pytest.mark.slow) for n in ("SigLIP", "PaliGemma")]]
)
def test_other_kinds_of_models(name):
    model, processor, _ = build(name)
    from foveate.watch.prompts import reads_text

    seen = fv.look(model, IMAGE, "what is this" if reads_text(model) else "", max_new_tokens=2, processor=processor)
    found = seen.faithfulness(steps=2, draws=1, **QUIET)
    assert len(found.words) == len(seen.words)
    assert ("tokens" in found.curves) == (name != "Swin")  # whose windows have keys of their own


def test_what_the_model_cannot_see_goes_last():
    model, processor, _ = build("CLIP")  # the middle 60 of 100 columns are seen
    seen = fv.look(model, IMAGE, "what is this", processor=processor)
    found = seen.faithfulness(ways=("pixels",), steps=4, **QUIET)
    rows = {kind: curve.scores[0] for kind, curve in found.curves["pixels"].items()}
    visible = float((seen.layout.spread(torch.ones(len(seen.layout.tokens))) > 0).float().mean())
    assert visible < 0.75
    # With three quarters gone, all that was seen is gone, whatever the order.
    assert all(abs(row[3] - row[4]) < 0.1 * abs(row[0] - row[4]) + 1e-4 for row in rows.values())


def test_every_image_is_seen_once_and_the_budget_holds():
    run = one_cell()
    found = looked(run, (5, 10)).faithfulness(steps=5, ways=("pixels",), truth=[(0.0, 0.0, 0.5, 0.5)], **QUIET)
    assert run.model.image.seen == found.passes <= budget(1, ("pixels",), 5)
    run = one_cell()
    found = looked(run, (5, 10)).faithfulness(steps=5, ways=("tokens",), batch_size=8, show=False)
    assert run.model.image.seen < found.passes  # the image is encoded once per batch


def test_deletion_with_twenty_steps_takes_at_most_25_passes():
    import transformers

    passes = []
    config = small("ViTConfig", num_hidden_layers=12, image_size=224, patch_size=16)
    model = transformers.ViTForImageClassification(config).eval()
    model.register_forward_hook(lambda *_: passes.append(1))
    deletion(lambda x: model(x).logits[:, 0], torch.rand(1, 3, 224, 224), torch.rand(1, 14, 14), steps=20)
    assert len(passes) == 21


def test_a_budget_is_said_before_the_work(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    found = looked(one_cell(), (5, 10)).faithfulness(steps=2, ways=("pixels",), batch_size=4)
    first = capsys.readouterr().err.splitlines()[0]
    assert f"of {found.passes} images" in first


def test_several_images_are_joined_with_intervals_over_images():
    run = one_cell()
    parts = [looked(run, (5, 10)).faithfulness(steps=5, fill=torch.zeros(1), **QUIET) for _ in range(4)]
    joined = Faithfulness.join(parts, ["a", "a", "b", "c"])
    assert joined.groups == ("a",) * 4 + ("b",) * 2 + ("c",) * 2
    assert joined.passes == sum(part.passes for part in parts)
    assert joined.above()[RANDOM].low > 0
    assert joined.verdict() == "the model uses what the map shows"
    assert joined.of([0, 7]).groups == ("a", "c")
    assert joined.of([1]).words == ("w1",)
    worse = Faithfulness.join([looked(run, (0, 3)).faithfulness(steps=16, **QUIET) for _ in range(3)])
    assert worse.verdict(1 / 16) in ("one score alone says little", "the map is worse than a random one")
    with pytest.raises(DataError, match="expected at least one part"):
        Faithfulness.join([])
    with pytest.raises(ShapeError, match="of one unit"):
        Faithfulness.join([parts[0], replace(parts[0], unit="points")])


def test_errors_say_what_to_pass():
    seen = looked(one_cell(), (5, 10))
    with pytest.raises(UnknownName, match="way"):
        seen.faithfulness(ways=("pixel",))
    with pytest.raises(ShapeError, match="one map or one per word in 'mine'"):
        seen.faithfulness(maps={"mine": torch.ones(3, 4, 4)}, show=False)
    with pytest.raises(TypeError, match="made by hand"):
        faithfulness(replace(seen, source=None))
    with pytest.raises(DataError, match="expected a true region"):
        seen.faithfulness(steps=2, **QUIET).region_above("pixels")
    with pytest.raises(UnknownName, match="kept"):
        seen.faithfulness(steps=2, **QUIET).costs(way="kept")
    assert region_map(torch.eye(2), 4, 4).shape == (4, 4)


def test_relevance_of_a_look_is_the_rules_by_hand(monkeypatch):
    """Of a model with cross-attention they are tested on LXMERT."""
    model, processor, _ = build("LLaVA")
    model.set_attn_implementation("eager")
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=3, processor=processor, method="relevance")
    asked = ask(seen.source)
    with torch.enable_grad(), recorded(monkeypatch) as weights:
        logits = model(**asked.inputs()).logits[0]
    T = len(seen.source.said.new)
    for number, (_, rows) in enumerate(asked.words):
        score = 0
        for row in rows:
            own = logits[row]
            chosen = seen.source.said.new[row + T + 1]
            score = score + own[chosen] - torch.cat([own[:chosen], own[chosen + 1 :]]).max()
        found = torch.autograd.grad(score, weights, retain_graph=True, allow_unused=True)
        pairs = [(w, g) for w, g in zip(weights, found, strict=True) if g is not None]
        size = pairs[-1][0].shape[-1]
        table = chain([positive_mean(*pair) for pair in pairs if pair[0].shape[-1] == size])
        expected = table[[row % size for row in rows]].mean(0)[seen.layout.tokens]
        cells = seen.layout.attended(expected.detach()[None]).map()
        torch.testing.assert_close(seen.words[number].attention.map(), cells, atol=1e-5, rtol=1e-3)
    assert all(word.attention.map().sum() > 0.99 for word in seen.words)


def test_gradients_by_the_pixels_are_those_of_a_word():
    model, processor, _ = build("LLaVA")
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=1, processor=processor, method="gradient-input")
    asked = ask(seen.source)
    inputs = asked.inputs()
    pixels = inputs["pixel_values"].requires_grad_()
    with torch.enable_grad():
        row = model(**inputs).logits[0, -2]
        new = seen.source.said.new[0]
        score = row[new] - torch.cat([row[:new], row[new + 1 :]]).max()
    product = (torch.autograd.grad(score, pixels)[0] * pixels)[0].sum(0).clamp(min=0).detach()
    expected = F.avg_pool2d(product[None], 8).flatten()
    shown = seen.layout.spread((expected / expected.sum())[None])[0]
    torch.testing.assert_close(seen.words[0].attention.map()[0], shown / shown.sum(), atol=1e-5, rtol=1e-3)


def test_relevance_says_where_it_cannot_be_used():
    model, processor, _ = build("Swin")
    with pytest.raises(ShapeError, match="without windows"):
        fv.look(model, IMAGE, processor=processor, method="relevance")


def test_methods_are_ranked_by_truth_and_by_faithfulness():
    """A run that reads one cell: of three methods, the better the map, the higher the cost."""
    run = one_cell()
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[8:16, 8:16] = pixels[16:24, 16:24] = 255
    box = (Box(0.25, 0.25, 0.5, 0.5), Box(0.5, 0.5, 0.75, 0.75))

    @dataclass
    class Shown:
        id: str

        def pixels(self):
            return pixels

    cases = [Case(Shown(name), "thing", box) for name in "abc"]
    lookers = {
        "right": lambda image, case: looked(run, (5, 10), image),
        "half": lambda image, case: looked(run, (5, 3), image),
        "wrong": lambda image, case: looked(run, (0, 3), image),
        "broken": lambda image, case: (_ for _ in ()).throw(ValueError("cannot")),
    }
    found = compare_methods(lookers, cases, fits=(), steps=16, fill=torch.zeros(1), batch_size=16)
    assert found.names == ("right", "half", "wrong")
    assert found.failed == {"broken": "cannot"}
    assert found.agreement()["tokens, all"] == pytest.approx(1)
    assert found.agreement("pointing")["pixels, all"] == pytest.approx(1)
    rows = {row["method"]: row for row in found.rows(1 / 16)}
    assert rows["right"]["mass"].mean == pytest.approx(1, abs=0.03)  # on a grid of 14 x 14
    assert rows["wrong"]["mass"].mean == pytest.approx(0, abs=0.03)
    costs = [rows[name]["tokens, 6%"].mean for name in ("right", "half", "wrong")]
    assert costs == pytest.approx([1 / math.log(2), 0.5 / math.log(2), 0])
    assert {TRUTH, UNIFORM, CENTRE, RANDOM} < set(rows)
    assert rows[TRUTH]["mass"] == ""


def test_methods_of_a_network_and_of_a_run():
    model, processor, _ = build("CLIP")
    assert next(iter(lookers_of(model, processor))) == "default"
    assert {"gradient", "relevance", "integrated", "last layer"} < set(lookers_of(model, processor))
    assert set(lookers_of(one_cell())) == {"attention", "relevance", "gradient-input", "integrated"}


def test_a_network_reads_the_phrase_and_not_its_place_in_the_caption():
    model, processor, _ = build("CLIP")

    class Shown:
        id = "a"

        def pixels(self):
            return np.random.default_rng(0).integers(0, 255, (32, 48, 3), np.uint8)

    case = Case(Shown(), "red circle", (Box(0.0, 0.0, 0.5, 0.5),), caption="next to it a red circle", words=(4, 6))
    first = {"default": lookers_of(model, processor)["default"]}
    found = compare_methods(first, [case], fits=(), ways=("pixels",), steps=2, draws=1)
    assert found.groups == ("a",)


def test_all_layers_can_be_drawn_anew_at_once():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))
    images = torch.rand(4, 1, 8, 8)
    calls = []

    def explain(x):
        calls.append(1)
        return network(x)[:, 0].detach()

    once = randomisation(explain, images, network, cascading=False)
    assert len(calls) == 2
    several = randomisation(explain, images, network)
    assert once.layers == ("all",)
    torch.testing.assert_close(once.similarity[-1], several.similarity[-1])
