"""What is added to a recipe by itself, and what ``--cfg job`` prints of the kinds of stages."""

import re
from pathlib import Path

import pytest
import yaml
from small_runs import Done, run_command

from condensery.recipes import ADDED_BETWEEN, ADDED_FIRST
from condensery.stages.registry import registry


def own(stages: str, folder: Path, *given: str) -> Done:
    """A recipe with these stages, up to the list of what is to be made."""
    (folder / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "experiment" / "own.yaml").write_text(f"# @package _global_\nname: own\nstages: {stages}\n")
    command = ["--config-dir", folder / "conf", "experiment=own", f"output_root={folder / 'out'}", *given]
    return run_command(*command, *([] if "--cfg" in given else ["dry_run=plan"]))


@pytest.mark.parametrize(
    ("stages", "added"),
    [
        ("{bm25: {stage: bm25}}", ["corpus", "bm25"]),
        ("{mlm: {stage: pretrain_mlm}}", ["corpus", "tokenizer", "tokens", "mlm"]),
        ("{words: {stage: tokenizer}}", ["corpus", "words"]),
        ("{tokens: {titles: false}}", ["corpus", "tokenizer", "tokens"]),
        ("{mlm: {stage: pretrain_mlm}, corpus: {stage: corpus}}", ["corpus", "tokenizer", "tokens", "mlm"]),
    ],
)
def test_what_every_recipe_needs_is_added_by_itself_and_first(stages: str, added: list[str], tmp_path: Path) -> None:
    done = own(stages, tmp_path).sound()
    assert re.findall(r"^│ ([\w.]+) +│ \w+ +│ [0-9a-f]{16} ", done.out, re.MULTILINE) == added, done.out


def test_the_id_is_that_of_a_stage_that_is_named(tmp_path: Path) -> None:
    ids = [
        re.findall(r" ([0-9a-f]{16}) ", own(stages, tmp_path).sound().out)
        for stages in (
            "{mlm: {stage: pretrain_mlm}}",
            "{corpus: {stage: corpus}, tokenizer: {stage: tokenizer}, tokens: {stage: tokens}, mlm: {stage: pretrain_mlm}}",
        )
    ]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4


def test_what_is_left_out_is_not_added(tmp_path: Path) -> None:
    done = own("{bm25: {stage: bm25}, corpus: null}", tmp_path)
    assert done.code == 1
    assert "no stage is named 'corpus'" in done.err


def test_a_key_of_an_added_stage_is_set_without_naming_its_kind(tmp_path: Path) -> None:
    plain, without = (
        own("{mlm: {stage: pretrain_mlm}}", tmp_path, *given).sound().out
        for given in ([], ["stages.tokens.titles=false"])
    )
    assert plain != without


def test_the_printed_config_has_the_kinds_that_are_used(tmp_path: Path) -> None:
    printed = yaml.safe_load(own("{bm25: {stage: bm25}, x: null}", tmp_path, "--cfg", "job").sound().out)
    assert set(printed["stage"]) == {"bm25", *ADDED_FIRST, *ADDED_BETWEEN}
    whole = yaml.safe_load(run_command("--cfg", "job").sound().out)
    assert len(whole["stage"]) > 30, "without a recipe all are shown"


def test_a_kind_that_another_refers_to_is_printed(tmp_path: Path) -> None:
    stages = "{mlm: {stage: pretrain_condenser, length: '${stage.pretrain_mlm.length}'}}"
    printed = yaml.safe_load(own(stages, tmp_path, "--cfg", "job", "--resolve").sound().out)
    assert printed["stages"]["mlm"]["length"] == printed["stage"]["pretrain_mlm"]["length"]


@pytest.mark.parametrize(
    "stages",
    [
        "{mlm: {stage: pretrain_condenser, length: '${oc.select:stage.pretrain_mlm.length,7}'}}",
        "{mlm: {stage: pretrain_condenser}, again: {stage: '${stages.mlm.stage}', seed: 3}}",
    ],
)
def test_a_kind_that_is_found_only_by_following_a_reference_has_its_defaults(stages: str, tmp_path: Path) -> None:
    printed = yaml.safe_load(own(stages, tmp_path, "--cfg", "job", "--resolve").sound().out)
    assert printed["stages"]["mlm"].get("length", 128) == printed["stage"]["pretrain_mlm"]["length"] == 128


@pytest.mark.parametrize(
    "given", ["stages.bm25.stage=retriever", "++stages.more={stage: retriever}", "stage.retriever.name=x"]
)
def test_a_kind_that_the_command_names_has_its_defaults(given: str, tmp_path: Path) -> None:
    printed = yaml.safe_load(own("{bm25: {stage: bm25}}", tmp_path, given, "--cfg", "job").sound().out)
    assert len(printed["stage"]["retriever"]) > 2


def test_a_kind_that_is_asked_for_is_printed_whether_used_or_not(tmp_path: Path) -> None:
    printed = own("{bm25: {stage: bm25}}", tmp_path, "--cfg", "job", "--package", "stage.pretrain_mlm").sound().out
    assert "masked" in printed or "steps" in printed


def test_the_kinds_that_are_added_are_those_of_the_registry() -> None:
    assert {name for name, stage in registry().items() if stage.adapts and "toy" not in name} == set(ADDED_BETWEEN)
    assert set(ADDED_FIRST) <= set(registry())
