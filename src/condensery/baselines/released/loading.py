"""Stages ``sparse_encoder`` and ``token_encoder``: load a SPLADE or a ColBERT that was trained elsewhere, unchanged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condensery.baselines.late_interaction.model import Interaction, TokenEncoder
from condensery.baselines.late_interaction.saving import save_token_encoder
from condensery.baselines.released import config as kinds
from condensery.baselines.splade.model import save_sparse_encoder, sparse_encoder_of
from condensery.errors import UserError
from condensery.models.checkpoints.backbone import LM_HEAD
from condensery.models.checkpoints.head import load_head
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.retrievers import load_encoder
from condensery.stages.base import Context
from condensery.stages.released.retriever import lengths_of
from condensery.system.files import write_json
from condensery.tokens.tokenizer import load_tokenizer


def sparse_encoder(config: kinds.SparseEncoderConfig, context: Context) -> dict[str, int]:
    """Save the SPLADE in the format of ``finetune_splade``.

    Raises:
        UserError: the checkpoint has no MLM head, or a length is missing or exceeds the model's positions.
    """
    folder, recorded, about = kinds.read_splade(checkpoint_folder(str(config.folder), config.revision))
    model = sparse_encoder_of(folder, **about)
    if model.language_model.new_parts:
        raise context.error("folder", f"{config.folder} has no {LM_HEAD}; {kinds.SPLADE}")
    lengths = lengths_of(config, context, recorded, model.query, model.query)
    save_sparse_encoder(model, context.folder, folder, (lengths["query_length"], lengths["passage_length"]))
    return lengths


def token_encoder(config: kinds.TokenEncoderConfig, context: Context) -> dict[str, int]:
    """Save the ColBERT in the format of ``finetune_late_interaction``.

    Raises:
        UserError: a marker is not one token, or a length is missing or exceeds the model's positions.
    """
    folder, recorded, about = kinds.read_colbert(checkpoint_folder(str(config.folder), config.revision))
    read: Any = load_tokenizer(folder)
    encoder = load_encoder(folder, unused=("linear",) * about["dense"].with_encoder)
    lengths = lengths_of(config, context, recorded, encoder, encoder)
    widths = [width for layer in encoder.layers if (width := encoder.family.window(layer)) is not None]
    if about["attended"] is False and lengths["query_length"] > min(widths, default=encoder.longest) + 1:
        raise context.error("query_length", f"[MASK] would see less than the query; set at most {min(widths) + 1}")
    encoder.head = load_head([about["dense"]], encoder.model.config.hidden_size)
    words = {*read.convert_tokens_to_ids([*about["words"]])} - {read.unk_token_id}
    ids = {"markers": _markers(folder, read, about), "left_out": tuple(sorted(words)), "mask": read.mask_token_id}
    interaction = Interaction("colbert", encoder.dimensions, **lengths, **ids, attended=about["attended"])
    save_token_encoder(TokenEncoder(encoder, interaction), context.folder, folder)
    write_json(context.folder / "3_Mask" / "config.json", {"skiplist_words": [*about["words"]]})
    return lengths


def _markers(folder: Path, read: Any, about: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the markers of passages and queries. Raises ``UserError`` if a marker is not one token."""
    ids, known = [], read.get_vocab()
    for text in map(str, about["markers"]):
        ids.append(known.get(text, known.get(text.strip())))  # pylate's token "[Q] " ends with the space
        marked, plain = (read.encode(one, add_special_tokens=False) for one in (f"{text}a", "a"))
        if ids[-1] is None or not (about["inserted"] or marked == [ids[-1], *plain]):
            raise UserError(f"{folder}: its marker {text!r} is not one token of its tokenizer; {kinds.COLBERT}")
    return tuple(ids)
