"""Tiny random models of many families, built from their configurations: nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SIZES = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "embed_dim", "projection_dim", "encoder_hidden_size", "decoder_hidden_size",
         "n_embd", "dim", "visual_embedding_dim", "image_text_hidden_size", "qformer_hidden_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "mlp_dim", "d_ff", "n_positions"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer", "depth",
         "num_decoder_layers", "l_layers", "x_layers", "r_layers", "num_key_value_heads", "n_layers",
         "type_vocab_size"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "n_head", "n_heads"),
        4),
    **dict.fromkeys(("max_position_embeddings", "max_source_positions", "max_target_positions"), 128),
    "d_kv": 8, "head_dim": 8, "vocab_size": 200, "image_size": 32, "patch_size": 8, "max_length": 20, "num_queries": 6,
    "num_query_tokens": 6, "decoder_start_token_id": 1,
}  # fmt: skip
DROPPED = (
    "architectures", "transformers_version", "torch_dtype", "dtype", "_out_features", "out_features", "_out_indices",
    "out_indices", "stage_names", "layer_types", "reshape_hidden_states",
)  # fmt: skip
IMAGE, VIDEO = 199, 198
ids = torch.randint(5, 190, (2, 7), generator=torch.Generator().manual_seed(0))
# Both rows hold a padded end, so that masks are exercised.
seen = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Tiny:
    """One family: how to build its tiny model and what to pass it."""

    architecture: str
    config: Callable[[], Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def build(self, implementation: str | None = None, seed: int = 0) -> nn.Module:
        """The model in evaluation mode with random weights."""
        import transformers

        torch.manual_seed(seed)
        options = {} if implementation is None else {"attn_implementation": implementation}
        model: nn.Module = getattr(transformers, self.architecture)._from_config(self.config(), **options).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1 and not parameter.any():  # a projection that starts at zero would hide the image
                nn.init.normal_(parameter, std=0.02)
        return model

    def arguments(self, model: nn.Module) -> dict[str, Any]:
        """Standard pixels and token ids where the model takes them, and the family's own inputs."""
        names = inspect.signature(model.forward).parameters
        standard = {"pixel_values": pixels, "input_ids": ids, "decoder_input_ids": ids[:, :5]}
        found = {name: value for name, value in standard.items() if name in names}
        if "attention_mask" in names and "input_ids" in names:
            found["attention_mask"] = seen
        return {**found, **self.inputs}


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with every size made small."""
    small: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            small[key] = shrink(value)
        elif key == "vision_feature_layer":
            small[key] = -1
        elif key in SIZES and isinstance(value, int | float):
            small[key] = SIZES[key]
        elif (str(key).endswith("token_id") or key == "image_token_index") and isinstance(value, int):
            small[key] = IMAGE if "image" in key else VIDEO if "video" in key else 1
        elif key not in DROPPED:
            small[key] = value
    return small


def merge(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with changes, also in its parts."""
    for key, value in changes.items():
        config[key] = (
            merge(config[key], value) if isinstance(value, dict) and isinstance(config.get(key), dict) else value
        )
    return config


def small(name: str, **changes: Any) -> Any:
    """The configuration class `name` of transformers with small sizes and changes."""
    import transformers

    kind = getattr(transformers, name)
    return kind.from_dict(merge(shrink(kind().to_dict()), changes))


def config(name: str, **options: Any) -> Any:
    """A configuration with exactly these options."""
    import transformers

    return getattr(transformers, name)(**options)


def with_image(count: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """Token ids that begin with `count` image tokens, and their mask."""
    start = [*before, *[IMAGE] * count, *after]
    tokens = torch.cat([torch.tensor([start] * 2), ids], 1)
    kinds = (tokens == IMAGE).long()
    mask = torch.cat([torch.ones(2, len(start), dtype=torch.long), seen], 1)
    return {"input_ids": tokens, "attention_mask": mask, "mm_token_type_ids": kinds}


def swin(name: str, **changes: Any) -> Any:
    """A Swin of two stages with windows of four."""
    sizes = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    return small(name, **{**sizes, **changes})


def resnet() -> Any:
    """A ResNet that makes a map of 1/32 of the image."""
    return config(
        "ResNetConfig", embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )


def detr(name: str, **changes: Any) -> Any:
    """A detector with a ResNet."""
    sizes = {
        "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "backbone_config": resnet(),
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "num_queries": 5,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    }  # fmt: skip
    return config(name, **{**sizes, **changes})


def mrope() -> dict[str, Any]:
    """Rotary positions in three parts, as Qwen's text models have."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}


def qwen(version: str) -> Any:
    """A Qwen-VL of the given version with patches of 8, merged two by two."""
    sizes = {"depth": 2, "num_heads": 4, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    vision = {
        "2": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        "2_5": {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64, "fullatt_block_indexes": [1],
                "window_size": 32},
        "3": {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 64, "num_position_embeddings": 64,
              "deepstack_visual_indexes": [0]},
    }[version]  # fmt: skip
    name = f"Qwen{version}VL".replace("2_5VL", "2_5_VL")
    return config(
        f"{name}Config",
        vision_config={**sizes, **vision},
        text_config=small(f"{name}TextConfig", **mrope()).to_dict(),
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=197, vision_end_token_id=196,
    )  # fmt: skip


QWEN_INPUTS = {
    **with_image(4, (197,), (196,)),
    "pixel_values": torch.randn(32, 3 * 2 * 64, generator=torch.Generator().manual_seed(2)),
    "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
}
_TEXT = {"text_config": {"projection_size": 32}}
_16 = with_image(16)
_4 = with_image(4)


def _clip_llava(name: str, **changes: Any) -> Any:
    parts = {"vision_config": small("CLIPVisionConfig"), "text_config": small("LlamaConfig"), "image_token_id": IMAGE}
    layer = {} if "vision_feature_layers" in changes else {"vision_feature_layer": -1}
    return config(name, **{**parts, **layer, **changes})


TINY: dict[str, Tiny] = {
    "ViT": Tiny("ViTModel", lambda: small("ViTConfig")),
    "DeiT": Tiny("DeiTModel", lambda: small("DeiTConfig")),
    "BEiT": Tiny("BeitModel", lambda: small("BeitConfig")),
    "Data2Vec vision": Tiny("Data2VecVisionModel", lambda: small("Data2VecVisionConfig")),
    "ViT-MSN": Tiny("ViTMSNModel", lambda: small("ViTMSNConfig")),
    "I-JEPA": Tiny("IJepaModel", lambda: small("IJepaConfig")),
    "DINOv2": Tiny("Dinov2Model", lambda: small("Dinov2Config")),
    "DINOv2 with registers": Tiny("Dinov2WithRegistersModel", lambda: small("Dinov2WithRegistersConfig")),
    "DINOv3 ViT": Tiny("DINOv3ViTModel", lambda: small("DINOv3ViTConfig", num_register_tokens=4)),
    "YOLOS": Tiny("YolosModel", lambda: small("YolosConfig", image_size=[32, 32], num_detection_tokens=5)),
    "Swin": Tiny("SwinModel", lambda: swin("SwinConfig")),
    "SwinV2": Tiny("Swinv2Model", lambda: swin("Swinv2Config")),
    "SAM vision": Tiny(
        "SamVisionModel",
        lambda: small(
            "SamVisionConfig",
            output_channels=16,
            num_pos_feats=16,
            global_attn_indexes=[1],
            window_size=2,
            initializer_range=0.02,
        ),
    ),
    "SigLIP vision": Tiny("SiglipVisionModel", lambda: small("SiglipVisionConfig")),
    "CLIP": Tiny("CLIPModel", lambda: small("CLIPConfig")),
    "SigLIP": Tiny("SiglipModel", lambda: small("SiglipConfig", **_TEXT)),
    "SigLIP 2": Tiny(
        "Siglip2Model",
        lambda: small("Siglip2Config", **_TEXT, vision_config={"num_patches": 16}),
        {
            "pixel_values": torch.randn(2, 16, 192, generator=torch.Generator().manual_seed(3)),
            "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[2, 8], [4, 4]]),
        },
    ),
    "AIMv2": Tiny("Aimv2Model", lambda: small("Aimv2Config")),
    "AltCLIP": Tiny("AltCLIPModel", lambda: small("AltCLIPConfig", text_config={"project_dim": 32})),
    "Chinese-CLIP": Tiny("ChineseCLIPModel", lambda: small("ChineseCLIPConfig")),
    "CLIPSeg": Tiny("CLIPSegModel", lambda: small("CLIPSegConfig")),
    "OWL-ViT": Tiny("OwlViTModel", lambda: small("OwlViTConfig")),
    "OWLv2": Tiny("Owlv2Model", lambda: small("Owlv2Config")),
    "FLAVA": Tiny("FlavaModel", lambda: small("FlavaConfig")),
    "BLIP": Tiny("BlipForImageTextRetrieval", lambda: small("BlipConfig")),
    "BLIP captioner": Tiny("BlipForConditionalGeneration", lambda: small("BlipConfig")),
    "BridgeTower": Tiny(
        "BridgeTowerModel",
        lambda: config(
            "BridgeTowerConfig",
            num_hidden_layers=2,
            num_attention_heads=4,
            hidden_size=32,
            intermediate_size=64,
            vision_config={"hidden_size": 64, "num_hidden_layers": 2, "patch_size": 8, "image_size": 32},
            text_config={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 64,
                "vocab_size": 200,
            },
        ),
    ),
    "ViT + GPT-2": Tiny(
        "VisionEncoderDecoderModel",
        lambda: _encoder_decoder(small("ViTConfig"), small("GPT2Config", add_cross_attention=True)),
    ),
    "TrOCR decoder": Tiny(
        "TrOCRForCausalLM",
        lambda: small("TrOCRConfig", cross_attention_hidden_size=32),
        {"encoder_hidden_states": torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(4))},
    ),
    "DETR": Tiny("DetrModel", lambda: detr("DetrConfig"), {"pixel_values": torch.randn(2, 3, 96, 96)}),
    "Conditional DETR": Tiny(
        "ConditionalDetrModel", lambda: detr("ConditionalDetrConfig"), {"pixel_values": torch.randn(2, 3, 96, 96)}
    ),
    "Grounding DINO": Tiny(
        "GroundingDinoModel",
        lambda: detr(
            "GroundingDinoConfig",
            backbone_config=config(
                "SwinConfig",
                image_size=32,
                patch_size=2,
                embed_dim=16,
                depths=[1] * 4,
                num_heads=[2] * 4,
                window_size=4,
                out_features=["stage2", "stage3", "stage4"],
            ),
            text_config=small("BertConfig"),
            max_text_len=16,
        ),
        {"pixel_values": torch.randn(2, 3, 64, 64), "token_type_ids": torch.zeros_like(ids)},
    ),
    "ViLT": Tiny("ViltModel", lambda: small("ViltConfig")),
    "LXMERT": Tiny(
        "LxmertModel",
        lambda: small("LxmertConfig", visual_feat_dim=32),
        {"visual_feats": torch.randn(2, 6, 32), "visual_pos": torch.rand(2, 6, 4)},
    ),
    "VisualBERT": Tiny(
        "VisualBertModel",
        lambda: small("VisualBertConfig"),
        {
            "visual_embeds": torch.randn(2, 6, 32),
            "visual_attention_mask": torch.ones(2, 6),
            "visual_token_type_ids": torch.ones(2, 6, dtype=torch.long),
        },
    ),
    "GIT": Tiny("GitModel", lambda: small("GitConfig")),
    "LLaVA": Tiny("LlavaForConditionalGeneration", lambda: _clip_llava("LlavaConfig"), _16),
    "VipLLaVA": Tiny(
        "VipLlavaForConditionalGeneration",
        lambda: _clip_llava("VipLlavaConfig", vision_feature_layers=[-1, -2]),
        _16,
    ),
    "LLaVA-NeXT": Tiny(
        "LlavaNextForConditionalGeneration",
        lambda: _clip_llava("LlavaNextConfig", image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
        {
            **with_image(16 + 4 * 9),
            "pixel_values": torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(5)),
            "image_sizes": torch.tensor([[32, 64]] * 2),
        },
    ),
    "PaliGemma": Tiny(
        "PaliGemmaForConditionalGeneration",
        lambda: config(
            "PaliGemmaConfig",
            vision_config=small("SiglipVisionConfig", vision_use_head=False),
            text_config=small("GemmaConfig"),
            image_token_id=IMAGE,
            projection_dim=32,
            hidden_size=32,
        ),
        {**_16, "token_type_ids": torch.zeros_like(_16["input_ids"])},
    ),
    "Gemma 3": Tiny(
        "Gemma3ForConditionalGeneration",
        lambda: config(
            "Gemma3Config",
            vision_config=small("SiglipVisionConfig", vision_use_head=False),
            text_config=small("Gemma3TextConfig"),
            mm_tokens_per_image=4,
            image_token_id=IMAGE,
        ),
        {**_4, "token_type_ids": _4["mm_token_type_ids"]},
    ),
    "Qwen2-VL": Tiny("Qwen2VLForConditionalGeneration", lambda: qwen("2"), QWEN_INPUTS),
    "Qwen2.5-VL": Tiny("Qwen2_5_VLForConditionalGeneration", lambda: qwen("2_5"), QWEN_INPUTS),
    "Qwen3-VL": Tiny("Qwen3VLForConditionalGeneration", lambda: qwen("3"), QWEN_INPUTS),
    "Idefics3": Tiny(
        "Idefics3ForConditionalGeneration",
        lambda: config(
            "Idefics3Config",
            vision_config=small("Idefics3VisionConfig").to_dict(),
            text_config=small("LlamaConfig").to_dict(),
            scale_factor=2,
            image_token_id=IMAGE,
        ),
        {**with_image(4 * 3), "pixel_values": torch.randn(2, 3, 3, 32, 32)},
    ),
    "SmolVLM": Tiny(
        "SmolVLMForConditionalGeneration",
        lambda: config(
            "SmolVLMConfig",
            vision_config=small("SmolVLMVisionConfig").to_dict(),
            text_config=small("LlamaConfig").to_dict(),
            scale_factor=2,
            image_token_id=IMAGE,
        ),
        {**with_image(4 * 3), "pixel_values": torch.randn(2, 3, 3, 32, 32)},
    ),
    "InternVL": Tiny(
        "InternVLForConditionalGeneration",
        lambda: config(
            "InternVLConfig",
            vision_config=small("InternVLVisionConfig", image_size=[32, 32], patch_size=[8, 8]).to_dict(),
            text_config=small("Qwen2Config").to_dict(),
            downsample_ratio=0.5,
            image_seq_length=4,
            image_token_id=IMAGE,
        ),
        _4,
    ),
    "BLIP-2": Tiny(
        "Blip2ForConditionalGeneration",
        lambda: small("Blip2Config", image_token_index=IMAGE, text_config={"word_embed_proj_dim": 32, "dropout": 0.0}),
        with_image(6),
    ),
    "InstructBLIP": Tiny(
        "InstructBlipForConditionalGeneration",
        lambda: small(
            "InstructBlipConfig", image_token_index=IMAGE, text_config={"word_embed_proj_dim": 32, "dropout": 0.0}
        ),
        {**with_image(6), "qformer_input_ids": ids, "qformer_attention_mask": seen},
    ),
    "Pixtral (Mistral 3)": Tiny(
        "Mistral3ForConditionalGeneration",
        lambda: config(
            "Mistral3Config",
            vision_config=small("PixtralVisionConfig").to_dict(),
            text_config=small("MistralConfig").to_dict(),
            image_token_id=IMAGE,
            spatial_merge_size=2,
            vision_feature_layer=-1,
        ),
        {**_4, "image_sizes": torch.tensor([[32, 32]] * 2)},
    ),
    "Kosmos-2": Tiny(
        "Kosmos2ForConditionalGeneration",
        lambda: small(
            "Kosmos2Config", latent_query_num=4, text_config={"embed_dim": 32, "layers": 2, "attention_heads": 4}
        ),
        {
            **{key: value for key, value in _4.items() if key != "mm_token_type_ids"},
            "image_embeds_position_mask": _4["mm_token_type_ids"].bool(),
        },
    ),
    "BERT": Tiny("BertModel", lambda: small("BertConfig")),
    "T5": Tiny("T5Model", lambda: small("T5Config")),
    "BART": Tiny("BartModel", lambda: small("BartConfig")),
    "Llama": Tiny("LlamaModel", lambda: small("LlamaConfig")),
    "Gemma 2": Tiny("Gemma2Model", lambda: small("Gemma2Config")),
    "gpt-oss": Tiny("GptOssModel", lambda: small("GptOssConfig", num_local_experts=4)),
}


def _encoder_decoder(encoder: Any, decoder: Any) -> Any:
    import transformers

    return transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)


def tensors(output: Any) -> list[Tensor]:
    """Every floating-point tensor of a model's output, in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = list(output.values()) if isinstance(output, Mapping) else output
    return [one for part in parts for one in tensors(part)] if isinstance(parts, list | tuple) else []


def largest_difference(first: Any, second: Any) -> float:
    """The largest absolute difference of two outputs; infinite when they are not alike."""
    a, b = tensors(first), tensors(second)
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return float("inf")
    return max((float((x - y).abs().max()) for x, y in zip(a, b, strict=True) if x.numel()), default=0.0)
