"""A published model as the directory of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from foveate.attention import MECHANISMS
from foveate.lab.papers.authors.conversion import Published, PublishedFiles, convert
from foveate.lab.papers.authors.released_matchers import read_bfan, read_scan
from foveate.lab.papers.authors.released_mcan import read_mcan
from foveate.lab.papers.paper_recipes import MIXTURE, ONE_DENSITY, THESIS
from foveate.lab.tasks import TASKS
from foveate.lab.train.override import override
from foveate.lab.train.recipe import Recipe, to_config
from foveate.lab.train.records import CONFIG, VOCABULARY, note_environment, open_run
from foveate.lab.train.weights import WEIGHTS, named_tensors, save_tensors
from foveate.registry import lookup

AUTHORS: dict[str, Callable[[PublishedFiles], Published]] = {"mcan": read_mcan, "scan": read_scan, "bfan": read_bfan}


def import_run(kind: str, sources: PublishedFiles, out: Path, changes: Sequence[str] = ()) -> Recipe:
    """Write a published checkpoint as a run that `foveate.load`, `evaluate`, `answer` and `match` take.

    Args:
        kind: a row of `AUTHORS`.
        sources: its files.
        out: directory to create.
        changes: fields of the recipe to change, as "field=value": where the data is, or sizes that cannot be read from
            the weights, such as "model.heads=8". With a continuous mechanism (`mechanism=continuous-softmax`) the
            options that are not passed are those of the papers: basis, padding, floor, and cells at linspace(0, 1, n).

    Returns:
        the recipe of the run.

    Raises DataError, and writes nothing, if a file holds anything but tensors and plain values or does not fit.
    """
    published = lookup("import-run", kind, AUTHORS)(sources)
    recipe = _as_trained(override(published.recipe, changes))
    task = TASKS[recipe.task].from_vocabulary(recipe.settings, published.vocabulary)
    model = task.build_model()
    convert(published, model, str(sources.checkpoint))
    out.mkdir(parents=True, exist_ok=True)
    open_run(out, {CONFIG: to_config(recipe), VOCABULARY: task.vocabulary()}, resume=False)
    digest = hashlib.sha256(sources.checkpoint.read_bytes()).hexdigest()[:16]
    note_environment(out, recipe.training.seed, 1, "cpu", {sources.checkpoint.name: digest})
    save_tensors(out / WEIGHTS, named_tensors(model))
    return recipe


def _as_trained(recipe: Recipe) -> Recipe:
    """The recipe with the options of the papers for its continuous attention, except those that were passed."""
    settings = recipe.settings
    if not MECHANISMS[settings.mechanism].continuous:
        return recipe
    paper = {**ONE_DENSITY, **MIXTURE} if settings.mechanism == "multimodal" else THESIS
    return replace(recipe, settings=replace(settings, mechanism_options={**paper, **settings.mechanism_options}))
