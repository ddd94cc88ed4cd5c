"""The lab trains and serves the systems of the papers: `pip install "foveate[lab]"`."""

from importlib.util import find_spec

from foveate.errors import MissingExtra

NEEDS = ("h5py", "defusedxml", "accelerate", "safetensors", "huggingface_hub", "tyro", "tqdm", "rich")

for package in NEEDS:
    if find_spec(package) is None:
        raise MissingExtra("foveate.lab", package, extra="lab")
