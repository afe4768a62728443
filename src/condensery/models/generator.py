"""A sequence-to-sequence model that generates queries (doc2query: Nogueira and Lin 2019; Wu et al. 2023, §3.1).

Sampling applies top-k, then nucleus filtering (Holtzman et al. 2020), then draws one token. The random number that draws a
token is a function of (seed, row of the passage, index of the query, position in the query). So the other passages of a
batch influence a generated query only through rounding of the logits.

Symbols in shapes: b rows that are sampled together, V tokens of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from condensery.errors import UserError
from condensery.models.checkpoints.backbone import config_content
from condensery.models.checkpoints.config_file import check_config, shown
from condensery.models.checkpoints.weights import Allowed, load_weights, quiet, reason, save_checkpoint
from condensery.models.precision import DTYPES
from condensery.randomness import uniforms
from condensery.tokens.prefixes import check_prefix
from condensery.tokens.tokenizer import check_tokenizer, load_tokenizer, number_of_words, of_sentencepiece, read_saved

DROPOUTS = ("dropout_rate", "dropout", "attention_dropout")  # the first key is T5's, the other two are BART's
_FEWEST_WORDS = 26
_TOKENS = ("pad_token_id", "eos_token_id")


@dataclass(frozen=True)
class Sampling:
    """The sampling settings for queries.

    Attributes:
        number: number of queries per passage.
        top_k: number of most probable tokens from which each token is drawn; 0 = all tokens.
        top_p: total probability of the most probable tokens from which each token is drawn (nucleus).
        max_tokens: maximum query length in tokens.
        max_input_tokens: maximum input length in tokens (prefix and passage); longer inputs are truncated.
        prefix: string put before the passage, as in the model's training.
        seed: seed of all random numbers.
    """

    number: int
    top_k: int
    top_p: float
    max_tokens: int
    max_input_tokens: int
    prefix: str
    seed: int


class OneDraw(transformers.LogitsProcessor):
    """Draws one token per row and excludes all others.

    A uniform number selects the token from the cumulative distribution over the tokens in order of token id. The filters are
    those of transformers, but they sort only the best tokens, not the whole vocabulary.

    Args:
        draws: (b, steps) uniform random numbers in [0, 1), one per row and position. Position 0 follows the start token.
        top_k, top_p: as in ``Sampling``.

    Raises:
        UserError: a logit is NaN.
    """

    def __init__(self, draws: Tensor, top_k: int = 0, top_p: float = 1.0) -> None:
        self.draws, self.top_k, self.top_p = draws, top_k, top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (b, V) with 0 for the drawn token and -inf for all others.

        ``scores`` (b, V) are log-probabilities up to a constant, with -inf for tokens that may not be drawn.
        """
        last = scores.topk(min(self.top_k or scores.shape[1], scores.shape[1]), dim=1).values[:, -1:]  # (b, 1)
        allowed = int((scores >= last).sum(dim=1).max())  # more than top_k if tokens are equally probable
        logits, ids = scores.topk(max(1, allowed), dim=1)  # (b, allowed) each
        if logits.isnan().any():
            raise UserError("the generator's logits are not finite; use precision: fp32 or bf16")
        ids, order = ids.sort(dim=1)
        logits = logits.gather(1, order).masked_fill(logits.gather(1, order) < last, -torch.inf)
        if self.top_p < 1.0:
            rising, order = logits.sort(dim=1, stable=True)
            rare = rising.softmax(dim=1).cumsum(dim=1) <= 1 - self.top_p  # (b, allowed)
            rare[:, -1] = False
            logits = logits.masked_fill(rare.scatter(1, order, rare), -torch.inf)
        reached = logits.double().softmax(dim=1).cumsum(dim=1)  # (b, allowed)
        draw = self.draws[:, input_ids.shape[1] - 1, None] * reached[:, -1:]  # (b, 1)
        place = (reached <= draw).sum(dim=1, keepdim=True).clamp(max=reached.shape[1] - 1)  # (b, 1)
        return torch.full_like(scores, -torch.inf).scatter(1, ids.gather(1, place), 0.0)


def check_room(tokenizer: Any, prefix: str, max_input_tokens: int) -> None:
    """Raise ``UserError`` if the prefix leaves no room for the passage."""
    number = len(tokenizer(prefix, add_special_tokens=False)["input_ids"])
    check_prefix("prefix", prefix, number, "max_input_tokens", max_input_tokens)


class Generator:
    """A sequence-to-sequence model with its tokenizer.

    Args:
        model: the model.
        tokenizer: the tokenizer of the model.
    """

    def __init__(self, model: transformers.PreTrainedModel, tokenizer: Any) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer

    def encode(self, texts: Sequence[str], max_tokens: int) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` (b, t) of texts, truncated to ``max_tokens`` and right-padded."""
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=max_tokens, padding=True, padding_side="right", return_tensors="pt"
        )
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    @torch.inference_mode()
    def sample(self, texts: Sequence[str], rows: Sequence[int], sampling: Sampling) -> list[list[str]]:
        """Sample ``sampling.number`` queries for each text.

        Args:
            texts: passages without the prefix.
            rows: the collection row of each passage, in any order; the random numbers depend on these rows.
            sampling: the sampling settings.

        Returns:
            the queries of each text.
        """
        device, number = self.model.device, sampling.number
        check_room(self.tokenizer, sampling.prefix, sampling.max_input_tokens)
        read = self.encode([sampling.prefix + text for text in texts], sampling.max_input_tokens)
        read = {name: tensor.to(device) for name, tensor in read.items()}
        states = self.model.get_encoder()(**read).last_hidden_state.repeat_interleave(number, dim=0)  # (b, t, hidden)
        drawn = torch.from_numpy(draws(rows, sampling)).to(device)  # (b, steps)
        token_ids = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=read["attention_mask"].repeat_interleave(number, dim=0),
            generation_config=self._generation(sampling.max_tokens),
            logits_processor=transformers.LogitsProcessorList([OneDraw(drawn, sampling.top_k, sampling.top_p)]),
        )
        written = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)
        return [written[begin : begin + number] for begin in range(0, len(written), number)]

    def _generation(self, max_tokens: int) -> transformers.GenerationConfig:
        """Return a config with the model's special tokens, but without its other generation settings (beams, penalties)."""
        own = self.model.generation_config
        names = (*_TOKENS, "decoder_start_token_id", "bos_token_id", "forced_bos_token_id")
        kept = {name: getattr(own, name, None) for name in names}
        return transformers.GenerationConfig(max_new_tokens=max_tokens, do_sample=False, num_beams=1, **kept)


def draws(rows: Sequence[int], sampling: Sampling) -> np.ndarray:
    """Return uniform random numbers (rows * number, max_tokens), one per query and position.

    The queries of a row are adjacent.
    """
    named = np.asarray(rows, dtype=np.int64)[:, None] << 20 | np.arange(sampling.number)  # (rows, number)
    return uniforms(sampling.seed, "query", index=named.reshape(-1, 1), second=np.arange(sampling.max_tokens)[None])


def load_generator(
    source: str | Path, key: str, revision: str | None = None, precision: str = "fp32", dropout: float | None = None
) -> Generator:
    """Load a sequence-to-sequence model and its tokenizer from the hub or a folder, for inference.

    Args:
        source: folder or hub name.
        key: config key that error messages name.
        revision: commit, tag or branch on the hub.
        precision: a key of ``precision.DTYPES``.
        dropout: dropout rate of hidden states and attention weights; None = the rate in the model's config.

    Raises:
        UserError: the model cannot be loaded, is not a sequence-to-sequence model, does not define the start token of its
            decoder, or has no matching tokenizer.
    """
    with _user_error(key, source, "cannot load", _ADVICE):
        where = f"{source}/config.json"
        about = check_config(config_content(source, revision), where, encoder=False)
        if "model_type" in about and about["model_type"] not in transformers.CONFIG_MAPPING:
            family = shown(about["model_type"])
            raise UserError(f"{where}: model_type is {family}, unknown to transformers; take a T5 or BART model")
        config = transformers.AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    if not config.is_encoder_decoder:
        raise UserError(
            f"{key}: {str(source)!r} is a {config.model_type} model, which cannot write a text from another text;"
            " take a sequence-to-sequence model (T5, BART)"
        )
    if dropout is not None:
        names = [name for name in DROPOUTS if hasattr(config, name)]
        if not names:
            raise UserError(f"{key}: {str(source)!r}, a {config.model_type} model, has no dropout; leave dropout unset")
        config.update(dict.fromkeys(names, dropout))
    with _user_error(key, source, "cannot load", _ADVICE):
        model: Any = load_weights(
            transformers.AutoModelForSeq2SeqLM,
            source,
            config,
            Allowed(),
            revision,
            trust_remote_code=False,
            dtype=DTYPES[precision],
        ).eval()
    _check_tokens(model, source, key)
    with _user_error(key, source, "cannot read the tokenizer of", "save the model's own tokenizer beside it"):
        tokenizer = read_saved(source, revision)
    check_tokenizer(tokenizer, f"{key}: {str(source)!r}")
    # for a folder without a tokenizer, transformers creates an empty one
    if number_of_words(tokenizer) < _FEWEST_WORDS or tokenizer.pad_token_id is None:
        raise UserError(f"{key}: the tokenizer of {str(source)!r} lacks words or padding; save the model's own there")
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UserError(
            f"{key}: {str(source)!r} has a tokenizer of {len(tokenizer)} tokens, but the model knows"
            f" {model.get_input_embeddings().num_embeddings}; save the model's own tokenizer beside it"
        )
    with _user_error(key, source, "cannot write with", "take config.json and weights from one checkpoint"):
        _try_out(model)
    return Generator(model, tokenizer)


_ADVICE = "give a folder with a checkpoint, or a hub name that this machine can reach"


@contextmanager
def _user_error(key: str, source: str | Path, what: str, advice: str) -> Iterator[None]:
    """Context manager that turns any exception into a ``UserError``; transformers raises a dozen types for broken files."""
    try:
        with quiet():
            yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    except Exception as error:
        raise UserError(
            f"{key}: {what} {str(source)!r} ({of_sentencepiece(error) or reason(error)}); {advice}"
        ) from None


def _check_tokens(model: Any, source: str | Path, key: str) -> None:
    words = model.get_input_embeddings().num_embeddings
    for name in ("decoder_start_token_id", *_TOKENS):
        token = getattr(model.generation_config, name, None)
        if token is None:
            raise UserError(
                f"{key}: the config of {str(source)!r} has no {name}, without which the model cannot write; set it in"
                " generation_config.json or config.json"
            )
        several = token if isinstance(token, list) and token and name == "eos_token_id" else [token]
        if any(type(one) is not int or not 0 <= one < words for one in several):
            raise UserError(
                f"{key}: {name} is {shown(token)} in the config of {str(source)!r}; set it in generation_config.json or"
                f" config.json to a token id of 0 or more, below {words}"
            )


@torch.inference_mode()
def _try_out(model: Any) -> None:
    """Run one token through encoder and decoder, so that a config that does not match the weights fails at once."""
    token = torch.tensor([[model.generation_config.pad_token_id]], device=model.device)
    model(input_ids=token, attention_mask=torch.ones_like(token), decoder_input_ids=token)


def small_generator(
    tokenizer: Path, *, layers: int, hidden: int, heads: int, intermediate: int, dropout: float, seed: int
) -> Generator:
    """Return a randomly initialised T5 that uses the tokenizer of a folder. [SEP] ends the T5's output."""
    torch.manual_seed(seed)
    words = _writing_tokenizer(tokenizer)
    start: dict[str, Any] = {"decoder_start_token_id": words.pad_token_id}
    config = transformers.T5Config(
        vocab_size=len(words),
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=intermediate,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=dropout,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        **start,
    )
    return Generator(transformers.T5ForConditionalGeneration(config), words)


def _writing_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerFast:
    """Return an encoder's tokenizer with the template ``text [SEP]``, without [CLS]."""
    own = load_tokenizer(folder)
    backend = Tokenizer.from_str(own.backend_tokenizer.to_str())
    end = (str(own.sep_token), own.sep_token_id)
    backend.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    names = {"pad_token": own.pad_token, "unk_token": own.unk_token, "eos_token": own.sep_token}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def save_generator(generator: Generator, folder: Path) -> None:
    """Save model and tokenizer as a Hugging Face checkpoint."""
    save_checkpoint(generator.model, generator.tokenizer, folder)
