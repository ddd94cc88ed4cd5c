"""Pretrain the image encoder of the Scenes recipes on objects and save its weights.

    python benchmarks/scenes_encoder.py foveate/lab/encoders/scenes_conv.safetensors

Prints the fraction of correctly classified cells of the validation images after each epoch. Two minutes on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from foveate.lab.data.scenes import make_scenes
from foveate.lab.encoders.scenes_conv import pretrain


def main() -> None:
    torch.set_num_threads(1)
    encoder = pretrain(make_scenes(split="train"), make_scenes(split="val"))
    save_file({name: tensor.half() for name, tensor in encoder.state_dict().items()}, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
