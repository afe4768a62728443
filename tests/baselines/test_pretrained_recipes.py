"""The recipes at full size of the pre-trained baselines run to their tables, on small files in MS MARCO's own formats."""

from pathlib import Path

import pytest
from paq_files import write_paq
from small_runs import MODEL, metrics_of, run_command, some_text, write_marco

CHAIN = ["BM25", *(f"retriever {name}" for name in ("1 (BM25's negatives)", "2 (mined negatives)", "2 + re-ranker"))]
ROWS = {
    "simlm_pretraining_msmarco": [*CHAIN, "retriever 3 (distilled)"],
    "seed_msmarco": ["BM25", "SEED", "SEED + hard negatives"],
    "costa_msmarco": ["BM25", "COSTA", "COSTA + hard negatives"],
    "lexmae_msmarco": ["BM25", "LexMAE", "LexMAE + hard negatives"],
    "master_msmarco": ["BM25", "MASTER", "MASTER + hard negatives"],
    "dpr_paq_msmarco": ["BM25", "without PAQ", "DPR-PAQ", "DPR-PAQ + hard negatives"],
}
TRAINED = ("pretrain_mlm", "pretrain_simlm", "pretrain_seed", "pretrain_costa", "pretrain_lexmae")
TRAINED += ("pretrain_master", "finetune", "finetune_splade", "train_cross_encoder")
FEW = [f"++stage.{kind}.{key}" for kind in TRAINED for key in ("steps=2", "epochs=null", "batch_size=6")]
GIVEN = {
    "master_msmarco": ["stages.queries={stage: extract_queries}"],
    "dpr_paq_msmarco": ["backbone.tokenizer=null", "stages.dpr_paq.batch_size=6", "++stages.pairs.dev_queries=2"],
    "simlm_pretraining_msmarco": [
        *("stages.mlm={stage: pretrain_mlm}", "stages.simlm.generator=mlm", "stages.simlm.generator_name=null"),
        *("stage.rerank.depth=5", "stage.train_cross_encoder.backbone.name=null"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ROWS)
def test_it_runs_to_its_table_on_native_files(recipe: str, tmp_path: Path) -> None:
    root = write_marco(tmp_path / "marco", some_text(documents=24, seed=5))
    given = [f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    write_paq(tmp_path / "paq")
    given += [f"stages.pairs.root={tmp_path / 'paq'}"] if recipe == "dpr_paq_msmarco" else []
    given += ["backbone.name=null", "backbone.max_positions=200", *GIVEN.get(recipe, [])]
    done = run_command(f"experiment={recipe}", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ROWS[recipe]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    assert run_command(f"experiment={recipe}", *given).sound().computed == []
