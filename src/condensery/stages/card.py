"""The model card of an encoder that a stage has trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from condensery.models.checkpoints.card import Card, base_of
from condensery.stages.base import Artifact, StageConfig, operational
from condensery.stages.registry import registry
from condensery.system.files import read_json

Values = Mapping[str, Any]
MadeFrom = Mapping[str, Sequence[Artifact]]  # input artifacts, by field of the config

_TIMES = ("train/tokens_per_s",)  # metrics of a stage that another run would not reproduce
_PLACES = ("precision", "seed")  # settings that come last on the card
_STARTS = ("init", "student", "start")  # fields that name the encoder with which a stage begins
_METHODS = {
    "pretrain_mlm": "Pre-trained by masked language modelling",
    "pretrain_condenser": "Pre-trained as a Condenser (Gao and Callan 2021a)",
    "pretrain_cocondenser": "Pre-trained as a coCondenser (Gao and Callan 2021b)",
    "pretrain_cotmae": "Pre-trained as CoT-MAE (Wu et al. 2022)",
    "pretrain_retromae": "Pre-trained as RetroMAE (Xiao et al. 2022)",
    "pretrain_ict": "Pre-trained by the inverse cloze task (Lee et al. 2019)",
    "pretrain_contrastive": "Trained contrastively on pairs of texts, with the settings of its vectors kept",
    "finetune": "Fine-tuned on judged queries, contrastively",
    "finetune_sentences": "Fine-tuned on sentences",
    "finetune_late_interaction": "Fine-tuned on judged queries, contrastively",
    "finetune_splade": "Fine-tuned on judged queries, contrastively and with FLOPS regularisation",
}


def card_of(
    made_by: type[StageConfig], config: Values, made_from: MadeFrom, values: Values, data: str | None = None
) -> Card:
    """Return the model card of an encoder that a stage has trained.

    Paths and hardware of this machine are left out, so that equal artifacts have equal cards.

    Args:
        made_by: class of the stage's config.
        config: values of the config, as in the manifest.
        made_from: input artifacts of the stage, by field.
        values: metrics that the stage returns for its manifest.
        data: name of the collection; None = the name of the stage's corpus.
    """
    data = data or next((name_of_data(corpus.path) for corpus in made_from.get("corpus", ())), None)
    kind = next(kind for kind, stage in registry().items() if stage.config is made_by)
    left_out = operational(made_by)
    recipe = {
        key: value
        for key, value in config.items()
        if key not in left_out and isinstance(value, int | float | str | None) and not {"/", "\\"} & {*str(value)}
    }
    return Card(
        _METHODS.get(kind, f"Made by `{kind}`"),
        name=kind,
        data=[data] if data else [],
        **_base(config, made_from),
        recipe={**recipe, **{key: recipe.pop(key) for key in _PLACES if key in recipe}},
        training={
            key: value for key, value in values.items() if "/" in key and key not in _TIMES and isinstance(value, float)
        },
    )


def _base(config: Values, made_from: MadeFrom) -> dict[str, Any]:
    """Return the card's entries about the checkpoint with which the first of the encoder's training stages began."""
    for first in (one for key in _STARTS for one in made_from.get(key, ()) if (one.path / "manifest.json").is_file()):
        encoder = first.ancestor("encoder") or first
        return _base(encoder.manifest["config"], {field: encoder.inputs(field) for field in _STARTS})
    start = config.get("backbone") or {"name": config.get("folder"), "revision": config.get("revision")}
    return base_of(start["name"], start.get("revision"))


def name_of_data(corpus: Path) -> str:
    """Return the name of the collection in an artifact's folder."""
    return str(read_json(corpus / "collection.json")["name"])
