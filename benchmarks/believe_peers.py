"""Values of the peers' own code for the faithfulness and gaze metrics, saved for tests/metrics.

    pip download --no-deps --no-binary :all: grad-cam==1.5.7 pysaliency==0.2.22; pip download --no-deps quantus==0.6.0
    (unpack all three into DIRECTORY)
    python benchmarks/believe_peers.py DIRECTORY tests/metrics/peers.npz

Their files are imported without their packages' `__init__`, which would want torchvision. From grad-cam and Quantus the
metric classes themselves run; of pysaliency the functions in metrics.py and numba_utils.py, with the choice of the
negatives as in its saliency_map_models.py. Information gain is its formula, log2 of the density times the cells.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

B, SIDE, CELLS = 4, 32, (24, 32)
SETS = 1000


class Network(nn.Module):
    """A small classifier with fixed weights from numpy, whose generators are the same in every version."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.kernel = torch.from_numpy(rng.standard_normal((6, 3, 5, 5)) / 5)
        self.head = torch.from_numpy(rng.standard_normal((6 * 7 * 7, 5)) / 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 5)."""
        features = torch.tanh(nn.functional.conv2d(images.double(), self.kernel, stride=4)).flatten(1)
        return (features @ self.head).to(images.dtype)


def images_and_maps() -> tuple[Tensor, Tensor, Tensor]:
    """Images (B, 3, SIDE, SIDE), maps (B, SIDE, SIDE) without ties, and the class of each image."""
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.standard_normal((B, 3, SIDE, SIDE)))
    smooth = nn.functional.avg_pool2d(torch.from_numpy(rng.random((B, 1, SIDE, SIDE))), 5, 1, 2)[:, 0]
    return images.float(), smooth, torch.arange(B) % 5


def gaze_sets() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Maps (SETS, H, W), some with ties and some constant; maps of people; fixations (SETS, 12, 2), NaN at padding."""
    rng = np.random.default_rng(2)
    H, W = CELLS
    maps, truth = rng.random((SETS, H, W)), rng.random((SETS, H, W)) ** 3
    maps[::5] = np.floor(maps[::5] * 6) / 6
    maps[::50] = 0.25  # exact in binary: of 0.3 pysaliency finds a deviation of 6e-17 and an NSS of 1
    points = (np.stack([rng.integers(0, W, (SETS, 12)), rng.integers(0, H, (SETS, 12))], -1) + 0.5) / (W, H)
    for row, count in enumerate(rng.integers(1, 13, SETS)):
        points[row, count:] = np.nan
    return maps, truth, points


def bare(name: str, folder: Path) -> None:
    """Make a package importable without running its `__init__`."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def from_grad_cam(folder: Path) -> dict[str, Any]:
    """ROAD of every image, most and least weighted first, without noise."""
    bare("pytorch_grad_cam", folder / "pytorch_grad_cam")
    bare("pytorch_grad_cam.metrics", folder / "pytorch_grad_cam" / "metrics")
    theirs = importlib.import_module("pytorch_grad_cam.metrics.road")
    images, maps, classes = images_and_maps()
    targets = [lambda output, number=int(number): output[number] for number in classes]
    values: dict[str, Any] = {}
    rounds = {
        "most": (theirs.ROADMostRelevantFirst, theirs.RemoveMostRelevantFirst),
        "least": (theirs.ROADLeastRelevantFirst, theirs.RemoveLeastRelevantFirst),
    }
    for name, (metric, remove) in rounds.items():
        for percentile in (20, 50, 80):
            one = metric(percentile)
            one.perturbation = remove(percentile, theirs.NoisyLinearImputer(noise=0))
            change, filled = one(images, maps.numpy(), targets, Network(), return_visualization=True)
            values[f"road {name} {percentile}"] = change
            if percentile == 50:
                values[f"road {name} images"] = filled.numpy()
    return values


def from_quantus(folder: Path) -> dict[str, Any]:
    """The curve of pixel flipping in 16 steps, with zeros and ones; "black" would be the least value of an image."""
    for name in ("quantus", "quantus.metrics", "quantus.metrics.faithfulness"):
        bare(name, folder / name.replace(".", "/"))
    theirs = importlib.import_module("quantus.metrics.faithfulness.pixel_flipping")
    wrapped = importlib.import_module("quantus.helpers.model.pytorch_model").PyTorchModel
    images, maps, classes = images_and_maps()
    values = {}
    for baseline in (0.0, 1.0):
        metric = theirs.PixelFlipping(
            features_in_step=SIDE * SIDE // 16, perturb_baseline=baseline, normalise=False, disable_warnings=True
        )
        one_channel = images.mean(1, keepdim=True).numpy()
        model = wrapped(Grey().eval(), channel_first=True, softmax=False)
        rows = metric.evaluate_batch(model, one_channel, classes.numpy(), maps[:, None].numpy())
        values[f"flipping {baseline:g}"] = np.array(rows)
    return values


class Grey(Network):
    """The same on images of one channel, where a feature is a pixel."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 5)."""
        return super().forward(images.expand(-1, 3, -1, -1))


def load(name: str, path: Path) -> Any:
    """One file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def from_pysaliency(folder: Path) -> dict[str, Any]:
    """Every gaze metric of every set."""
    setattr(np, "trapz", np.trapezoid)  # noqa: B010  (pysaliency 0.2.22 uses the name that numpy 2.4 dropped)
    theirs, roc = (load(name, folder / "pysaliency" / f"{name}.py") for name in ("metrics", "numba_utils"))
    maps, truth, points = gaze_sets()
    H, W = CELLS
    rows = []
    for number, (one, people, marks) in enumerate(zip(maps, truth, points, strict=True)):
        marks = marks[~np.isnan(marks[:, 0])]
        xs, ys = (marks * (W, H)).astype(int).T
        other = points[(number + 1) % SETS]
        ox, oy = (other[~np.isnan(other[:, 0])] * (W, H)).astype(int).T
        fixated = np.zeros((H, W))
        roc.fill_fixation_map(fixated, np.array([ys, xs]).T)
        positives, p = one[ys, xs], theirs.convert_saliency_map_to_density(one)
        rows.append(
            (
                theirs.NSS(one, xs, ys).mean(),
                roc.general_roc_numba(positives, one[fixated == 0], judd=1)[0],
                roc.general_rocs_per_positive_numba(positives, one.flatten()).mean(),
                roc.general_rocs_per_positive_numba(positives, one[oy, ox]).mean(),
                theirs.CC(one, people),
                theirs.SIM(one, people),
                theirs.image_based_kl_divergence(one, people),
                np.log2(np.maximum(p[ys, xs] * H * W, 1e-20)).mean(),
            )
        )
    return {"gaze": np.array(rows)}


def main() -> None:
    """Run all peers and save their values."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    values = {
        **from_pysaliency(folder / "pysaliency-0.2.22"),
        **from_grad_cam(folder / "grad_cam-1.5.7"),
        **from_quantus(folder / "quantus-0.6.0"),
    }
    np.savez_compressed(out, **values)
    print({name: np.shape(value) for name, value in values.items()}, out.stat().st_size)


if __name__ == "__main__":
    main()
