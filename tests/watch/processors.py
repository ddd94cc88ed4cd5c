"""Processors of the tiny models, with a tokenizer of a few words: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WORDS = (
    "what",
    "is",
    "the",
    "red",
    "circle",
    "doing",
    "in",
    "this",
    "image",
    "describe",
    "a",
    "an",
    "of",
    "on",
    "left",
    "right",
    "big",
    "small",
    "blue",
    "green",
    "square",
)
SPECIAL = {
    "<image>": 199, "<|image_pad|>": 199, "<IMG_CONTEXT>": 199, "[IMG]": 199, "<image_soft_token>": 199,
    "<|video_pad|>": 198, "<video>": 198, "<|vision_start|>": 197, "<img>": 197, "<|vision_end|>": 196, "</img>": 196,
    "<fake_token_around_image>": 195, "<global-img>": 194, "[IMG_BREAK]": 193, "[IMG_END]": 192,
    "<start_of_image>": 191, "<end_of_image>": 190,
}  # fmt: skip


def tokenizer(*special: str, **options: Any) -> Any:
    """A tokenizer of whole words, with the special tokens at the ids that the tiny models expect."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {word: 10 + index for index, word in enumerate(WORDS)}
    used = set(vocabulary.values()) | set(range(100, 136)) | set(SPECIAL.values())
    vocabulary |= {f"word{index}": index for index in range(200) if index not in used}
    vocabulary |= {f"<row_{i + 1}_col_{j + 1}>": 100 + 6 * i + j for i in range(6) for j in range(6)}
    vocabulary |= {name: SPECIAL[name] for name in special}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rows = [name for name in vocabulary if name.startswith("<row_")]
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options
    )
    made.add_tokens([*special, *rows], special_tokens=True)
    return made


def _make(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**options)


def pil(name: str, **options: Any) -> Any:
    """An image processor on PIL."""
    import transformers

    return getattr(transformers, f"{name}ImageProcessorPil")(**options)


def _clip_like(edge: int = 32) -> Any:
    return pil("CLIP", size={"shortest_edge": edge}, crop_size={"height": edge, "width": edge})


def _square(name: str, edge: int = 32, **options: Any) -> Any:
    return pil(name, size={"height": edge, "width": edge}, **options)


def _llava(name: str, image_processor: Any) -> Any:
    return _make(
        name, image_processor=image_processor, tokenizer=tokenizer("<image>"), patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip


def _qwen(name: str) -> Any:
    images = pil("Qwen2VL", patch_size=8, merge_size=2, temporal_patch_size=2, min_pixels=16 * 16, max_pixels=96 * 64)
    made = Bare(images, tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"))
    made.image_token = "<|image_pad|>"
    made.count = lambda inputs: int(inputs["image_grid_thw"][0].prod()) // 4
    made.around = ("<|vision_start|>", "<|vision_end|>")
    return made


class Bare:
    """Stands in for processors whose video part needs torchvision: the same image part, the same tokens in the text."""

    chat_template = None
    kinds = "mm_token_type_ids"

    def __init__(self, image_processor: Any, words: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, words
        self.image_token, self.around = "<image>", ("", "")
        self.count: Callable[[Any], int] = lambda inputs: 0

    def __call__(self, images: Any, text: str, return_tensors: str) -> dict[str, Any]:
        made = dict(self.image_processor(images=images, return_tensors=return_tensors))
        tokens = " ".join([self.around[0], *[self.image_token] * self.count(made), self.around[1]])
        text = text.replace(self.image_token, f" {tokens} ")
        encoded = self.tokenizer(text, return_tensors=return_tensors)
        ids = encoded["input_ids"]
        kinds = (ids == self.tokenizer.convert_tokens_to_ids(self.image_token)).long()
        return {"input_ids": ids, "attention_mask": encoded["attention_mask"], self.kinds: kinds, **made}


def _internvl() -> Any:
    images = _square("GotOcr2", crop_to_patches=True, min_patches=1, max_patches=6)
    made = Bare(images, tokenizer("<IMG_CONTEXT>", "<img>", "</img>"))
    made.image_token, made.around = "<IMG_CONTEXT>", ("<img>", "</img>")
    made.count = lambda inputs: 4 * len(inputs["pixel_values"])
    return made


def _idefics(name: str, images: Any) -> Any:
    words = tokenizer("<image>", "<fake_token_around_image>", "<global-img>")
    return _make(name, image_processor=images, tokenizer=words, image_seq_len=4)


def _smolvlm() -> Any:
    # SmolVLM's own processor needs torchvision for videos; its image part and prompt are those of Idefics3.
    return _idefics("Idefics3Processor", pil("SmolVLM", size={"longest_edge": 96}, max_image_size={"longest_edge": 32}))


def _paligemma() -> Any:
    words = tokenizer("<image>")
    words.image_token, words.image_token_id = "<image>", 199
    return _make("PaliGemmaProcessor", image_processor=_square("Siglip", image_seq_length=16), tokenizer=words)


def _gemma3() -> Any:
    images = _square("Gemma3", do_pan_and_scan=False)
    made = Bare(images, tokenizer("<image_soft_token>", "<start_of_image>", "<end_of_image>"))
    made.image_token, made.around = "<image_soft_token>", ("<start_of_image>", "<end_of_image>")
    made.kinds = "token_type_ids"
    made.count = lambda inputs: 4
    return made


def _pixtral() -> Any:
    images = pil("Pixtral", size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    made = Bare(images, tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]"))
    made.image_token, made.around = "[IMG]", ("", "[IMG_END]")
    made.count = lambda inputs: int(inputs["image_sizes"][0][0] // 16 * (inputs["image_sizes"][0][1] // 16))
    return made


def _blip2(name: str) -> Any:
    words = tokenizer("<image>")
    return _make(name, image_processor=_square("Blip"), tokenizer=words, num_query_tokens=6)


def _instructblip() -> Any:
    words = tokenizer("<image>")
    return _make(
        "InstructBlipProcessor", image_processor=_square("Blip"), tokenizer=words, qformer_tokenizer=tokenizer(),
        num_query_tokens=6,
    )  # fmt: skip


def _simple(name: str, images: Any, special: tuple[str, ...] = ()) -> Any:
    return _make(name, image_processor=images, tokenizer=tokenizer(*special))


def _kosmos() -> Any:
    made = Bare(_square("CLIP", do_center_crop=False), tokenizer("<image>"))
    made.count, made.kinds = lambda inputs: 4, "image_embeds_position_mask"
    return made


PROCESSORS: dict[str, Callable[[], Any]] = {
    "ViT": lambda: _square("ViT"),
    "DeiT": lambda: pil("DeiT", size={"height": 40, "width": 40}, crop_size={"height": 32, "width": 32}),
    "BEiT": lambda: _square("Beit", do_center_crop=False),
    "Data2Vec vision": lambda: _square("Beit", do_center_crop=False),
    "ViT-MSN": lambda: _square("ViT"),
    "SAM vision": lambda: pil("Sam", size={"longest_edge": 32}, pad_size={"height": 32, "width": 32}),
    "DINOv2": lambda: pil("Bit", size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
    "DINOv2 with registers": lambda: pil("Bit", size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
    "DINOv3 ViT": lambda: _square("ViT"),
    "I-JEPA": lambda: _square("ViT"),
    "YOLOS": lambda: pil("Yolos", size={"height": 32, "width": 32}, do_pad=False),
    "Swin": lambda: _square("ViT"),
    "SwinV2": lambda: _square("ViT"),
    "SigLIP vision": lambda: _square("Siglip"),
    "CLIP": lambda: _simple("CLIPProcessor", _clip_like()),
    "SigLIP": lambda: _simple("SiglipProcessor", _square("Siglip")),
    "SigLIP 2": lambda: Bare(pil("Siglip2", patch_size=8, max_num_patches=16), tokenizer()),
    "AIMv2": lambda: _simple("CLIPProcessor", _clip_like()),
    "AltCLIP": lambda: _simple("CLIPProcessor", _clip_like()),
    "Chinese-CLIP": lambda: _simple("ChineseCLIPProcessor", _square("ChineseCLIP", do_center_crop=False)),
    "CLIPSeg": lambda: _simple("CLIPSegProcessor", _square("ViT")),
    "OWL-ViT": lambda: _simple("CLIPProcessor", _square("OwlViT", do_center_crop=False)),
    "OWLv2": lambda: _simple("CLIPProcessor", _square("Owlv2")),
    "BLIP": lambda: _simple("BlipProcessor", _square("Blip")),
    "BLIP captioner": lambda: _simple("BlipProcessor", _square("Blip")),
    "BridgeTower": lambda: _simple("BridgeTowerProcessor", _clip_like()),
    "ViT + GPT-2": lambda: _simple("TrOCRProcessor", _square("ViT")),
    "DETR": lambda: pil("Detr", size={"shortest_edge": 96, "longest_edge": 160}),
    "Conditional DETR": lambda: pil("ConditionalDetr", size={"shortest_edge": 96, "longest_edge": 160}),
    "ViLT": lambda: _simple("ViltProcessor", pil("Vilt", size={"shortest_edge": 32}, size_divisor=8)),
    "FLAVA": lambda: _simple("CLIPProcessor", _clip_like()),
    "GIT": lambda: _simple("GitProcessor", _clip_like()),
    "LLaVA": lambda: _llava("LlavaProcessor", _clip_like()),
    "VipLLaVA": lambda: _llava("LlavaProcessor", _clip_like()),
    "LLaVA, padded": lambda: _llava(
        "LlavaProcessor", pil("Llava", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, do_pad=True)
    ),
    "LLaVA-NeXT": lambda: _llava(
        "LlavaNextProcessor",
        pil("LlavaNext", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32},
            image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
    ),
    "PaliGemma": _paligemma,
    "Gemma 3": _gemma3,
    "Qwen2-VL": lambda: _qwen("Qwen2VL"),
    "Qwen2.5-VL": lambda: _qwen("Qwen2_5_VL"),
    "Qwen3-VL": lambda: _qwen("Qwen3VL"),
    "Idefics3": lambda: _idefics(
        "Idefics3Processor", pil("Idefics3", size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    ),
    "SmolVLM": _smolvlm,
    "InternVL": _internvl,
    "BLIP-2": lambda: _blip2("Blip2Processor"),
    "InstructBLIP": _instructblip,
    "Pixtral (Mistral 3)": _pixtral,
    "Kosmos-2": _kosmos,
}  # fmt: skip
