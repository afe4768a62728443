"""Run the recipes of the papers' size on small files, with small models instead of models on the hub, and few steps."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conf_pages
import torch
from small_runs import MODEL, PROJECT, Text, run_command, write_documents
from small_t5 import save_small_t5
from transformers import AutoTokenizer, BertForMaskedLM, BertForSequenceClassification

from condensery.stages.registry import registry

SIZES = {500: 6, 1000: 8, 10000: 12, 100000: 14}  # training examples in the papers -> in the small files
POSITIONS = "backbone.max_positions=160"
LENGTHS = {"query_length": 32, "passage_length": 100, "length": 100}  # tokens; for every stage that has the key
FEW_OF = {  # kind of stage -> overrides of values that are too large for small files
    "cluster_queries": ["clusters=3"],
    "denoise": ["below=1"],
    "pseudo_label": ["positive=0.01", "negative=0"],
    "generate_queries": ["max_tokens=8"],
    "rerank": ["depth=20"],
    "train_jointly": ["negatives_per_query=7"],
}
LOADED = ("retriever", "sparse_encoder", "cross_encoder")  # kinds that load a released model
IN_STEPS = ("finetune", "train_", "cross_encoder")  # prefixes of kinds whose batches consist of queries


@dataclass(frozen=True)
class Checkpoints:
    """Small checkpoints: an encoder with a Condenser head, a query generator, a cross-encoder and a language model."""

    encoder: Path
    generator: Path
    cross_encoder: Path
    language_model: Path


def small_checkpoints(folder: Path, text: Text) -> Checkpoints:
    """Make the checkpoints. The encoder is trained for one step on ``text``.

    The generator and the output layer of the cross-encoder have random weights.
    """
    documents = write_documents(folder / "text", text)
    done = run_command(
        "experiment=condenser_wikipedia", f"data.root={documents}", *MODEL, POSITIONS, "logger=csv",
        "stages.condenser.steps=1", "stages.condenser.epochs=null", f"output_root={folder / 'out'}",
    ).sound()  # fmt: skip
    encoder, tokenizer = ((done.folder / "stages" / name).resolve() for name in ("condenser", "tokenizer"))
    torch.manual_seed(0)
    scorer = BertForSequenceClassification.from_pretrained(encoder, num_labels=1)
    for name, model in (("scorer", scorer), ("masked", BertForMaskedLM.from_pretrained(encoder))):
        for one in (model, AutoTokenizer.from_pretrained(tokenizer)):
            one.save_pretrained(folder / name)
    return Checkpoints(encoder, save_small_t5(folder / "t5", tokenizer), folder / "scorer", folder / "masked")


def stages_of(recipe: str) -> dict[str, Any]:
    """Return the composed config of a recipe."""
    return conf_pages.read(PROJECT / "conf" / "experiment" / f"{recipe}.yaml").whole()


def models(small: Checkpoints) -> list[str]:
    """Return the overrides that replace the recipe's backbone by the small encoder, on one thread."""
    own = [f"backbone.{key}={small.encoder}" for key in ("name", "tokenizer")]
    return [*(one for one in MODEL if not one.startswith("backbone")), *own]


def few(recipe: str, small: Checkpoints) -> Iterator[str]:
    """Yield overrides: two steps for every training, shorter inputs, and local checkpoints instead of hub names."""
    whole = stages_of(recipe)
    shared = {kind: given or {} for kind, given in whole.get("stage", {}).items()}
    for kind, given in shared.items():
        yield from _local(f"stage.{kind}", kind, given, small)
    for name, given in whole["stages"].items():
        kind = (given or {}).get("stage")
        fields = registry()[kind].config.model_fields if kind else {}
        if "max_grad_norm" in fields:
            yield from (f"++stages.{name}.{key}" for key in ("steps=2", "epochs=null", "token_budget=null"))
        if kind and kind.startswith(IN_STEPS) and "batch_size" in fields:
            yield f"++stages.{name}.batch_size=4"
        lengths = {key: tokens for key, tokens in LENGTHS.items() if key in fields}
        yield from (f"++stages.{name}.{key}={tokens}" for key, tokens in lengths.items())
        yield from (f"++stages.{name}.{key}" for key in FEW_OF.get(kind or "", ()))
        yield from _local(f"stages.{name}", kind or "", given or {}, small)
        if kind == "pretrain_simlm":
            yield f"++stages.{name}.generator_name={small.encoder}"
        if kind == "train_expander":
            yield f"++stages.{name}.model={small.generator}"
        if kind == "generate_queries":
            number = given.get("number", shared.get(kind, {}).get("number", 1))
            yield f"++stages.{name}.number={min(5, number)}"
            if given.get("model", True):
                yield f"++stages.{name}.model={small.generator}"
    for key, values in whole.get("hydra", {}).get("sweeper", {}).get("params", {}).items():
        smaller = str(values)
        for size, fewer in SIZES.items():
            smaller = re.sub(rf"\b{size}\b", str(fewer), smaller)
        if smaller != str(values):
            yield f"{key}={smaller}"


def _local(place: str, kind: str, given: dict[str, Any], small: Checkpoints) -> Iterator[str]:
    """Yield the overrides that replace checkpoints on the hub by local checkpoints."""
    for key, value in (given.get("backbone") or {}).items():
        if "/" in str(value):
            yield f"{place}.backbone.{key}={small.encoder}"
    if kind == "tokenizer" and "name" in given:
        yield f"{place}.name={small.encoder}"
    if kind in LOADED and "/" in str(given.get("folder", "")):
        others = {"cross_encoder": small.cross_encoder, "sparse_encoder": small.language_model}
        yield f"{place}.folder={others.get(kind, small.encoder)}"
