"""The cross-encoder: reads query and passage together and returns one score (Qu et al. 2021; Gao and Callan 2021b, §4.3).

A cross-encoder is saved as a Hugging Face checkpoint for sequence classification with one label. The class ``CrossEncoder``
of sentence-transformers loads this checkpoint as well. ``condensery.json`` holds the maximum input lengths.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from condensery.errors import UserError
from condensery.models.checkpoints.backbone import DECODERS, checkpoint_config
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import ABOUT, read_about
from condensery.models.checkpoints.weights import ENCODER, Allowed, load_weights, readable, save_checkpoint
from condensery.models.encoder import Encoder
from condensery.models.precision import autocast
from condensery.system.files import write_json
from condensery.tokens.batches import Chunk
from condensery.tokens.tokenizer import load_tokenizer

FAMILIES = ("bert", "roberta", "xlm-roberta")
# BERT's classification head uses the backbone's pooler; RoBERTa's head does not
_NEW = {"classifier": "scoring head", "bert.pooler": "pooler"}
_UNUSED = ("cls.predictions", "lm_head", "cls.seq_relationship", "qa_outputs", *DECODERS)
# with this entry, sentence-transformers returns the logit; by default it returns the sigmoid of the logit
_PLAIN = {"activation_fn": "torch.nn.modules.linear.Identity"}


class CrossEncoder(nn.Module):
    """A backbone with transformers' classification head on the CLS state. It maps a pair of query and passage to one logit.

    Attributes:
        classifier: the transformers model, whose modules are used; the backbone runs with ``Encoder``'s forward pass.
        encoder: the backbone.
    """

    classifier: Any  # a PreTrainedModel; its parts are accessed by name

    def __init__(self, classifier: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = Encoder(classifier.base_model)
        self.classifier = classifier

    def scores(self, chunk: Chunk) -> Tensor:
        """Return the logits (b,) of a chunk of pairs.

        With the pointwise loss, the sigmoid of a logit is the probability of relevance.
        """
        cls = self.encoder.cls(chunk)[:, None]  # (b, 1, d)
        if self.classifier.config.model_type == "bert":
            cls = self.classifier.dropout(self.classifier.bert.pooler(cls))
        with autocast(cls.device, "fp32"):  # a logit in bf16 has three digits, so many pairs would have the same score
            return self.classifier.classifier(cls.to(self.classifier.dtype))[:, 0]


@dataclass(frozen=True)
class Reranker:
    """A cross-encoder with the settings that are saved beside its weights.

    Attributes:
        query_length: maximum query length in training, in tokens.
        length: maximum input length in training, in tokens (query, passage and special tokens); see ``PairReader``.
        separators: number of [SEP] tokens between query and passage.
    """

    model: CrossEncoder
    query_length: int
    length: int
    separators: int


def pair_separators(tokenizer: Path | str) -> int:
    """Return how many [SEP] tokens a tokenizer puts between the texts of a pair: one for BERT, two for RoBERTa."""
    return int(load_tokenizer(tokenizer).num_special_tokens_to_add(pair=True)) - 2


def new_cross_encoder(language_model: PreTrainedModel, seed: int) -> CrossEncoder:
    """Return a cross-encoder on a masked language model's backbone. The head is randomly initialised by ``seed``."""
    _check_family(language_model.config, "backbone.family")
    language_model.config.num_labels = 1
    torch.manual_seed(seed)
    classifier = AutoModelForSequenceClassification.from_config(language_model.config)
    classifier.base_model.load_state_dict(language_model.base_model.state_dict(), strict=False)  # an MLM has no pooler
    return CrossEncoder(classifier)


def _check_family(config: Any, where: str) -> None:
    if config.model_type not in FAMILIES:
        raise UserError(f"{where}: a cross-encoder must be one of {', '.join(FAMILIES)}, not {config.model_type}")


def load_cross_encoder(
    source: Path | str, seed: int = 0, dropout: float | None = None, revision: str | None = None, new_head: bool = True
) -> CrossEncoder:
    """Load a cross-encoder from a checkpoint of the BERT family, in fp32.

    Args:
        source: folder or hub name of an encoder or cross-encoder, from this project or elsewhere. A classification head
            with one label is kept. A checkpoint without a head gets a randomly initialised head.
        seed: seed of the random weights.
        dropout: dropout rate of hidden states and attention weights; None = the checkpoint's own rate.
        revision: commit, tag or branch on the hub.
        new_head: whether the checkpoint may lack a head.

    Raises:
        UserError: the checkpoint cannot be loaded, its tensors do not match its config, or its head does not have exactly
            one label.
    """
    torch.manual_seed(seed)
    folder = checkpoint_folder(source, revision)
    with readable(folder):
        config = checkpoint_config(folder, dropout)
        _check_family(config, f"{folder}/config.json")
        config.num_labels = 1
        unused = _UNUSED if config.model_type == "bert" else (*_UNUSED, "pooler")
        allowed = Allowed(_NEW if new_head else {}, unused)
        classifier = load_weights(AutoModelForSequenceClassification, folder, config, allowed, **ENCODER)
    return CrossEncoder(classifier)


def save_cross_encoder(reranker: Reranker, folder: Path, tokenizer: Path | str) -> None:
    """Save a cross-encoder, which transformers and the ``CrossEncoder`` of sentence-transformers can load."""
    classifier = reranker.model.classifier
    classifier.config.sentence_transformers = _PLAIN
    saved = load_tokenizer(tokenizer)
    saved.model_max_length = reranker.length
    if classifier.config.type_vocab_size == 1:  # otherwise transformers would pass token types to the model
        saved.init_kwargs["model_input_names"] = saved.model_input_names = ["input_ids", "attention_mask"]
    save_checkpoint(classifier, saved, folder)
    about = {"query_length": reranker.query_length, "length": reranker.length, "separators": reranker.separators}
    write_json(folder / ABOUT, about)


def load_reranker(folder: Path) -> Reranker:
    """Load a folder that ``save_cross_encoder`` wrote. Raises ``UserError`` for any other folder."""
    numbers = "query_length", "length", "separators"
    about = read_about(folder, *numbers)
    return Reranker(load_cross_encoder(folder, new_head=False), **{name: about[name] for name in numbers})
