"""One default and one range of a key: in ``conf/stage``, on the config class of the stage, in the signature of a class."""

import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from small_runs import PROJECT

import condensery
from condensery.ranges import annotations_of, fault
from condensery.stages.registry import registry

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
STRICTER = {
    "length",
    "query_length",
    "passage_length",
    "decoder_mask_rate",
}  # ranges of a recipe within those of a class
TRIED = (-1, 0, 0.5, 1, 1.5, 2, 3, 8)
SCRIPT = runpy.run_path(str(PROJECT / ".ci" / "conf_stage.py"))
MADE: dict[Path, str] = SCRIPT["files"]()


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
    fields, given = registry()[kind].config.model_fields, defaults_of_class(name)
    common = (fields.keys() & given.keys()) - OF_ANOTHER_KIND
    assert common
    assert {key: given[key] for key in common} == {key: fields[key].default for key in common}


def takes(annotation: Any, value: Any) -> bool:
    """Whether a recipe may give a key this value."""
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_a_class_and_its_stage_have_the_same_ranges(name: str, kind: str) -> None:
    config, given = registry()[kind].config, annotations_of(getattr(condensery, name))
    ranges = {key for key, annotation in given.items() if fault(annotation, "no number")}
    common = ranges & config.model_fields.keys()
    assert common
    for key in common:
        field: Any = config.model_fields[key]
        annotation = field.rebuild_annotation()
        in_recipe = {value for value in TRIED if takes(annotation, value)}
        in_class = {value for value in TRIED if not fault(given[key], value)}
        assert in_recipe <= in_class, key
        assert in_recipe == in_class or key in STRICTER, key


@pytest.mark.parametrize("path", sorted(MADE), ids=lambda path: path.stem)
def test_the_file_of_a_stage_is_what_its_class_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run `make conf`"


@pytest.mark.parametrize("kind", sorted(path.stem for path in MADE))
def test_an_explanation_is_short(kind: str) -> None:
    texts = SCRIPT["explanations"](registry()[kind].config)
    assert not {key: text for key, text in texts.items() if not 1 <= len(text.split()) <= 27}


def test_no_file_belongs_to_no_stage() -> None:
    assert set((PROJECT / "conf" / "stage").rglob("*")) == MADE.keys()
