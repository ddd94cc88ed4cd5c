"""Laws that every density keeps."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from foveate.ops import DENSITIES
from foveate.ops.basis import GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d
from tests.densities import FAMILIES, case, whole_box

SINGLE = [name for name in FAMILIES if "mixture" not in name]
CLASSES = {"gaussian": Gaussian, "paraboloid": TruncatedParaboloid, "beta-gaussian": BetaGaussian}
BASES = {"gaussian": GaussianBasis, "paraboloid": TruncatedParaboloidBasis}
every_density = pytest.mark.parametrize("name", FAMILIES)
single_density = pytest.mark.parametrize("name", SINGLE)
every_class = pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
both_dimensions = pytest.mark.parametrize("dim", [1, 2])


def made(name, dim):
    return FAMILIES[name](*case(dim))


def bases(dim):
    yield GaussianBasis.grid(9, dim=dim, variance=0.02)
    yield TruncatedParaboloidBasis.grid(9, dim=dim, variance=0.06)


@every_density
@both_dimensions
def test_integrates_to_one_with_its_mean_and_covariance(name, dim):
    density = made(name, dim)
    points, weight = whole_box(dim)
    p = density.pdf(points)
    assert (p >= 0).all()
    mass = p * weight
    torch.testing.assert_close(
        mass.sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-3 if dim == 2 else 1e-7
    )
    torch.testing.assert_close(mass @ points, density.mean, rtol=0, atol=1e-3 if dim == 2 else 1e-7)
    centred = points - density.mean[:, None]
    second = torch.einsum("bp,bpi,bpj->bij", mass, centred, centred)
    torch.testing.assert_close(second, density.covariance, rtol=3e-3, atol=1e-6)


@single_density
@both_dimensions
def test_moments_to_parameters_and_back(name, dim):
    mean, covariance = case(dim)
    density = FAMILIES[name](mean, covariance)
    torch.testing.assert_close(density.mean, mean)
    torch.testing.assert_close(density.covariance, covariance, rtol=1e-9, atol=0)


@every_density
@both_dimensions
def test_expectation_is_the_integral(name, dim):
    density = made(name, dim)
    points, weight = whole_box(dim)
    for basis in bases(dim):
        expected = (density.pdf(points) * weight) @ basis(points)
        scale = expected.amax(-1, keepdim=True)
        # the edges of supports are kinks for the reference
        torch.testing.assert_close(
            density.expect(basis) / scale, expected / scale, rtol=0, atol=1e-3 if dim == 2 else 1e-7
        )


@every_density
@both_dimensions
def test_gradient_is_exact(name, dim):
    mean, covariance = (x[:2].requires_grad_() for x in case(dim))
    first, second = bases(dim)
    if "beta" in name:  # the bisection of the reference hides the covariance: its scale is the leaf here
        made_density = FAMILIES[name](mean, covariance)
        scale, alpha = made_density.scale.requires_grad_(), made_density.alpha
        assert torch.autograd.gradcheck(
            lambda m, s: BetaGaussian(m, s * 1e-3, alpha).expect(first), (mean, scale * 1e3), atol=1e-5
        )
        return
    assert torch.autograd.gradcheck(lambda m, c: FAMILIES[name](m, c).expect(first), (mean, covariance), atol=1e-5)
    assert torch.autograd.gradcheck(
        lambda m, c: FAMILIES[name](m, c).expect(second), (mean, covariance), atol=1e-3, rtol=1e-3
    )


@every_density
@both_dimensions
def test_map_is_mass_per_cell(name, dim):
    density = made(name, dim)
    H, W = 5, 7
    masses = density.to_map(*(H, W)[:dim])
    assert masses.shape == (3, *(H, W)[:dim])
    points, weight = whole_box(dim, 0, 1, cells=210)
    p = density.pdf(points) * weight
    cell = (points[:, 0] * W).floor().long() if dim == 2 else (points[:, 0] * H).floor().long()
    if dim == 2:
        cell = cell + W * (points[:, 1] * H).floor().long()
    expected = torch.zeros(3, masses[0].numel(), dtype=torch.float64).index_add_(1, cell, p)
    torch.testing.assert_close(masses.flatten(1), expected, rtol=0, atol=5e-5)
    assert (masses >= 0).all()
    assert (masses.flatten(1).sum(-1) <= 1 + 1e-12).all()


@every_density
@both_dimensions
def test_map_has_a_gradient(name, dim):
    mean, covariance = (x[:1].requires_grad_() for x in case(dim))
    family = FAMILIES["paraboloid"] if "beta" in name else FAMILIES[name]
    assert torch.autograd.gradcheck(lambda m, c: family(m, c).to_map(*(2, 3)[:dim]), (mean, covariance), atol=1e-6)


@every_density
@both_dimensions
def test_support_area_is_where_the_density_is_positive(name, dim):
    mean, covariance = case(dim)
    mean[0] = 0.02  # part of it outside the image
    density = FAMILIES[name](mean, covariance)
    points = cell_centres(1000, 1000) if dim == 2 else cell_centres_1d(100_000)
    share = (density.pdf(points.double()) > 0).double().mean(-1)
    torch.testing.assert_close(density.support_area(), share, rtol=0, atol=3e-3)


@every_density
@both_dimensions
def test_samples_have_the_moments(name, dim):
    density = made(name, dim)
    draws = density.sample(40_000, torch.Generator().manual_seed(0))
    assert draws.shape == (3, 40_000, dim)
    torch.testing.assert_close(draws.mean(-2), density.mean, rtol=0, atol=4e-3)
    centred = draws - density.mean.unsqueeze(-2)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    errors = 4 * products.std(-3) / math.sqrt(draws.shape[-2])
    assert ((products.mean(-3) - density.covariance).abs() <= errors).all()
    again = density.sample(40_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws, again, rtol=0, atol=0)


@single_density
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_ellipse_holds_its_share(name, level):
    density = made(name, 2)
    shape = density.ellipses(level)
    assert shape.centre.shape == (3, 1, 2)
    assert shape.weight.shape == shape.angle.shape == (3, 1)
    assert (shape.radii[..., 0] >= shape.radii[..., 1]).all()
    draws = density.sample(50_000, torch.Generator().manual_seed(1)) - shape.centre
    c, s = shape.angle.cos(), shape.angle.sin()
    x = (draws[..., 0] * c + draws[..., 1] * s) / shape.radii[..., 0]
    y = (draws[..., 1] * c - draws[..., 0] * s) / shape.radii[..., 1]
    inside = (x.square() + y.square() <= 1).double().mean(-1)
    torch.testing.assert_close(inside, torch.full_like(inside, level), rtol=0, atol=0.01)


@every_density
@both_dimensions
def test_rows_do_not_see_each_other(name, dim):
    mean, covariance = case(dim)
    together = FAMILIES[name](mean, covariance)
    basis = next(bases(dim))
    points = cell_centres(4, 4).double()[:, :dim]
    for i in range(3):
        alone = FAMILIES[name](mean[i], covariance[i])
        torch.testing.assert_close(alone.expect(basis), together.expect(basis)[i], rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(alone.pdf(points), together.pdf(points)[i], rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(alone.support_area(), together.support_area()[i], rtol=1e-10, atol=1e-13)


@every_density
@pytest.mark.parametrize("batch", [(), (3, 1), (1, 3, 1)])
def test_any_batch_shape(name, batch):
    mean, covariance = case(2)
    count = math.prod(batch)
    density = FAMILIES[name](mean[:count].reshape(*batch, 2), covariance[:count].reshape(*batch, 2, 2))
    assert density.expect(GaussianBasis.grid(4)).shape == (*batch, 4)
    assert density.pdf(cell_centres(2, 3).double()).shape == (*batch, 6)
    assert density.to_map(2, 3).shape == (*batch, 2, 3)
    assert density.support_area().shape == batch
    assert density.sample(5).shape == (*batch, 5, 2)
    assert density.covariance.shape == (*batch, 2, 2)


@every_density
def test_two_calls_before_backward(name):
    mean = case(2)[0].requires_grad_()
    density = FAMILIES[name](mean, case(2)[1])
    basis = GaussianBasis.grid(9, variance=0.02)
    first, second = density.expect(basis), density.expect(GaussianBasis.grid(4, variance=0.05))
    g = torch.autograd.grad(first.square().sum(), mean)[0]
    fresh = FAMILIES[name](mean, case(2)[1]).expect(basis)
    torch.testing.assert_close(g, torch.autograd.grad(fresh.square().sum(), mean)[0])
    second.sum().backward()
    assert torch.isfinite(mean.grad).all()


# ---------------------------------------------------------------- from weights


def weights_of(rows, N, seed=0):
    return torch.softmax(
        2 * torch.randn(rows, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1
    )


@every_class
@pytest.mark.parametrize(
    "positions", [cell_centres(4, 5).double(), cell_centres_1d(12).double()], ids=["plane", "line"]
)
def test_from_weights_matches_the_moments(kind, positions):
    weights = weights_of(6, len(positions))
    density = kind.from_weights(weights, positions, floor=1e-4)
    mean = weights @ positions
    second = torch.einsum("bn,ni,nj->bij", weights, positions, positions) - mean[:, :, None] * mean[:, None]
    torch.testing.assert_close(density.mean, mean)
    eye = torch.eye(positions.shape[-1], dtype=torch.float64)
    torch.testing.assert_close(density.covariance, second + 1e-4 * eye, rtol=1e-9, atol=1e-12)


@every_class
def test_the_order_of_locations_does_not_matter(kind):
    weights, positions, order = weights_of(3, 20), cell_centres(4, 5).double(), torch.randperm(20)
    basis = GaussianBasis.grid(9, variance=0.02)
    r = kind.from_weights(weights, positions).expect(basis)
    torch.testing.assert_close(kind.from_weights(weights[:, order], positions[order]).expect(basis), r)


@every_class
def test_from_weights_passes_gradcheck(kind):
    positions, basis = cell_centres(3, 4).double(), GaussianBasis.grid(9, variance=0.03)
    scores = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s: kind.from_weights(torch.softmax(s, -1), positions).expect(basis), (scores,), atol=1e-6
    )


@every_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("floor", ["cell", 1e-6])
def test_all_mass_on_one_cell(kind, dtype, floor):
    positions = cell_centres(14, 14, dtype=dtype)
    weights = torch.eye(196, dtype=dtype)[[0, 90, 195]].requires_grad_()
    density = kind.from_weights(weights, positions, floor=floor)
    expected = torch.eye(2, dtype=dtype) * (1 / (12 * 14**2) if floor == "cell" else floor)
    torch.testing.assert_close(density.covariance, expected.expand(3, 2, 2), rtol=1e-4, atol=1e-12)
    r = density.expect(GaussianBasis.grid(100))
    r.square().sum().backward()
    assert torch.isfinite(r).all()
    assert torch.isfinite(weights.grad).all()


@every_class
def test_masked_locations_do_not_count(kind):
    positions, weights = cell_centres(4, 5).double(), weights_of(2, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[:, 15:] = False
    kept = weights.masked_fill(~mask, 0)
    kept = kept / kept.sum(-1, keepdim=True)
    garbage = torch.where(mask, kept, torch.full_like(kept, 7.0))
    density = kind.from_weights(garbage, positions, mask, floor=1e-4)
    alone = kind.from_weights(kept[:, :15], positions[:15], floor=1e-4)
    torch.testing.assert_close(density.mean, alone.mean)
    torch.testing.assert_close(density.covariance, alone.covariance)


@every_class
def test_nothing_to_attend_to_is_finite_and_flat(kind):
    positions = cell_centres(4, 5).double()
    weights = weights_of(2, 20)
    mask = torch.tensor([[True], [False]])
    weights = (weights * mask).requires_grad_()
    density = kind.from_weights(weights, positions, mask.expand(2, 20))
    assert density.mean[1].tolist() == [0.5, 0.5]
    r = density.expect(GaussianBasis.grid(9))
    gradient = torch.autograd.grad((r * weights.detach().sum(-1, keepdim=True)).square().sum(), weights)[0]
    assert torch.isfinite(r).all()
    assert torch.isfinite(density.to_map(3, 3)).all()
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0


@every_class
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w * 1.1, "sum to one"),
        (lambda w: w * torch.tensor([3.0, 1.0, 1.0, -1.0]), "expected weights >= 0, got -"),
        (lambda w: w * float("nan"), "without NaN"),
        (lambda w: w[:, :3], "one position per weight"),
        (lambda w: w.long(), "floating-point weights"),
    ],
)
def test_bad_weights(kind, change, message):
    weights = torch.full((2, 4), 0.25)
    with pytest.raises((ValueError, TypeError), match=message):
        kind.from_weights(change(weights), cell_centres(2, 2))


@every_class
def test_bad_floor(kind):
    weights = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="expected floor > 0, got 0"):
        kind.from_weights(weights, cell_centres(2, 2), floor=0)
    with pytest.raises(ValueError, match="floor 'cell' or a number"):
        kind.from_weights(weights, cell_centres(2, 2), floor="cells")


@every_class
def test_half_precision_is_computed_in_float32(kind):
    weights = torch.softmax(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), -1)
    for dtype, atol in ((torch.float16, 1e-3), (torch.bfloat16, 5e-3)):
        density = kind.from_weights(weights.to(dtype), cell_centres(4, 4))
        assert density.mean.dtype == torch.float32
        torch.testing.assert_close(density.mean, kind.from_weights(weights, cell_centres(4, 4)).mean, rtol=0, atol=atol)


@every_class
@pytest.mark.parametrize(
    ("mean", "matrix", "message"),
    [
        (torch.zeros(3, 2), torch.eye(2), "pass one d x d matrix per mean"),
        (torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "positive definite .* smallest eigenvalue -1"),
        (torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([0.0, float("nan")]), torch.eye(2), "mean without NaN, got 1 of 2"),
        (torch.zeros(2), torch.eye(2) * float("nan"), "without NaN"),
        (torch.zeros(2), torch.diag(torch.tensor([1.0, math.inf])), "finite"),
        (torch.zeros(2, dtype=torch.long), torch.eye(2), "floating-point mean"),
    ],
)
def test_bad_parameters(kind, mean, matrix, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kind(mean, matrix)


@every_density
def test_wrong_dimensions_raise(name):
    plane, line = made(name, 2), made(name, 1)
    with pytest.raises(ValueError, match="basis of dimension 2, got 1"):
        plane.expect(GaussianBasis.grid(4, dim=1))
    with pytest.raises(ValueError, match="expected H and W"):
        plane.to_map(3)
    with pytest.raises(ValueError, match="expected H only"):
        line.to_map(3, 3)
    with pytest.raises(ValueError, match="at least one cell"):
        plane.to_map(0, 3)
    with pytest.raises(ValueError, match="density of the plane"):
        line.ellipses(0.5)
    with pytest.raises(ValueError, match="level"):
        plane.ellipses(1.5)


# ---------------------------------------------------------------- transforms of torch


@every_class
@pytest.mark.parametrize("basis", list(bases(2)), ids=BASES)
def test_under_vmap(kind, basis):
    positions = cell_centres(3, 4).double()
    scores = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def value(s):
        return kind.from_weights(torch.softmax(s, -1), positions).expect(basis).square().sum()

    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(leaf), leaf)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(value))(scores), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of the tracer itself
@pytest.mark.parametrize(
    "kind",
    [
        TruncatedParaboloid,
        pytest.param(Gaussian, marks=pytest.mark.slow),
        pytest.param(BetaGaussian, marks=pytest.mark.slow),
    ],
)
def test_under_compile(kind):
    positions, basis = cell_centres(3, 4), GaussianBasis.grid(4, variance=0.05)
    scores = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))

    def value(s):
        return kind.from_weights(torch.softmax(s, -1), positions).expect(basis)

    results = []
    for f in (value, torch.compile(value, backend="aot_eager", fullgraph=True)):
        leaf = scores.clone().requires_grad_()
        r = f(leaf)
        results.append((r.detach(), torch.autograd.grad(r.square().sum(), leaf)[0]))
    torch.testing.assert_close(results[0], results[1])


# ---------------------------------------------------------------- second derivatives


def leaves(name, dim, rows=2):
    """A function to the density from its mean and a matrix of order one, and both as leaves."""
    torch.manual_seed(0)  # gradgradcheck draws what it multiplies the outputs with
    mean, matrix = (x[:rows] for x in case(dim))
    make = FAMILIES[name]
    if "beta" in name:  # the bisection of the reference hides the covariance: its scale is the leaf here
        density = make(mean, matrix)
        make, matrix = partial(BetaGaussian, alpha=density.alpha), density.scale
    size = matrix.abs().max()
    return (lambda m, unit: make(m, size * unit)), mean.requires_grad_(), (matrix / size).requires_grad_()


@every_density
@both_dimensions
def test_second_derivative_of_the_expectation_is_exact(name, dim):
    make, *inputs = leaves(name, dim)
    basis = next(bases(dim))
    assert torch.autograd.gradgradcheck(lambda m, c: make(m, c).expect(basis), inputs, atol=1e-4, rtol=1e-4)


@every_density
@both_dimensions
def test_second_derivative_with_a_bounded_basis_is_the_slope_of_the_first(name, dim):
    """Finite steps: where two edges cross, the rule in the plane has an error of its own that a tiny step magnifies."""
    make, *inputs = leaves(name, dim)
    basis = TruncatedParaboloidBasis.grid(9, dim=dim, variance=0.06)
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 9, dtype=torch.float64, generator=g)
    steps = [1e-3 * torch.randn(x.shape, dtype=torch.float64, generator=g) * x.detach().abs().amax() for x in inputs]

    def slopes(sign, **options):
        at = [(x + sign * step).detach().requires_grad_() for x, step in zip(inputs, steps, strict=True)]
        return at, torch.autograd.grad((make(*at).expect(basis) * weight).sum(), at, **options)

    at, first = slopes(0, create_graph=True)
    second = torch.autograd.grad(sum((f * step).sum() for f, step in zip(first, steps, strict=True)), at)
    above, below = slopes(1)[1], slopes(-1)[1]
    for got, high, low in zip(second, above, below, strict=True):
        expected = (high - low) / 2
        torch.testing.assert_close(got, expected, rtol=0, atol=float(1e-2 * expected.abs().max()))


@every_class
@pytest.mark.parametrize("basis", list(bases(2)), ids=BASES)
def test_the_gradient_is_the_same_whether_or_not_it_is_differentiated(kind, basis):
    mean = torch.tensor([[0.4, 0.5]], dtype=torch.float64, requires_grad=True)
    density = kind(mean, 0.01 * torch.eye(2, dtype=torch.float64)[None])
    value = density.expect(basis).square().sum()
    (plain,) = torch.autograd.grad(value, mean, retain_graph=True)
    (followed,) = torch.autograd.grad(value, mean, create_graph=True)
    torch.testing.assert_close(followed, plain, rtol=1e-5, atol=1e-6)


@every_class
def test_third_derivatives_are_right_or_an_error(kind):
    mean = torch.tensor([0.4, 0.55], dtype=torch.float64)
    smooth, bounded = bases(2)
    matrix = 0.01 * torch.eye(2, dtype=torch.float64)

    def second(m, basis):
        m = m.detach().requires_grad_()
        (first,) = torch.autograd.grad(kind(m, matrix).expect(basis).square().sum(), m, create_graph=True)
        return m, torch.autograd.grad(first[0], m, create_graph=True)[0]

    m, curve = second(mean, smooth)
    (third,) = torch.autograd.grad(curve[0], m)
    step = torch.tensor([1e-5, 0.0], dtype=torch.float64)
    expected = (second(mean + step, smooth)[1] - second(mean - step, smooth)[1])[0] / 2e-5
    torch.testing.assert_close(third[0], expected, rtol=1e-4, atol=1e-4)
    m, curve = second(mean, bounded)
    if kind is Gaussian:
        assert torch.isfinite(torch.autograd.grad(curve[0], m)[0]).all()
        return
    with pytest.raises(RuntimeError, match=r"expected at most two derivatives .* got three; use a GaussianBasis"):
        torch.autograd.grad(curve[0], m)


@every_density
@both_dimensions
def test_second_derivative_of_the_map_is_exact(name, dim):
    make, *inputs = leaves(name, dim)
    shape = (2, 3)[:dim]
    assert torch.autograd.gradgradcheck(lambda m, c: make(m, c).to_map(*shape), inputs, atol=1e-4, rtol=1e-4)


@every_density
@both_dimensions
def test_second_derivatives_of_the_density_and_its_moments(name, dim):
    make, *inputs = leaves(name, dim)
    points = cell_centres(2, 2).double()[:, :dim] * 0.9
    for read in (lambda p: p.pdf(points), lambda p: p.mean, lambda p: p.covariance):
        assert torch.autograd.gradgradcheck(lambda m, c, r=read: r(make(m, c)), inputs, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- empty batches, no locations, meta


@pytest.mark.parametrize("kind", DENSITIES.values(), ids=DENSITIES)
@both_dimensions
@pytest.mark.parametrize("shape", [(0, 12), (2, 0), (0, 0), (2, 0, 12), (0, 3, 12)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_in_nothing_out(kind, dim, shape, device):
    positions = (cell_centres_1d(12) if dim == 1 else cell_centres(3, 4))[: shape[-1]].to(device)
    density, batch = kind.from_weights(torch.zeros(shape, device=device), positions), shape[:-1]
    assert density.mean.shape == (*batch, dim)
    assert density.covariance.shape == (*batch, dim, dim)
    for basis in bases(dim):
        assert density.expect(basis).shape == (*batch, 9)
    assert density.pdf(torch.zeros(5, dim, device=device)).shape == (*batch, 5)
    assert density.to_map(*(3, 4)[:dim]).shape == (*batch, *(3, 4)[:dim])
    assert density.support_area().shape == batch
    assert density.sample(7).shape == (*batch, 7, dim)
    assert dim == 1 or density.ellipses(0.5).centre.shape[:-2] == batch
    assert density[:1].mean.shape[0] == min(batch[0], 1)


# ---------------------------------------------------------------- limits in alpha


@both_dimensions
def test_alpha_two_is_the_paraboloid(dim):
    mean, scale = case(dim)
    one, two = BetaGaussian(mean, scale * 0.01, 2.0), TruncatedParaboloid(mean, scale * 0.01)
    points = cell_centres(9, 9).double()[:, :dim]
    torch.testing.assert_close(one.pdf(points), two.pdf(points))
    torch.testing.assert_close(one.covariance, two.covariance)
    for basis in bases(dim):
        torch.testing.assert_close(one.expect(basis), two.expect(basis))
    torch.testing.assert_close(one.to_map(*(4, 4)[:dim]), two.to_map(*(4, 4)[:dim]))


@both_dimensions
def test_alpha_towards_one_is_the_gaussian(dim):
    mean, covariance = case(dim)
    gaussian, basis = Gaussian(mean, covariance), next(bases(dim))
    points = cell_centres(9, 9).double()[:, :dim]
    errors = []
    for alpha in (1.1, 1.01, 1.001, 1.00001):
        near = BetaGaussian(mean, covariance, alpha)
        errors.append(
            max(
                float(((a - b).abs() / b.abs().max()).max())
                for a, b in (
                    (near.pdf(points), gaussian.pdf(points)),
                    (near.expect(basis), gaussian.expect(basis)),
                    (near.covariance, gaussian.covariance),
                    (near.to_map(*(4, 4)[:dim]), gaussian.to_map(*(4, 4)[:dim])),
                )
            )
        )
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


@both_dimensions
def test_alpha_just_below_two_is_near_the_paraboloid(dim):
    mean, scale = case(dim)
    near, two = BetaGaussian(mean, scale * 0.01, 1.9999), TruncatedParaboloid(mean, scale * 0.01)
    basis = next(bases(dim))
    torch.testing.assert_close(near.expect(basis), two.expect(basis), rtol=0, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.0, 2.1, 0.5, float("nan")])
def test_alpha_outside_its_range(alpha):
    with pytest.raises(ValueError, match="expected 1 < alpha <= 2"):
        BetaGaussian(torch.zeros(2), torch.eye(2), alpha)
    with pytest.raises(ValueError, match="expected 1 < alpha <= 2"):
        BetaGaussian.from_weights(torch.ones(1), torch.zeros(1, 2), alpha=alpha)
