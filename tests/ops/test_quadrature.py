"""The integrals behind the densities, against many nodes on a plain grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from foveate.ops import quadrature
from foveate.ops.quadrature import ball_moments, chord_moments, gauss_legendre, mapped_nodes


def disc_reference(semi, centre, power, bump, count=400):
    """`1, X, Y, X², XY, Y²` by Gauss in the radius and the trapezoid rule in the angle."""
    x, w = np.polynomial.legendre.leggauss(count)
    radius, angle = torch.tensor((x + 1) / 2), torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    X, Y = radius[:, None] * angle.cos(), radius[:, None] * angle.sin()
    weight = (torch.tensor(w / 2) * radius * (1 - radius**2) ** (power - 1))[:, None] * (2 * math.pi / count)
    z2 = (semi[0] * X - centre[0]) ** 2 + (semi[1] * Y - centre[1]) ** 2
    kernel = torch.exp(-z2) / math.pi if math.isinf(bump) else 2 / math.pi * (1 - z2).clamp(min=0)
    weight = weight * kernel * semi[0] * semi[1]
    return torch.stack([(weight * f).sum() for f in (torch.ones_like(X), X, Y, X * X, X * Y, Y * Y)])


CASES = [
    ((1.0, 1.0), (0.0, 0.0)),
    ((2.0, 0.5), (1.0, -0.3)),
    ((6.0, 4.0), (5.0, 2.0)),
    ((6.0, 6.0), (-5.9, 0.4)),
    ((0.05, 0.02), (0.4, 1.2)),
    ((3.0, 0.1), (-2.5, 0.5)),
    ((38.2, 4.57), (35.1, 0.01)),  # the end of a long ellipse that is hardly wider than the bump
    ((25.0, 20.0), (-24.8, 3.0)),  # the end of a wide one, where the nodes run along the other axis
]


@pytest.mark.parametrize(("semi", "centre"), CASES)
def test_chords_on_a_disc(semi, centre):
    expected = disc_reference(semi, centre, 1.0, math.inf)
    found = chord_moments(torch.tensor([semi], dtype=torch.float64), torch.tensor([[centre]], dtype=torch.float64))[
        0, 0
    ]
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-7 * float(expected.abs().max()))


@pytest.mark.parametrize(("semi", "centre"), CASES)
@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.3])
def test_ball_with_a_gaussian_bump(semi, centre, power):
    expected = disc_reference(semi, centre, power, math.inf)
    found = ball_moments(
        torch.tensor([semi], dtype=torch.float64), torch.tensor([[centre]], dtype=torch.float64), power, math.inf
    )[0, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("bump", [math.inf, 1.0])
@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("dim", [1, 2])
def test_parts_change_nothing(dim, power, bump, monkeypatch):
    semi, centre = torch.tensor([[2.0, 0.5], [0.8, 0.3]]).double()[:, :dim], torch.rand(2, 3, dim).double()
    whole = ball_moments(semi, centre, power, bump)
    monkeypatch.setattr(quadrature, "BLOCK", 5)
    monkeypatch.setattr(quadrature, "CHORDS", 256)
    torch.testing.assert_close(ball_moments(semi, centre, power, bump), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_ball_with_a_bounded_bump(power):
    semi, centre = (0.8, 0.3), (0.5, 0.4)
    expected = disc_reference(semi, centre, power, 1.0, count=1500)
    found = ball_moments(
        torch.tensor([semi], dtype=torch.float64), torch.tensor([[centre]], dtype=torch.float64), power, 1.0
    )[0, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4 * float(expected.max()))


@pytest.mark.parametrize("bump", [math.inf, 1.0])
@pytest.mark.parametrize("power", [1.0, 1.4, 6.0])
def test_line(power, bump):
    semi, centre = 1.7, 0.9
    x, w = (torch.tensor(t) for t in np.polynomial.legendre.leggauss(8))
    x, w = (torch.linspace(-1, 1, 2001).double()[:-1, None] + (x + 1) / 2000).ravel(), w.repeat(2000) / 2000
    z2 = (semi * x - centre) ** 2
    kernel = torch.exp(-z2) / math.sqrt(math.pi) if math.isinf(bump) else 0.75 * (1 - z2).clamp(min=0)
    weight = w * (1 - x * x) ** (power - 1) * kernel * semi
    expected = torch.stack([weight.sum(), (weight * x).sum(), (weight * x * x).sum()])
    found = ball_moments(
        torch.tensor([[semi]], dtype=torch.float64), torch.tensor([[[centre]]], dtype=torch.float64), power, bump
    )[0, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_turning_the_frame_changes_nothing():
    """A disc looks the same from every side, also where the chords change direction."""
    angle = torch.linspace(0, 2 * math.pi, 50, dtype=torch.float64)
    for radius, distance in ((1.0, 0.8), (12.0, 11.0), (40.0, 39.5), (40.0, 43.0)):
        centre = distance * torch.stack([angle.cos(), angle.sin()], dim=-1)
        M = chord_moments(torch.full((1, 2), radius).double(), centre[None])[0]
        value = M[:, 0] - M[:, 3] - M[:, 5]
        assert float((value.max() - value.min()) / value.max()) < 1e-5


def test_mapped_nodes_integrate_a_half_circle():
    S, cosine, weight = mapped_nodes(torch.tensor(-1.0).double(), torch.tensor(1.0).double(), 16)
    torch.testing.assert_close(cosine, (1 - S * S).sqrt())
    torch.testing.assert_close((weight * cosine).sum(), torch.tensor(math.pi / 2).double())
    torch.testing.assert_close(weight.sum(), torch.tensor(2.0).double())


def test_gauss_legendre_is_exact_and_kept():
    x, w = gauss_legendre(5, torch.device("cpu"))
    torch.testing.assert_close((w * x**8).sum(), torch.tensor(2 / 9).double())
    assert gauss_legendre(5, torch.device("cpu"))[0] is x
