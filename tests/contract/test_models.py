"""The laws of every row of `MODELS`: gradients everywhere, saved and loaded the same, eight samples learnt by heart.

A law is a function of a row, so that a row that is added elsewhere can be held to it too. What differs between the
families of models is in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import MECHANISMS, Attended, mechanism
from foveate.lab.encoders import StoredFeatures
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import ranking_hinge
from foveate.lab.models import (
    MODELS,
    AnsweringSettings,
    CaptioningModelSettings,
    MatchingModelSettings,
    ModelSettings,
)

B, T, D, V, A = 8, 6, 10, 20, 4
GRID = (3, 4)
# Sizes by the names that settings usually have; a row with other names is tested at its default sizes.
SMALL: dict[str, Any] = {
    "hidden": 16,
    "heads": 4,
    "layers": 2,
    "reasoning_steps": 2,
    "dropout": 0.0,
    "image_dropout": 0.0,
}
STEPS, RATE = 80, 1e-2


class Given(NamedTuple):
    """B images with one sentence each, and one answer per pair."""

    images: ImageFeatures
    tokens: Tensor
    mask: Tensor
    answers: Tensor

    def only(self, row: int) -> Given:
        """One of the pairs."""
        part = slice(row, row + 1)
        return Given(self.images[part], self.tokens[part], self.mask[part], self.answers[part])


def given() -> Given:
    """The inputs of every law."""
    torch.manual_seed(1)
    lengths = torch.randint(2, T + 1, (B,))
    images = ImageFeatures(torch.randn(B, GRID[0] * GRID[1], D), grid=GRID)
    mask = torch.arange(T)[None] < lengths[:, None]
    return Given(images, torch.randint(4, V, (B, T)), mask, torch.randint(A, (B,)))


@dataclass(frozen=True)
class Family:
    """What a law needs to know of the models that a task can use.

    Attributes:
        build: the network of a row, with an attention over the image.
        outputs: (B, ...) per pair, from everything that the model computes for it.
        attended: attention over the images.
        loss: of the pairs.
        learnt: True if every pair is answered as it should be.
        allows: True if a row can use a mechanism.
    """

    build: Callable[[Any, nn.Module], nn.Module]
    outputs: Callable[[Any, Given], Tensor]
    attended: Callable[[Any, Given], Attended]
    loss: Callable[[Any, Given], Tensor]
    learnt: Callable[[Any, Given], bool]
    allows: Callable[[type[Any], str], bool] = lambda kind, attend: True


def _answers(model: Any, pairs: Given) -> Tensor:
    scores: Tensor = model(pairs.images, pairs.tokens, pairs.mask).scores
    return scores


ANSWERING = Family(
    build=lambda chosen, attend: chosen.build(V, 8, StoredFeatures(D), attend, answers=A),
    outputs=_answers,
    attended=lambda model, pairs: model(pairs.images, pairs.tokens, pairs.mask).image[-1],
    loss=lambda model, pairs: functional.cross_entropy(_answers(model, pairs), pairs.answers),
    learnt=lambda model, pairs: bool((_answers(model, pairs).argmax(-1) == pairs.answers).all()),
)


def _next_words(pairs: Given) -> tuple[Tensor, Tensor]:
    """(B, T - 1) True where a word has a word after it, and the words after."""
    return pairs.mask[:, 1:], pairs.tokens[:, 1:]


def _read(model: Any, pairs: Given) -> Any:
    mask, _ = _next_words(pairs)
    return model(pairs.images, pairs.tokens[:, :-1], mask)


def _captions(model: Any, pairs: Given) -> Tensor:
    mask, _ = _next_words(pairs)
    scores = torch.zeros(*mask.shape, V)
    scores[mask] = _read(model, pairs).scores
    return scores


def _caption_loss(model: Any, pairs: Given) -> Tensor:
    mask, words = _next_words(pairs)
    return functional.cross_entropy(_read(model, pairs).scores, words[mask])


def _captions_learnt(model: Any, pairs: Given) -> bool:
    mask, words = _next_words(pairs)
    return bool((_read(model, pairs).scores.argmax(-1) == words[mask]).all())


CAPTIONING = Family(
    build=lambda chosen, attend: chosen.build(V, 8, StoredFeatures(D), attend),
    outputs=_captions,
    attended=lambda model, pairs: _read(model, pairs).image,
    loss=_caption_loss,
    learnt=_captions_learnt,
)


def _scores(model: Any, pairs: Given) -> Tensor:
    scores: Tensor = model(pairs.images, pairs.tokens, pairs.mask)
    return scores


def _matching_attended(model: Any, pairs: Given) -> Attended:
    images = model.embed_image(pairs.images)
    if images.attention:
        return images.attention[-1]
    return model.scorer.look(images, model.embed_text(pairs.tokens, pairs.mask))


def _matched(model: Any, pairs: Given) -> bool:
    scores, own = _scores(model, pairs), torch.arange(len(pairs.tokens))
    return bool((scores.argmax(0) == own).all() and (scores.argmax(1) == own).all())


MATCHING = Family(
    build=lambda chosen, attend: chosen.build(V, 8, StoredFeatures(D), attend),
    outputs=lambda model, pairs: _scores(model, pairs).diagonal(),
    attended=_matching_attended,
    loss=lambda model, pairs: ranking_hinge(_scores(model, pairs), torch.arange(len(pairs.tokens)), negatives="all"),
    learnt=_matched,
    allows=lambda kind, attend: not (kind.cross_attention and MECHANISMS[attend].continuous),
)
FAMILIES: dict[type[ModelSettings], Family] = {
    AnsweringSettings: ANSWERING,
    CaptioningModelSettings: CAPTIONING,
    MatchingModelSettings: MATCHING,
}


def family_of(kind: type[ModelSettings]) -> Family:
    """The family of a row."""
    return next(family for base, family in FAMILIES.items() if issubclass(kind, base))


def attends(kind: type[ModelSettings]) -> bool:
    """True if the models of a row have attention over the image; only the family of matchers has one without."""
    return getattr(kind, "attends", True)


def build(kind: type[ModelSettings], attend: str = "softmax") -> nn.Module:
    """The network of a row at small sizes, the same at every call."""
    sizes = {field.name: SMALL[field.name] for field in fields(kind) if field.name in SMALL}
    torch.manual_seed(0)
    return family_of(kind).build(kind(**sizes), mechanism(attend))


def check_gradients(kind: type[ModelSettings], attend: str) -> None:
    """With this attention over the image, every parameter gets a gradient."""
    family, model, pairs = family_of(kind), build(kind, attend), given()
    if attends(kind):
        assert family.attended(model, pairs).map(5, 5).shape[-2:] == (5, 5)
    family.loss(model, pairs).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label
    still = {label for label, p in model.named_parameters() if not p.grad.any() and not _is_shift(label, p)}
    assert not still


def _is_shift(label: str, parameter: Tensor) -> bool:
    """One number added to all scores, which has no gradient because attention does not change with it."""
    return label.endswith("bias") and parameter.numel() == 1


def check_saved_and_loaded(kind: type[ModelSettings], path: Path) -> None:
    """The weights of a model mean the same in another one, whatever attention they were trained with."""
    family, pairs = family_of(kind), given()
    model, other = build(kind).eval(), build(kind, "tvmax").eval()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    save_file(model.state_dict(), path)
    other.load_state_dict(load_file(path))
    attended = build(kind, "tvmax").eval()
    attended.load_state_dict(model.state_dict())
    found = family.outputs(other, pairs)
    torch.testing.assert_close(found, family.outputs(attended, pairs), rtol=0, atol=0)
    assert torch.equal(found, family.outputs(model, pairs)) != attends(kind)  # the attention is another one


def check_learns_by_heart(kind: type[ModelSettings]) -> None:
    """Eight pairs are learnt in a few steps."""
    family, model, pairs = family_of(kind), build(kind), given()
    assert not family.learnt(model, pairs)
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        family.loss(model, pairs).backward()
        optimiser.step()
    assert family.learnt(model.eval(), pairs)


def check_independent_examples(kind: type[ModelSettings]) -> None:
    """An example among others, shorter and longer ones, gives what it gives alone."""
    family, model, pairs = family_of(kind), build(kind).eval(), given()
    whole = family.outputs(model, pairs)
    for row in range(B):
        alone = family.outputs(model, pairs.only(row))
        torch.testing.assert_close(whole[row : row + 1], alone, rtol=1e-4, atol=1e-5)


def test_every_row_belongs_to_one_family() -> None:
    for name, kind in MODELS.items():
        assert sum(issubclass(kind, base) for base in FAMILIES) == 1, name
    for base in FAMILIES:
        assert any(issubclass(kind, base) for kind in MODELS.values()), base


ALLOWED = [
    (name, attend)
    for name, kind in MODELS.items()
    for attend in (MECHANISMS if attends(kind) else ["softmax"])
    if family_of(kind).allows(kind, attend)
]


@pytest.mark.parametrize(("name", "attend"), ALLOWED)
def test_takes_every_attention_and_every_parameter_gets_a_gradient(name: str, attend: str) -> None:
    check_gradients(MODELS[name], attend)


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    check_saved_and_loaded(MODELS[name], tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_learns_eight_samples_by_heart(name: str) -> None:
    check_learns_by_heart(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_examples_do_not_see_each_other(name: str) -> None:
    check_independent_examples(MODELS[name])
