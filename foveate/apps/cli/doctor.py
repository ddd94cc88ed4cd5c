"""`foveate doctor`: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from foveate.apps.cli.terminal import print_table

GIGABYTE = 10**9
HIDDEN = ("dev", "docs", "bench")  # extras for those who work on foveate itself


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Attributes:
        what: what was examined.
        works: whether it can be used.
        found: version, number or path.
        advice: what to do if it does not work.
    """

    what: str
    works: bool
    found: str
    advice: str = ""


def doctor() -> list[Finding]:
    """Report what works on this machine: versions, native kernels, GPUs, extras, Java, free disk space."""
    findings = [*_versions(), *_vision(), _kernels(), *_devices(), _disk(), *_extras(), _java()]
    rows = [(one.what, "yes" if one.works else "no", one.found, one.advice) for one in findings]
    print_table("foveate doctor", ("", "works", "found", "to make it work"), rows)
    return findings


def _versions() -> Iterator[Finding]:
    yield Finding("Python", True, platform.python_version())
    for package in ("foveate", "torch", "numpy", "pillow", "matplotlib", "h5py", "accelerate", "safetensors"):
        yield Finding(package, True, metadata.version(package))


def _vision() -> Iterator[Finding]:
    """Packages that break `transformers`: torchvision, which timm brings, for another torch than the one here."""
    version = _version("torchvision")
    if version is None:
        return
    try:
        import_module("torchvision")
    except Exception as error:
        brought = " (timm brings it)" if _version("timm") else ""
        advice = f"pip uninstall torchvision{' timm' if brought else ''}: transformers fails with it"
        yield Finding("torchvision", False, f"{version}{brought}: {' '.join(str(error).split())[:80]}", advice)
    else:
        yield Finding("torchvision", True, version)


def _kernels() -> Finding:
    from foveate.ops import kernels

    unit = kernels.unit()
    advice = "install with a C++ compiler on the PATH, and leave FOVEATE_NATIVE unset"
    return Finding("native kernels", unit is not None, unit or "none, torch does the work", "" if unit else advice)


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("threads", True, str(torch.get_num_threads()))
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count()))
        yield Finding("CUDA", True, names)
    else:
        built = torch.version.cuda is not None
        advice = "check the driver with nvidia-smi" if built else "install a CUDA build of torch, if there is a GPU"
        yield Finding("CUDA", False, f"torch is built for CUDA {torch.version.cuda}" if built else "CPU build", advice)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    enough = free > GIGABYTE
    return Finding("free disk space", enough, f"{free / GIGABYTE:.1f} GB", "" if enough else "free at least 1 GB")


def _extras() -> Iterator[Finding]:
    """The optional packages, by the extra that installs them."""
    for extra, packages in sorted(packages_of_extras().items()):
        if extra in HIDDEN:
            continue
        missing = [package for package in packages if _version(package) is None]
        found = ", ".join(f"{package} {_version(package)}" for package in packages if package not in missing)
        advice = f'pip install "foveate[{extra}]"' if missing else ""
        yield Finding(f"extra {extra}", not missing, found or "none", advice)


def packages_of_extras() -> dict[str, list[str]]:
    """The packages that each extra of foveate installs.

    >>> packages_of_extras()["studio"]
    ['gradio', 'scikit-image']
    """
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("foveate") or []:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[1] != "foveate":
            extras.setdefault(match[2], []).append(match[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    path = shutil.which("java")
    advice = "" if path else "install a Java runtime for METEOR and the PTB tokenizer"
    return Finding("Java", path is not None, path or "none", advice)
