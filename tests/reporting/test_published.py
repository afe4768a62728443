"""The published numbers: what the tables show is what the papers print, and every number is shown somewhere."""

from decimal import Decimal
from pathlib import Path

import pytest
from shipped_tables import NAMES, cell_of, config_of, from_nothing
from table_data import data

from condensery.errors import UserError
from condensery.reporting.published import find, papers, read_paper
from condensery.reporting.table_formats import csv_text, markdown
from condensery.reporting.table_layout import OwnRow, published_rows

# Typed from the texts of the papers, in percent: table of conf/table, column, row, what its cell says[, block].
SAMPLE = [
    # C table 1, E table 1
    ("low_data_stsb", "500", "BERT", "68.6"),
    ("low_data_stsb", "1K", "BERT + NLI", "76.8"),
    ("low_data_stsb", "all", "Condenser", "85.6"),
    ("low_data_stsb", "1K", "USE", "74.9"),
    ("sentence_tasks", "STS-b, Spearman", "BERT + NLI", "84.7"),
    ("sentence_tasks", "STS-b, Spearman", "GloVe", "58.0"),
    # C table 2, E table 2
    ("low_data_wiki_sections", "1K", "BERT", "72"),
    ("low_data_wiki_sections", "10K", "Condenser", "76"),
    ("low_data_wiki_sections", "10K", "BiLSTM", "–"),
    ("low_data_wiki_sections", "all", "BiLSTM", "74"),
    ("sentence_tasks", "Wikipedia sections, accuracy", "Condenser", "80"),
    # C table 3, E table 3
    ("low_data_nq", "Top-20, 1K", "BERT", "66.6"),
    ("low_data_nq", "Top-20, 10K", "ICT", "78.4"),
    ("low_data_nq", "Top-100, all", "Condenser", "86.8"),
    ("low_data_nq", "Top-100, 10K", "BM25", "73.7"),
    ("low_data_triviaqa", "Top-20, 1K", "Condenser", "74.3"),
    ("low_data_triviaqa", "Top-100, all", "ICT", "85.3"),
    ("low_data_triviaqa", "Top-100, 1K", "BERT", "78.7"),
    # C table 4, CO table 1
    ("nq", "Top-20", "DPR", "78.4 [C] / 74.4 [CO]"),
    ("nq", "Top-100", "DPR", "85.4 [C] / 85.3 [CO]"),
    ("nq", "Top-20", "DPR + hard negatives", "81.3"),
    ("nq", "Top-5", "GAR", "60.9"),
    ("nq", "Top-5", "RocketQA", "74.0"),
    ("nq", "Top-5", "Condenser", "–"),
    ("nq", "Top-100", "DPR-PAQ, RoBERTa-base", "89.2"),
    ("nq", "Top-5", "DPR-PAQ, RoBERTa-large", "76.9"),
    ("triviaqa", "Top-20", "ANCE", "80.3"),
    ("triviaqa", "Top-100", "DPR + hard negatives", "85.8"),
    ("triviaqa", "Top-5", "coCondenser", "76.8"),
    ("triviaqa", "Top-5", "DPR", "–"),
    # C table 5, E table 4: the papers disagree
    ("low_data_msmarco", "MRR@10, 1K", "BERT", "15.6 [C] / 14.6 [E]"),
    ("low_data_msmarco", "MRR@10, all", "Condenser", "33.8 [C] / 32.0 [E]"),
    ("low_data_msmarco", "R@1000, 10K", "BERT", "87.8 [C] / 86.0 [E]"),
    ("low_data_msmarco", "R@1000, all", "DeepCT", "90.9"),
    ("low_data_msmarco", "MRR@10, 1K", "DeepCT", "–"),
    ("low_data_msmarco", "R@100, 10K", "Condenser, continued (CT)", "76.0"),
    ("low_data_msmarco", "R@100, 1K", "BM25", "65.7"),
    ("low_data_msmarco", "DL19 NDCG@10, 10K", "ICT", "58.5"),
    ("low_data_msmarco", "MRR@10, 10K", "ICT", "25.1"),
    # C table 6, CO table 1, Q table 1
    ("msmarco", "MRR@10", "BM25", "18.9 [C t6] / 18.4 [C t5] / 18.7 [CO, Q]"),
    ("msmarco", "R@1000", "BM25", "85.3 [C t6, C t5] / 85.7 [CO, Q]"),
    ("msmarco", "R@1000", "DeepCT", "90.9 [C, CO] / 91.0 [Q]"),
    ("msmarco", "MRR@10", "docT5query", "27.8 [C] / 27.7 [CO] / 21.5 [Q]"),
    ("msmarco", "MRR@10", "ME-BERT", "33.4 [C] / 33.8 [CO]"),
    ("msmarco", "DL19 NDCG@10", "ANCE", "64.8 [C] / 64.5 [Q]"),
    ("msmarco", "MRR@10", "RocketQA, no data from elsewhere", "36.4"),
    ("msmarco", "R@1000", "RocketQA", "97.9"),
    ("msmarco", "MRR@10", "BERT + hard negatives", "33.4"),
    ("msmarco", "DL19 NDCG@10", "TCT", "67.0"),
    ("msmarco", "MRR@10", "DPR-PAQ, BERT-large", "31.1"),
    # C table 7, CO table 2
    ("rocketqa_comparison", "batch size", "cross-batch negatives", "8192"),
    ("rocketqa_comparison", "MRR@10", "+ hard negatives", "26.0"),
    ("rocketqa_comparison", "R@1000", "+ data augmentation", "97.9"),
    ("rocketqa_comparison", "R@1000", "+ denoising", "–"),
    ("rocketqa_comparison", "MRR@10", "Condenser", "33.8"),
    ("rocketqa_comparison", "R@1000", "coCondenser", "97.8"),
    ("rocketqa_comparison", "MRR@10", "coCondenser + hard negatives", "38.2"),
    # C table 8
    ("documents", "MRR@100", "BM25", "23.0"),
    ("documents", "MRR@100", "ME-BERT", "–"),
    ("documents", "DL19 NDCG@10", "ANCE", "61.5"),
    ("documents", "MRR@100", "Condenser + hard negatives", "40.4"),
    # CO table 3
    ("reranking", "MRR@10", "C-COIL", "42.7"),
    ("reranking", "rank", "RocketQA", "3"),
    # Q table 1
    ("query_as_context", "R@50", "docT5query", "64.4"),
    ("query_as_context", "R@50", "LED", "86.6"),
    ("query_as_context", "R@50", "SimLM", "–"),
    ("query_as_context", "DL19 NDCG@10", "RetroMAE", "68.1"),
    ("query_as_context", "R@50", "queries as context", "88.6", "coCondenser (120K), retriever 2"),
    ("query_as_context", "DL20 NDCG@10", "queries as context", "72.7", "CoT-MAE (50K), retriever 2"),
    ("query_as_context", "MRR@10", "passages as context", "37.2", "CoT-MAE (50K), retriever 1"),
    # Q table 2
    ("query_as_context_beir", "trec-covid", "queries as context", "70.3", "coCondenser"),
    ("query_as_context_beir", "fever", "passages as context", "70.7", "CoT-MAE"),
    ("query_as_context_beir", "quora", "passages as context", "78.1", "CoT-MAE"),
    ("query_as_context_beir", "nfcorpus", "queries as context", "33.0", "coCondenser"),
    ("query_as_context_beir", "average", "passages as context", "44.1", "coCondenser"),
    # Q tables 3 to 5
    ("query_number", "retriever 1: R@50", "10 queries", "87.0", "coCondenser"),
    ("query_number", "retriever 2: MRR@10", "1 query", "39.9", "CoT-MAE"),
    ("query_number", "retriever 2: DL20 NDCG@10", "10 queries", "70.9", "coCondenser"),
    ("query_number", "retriever 2: MRR@10", "20 queries", "39.7", "CoT-MAE"),
    ("query_number", "retriever 2: DL20 NDCG@10", "20 queries", "69.9", "CoT-MAE"),
    ("mixed_context", "retriever 1: R@50", "queries and passages", "85.6", "CoT-MAE"),
    ("mixed_context", "retriever 2: MRR@10", "queries and passages", "39.1", "coCondenser"),
    ("audit", "highly correlated", "passage and query", "56.6"),
    # A tables 1, 3 and 4, and section 4.4
    ("abs_models", "dev loss", "BERT", "4.640", "10,000"),
    ("abs_models", "full MRR@100", "RoBERTa", "23.5", "100,000"),
    ("abs_models", "dev MRR@100", "RoBERTa", "49.4 [A t1] / 52 [A t2]", "10,000"),
    ("abs_scheduling", "full MRR@100", "random", "17.7"),
    ("abs_scheduling", "dev MRR@100", "ABS-Encode", "62.9 [A t4] / 62.7 [A t3]"),
    ("abs_scheduling", "dev MRR@100", "without ABS", "56.8", "Condenser, 10,000"),
]


@pytest.mark.parametrize("wanted", SAMPLE, ids=lambda wanted: " ".join(wanted[:3]))
def test_a_cell_says_what_the_papers_print(wanted: tuple[str, ...]) -> None:
    name, column, row, text, *block = wanted
    assert cell_of(name, column, row, *block) == text


def test_every_number_of_every_paper_stands_in_a_table() -> None:
    shown: set[tuple[str, Decimal]] = set()
    for name in NAMES:
        config = config_of(name)
        keys = {column.published for column in config.columns.values()}
        plain = {"/".join(key.split("/")[:2]) for key in keys if key}
        for _, _, rows in published_rows(config.published):
            shown |= {
                (f"{row.source}/{key}", value)
                for row in rows
                for key, value in row.values.items()
                if key in keys | plain
            }
    for paper in papers().values():
        for number, table in paper.tables.items():
            for row in table.by_row():
                for key, value in table.shown(row).items():
                    assert (f"{paper.key} t{number}/{key}", value) in shown, f"{paper.key}/{number}/{row}: {key}"


@pytest.mark.parametrize("name", NAMES)
def test_a_table_prints_from_nothing_and_marks_its_rows_as_published(name: str) -> None:
    table = from_nothing(name)
    assert all(block.published for block in table.blocks)
    assert config_of(name).title in markdown(table)
    assert "not measured here" in markdown(table)
    assert "†" not in csv_text(table)
    for row in (row for block in data(table)["blocks"] for row in block["rows"]):
        assert row["source"]


def test_digits_stay_as_they_are_printed() -> None:
    assert str(find("C/8/BM25").values["msmarco-documents dev/MRR@100"]) == "23.0"
    assert str(find("A/1/BERT").values["msmarco dev-100/loss"]) == "4.640"
    assert str(find("C/7/w/ hard negatives").values["msmarco dev/batch size"]) == "64"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("X/1/BM25", "there is no paper 'X' (known: A, C, CO, E, Q)"),
        ("CO/9/BM25", "CO has no table '9' (known: 1, 2, 3)"),
        ("CO/1/BM52", "table 1 of CO has no row 'BM52' (did you mean 'BM25'?)"),
        ("BM25", "not of the form PAPER/TABLE/ROW"),
    ],
)
def test_a_reference_to_nothing_says_what_there_is(reference: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        find(reference)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[1, 2.50]", "[1, x]"), "tables.1.rows.one.a"),
        (("caption:", "captoin:"), "captoin"),
        (("key: X", "key: [X"), "not valid YAML"),
    ],
)
def test_a_broken_file_names_itself_and_the_fault(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = """key: X
title: T
authors: [A]
year: null
venue: V
tables:
  "1":
    caption: c
    of: x dev
    columns: [{metric: M}, {metric: N}]
    rows:
      one: {a: [1, 2.50]}
      two: {b: [null, 3]}
"""
    path = tmp_path / "paper.yaml"
    path.write_text(text)
    assert read_paper(path).tables["1"].shown("a")["x dev/N"].as_tuple().exponent == -2
    assert read_paper(path).tables["1"].shown("b") == {"x dev/N": Decimal(3)}
    path.write_text(text.replace(*change))
    with pytest.raises(UserError) as caught:
        read_paper(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_no_shipped_table_holds_numbers_of_its_own() -> None:
    own = [row for name in NAMES for named in config_of(name).published.values() for row in named.values()]
    assert own
    assert not any(isinstance(row, OwnRow) for row in own)
