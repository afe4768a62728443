"""A model of sentence-transformers with mean pooling, prefixes and normalisation is measured as that library measures it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_lines import names
from released import SEVERAL, released
from single_stage import inputs, run_stage
from slow import slow_except
from small_runs import metrics_of, run_command, some_text, splits_of, write_beir

from condensery.models.checkpoints.metadata import made_for_search
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.retrieval.searchers.retriever import Retriever
from condensery.system.files import read_json
from condensery.training.data.triples import TripleDataModule
from condensery.training.modules.biencoder import BiEncoderModule

TEXT = some_text(documents=20, seed=5)
PROMPTS = {"query": "query: ", "document": "a passage of it: "}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT in sentence-transformers' own form, whose inputs are cut to 40 tokens."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    import torch
    from transformers import BertConfig, BertModel

    from condensery.tokens.tokenizer import train_wordpiece

    folder = tmp_path_factory.mktemp("sentence_transformers")
    words = [words for _, _, words, _ in TEXT.passages]
    tokenizer = train_wordpiece([*words, *PROMPTS.values()], 400, folder / "bert")
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.2, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "bert")
    transformer = modules.Transformer(str(folder / "bert"), max_seq_length=40)
    parts = [transformer, modules.Pooling(32, pooling_mode="mean"), modules.Normalize()]
    library.SentenceTransformer(modules=parts, prompts=PROMPTS, device="cpu").save(str(folder / "saved"))
    return folder / "saved"


def their_evaluator(evaluation: Any) -> Any:
    """What that library measures the test queries with."""
    asked = splits_of(TEXT)["test"]
    return evaluation.InformationRetrievalEvaluator(
        {name: words for name, words, _ in asked},
        {name: words for name, _, words, _ in TEXT.passages},
        {name: {passage} for name, _, passage in asked},
        precision_recall_at_k=[5],
        write_csv=False,
    )


def test_the_table_gives_what_its_evaluator_gives(saved: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    evaluation = pytest.importorskip("sentence_transformers.evaluation")
    data = write_beir(tmp_path / "beir", TEXT)
    done = run_command(
        "experiment=cocondenser_beir",
        f"data.root={data}",
        f"backbone.name={saved}",
        "stage.tokens.titles=false",
        "table.metrics=[MRR@10,NDCG@10,Recall@5,MAP@100]",
        "trainer=cpu",
        "trainer.precision=fp32",
        "trainer.threads=1",
        f"output_root={tmp_path / 'out'}",
    ).sound()
    ours = metrics_of(done.folder)["coCondenser"]
    evaluator = their_evaluator(evaluation)
    theirs = evaluator(library.SentenceTransformer(str(saved), device="cpu"))
    named = {"MRR@10": "mrr@10", "NDCG@10": "ndcg@10", "Recall@5": "recall@5", "MAP@100": "map@100"}
    for name, other in named.items():
        assert ours[name] == pytest.approx(theirs[f"cosine_{other}"], abs=1e-6), name
    assert 0 < ours["MRR@10"] < 1
    assert metrics_of(done.folder)["BM25"]["MRR@10"] != ours["MRR@10"]


def test_fine_tuning_keeps_how_vectors_are_made_and_sentence_transformers_reads_the_same_from_what_is_saved(
    saved: Path, tmp_path: Path
) -> None:
    import pytorch_lightning as pl

    library = pytest.importorskip("sentence_transformers")
    data = TripleDataModule(
        write_beir(tmp_path / "beir", TEXT),
        tokenizer=saved,
        query_length=24,
        passage_length=40,
        titles=False,
        query_prefix=PROMPTS["query"],
        passage_prefix=PROMPTS["document"],
    )
    module = BiEncoderModule(saved, learning_rate=1e-2)
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_steps=2, accelerator="cpu", enable_model_summary=False, num_sanity_val_steps=0, **quiet).fit(
        module, data
    )
    module.save_pretrained(tmp_path / "tuned")

    questions, passages = [words for _, words, _ in TEXT.questions], [words for _, _, words, _ in TEXT.passages]
    ours, before = (Retriever(one, precision="fp32") for one in (tmp_path / "tuned", saved))
    assert ours.model.settings == before.model.settings
    assert ours.model.settings.own() == {
        "pooling": "mean",
        "normalise": True,
        "query_prefix": PROMPTS["query"],
        "passage_prefix": PROMPTS["document"],
    }
    theirs = library.SentenceTransformer(str(tmp_path / "tuned"), device="cpu")
    theirs.max_seq_length = 24
    np.testing.assert_allclose(ours.encode_queries(questions), theirs.encode_query(questions), atol=1e-6)
    theirs.max_seq_length = 40
    np.testing.assert_allclose(ours.encode_passages(passages), theirs.encode_document(passages), atol=1e-6)
    assert not np.allclose(ours.encode_passages(passages), before.encode_passages(passages), atol=1e-3), "not trained"


@pytest.fixture(scope="module")
def small_half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in fp16 without LM head: weighted mean, two ``Dense``, and 6 numbers of a vector are kept."""
    import torch

    return small(tmp_path_factory.mktemp("small_half"), torch.float16, **HALF)


HALF: dict[str, Any] = {"pooling": "weightedmean", "behind": SEVERAL, "truncate_dim": 6, "similarity": "cosine"}
SMALL = {
    "fp16, Dense, cut": HALF,
    "mpnet in fp16": {"family": "mpnet", "similarity": "cosine"},
    "electra in fp16, by the largest": {"family": "electra", "pooling": "max", "behind": [("Normalize", {})]},
    "xlm-roberta in fp16, by its last token": {"family": "xlm-roberta", "pooling": "lasttoken", "similarity": "cosine"},
}


def small(folder: Path, dtype: Any, **kind: Any) -> Path:
    from condensery.tokens.tokenizer import train_wordpiece

    train_wordpiece([*(words for _, _, words, _ in TEXT.passages), *PROMPTS.values()], 400, folder / "given")
    return released(folder, folder / "given", **kind, dtype=dtype, prompts=PROMPTS, length=36)


@pytest.mark.parametrize("kind", slow_except(SMALL, "fp16, Dense, cut"))
def test_from_the_command_line_to_its_table_goes_each_kind_of_checkpoint(kind: str, tmp_path: Path) -> None:
    import torch

    small_half = small(tmp_path / "made", torch.float16, **SMALL[kind])
    library = pytest.importorskip("sentence_transformers")
    evaluation = pytest.importorskip("sentence_transformers.evaluation")
    done = run_command(
        "experiment=adapt",
        "stages.distilled.steps=2",
        "data=beir",
        f"data.root={write_beir(tmp_path / 'beir', TEXT)}",
        f"backbone.name={small_half}",
        "stage.tokens.titles=false",
        "table.metrics=[MRR@10,NDCG@10]",
        "trainer=cpu",
        "trainer.precision=fp32",
        f"output_root={tmp_path / 'out'}",
    ).sound()
    ours = metrics_of(done.folder)["as it is"]
    evaluator = their_evaluator(evaluation)
    whole = {"dtype": torch.float32}
    theirs = evaluator(library.SentenceTransformer(str(small_half), device="cpu", model_kwargs=whole).float())
    by = SMALL[kind].get("similarity", "dot")
    for name in ("MRR@10", "NDCG@10"):
        assert ours[name] == pytest.approx(theirs[f"{by}_{name.lower()}"], abs=1e-6), name
    assert 0 < ours["MRR@10"] < 1
    assert {"BM25", "as it is", "adapted", "BM25 + as it is", "BM25 + adapted"} == metrics_of(done.folder).keys()


@pytest.mark.parametrize(("dtype", "size"), [("int8", 6), ("binary", 1)])
def test_a_stage_says_what_its_vectors_lose_in_fewer_bits(
    dtype: str, size: int, small_half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {**inputs(tmp_path, TEXT), **{name: tmp_path / name for name in ("tokens", "model")}}
    run_stage("retriever", made["model"], {}, folder=small_half)
    run_stage("tokens", made["tokens"], {"corpus": made["corpus"], "tokenizer": made["model"]})
    values = run_stage("encode", tmp_path / "vectors", {"model": made["model"], "tokens": made["tokens"]}, dtype=dtype)
    assert (values["dim"], values["bytes"]) == (6, size * values["passages"])
    assert 0 < values["recall_10"] <= 1
    assert values["compared"] == values["queries"] > 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("[encode]") and dtype in line)
    names(said, dtype, "of the 10 best", "of the 100 best", f"{values['bytes']} bytes", f"{values['compared']} queries")


def test_nested_vectors_are_trained_with_the_layers_behind_them_and_open_there_cut(
    small_half: Path, tmp_path: Path
) -> None:
    import pytorch_lightning as pl

    from condensery.models.checkpoints.retrievers import load_biencoder

    library = pytest.importorskip("sentence_transformers")
    prefixes = {"query_prefix": PROMPTS["query"], "passage_prefix": PROMPTS["document"]}
    data = TripleDataModule(
        write_beir(tmp_path / "beir", TEXT),
        tokenizer=small_half,
        query_length=24,
        passage_length=40,
        titles=False,
        **prefixes,
    )
    loss = {"name": "matryoshka", "dims": [6, 3], "weights": [1, 0.5], "loss": {"name": "info_nce", "temperature": 0.1}}
    module = BiEncoderModule(small_half, loss=loss, learning_rate=1e-2, towers="separate")
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_steps=2, accelerator="cpu", enable_model_summary=False, num_sanity_val_steps=0, **quiet).fit(
        module, data
    )
    module.save_pretrained(tmp_path / "tuned")
    trained, before = load_biencoder(tmp_path / "tuned"), load_biencoder(small_half)
    assert trained.settings == before.settings
    for tower in (trained.query, trained.passage):
        assert not np.allclose(tower.head[0].linear.weight.detach(), before.passage.head[0].linear.weight.detach())
    ours = Retriever(tmp_path / "tuned", vectors={"truncate_dim": 3}, precision="fp32")
    passages = [words for _, _, words, _ in TEXT.passages]
    theirs = library.SentenceTransformer(str(tmp_path / "tuned"), device="cpu", truncate_dim=3)
    found = theirs.encode_document(passages, normalize_embeddings=True)
    np.testing.assert_allclose(ours.encode_passages(passages), found, atol=1e-6)
    assert found.shape[1] == 3


def test_what_a_recipe_sets_goes_before_what_the_folder_says(saved: Path, tmp_path: Path) -> None:
    said = {"pooling": "mean", "normalise": True, "query_prefix": "query: ", "passage_prefix": "a passage of it: "}
    assert run_stage("retriever", tmp_path / "made", {}, folder=saved) == {
        "query_length": 40,
        "passage_length": 40,
        **said,
    }
    changed = {"pooling": "cls", "normalise": False, "query_prefix": "ask ", "passage_prefix": ""}
    run_stage("retriever", tmp_path / "changed", {}, folder=saved, query_length=8, **changed)
    assert load_retriever(tmp_path / "changed").model.settings.own() == {"query_prefix": "ask "}
    assert read_json(tmp_path / "changed" / "config_sentence_transformers.json")["prompts"]["query"] == "ask "


WARM = ("experiment=cocondenser_local", "data=beir")
COLD = ("experiment=condenser_wikipedia", "data=beir")
KINDS = {"mlm": "{stage: pretrain_mlm}", "autoencoder": "{stage: pretrain_cotmae}"}


@pytest.mark.parametrize(
    "recipe",
    [WARM, ("experiment=cocondenser_local_queries", "data=beir"), ("experiment=quickstart",), COLD]
    + [(*COLD, f"+stages.other={kind}") for kind in KINDS.values()],
)
def test_no_recipe_makes_a_released_retriever_worse_without_a_word(
    saved: Path, recipe: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    data = [] if recipe == ("experiment=quickstart",) else [f"data.root={write_beir(tmp_path / 'beir', TEXT)}"]
    given = [*recipe, *data, f"backbone.name={saved}", f"backbone.tokenizer={saved}", f"output_root={out}"]
    done = run_command(*given)
    assert done.code == 1
    names(done.err, str(saved), "mean pooling, cosine", "experiment=adapt", "backbone.pooling=cls")
    assert not (out / "artifacts").exists(), "said before anything is computed"
    assert run_command(*given, "backbone.pooling=cls", "dry_run=true").code == 0, "who says so may"


def test_which_checkpoints_are_released_retrievers(saved: Path, tmp_path: Path) -> None:
    from shutil import copytree

    assert made_for_search(saved) == "mean pooling, cosine"
    cls = copytree(saved, tmp_path / "cls")
    (cls / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert made_for_search(cls) == "CLS, cosine"
    (cls / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    (cls / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    assert made_for_search(cls) == "CLS, inner product"
    (cls / "condensery.json").write_text("{}")
    assert made_for_search(cls) is None, "the papers' own: another stage goes on from it"
    (cls / "condensery.json").write_text('{"pooling": "mean"}')
    assert made_for_search(cls) == "mean pooling, inner product"
    for file in ("condensery.json", "modules.json"):
        (cls / file).unlink()
    assert made_for_search(cls) is None, "a language model"


@pytest.mark.parametrize(("rate", "temperature", "size", "said"), [
    (1e-3, 0.05, 384, ["learning_rate"]),
    (5e-5, 4.0, 384, ["temperature"]),
    (1e-3, 4.0, 768, ["learning_rate", "temperature"]),
    (2e-5, 0.05, 384, []),
    (1e-3, 4.0, 256, []),
])  # fmt: skip
def test_settings_for_small_models_from_scratch_are_said_where_a_grown_one_is_trained(
    rate: float, temperature: float, size: int, said: list[str]
) -> None:
    from types import SimpleNamespace

    from transformers import BertConfig, BertModel

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoints.config import BackboneConfig
    from condensery.models.encoder import Encoder
    from condensery.models.vectors import VectorSettings
    from condensery.stages.training import unsuited

    sizes: Any = {"hidden_size": size, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertModel(BertConfig(vocab_size=100, **sizes), add_pooling_layer=False)
    module = BiEncoderModule(BiEncoder(Encoder(model, VectorSettings("mean", normalise=True))))
    backbone = BackboneConfig.model_construct(name="a/model")
    config: Any = SimpleNamespace(backbone=backbone, learning_rate=rate, temperature=temperature)
    lines = unsuited(module, config, "round1")
    assert [line.partition(":")[0] for line in lines] == [f"stages.round1.{key}" for key in said]
    config.backbone = BackboneConfig.model_construct(name=None)
    assert unsuited(module, config, "round1") == [], "from scratch they are right"
    distilled: Any = SimpleNamespace(student="adapted", learning_rate=rate, temperature=temperature)  # has no backbone
    assert unsuited(module, distilled, "round1") == [line.replace("a/model", "adapted") for line in lines]


@pytest.mark.parametrize(
    ("loss", "own", "said"),
    [
        ("info_nce", 1.0, ("temperature", 1.0)),
        ({"name": "kl", "temperature": 0.05}, 1.0, ("loss.temperature", 0.05)),
        (
            {"name": "matryoshka", "dims": [4], "loss": {"name": "info_nce", "temperature": 2.0}},
            0.05,
            ("loss.loss.temperature", 2.0),
        ),
        ({"name": "matryoshka", "dims": [4], "loss": "kl"}, 0.05, ("temperature", 0.05)),
        ("without_temperature", 1.0, ("temperature", 0.0)),
    ],
)
def test_the_temperature_that_is_warned_of_is_that_of_the_loss(
    loss: Any, own: float, said: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from condensery.losses import registry

    monkeypatch.setitem(registry._LOSSES, "without_temperature", lambda margin=1.0: None)  # type: ignore[arg-type, misc]
    assert registry.temperature_of(loss, own) == said


def test_pre_training_a_released_retriever_in_python_says_what_is_lost(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from condensery.training.modules.pretraining import CoCondenserModule, MaskedAutoEncoderModule

    for module in (CoCondenserModule, MaskedAutoEncoderModule):
        module(saved)
        assert f"{saved}: a trained retriever (mean pooling, cosine)" in capsys.readouterr().out
