"""The public names are frozen: tests/public.txt changes only on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import foveate as fv

LIST = Path(__file__).parent / "public.txt"


def test_public_names_are_the_frozen_ones():
    names = sorted([*(f"fv.{name}" for name in fv.__all__), *(f"fv.ops.{name}" for name in fv.ops.__all__)])
    assert names == LIST.read_text(encoding="utf-8").split(), "write the new list to tests/public.txt if it is meant"


def test_public_things_have_docstrings():
    for module in (fv, fv.ops):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                assert (thing.__doc__ or "").strip(), name


def test_import_changes_nothing_outside_and_stays_light():
    code = (
        "import sys, torch; before = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype();"
        "import foveate as fv; fv.tvmax, fv.mechanism;"
        "assert before == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype());"
        "heavy = {'matplotlib', 'h5py', 'accelerate', 'PIL', 'tyro', 'rich', 'transformers', 'gradio', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
