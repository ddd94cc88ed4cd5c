"""SCAN and BFAN written out one image, one sentence and one query at a time, from their equations."""

from __future__ import annotations

import torch


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-8)


def attention(queries: torch.Tensor, keys: torch.Tensor, temperature: float, transform) -> list[torch.Tensor]:
    """Lee et al. 2018, eq. 1-5: one row of weights a query."""
    s = torch.stack([torch.stack([cosine(q, k) for k in keys]) for q in queries])
    positive = torch.where(s > 0, s, 0.1 * s)
    columns = [column / column.norm().clamp(min=1e-8) for column in positive.T]
    normalised = torch.stack(columns, 1)
    return [transform(temperature * row) for row in normalised]


def focal(weights: torch.Tensor, kind: str) -> torch.Tensor:
    """Liu et al. 2019, eq. 6-7; a gain of zero up to rounding counts as one, so that equal weights are all kept."""
    kept, least = [], -(1e-5 if weights.dtype == torch.float32 else 1e-12)
    for x in weights:
        g = [torch.ones_like(y) if kind == "equal" else y.sqrt() for y in weights]
        gain = sum((x - y) * h for y, h in zip(weights, g, strict=True))
        kept.append(bool(gain > least) and bool(x > 0))
    masked = weights * torch.tensor(kept)
    return masked / masked.sum()


def softmax(row: torch.Tensor) -> torch.Tensor:
    return row.exp() / row.exp().sum()


def scan(v, w, *, direction="t2i", temperature=9.0, lse: float | None = 6.0, transform=softmax):
    """The score of one image's locations v with one sentence's words w."""
    queries, keys = (w, v) if direction == "t2i" else (v, w)
    relevance = []
    for q, row in zip(queries, attention(queries, keys, temperature, transform), strict=True):
        a = sum(weight * key for weight, key in zip(row, keys, strict=True))
        relevance.append(cosine(q, a))
    if lse is None:
        return sum(relevance) / len(relevance)
    return torch.log(sum(torch.exp(lse * r) for r in relevance)) / lse


def bfan(v, w, *, kind="prob", temperature=20.0, transform=softmax):
    total = 0.0
    for queries, keys in ((w, v), (v, w)):
        relevance = []
        for q, row in zip(queries, attention(queries, keys, temperature, transform), strict=True):
            focused = focal(row, kind)
            relevance.append(cosine(q, sum(weight * key for weight, key in zip(focused, keys, strict=True))))
        total = total + sum(relevance) / len(relevance)
    return total


def matrix(score, images, image_mask, texts, text_mask) -> torch.Tensor:
    """Every image with every sentence, fragments of length one, padding cut off."""
    images, texts = (x / x.norm(dim=-1, keepdim=True) for x in (images, texts))
    rows = []
    for i in range(len(images)):
        v = images[i] if image_mask is None else images[i][image_mask[i]]
        sentences = [texts[c] if text_mask is None else texts[c][text_mask[c]] for c in range(len(texts))]
        rows.append(torch.stack([score(v, w) for w in sentences]))
    return torch.stack(rows)
