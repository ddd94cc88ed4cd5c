"""The networks of MCAN, SCAN and BFAN with the parameter names of the released code, written from the papers.

Forward passes are literal: one example at a time, no masks (padding is cut off instead), the norm of the released MCAN.
"""

from __future__ import annotations

import math
from argparse import Namespace

import torch
from torch import Tensor, nn


def named(**parts: nn.Module) -> nn.Module:
    """A module whose children have these names."""
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


class Norm(nn.Module):
    """`a (x − mean) / (unbiased deviation + 1e-6) + b`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(dim) + 0.5), nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b_2


def mlp(dim: int, middle: int, out: int) -> nn.Module:
    return named(fc=named(linear=nn.Linear(dim, middle)), linear=nn.Linear(middle, out))


def run_mlp(module: nn.Module, x: Tensor) -> Tensor:
    return module.linear(torch.relu(module.fc.linear(x)))


def attention(dim: int) -> nn.Module:
    return named(**{f"linear_{name}": nn.Linear(dim, dim) for name in ("v", "k", "q", "merge")})


def run_attention(module: nn.Module, x: Tensor, y: Tensor, heads: int) -> Tensor:
    q, k, v = module.linear_q(x), module.linear_k(y), module.linear_v(y)
    size, parts = x.shape[-1] // heads, []
    for m in range(heads):
        own = slice(m * size, (m + 1) * size)
        parts.append(torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(size), -1) @ v[:, own])
    return module.linear_merge(torch.cat(parts, -1))


class ReleasedMCAN(nn.Module):
    """Yu et al. 2019 with the parameter names of openvqa, or of mcan-vqa if `old`."""

    def __init__(self, *, tokens: int, answers: int, dim: int = 16, features: int = 6, old: bool = False) -> None:
        super().__init__()
        self.heads, layers = 4, 2
        self.embedding = nn.Embedding(tokens, 5)
        self.lstm = nn.LSTM(5, dim, batch_first=True)
        projection = nn.Linear(features, dim)
        if old:
            self.img_feat_linear = projection
        else:
            self.adapter = named(frcn_linear=projection)
        self.project = [projection]  # a list, so that it is registered under one name only
        ffn = lambda: named(mlp=mlp(dim, 4 * dim, dim))  # noqa: E731
        norms = lambda count: {f"norm{n + 1}": Norm(dim) for n in range(count)}  # noqa: E731
        self.backbone = named(
            enc_list=nn.ModuleList(named(mhatt=attention(dim), ffn=ffn(), **norms(2)) for _ in range(layers)),
            dec_list=nn.ModuleList(
                named(mhatt1=attention(dim), mhatt2=attention(dim), ffn=ffn(), **norms(3)) for _ in range(layers)
            ),
        )
        self.attflat_img = named(mlp=mlp(dim, dim, 1), linear_merge=nn.Linear(dim, 2 * dim))
        self.attflat_lang = named(mlp=mlp(dim, dim, 1), linear_merge=nn.Linear(dim, 2 * dim))
        self.proj_norm, self.proj = Norm(2 * dim), nn.Linear(2 * dim, answers)

    def forward(self, image: Tensor, question: Tensor) -> Tensor:
        """Scores (A,) of the answers for features (N, D) and token ids (T,)."""
        y, x = self.lstm(self.embedding(question)[None])[0][0], self.project[0](image)
        for layer in self.backbone.enc_list:
            y = layer.norm1(y + run_attention(layer.mhatt, y, y, self.heads))
            y = layer.norm2(y + run_mlp(layer.ffn.mlp, y))
        for layer in self.backbone.dec_list:
            x = layer.norm1(x + run_attention(layer.mhatt1, x, x, self.heads))
            x = layer.norm2(x + run_attention(layer.mhatt2, x, y, self.heads))
            x = layer.norm3(x + run_mlp(layer.ffn.mlp, x))
        return self.proj(self.proj_norm(self._flat(self.attflat_lang, y) + self._flat(self.attflat_img, x)))

    def _flat(self, module: nn.Module, x: Tensor) -> Tensor:
        weights = torch.softmax(run_mlp(module.mlp, x), 0)
        return module.linear_merge((weights * x).sum(0))


class ReleasedMatcher:
    """The encoders that the released SCAN and BFAN share, and their checkpoint."""

    def __init__(self, *, tokens: int, dim: int = 8, features: int = 6, weight_norm: bool = False) -> None:
        fc: nn.Module = nn.Linear(features, dim)
        self.weight = fc.weight.detach().clone()
        if weight_norm:
            size = torch.rand(dim, 1) + 0.5
            self.weight = size * fc.weight.detach() / fc.weight.detach().norm(dim=1, keepdim=True)
            held = nn.Module()
            held.bias, held.weight_v, held.weight_g = fc.bias, fc.weight, nn.Parameter(size)
            fc = held
        self.image, self.bias = named(fc=fc), fc.bias
        self.text = named(embed=nn.Embedding(tokens, 5), rnn=nn.GRU(5, dim, batch_first=True, bidirectional=True))

    def checkpoint(self, **options: object) -> dict[str, object]:
        return {
            "epoch": 3,
            "model": [self.image.state_dict(), self.text.state_dict()],
            "best_rsum": 400.0,
            "opt": Namespace(data_name="f30k_precomp", raw_feature_norm="clipped_l2norm", **options),
            "Eiters": 12,
        }

    def locations(self, features: Tensor) -> Tensor:
        x = features @ self.weight.T + self.bias
        return x / (x.norm(dim=-1, keepdim=True) + 1e-8)

    def words(self, tokens: Tensor) -> Tensor:
        states = self.text.rnn(self.text.embed(tokens)[None])[0][0]
        forth, back = states.chunk(2, -1)
        w = (forth + back) / 2
        return w / (w.norm(dim=-1, keepdim=True) + 1e-8)
