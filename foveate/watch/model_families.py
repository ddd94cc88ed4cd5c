"""The table of model families: which layers attend to the image, where its tokens stand and what each one shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foveate.errors import ShapeError
from foveate.watch import places
from foveate.watch.layouts import Layout
from foveate.watch.places import Boxes, Setting

Kind = str
Tokens = Callable[[Setting], Tensor]
GENERATE, DUAL, CROSS, JOINT, VISION = "generate", "dual", "cross", "joint", "vision"


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        kind: "generate" (image tokens among the words of a language model), "dual" (an image and a text tower),
            "cross" (words or objects attend to image features), "joint" (words and patches in one sequence), "vision".
        layers: regular expression of the names of the modules whose keys include the image's tokens.
        tokens: positions of the image tokens among their keys, (N,), or (B, N) with -1 at padding.
        boxes: what each of them shows.
        through: regular expression of the modules through which image tokens without a place read the patches (a
            Q-Former); None when the tokens themselves have places.
        adds_image_token: the processor writes the image's tokens into the prompt itself.
        windowed: every window of the image is attended to by itself, as one more example of the batch.
        exact: a call attends to the image only when the image's tokens are all its keys.
    """

    kind: Kind
    layers: str
    tokens: Tokens
    boxes: Boxes
    through: str | None = None
    adds_image_token: bool = False
    windowed: bool = False
    exact: bool = False

    def attends(self, name: str) -> bool:
        """True for a module whose keys include the image's tokens."""
        return re.search(self.layers, name) is not None


def after(prefix: int | str) -> Tokens:
    """Image tokens after `prefix` others: a number, or one and the registers that the configuration states."""

    def positions(setting: Setting) -> Tensor:
        start = prefix if isinstance(prefix, int) else 1 + getattr(setting.vision, prefix)
        H, W = places.patch_shape(setting)
        return torch.arange(start, start + H * W)

    return positions


def after_text(extra: int) -> Tokens:
    """Image tokens after the text and `extra` others."""

    def positions(setting: Setting) -> Tensor:
        start = setting.need("input_ids").shape[1] + extra
        H, W = places.patch_shape(setting)
        return torch.arange(start, start + H * W)

    return positions


def by_id(setting: Setting) -> Tensor:
    """Image tokens wherever the prompt has the image's token id, (B, N) with -1 at padding."""
    config = setting.config
    token = next((getattr(config, n) for n in ("image_token_id", "image_token_index") if hasattr(config, n)), None)
    if token is None:
        raise ShapeError(
            f"layout of {config.model_type}: expected image_token_id in the configuration, got none; pass tokens="
        )
    rows = [(row == token).nonzero()[:, 0] for row in setting.need("input_ids")]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def by_mask(setting: Setting) -> Tensor:
    """Kosmos-2: image tokens where the processor's mask says so."""
    rows = [row.nonzero()[:, 0] for row in setting.need("image_embeds_position_mask")]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def every(boxes: Boxes) -> Tokens:
    """All keys are image tokens, as many as there are boxes."""
    return lambda setting: torch.arange(len(boxes(setting)))


def encoder_tokens(setting: Setting) -> Tensor:
    """The keys that the vision encoder of an encoder-decoder makes, by that encoder's own row."""
    encoder = setting.config.encoder
    return FAMILIES[encoder.model_type].tokens(Setting(encoder, setting.inputs))


def _vision(prefix: int | str, boxes: Boxes = places.patches) -> Family:
    return Family(VISION, r".", after(prefix), boxes)


def _dual(prefix: int) -> Family:
    return Family(DUAL, r"vision_model\.", after(prefix), places.patches)


def _generate(boxes: Boxes, **options: Any) -> Family:
    return Family(GENERATE, r"(language_model|text_model)\.", by_id, boxes, **options)


def _all_of(boxes: Boxes, kind: Kind, layers: str, **options: Any) -> Family:
    return Family(kind, layers, every(boxes), boxes, **options)


_CROSS = r"(crossattention|encoder_attn|cross_attn|visual_attention\.att)"
FAMILIES: dict[str, Family] = {
    "vit": _vision(1),
    "vit_msn": _vision(1),
    "deit": _vision(2),
    "beit": _vision(1),
    "data2vec-vision": _vision(1),
    "yolos": _vision(1),
    "ijepa": _vision(0),
    "dinov2": _vision(1),
    "dinov2_with_registers": _vision("num_register_tokens"),
    "dinov3_vit": _vision("num_register_tokens"),
    "siglip_vision_model": _vision(0),
    "clip_vision_model": _vision(1),
    "sam_vision_model": _vision(0),
    "swin": _all_of(places.windows, VISION, r"blocks\.\d+\.attention", windowed=True),
    "swinv2": _all_of(places.windows, VISION, r"blocks\.\d+\.attention", windowed=True),
    "clip": _dual(1),
    "altclip": _dual(1),
    "chinese_clip": _dual(1),
    "clipseg": _dual(1),
    "owlvit": _dual(1),
    "owlv2": _dual(1),
    "siglip": _dual(0),
    "siglip2": _all_of(places.spatial_shapes, DUAL, r"vision_model\."),
    "aimv2": _dual(0),
    "blip": Family(CROSS, _CROSS, after(1), places.patches),
    "bridgetower": Family(CROSS, r"cross_modal_text_layers\.\d+\.crossattention", after(1), places.patches),
    "vision-encoder-decoder": Family(CROSS, r"decoder\..*(crossattention|encoder_attn)", encoder_tokens,
                                     places.encoder_patches),
    "git": Family(GENERATE, r"^(git\.)?encoder\.layer\.", after(1), places.patches, adds_image_token=True),
    "detr": _all_of(places.backbone_cells, CROSS, r"decoder\.layers\.\d+\.encoder_attn"),
    "conditional_detr": _all_of(places.backbone_cells, CROSS, r"decoder\.layers\.\d+\.encoder_attn"),
    "table-transformer": _all_of(places.backbone_cells, CROSS, r"decoder\.layers\.\d+\.encoder_attn"),
    "vilt": Family(JOINT, r"encoder\.layer\.", after_text(1), places.chosen_patches),
    "lxmert": _all_of(places.given_boxes, JOINT, r"x_layers\.\d+\.visual_attention\.att$", exact=True),
    "flava": Family(JOINT, r"multimodal_model\.", after(2), places.patches),
    "llava": _generate(places.patches),
    "vipllava": _generate(places.patches),
    "llava_next": _generate(places.any_resolution),
    "llava_onevision": _generate(places.any_resolution),
    "paligemma": _generate(places.square),
    "gemma3": _generate(places.square),
    "qwen2_vl": _generate(places.time_height_width),
    "qwen2_5_vl": _generate(places.time_height_width),
    "qwen3_vl": _generate(places.time_height_width),
    "qwen3_vl_moe": _generate(places.time_height_width),
    "idefics3": _generate(places.split_image),
    "smolvlm": _generate(places.split_image),
    "internvl": _generate(places.dynamic_tiles),
    "mistral3": _generate(places.image_sizes),
    "blip-2": _generate(places.patches, through=r"qformer\..*crossattention", adds_image_token=True),
    "instructblip": _generate(places.patches, through=r"qformer\..*crossattention", adds_image_token=True),
    "kosmos-2": Family(GENERATE, r"text_model\.", by_mask, places.patches, through=r"image_to_text_projection\.x_attn"),
}  # fmt: skip


def family_of(model: nn.Module) -> Family | None:
    """The family of a transformers model, None when the table has no row for it."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return FAMILIES.get(kind) if isinstance(kind, str) else None


def need_family(where: str, model: nn.Module) -> Family:
    """The family of a model, or an error that says what to pass instead."""
    family = family_of(model)
    if family is None:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise ShapeError(
            f"{where}: expected a model of a known family, got {kind!r}; pass grid=(rows, columns) of the image's "
            "patches and tokens=their positions among the keys"
        )
    return family


@dataclass
class ImageColumns:
    """The positions of the image tokens among the keys of each call of a model.

    They are computed once while the inputs stay the same, as they do from step to step of generation.

    Attributes:
        model: of a family in `FAMILIES`.
        found: positions and the largest of them, by module and inputs.
    """

    model: nn.Module
    found: dict[tuple[Any, ...], tuple[Tensor, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.family = need_family('watch keep="image"', self.model)

    def __call__(self, name: str, inputs: Mapping[str, Any], key_count: int) -> Tensor | None:
        """The positions, or None when the call does not attend to the image."""
        if not self.family.attends(name):
            return None
        if self.family.windowed:
            return torch.arange(key_count)
        # The inputs are kept alive by the watcher, so that their ids stay theirs.
        key = (name, *map(id, inputs.values()))
        if key not in self.found:
            columns = self.family.tokens(Setting(self.model.config, inputs, name=name))
            self.found[key] = columns, int(columns.max()) if columns.numel() else -1
        columns, most = self.found[key]
        if self.family.exact and columns.shape[-1] != key_count:
            return None
        return columns if 0 <= most < key_count else None


def find_layout(
    model: nn.Module,
    inputs: Mapping[str, Any],
    name: str = "",
    *,
    size: tuple[int, int] | None = None,
    processor: Any = None,
) -> Layout:
    """The layout of the image in the layers of a model that attend to it, for the first example of a batch.

    Args:
        model: a transformers model of a family in `FAMILIES`.
        inputs: its inputs by name, as its processor returned them.
        name: of the attending module, for families in which the layers differ (Swin).
        size: height and width of the image before the processor; needed where it is cropped or cut into tiles.
        processor: that made the inputs.
    """
    family = need_family("find_layout", model)
    setting = Setting(model.config, inputs, size, processor, name)
    if family.through is not None:
        boxes = family.boxes(setting)
        return Layout.of_boxes(torch.arange(1, 1 + len(boxes)), boxes)
    tokens = family.tokens(setting)
    tokens = tokens[0][tokens[0] >= 0] if tokens.ndim == 2 else tokens
    boxes = family.boxes(Setting(model.config, inputs, size, processor, name, len(tokens)))
    return Layout.of_boxes(tokens, boxes)
