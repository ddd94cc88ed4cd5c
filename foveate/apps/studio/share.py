"""Sharing a view: a link that restores it, an image, and the Python that makes it, which runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlencode

from foveate.apps.studio.attention_maps import KNOBS, set_options
from foveate.apps.studio.cards import MapChoice
from foveate.apps.studio.picker import EXAMPLES, ChosenImage
from foveate.apps.studio.widgets import on_event, script

MAX_LINK = 8000  # characters
IMAGE_NOTE = "The link is in your clipboard; your own image is not part of it, it opens with the first example."


def share_html(link: Mapping[str, str], code: str, *, note: str = "", images: bool = True) -> str:
    """The bar below a view: copy the link, save the maps, copy the code.

    Args:
        link: what restores the view, see `read_link`.
        code: Python that makes the view.
        note: what to say instead once the link is copied.
        images: whether there are maps to save.
    """
    saves = [("png", "Save as PNG"), ("svg", "Save as SVG")] if images else []
    buttons = "".join(
        f'<button type="button" class="fv-button" data-share="{kind}">{label}</button>'
        for kind, label in (("link", "Copy link"), *saves, ("code", "Copy the Python"))
    )
    return (
        f'<div class="fv-share" data-link="{escape(urlencode(link))}" data-note="{escape(note)}">{buttons}'
        f'<span role="status"></span><pre tabindex="0" aria-label="Python code" hidden>{escape(code)}</pre></div>'
    )


def read_link(text: Any) -> dict[str, str]:
    """The fields of a link, empty for anything else.

    >>> read_link("example=2&question=What+is+red%3F")
    {'example': '2', 'question': 'What is red?'}
    """
    if not isinstance(text, str) or len(text) > MAX_LINK:
        return {}
    try:
        return dict(parse_qsl(text, max_num_fields=20))
    except ValueError:
        return {}


def choice_fields(choice: MapChoice) -> dict[str, str]:
    """The mechanisms and options of a view as fields of a link.

    >>> choice_fields(MapChoice(("tvmax",), {"smoothness": 0.2}))
    {'maps': 'tvmax', 'smoothness': '0.2'}
    """
    return {"maps": ",".join(choice.names), **{name: f"{value:g}" for name, value in choice.knobs.items()}}


def read_choice(fields: Mapping[str, str], default: Sequence[str]) -> MapChoice:
    """The mechanisms and options of a link; the default ones where it has none.

    >>> read_choice({"maps": "tvmax,nonsense", "alpha": "1.2"}, ["softmax"]).names
    ('tvmax',)
    """
    names = [name for name in fields.get("maps", "").split(",") if name]
    known = MapChoice(
        tuple(names or default), {name: knob.clamp(_number(fields.get(name))) for name, knob in KNOBS.items()}
    )
    return MapChoice.from_json(known.to_json())


def build_restore(gr: Any, page: str, restore: Callable[[dict[str, str]], Any], outputs: Sequence[Any]) -> None:
    """Call `restore` with the fields of the link that the page was opened with, if it is one of this page."""
    component = gr.HTML(js_on_load=script("restore", page=page), elem_id=f"{page}-restore", visible=True)
    component.apply(
        on_event(gr, "link", lambda text: restore(read_link(text))),
        None,
        list(outputs),
        show_progress="hidden",
        api_visibility="private",
    )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


SCENE = 'image = make_scenes(split="test", count={count}).images[{number}].pixels()'


def ask_code(image: ChosenImage, question: str, run: str, choice: MapChoice, *, softmax: bool = True) -> str:
    """A question, its answer and the maps of several mechanisms on the same scores.

    Args:
        image, question: that were asked.
        run: as `fv.load` takes it.
        choice: the mechanisms and their options.
        softmax: whether the run attends by softmax, whose weights are the scores.
    """
    return "\n".join([
        _begin(image),
        f"question = {question!r}",
        f"answer = fv.load({run!r}).answer(image, question)",
        "print(answer.text, answer.confidence)",
        "",
        "# every mechanism on the same scores",
        f"looked = {_looked(run, softmax)}",
        "scores, grid = looked.weights.clamp_min(1e-38).log(), looked.grid",
        *_map_lines(choice),
        'fv.plot.compare(image, maps).savefig("attention.png")',
    ])  # fmt: skip


def _looked(run: str, softmax: bool) -> str:
    return (
        "answer.attention" if softmax else f'fv.load({run!r}, ["mechanism=softmax"]).answer(image, question).attention'
    )


def _map_lines(choice: MapChoice) -> list[str]:
    """Lines that make `maps` of `scores` (1, N) on `grid`."""
    rows = [f"    {name!r}: {set_options(name, choice.knobs)!r}," for name in choice.names]
    return [
        "options = {",
        *rows,
        "}",
        "values = scores.new_zeros(*scores.shape, 1)",
        "maps = {name: fv.mechanism(name, **own).eval()(scores, values, grid=grid) for name, own in options.items()}",
    ]


def _begin(image: ChosenImage, *imports: str) -> str:
    """The imports, and the line that makes `image`."""
    return "\n".join(["import foveate as fv", *_import_scenes(image), *imports, "", _image_line(image)])


def _import_scenes(image: ChosenImage) -> list[str]:
    if image.example is None:
        return []
    name = "scenes import make_scenes" if image.example < EXAMPLES else "image_sources import example_photos"
    return [f"from foveate.lab.data.{name}"]


def _image_line(image: ChosenImage) -> str:
    if image.example is None:
        return 'image = "image.jpg"  # your own image'
    if image.example >= EXAMPLES:
        return f"image = list(example_photos().values())[{image.example - EXAMPLES}]"
    return SCENE.format(count=EXAMPLES, number=image.example)


def play_code(scores: list[float], side: int, contrast: float, choice: MapChoice) -> str:
    """Painted scores and the maps of several mechanisms."""
    return "\n".join([
        "import torch",
        "import foveate as fv",
        "",
        f"scores, grid = {contrast:g} * {_tensor(scores, side)}[None], ({side}, {side})",
        *_map_lines(choice),
        'fv.plot.compare(None, maps).savefig("attention.png")',
    ])  # fmt: skip


def _tensor(scores: list[float], side: int) -> str:
    rows = ",\n    ".join(str(scores[start : start + side]).strip("[]") for start in range(0, side * side, side))
    return f"torch.tensor([\n    {rows},\n])"


def caption_code(image: ChosenImage, run: str, beams: int) -> str:
    """A caption and the map of each of its words."""
    return f"""{_begin(image)}
caption = fv.load({run!r}).caption(image, beams={beams})
print(caption.text)
fv.plot.strip(image, caption.words, caption.attention).savefig("words.png")"""


def search_code(run: str, text: str, source: str, has_words: bool) -> str:
    """Images that a text describes, and where its words look in the best one, if the run has words that look.

    Args:
        run: as `fv.load` takes it.
        text: to search for.
        source: code that makes `images`.
        has_words: whether the run attends from words to images.
    """
    found = [
        "import foveate as fv",
        source,
        f"run, text = fv.load({run!r}), {text!r}",
        "best = run.match(images, text)[:, 0].topk(6)",
        "print(best.indices.tolist(), best.values.tolist())",
    ]
    looked = [
        "image = images[int(best.indices[0])]",
        "seen = run.look(image, text)",
        'fv.plot.strip(image, seen.words, seen.attention).savefig("words.png")',
    ]
    return "\n".join([*found, *(looked if has_words else [])])


def index_code(run: str, text: str, index: str, embedder: str) -> str:
    """Images of an index that a text describes.

    Args:
        run: that re-ranks, as `fv.load` takes it.
        text: to search for.
        index: its directory.
        embedder: the run that embedded it.
    """
    return f"""import foveate as fv
from foveate.lab.search import open_index, search_by_text

found = search_by_text(
    open_index({index!r}), {text!r}, fv.load({embedder!r}), top=6, reranker=fv.load({run!r}), first=50
)
for one in found:
    print(one.name, one.score)"""


def explain_code(scores: list[float], side: int, knobs: Mapping[str, Mapping[str, float]]) -> str:
    """Painted scores through the mechanisms of the page Explain."""
    return "\n".join([
        "import torch",
        "import foveate as fv",
        "",
        f"scores = {_tensor(scores, side)}",
        "values = torch.zeros(1, scores.numel(), 1)",
        "attend = {",
        '    "softmax": fv.mechanism("softmax"),',
        f'    "entmax": fv.mechanism("entmax", alpha={max(1.05, knobs["threshold"]["alpha"]):g}),',
        f'    "tvmax": fv.mechanism("tvmax", smoothness={knobs["fusing"]["smoothness"]:g}),',
        '    "continuous-softmax": fv.mechanism("continuous-softmax"),',
        f'    "multimodal": fv.mechanism("multimodal", penalty={knobs["choice"]["penalty"]:g}),',
        "}",
        f"maps = {{name: one.eval()(scores[None], values, grid=({side}, {side})) for name, one in attend.items()}}",
        'fv.plot.compare(None, maps).savefig("attention.png")',
    ])  # fmt: skip


def models_code(image: ChosenImage, model: str, prompt: str, words: int) -> str:
    """Where a Hugging Face model looks, word by word."""
    return f"""{_begin(image)}
seen = fv.look({model!r}, image, {prompt!r}, max_new_tokens={words})
print(seen.text)
seen.plot(fit="multimodal").savefig("words.png")"""


def compare_code(
    image: ChosenImage, question: str, run: str, sides: Mapping[str, str | None], *, softmax: bool = True
) -> str:
    """Two maps beside each other: of mechanisms on the same scores, or of runs.

    Args:
        image: that was chosen.
        question: that was asked.
        run: whose scores the mechanisms share.
        sides: per title the run whose own attention it is; None for a mechanism.
        softmax: whether that run attends by softmax.
    """
    lines = [f"question = {question!r}", "maps = {}"]
    if None in sides.values():
        lines += [
            f"answer = fv.load({run!r}).answer(image, question)",
            f"looked = {_looked(run, softmax)}",
            "scores, grid = looked.weights.clamp_min(1e-38).log(), looked.grid",
            "values = scores.new_zeros(*scores.shape, 1)",
        ]
    for title, own in sides.items():
        if own is None:
            lines.append(f"maps[{title!r}] = fv.mechanism({title!r}).eval()(scores, values, grid=grid)")
        else:
            lines.append(f"maps[{title!r}] = fv.load({own!r}).answer(image, question).attention")
    lines.append('fv.plot.compare(image, maps).savefig("attention.png")')
    return "\n".join([_begin(image), *lines])
