"""Free photographs that installed packages carry, to try things on; none of them is part of foveate."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Package, directory in it, and the photographs there that show everyday things in colour.
PLACES = (
    ("skimage", "data", ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg", "motorcycle_left.png")),
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("matplotlib", "mpl-data/sample_data", ("grace_hopper.jpg",)),
)


def example_photos() -> dict[str, Path]:
    """The photographs by name, without their suffix; at least one, since matplotlib is always installed.

    `pip install scikit-image` adds a cat ("chelsea"), a cup of coffee, an astronaut, a rocket and a motorcycle;
    `pip install scikit-learn` a temple ("china") and a flower. Their licences are in a README beside each.

    >>> "grace_hopper" in example_photos()
    True
    """
    found = {}
    for package, directory, names in PLACES:
        spec = find_spec(package)
        for home in (spec.submodule_search_locations or ()) if spec is not None else ():
            paths = [Path(home, directory, name) for name in names]
            found.update({path.stem: path for path in paths if path.is_file()})
    return found
