"""Encoders of images and text, and their table."""

from functools import partial

from foveate.lab.encoders.bag_of_words import BagOfWords
from foveate.lab.encoders.efficientnet import EfficientNetLite
from foveate.lab.encoders.extraction import directory_images, extract_features
from foveate.lab.encoders.hf_vision import HFVision
from foveate.lab.encoders.image_encoder import ConvEncoder, ImageEncoder, Preprocess, StoredFeatures
from foveate.lab.encoders.pretrained import Encoder, JoinedEncoder, encoder_of, pretrained_encoder
from foveate.lab.encoders.regions import RegionEncoder, detected_regions, search_regions
from foveate.lab.encoders.sentences import SentenceEncoder, sentence_encoder
from foveate.lab.encoders.text import EncodedText, Standardise, TextEncoder, WordsInContext
from foveate.lab.encoders.views import image_views
from foveate.lab.encoders.word_vectors import WordVectors, word_vectors

ENCODERS: dict[str, Encoder] = {
    "conv": Encoder(ConvEncoder, reads="images"),
    "stored": Encoder(StoredFeatures, reads="features"),
    "efficientnet-lite0": Encoder(EfficientNetLite, reads="images", pretrained=True, extra="photos"),
    "efficientnet-lite1": Encoder(partial(EfficientNetLite, 1), reads="images", pretrained=True, extra="photos"),
    "efficientnet-lite2": Encoder(partial(EfficientNetLite, 2), reads="images", pretrained=True, extra="photos"),
    "efficientnet-lite0-middle": Encoder(
        partial(EfficientNetLite, stage="middle"), reads="images", pretrained=True, extra="photos"
    ),
    "hf": Encoder(HFVision, reads="images", pretrained=True, model=True, extra="hf"),
    "regions": Encoder(search_regions, reads="images", pretrained=True, extra="regions"),
    "regions-hf": Encoder(detected_regions, reads="images", pretrained=True, model=True, extra="hf"),
    "lstm": Encoder(partial(TextEncoder, cell="lstm"), reads="tokens"),
    "gru": Encoder(partial(TextEncoder, cell="gru"), reads="tokens"),
    "bi-lstm": Encoder(partial(TextEncoder, cell="lstm", directions="sum"), reads="tokens"),
    "bi-gru": Encoder(partial(TextEncoder, cell="gru", directions="average"), reads="tokens"),
}

__all__ = [
    "ENCODERS",
    "BagOfWords",
    "ConvEncoder",
    "EfficientNetLite",
    "EncodedText",
    "Encoder",
    "HFVision",
    "ImageEncoder",
    "JoinedEncoder",
    "Preprocess",
    "RegionEncoder",
    "SentenceEncoder",
    "Standardise",
    "StoredFeatures",
    "TextEncoder",
    "WordVectors",
    "WordsInContext",
    "directory_images",
    "encoder_of",
    "extract_features",
    "image_views",
    "pretrained_encoder",
    "sentence_encoder",
    "word_vectors",
]
