"""Load a model and its processor from a directory or the Hugging Face Hub."""

from __future__ import annotations

from typing import Any

from torch import nn

from foveate.errors import DataError
from foveate.registry import optional


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
        processor = _processor(transformers, name)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"look: expected a model in the directory or repository {name!r}, got {one_sentence(error)}; check the "
            "name and the connection"
        ) from error
    return model.to(device or "cpu").eval(), processor


def _processor(transformers: Any, name: str) -> Any:
    """The processor, or only the image processor of a vision model."""
    try:
        return transformers.AutoProcessor.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError):
        return transformers.AutoImageProcessor.from_pretrained(name)


def one_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, on one line.

    >>> one_sentence(OSError("No such model.\\nDid you log in?"))
    'No such model'
    """
    text = " ".join(str(error).split())
    return (text.split(". ")[0] or type(error).__name__).rstrip(".")
