"""`fv.look` on tiny models with their processors, its options, and the commands on saved models."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate.apps.cli import main
from foveate.watch import NEUTRAL, describe, load_pretrained
from foveate.watch.prompts import group_words, reads_text
from tests.watch.processors import PROCESSORS, tokenizer
from tests.watch.test_planted import build

IMAGE = (np.random.default_rng(0).random((60, 100, 3)) * 255).astype(np.uint8)
QUICK = ("ViT", "SigLIP", "BLIP", "DETR", "LLaVA", "Idefics3", "BLIP-2")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROCESSORS]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.mark.parametrize("name", CASES)
def test_every_word_has_a_map_of_the_image(name):
    model, processor, _ = build(name)
    text = "what is this" if reads_text(model) else ""
    seen = fv.look(model, IMAGE, text, max_new_tokens=3, processor=processor)
    assert seen.words
    for word in seen.words:
        assert word.attention.map(60, 100).shape == (1, 60, 100)
        assert float(word.attention.map().sum()) == pytest.approx(1, abs=1e-5)
    assert seen.layers.shape[2:] == (len(seen.words), len(seen.layout.tokens))
    assert seen.plot().axes


def llava():
    model, processor, _ = build("LLaVA")
    return model, processor


def test_generated_words_are_those_of_generate():
    model, processor = llava()
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=4, processor=processor)
    from foveate.watch.model_families import FAMILIES
    from foveate.watch.prompts import make_inputs

    inputs = make_inputs(model, processor, IMAGE, "what is this", FAMILIES["llava"])
    made = model.generate(**inputs, max_new_tokens=4, do_sample=False, output_attentions=False)
    new = made[0, inputs["input_ids"].shape[1] :]
    assert seen.text == processor.tokenizer.decode(new, skip_special_tokens=True)
    assert " ".join(word.text for word in seen.words) == seen.text


def test_maps_are_the_weights_of_the_step_that_chose_the_word():
    model, processor = llava()
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=2, processor=processor)
    model.set_attn_implementation("eager")
    from foveate.watch.model_families import FAMILIES
    from foveate.watch.prompts import make_inputs

    inputs = make_inputs(model, processor, IMAGE, "what is this", FAMILIES["llava"])
    made = model.generate(
        **inputs, max_new_tokens=2, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    image = (inputs["input_ids"][0] == 199).nonzero()[:, 0]
    steps = [torch.stack([layer[0, :, -1, image] for layer in attentions]) for attentions in made.attentions]
    new = made.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    for number, (_, positions) in enumerate(group_words(processor.tokenizer, new)):
        expected = torch.stack([steps[position] for position in positions]).mean(0)
        torch.testing.assert_close(seen.layers[:, :, number], expected, atol=1e-6, rtol=0)


def test_options_change_the_map():
    model, processor = llava()
    ask = {"max_new_tokens": 1}
    plain = fv.look(model, IMAGE, "what is this", **ask, processor=processor).words[0].attention.weights
    for options in (
        {"layers": [1]},
        {"heads": 2},
        {"heads": "max"},
        {"heads": "weighted"},
        {"over": "max"},
        {"relative_to": NEUTRAL},
        {"relative_to": "left"},
    ):
        changed = (
            fv.look(model, IMAGE, "what is this", **ask, **options, processor=processor).words[0].attention.weights
        )
        assert not torch.equal(plain, changed), options
    only = fv.look(model, IMAGE, "what is this", **ask, layers=[1], processor=processor)
    assert [name.split(".")[-2] for name in only.names] == ["1"]


def test_sinks_are_removed():
    from foveate.watch.layouts import Layout
    from foveate.watch.look_methods import Found
    from foveate.watch.looking import _against

    layout = Layout.regular(torch.arange(16), 4, 4)
    rows = torch.tensor([[1.0] * 14 + [5.0, 40.0]]) / 59
    neutral = torch.tensor([[1.0] * 15 + [40.0]]) / 55
    empty = torch.zeros(1, 1, 1, 16)
    found, base = (Found("", ["a"], weights, empty, ("l",), layout) for weights in (rows, neutral))
    assert _against(found, base, divide=False, remove=True).rows[0].argmax().item() == 14
    assert _against(found, base, divide=True, remove=False).rows[0].argmax().item() == 14


def test_methods():
    model, processor, _ = build("ViT")
    plain = fv.look(model, IMAGE, processor=processor).words[0].attention.weights
    rolled = fv.look(model, IMAGE, method="rollout", processor=processor).words[0].attention.weights
    assert not torch.equal(plain, rolled)
    model, processor, _ = build("CLIP")
    relevance = fv.look(model, IMAGE, "red circle", processor=processor).words[0].attention.weights
    other = fv.look(model, IMAGE, "green square", processor=processor).words[0].attention.weights
    assert not torch.equal(relevance, other)  # relevance depends on the text
    for method in ("attention", "rollout"):
        seen = [fv.look(model, IMAGE, text, method=method, processor=processor) for text in ("red circle", "blue")]
        assert torch.equal(*(one.words[0].attention.weights for one in seen))  # the image tower alone does not
        assert [(one.text, one.words[0].text) for one in seen] == [("", "")] * 2  # and no text stands above its map
    with pytest.raises(fv.UnknownName, match="rollout"):
        fv.look(model, IMAGE, "a", method="rolout", processor=processor)
    with pytest.raises(ValueError, match="expected a text"):
        fv.look(model, IMAGE, processor=processor)


@pytest.mark.parametrize(("name", "layers"), [("ViT", 2), ("CLIP", 2), ("SigLIP", 3), ("BLIP", 2), ("LLaVA", 2)])
def test_every_layer_has_its_name_and_heads(name, layers):
    model, processor, _ = build(name)
    options = {"layers": range(layers)} if name == "ViT" else {"max_new_tokens": 1}
    seen = fv.look(model, IMAGE, "red circle" if reads_text(model) else "", processor=processor, **options)
    assert seen.layers.shape[:2] == (layers, 4)
    assert len(set(seen.names)) == layers
    assert set(seen.names) <= {name for name, _ in model.named_modules()}
    assert seen.plot_heads().axes


def test_heads_of_relevance():
    model, processor, _ = build("CLIP")

    def weights(heads):
        return fv.look(model, IMAGE, "red circle", processor=processor, heads=heads).words[0].attention.weights

    mean = weights("mean")
    for heads in (0, [1, 2], "max"):
        assert not torch.equal(weights(heads), mean)
    torch.testing.assert_close(weights([0, 1, 2, 3]), mean, atol=1e-6, rtol=0)


def test_an_unknown_family_takes_a_grid_and_tokens():
    model, processor, _ = build("ViT")
    known = fv.look(model, IMAGE, layers=[1], processor=processor).layers
    model.config.model_type = "unheard of"
    with pytest.raises(fv.ShapeError, match=r"got 'unheard of'; pass grid=\(rows, columns\)"):
        fv.look(model, IMAGE, processor=processor)
    with pytest.raises(fv.ShapeError, match="together"):
        fv.look(model, IMAGE, grid=(4, 4), processor=processor)
    seen = fv.look(model, IMAGE, grid=(4, 4), tokens=range(1, 17), layers=[1], processor=processor)
    assert seen.layers.shape == known.shape
    with pytest.raises(fv.ShapeError, match="check tokens="):
        fv.look(model, IMAGE, grid=(4, 4), tokens=range(90, 106), processor=processor)


def test_a_model_through_its_query_tokens():
    model, processor, _ = build("BLIP-2")
    seen = fv.look(model, IMAGE, "what is this", max_new_tokens=2, processor=processor)
    assert seen.layout.grid == (4, 4)
    assert seen.layers.shape == (2, 4, len(seen.words), 16)


def test_fit_describes_the_map():
    weights = torch.full((1, 64), 0.2 / 64)
    weights[0, 9] += 0.5
    weights[0, 54] += 0.3
    found = describe(fv.Attended(torch.zeros(1, 0), weights, grid=(8, 8)).fit("k-mca", components=2))
    assert found.count == 2
    assert math.isclose(sum(one.weight for one in found.ellipses), 1, abs_tol=1e-4)
    x0, y0, x1, y1 = found.ellipses[0].box
    assert x0 < 1.5 / 8 < x1
    assert y0 < 1.5 / 8 < y1
    assert str(found).endswith("background 0 %")
    hazy = describe(fv.Attended(torch.zeros(1, 0), weights, grid=(8, 8)).fit("multimodal"))
    assert hazy.count == 2
    assert hazy.background == pytest.approx(0.2, abs=0.05)
    assert [one.weight for one in hazy.ellipses] == pytest.approx([0.5, 0.3], abs=0.05)
    attended = fv.Attended(torch.zeros(1, 0), weights, grid=(8, 8))
    with pytest.raises(fv.ShapeError, match=r"call attended\.fit"):
        describe(attended)
    with pytest.raises(fv.UnknownName, match="continuous"):
        attended.fit("sparsemax")
    with pytest.raises(fv.ShapeError, match="grid=None"):
        fv.Attended(torch.zeros(1, 0), weights).fit("multimodal")


def test_words_of_subword_tokens():
    words = tokenizer()
    assert group_words(words, [1, 13, 14, 2]) == [("red", [1]), ("circle", [2])]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny LLaVA with its processor, and an image, on disk."""
    from PIL import Image

    root = tmp_path_factory.mktemp("models")
    model, processor = llava()
    model.save_pretrained(root / "llava")
    processor.save_pretrained(root / "llava")
    Image.fromarray(IMAGE).save(root / "image.png")
    return root


def test_load_from_disk(saved):
    model, processor = load_pretrained(str(saved / "llava"))
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    assert not model.training
    seen = fv.look(model, saved / "image.png", "what is this", processor=processor, max_new_tokens=1)
    assert len(seen.words) == 1
    named = fv.look(saved / "llava", saved / "image.png", "what is this", max_new_tokens=1)
    assert named.text == seen.text
    assert torch.equal(named.layers, seen.layers)


def test_a_model_by_a_name_that_foveate_knows(monkeypatch, tmp_path):
    from foveate.watch import loading

    model, processor, _ = build("ViT")
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    monkeypatch.setitem(loading.NAMED, "tiny-vit", lambda: tmp_path)
    seen = fv.look("tiny-vit", IMAGE)
    assert torch.equal(seen.layers, fv.look(model, IMAGE, processor=processor).layers)


@pytest.mark.parametrize(
    ("run", "text", "words"),
    [
        ("scenes-vqa", "what color is the circle", 1),
        ("scenes-matching", "a red circle", 3),
        ("scenes-captioning", "", None),
    ],
)
def test_a_run_of_foveate_by_its_name(run, text, words):
    seen = fv.look(run, IMAGE, text)
    loaded = fv.look(fv.load(run), IMAGE, text)
    assert words is None or len(seen.words) == words
    for one, other in zip(seen.words, loaded.words, strict=True):
        assert one.text == other.text
        assert torch.equal(one.attention.weights, other.attention.weights)
        assert float(one.attention.map().sum()) == pytest.approx(1, abs=1e-5)
    assert seen.layers.shape[:3] == (1, 1, len(seen.words))
    assert seen.plot().axes


def test_a_run_says_what_it_needs():
    with pytest.raises(ValueError, match=r"expected a text for a run with the call 'answer', got ''"):
        fv.look("scenes-vqa", IMAGE)
    with pytest.raises(TypeError, match="expected a network, a run that attends to images, or a name, got int"):
        fv.look(3, IMAGE)


@pytest.mark.parametrize("name", ["ViT", "DETR", "ViT + GPT-2"])
def test_a_text_that_a_model_does_not_read_is_an_error(name):
    model, processor, _ = build(name)
    for options in ({"text": "a dog"}, {"relative_to": NEUTRAL}):
        with pytest.raises(ValueError, match="which reads images alone"):
            fv.look(model, IMAGE, processor=processor, **options)
    assert fv.look(model, IMAGE, processor=processor, max_new_tokens=2).words


def test_errors_say_what_to_pass():
    model, processor, _ = build("ViT")
    with pytest.raises(ValueError, match=r"expected layers among 0 … 1, got \[7\]"):
        fv.look(model, IMAGE, processor=processor, layers=[7])
    with pytest.raises(ValueError, match=r"got \[\]"):
        fv.look(model, IMAGE, processor=processor, layers=[])
    with pytest.raises(TypeError, match=r"expected processor= beside a network, got None; pass its processor, or"):
        fv.look(model, IMAGE)
    with pytest.raises(ValueError, match=r"method 'attention' or 'rollout' or 'relevance' .* of kind 'vision'"):
        fv.look(model, IMAGE, processor=processor, method="gradient")
    with pytest.raises(ValueError, match=r"got one in training mode; call model\.eval\(\)"):
        fv.look(model.train(), IMAGE, processor=processor)


def test_a_vision_model_is_read_in_its_last_layers():
    model, processor, _ = build("ViT")
    last = fv.look(model, IMAGE, processor=processor)
    assert [name.split(".")[-2] for name in last.names] in (["1"], ["1", "attention"]) or len(last.names) == 1
    assert torch.equal(last.layers, fv.look(model, IMAGE, processor=processor, layers=[-1]).layers)


def test_a_model_that_is_not_on_disk(monkeypatch, capsys):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(fv.DataError, match=r"'someone/nothing', got .*; check the name and the connection") as error:
        load_pretrained("someone/nothing")
    assert "\n" not in str(error.value)
    assert main(["look", "someone/nothing", "x.png"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_look_command(saved, tmp_path, capsys):
    arguments = ["look", str(saved / "llava"), str(saved / "image.png"), "what is this", "--max-new-tokens", "2"]
    more = ["--plot", str(tmp_path / "o.png"), "--out", str(tmp_path / "o.json"), "--relative", "--fit", "multimodal"]
    assert main([*arguments, *more, "--layers", "0", "1"]) == 0
    assert "times an even share" in capsys.readouterr().out  # random weights attend to nothing in particular
    assert (tmp_path / "o.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "o.json").read_text())["words"]


def test_evaluate_attention_command(saved, tmp_path, capsys):
    assert main(["evaluate-attention", str(saved / "llava"), "--limit", "4", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "heads chosen by mass on one half" in out
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert set(metrics["summary"]) == {str(saved / "llava"), "uniform", "centre", "random", "mean of train"}
    assert len(metrics["best"]) == 5
    assert (tmp_path / "heads.png").exists()
    assert "Attention of" in (tmp_path / "report.html").read_text()


def test_evaluate_attention_of_our_own_run(capsys):
    assert main(["evaluate-attention", "scenes-vqa", "--limit", "12"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "scenes-vqa" in line)
    assert float(row.split()[2].split("±")[0]) > 0.2  # far more mass inside than the uniform 0.06


def test_evaluate_attention_on_own_images(saved, tmp_path, capsys):
    from PIL import Image

    lines = []
    for number in range(3):
        Image.fromarray(IMAGE).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"image": f"{number}.png", "object": "circle", "box": [10, 10, 40, 30]}))
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    assert main(["evaluate-attention", str(saved / "llava"), "--data", str(tmp_path), "--measure", "auc"]) == 0
    assert "heads chosen by auc" in capsys.readouterr().out


def test_components_without_weight_are_not_printed():
    from foveate.watch.describe import Description, Ellipse

    seen, unseen = (Ellipse(weight, (0.5, 0.5), (0.1, 0.1), 0.0, (0.4, 0.4, 0.6, 0.6)) for weight in (0.3, 0.004))
    assert str(Description((seen, unseen), 0.7)) == "30 % at (0.50, 0.50), box 0.40 0.40 0.60 0.60; background 70 %"
    assert str(Description((unseen,), 0.996)) == "background 100 %"


# As in the repositories of Qwen: the processor repeats <|image_pad|>.
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<|vision_start|>"
    "<|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def save_parts(name, kind, directory):
    """A model with its image processor and its tokenizer, without a processor of both that can be loaded."""
    model, processor, _ = build(name)
    model.save_pretrained(directory)
    for part in (processor.image_processor, processor.tokenizer):
        part.save_pretrained(directory)
    for file in ("preprocessor_config.json", "tokenizer_config.json"):
        content = json.loads((directory / file).read_text()) | ({"processor_class": kind} if kind else {})
        (directory / file).write_text(json.dumps(content))
    return model, processor


@pytest.mark.parametrize(("name", "kind"), [("Qwen2-VL", "Qwen2VLProcessor"), ("ViT + GPT-2", None)])
def test_a_processor_from_its_parts(name, kind, tmp_path):
    """transformers cannot load the first without torchvision, and there is none in repositories of the second."""
    model, processor = save_parts(name, kind, tmp_path)
    if name == "Qwen2-VL":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    text = "what is this" if reads_text(model) else ""
    expected = fv.look(model, IMAGE, text, max_new_tokens=2, processor=processor)
    seen = fv.look(tmp_path, IMAGE, text, max_new_tokens=2)
    assert seen.text == expected.text
    torch.testing.assert_close(seen.layers, expected.layers, atol=1e-6, rtol=0)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="the processor loads with torchvision")
def test_a_processor_that_cannot_be_loaded_says_why(tmp_path):
    save_parts("InternVL", "InternVLProcessor", tmp_path)
    with pytest.raises(fv.DataError, match=r"load_pretrained: expected the processor of .*, got .*orchvision"):
        load_pretrained(str(tmp_path))


def test_the_best_heads_of_an_evaluation(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path))
    model, processor = load_pretrained(str(saved / "llava"))
    with pytest.raises(fv.DataError, match=r"expected an evaluation of .*run foveate evaluate-attention"):
        fv.look(model, IMAGE, "what is this", processor=processor, layers="best", max_new_tokens=1)
    assert main(["evaluate-attention", str(saved / "llava"), "--limit", "4"]) == 0
    assert "kept: foveate look --best" in capsys.readouterr().out
    from foveate.watch.loading import best_heads

    kept = best_heads(model)
    assert len(kept) == 5
    best = fv.look(model, IMAGE, "what is this", processor=processor, layers="best", max_new_tokens=1)
    every = fv.look(model, IMAGE, "what is this", processor=processor, max_new_tokens=1)
    rows = torch.stack([every.layers[every.names.index(name), head, 0] for name, head in kept]).mean(0)
    expected = every.layout.attended(rows[None]).weights
    torch.testing.assert_close(best.words[0].attention.weights, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match='layers="best" with neither heads nor a method'):
        fv.look(model, IMAGE, "what is this", processor=processor, layers="best", heads=1)
    arguments = ["look", str(saved / "llava"), str(saved / "image.png"), "what is this", "--best"]
    assert main([*arguments, "--max-new-tokens", "1"]) == 0
    assert main([*arguments, "--layers", "1"]) == 1


def test_sinks_of_a_vision_model_need_no_prompt():
    from foveate.watch.look_methods import Found
    from foveate.watch.reductions import without_sinks

    model, processor, _ = build("ViT")
    seen = fv.look(model, IMAGE, processor=processor, remove_sinks=True)
    assert float(seen.words[0].attention.weights.sum()) == pytest.approx(1, abs=1e-5)
    incoming = torch.tensor([1.0] * 15 + [30.0])
    rows = torch.tensor([[1.0] * 14 + [4.0, 40.0]])
    assert without_sinks(rows, incoming).argmax().item() == 14
    assert Found.__dataclass_fields__["incoming"].default is None


def test_repr_of_a_look_is_two_lines_without_pixels():
    seen = fv.look(fv.load("scenes-vqa"), np.zeros((96, 96, 3), np.uint8), "what shape is red ?")
    assert len(repr(seen).splitlines()) == 2
    assert len(repr(seen)) < 300
    assert repr(seen.text) in repr(seen)
    assert str(tuple(seen.layers.shape)) in repr(seen)
