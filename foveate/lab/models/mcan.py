"""MCAN, the deep modular co-attention network: self-attention on the question, guided attention on the image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from foveate.attention import Attended, DiscreteAttention, Grid, MultiheadAttention
from foveate.attention.arguments import from_canvas, grid_size, to_canvas
from foveate.checks import check_counts
from foveate.errors import DataError
from foveate.lab.encoders import TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import Answered, AnsweringModel, AnyImageEncoder, Reading
from foveate.lab.models.families import AnsweringSettings
from foveate.lab.models.scores import SCORES
from foveate.ops.reading import masked_mean
from foveate.registry import lookup


class UnbiasedLayerNorm(nn.LayerNorm):
    """`w (x − mean) / (s + ε) + b` with the unbiased deviation s; torch divides by `√(s'² + ε)` with the biased one.

    Reference: the code of Yu et al. 2019.

    >>> import torch
    >>> x = torch.tensor([[1.0, 2.0, 3.0]])
    >>> UnbiasedLayerNorm(3, eps=0.0)(x).tolist()
    [[-1.0, 0.0, 1.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        centred = input - input.mean(-1, keepdim=True)
        return self.weight * centred / (input.std(-1, keepdim=True) + self.eps) + self.bias


def use_unbiased_norms(module: nn.Module) -> None:
    """Replace every `nn.LayerNorm` inside a module by an `UnbiasedLayerNorm` of the same size."""
    for name, child in module.named_children():
        if type(child) is nn.LayerNorm:
            setattr(module, name, UnbiasedLayerNorm(child.normalized_shape, eps=child.eps))
        else:
            use_unbiased_norms(child)


EPS = 1e-6
Norm = Literal["torch", "unbiased"]
PoolScores: TypeAlias = Literal["mlp", "additive", "product", "dot", "scaled-dot", "general"]


@dataclass(frozen=True)
class MCANSettings(AnsweringSettings):
    """MCAN: deep modular co-attention over question and image; the defaults are the paper's MCAN-small.

    Attributes:
        hidden, heads, layers, dropout, norm, scores, counting: as in `MCAN`.
    """

    hidden: int = 512
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1
    norm: Norm = "torch"
    scores: PoolScores = "mlp"
    counting: int | None = None

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module, *, answers: int) -> MCAN:
        text = TextEncoder(vocabulary, word_dim=word_dim, hidden=self.hidden)
        sizes = {"heads": self.heads, "layers": self.layers}
        return MCAN(
            text,
            image,
            attend,
            answers=answers,
            dropout=self.dropout,
            norm=self.norm,
            scores=self.scores,
            counting=self.counting,
            **sizes,
        )


class MCAN(AnsweringModel):
    """Answers questions about images with any attention over the image.

    y = encoder(LSTM(words)), x = decoder(W features, y), both with post-norm; then
    scores = W_a LayerNorm(W_y flat(y) + W_x flat(x)),  flat(x) = attend(MLP(x), x)

    All layers have the size D of the text encoder's states; a feed-forward layer has 4 D units, the fused vector 2 D.
    The image has no positional encoding: the model knows about positions only what the features contain.

    Args:
        text: encoder of the words, D = text.dim.
        image: encoder of the images, with features of any size `image.dim`.
        attend: attention over the image, `attend(scores, values, grid, mask) -> Attended`.
        answers: number of answers, A.
        heads: M, heads of each inner attention.
        layers: layers of the encoder, and of the decoder.
        dropout: probability after each inner attention and feed-forward layer and inside them.
        norm: "torch", or "unbiased" for `UnbiasedLayerNorm`, with which the authors' weights can be used as they are.
        scores: of the locations: "mlp", a small network as in the paper, or a row of `foveate.lab.models.scores.SCORES`
            ("additive", "dot", "scaled-dot", "general", "product"), which compares them with the pooled question.
        counting: bottlenecks of a `ModulatedCounter` beside the attention, whose vector is added to the fused one; it
            needs features on a grid. None for the paper's model, which has none.

    With D = 512, 6 layers, 8 heads, word vectors of 300, features of 2048 and 3 129 answers it has 51.6 million
    parameters besides the word vectors, whatever `attend` is.

    Reference: Yu et al. 2019; Farinhas et al. 2021, §6; Farinhas 2021, §6.1.

    >>> import torch
    >>> from foveate.attention import mechanism
    >>> from foveate.lab.encoders import StoredFeatures
    >>> model = MCAN(TextEncoder(10, word_dim=4, hidden=8), StoredFeatures(6), mechanism("tvmax"), answers=3, heads=2)
    >>> features = ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2))
    >>> tokens, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)
    >>> answered = model(features, tokens, mask)
    >>> answered.scores.shape, answered.image[-1].map().shape
    (torch.Size([2, 3]), torch.Size([2, 2, 2]))
    """

    def __init__(
        self,
        text: TextEncoder,
        image: AnyImageEncoder,
        attend: nn.Module,
        *,
        answers: int,
        heads: int = 8,
        layers: int = 6,
        dropout: float = 0.1,
        norm: Norm = "torch",
        scores: PoolScores = "mlp",
        counting: int | None = None,
    ) -> None:
        super().__init__()
        if counting is not None:
            check_counts("MCAN", counting=counting)
        D = text.dim
        self.text, self.image = text, image
        self.features = nn.Linear(image.dim, D)
        self.encoder = nn.ModuleList(EncoderLayer(D, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(D, heads, dropout) for _ in range(layers))
        self.flat_question = AttentionPooling(D, DiscreteAttention("softmax"), dropout)
        self.flat_image = AttentionPooling(D, attend, dropout, scores)
        self.counter = None if counting is None else ModulatedCounter(D, counting)
        self.norm = nn.LayerNorm(2 * D, eps=EPS)
        self.answers = nn.Linear(2 * D, answers)
        if norm == "unbiased":
            use_unbiased_norms(self)

    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Answered:
        """Answer questions; see `AnsweringModel.forward`."""
        features = self.image(images)
        # Project each image once, then repeat it for its questions.
        seen = replace(features, values=self.features(features.values))
        seen = seen if index is None else seen[index]
        y, inner = self.text(tokens, mask).states, []
        for layer in self.encoder:
            y, attended = layer(y, mask)
            inner.append(attended)
        x, looks = seen.values, []
        for layer in self.decoder:
            x, both = layer(x, y, grid=seen.grid, mask=seen.mask, words=mask)
            looks.append(both)
        words = self.flat_question(y, None, mask)
        u = self.flat_question.out(words.attended.context)
        if self.counter is not None:
            u = u + self.counter(seen.values, words.attended.context, seen.grid, seen.mask)
        look = self.flat_image(x, seen.grid, seen.mask, words.attended.context)
        layers = {
            "question": tuple(inner),
            "image": tuple(both.itself for both in looks),
            "guided": tuple(both.words for both in looks),
        }
        reading = Reading(u, look.scores, x, seen.mask, self.answer, self.flat_image.attend)
        scores = self.answer(u, look.attended.context)
        return Answered(scores, (look.attended,), (words.attended,), reading, layers)

    def answer(self, question: Tensor, context: Tensor) -> Tensor:
        """(B, A) scores of the answers from the summary of the question (B, 2 D) and the context (B, D)."""
        scores: Tensor = self.answers(self.norm(question + self.flat_image.out(context)))
        return scores


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer; each added to its input and normalised."""

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = MultiheadAttention(dim, heads, dropout=dropout)
        self.forward_layer = FeedForward(dim, dropout)
        self.joins = nn.ModuleList(Join(dim, dropout) for _ in range(2))

    def forward(self, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Attended]:
        """The new states of y (B, T, D) and their attention."""
        itself = self.attend(y, y, mask=mask)
        y = self.joins[0](y, itself.context)
        return self.joins[1](y, self.forward_layer(y)), itself


@dataclass(frozen=True)
class DecoderAttention:
    """Attention of one layer of the decoder, over the image and over the words."""

    itself: Attended
    words: Attended


class DecoderLayer(nn.Module):
    """Self-attention of the image, attention to the words, a feed-forward layer; each added and normalised."""

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = MultiheadAttention(dim, heads, dropout=dropout)
        self.attend_words = MultiheadAttention(dim, heads, dropout=dropout)
        self.forward_layer = FeedForward(dim, dropout)
        self.joins = nn.ModuleList(Join(dim, dropout) for _ in range(3))

    def forward(
        self, x: Tensor, y: Tensor, *, grid: Grid | None, mask: Tensor | None, words: Tensor | None
    ) -> tuple[Tensor, DecoderAttention]:
        """The new states of x (B, N, D), given the words y (B, T, D), and where each looked."""
        itself = self.attend(x, x, grid=grid, mask=mask)
        x = self.joins[0](x, itself.context)
        guided = self.attend_words(x, y, mask=words)
        x = self.joins[1](x, guided.context)
        return self.joins[2](x, self.forward_layer(x)), DecoderAttention(itself, guided)


class Join(nn.Module):
    """`LayerNorm(x + dropout(change))`."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(dropout), nn.LayerNorm(dim, eps=EPS)

    def forward(self, x: Tensor, change: Tensor) -> Tensor:
        joined: Tensor = self.norm(x + self.dropout(change))
        return joined


class FeedForward(nn.Sequential):
    """`W₂ dropout(relu(W₁ x))` with 4 D units between."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))


@dataclass(frozen=True)
class Pooled:
    """The scores (B, N) of the locations, and the attention computed from them."""

    scores: Tensor
    attended: Attended


class AttentionPooling(nn.Module):
    """Pools locations into one vector: a small network scores them, attention averages them, `out` maps to 2 D.

    flat(x) = W attend(w₂ᵀ relu(W₁ x), x)

    With a row of `SCORES` the locations are compared with a query instead, the pooled question.
    """

    def __init__(self, dim: int, attend: nn.Module, dropout: float, scores: PoolScores = "mlp") -> None:
        super().__init__()
        self.compares = scores != "mlp"
        self.scores: nn.Module
        if scores == "mlp":
            self.scores = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, 1))
        else:
            self.scores = lookup("scores", scores, SCORES)(dim, dim)
        self.attend = attend
        self.out = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor, grid: Grid | None, mask: Tensor | None, query: Tensor | None = None) -> Pooled:
        """Attend to x (B, N, D), compared with a query (B, D) if scores are; `out` of the context is flat(x)."""
        scores = self._compare(x, query) if self.compares and query is not None else self.scores(x).squeeze(-1)
        return Pooled(scores, self.attend(scores, x, grid=grid, mask=mask))

    def _compare(self, x: Tensor, query: Tensor) -> Tensor:
        part = cast(Any, self.scores)  # every row of SCORES has its two maps
        scores: Tensor = part(part.locations(x), part.state(query)[:, None])
        return scores.squeeze(1)


class ModulatedCounter(nn.Module):
    """Counts by convolutions that the question modulates, without any attention: MoVie.

    In each bottleneck, with the question q, at every cell:
    `u = x + W (x ⊙ V q)`,  `x ← LayerNorm(x + C₃ relu(C₂ relu(C₁ u)))`,  C₂ over 3 x 3 cells, of D / 2 features

    Unlike the weights of an attention, which sum to one, the mean of the last x over the cells grows with the number
    of cells that answer to the question. `out` maps it to 2 D and starts at zero, so that training starts as without
    the counter.

    Args:
        dim: D, features of a location and of the question.
        bottlenecks: how many follow one another.

    Reference: Nguyen, Goswami and Chen 2020, the counting model on grids that Farinhas 2021, §7.2, names. Theirs has
    the bottlenecks of a residual network with batch normalisation, on features of 2048; the normalisation and the
    start at zero are ours.

    >>> import torch
    >>> counter = ModulatedCounter(8, bottlenecks=2)
    >>> counter(torch.randn(3, 6, 8), torch.randn(3, 8), (2, 3)).abs().sum().item()
    0.0
    """

    def __init__(self, dim: int, bottlenecks: int) -> None:
        super().__init__()
        self.bottlenecks = nn.ModuleList(ModulatedBottleneck(dim) for _ in range(bottlenecks))
        self.out = nn.Linear(dim, 2 * dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, question: Tensor, grid: Grid | None, mask: Tensor | None = None) -> Tensor:
        """(B, 2 D) from locations (B, N, D) on a grid and questions (B, D); what is masked has no influence."""
        if grid is None or (not isinstance(grid, Tensor) and len(grid) != 2):
            got = "regions" if grid is None else f"a grid {tuple(grid)}"
            raise DataError(f"ModulatedCounter: expected features on rows and columns, got {got}; set counting=none")
        for bottleneck in self.bottlenecks:
            x = bottleneck(x, question, grid, mask)
        counted: Tensor = self.out(masked_mean(x, mask))
        return counted


class ModulatedBottleneck(nn.Module):
    """One step of `ModulatedCounter`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.question, self.modulated = nn.Linear(dim, dim), nn.Linear(dim, dim)
        inner = max(dim // 2, 1)
        self.narrow, self.widen = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.around = nn.Conv2d(inner, inner, 3, padding=1)
        self.norm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, x: Tensor, question: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """The new states of x (B, N, D)."""
        u = x + self.modulated(x * self.question(question)[:, None])
        inner = self.narrow(u).relu()
        if mask is not None:
            inner = torch.where(mask[..., None], inner, 0)  # as beyond the border
        inner = inner.transpose(1, 2)
        if isinstance(grid, Tensor):
            inner = from_canvas(self.around(to_canvas(inner, grid, grid_size(grid))), grid, x.shape[1])
        else:
            inner = self.around(inner.unflatten(-1, tuple(grid))).flatten(2)
        joined: Tensor = self.norm(x + self.widen(inner.relu().transpose(1, 2)))
        return joined
