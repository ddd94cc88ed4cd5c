"""A model that must look at one patch: its map peaks inside that patch, in the pixels of the non-square image."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

pytest.importorskip("transformers", reason="needs the extra hf")

from foveate.watch import FAMILIES, find_layout, look, watch
from foveate.watch.modules import attends
from foveate.watch.prompts import make_inputs, reads_text
from tests.watch.processors import PROCESSORS
from tests.watch.tiny import TINY

HEIGHT, WIDTH = 60, 100
QUICK = ("ViT", "Swin", "CLIP", "BLIP", "DETR", "ViLT", "LLaVA", "LLaVA, padded", "LLaVA-NeXT", "Qwen2-VL", "Idefics3",
         "InternVL", "BLIP-2")  # fmt: skip
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROCESSORS]
PLANTED = {*PROCESSORS, "LXMERT"}  # LXMERT has a test of its own; for docs/models.md
TEXT = "what is this"


class Plant(TorchFunctionMode):
    """Lets one key attract all attention; windows count as one after the other."""

    def __init__(self, key):
        super().__init__()
        self.key = key

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = args[0], args[1]
            # After the patch every query has score 30 for the key and 0 for all others.
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            window, place = divmod(self.key, key.shape[-2])
            planted = torch.zeros_like(key)
            (planted[window] if window else planted)[..., place, 0] = 30 / scale
            towards = torch.zeros_like(query)
            towards[..., 0] = 1
            return func(towards, planted, *args[2:], **kwargs)
        if getattr(func, "__name__", "") == "softmax" and args[0].ndim >= 3:
            return func(self._bump(args[0]), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def _bump(self, scores):
        window, key = divmod(self.key, scores.shape[-1])
        bump = torch.zeros_like(scores)
        (bump[window] if window else bump)[..., key] = 100
        return scores + bump


def attending(model, family):
    """The modules that attend to the image: the ones that make the calls."""
    pattern = family.through or family.layers
    return {name: module for name, module in model.named_modules() if re.search(pattern, name) and attends(module)}


@contextlib.contextmanager
def planted(modules, key):
    def wrap(forward):
        def run(*args, **kwargs):
            with Plant(key):
                return forward(*args, **kwargs)

        return run

    for module in modules.values():
        module.__dict__["forward"] = wrap(module.forward)
    try:
        yield
    finally:
        for module in modules.values():
            del module.__dict__["forward"]


def key_states(model, inputs, name, count):
    """What enters the attending module `name` and has one row per key: (count, D), windows one after the other."""
    found = []

    def note(module, args, kwargs):
        tensors = [x for x in [*args, *kwargs.values()] if isinstance(x, torch.Tensor) and x.is_floating_point()]
        states = [x for x in tensors if x.ndim == 3 or type(module).__name__.startswith("Sam")]  # SAM: (B, H, W, D)
        found.extend(x.detach().flatten(0, -2) for x in states if x.shape[:-1].numel() == count)

    handle = model.get_submodule(name).register_forward_pre_hook(note, with_kwargs=True)
    torch.manual_seed(3)  # ViLT draws the order of its patches
    with torch.no_grad():
        run_once(model, inputs)
    handle.remove()
    return found


def response(painted, blank):
    """How much each key changes with the image: the largest of what enters the module."""
    return torch.stack([(one - other).norm(dim=-1) for one, other in zip(painted, blank, strict=True)]).amax(0)


def run_once(model, inputs):
    try:
        return model(**inputs)
    except (ValueError, TypeError, AttributeError):
        return model.generate(**inputs, max_new_tokens=1, do_sample=False)


def paint(box):
    pixels = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    x0, y0, x1, y1 = box
    pixels[round(y0 * HEIGHT) : round(y1 * HEIGHT), round(x0 * WIDTH) : round(x1 * WIDTH)] = 255
    return pixels


def build(name):
    model = TINY[name.split(",")[0]].build()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    return model, PROCESSORS[name](), FAMILIES[model.config.model_type]


def plant_in_head(model, state, key):
    """The pooling head's keys become similar to the state of one token."""
    head = next(module for module in model.modules() if isinstance(module, nn.MultiheadAttention))
    with torch.no_grad():
        weight, bias = head.in_proj_weight, head.in_proj_bias
        size = head.embed_dim
        weight[:size], bias[:size] = 0, 1
        weight[size : 2 * size] = (state[key] - state.mean(0)).expand(size, size) * 50
        bias[size : 2 * size] = 0


def prepare(name):
    """The model, a painted image, its box, the key that responds to it."""
    model, processor, family = build(name)
    blank = make_inputs(model, processor, paint((0, 0, 0, 0)), TEXT, family)
    names = list(attending(model, family))
    with torch.no_grad(), watch(model) as seen:
        torch.manual_seed(3)
        run_once(model, blank)
    last = next(row for row in reversed(seen.rows) if re.search(family.through or family.layers, row.name))
    order = {}
    if model.config.model_type == "vilt":
        torch.manual_seed(3)
        embeddings = model.embeddings
        order["patch_index"] = embeddings.visual_embed(
            blank["pixel_values"], torch.ones(1, *blank["pixel_values"].shape[-2:], dtype=torch.long), -1
        )[2][0]
    layout = find_layout(model, {**blank, **order}, last.name, size=(HEIGHT, WIDTH), processor=processor)
    # A token away from the middle whose box lies wholly inside the image.
    inside = ((layout.boxes > -1e-9) & (layout.boxes < 1 + 1e-9)).all(-1).nonzero()[:, 0]
    areas = (layout.boxes[:, 2] - layout.boxes[:, 0])[inside]
    fine = inside[areas <= areas.min() * 1.01]
    chosen = int(fine[(2 * len(fine)) // 3])
    image = paint(layout.boxes[chosen].tolist())
    inputs = make_inputs(model, processor, image, TEXT, family)
    count = last.key_count * (len(last.weights) if family.windowed else 1)
    states = key_states(model, inputs, last.name, count)
    key = int(response(states, key_states(model, blank, last.name, count)).argmax())
    if "head" in last.name and any(isinstance(m, nn.MultiheadAttention) for m in model.modules()):
        plant_in_head(model, states[-1], key)
    return model, processor, family, image, layout.boxes[chosen].tolist(), key, names


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of transformers' processors with numpy 2
@pytest.mark.parametrize("name", CASES)
def test_the_peak_lies_in_the_planted_patch(name):
    model, processor, family, image, (x0, y0, x1, y1), key, names = prepare(name)
    modules = {
        n: model.get_submodule(n) for n in names if not isinstance(model.get_submodule(n), nn.MultiheadAttention)
    }
    method = "attention" if family.kind == "dual" else None
    torch.manual_seed(3)
    with planted(modules, key):
        seen = look(
            model, image, TEXT if reads_text(model) else "", processor=processor, method=method, max_new_tokens=1
        )
    for word in seen.words:
        peak = int(word.attention.map(HEIGHT, WIDTH)[0].argmax())
        y, x = divmod(peak, WIDTH)
        assert x0 * WIDTH <= x + 0.5 <= x1 * WIDTH, (x, y, (x0 * WIDTH, x1 * WIDTH))
        assert y0 * HEIGHT <= y + 0.5 <= y1 * HEIGHT, (x, y, (y0 * HEIGHT, y1 * HEIGHT))


def test_regions_of_lxmert_keep_their_boxes():
    """LXMERT reads features of regions, whose boxes are an input: attention to one region peaks in its box."""
    model = TINY["LXMERT"].build()
    boxes = torch.tensor([[[0.0, 0.0, 0.2, 0.3], [0.6, 0.5, 0.9, 0.9], [0.3, 0.1, 0.5, 0.4]]])
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "visual_feats": torch.randn(1, 3, 32), "visual_pos": boxes}
    with planted(attending(model, FAMILIES["lxmert"]), 1), torch.no_grad(), watch(model, keep="image") as seen:
        model(**inputs)
    assert {row.key_count for row in seen} == {3}
    layout = find_layout(model, inputs, seen[-1].name)
    map_ = layout.attended(seen[-1].weights[:, :, 0].mean(1)).map(HEIGHT, WIDTH)[0]
    y, x = divmod(int(map_.argmax()), WIDTH)
    assert 0.6 * WIDTH <= x + 0.5 <= 0.9 * WIDTH
    assert 0.5 * HEIGHT <= y + 0.5 <= 0.9 * HEIGHT


def test_onevision_shrinks_a_large_map():
    """LLaVA-OneVision: the same places on a coarser grid when there are more tiles than allowed."""
    from types import SimpleNamespace

    from foveate.watch.layouts import grid_boxes
    from foveate.watch.places import Setting, any_resolution

    vision = SimpleNamespace(image_size=32, patch_size=8)
    options = {"image_grid_pinpoints": [[64, 64]], "vision_config": vision, "model_type": "llava_onevision"}
    inputs = {"image_sizes": torch.tensor([[64, 64]])}
    many = Setting(SimpleNamespace(**options, vision_aspect_ratio="anyres_max_9"), inputs, tokens=16 + 8 * 9)
    few = Setting(SimpleNamespace(**options, vision_aspect_ratio="anyres_max_2"), inputs, tokens=16 + 5 * 6)
    assert len(any_resolution(many)) == many.tokens
    boxes = any_resolution(few)
    assert len(boxes) == few.tokens
    rows = boxes[16:].reshape(5, 6, 4)
    assert torch.equal(rows[:, :5].reshape(-1, 4), grid_boxes(5, 5))
    assert bool(rows[:, 5].isnan().all())
