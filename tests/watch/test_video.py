"""Several images and video: reading frames, and a model that must look at one patch of one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate.errors import DataError, ShapeError
from foveate.watch import FAMILIES
from foveate.watch.prompts import reads_text
from foveate.watch.video import VIDEO, Frames, join_inputs, read_frames, spread_evenly, video_inputs
from foveate.watch.watching import watch
from tests.watch.processors import pil, tokenizer
from tests.watch.test_planted import HEIGHT, TEXT, WIDTH, attending, build, key_states, planted, response

FRAMES = 4
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@dataclass
class Parts:
    """An image processor with a tokenizer."""

    image_processor: Any
    tokenizer: Any


def clip():
    return pil("CLIP", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def tiny_video(name):
    import transformers as T

    torch.manual_seed(0)
    square = {"image_size": 32, "patch_size": 8, **SMALL}
    if name == "VideoMAE":
        made = T.VideoMAEModel(T.VideoMAEConfig(**square, num_frames=FRAMES, tubelet_size=2))
    elif name == "TimeSformer":
        made = T.TimesformerModel(T.TimesformerConfig(**square, num_frames=FRAMES))
    elif name == "V-JEPA 2":
        settings = {"patch_size": 8, "crop_size": 32, "frames_per_clip": FRAMES, "tubelet_size": 2, "hidden_size": 48,
                    "num_hidden_layers": 2, "num_attention_heads": 2, "pred_hidden_size": 48,
                    "pred_num_hidden_layers": 1, "pred_num_attention_heads": 2}  # fmt: skip
        made = T.VJEPA2Model(T.VJEPA2Config(**settings))
    else:
        vision = {**square, "num_frames": FRAMES, "mit_hidden_size": 32, "mit_intermediate_size": 64,
                  "mit_num_hidden_layers": 1, "mit_num_attention_heads": 4}  # fmt: skip
        text = {**SMALL, "vocab_size": 200, "eos_token_id": 2}
        made = T.XCLIPModel(T.XCLIPConfig(text_config=text, vision_config=vision, projection_dim=32, prompt_layers=1))
    return made.eval(), Parts(clip(), tokenizer())


MIXED = (
    "Qwen2-VL",
    "Qwen2.5-VL",
    "Qwen3-VL",
    "InternVL",
    "Idefics3",
    "SmolVLM",
    "LLaVA",
    "LLaVA-NeXT",
    "Pixtral (Mistral 3)",
)
TOWERS = ("VideoMAE", "TimeSformer", "V-JEPA 2", "X-CLIP")
QUICK = ("Qwen2-VL", "Idefics3", "VideoMAE", "X-CLIP")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*MIXED, *TOWERS)]


def video(box=(0, 0, 0, 0), when=(0, 0)):
    """Grey frames; from one frame to another a box is white."""
    made = np.full((FRAMES, HEIGHT, WIDTH, 3), 90, np.uint8)
    x0, y0, x1, y1 = box
    rows, columns = slice(round(y0 * HEIGHT), round(y1 * HEIGHT)), slice(round(x0 * WIDTH), round(x1 * WIDTH))
    made[when[0] : when[1], rows, columns] = 255
    return made


def inputs_of(model, processor, frames):
    several = read_frames(frames)
    assert several is not None
    row = VIDEO.get(model.config.model_type)
    text = TEXT if reads_text(model) else ""
    if row is None:
        return join_inputs(model, processor, several, text, FAMILIES[model.config.model_type])
    return video_inputs(model, row, processor, several, text)


@pytest.mark.parametrize("name", CASES)
def test_the_peak_lies_in_the_planted_patch_of_the_planted_frame(name):
    model, processor = build(name)[:2] if name in MIXED else tiny_video(name)
    row = VIDEO.get(model.config.model_type)
    family = FAMILIES[model.config.model_type] if row is None else row.family
    blank, layout = inputs_of(model, processor, video())
    inside = ((layout.boxes > -1e-9) & (layout.boxes < 1 + 1e-9)).all(-1).nonzero()[:, 0]
    areas = (layout.boxes[:, 2] - layout.boxes[:, 0])[inside]
    fine = inside[areas <= areas.min() * 1.01]
    chosen = int(fine[(3 * len(fine)) // 4 - 2])
    (x0, y0, x1, y1), (t0, t1) = layout.boxes[chosen].tolist(), layout.times[chosen].int().tolist()
    assert 0 < t0 < t1 <= FRAMES
    painted, _ = inputs_of(model, processor, video((x0, y0, x1, y1), (t0, t1)))
    with torch.no_grad(), watch(model, family.attends) as seen:
        model(**blank)
    last = seen[-1]
    count = last.key_count * len(last.weights)
    states = key_states(model, painted, last.name, count)
    key = int(response(states, key_states(model, blank, last.name, count)).argmax())
    with planted(attending(model, family), key):
        frames, text = video((x0, y0, x1, y1), (t0, t1)), TEXT if reads_text(model) else ""
        found = fv.look(model, frames, text, processor=processor, method="attention", max_new_tokens=1)
    for word in found.words:
        assert word.attention.grid == (FRAMES, *found.layout.grid)
        assert float(word.attention.weights.sum()) == pytest.approx(1, abs=1e-5)
        maps = word.attention.weights.reshape(word.attention.grid)
        peak = maps == maps.max()
        assert peak.nonzero()[:, 0].unique().tolist() == list(range(t0, t1))
        for t in range(t0, t1):
            y, x = divmod(int(word.frames[t].map(HEIGHT, WIDTH)[0].argmax()), WIDTH)
            assert x0 * WIDTH <= x + 0.5 <= x1 * WIDTH
            assert y0 * HEIGHT <= y + 0.5 <= y1 * HEIGHT


def test_every_family_of_the_table_is_planted():
    assert len(VIDEO) == len(TOWERS)
    assert {tiny_video(name)[0].config.model_type for name in TOWERS} == set(VIDEO)


def test_relevance_of_frames_depends_on_the_text():
    model, processor = tiny_video("X-CLIP")
    frames = (np.random.default_rng(0).random((FRAMES, HEIGHT, WIDTH, 3)) * 255).astype(np.uint8)
    one, other = (fv.look(model, frames, text, processor=processor) for text in ("red circle", "green square"))
    assert not torch.equal(one.words[0].attention.weights, other.words[0].attention.weights)
    assert one.words[0].text == "red circle"
    assert max(one.words[0].shares) - min(one.words[0].shares) > 1e-4  # frames differ in what they add to the score
    assert one.plot().axes


def test_a_model_of_images_looks_at_every_frame_by_itself(tmp_path):
    model, processor, _ = build("DINOv2")
    images = [(np.random.default_rng(n).random((60, 100 - 20 * n, 3)) * 255).astype(np.uint8) for n in range(3)]
    found = fv.look(model, images, processor=processor)
    assert found.words[0].shares == pytest.approx([1 / 3] * 3, abs=1e-5)
    for n, image in enumerate(images):
        alone = fv.look(model, image, processor=processor).words[0].attention
        apart = found.words[0].frames[n].map(30, 50) - alone.map(30, 50)  # on a common grid, so that edges blur
        assert float(apart.abs().sum()) < 0.1
    assert [axes.get_title() for axes in found.plot().axes[:3]] == [f"image {n}" for n in range(3)]
    assert found.plot_heads(frame=2).axes
    page = found.animate(tmp_path / "page.html")
    assert page.read_text().count("data:image/png") == 3


def test_several_images_of_different_sizes_are_joined():
    model, processor, _ = build("Idefics3")
    images = [(np.random.default_rng(n).random((60, 100 - 40 * n, 3)) * 255).astype(np.uint8) for n in range(2)]
    found = fv.look(model, images, TEXT, processor=processor, max_new_tokens=2)
    several = Frames(tuple(images), ("a", "b"), is_video=False)
    inputs, layout = join_inputs(model, processor, several, TEXT, FAMILIES["idefics3"])
    assert int((inputs["input_ids"] == 199).sum()) == len(layout.tokens)
    assert inputs["input_ids"][0, layout.tokens].unique().tolist() == [199]
    assert found.words[0].attention.grid[0] == 2
    # The text stands once, after the last image, as the model's own processor writes it.
    alone = processor(images=Image.fromarray(images[0]), text=f"<image>{TEXT}", return_tensors="pt")["input_ids"][0]
    assert inputs["input_ids"][0, -3:].tolist() == alone[-3:].tolist()
    own = processor(
        images=[[Image.fromarray(one) for one in images]], text=f"<image><image>{TEXT}", return_tensors="pt"
    )
    assert inputs["input_ids"].tolist() == own["input_ids"].tolist()
    torch.testing.assert_close(inputs["pixel_values"], own["pixel_values"])


def save_frames(directory, sizes):
    directory.mkdir(exist_ok=True)
    for n, (w, h) in enumerate(sizes):
        Image.new("RGB", (w, h), (20 * n, 0, 0)).save(directory / f"frame{n}.png")
    return directory


def test_frames_are_read_in_the_order_of_their_numbers(tmp_path):
    found = read_frames(save_frames(tmp_path / "frames", [(8, 6)] * 12))
    assert found is not None
    assert [int(one[0, 0, 0]) // 20 for one in found.pixels] == list(range(12))
    some = read_frames(tmp_path / "frames", 3)
    assert some is not None
    assert some.names == ("frame2.png", "frame6.png", "frame10.png")
    images = [Image.fromarray(one) for one in found.pixels]
    images[0].save(tmp_path / "moving.gif", save_all=True, append_images=images[1:], duration=50)
    moving = read_frames(tmp_path / "moving.gif")
    assert moving is not None
    assert moving.is_video
    assert len(moving.pixels) == 12
    assert read_frames(tmp_path / "frames" / "frame0.png") is None
    assert spread_evenly(3, 3) == [0, 1, 2]


def test_frames_that_cannot_be_used_are_errors(tmp_path, monkeypatch):
    mixed = save_frames(tmp_path / "mixed", [(8, 6), (8, 6), (9, 6)])
    with pytest.raises(ShapeError, match=r"of one size, 8 x 6 as frame0\.png, got 9 x 6 in frame2\.png"):
        read_frames(mixed)
    (mixed / "frame1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"frame1\.png"):
        read_frames(mixed)
    whole = [Image.fromarray((np.random.default_rng(n).random((40, 40, 3)) * 255).astype(np.uint8)) for n in range(3)]
    whole[0].save(tmp_path / "cut.gif", save_all=True, append_images=whole[1:])
    data = (tmp_path / "cut.gif").read_bytes()
    (tmp_path / "cut.gif").write_bytes(data[: 5 * len(data) // 6])
    with pytest.raises(DataError, match=r"expected a readable frame 2 in .*cut\.gif"):
        read_frames(tmp_path / "cut.gif")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected at least one frame, got none"):
        read_frames(tmp_path / "empty")
    monkeypatch.setattr("foveate.watch.video.read_pixels", lambda image: pytest.fail("decoded before the count"))
    with pytest.raises(ValueError, match="at most 64 frames, got 10000, none of which was read; pass frames=16"):
        read_frames([mixed / "frame0.png"] * 10_000)
    with pytest.raises(ValueError, match="got frames=0"):
        read_frames(mixed, 0)


def test_models_say_what_they_take():
    model, processor = tiny_video("VideoMAE")
    with pytest.raises(ValueError, match="expected a video for VideoMAEModel, got one image"):
        fv.look(model, video()[0], processor=processor)
    with pytest.raises(ShapeError, match="expected at least 4 frames for VideoMAEModel, got 2"):
        fv.look(model, video()[:2], processor=processor)
    longer = np.concatenate([video()] * 3)
    assert len(fv.look(model, longer, processor=processor).frames.pixels) == FRAMES
    detr, processor, _ = build("DETR")
    with pytest.raises(ValueError, match="expected one image for DetrModel, got 4; pass them one by one"):
        fv.look(detr, video(), processor=processor)
    vit, processor, _ = build("ViT")
    with pytest.raises(ValueError, match="which reads images alone"):
        fv.look(vit, video(), "a dog", processor=processor)
