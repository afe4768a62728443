"""The two doors agree: what a class takes where nothing is given is what a recipe takes (``conf/stage``)."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import PROJECT

import condensery
from condensery.stages.registry import registry

STAGES = PROJECT / "conf" / "stage"
CLASSES = {  # a public class and the stage that uses it
    "BM25": "bm25",
    "BiEncoderModule": "finetune",
    "CoCondenserModule": "pretrain_cocondenser",
    "CondenserModule": "pretrain_condenser",
    "ContrastiveModule": "pretrain_contrastive",
    "CrossEncoderModule": "train_cross_encoder",
    "InverseClozeModule": "pretrain_ict",
    "MaskedAutoEncoderModule": "pretrain_cotmae",
    "PassageQueryDataModule": "pretrain_cocondenser",
    "QueryAsContextModule": "pretrain_cocondenser",
    "QueryTowerModule": "distil_ranking",
    "RankingDataModule": "distil_ranking",
    "SpanPairDataModule": "pretrain_cocondenser",
    "TripleDataModule": "finetune",
}
OF_ANOTHER_KIND = {  # a stage names other stages or the backbone where a class takes texts, folders and objects
    *("tokenizer", "negatives", "teacher", "labels", "queries", "seed", "dropout", "text_queries"),
    *("decoder_layers", "decoder_mask_rate"),  # of the class also RetroMAE's
    "min_length",  # of the class as short as the length wants it
}


def defaults_of_stage(path: Path) -> dict[str, Any]:
    """The keys of a stage's file, and of those that it builds on."""
    keys = yaml.safe_load(path.read_text())
    found: dict[str, Any] = {}
    for entry in keys.pop("defaults", []):
        name = entry.partition("@")[0]
        if name != "_self_":
            found |= defaults_of_stage(path.parent / f"{name}.yaml")
    return {**found, **keys}


def defaults_of_class(name: str) -> dict[str, Any]:
    """What the arguments of a class are where they are not given, those of its bases too."""
    made, found = getattr(condensery, name), dict[str, Any]()
    for base in reversed(made.__mro__):
        if "__init__" in vars(base):
            found |= {key: one.default for key, one in inspect.signature(base.__init__).parameters.items()}
    if hasattr(made, "usual_rate"):
        found["learning_rate"] = made.usual_rate
    return {key: value for key, value in found.items() if value is not inspect.Parameter.empty}


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_a_class_and_its_stage_have_the_same_defaults(name: str, kind: str) -> None:
    stage, given = defaults_of_stage(STAGES / f"{kind}.yaml"), defaults_of_class(name)
    common = (stage.keys() & given.keys()) - OF_ANOTHER_KIND
    assert common
    assert {key: given[key] for key in common} == {key: stage[key] for key in common}


@pytest.mark.parametrize("kind", sorted(registry()))
def test_the_file_of_a_stage_has_its_keys_and_no_others(kind: str) -> None:
    fields = registry()[kind].config.model_fields
    stage = defaults_of_stage(STAGES / f"{kind}.yaml")
    assert stage.keys() == fields.keys()
    own = {key: field.default for key, field in fields.items() if not field.is_required()}
    read = {key for key, value in stage.items() if str(value).startswith("${")}  # from another group
    assert {key: own[key] for key in own.keys() - read} == {key: stage[key] for key in own.keys() - read}
