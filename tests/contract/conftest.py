"""The laws of transforms and mechanisms hold with the kernels and without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foveate.ops import kernels

LAWS = ("test_transforms", "test_mechanisms", "test_mechanism_edges", "test_second_derivatives")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every law twice where the kernels are built: torch alone runs on other devices and without a compiler."""
    if metafunc.module.__name__.rpartition(".")[2] in LAWS and kernels.unit() is not None:
        metafunc.fixturenames.append("computed_by")
        metafunc.parametrize("computed_by", ["kernels", "torch"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def computed_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """Turn the kernels off for the tests that torch is to compute, as FOVEATE_NATIVE=0 does."""
    module = kernels._module
    if request.param == "torch":
        kernels._module = None
    yield request.param
    kernels._module = module
