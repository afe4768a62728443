"""``experiment=adapt``: a released retriever on one's own text is adapted to it, and never left worse than it came."""

import re
import shlex
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from error_lines import names
from small_runs import Done, Text, metrics_of, run_command, some_text, write_beir, write_text_files

from condensery import BM25, Fused, QueryTowerModule, RankingDataModule, UserError, evaluate
from condensery.models.blending import same_weights
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.pipeline.config import PushTarget
from condensery.pipeline.pushing import model_card
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.searchers.retriever import Retriever
from condensery.stages.adaptation.config import KeepBestConfig
from condensery.stages.adaptation.keep_best import all_far_below, keep_best
from condensery.stages.base import Artifact, Context
from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Queries
from condensery.training.held_out import chosen_queries

TEXT = some_text(documents=30, seed=5)
ROWS = ["BM25", "as it is", "adapted", "BM25 + as it is", "BM25 + adapted"]
QUICK = [
    "trainer=cpu",
    "trainer.precision=fp32",
    "logger=csv",
    "estimate=false",
    "stages.distilled.steps=4",
    "stages.distilled.batch_size=16",
]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT as sentence-transformers saves one: mean pooling, cosine, prompts, 40 tokens."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    from transformers import BertConfig, BertModel

    from condensery.tokens.tokenizer import train_wordpiece

    folder = tmp_path_factory.mktemp("released")
    prompts = {"query": "query: ", "document": "passage: "}
    words = [words for _, _, words, _ in TEXT.passages]
    tokenizer = train_wordpiece([*words, *prompts.values()], 400, folder / "bert")
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.2, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "bert")
    parts = [modules.Transformer(str(folder / "bert"), max_seq_length=40), modules.Pooling(32, pooling_mode="mean")]
    library.SentenceTransformer(modules=[*parts, modules.Normalize()], prompts=prompts).save(str(folder / "saved"))
    card = folder / "saved" / "README.md"
    card.write_text("---\ntags:\n- small\nlicense: apache-2.0\n---\n" + card.read_text().split("---\n", 2)[2])
    return folder / "saved"


@pytest.fixture(scope="module")
def adapted(released: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, list[str]]:
    """A run on judged text that keeps whatever is higher, and its command."""
    folder = tmp_path_factory.mktemp("adapt")
    data = write_beir(folder / "beir", TEXT)
    given = ["experiment=adapt", "data=beir", f"data.root={data}", f"backbone.name={released}", *QUICK]
    command = [*given, "stages.adapted.level=1", f"output_root={folder / 'out'}"]
    return run_command(*command).sound(), command


def artifact(done: Done, stage: str) -> Path:
    """The folder of a stage's artifact."""
    return (done.folder / "stages" / stage).resolve()


def test_the_table_has_its_rows_and_the_start_is_as_it_came(adapted: tuple[Done, list[str]], released: Path) -> None:
    done, command = adapted
    rows = metrics_of(done.folder)
    assert list(rows) == ROWS
    data = Path(next(word for word in command if word.startswith("data.root=")).partition("=")[2])
    alone = evaluate(Retriever(released, precision="fp32"), data, ["NDCG@10"])
    assert rows["as it is"]["NDCG@10"] == pytest.approx(alone["NDCG@10"], abs=1e-6)
    assert "[adapted] MRR@10 of" in done.out
    assert "[beside_bm25] each candidate fused with BM25 (weight 0.6): MRR@10 of" in done.out
    assert re.search(r"MRR@10 of \d+ dev queries and queries of passages that are held out: ", done.out)
    kept = read_json(artifact(done, "adapted") / "kept.json")
    names = {"dev queries", "queries of passages that are held out"}
    assert all(set(value["by"]) == names for value in kept["values"])
    judged = read_json(artifact(done, "corpus") / "collection.json")["splits"]["train"]["queries"]
    unread = f"{judged} judged train queries are not used here; experiment=adapt_queries trains on judged queries."
    assert unread in " ".join(done.out.split())
    assert unread in (done.folder / "table.md").read_text()


def test_passage_vectors_are_taken_over_and_queries_are_those_of_the_adapted_tower(
    adapted: tuple[Done, list[str]],
) -> None:
    done, _ = adapted
    first, later, kept = (artifact(done, name) for name in ("as_it_is.index", "adapted_index", "adapted"))
    shards = [path.relative_to(first) for path in sorted((first / "passages").iterdir())]
    assert shards
    assert all((first / path).read_bytes() == (later / path).read_bytes() for path in shards)
    start, model = (load_retriever(artifact(done, name)).model for name in ("as_it_is", "adapted"))
    assert same_weights(start.passage, model.passage)
    changed = not np.array_equal(np.load(first / "queries.npy"), np.load(later / "queries.npy"))
    assert changed == (read_json(kept / "kept.json")["share"] > 0)


def test_quantised_vectors_are_taken_over_with_their_levels(adapted: tuple[Done, list[str]]) -> None:
    done = run_command(*adapted[1], "backbone.truncate_dim=16", "stage.encode.dtype=int8").sound()
    assert list(metrics_of(done.folder)) == ROWS
    assert len(re.findall(r"^\[as_it_is.index\] int8: .*; it finds .* of float32", done.out, re.M)) == 1
    first, later = (artifact(done, name) for name in ("as_it_is.index", "adapted_index"))
    files = [*(first / "passages").iterdir(), first / "quantiser.npz"]
    assert len(files) > 1
    assert all(path.read_bytes() == (later / path.relative_to(first)).read_bytes() for path in files)


def test_queries_that_nobody_asks_are_not_encoded(adapted: tuple[Done, list[str]]) -> None:
    done, command = adapted
    collection = Collection(artifact(done, "corpus"))
    asked = np.concatenate([collection.questions(split) for split in ("dev", "test")])
    for stage in ("as_it_is.index", "adapted_index"):
        assert np.load(artifact(done, stage) / "query_rows.npy").tolist() == sorted(asked.tolist())
        assert len(np.load(artifact(done, stage) / "queries.npy")) == len(asked) < len(collection.queries)
    mined = run_command(*command, "stages.mined={stage: mine, retriever: as_it_is}")
    assert mined.code == 1
    names(mined.err, "stages.mined.retriever", "dev, test", "train", "query_splits")
    index = DenseIndex(artifact(done, "as_it_is.index"))
    with pytest.raises(UserError, match="query_splits"):
        index.query_vectors(collection.questions("train"))


def test_a_program_of_ones_own_trains_as_the_stage_does(adapted: tuple[Done, list[str]], tmp_path: Path) -> None:
    folder, start = artifact(adapted[0], "distilled"), artifact(adapted[0], "as_it_is")
    collection, made = Collection(artifact(adapted[0], "corpus")), Queries(artifact(adapted[0], "queries"))
    config = read_json(folder / "manifest.json")["config"]
    columns = (collection.passages.column(name) for name in ("id", "title", "text"))
    passages = {name: {"title": title, "text": text} for name, title, text in zip(*columns, strict=True)}
    student = Retriever(start, device="cpu", precision="fp32").index(passages)
    queries = made.texts_at(chosen_queries(made, config["number"], config["seed"]))
    teacher = Fused([BM25().index(passages), student], weights=[0.6, 0.4])
    data = RankingDataModule(queries, student, teacher, **{name: config[name] for name in ("batch_size", "seed")})
    module = QueryTowerModule(start, **{name: config[name] for name in ("learning_rate", "warmup_ratio", "seed")})
    quiet: Any = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
    pl.Trainer(max_steps=config["steps"], default_root_dir=tmp_path, **quiet).fit(module, data)
    ranked = np.load(folder / "teacher-passages.npy")
    assert len(ranked) == len(queries) > 2 * config["batch_size"]
    assert (np.sort(data.batches.passages, axis=1) == np.sort(ranked, axis=1)).all()
    module.save_pretrained(tmp_path / "mine")
    mine, theirs, first = (load_retriever(path) for path in (tmp_path / "mine", folder, start))
    assert (mine.query_length, mine.passage_length) == (theirs.query_length, theirs.passage_length) == (40, 40)
    assert same_weights(mine.model.passage, theirs.model.passage)
    ours, stages, before = (
        torch.nn.utils.parameters_to_vector(one.model.query.parameters()) for one in (mine, theirs, first)
    )
    assert (ours - stages).norm() < 1e-3 * (stages - before).norm(), "but for rounding: vectors of other chunks"
    assert (stages - before).norm() > 0


def test_what_is_saved_opens_in_sentence_transformers_with_equal_vectors(adapted: tuple[Done, list[str]]) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = artifact(adapted[0], "distilled")
    queries, passages = [words for _, words, _ in TEXT.questions[:5]], [words for _, _, words, _ in TEXT.passages[:5]]
    ours, theirs = Retriever(folder, precision="fp32"), library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours.encode_queries(queries), theirs.encode_query(queries), atol=1e-6)
    np.testing.assert_allclose(ours.encode_passages(passages), theirs.encode_document(passages), atol=1e-6)
    assert not np.allclose(theirs.encode_query(queries), theirs.encode_document(queries), atol=1e-3)


def test_contrastive_pre_training_keeps_how_and_how_long_texts_are_read(adapted: tuple[Done, list[str]]) -> None:
    _, command = adapted
    short = "steps: 3, epochs: null, batch_size: 8, length: 24, query_length: 20, min_length: 4, validate_every: 0"
    stages = {
        "asked": f"{{stage: pretrain_contrastive, init: as_it_is, queries: queries, learn_temperature: true, {short}}}",
        "spans": f"{{stage: pretrain_contrastive, init: as_it_is, pairs_within: passage, layer_decay: 0.5, {short}}}",
    }
    done = run_command(*command, *(f"+stages.{name}={settings}" for name, settings in stages.items())).sound()
    start = load_retriever(artifact(done, "as_it_is"))
    for name in stages:
        trained = load_retriever(artifact(done, name))
        assert trained.model.settings == start.model.settings
        assert (trained.query_length, trained.passage_length) == (40, 40)
        assert trained.model.shared
        assert not same_weights(trained.model, start.model)
    metrics = read_json(artifact(done, "asked") / "manifest.json")["metrics"]
    assert metrics["temperature"] == pytest.approx(0.05, rel=0.1)
    assert metrics["temperature"] != 0.05


def test_mlm_stands_beside_the_contrast_where_the_start_has_a_head(adapted: tuple[Done, list[str]]) -> None:
    from transformers import AutoModelForMaskedLM

    _, command = adapted
    short = "steps: 3, epochs: null, batch_size: 8, length: 24, min_length: 4, validate_every: 0"
    own = "mlm_weight: 0.1, mask_rate: 0.3, query_length: 20, queries: queries"
    stages = {
        "headless": f"{{stage: pretrain_contrastive, init: backbone, {own}, {short}}}",
        "filled": f"{{stage: pretrain_mlm, init: as_it_is, {short}}}",
        "both": f"{{stage: pretrain_contrastive, init: filled, {own}, {short}}}",
    }
    done = run_command(*command, *(f"+stages.{name}={settings}" for name, settings in stages.items())).sound()
    assert done.out.count("has no MLM head, so mlm_weight has no effect") == 1
    weights = []
    for name in ("filled", "both"):
        model, info = AutoModelForMaskedLM.from_pretrained(artifact(done, name), output_loading_info=True)
        assert not info["missing_keys"]
        weights.append(model.state_dict()["cls.predictions.transform.dense.weight"])
    assert not weights[0].equal(weights[1]), "the head is trained"
    headless, both = (read_json(artifact(done, name) / "manifest.json")["metrics"] for name in ("headless", "both"))
    assert both["train/mlm_late"] > 0
    assert both["train/loss"] == pytest.approx(both["train/mlm_late"] + both["train/contrast"], rel=1e-5)
    assert "train/mlm_late" not in headless


def test_a_training_that_destroys_is_not_kept_and_that_is_said(adapted: tuple[Done, list[str]]) -> None:
    done, command = adapted
    destroyed = ["stages.distilled.learning_rate=0.1", "stages.distilled.steps=6", "stages.adapted.level=0.05"]
    broken = run_command(*command, *destroyed).sound()
    assert "the initial weights are kept" in broken.out
    kept = read_json(artifact(broken, "adapted") / "kept.json")
    assert (kept["kept"], kept["share"]) == ("start", 0)
    assert {value["of"] for value in kept["values"]} == {"start", "distilled"}
    values = [value["MRR@10"] for value in kept["values"]]
    far = all_far_below(values[0], values[1:])
    assert broken.out.count("[adapted] warning: stages.distilled: training made") == far
    rows = metrics_of(broken.folder)
    assert rows["adapted"] == rows["as it is"]
    assert rows["BM25 + adapted"] == rows["BM25 + as it is"]
    beside = read_json(artifact(broken, "beside_bm25") / "kept.json")
    assert (beside["kept"], beside["share"]) == ("start", 0)
    alone = {(value["of"], value["share"]): value["MRR@10"] for value in kept["values"]}
    joined = {(value["of"], value["share"]): value["MRR@10"] for value in beside["values"]}
    assert joined["distilled", 1.0] > alone["distilled", 1.0], "BM25 finds what weights that are destroyed do not"
    assert metrics_of(done.folder)["as it is"] == rows["as it is"]


def kept_by(judge: Any, stages: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``keep_best`` returns for a start and a trained stage ``b``, with this judge."""
    monkeypatch.setattr("condensery.stages.adaptation.keep_best.judge_of", lambda *_: judge)
    config = KeepBestConfig.model_construct(trained=["b"], shares=[1.0], level=0.05, bm25_weight=0.0)
    made_from = {"start": (Artifact(stages[0]),), "trained": tuple(map(Artifact, stages[1:]))}
    runtime: Any = None
    return keep_best(config, Context("adapted", folder, runtime, made_from))


def test_a_start_that_was_not_trained_is_compared_with_nothing(
    adapted: tuple[Done, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = artifact(adapted[0], "as_it_is")
    judge = SimpleNamespace(first=[np.full(4, 0.5)], samples={"dev queries": None}, by="dev queries")
    assert kept_by(judge, [start, start], tmp_path, monkeypatch)["kept"] == "start"
    assert [value["of"] for value in read_json(tmp_path / "kept.json")["values"]] == ["start"]
    assert capsys.readouterr().out == (
        "[adapted] MRR@10 of 4 dev queries: 50.0 with the initial weights; there are no trained weights to compare:"
        " the initial weights are kept\n"
    )


def test_a_training_that_harms_is_a_warning_of_the_artifact_and_the_run_prints_it(
    adapted: tuple[Done, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = [artifact(adapted[0], name) for name in ("as_it_is", "distilled")]
    judge = SimpleNamespace(first=[np.full(40, 0.5)], samples={"dev queries": None}, by="dev queries")
    judge.reciprocal_ranks = lambda _: [np.full(40, 0.1)]
    (warning,) = kept_by(judge, stages, tmp_path, monkeypatch)["warnings"]
    assert warning.startswith("stages.b: training made the retriever much worse")
    assert "much worse" not in capsys.readouterr().out


def test_trained_weights_that_are_all_far_below_the_start_are_told_apart() -> None:
    assert all_far_below(0.8, [0.002, 0.7])
    assert not all_far_below(0.8, [0.002, 0.75])
    assert not all_far_below(0.8, [])


def test_text_without_queries_is_chosen_by_its_own_sentences_and_answers(released: Path, tmp_path: Path) -> None:
    text = write_text_files(tmp_path / "text", TEXT)
    given = [f"data.root={text}", f"backbone.name={released}", f"output_root={tmp_path / 'out'}", *QUICK]
    done = run_command("experiment=adapt", *given, f"ask={TEXT.questions[0][1]}").sound()
    assert "queries of passages that are held out" in done.out
    beside = read_json(artifact(done, "beside_bm25") / "kept.json")
    assert beside["BM25"] >= beside["MRR@10"], "random weights add nothing to BM25"
    assert "Use BM25: on queries of passages that are held out, its fusion with a retriever does not rank better" in (
        done.out
    )
    assert "found by BM25\n" in done.out
    assert "NDCG@10" not in done.out, "no table"
    assert "not used here" not in done.out, "there are no judged queries"


def test_of_passages_of_one_sentence_the_start_is_kept_and_that_is_said(released: Path, tmp_path: Path) -> None:
    passages = [(name, "", words.split(". ")[0].rstrip(".") + ".", of) for name, _, words, of in TEXT.passages]
    data = write_beir(tmp_path / "beir", Text(passages, TEXT.questions))
    given = [f"data.root={data}", f"backbone.name={released}", f"output_root={tmp_path / 'out'}", *QUICK]
    done = run_command(
        "experiment=adapt", "data=beir", "data.splits.train=null", "data.splits.dev=null", *given
    ).sound()
    assert (
        "there are no queries of passages that are held out to choose by, so the initial weights are kept; add passages"
        in done.out
    )
    assert (
        done.out.count(
            "[distilled] not trained, because only 0 queries (dev queries, or sentences of held-out passages) could"
        )
        == 1
    )
    assert "; to train anyway, set stages.distilled.train_unmeasured=true" in done.out
    assert not (artifact(done, "distilled") / "logs").exists(), "no step was computed"
    assert "no trained weights are kept" in done.out
    rows = metrics_of(done.folder)
    assert rows["adapted"] == rows["as it is"]
    start, after = (load_retriever(artifact(done, name)).model for name in ("as_it_is", "distilled"))
    assert same_weights(start, after)


@pytest.mark.slow
def test_judged_queries_train_a_tower_of_their_own_and_passages_stay(
    adapted: tuple[Done, list[str]], released: Path, tmp_path: Path
) -> None:
    recipe = [word.replace("=adapt", "=adapt_queries") if word == "experiment=adapt" else word for word in adapted[1]]
    command = [*recipe, "stage.finetune.steps=3", "stage.finetune.batch_size=6", "stage.finetune.negatives_per_query=4"]
    done = run_command(*command).sound()
    assert "are not used here" not in done.out
    trained = ["fine-tuned", "+ hard negatives", "+ distillation"]
    assert list(metrics_of(done.folder)) == [*ROWS, *trained, "best on dev", "BM25 + best"]
    start = load_retriever(artifact(done, "as_it_is"))
    shards = {path.name: path.read_bytes() for path in (artifact(done, "as_it_is.index") / "passages").iterdir()}
    for stage in ("tuned", "hard", "taught"):
        after = load_retriever(artifact(done, stage))
        assert same_weights(start.model.passage, after.model.passage)
        assert not same_weights(start.model.query, after.model.query)
        assert (after.query_length, after.passage_length) == (start.query_length, start.passage_length)
        index = artifact(done, f"{stage}_index") / "passages"
        assert {path.name: path.read_bytes() for path in index.iterdir()} == shards
    assert "positives and hard negatives have a teacher's score" in done.out
    whole = run_command(*command, "base=both_towers", "stages.both.batch_size=6", "stages.both.steps=2").sound()
    towers = ["both towers", "BM25 + both towers"]
    assert set(metrics_of(whole.folder)) == {*ROWS, *trained, "best on dev", "BM25 + best", *towers}
    both = load_retriever(artifact(whole, "both"))
    assert both.model.shared
    assert not same_weights(start.model.passage, both.model.passage)
    assert (both.query_length, both.passage_length) == (start.query_length, start.passage_length)
    for stage in ("distilled", "tuned", "hard", "taught", "both"):
        card = (artifact(whole, stage) / "README.md").read_text()
        assert "\nlicense: apache-2.0\n" in card.split("---\n")[1], stage
        assert "## Licence\n\napache-2.0, the licence of the initial checkpoint. The data may have" in card
    for stage in ("as_it_is", "adapted", "best"):
        card = model_card(Artifact(artifact(whole, stage)), PushTarget(name="me/model"), [])
        assert "\nlicense: apache-2.0\n" in card, stage
    named = model_card(Artifact(artifact(whole, "best")), PushTarget(name="me/model", license="mit"), [])
    assert "\nlicense: mit\n" in named
    assert "apache" not in named
    kept = read_json(artifact(whole, "best") / "kept.json")
    assert {row["of"] for row in kept["values"]} == {"start", "tuned", "hard", "taught", "both"}
    left_out = ["stage.finetune.leave_out_dev_passages=true", "stages.best.add_left_out_queries=true"]
    assert "dev queries and training queries that were left out" in run_command(*command, *left_out).sound().out
    trained_on = run_command(*command, *left_out, "stages.hard.leave_out_dev_passages=false")
    assert trained_on.code == 1
    names(trained_on.err, "stages.best.add_left_out_queries", "trains on these queries", "leave_out_dev_passages")
    for key, value, said in (
        ("passages", "bm25", "does not have one vector for each passage"),
        ("passages", "cls", "set it to null"),
        ("shared_negatives", "5 stages.tuned.passages=null", "set passages to an index"),
    ):
        other = f"stages.tuned.{key}={value}".split()
        wrong = run_command(*command, "+stages.cls={stage: retriever, pooling: cls}", *other)
        assert wrong.code == 1
        names(wrong.err, f"stages.tuned.{key}", said)


@pytest.fixture(scope="module")
def judge(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small cross-encoder as others release one, with the retriever's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("judge")
    torch.manual_seed(1)
    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    tokenizer = AutoTokenizer.from_pretrained(released)
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.3, num_labels=1, **sizes
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_released_cross_encoder_scores_what_the_teacher_ranks(
    adapted: tuple[Done, list[str]], judge: Path, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder

    _, command = adapted
    lengths = "query_length: 20, length: 60"
    given = [
        f"+stages.judge={{stage: cross_encoder, folder: {judge}, {lengths}}}",
        "stages.distilled.cross_encoders=[judge]",
    ]
    done = run_command(*command, *given, "stages.distilled.depth=5", "stages.distilled.number=40").sound()
    folder, collection = artifact(done, "distilled"), Collection(artifact(done, "corpus"))
    passages = np.load(folder / "teacher-passages.npy")
    found = np.load(folder / "cross-encoder-scores.npy")
    queries = Queries(artifact(done, "queries"))
    rows = chosen_queries(queries, 40, 1)
    titles, texts = (collection.passages.column(name) for name in ("title", "text"))
    read = [f"{title} [SEP] {text}" if title else text for title, text in zip(titles, texts, strict=True)]
    asked = queries.texts_at(rows)
    pairs = [(query, read[passage]) for query, ranked in zip(asked, passages, strict=True) for passage in ranked]
    assert found.shape == passages.shape == (len(rows), 5)
    theirs = CrossEncoder(str(judge), max_length=60, activation_fn=torch.nn.Identity(), device="cpu")
    whole = [place for place, (query, _) in enumerate(pairs) if len(theirs.tokenizer(query)["input_ids"]) <= 20]
    assert len(whole) > 20, "queries that are not cut, which theirs does in another way"
    wanted = theirs.predict([pairs[place] for place in whole], show_progress_bar=False)
    assert found.reshape(-1)[whole] == pytest.approx(wanted, abs=1e-4)
    other = f"+stages.judge={{stage: cross_encoder, folder: {judge}, query_length: 20, length: 99}}"
    wrong = run_command(*command, other, "stages.distilled.cross_encoders=[judge]")
    assert wrong.code == 1
    names(wrong.err, "stages.judge.length", "99 is too large; the model has 64 positions")
    nowhere = run_command(
        *command, "+stages.judge={stage: cross_encoder, folder: ./no}", "stages.distilled.cross_encoders=[judge]"
    )
    assert nowhere.code == 1
    names(nowhere.err, "stage.cross_encoder.folder", "no such folder")


@pytest.mark.slow
def test_a_released_retriever_is_pre_trained_further_by_every_objective(
    adapted: tuple[Done, list[str]], tmp_path: Path
) -> None:
    given = [word for word in adapted[1] if word.startswith(("data", "backbone.name", "logger"))]
    kinds = ("mlm", "condenser", "cocondenser", "contrastive")
    few = [f"stage.pretrain_{kind}.{key}" for kind in kinds for key in ("token_budget=null", "steps=2", "batch_size=4")]
    lengths = ["stage.retriever.passage_length=64", "stage.finetune.passage_length=64", "stage.pretrain_mlm.length=64"]
    more = [*lengths, "stage.finetune.steps=2", "stage.finetune.batch_size=4", f"output_root={tmp_path}"]
    unlike = "+stages.unlike={stage: finetune, init: mlm}"
    done = run_command("experiment=ablation/released", *given, *few, *more, unlike).sound()
    own = load_retriever(artifact(done, "start")).model.settings.own()
    keys = [f"backbone.{name}={shlex.quote(str(value).lower())}" for name, value in own.items()]
    lines = [line.partition(" was pre-trained from start, but makes") for line in done.out.splitlines()]
    said = {start: line.partition("to keep its settings: ")[2] for start, there, line in lines if there}
    prefixes = " ".join(keys[2:])  # the recipe sets the two others
    assert said == {
        "[mlm_tuned] mlm": prefixes,
        "[condenser_tuned] condenser": prefixes,
        "[unlike] mlm": " ".join(keys),
    }
    assert len(keys) == 4
    searched = ["start", "coCondenser", "coCondenser with the start's pooling", "query-as-context"]
    rows = ["start", "MLM", "Condenser", *searched[1:]]
    assert list(metrics_of(done.folder)) == ["BM25", *(f"{row}, not fine-tuned" for row in searched), *rows]
    start = load_retriever(artifact(done, "start")).model
    for stage in ("mlm", "condenser", "cocondenser", "own_vectors", "query_as_context"):
        trained, tuned = (load_retriever(artifact(done, name)) for name in (stage, f"{stage}_tuned"))
        assert not same_weights(start.passage, trained.model.passage)
        own = ("cls" if stage == "cocondenser" else start.settings.pooling, start.settings.normalise)
        assert (tuned.model.settings.pooling, tuned.model.settings.normalise) == own
        assert (tuned.query_length, tuned.passage_length) == (64, 64)


def test_vectors_of_another_tower_are_not_taken_over(adapted: tuple[Done, list[str]], tmp_path: Path) -> None:
    _, command = adapted
    other = [
        "+stages.other={stage: retriever, pooling: cls}",
        "+stages.wrong={stage: encode, model: other, passages: as_it_is}",
    ]
    done = run_command(*command, *other)
    assert done.code == 1
    names(done.err, "stages.wrong.passages", "set it to null")


def test_a_split_of_which_there_is_no_file_is_left_out(released: Path, tmp_path: Path) -> None:
    data = write_beir(tmp_path / "beir", TEXT)
    for split in ("train", "dev"):
        (data / "qrels" / f"{split}.tsv").unlink()
    half = copytree(data, tmp_path / "none")
    (half / "qrels" / "test.tsv").unlink()
    given = [
        "experiment=adapt",
        "data=beir",
        f"backbone.name={released}",
        "dry_run=true",
        f"output_root={tmp_path / 'out'}",
    ]
    assert "adapted_index.evaluation" in run_command(*given, f"data.root={data}").sound().out
    assert "evaluation" not in run_command(*given, f"data.root={half}").sound().out
    judged = write_beir(tmp_path / "judged", TEXT)
    (judged / "qrels" / "test.tsv").unlink()
    refused = run_command("experiment=adapt_queries", *given[1:], f"data.root={judged}").err
    names(refused, "table.split", "data.splits.test", "qrels/test.tsv", "table.optional=true")
