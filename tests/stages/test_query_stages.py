"""The stages that bring queries for passages: one artifact, whatever they come from."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.torch import save_file
from single_stage import inputs, run_stage
from small_runs import Text, write

from condensery.errors import UserError
from condensery.stages.queries.config import FinetuneGeneratorConfig
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.workers import read_tokenizer


def test_queries_that_are_read_become_text_tokens_offsets_and_examples(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = Passages(made["passages"]).table.ids
    lines = [f"{name}\tquery  {name}" for name in reversed(ids)] + [f"{ids[3]}\tkata  pipe", f"{ids[3]}\tkata pipe"]
    lines[len(ids) - 1 - 5] = f"{ids[5]}\t \u200b"
    lines += [f"{ids[8]}\t{text}" for text in ("", "  ")]
    path = write(tmp_path / "q.tsv", lines)
    about = run_stage("read_queries", tmp_path / "out", made, path=str(path), missing="skip")
    assert (about["queries"], about["passages_without_query"], about["format"]) == (len(ids), 1, "tsv")
    said = capsys.readouterr().out
    assert f"1 of {len(ids)} passages has no query, the first is '{ids[5]}'; training leaves these passages out" in said
    queries = Queries(tmp_path / "out")
    wanted = [[f"query {name}"] for name in ids]
    wanted[3].append("kata pipe")
    wanted[5] = []
    assert [queries.texts(row) for row in range(len(ids))] == wanted
    assert queries.counts.tolist() == [len(one) for one in wanted]
    assert (queries.first[0], queries.first[-1]) == (0, len(queries.store))
    tokenizer = read_tokenizer(made["tokenizer"])
    flat = [query for one in wanted for query in one]
    for number, query in enumerate(flat):
        assert queries.store.text(number).tolist() == tokenizer.encode(query, add_special_tokens=False).ids
    written = [json.loads(line) for line in (tmp_path / "out" / "queries.jsonl").read_text().splitlines()]
    assert written == [{"id": n, "queries": found} for n, found in zip(ids, wanted, strict=True)]
    examples = (tmp_path / "out" / "examples.md").read_text()
    assert examples.count("\n## ") == 10
    assert f"## {ids[0]}" in examples
    assert f"- query {ids[0]}\n" in examples
    assert not (tmp_path / "out" / "unsorted.arrow").exists()

    again = str(tmp_path / "out" / "queries.jsonl")  # what we write we read
    run_stage("read_queries", tmp_path / "again", made, path=again, missing="skip")
    assert (tmp_path / "again" / "queries.jsonl").read_bytes() == (tmp_path / "out" / "queries.jsonl").read_bytes()


def test_passages_without_query_are_an_error_where_none_may_miss(made: dict[str, Path], tmp_path: Path) -> None:
    path = write(tmp_path / "q.tsv", ["d0#0\tx", "d0#2\tx"])
    with pytest.raises(
        UserError, match=r"39 of 41 passages have no query, the first is 'd0#1'; add queries to.*missing=skip"
    ):
        run_stage("read_queries", tmp_path / "out", made, path=str(path))
    empty = write(tmp_path / "empty.tsv", ["d0#0\t "])
    with pytest.raises(UserError, match="no passage has a query"):
        run_stage("read_queries", tmp_path / "out", made, path=str(empty), missing="skip")


def test_extracted_sentences_are_the_most_salient_and_their_place_is_known(
    made: dict[str, Path], tmp_path: Path
) -> None:
    about = run_stage("extract_queries", tmp_path, made, number=2, maximum_words=13, remove=True)
    assert about["remove"] is True
    passages, queries = Passages(made["passages"]), Queries(tmp_path)
    assert queries.places is not None
    assert 1.5 < queries.counts.mean() <= 2
    tokenizer = read_tokenizer(made["tokenizer"])
    for row, text in enumerate(passages.table.column("text")):
        for place, query in enumerate(queries.texts(row), start=int(queries.first[row])):
            assert query in text
            assert 4 <= len(query.split()) <= 13
            start, size = queries.places[place].tolist()
            ids = passages.store.tokens[start : start + size].tolist()
            assert passages.store.starts[row] <= start < start + size <= passages.store.starts[row + 1]
            assert ids == tokenizer.encode(query, add_special_tokens=False).ids
    one = run_stage("extract_queries", tmp_path / "one", made, number=1, maximum_words=13, remove=True)
    assert one["queries"] == int((queries.counts > 0).sum())
    assert all(Queries(tmp_path / "one").texts(row) == queries.texts(row)[:1] for row in range(len(passages.table))), (
        "the best one of two is the best one"
    )


def test_a_passage_of_one_sentence_keeps_it_where_sentences_are_removed(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage("passages", tmp_path / "short", made, length=24, workers=1)
    short = {**made, "passages": tmp_path / "short"}
    texts = list(Passages(tmp_path / "short").table.column("text"))
    single = [text.count(".") == 1 for text in texts]
    assert 0 < sum(single) < len(texts)
    for remove in (True, False):
        run_stage("extract_queries", tmp_path / str(remove), short, minimum_words=1, remove=remove)
    assert Queries(tmp_path / "False").counts.tolist() == [1] * len(texts)
    assert Queries(tmp_path / "True").counts.tolist() == [0 if alone else 1 for alone in single]
    assert f"{sum(single)} of {len(texts)} passages have no query" in capsys.readouterr().out


def test_titles_are_queries_where_the_passages_have_them(made: dict[str, Path], tmp_path: Path) -> None:
    run_stage("extract_queries", tmp_path / "titles", made, kind="title")
    queries, passages = Queries(tmp_path / "titles"), Passages(made["passages"])
    assert np.all(queries.counts == 1)
    assert queries.texts(7) == [passages.table.column("title")[7]]
    assert queries.places is None
    run_stage("passages", tmp_path / "bare", made, titles=False, workers=1)
    with pytest.raises(UserError, match="the passages have none; set titles: true"):
        run_stage("extract_queries", tmp_path / "none", {**made, "passages": tmp_path / "bare"}, kind="title")


def test_both_titles_that_no_other_passage_has_and_sentences(made: dict[str, Path], tmp_path: Path) -> None:
    run_stage("passages", tmp_path / "own", made, grouping="collection", workers=1)
    read = {**made, "passages": tmp_path / "own"}
    run_stage("extract_queries", tmp_path / "both", read, kind="both", number=2, minimum_words=1, remove=True)
    run_stage("extract_queries", tmp_path / "sentences", read, number=2, minimum_words=1, remove=True)
    both, alone = Queries(tmp_path / "both"), Queries(tmp_path / "sentences")
    titles = Passages(tmp_path / "own").table.column("title")
    number = {title: list(titles).count(title) for title in titles}
    for row, title in enumerate(titles):
        found = both.texts(row)
        own = [title] if title and number[title] == 1 else []
        assert found == [*own, *(text for text in alone.texts(row) if text not in own)]
        places = both.places[both.first[row] : both.first[row + 1]]  # type: ignore[index]
        assert (places[: len(own)] == -1).all(), "a title is not cut out of its passage"
        assert (places[len(own) :, 0] >= 0).all()


def test_settings_that_contradict_each_other_are_refused(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="minimum_words is more than maximum_words"):
        run_stage("extract_queries", tmp_path, made, minimum_words=9, maximum_words=3)
    with pytest.raises(ValidationError, match="give either model or generator"):
        run_stage("generate_queries", tmp_path, made, model=None)


def test_the_sizes_of_a_model_from_scratch_do_not_count_where_a_model_is_named(tmp_path: Path) -> None:
    fields = FinetuneGeneratorConfig.model_fields
    named = FinetuneGeneratorConfig.model_construct(
        _fields_set=set(fields), callbacks={}, layer_decay=1.0, model="t5/small"
    )
    scratch = FinetuneGeneratorConfig.model_construct(
        _fields_set=set(fields), callbacks={}, layer_decay=1.0, model=None
    )
    local = FinetuneGeneratorConfig.model_construct(
        _fields_set=set(fields), callbacks={}, layer_decay=1.0, model=str(tmp_path)
    )
    sizes = {"layers", "hidden", "heads", "intermediate"}
    assert named.by_content() == {"callbacks", "layer_decay", *sizes}
    assert scratch.by_content() == {"callbacks", "layer_decay"}
    assert local.by_content() == {"callbacks", "layer_decay", "model", *sizes}
    (tmp_path / "config.json").write_text("{}")
    save_file({}, tmp_path / "model.safetensors")
    before = local.identity()
    (tmp_path / "config.json").write_text("{ }")
    assert local.identity() != before


def of_texts(folder: Path, texts: list[str]) -> dict[str, Path]:
    """Passages of these texts, and what made them."""
    made = inputs(folder / "in", Text([(f"p{at}", "", text, f"d{at}") for at, text in enumerate(texts)], []))
    run_stage("passages", folder / "passages", made, length=128, workers=1, titles=False)
    return {**made, "passages": folder / "passages"}


CHINESE = "蜜蜂用跳舞告诉同伴花在哪里。它们飞得很远，飞到山的那一边。天黑以前就回到蜂巢里来。"
THAI = "ผึ้งเต้นรำเพื่อบอกเพื่อนว่าดอกไม้อยู่ที่ไหน เหล็กขึ้นสนิมในอากาศชื้น ฝนตกเมื่อหยดน้ำหนักขึ้น"


@pytest.mark.parametrize("text", [CHINESE, THAI], ids=["chinese", "thai"])
def test_sentences_without_blanks_are_queries(text: str, tmp_path: Path) -> None:
    made = of_texts(tmp_path, [f"{text}" for _ in range(3)])
    about = run_stage("extract_queries", tmp_path / "queries", made, number=3, remove=True)
    assert about["queries"] == 9
    assert all(query in text for query in Queries(tmp_path / "queries").texts(0))


def test_a_passage_of_which_the_tokenizer_keeps_nothing_has_no_query(tmp_path: Path) -> None:
    made = of_texts(tmp_path, ["\ufffd\ufffd", CHINESE])
    assert run_stage("extract_queries", tmp_path / "queries", made, number=3, kind="both")["queries"] > 0
    queries = Queries(tmp_path / "queries")
    assert queries.texts(0) == []
    assert all(query in CHINESE for query in queries.texts(1))


def test_the_reason_why_no_passage_has_a_query_is_the_true_one(tmp_path: Path) -> None:
    made = of_texts(tmp_path, [CHINESE, "铁会生锈。"])

    def why(**settings: int | bool) -> str:
        with pytest.raises(UserError) as error:
            run_stage("extract_queries", tmp_path / str(len(settings)), made, **settings)
        return str(error.value)

    too_short, too_long = why(remove=True, minimum_words=30), why(remove=True, minimum_words=1, maximum_words=2)
    assert too_short.startswith(
        "stages.extract_queries: no passage has a query: no other passage has a sentence of 30 to 40 words; set"
        " stages.extract_queries.minimum_words=1, or raise maximum_words; 1 passage has only one sentence"
    )
    assert "no other passage has a sentence of 1 to 2 words" in too_long
    assert "only one sentence" not in why(minimum_words=30)
    made = of_texts(tmp_path / "single", ["铁会生锈。", "Bees dance in the sun."])
    assert "no passage has a query: 2 passages have only one sentence" in why(remove=True)
