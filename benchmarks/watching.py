"""What watching costs: time and memory of `fv.watch` while a vision-language model generates.

    python benchmarks/watching.py            # about three minutes and 4 GB on one core

A LLaVA of a small configuration reads about 2 000 image tokens and generates 64. Kept memory is compared with eager
attention and `output_attentions=True`, time with the same generation unwatched, by turns in one process.
Expected: kept at most 1/50 in half precision, or in the model's own precision with `heads="mean"`; time at most 1.15 by
default, about 1.15 with --hidden 512 --layers 6.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import torch
from measure import machine, save, show

import foveate as fv

GRID, PATCH, IMAGE, NEW = 45, 14, 199, 64


def build(implementation: str, hidden: int, layers: int) -> Any:
    """A LLaVA with 45 x 45 image tokens."""
    import transformers as T

    vision = T.CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, patch_size=PATCH,
        image_size=GRID * PATCH,
    )  # fmt: skip
    text = T.LlamaConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64, vocab_size=2000, max_position_embeddings=4096,
    )  # fmt: skip
    config = T.LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, vision_feature_layer=-1)
    torch.manual_seed(0)
    return T.LlavaForConditionalGeneration._from_config(config, attn_implementation=implementation).eval()


def inputs() -> dict[str, Any]:
    """An image and a short question."""
    ids = torch.tensor([[IMAGE] * GRID**2 + list(range(300, 312))])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 3, GRID * PATCH, GRID * PATCH),
    }


def generate(model: Any, **options: Any) -> Any:
    """Generate 64 tokens greedily."""
    return model.generate(
        **inputs(), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0, **options
    )


def kept_by_eager(hidden: int, layers: int) -> int:
    """Bytes of the attentions that eager attention returns."""
    made = generate(build("eager", hidden, layers), output_attentions=True, return_dict_in_generate=True)
    return sum(one.numel() * one.element_size() for step in made.attentions for one in step)


def watched(model: Any, dtype: torch.dtype | None, heads: str | None = None) -> Any:
    """Generate under watch: the row of each new token, image columns only."""
    with fv.watch(model, queries=-1, keep="image", heads=heads, dtype=dtype) as seen:
        generate(model)
    return seen


def timed(call: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = process_time()
    call()
    return process_time() - start


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = build("sdpa", chosen.hidden, chosen.layers)
    generate(model)
    plain, under = [], []
    for _ in range(chosen.rounds):
        plain.append(timed(lambda: generate(model)))
        under.append(timed(lambda: watched(model, torch.float16)))
    eager = kept_by_eager(chosen.hidden, chosen.layers)
    half, full = (watched(model, dtype).nbytes for dtype in (torch.float16, None))
    mean = watched(model, None, "mean").nbytes
    ratio = median(one / other for one, other in zip(under, plain, strict=True))
    rows = [
        {"what": "kept by eager output_attentions, MB", "value": eager / 1e6, "ratio": 1.0},
        {"what": "kept by watch in float16, MB", "value": half / 1e6, "ratio": half / eager},
        {"what": "kept by watch in float32, MB", "value": full / 1e6, "ratio": full / eager},
        {"what": "kept by watch, mean of the heads in float32, MB", "value": mean / 1e6, "ratio": mean / eager},
        {"what": "unwatched, s", "value": median(plain), "ratio": 1.0},
        {"what": "watched, s", "value": median(under), "ratio": ratio},
    ]
    show(f"64 tokens after {GRID**2} image tokens, {chosen.layers} layers of {chosen.hidden}", rows)
    save("watching", machine(["torch", "transformers"]), {"rows": rows})


if __name__ == "__main__":
    main()
