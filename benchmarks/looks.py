"""Every method of looking by truth, faithfulness, gaze, memory and time: the tables of docs/believe.md.

    python benchmarks/looks.py [--only criterion vqa ...] [--photos DIR] [--gaze DIR] [--save]

On Scenes the true region of every question is known. `--photos` is a directory of Flickr8k with Entities boxes,
`--gaze` one with images/ and fixations as `foveate evaluate-attention --data fixations` reads them; parts without their
data are left out. One thread; about forty minutes of processor time in all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import RESULTS, machine, save, seconds, show

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import foveate as fv  # noqa: E402
from foveate.apps.cli.evaluate_attention import find_cases, read_data  # noqa: E402
from foveate.io import ProgressBar  # noqa: E402
from foveate.metrics import Interval, bootstrap_interval, deletion, randomisation  # noqa: E402
from foveate.watch import Case, open_model  # noqa: E402
from foveate.watch.measure import Looker, MethodComparison, compare_methods, costs, lookers_of  # noqa: E402

Row = dict[str, Any]


def shown(cases: Iterable[Case]) -> Iterable[Case]:
    """The cases with a progress bar."""
    several = list(cases)
    with ProgressBar("looks", len(several), unit="text") as bar:
        for case in several:
            yield case
            bar.update()


def plain(row: Row) -> Row:
    """A row whose intervals are lists."""
    return {k: [v.mean, v.low, v.high] if isinstance(v, Interval) else v for k, v in row.items()}


def brief(row: Row) -> Row:
    """A row to print."""
    return {k: v.brief if isinstance(v, Interval) else v for k, v in row.items()}


def tables_of(name: str, found: MethodComparison) -> dict[str, list[Row]]:
    """Print and return the tables of a comparison."""
    rows = found.rows()
    show(f"{name}: {len(found.groups)} words, {len(set(found.groups))} images", [brief(row) for row in rows])
    tables = {f"{name}: methods": [plain(row) for row in rows]}
    if len(found.names) > 2:
        agreement = [{"truth": measure, **found.agreement(measure)} for measure in ("mass", "pointing", "auc")]
        show(f"{name}: rank correlation over methods of truth and faithfulness", agreement)
        tables[f"{name}: agreement"] = agreement
    above = [
        {"way": way, "above": other, "cost": cost, "excludes zero": cost.low > 0}
        for way in found.faithful.at_region
        for other, cost in found.faithful.region_above(way).items()
        if other in ("uniform", "centre", "random")
    ]
    if above:
        show(f"{name}: what the true region costs above maps that remove as much", [brief(row) for row in above])
        tables[f"{name}: region"] = [plain(row) for row in above]
    curves = found.faithful.to_json()["curves"]
    tables[f"{name}: curves"] = [
        {"way": way, "kind": k, **c} for way, kinds in curves.items() for k, c in kinds.items()
    ]
    for method, why in found.failed.items():
        print(f"{name}: {method} was left out: {why}")
    return tables


def insensitive(name: str, network: Any, lookers: dict[str, Looker], cases: list[Case]) -> list[Row]:
    """The randomisation check of every method, all layers at once."""
    pixels = [case.image.pixels() for case in cases]
    rows = []
    for method, looker in lookers.items():

        def explain(numbers: torch.Tensor, looker: Looker = looker) -> torch.Tensor:
            looks = [looker(pixels[int(n)], cases[int(n)]) for n in numbers]
            return torch.stack([torch.stack([w.attention.map(14, 14)[0] for w in one.words]).mean(0) for one in looks])

        try:
            found = randomisation(explain, torch.arange(len(cases)).float(), network, cascading=False)
        except ValueError as error:
            print(f"{name}: {method} was left out: {error}")
            continue
        above = bootstrap_interval((found.similarity[-1] - found.unrelated).numpy(), resamples=2000)
        rows.append(
            {
                "method": method, "all layers drawn anew": float(found.similarity[-1].mean()),
                "other images": float(found.unrelated.mean()), "above": [above.mean, above.low, above.high],
                "sensitive": found.is_sensitive,
            }
        )  # fmt: skip
    show(f"{name}: rank correlation with the original map", rows)
    return rows


def criterion(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """300 questions of Scenes to the embedded run: is the true region worth more than any map of its size?"""
    run, cases = fv.load("scenes-vqa"), find_cases(read_data("scenes", None, "val"), arguments.questions)
    first = {"attention": lookers_of(run)["attention"]}
    ways = ("pixels", "tokens", "kept", "mean")
    found = compare_methods(first, cases, fits=(), ways=ways, draws=2, steps=5, batch_size=32, progress=shown)
    return tables_of(f"scenes-vqa, {len(cases)} questions", found)


def vqa(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Every method on questions of Scenes to the embedded run, and the randomisation check."""
    run = fv.load("scenes-vqa")
    cases, lookers = find_cases(read_data("scenes", None, "val"), arguments.texts), lookers_of(run)
    ways = ("pixels", "tokens", "kept", "mean")
    found = compare_methods(lookers, cases, ways=ways, draws=1, steps=5, batch_size=32, progress=shown)
    tables = tables_of("scenes-vqa", found)
    tables["scenes-vqa: randomised"] = insensitive("scenes-vqa", run.model, lookers, cases[:10])
    return tables


def road(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Questions of Scenes with holes by ROAD, which takes most of the time."""
    run, cases = fv.load("scenes-vqa"), find_cases(read_data("scenes", None, "val"), arguments.roads)
    first = {"attention": lookers_of(run)["attention"]}
    found = compare_methods(first, cases, ways=("road",), fits=(), draws=1, steps=5, batch_size=32, progress=shown)
    return tables_of("scenes-vqa, ROAD", found)


def captioning(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Phrases of the captions of Scenes, read by the embedded captioner."""
    run = fv.load("scenes-captioning")
    cases = find_cases(read_data("scenes", None, "val"), arguments.phrases, "phrases")
    lookers = {name: one for name, one in lookers_of(run).items() if name != "integrated"}
    found = compare_methods(lookers, cases, ways=("pixels", "tokens"), steps=5, draws=2, batch_size=32, progress=shown)
    return tables_of("scenes-captioning", found)


def dinov2(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Phrases of photographs, or objects of Scenes without them, in front of real weights; and gaze."""
    network, processor = open_model("dinov2-small")
    lookers = lookers_of(network, processor)
    data = read_data("flickr8k", arguments.photos, "val") if arguments.photos else read_data("scenes", None, "val")
    cases = find_cases(data, arguments.photographs, "phrases")
    found = compare_methods(
        lookers, cases, ways=("pixels", "tokens"), fits=("multimodal",), steps=5, draws=1, progress=shown
    )
    tables = tables_of("dinov2-small", found)
    tables["dinov2-small: randomised"] = insensitive("dinov2-small", network, lookers, cases[:4])
    if arguments.gaze:
        tables["dinov2-small: gaze"] = gaze(arguments, lookers)
    return tables


def gaze(arguments: argparse.Namespace, lookers: dict[str, Looker]) -> list[Row]:
    """Where people look, by every method."""
    from foveate.lab.data.fixations import read_fixations
    from foveate.watch.gaze_agreement import evaluate_gaze

    cases = read_fixations(arguments.gaze)[: arguments.photographs * 2]
    rows: list[Row] = []
    for name, looker in lookers.items():

        def maps_of(one: Any, looker: Looker = looker) -> torch.Tensor:
            return looker(one.image.pixels(), Case(one.image, one.task, is_question=True)).words[0].attention.map()[0]

        found = evaluate_gaze(name, "gaze", maps_of, cases).summary()
        rows += [
            {"map": kind, **{m: s[m] for m in ("nss", "auc-judd", "auc-shuffled", "gain") if m in s}}
            for kind, s in found.items()
            if kind == name or (name == "default" and kind != "mean of the model")
        ]
    show("dinov2-small: gaze", [brief(row) for row in rows])
    return [plain(row) for row in rows]


def families(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Two small families from their configurations: time, memory and faithfulness of untrained weights."""
    from tests.watch.test_planted import build

    tables = {}
    cases = find_cases(read_data("scenes", None, "val"), 4)
    for family in ("LLaVA", "CLIP"):
        network, processor, _ = build(family)
        short = [Case(case.image, "what is this", case.boxes, is_question=True) for case in cases]
        found = compare_methods(
            lookers_of(network, processor), short, ways=("pixels", "tokens"), fits=("multimodal",), steps=5, draws=1
        )
        tables |= tables_of(f"{family}, untrained", found)
    return tables


class Counted(torch.nn.Module):
    """A model that counts the images and the passes that it has seen."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.passes, self.images = model, 0, 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The score of the first class."""
        self.passes, self.images = self.passes + 1, self.images + len(pixels)
        return self.model(pixels).logits[:, 0]


def vision_cost() -> list[Row]:
    """Deletion with 20 steps for a ViT of 12 layers at 224 pixels."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)
    model = Counted(transformers.ViTForImageClassification(config).eval())
    image = torch.rand(1, 3, 224, 224)
    deletion(model, image, torch.rand(1, 14, 14), steps=20)
    rows = [
        {"of": "deletion, 20 steps, ViT of 12 layers at 224", "forward passes": model.passes, "images": model.images}
    ]
    show("cost of deletion", rows)
    return rows


def words_of_llava(count: int) -> tuple[Any, dict[str, Callable[[], Any]]]:
    """A LLaVA with 4 layers of 256 features and 576 image tokens: generating some words, and their relevance."""
    import transformers

    from foveate.watch.look_methods import Call
    from foveate.watch.model_families import family_of
    from foveate.watch.prompts import make_inputs
    from foveate.watch.relevance import relevance
    from tests.watch.processors import PROCESSORS

    torch.manual_seed(0)
    text = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4, vocab_size=200
    )
    vision = transformers.CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=192,
        patch_size=8,
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=199, vision_feature_layer=-1
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    processor = PROCESSORS["LLaVA"]()
    processor.image_processor.size, side = {"shortest_edge": 192}, {"height": 192, "width": 192}
    processor.image_processor.crop_size = side
    pixels = np.random.default_rng(0).integers(0, 255, (192, 192, 3), np.uint8)
    family = family_of(model)
    assert family is not None
    inputs = make_inputs(model, processor, pixels, "what is this", family)
    model.generation_config.eos_token_id = None
    generate: Callable[[], Any] = partial(model.generate, **inputs, max_new_tokens=count, do_sample=False)
    call = Call(model, processor, family, inputs, "what is this", pixels, max_new_tokens=count)
    return model, {"generation": generate, "relevance": partial(relevance, call)}


def peak(name: str, count: int) -> float:
    """How far the memory of this process, which does nothing else, rises at most, in MB."""
    torch.set_num_threads(1)
    run = words_of_llava(count)[1][name]
    memory: dict[str, float] = {}
    with costs([0.0], memory, name):
        run()
    return memory[name]


def relevance_cost(tokens: Iterable[int] = (1, 4)) -> list[Row]:
    """Relevance of the words of a LLaVA beside their generation; memory by a process of its own for each."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed memory returns to the system
    rows = []
    for count in tokens:
        model, named = words_of_llava(count)
        clock = {name: seconds(run, repeat=8) for name, run in named.items()}
        memory = {}
        for name in named:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                memory[name] = pool.apply(peak, (name, count))
        weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
        rows.append(
            {
                "words": count, "time": clock["relevance"] / clock["generation"],
                "memory with the weights": (weights + memory["relevance"]) / (weights + memory["generation"]),
                "MB of generation": memory["generation"], "MB of relevance": memory["relevance"], "weights": weights,
            }
        )  # fmt: skip
    show("relevance as a multiple of generation", rows)
    return rows


def measure_costs(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Forward passes, time and memory."""
    return {"deletion": vision_cost(), "relevance": relevance_cost()}


def effects(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Heads of the real weights by what knocking them out costs, beside where they look."""
    from foveate.watch.measure import head_effects

    network, processor = open_model("dinov2-small")
    data = read_data("flickr8k", arguments.photos, "val") if arguments.photos else read_data("scenes", None, "val")
    cases = find_cases(data, arguments.effects, "phrases")
    found = head_effects(lookers_of(network, processor)["all layers"], cases, progress=shown)
    rows = [{"by": by, **row} for by in ("effect", "grounding") for row in found.best(by, count=3)]
    plot = RESULTS.parent.parent / "docs" / "images" / "believe-heads.svg"
    found.plot().savefig(plot, metadata={"Date": None})
    tables = {
        "dinov2-small: heads": [plain(row) for row in rows],
        "dinov2-small: heads, agreement": [{"rank correlation": found.agreement(), "photographs": len(cases)}],
    }
    show(
        "dinov2-small: heads",
        [
            brief(
                {
                    "by": r["by"],
                    "layer": r["layer"],
                    "head": r["head"],
                    "effect": r["effect"],
                    "grounding": r["grounding"],
                }
            )
            for r in rows
        ],
    )
    return tables


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, list[Row]]]] = {
    "criterion": criterion,
    "vqa": vqa,
    "road": road,
    "dinov2": dinov2,
    "captioning": captioning,
    "effects": effects,
    "families": families,
    "costs": measure_costs,
}


def main() -> None:
    """Run the parts; with --save keep what other parts saved before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--questions", type=int, default=300, help="of the criterion")
    parser.add_argument("--texts", type=int, default=100, help="questions that all methods answer")
    parser.add_argument("--roads", type=int, default=12, help="questions for ROAD")
    parser.add_argument("--effects", type=int, default=8, help="photographs for the heads")
    parser.add_argument("--phrases", type=int, default=40)
    parser.add_argument("--photographs", type=int, default=16)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--gaze", type=Path)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = RESULTS / "looks.json"
    for part in arguments.only:
        tables = PARTS[part](arguments)
        if arguments.save:
            before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            before.pop("machine", None)
            save("looks", machine(["torch", "transformers"]), {**before, **tables})


if __name__ == "__main__":
    main()
