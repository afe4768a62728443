"""Makes, saves and loads encoders of token vectors. sentence-transformers opens a ColBERT as ``MultiVectorEncoder``."""

import string
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken

from condensery.baselines.late_interaction.model import Interaction, TokenEncoder
from condensery.errors import UserError
from condensery.models.checkpoints.head import load_head, save_head
from condensery.models.checkpoints.metadata import TOKEN_VECTORS as OWN
from condensery.models.checkpoints.retrievers import load_encoder
from condensery.models.checkpoints.sentence_transformers import SavedLayer, write_multi_vector
from condensery.models.checkpoints.weights import save_checkpoint
from condensery.models.encoder import Encoder
from condensery.models.pooling import head_of
from condensery.models.vectors import DenseShape
from condensery.system.files import read_as, write_json
from condensery.tokens.tokenizer import load_tokenizer

DENSE, WHOLE = "1_Dense", "whole"  # folders of further layers
MARKERS = ("[D]", "[Q]")  # new tokens for passages and queries, by the value of Chunk.tower


def new_token_encoder(encoder: Encoder, interaction: Interaction, tokenizer: Path | str, seed: int) -> TokenEncoder:
    """Return a token encoder: a backbone, followed by new layers with random orthogonal weights.

    Args:
        encoder: the backbone. Layers that follow it are dropped.
        interaction: method, sizes and lengths; this function adds the token ids.
        tokenizer: folder or hub name of the backbone's tokenizer.
        seed: seed of the weights of the new layers, and of the embeddings of [Q] and [D].
    """
    torch.manual_seed(seed)
    read, model = _tokenizer(tokenizer, interaction), encoder.model
    ids: dict[str, Any] = {"mask": read.mask_token_id}
    if interaction.method == "colbert":
        markers = read.convert_tokens_to_ids([*MARKERS])
        model.resize_token_embeddings(max(*markers, model.config.vocab_size - 1) + 1, mean_resizing=False)
        signs = {*read.convert_tokens_to_ids(list(string.punctuation))} - {read.unk_token_id}
        ids |= {"markers": tuple(markers), "left_out": tuple(sorted(signs))}
    elif interaction.method == "coil":
        ids["left_out"] = tuple(sorted(read.all_special_ids))
    head, whole = map(head_of, _shapes(interaction, model))
    for layer in (*head, *whole):  # orthogonal weights keep inner products; the gain gives the size of torch's default
        torch.nn.init.orthogonal_(layer.linear.weight, gain=3**-0.5)
    return TokenEncoder(Encoder(model, head=head), replace(interaction, **ids), whole)


def _shapes(interaction: Interaction, model: Any) -> list[list[DenseShape]]:
    """Return the shapes of two layers after the backbone: for tokens, and for COIL's [CLS]. ColBERT's layer has no bias."""
    hidden, sizes = int(model.config.hidden_size), (interaction.dimensions, interaction.whole)
    return [[DenseShape(hidden, size, interaction.method != "colbert", "Identity")] if size else [] for size in sizes]


def _tokenizer(tokenizer: Path | str, interaction: Interaction) -> Any:
    """Load a tokenizer. For ColBERT, add its markers, or [Q] and [D], as tokens that absorb the space that follows them."""
    read = load_tokenizer(tokenizer)
    texts = [one for one in read.convert_ids_to_tokens([*interaction.markers]) if one] or MARKERS
    signs = [AddedToken(text, rstrip=True, normalized=False, special=True) for text in texts]
    read.add_tokens(signs if interaction.method == "colbert" else [], special_tokens=True)
    return read


def save_token_encoder(model: TokenEncoder, folder: Path, tokenizer: Path | str) -> None:
    """Save a token encoder. sentence-transformers opens a ColBERT as ``MultiVectorEncoder``, with equal scores."""
    interaction, read = model.interaction, _tokenizer(tokenizer, model.interaction)
    save_checkpoint(model.query.model, read, folder)
    for path, head in ((folder / DENSE, model.query.head), (folder / WHOLE, model.whole)):
        path.mkdir(exist_ok=True)
        save_head(head, [path] * len(head))
    write_json(folder / OWN, {key: one for key, one in asdict(interaction).items() if (key, one) != ("attended", True)})
    if interaction.method == "colbert":
        sizes = int(model.query.model.config.hidden_size), interaction.dimensions
        passage, query = (f"{text.strip()} " for text in read.convert_ids_to_tokens([*interaction.markers]))
        lengths = interaction.query_length, interaction.passage_length  # with the markers
        write_multi_vector(folder, sizes, lengths, (query, passage), string.punctuation, DENSE, interaction.attended)


def load_token_encoder(folder: Path) -> TokenEncoder:
    """Load a folder that ``save_token_encoder`` wrote.

    Raises:
        UserError: a file is missing or damaged, or has other tensors.
    """
    interaction = read_as(folder / OWN, Interaction, "it is not as it was saved; copy the checkpoint again")
    encoder = load_encoder(folder)
    largest = max(0, interaction.mask, *interaction.markers, *interaction.left_out)
    if largest >= encoder.model.config.vocab_size or len(interaction.markers) != 2 * (interaction.method == "colbert"):
        raise UserError(f"{folder / OWN}: its ids do not fit its method and vocabulary; copy the checkpoint again")
    parts = zip((folder / DENSE, folder / WHOLE), _shapes(interaction, encoder.model), strict=True)
    saved = ([SavedLayer(path, shape) for shape in shapes] for path, shapes in parts)
    encoder.head, whole = (load_head(layers, int(encoder.model.config.hidden_size)) for layers in saved)
    return TokenEncoder(encoder, interaction, whole)
