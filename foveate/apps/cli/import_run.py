"""`foveate import-run`: a checkpoint that the authors of a paper published, as a run."""

from __future__ import annotations

from pathlib import Path

from foveate.apps.cli.terminal import Directory
from foveate.lab import hub
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.papers.authors import PublishedFiles
from foveate.lab.papers.authors import import_run as write_run


def import_run(
    kind: str,
    checkpoint: Path,
    out: Directory,
    changes: tuple[str, ...] = (),
    *,
    tokens: str = "",
    answers: Path | None = None,
    store: Path | None = None,
) -> dict[str, str]:
    """Convert a published checkpoint into a run; nothing inside the file is executed.

    Args:
        kind: mcan (mcan-vqa and openvqa), scan or bfan.
        checkpoint: the .pkl or .pth.tar file.
        out: directory of the run to write.
        changes: fields of its recipe to change, as field=value or --field value, such as dataset=vqa-v1 or heads=4.
        tokens: JSON file of its tokens (SCAN and BFAN: vocab/f30k_precomp_vocab.json); for mcan also the question files
            of train, val and test in this order, separated by commas.
        answers: answer_dict.json, for mcan.
        store: a feature store the run is used with; if `foveate extract` wrote it, the run answers questions about
            new images too.
    """
    opened = None if store is None else FeatureStore(store)
    found = None if opened is None else (opened.description, opened.dim)
    files = tuple(Path(part) for part in tokens.split(",") if part)
    recipe = write_run(kind, PublishedFiles(checkpoint, files, answers, found), out, changes)
    hub.load(out)
    print(f"{out}: {recipe.about} for {recipe.settings.dataset}; evaluate it with: foveate evaluate {out} --data DIR")
    return {"run": str(out), "about": recipe.about, "dataset": recipe.settings.dataset}
