"""GAR: what a generator learns to write, its loss, kills, the expanded queries, their fused rankings, and the recipe."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_lines import names
from small_runs import MODEL, Done, metrics_of, run_command, some_text, write_beir, write_dpr
from transformers import BartConfig, BartForConditionalGeneration

from condensery.baselines.gar.expansion import TEXTS, Expander, round_robin
from condensery.baselines.gar.training import best_sentence
from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.models.generator import Generator, Sampling, load_generator, save_generator, small_generator
from condensery.retrieval.indexes.opening import open_index
from condensery.system.files import read_json, write_json
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.table import TextTable
from condensery.text.writer import CollectionWriter
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.generator import IGNORED, GeneratorBatches, GeneratorModule, PairChunk

sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from single_stage import inputs, run_stage

TEXT = some_text(documents=24, seed=5)
WORDS = ["stone", "river", "water", "house", "apple", "green", "seven", "light", "cloud", "bread", "lemon", "horse"]
BART = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
SMALL = {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 32}
TRAINED = [f"stage.train_expander.{key}" for key in ("steps=2", "batch_size=6", "max_tokens=8")]


def corpus(folder: Path, answers: bool = True, titles: bool = True) -> Path:
    """Three judged queries of four passages, in the split train."""
    passages = [
        ("p0", "Paris", "Paris lies on the Seine. It has been the capital of France since 987! Many visit it.", "d0"),
        ("p1", "France", "France is in Europe. The Seine flows through its capital.", "d1"),
        ("p2", "Rome", "Rome is old.", "d2"),
        ("p3", "", "The river of Rome is the Tiber. Rome lies on a river.", "d3"),
    ]
    asked = [
        ("q0", "Which town is the capital of France?", ["Paris", "City of Light"], ["p0", "p1"]),
        ("q1", "How old is Rome?", [], ["p2"]),
        ("q2", "Which river does Rome lie on?", ["the Tiber"], ["p3"]),
    ]
    with CollectionWriter(folder, "towns") as writer:
        for name, title, text, document in passages:
            writer.add_passage(Passage(name, title if titles else "", text, document))
        for name, text, known, relevant in asked:
            for passage in relevant:
                writer.add_judgement("train", name, passage, 1)
            writer.add_query(Query(name, text, tuple(known) if answers else ()))
    return folder


def contexts(folder: Path, made: Path, **changes: Any) -> tuple[list[tuple[str, str, str]], dict[str, Any]]:
    """The id of the query, what is read, and what is to be written, of each pair; the stage's metrics."""
    about = run_stage("query_contexts", folder, {"corpus": made}, **changes)
    read, written = (TextTable(folder / f"{name}.arrow") for name in ("inputs", "contexts"))
    return list(zip(read.column("id"), read.column("text"), written.column("text"), strict=True)), about


def test_a_query_is_paired_with_its_answer_its_sentence_and_its_titles(tmp_path: Path) -> None:
    found, about = contexts(tmp_path / "out", corpus(tmp_path / "corpus"))
    assert found == [
        ("q0", "answer: Which town is the capital of France?", "Paris"),
        # the second sentence shares more terms, but does not contain the answer
        ("q0", "sentence: Which town is the capital of France?", "Paris lies on the Seine."),
        ("q0", "title: Which town is the capital of France?", "Paris, France"),
        ("q1", "sentence: How old is Rome?", "Rome is old."),
        ("q1", "title: How old is Rome?", "Rome"),
        ("q2", "answer: Which river does Rome lie on?", "the Tiber"),
        ("q2", "sentence: Which river does Rome lie on?", "The river of Rome is the Tiber."),
    ]
    assert about == {"pairs": 7, "targets": {"answer": 2, "sentence": 3, "title": 2}}
    first, _ = contexts(tmp_path / "first", tmp_path / "corpus", targets=["title"], titles=1)
    assert [text for *_, text in first] == ["Paris", "Rome"]


def test_without_answers_the_sentence_is_the_one_most_like_the_query_by_f1_of_their_terms() -> None:
    draw = random.Random(3)
    for _ in range(50):
        query = " ".join(draw.choices(WORDS[:8], k=5))
        pieces = [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))).capitalize() + "." for _ in range(6)]

        def f1(sentence: str, query: str = query) -> float:
            own, wanted = set(sentence.lower().rstrip(".").split()), set(query.split())
            both = len(own & wanted)
            return 0.0 if not both else 2 / (len(own) / both + len(wanted) / both)

        texts = [" ".join(pieces[:3]), " ".join(pieces[3:])]
        found = best_sentence(query, texts, AnswerMatcher([]))
        assert f1(found) == pytest.approx(max(map(f1, pieces)))
        answered = [piece for piece in pieces if "lemon" in piece.lower().rstrip(".").split()]
        if answered:
            assert f1(best_sentence(query, texts, AnswerMatcher(["lemon"]))) == pytest.approx(max(map(f1, answered)))


def test_what_the_collection_lacks_is_said_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = corpus(tmp_path / "corpus", answers=False, titles=False)
    found, about = contexts(tmp_path / "out", bare)
    lines = [
        f"no train query of the collection towns has {what}, so this target is not generated"
        for what in ("an answer", "a relevant passage with a title")
    ]
    assert "so this target is not generated" not in capsys.readouterr().out, (
        "the run prints the warnings of an artifact"
    )
    assert about == {"pairs": 3, "targets": {"sentence": 3}, "warnings": lines}
    assert {read.split(":")[0] for _, read, _ in found} == {"sentence"}
    with pytest.raises(
        UserError, match=r"^stages\.query_contexts\.targets: no train query of the collection towns has an"
    ):
        contexts(tmp_path / "none", bare, targets=["answer", "title"])


def batches(folder: Path, generator: Generator, **changes: Any) -> GeneratorBatches:
    """The pairs of ``corpus``, five a step."""
    if not (folder / "pairs").exists():
        contexts(folder / "pairs", corpus(folder / "corpus"))
    read, written = (TextTable(folder / "pairs" / f"{name}.arrow") for name in ("inputs", "contexts"))
    pairs = np.arange(7).repeat(2).reshape(-1, 2)
    given = {"batch_size": 5, "max_input_tokens": 40, "max_tokens": 30, "budget": 80, "seed": 1, **changes}
    return GeneratorBatches(pairs, read, written, generator.tokenizer, prefix="", titles=False, **given)


def generator_of(folder: Path, dropout: float = 0.0) -> Generator:
    if not (folder / "words").exists():
        inputs(folder / "words")
    return small_generator(folder / "words" / "tokenizer", **SMALL, dropout=dropout, seed=1)


def bart(tokenizer: Any) -> BartForConditionalGeneration:
    """A BART in float64; a T5 computes its layer norms in float32 whatever its weights are."""
    torch.manual_seed(3)
    ends: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in BART.items()}
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, **sizes, **ends, decoder_start_token_id=tokenizer.eos_token_id
    )
    return BartForConditionalGeneration(config).double().eval()


def test_the_loss_is_the_mean_of_the_tokens_log_probabilities_and_its_gradient_does_not_depend_on_chunks(
    tmp_path: Path,
) -> None:
    """- 1/T sum over pairs and tokens of log p(y_t | y_<t, x), in float64, one pair at a time and without padding."""
    generator = generator_of(tmp_path)
    model = bart(generator.tokenizer)
    module = GeneratorModule(model, **trainings.optimiser())

    def gradients() -> dict[str, torch.Tensor]:
        found = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        model.zero_grad()
        return found

    whole, cut = (batches(tmp_path, generator, budget=budget).batch(0) for budget in (10_000, 30))
    assert len(whole.chunks) == 1 < len(cut.chunks)
    total, number = torch.zeros((), dtype=torch.float64), 0
    (chunk,) = whole.chunks
    assert isinstance(chunk, PairChunk)
    assert chunk.labels is not None
    for ids, length, labels in zip(chunk.input_ids, chunk.lengths, chunk.labels, strict=True):
        wanted = labels[labels != IGNORED]
        for place, token in enumerate(wanted):
            before = torch.cat([torch.tensor([model.config.decoder_start_token_id]), wanted[:place]])
            logits = model(input_ids=ids[None, :length], decoder_input_ids=before[None]).logits[0, -1]
            total = total - torch.log(torch.exp(logits[token]) / torch.exp(logits).sum())
            number += 1
    (total / number).backward()
    expected = gradients()
    for batch in (whole, cut):
        losses = backpropagate(module.objective(batch)[0], batch.chunks, None)
        assert float(losses["query"].detach()) == pytest.approx(float(total.detach() / number), rel=1e-9)
        found = gradients()
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_stopped_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    def made() -> tuple[GeneratorModule, StepDataModule]:
        generator = generator_of(tmp_path, dropout=0.1)
        module = GeneratorModule(generator.model.train(), **trainings.optimiser())
        return module, StepDataModule(batches(tmp_path, generator))

    trainings.check_stopped_run(made, tmp_path)


# the stages after the training, on the collection of some_text


def varied_t5(folder: Path, words: Path) -> Path:
    """A random T5 that writes words of the passages, and for each query others."""
    train_wordpiece([text for _, _, text, _ in TEXT.passages], 1500, words)
    made = small_generator(words, **SMALL, dropout=0.0, seed=3)
    with torch.no_grad():
        for weights in made.model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 1)
        made.model.config.tie_word_embeddings = False
        made.model.lm_head.weight = torch.nn.Parameter(torch.randn(made.model.lm_head.weight.shape))
    save_generator(made, folder)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a collection, BM25, and an expander whose random words are those of the passages."""
    folder = tmp_path_factory.mktemp("gar")
    root, model = write_beir(folder / "beir", TEXT), varied_t5(folder / "t5", folder / "words")
    stages = [
        "stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}", "stages.bm25={stage: bm25}",
        "stages.contexts={stage: query_contexts}",
        f"stages.writer={{stage: train_expander, model: {model}, steps: 1, epochs: null, max_tokens: 8, dropout: 0}}",
        "stages.texts={stage: expand_queries, expander: writer, shard_size: 4, batch_size: 3, splits: [dev, test]}",
        "stages.gar={stage: expanded_queries, expansions: [texts]}",
        *("+table.rows.BM25=bm25", "+table.rows.GAR=gar", "logger=csv", "data=beir", f"data.root={root}"),
        *("data.splits.dev=dev", "backbone.vocab_size=300", f"output_root={folder / 'out'}", *MODEL),
    ]  # fmt: skip
    write_json(folder / "command.json", stages)
    done = run_command(*stages).sound()
    return done.folder


def stage(store: Path, name: str) -> Path:
    return (store / "stages" / name).resolve()


def test_texts_are_the_models_own_greedy_ones_whatever_the_batch(store: Path) -> None:
    written, collection = read_json(stage(store, "texts") / TEXTS), Collection(stage(store, "corpus"))
    texts = collection.queries.column("text")
    assert list(written) == [texts[row] for split in ("dev", "test") for row in collection.questions(split)]
    generator = load_generator(stage(store, "writer"), "x")
    for query, own in written.items():
        for target, text in zip(("sentence", "title"), own, strict=True):  # BEIR's files have no answers
            read = generator.tokenizer(f"{target}: {query}", return_tensors="pt")
            ids = generator.model.generate(**read, max_new_tokens=8, do_sample=False, num_beams=1)
            assert text == " ".join(generator.tokenizer.decode(ids[0], skip_special_tokens=True).split())
    assert len({text for own in written.values() for text in own}) > 2, "they are not all the same"


def by_definition(bm25: Any, query: str, expansions: Sequence[str], k: int) -> list[int]:
    """The first passages of all rankings, the second of all, and so on, each once."""
    rankings = [[row for row in bm25.search_texts([f"{query} {text}"], k)[1][0] if row >= 0] for text in expansions]
    found: list[int] = []
    for rank in range(k):
        for ranking in rankings:
            if rank < len(ranking) and ranking[rank] not in found:
                found.append(int(ranking[rank]))
    return (found + [-1] * k)[:k]


def test_a_search_takes_the_passages_of_the_rankings_in_turn_and_expands_other_queries_now(store: Path) -> None:
    collection = Collection(stage(store, "corpus"))
    bm25, gar = (open_index(stage(store, name), collection, device="cpu") for name in ("bm25", "gar"))
    written = read_json(stage(store, "texts") / TEXTS)
    rows = collection.questions("dev")
    texts = list(collection.queries.column("text").take(rows))
    scores, found = gar.search(rows, 7)
    assert found.tolist() == [by_definition(bm25, query, written[query], 7) for query in texts]
    assert not np.array_equal(found, bm25.search(rows, 7)[1])
    np.testing.assert_allclose(
        scores[found >= 0].reshape(-1), (1 / np.arange(1, 8))[np.nonzero(found >= 0)[1]], rtol=1e-6
    )
    np.testing.assert_array_equal(gar.search(rows, 3)[1], found[:, :3], "the order does not depend on k")
    again = gar.search_texts(texts, 7)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(again[1], found)
    np.testing.assert_array_equal(gar.score(rows, found[:, :2]), scores[:, :2])
    assert gar.score(rows[:1], np.array([[-1]])).tolist() != [[0.0]]
    unknown = collection.questions("train")[:3]
    expander = Expander(stage(store, "writer"), "x", "fp32", "cpu")
    asked = list(collection.queries.column("text").take(unknown))
    own = list(zip(*expander.write(asked).values(), strict=True))
    expected = [by_definition(bm25, query, texts, 5) for query, texts in zip(asked, own, strict=True)]
    assert gar.search(unknown, 5)[1].tolist() == expected
    assert gar.search(np.empty(0, np.int64), 5)[1].shape == (0, 5)


def test_stopped_between_its_shards_it_goes_on_and_ends_with_the_same_bytes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"expander": stage(store, "writer"), "corpus": stage(store, "corpus")}
    settings: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "splits": ["dev", "test"]}
    sample, calls = Generator.sample, 0

    def stopping(self: Generator, texts: Sequence[str], rows: Sequence[int], sampling: Sampling) -> list[list[str]]:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise InterruptedError
        return sample(self, texts, rows, sampling)

    monkeypatch.setattr(Generator, "sample", stopping)
    with pytest.raises(InterruptedError):
        run_stage("expand_queries", tmp_path / "out", made, **settings)
    shards = [path.name for path in (tmp_path / "out" / "sentence.parts").iterdir() if path.is_dir()]
    assert len(shards) == 2
    number = len(read_json(stage(store, "texts") / TEXTS))
    calls = -1000
    about = run_stage("expand_queries", tmp_path / "out", made, **settings)
    assert calls + 1000 == 2 * (-(-number // 3) - 2), "the shards that were whole are not written again"
    assert about["targets"] == ["sentence", "title"]
    assert (tmp_path / "out" / TEXTS).read_bytes() == (stage(store, "texts") / TEXTS).read_bytes()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [TEXTS]


@pytest.mark.parametrize("seed", range(8))
def test_round_robin_is_what_its_name_says(seed: int) -> None:
    draw = np.random.default_rng(seed)
    members, depth, passages, k = draw.integers(1, 5), draw.integers(1, 9), 12, int(draw.integers(1, 30))
    lists = [[draw.permutation(passages)[:depth] for _ in range(5)] for _ in range(members)]
    for ranking in (one for member in lists for one in member):
        ranking[draw.integers(0, depth + 1) :] = -1
    scores, rows = round_robin([np.array(member) for member in lists], k)
    for query in range(5):
        expected: list[int] = []
        for rank in range(depth):
            for member in lists:
                row = member[query][rank]
                if row >= 0 and row not in expected:
                    expected.append(row)
        expected = expected[:k]
        assert rows[query].tolist() == expected + [-1] * (k - len(expected))
        assert np.isneginf(scores[query, len(expected) :]).all()
        assert (np.diff(scores[query, : len(expected)]) < 0).all()


def arguments(store: Path) -> list[str]:
    return list(read_json(store.parents[2] / "command.json"))


def test_texts_of_several_models_are_fused_and_other_stages_read_the_index(store: Path) -> None:
    more = [
        "stages.titles={stage: query_contexts, targets: [title]}",
        "stages.title_writer={stage: train_expander, contexts: titles, steps: 5, epochs: null, layers: 1, hidden: 16,"
        " heads: 2, intermediate: 32, max_tokens: 4}",
        "stages.title_texts={stage: expand_queries, expander: title_writer}",
        "stages.both={stage: expanded_queries, expansions: [texts, title_texts]}",
        "stages.alone={stage: expanded_queries, expansions: [title_texts]}",
        "stages.rrf={stage: fuse, retrievers: [gar, alone], method: reciprocal_rank}",
        "stages.mined={stage: mine, retriever: both, depth: 5}",
        *("+table.rows.both=both", "+table.rows.fused=rrf", "stage.evaluate.timed=2"),
    ]
    done = run_command(*arguments(store), *more).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "GAR", "both", "fused"]
    assert read_json(stage(done.folder, "both") / "manifest.json")["metrics"]["targets"] == [
        ["sentence", "title"],
        ["title"],
    ]
    collection = Collection(stage(done.folder, "corpus"))
    bm25, both = (open_index(stage(done.folder, name), collection, device="cpu") for name in ("bm25", "both"))
    written = [read_json(stage(done.folder, name) / TEXTS) for name in ("texts", "title_texts")]
    rows = collection.questions("test")
    texts = list(collection.queries.column("text").take(rows))
    expected = [by_definition(bm25, query, written[0][query] + written[1][query], 6) for query in texts]
    assert both.search(rows, 6)[1].tolist() == expected
    asked = run_command(*arguments(store), *more, f"ask={texts[0]}")
    assert asked.code == 0


def told(done: Done, *words: str) -> None:
    assert done.code == 1
    names(done.err, *words)
    assert done.err.strip().count("\n") == 0


def test_bad_input_is_one_line(store: Path) -> None:
    given = arguments(store)
    told(
        run_command(*given, "stages.texts={stage: expand_queries, expander: writer, splits: [dl19]}"),
        "dl19", "has no split",
    )  # fmt: skip
    told(run_command(*given, "stages.contexts.split=dl20", "dry_run=plan"), "stages.contexts.split", "no such split")
    told(run_command(*given, "++stages.contexts.targets=[answers]", "dry_run=plan"), "stages.contexts.targets", "title")
    told(run_command(*given, "++stages.contexts.targets=[answer]"), "stages.contexts.targets", "has an answer")
    told(
        run_command(*given, "stages.writer={stage: train_expander, hidden: 33}", "dry_run=plan"),
        "stages.writer",
        "multiple of heads",
    )
    told(run_command(*given, "++stages.writer.model=/nowhere"), "stage.train_expander.model", "no such folder")


def test_an_index_that_takes_no_words_is_one_line(store: Path, tmp_path: Path) -> None:
    collection = Collection(stage(store, "corpus"))
    run = tmp_path / "run.trec"
    queries, passages = collection.queries.ids_at(collection.questions("test")), collection.passages.ids
    run.write_text("".join(f"{query} Q0 {passages[0]} 1 1.0 x\n" for query in queries))
    told(
        run_command(
            *arguments(store),
            f"stages.rows={{stage: read_run, file: {run}, split: test}}",
            "stages.gar={stage: expanded_queries, expansions: [texts], retriever: rows}",
        ),
        "stages.gar.retriever", "rows does not search by words", "bm25",
    )  # fmt: skip


def test_the_recipe_runs_to_its_table_with_all_three_texts_and_again_from_the_store(tmp_path: Path) -> None:
    root = write_dpr(tmp_path / "nq", TEXT)
    given = ["experiment=gar", "data=nq", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL]
    given += [*TRAINED, "table.metrics=[Hit@5, Hit@20]"]
    done = run_command(*given).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "GAR"]
    assert read_json(stage(done.folder, "writer") / "manifest.json")["metrics"]["targets"] == [
        "answer",
        "sentence",
        "title",
    ]
    assert run_command(*given).sound().computed == []
