"""Layer normalisation as in the released MCAN."""

from __future__ import annotations

from torch import Tensor, nn


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
