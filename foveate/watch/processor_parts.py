"""An image processor and a tokenizer as one processor, for models without one that can be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Families whose processor repeats the image's token once per merged patch; loading it needs torchvision, for videos.
ONE_TOKEN_PER_PATCH = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


@dataclass(frozen=True)
class ProcessorParts:
    """The two parts of a processor, called as one.

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
