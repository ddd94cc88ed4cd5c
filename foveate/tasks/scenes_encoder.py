"""A picture encoder for Scenes that was taught what things are before any question is asked.

The features of the papers come from networks trained on the objects and attributes of other pictures. This does the
same at the size of Scenes: for every cell of the grid, is there a thing, and of what size, texture, colour and shape;
and where is the cell. Taught by `benchmarks/scenes_encoder.py` in two minutes on one core; on the validation
pictures objects are right in 98.8 % of the cells, size in 99.8, texture 98.1, colour 99.7, shape 96.9 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from foveate.data.samples import Dataset, Object
from foveate.encoders import ConvEncoder
from foveate.errors import DataError
from foveate.ops.grid import cell_centres

WEIGHTS = Path(__file__).parent / "scenes_encoder.safetensors"
CHANNELS, BLOCKS, SIDE = (16, 32, 64, 96), 1, 7
KINDS = ("size", "texture", "colour", "shape")
# A cell shows the thing that covers most of it, if that is at least this share.
COVERED = 0.12


def put_weights(encoder: ConvEncoder) -> None:
    """Fill an encoder with what was learnt; DataError when it has another shape."""
    weights = {name: tensor.float() for name, tensor in load_file(WEIGHTS).items()}
    expected = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise DataError(
            f"scenes encoder: expected channels {CHANNELS} and {BLOCKS} residual block, got another encoder; "
            "set them, or start it at random"
        )
    encoder.load_state_dict(weights)


def pretrain(
    train: Dataset, val: Dataset, *, epochs: int = 10, batch_size: int = 32, lr: float = 4e-3, seed: int = 0
) -> ConvEncoder:
    """Teach an encoder the things of pictures, printing how well it knows those of the validation split."""
    torch.manual_seed(seed)
    values = {kind: sorted({_value(o, kind) for things in train.objects.values() for o in things}) for kind in KINDS}
    encoder, total = ConvEncoder(CHANNELS, blocks=BLOCKS), 3 + sum(map(len, values.values()))
    head = nn.Linear(encoder.dim, total)
    (pictures, labels), held = _tensors(train, values), _tensors(val, values)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr, weight_decay=1e-4)
    steps = epochs * (len(pictures) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps, pct_start=0.1)
    for epoch in range(epochs):
        for rows in torch.randperm(len(pictures)).split(batch_size)[: len(pictures) // batch_size]:
            loss, _ = _judge(encoder, head, pictures[rows], labels[rows], values)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        with torch.no_grad():
            _, right = _judge(encoder, head, *held, values)
        print(epoch + 1, {name: round(100 * share, 1) for name, share in right.items()}, flush=True)
    return encoder


def _judge(
    encoder: ConvEncoder, head: nn.Linear, pictures: Tensor, labels: Tensor, values: dict[str, list[str]]
) -> tuple[Tensor, dict[str, float]]:
    """The loss, and the share of cells that are right, by what was asked."""
    scores = head(encoder(encoder.preprocess.normalise(pictures)).values)
    there = labels[..., 0] >= 0
    place = cell_centres(SIDE, SIDE).expand(len(scores), -1, -1) * 2 - 1
    loss = functional.binary_cross_entropy_with_logits(scores[..., 0], there.float())
    loss = loss + functional.mse_loss(scores[..., 1:3], place)
    right = {"object": ((scores[..., 0] > 0) == there).float().mean().item()}
    start = 3
    for number, (kind, names) in enumerate(values.items()):
        own, truth = scores[..., start : start + len(names)][there], labels[..., number][there]
        loss = loss + 0.5 * functional.cross_entropy(own, truth)
        right[kind] = (own.argmax(-1) == truth).float().mean().item()
        start += len(names)
    return loss, right


def _tensors(data: Dataset, values: dict[str, list[str]]) -> tuple[Tensor, Tensor]:
    """Pictures (P, 3, h, w) uint8 and labels (P, cells, kinds), -1 where a cell shows nothing."""
    pictures = np.stack([picture.pixels() for picture in data.pictures])
    labels = np.stack([_labels(data.objects_of(picture.id), values) for picture in data.pictures])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def _labels(things: tuple[Object, ...], values: dict[str, list[str]]) -> np.ndarray:
    labels, most = np.full((SIDE * SIDE, len(KINDS)), -1), np.full(SIDE * SIDE, COVERED)
    for thing, covered in _coverage(things):
        labels[covered > most] = [values[kind].index(_value(thing, kind)) for kind in KINDS]
        most = np.maximum(most, covered)
    return labels


def _coverage(things: tuple[Object, ...]) -> Iterator[tuple[Object, np.ndarray]]:
    """The share of each cell that a thing covers."""
    for thing in things:
        assert thing.mask is not None
        outline = thing.mask()
        size = outline.shape[0] // SIDE
        yield thing, outline.reshape(SIDE, size, SIDE, size).mean((1, 3)).reshape(-1)


def _value(thing: Object, kind: str) -> str:
    return thing.name if kind == "shape" else thing.attributes[kind]
