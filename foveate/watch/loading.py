"""Load a model and its processor from a directory or the Hugging Face Hub."""

from __future__ import annotations

from typing import Any

from torch import nn

from foveate.errors import DataError
from foveate.registry import optional
from foveate.watch.model_families import FAMILIES, GENERATE, VISION
from foveate.watch.processor_parts import ProcessorParts

UNREADABLE = (OSError, ValueError, KeyError, ImportError)


def load_pretrained(name: str, *, device: str | None = None) -> tuple[nn.Module, Any]:
    """A transformers model in evaluation mode and its processor.

    Args:
        name: a directory, or `owner/repository` on the Hub.
        device: of the model; the CPU by default.

    The class is the one that the configuration names. Raises DataError with the Hub's own message, in one sentence, for
    a model that is neither on disk nor can be fetched.
    """
    transformers = optional("look", "transformers", extra="hf")
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


def one_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, on one line.

    >>> one_sentence(OSError("No such model.\\nDid you log in?"))
    'No such model'
    """
    text = " ".join(str(error).split())
    return (text.split(". ")[0] or type(error).__name__).rstrip(".")
