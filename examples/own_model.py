"""foveate inside a model of one's own: masks, mixed grids, autocast, compile, per-head values, state dict, export.

python examples/own_model.py
"""

import torch
from torch import nn

import foveate as fv


class Tagger(nn.Module):
    """A small image tagger: a backbone, one layer of sparse self-attention, pooling with a density per head."""

    def __init__(self, dim: int = 32, heads: int = 4, tags: int = 5) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, dim, 4, stride=4)
        self.attend = fv.MultiheadAttention(dim, heads, transform="entmax", learnable=True)  # one alpha per head
        self.pool = fv.AttentionPool(dim, mechanism="continuous-softmax", heads=heads)
        self.tags = nn.Linear(dim, tags)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.backbone(images)
        tokens = features.flatten(2).transpose(1, 2)
        tokens = tokens + self.attend(tokens, tokens, need_weights=False)[0]
        seen = self.pool(tokens, grid=tuple(features.shape[-2:]))
        return self.tags(seen.context), seen.weights


def main() -> dict[str, float]:
    torch.manual_seed(0)
    report = {}
    model, images, target = Tagger(), torch.randn(8, 3, 28, 28), torch.randint(5, (8,))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(30):  # trains, alpha and all, under autocast
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images)[0].float(), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    report["loss"], report["alpha"] = loss.item(), model.attend.transform.alpha().mean().item()

    # values per head, a mask that broadcasts, images of two grids in one batch
    scores, values = torch.randn(2, 4, 49), torch.randn(2, 4, 49, 8)
    mask = (torch.rand(2, 1, 49) > 0.2).expand(2, 1, 49)
    seen = fv.mechanism("multimodal", max_components=2).eval()(scores, values, grid=[(7, 7), (5, 6)], mask=mask)
    report["maps"] = float(seen.map(14, 14).sum())  # one for each of two images and four heads

    model.eval()
    with torch.no_grad():
        expected = model(images)[0]
        compiled = torch.compile(model)(images)[0]  # inductor
        again = Tagger().eval()
        again.load_state_dict(model.state_dict())
        report["compiled"] = float((compiled - expected).abs().max())
        report["state dict"] = float((again(images)[0] - expected).abs().max())
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},), strict=False)
        report["export"] = float((program.module()(images[:3])[0] - expected[:3]).abs().max())
    return report


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:12} {value:.3g}")
