"""Recipes become graphs: ids, automatic stages, and one clear line for whatever is wrong."""

from pathlib import Path

import pytest
from error_lines import names
from toy_commands import Compose

from condensery.errors import UserError
from condensery.pipeline.graph import build
from condensery.stages.base import StageConfig
from condensery.stages.registry import BASELINES, registry

FAULTS = [  # what is given, the place that the line names, what else it says
    ("stages.plain.learning_rate=-1", "stages.plain.learning_rate", "> 0", "got -1"),
    ("stage.toy_train.learning_rate=-1", "stage.toy_train.learning_rate", "> 0", "got -1"),
    ("stages.plain.learning_rte=1", "stages.plain.learning_rte", "unknown key", "'learning_rate'"),
    ("stage.toy_train.learning_rte=1", "stage.toy_train.learning_rte", "unknown key", "'learning_rate'"),
    ("stages.plain.steps=1.5", "stages.plain.steps", "whole number", "got 1.5"),
    ("stages.plain.steps=true", "stages.plain.steps", "a number", "got true"),
    ("stages.plain.steps=many", "stages.plain.steps", "whole number", "'many'"),
    ("stages.plain.steps=null", "stages.plain.steps", "whole number", "got null"),
    ("stages.plain.learning_rate=.nan", "stages.plain.learning_rate", "finite number", "got nan"),
    ("~stages.plain.init", "stages.plain.init", "needs a value"),
    ("stages.plain.init=bettr", "stages.plain.init", "'bettr'", "'better'"),
    ("stages.round2.negatives=[bm25]", "stages.round2.negatives", "makes index", "negatives is needed", "'bm25'"),
    ("stages.plain.negatives=mined", "stages.plain.negatives", "a list", "'mined'"),
    ("stages.plain.stage=toy_trian", "stages.plain.stage", "unknown kind of stage", "'toy_trian'", "'toy_train'"),
    ("stages.new.init=plain", "stages.new", "not a stage"),
    ("stages={a/b: {stage: toy_bm25}}", "stages.a/b", "'a/b'", "^[A-Za-z0-9][A-Za-z0-9_-]*$"),
    ("stages.backbone.stage=toy_bm25", "stages.backbone", "stages.plain.init reserves this name"),
    ("stage.toy_nix.steps=1", "stage.toy_nix", "unknown kind of stage", "'toy_mine'"),
    ("stages.plain.init=round2", "plain -> round2 -> better -> plain", "circle"),
    ("stages.plain.learning_rate=${nix}", "stages.plain.learning_rate", "'nix'"),
    ("data.root=???", "data.root", "needs a value"),
    ("data.root=/nix/text", "/nix/text", "no such file"),
    ("data.rot=1", "data.rot", "unknown key"),
    ("backbone.size=0", "backbone.size", "> 0", "got 0"),
    ("stages.plain.backbone.size=x", "stages.plain.backbone.size", "whole number", "'x'"),
    ("trainer.precision=fp8", "trainer.precision", "'auto'", "'fp32'", "'bf16'", "'fp16'", "'fp8'"),
    ("trainer.threads=0", "trainer.threads", "> 0", "'auto'", "got 0"),
    ("logger.wandb.enabled=maybe", "logger.wandb.enabled", "'auto'", "true or false", "'maybe'"),
    ("table.baseline=x", "table.baseline", "not a row", "'x'", "known: BM25, better, plain, round2"),
    ("table.rows.New=plian", "table.rows.New", "'plian'", "'plain'"),
    ("table.rows.New=mined", "table.rows.New", "makes negatives", "evaluation is needed", "'mined'"),
    ("table.metrics=[]", "table.metrics", "at least 1", "got []"),
    ("table.split=validation", "table.split", "'train'", "'dev'", "'test'", "'dl19'", "'dl20'", "'validation'"),
    ("force=[plan]", "force", "'plan'", "'plain'"),
    ("jobs=0", "jobs", "> 0", "got 0"),
    ("jobs=100000", "jobs", "<= 256", "got 100000"),
    ("trainer.devices=100000", "trainer.devices", "<= 1024", "'auto'", "got 100000"),
    ("trainer.threads=100000", "trainer.threads", "<= 1024", "'auto'", "got 100000"),
    ("trainer.workers=100000", "trainer.workers", "<= 256", "got 100000"),
    ("seed=abc", "seed", "whole number", "'abc'"),
    ("name=../x", "name", "'../x'", "^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ("foo=1", "foo", "unknown key", "known: ask,"),
    ("name=a/b", "name", "'a/b'", "^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ("name=/x", "name", "must match"),
    ("name=.hidden", "name", "must match"),
    ("name=''", "name", "must match"),
    (f"name={'x' * 101}", "name", "at most 100"),
    ("stages={../x: {stage: toy_bm25}}", "stages.../x", "'../x'", "^[A-Za-z0-9][A-Za-z0-9_-]*$"),
    (f"stages={{{'x' * 101}: {{stage: toy_bm25}}}}", f"stages.{'x' * 101}", "at most 100"),
    ("stages={'': {stage: toy_bm25}}", "stages.", "^[A-Za-z0-9]"),
    ("figures={../x: {kind: training, stages: {a: plain}}}", "figures.../x", "^[A-Za-z0-9][A-Za-z0-9_-]*$"),
    ("figures={/x: {kind: training, stages: {a: plain}}}", "figures./x", "must match"),
    ("figures.x={kind: drawing}", "figures.x", "'kind'", "'drawing'", "known:"),
    ("table.studies=[../../x]", "table.studies[0]", "'../../x'", "^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ("table.studies=['*']", "table.studies[0]", "must match"),
    ("output_root=''", "output_root", "no folder"),
    ("stages.plain.stage=[toy_train]", "stages.plain.stage", "unknown kind of stage", "'toy_train'"),
    ("stages.plain.negatives={a: b}", "stages.plain.negatives", "is a list where a mapping"),
    ("stages.plain.init=plain", "plain -> plain", "circle"),
    ("stages.plain=3", "stages.plain", "mapping", "got 3"),
    ("trainer=fast", "trainer", "mapping", "'fast'"),
    ("trainer=null", "trainer", "mapping", "got null"),
    ("logger=wandb", "logger", "mapping", "'wandb'"),
    ("table=3", "table", "mapping", "got 3"),
    ("data=null", "data", "mapping", "got null"),
    ("backbone=tiny", "backbone", "mapping", "'tiny'"),
    ("stages.plain.backbone._target_=os.system", "stages.plain.backbone._target_", "unknown key"),
    ("data._target_=os.system", "data._target_", "unknown key"),
    ("stages.plain.learning_rate=1e999", "stages.plain.learning_rate", "finite number", "got inf"),
    ("seed=-1", "seed", ">= 0", "got -1"),
    ("stages.plain=null", "stages.better.init", "'plain'", "known:"),
    ("stages.mined=null", "stages.round2.negatives", "'mined'", "known:"),
    ("stages.round2=null", "table.rows.round2", "'round2'", "known:"),
    ("table.rows.plain=null", "table.baseline", "not a row", "'plain'", "known: BM25, better, round2"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_a_fault_is_one_line_that_names_the_key_as_it_was_written(fault: tuple[str, ...], composed: Compose) -> None:
    override, place, *words = fault
    with pytest.raises(UserError) as caught:
        build(composed(override))
    names(str(caught.value), place, *words)


def test_a_key_without_a_value_has_that_of_its_kind(composed: Compose) -> None:
    own, kind = (
        build(composed("stages.plain.learning_rate=???")).nodes["plain"].config,
        build(composed()).nodes["plain"].config,
    )
    assert own == kind


def test_stages_are_added_where_another_product_is_wanted_and_shared(composed: Compose) -> None:
    graph = build(composed())
    assert graph.nodes["mined"].inputs == {"retriever": ("better.index",)}
    assert graph.nodes["better.index"].kind == "toy_encode"
    assert graph.rows == {row: f"{row.lower()}.evaluation" for row in ("BM25", "plain", "better", "round2")}
    assert graph.nodes["better.evaluation"].inputs == {"index": ("better.index",)}
    assert graph.nodes["bm25.evaluation"].inputs == {"index": ("bm25",)}
    assert len(graph.nodes) == 13


def test_a_stage_that_is_added_reads_what_its_model_read(composed: Compose) -> None:
    graph = build(composed("stages.text={stage: toy_corpus}", "stages.better.corpus=text"))
    assert graph.nodes["better.index"].inputs["corpus"] == ("text",)
    assert graph.nodes["plain.index"].inputs["corpus"] == ("corpus",)


def test_a_row_may_name_an_evaluation_of_its_own(composed: Compose) -> None:
    own = "stages.mine={stage: toy_evaluate, index: plain, split: dev}"
    graph = build(composed(own, "table.rows.Own=mine"))
    assert graph.rows["Own"] == "mine"
    assert graph.nodes["mine"].config.model_dump()["split"] == "dev"
    assert graph.nodes["mine"].inputs == {"index": ("plain.index",)}


def test_every_stage_stands_behind_what_it_reads(composed: Compose) -> None:
    graph = build(composed())
    seen: set[str] = set()
    for name, node in graph.nodes.items():
        assert seen.issuperset(node.parents)
        seen.add(name)


def test_null_leaves_out_a_stage_and_a_row_as_if_they_had_never_been_written(composed: Compose) -> None:
    whole = build(composed())
    kept = build(composed("stages.mined=null", "stages.round2=null", "table.rows.round2=null"))
    assert set(whole.nodes) - set(kept.nodes) == {"mined", "round2", "round2.index", "round2.evaluation"}
    assert list(kept.rows) == ["BM25", "plain", "better"]
    assert kept.id == build(composed("~stages.mined", "~stages.round2", "~table.rows.round2")).id
    assert {name: node.id for name, node in kept.nodes.items()} == {name: whole.nodes[name].id for name in kept.nodes}


def test_a_row_that_is_left_out_leaves_its_stage_to_others(composed: Compose) -> None:
    graph = build(composed("table.rows.better=null"))
    assert list(graph.rows) == ["BM25", "plain", "round2"]
    assert "better" in graph.nodes, "round2 begins with it"
    assert "better.evaluation" not in graph.nodes


def changed(composed: Compose, *overrides: str) -> set[str]:
    before, after = build(composed()), build(composed(*overrides))
    return {name for name, node in before.nodes.items() if after.nodes[name].id != node.id}


def test_what_cannot_change_the_result_is_not_in_the_id(composed: Compose) -> None:
    operational = ["stage.toy_train.pause=1.0", "stage.toy_corpus.workers=9", "stage.toy_encode.shard_size=3"]
    assert (
        changed(composed, *operational, "jobs=2", "trainer.threads=2", "output_root=/elsewhere", "name=other") == set()
    )


def test_what_changes_the_result_changes_the_ids_from_there_on(composed: Compose) -> None:
    after_round2 = {"round2", "round2.index", "round2.evaluation"}
    assert changed(composed, "stages.round2.steps=9") == after_round2
    assert changed(composed, "stage.toy_mine.depth=9") == {"mined", *after_round2}
    assert changed(composed, "table.metrics=[MRR@10]") == {
        f"{n}.evaluation" for n in ("bm25", "plain", "better", "round2")
    }
    assert {"plain", "better", "round2"} <= changed(composed, "seed=2")
    assert changed(composed, "stages.round2.init=plain") == after_round2
    assert "plain" in changed(composed, "stages.plain.init=better", "stages.better.init=backbone")


def test_the_order_of_inputs_counts(composed: Compose) -> None:
    second = "stages.mined2={stage: toy_mine, retriever: plain}"
    one, other = (build(composed(second, f"stages.round2.negatives=[{n}]")) for n in ("mined,mined2", "mined2,mined"))
    assert one.nodes["round2"].id != other.nodes["round2"].id


def test_data_is_known_by_its_content_and_not_by_its_place(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "moved.txt").write_text("some text\n")
    assert changed(composed, f"data.root={tmp_path / 'moved.txt'}") == set()
    (tmp_path / "moved.txt").write_text("other text\n")
    assert changed(composed, f"data.root={tmp_path / 'moved.txt'}") == set(build(composed()).nodes)


def test_a_stage_may_change_a_part_of_a_group(composed: Compose) -> None:
    node = build(composed("stages.plain.backbone.size=9")).nodes["plain"]
    assert node.config.model_dump()["backbone"] == {"size": 9, "depth": 2}


def test_the_id_of_the_run_is_that_of_its_artifacts_and_table(composed: Compose) -> None:
    run = build(composed()).id
    assert run == build(composed("jobs=2", "force=[plain]")).id
    assert run != build(composed("seed=2")).id
    assert run != build(composed("table.baseline=null")).id


def test_no_config_of_a_stage_is_deeper_than_four_classes() -> None:
    def depth(config: type) -> int:
        return 1 + max((depth(base) for base in config.__bases__ if issubclass(base, StageConfig)), default=0)

    # a baseline may derive from a stage of this project, and is then one class deeper
    below = {kind: int(stage.place.startswith(BASELINES)) for kind, stage in registry().items()}
    depths = {kind: depth(stage.config) - below[kind] for kind, stage in registry().items()}
    assert len(depths) > 30
    assert {kind: number for kind, number in depths.items() if number > 4} == {}


def test_a_plug_in_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_STAGES", "toys,no_such_module")
    with pytest.raises(UserError, match="CONDENSERY_STAGES: there is no module 'no_such_module'"):
        registry()
