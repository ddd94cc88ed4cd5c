"""Encoders of pictures and of text, and the table of them."""

from functools import partial

from foveate.encoders.conv import ConvEncoder
from foveate.encoders.efficientnet import EfficientNetLite0
from foveate.encoders.extract import extract_features, folder_pictures
from foveate.encoders.hf_vision import HFVision
from foveate.encoders.images import PictureEncoder
from foveate.encoders.preprocess import Preprocess
from foveate.encoders.stored import StoredFeatures
from foveate.encoders.table import Encoder, encoder_of, pretrained_encoder
from foveate.encoders.text import EncodedText, TextEncoder
from foveate.encoders.words import WordVectors, word_vectors

ENCODERS: dict[str, Encoder] = {
    "conv": Encoder(ConvEncoder, reads="pictures"),
    "stored": Encoder(StoredFeatures, reads="features"),
    "efficientnet-lite0": Encoder(EfficientNetLite0, reads="pictures", pretrained=True, extra="photos"),
    "efficientnet-lite0-middle": Encoder(
        partial(EfficientNetLite0, stage="middle"), reads="pictures", pretrained=True, extra="photos"
    ),
    "hf": Encoder(HFVision, reads="pictures", pretrained=True, model=True, extra="hf"),
    "lstm": Encoder(partial(TextEncoder, cell="lstm"), reads="words"),
    "gru": Encoder(partial(TextEncoder, cell="gru"), reads="words"),
    "bi-lstm": Encoder(partial(TextEncoder, cell="lstm", directions="sum"), reads="words"),
    "bi-gru": Encoder(partial(TextEncoder, cell="gru", directions="average"), reads="words"),
}

__all__ = [
    "ENCODERS",
    "ConvEncoder",
    "EfficientNetLite0",
    "EncodedText",
    "Encoder",
    "HFVision",
    "PictureEncoder",
    "Preprocess",
    "StoredFeatures",
    "TextEncoder",
    "WordVectors",
    "encoder_of",
    "extract_features",
    "folder_pictures",
    "pretrained_encoder",
    "word_vectors",
]
