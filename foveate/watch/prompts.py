"""Into a model through its processor, an image and a text, and out of it again: the words that its tokens spell."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError
from foveate.io import decode_image
from foveate.watch.model_families import GENERATE, Family


def read_pixels(image: Any) -> np.ndarray:
    """An image as (H, W, 3) uint8 from a path, a PIL image, an array (H, W[, 3 or 4]) or a tensor (3, H, W).

    >>> read_pixels(torch.zeros(3, 2, 4)).shape
    (2, 4, 3)
    """
    if isinstance(image, str | Path):
        return decode_image(Path(image))
    if isinstance(image, Tensor):
        image = image.detach().cpu().movedim(0, -1) if image.ndim == 3 and image.shape[0] in (1, 3) else image.cpu()
        image = image.numpy()
    pixels = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise DataError(
            f"look: expected an image (H, W, 3), got {pixels.shape}; pass a path, a PIL image, an array or a tensor"
        )
    if pixels.dtype != np.uint8:
        pixels = (pixels * 255).clip(0, 255).astype(np.uint8)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return np.ascontiguousarray(np.repeat(pixels, 3, -1) if pixels.shape[-1] == 1 else pixels[..., :3])


def prompt_text(processor: Any, text: str, family: Family) -> str:
    """The text with what the model expects around it: a chat template, or the image's token before it."""
    if family.kind != GENERATE or family.adds_image_token:
        return text
    token = getattr(processor, "image_token", None)
    token = getattr(token, "content", token)
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": text}]
        result: str = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        return result
    start = getattr(processor, "boi_token", token) if "Gemma3" in type(processor).__name__ else token
    return text if start is None or start in text else f"{start}{text}"


def make_inputs(model: nn.Module, processor: Any, pixels: np.ndarray, text: str, family: Family) -> dict[str, Any]:
    """The model's inputs, on its device and in its precision."""
    from PIL import Image

    image = Image.fromarray(pixels)
    if getattr(processor, "tokenizer", None) is None or not text:
        made = getattr(processor, "image_processor", processor)(images=image, return_tensors="pt")
    else:
        made = processor(images=image, text=prompt_text(processor, text, family), return_tensors="pt")
    return fit_inputs(model, dict(made))


def fit_inputs(model: nn.Module, made: dict[str, Any]) -> dict[str, Any]:
    """Inputs that the model takes, on its device and, for pixels, in its precision."""
    weight = next(model.parameters())
    names = inspect.signature(model.forward).parameters
    tensors = {name: torch.as_tensor(value) for name, value in made.items() if name in names and name != "labels"}
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in tensors.items()
    }


def reads_text(model: nn.Module) -> bool:
    """True for a model to which a text makes a difference, by the arguments of its forward pass.

    >>> reads_text(nn.Linear(2, 2))
    False
    """
    return "input_ids" in inspect.signature(model.forward).parameters


def group_words(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words that token ids spell, each with the positions of its tokens; special tokens belong to none.

    A token begins a word when it adds text after a space.
    """
    special = set(getattr(tokenizer, "all_special_ids", ()))
    words: list[tuple[str, list[int]]] = []
    before, kept = "", list[int]()
    for position, token in enumerate(ids):
        if token in special:
            continue
        kept.append(token)
        text = tokenizer.decode(kept, skip_special_tokens=True)
        added = text[len(before) :] if text.startswith(before) else tokenizer.decode([token])
        begins = not words or added[:1].isspace() or before[-1:].isspace()
        if begins or not added:
            words.append((added.strip(), [position]))
        else:
            words[-1] = (words[-1][0] + added.strip(), [*words[-1][1], position])
        before = text
    return [(text, positions) for text, positions in words if text]
