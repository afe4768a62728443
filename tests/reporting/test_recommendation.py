"""Which row is to be used, and what is said of it: never one that a simpler one is ahead of, or cannot be told from."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from condensery.evaluation.significance import interval, queries_needed, t_test
from condensery.reporting.conclusion import Lines, lines_of
from condensery.reporting.recommendation import HELD_OUT, Made, choice, recommendation, unmeasured
from condensery.reporting.results import Row, read_results, write_results
from condensery.reporting.table import Comparison, Significance, build_table

QUERIES = 1_000
KEPT: dict[str, Any] = {
    "by": "dev queries",
    "queries": 80,
    "kept": "distilled",
    "share": 0.5,
    "p": 0.01,
    "values": [
        {"of": "start", "share": 0.0, "MRR@10": 0.715},
        {"of": "distilled", "share": 0.5, "MRR@10": 0.737},
        {"of": "distilled", "share": 1.0, "MRR@10": 0.737},
    ],
}
NOT_KEPT = {**KEPT, "kept": "start", "share": 0.0, "p": 0.25}
MADE = {
    "BM25": Made(frozenset({"bm25/1"})),
    "as it is": Made(frozenset({"retriever/1"})),
    "adapted": Made(frozenset({"keep_best/1"}), True, 240.0, KEPT),
    "BM25 + as it is": Made(frozenset({"bm25/1", "retriever/1"})),
    "BM25 + adapted": Made(frozenset({"bm25/1", "keep_best/1"}), True, 250.0, KEPT),
}
KINDS = {"BM25": "bm25", "BM25 + as it is": "fuse", "BM25 + adapted": "fuse"}


def row(name: str, mean: float, noise: float = 0.02, **changes: Any) -> Row:
    """A row whose mean is exactly ``mean``: what all rows have in common for a query, and some noise of its own."""
    common = np.random.default_rng(0).normal(0, 0.3, QUERIES)
    values = common + np.random.default_rng([*map(ord, name)]).normal(0, noise, QUERIES)
    values += mean - values.mean()
    fields: dict[str, Any] = {"seed": 1, "artifact": f"evaluate/{name}", "query_ids": [*map(str, range(QUERIES))]}
    per_query = {"NDCG@10": values}
    return Row(name, "c", "test", {"NDCG@10": mean}, per_query, **{**fields, **changes})


def lines(rows: list[Row], baseline: str | None = None, tested: Sequence[Comparison] = (), **how: Any) -> Lines:
    kinds = {one.artifact: KINDS.get(one.name, "encode") for one in rows}
    return lines_of(rows, kinds, Significance(baseline, **how), tested)


def told(means: dict[str, float], made: dict[str, Made] = MADE, noise: float = 0.02) -> tuple[str, str]:
    """The row to use and the words."""
    rows = [row(name, mean, noise) for name, mean in means.items()]
    artifacts = {f"evaluate/{name}": one for name, one in made.items()}
    tested = build_table(rows, significance=Significance("as it is")).comparisons
    found = recommendation(lines(rows, "as it is", tested=tested), artifacts)
    assert found is not None
    return found.row, found.text


def means(*values: float) -> dict[str, float]:
    return dict(zip(MADE, values, strict=True))


def test_what_pays_is_told_with_its_interval_its_cost_and_the_row_to_use() -> None:
    use, text = told(means(0.49, 0.516, 0.542, 0.54, 0.562))
    assert use == "BM25 + adapted"
    first, second = row("adapted", 0.542), row("as it is", 0.516)
    reach = interval([first.per_query["NDCG@10"]], [second.per_query["NDCG@10"]])
    low, high = f"{100 * reach.low:.1f}", f"{100 * reach.high:.1f}"
    assert text.startswith(
        f"adapted is ahead of as it is: NDCG@10 54.2 against 51.6, +2.6 ({low} to {high}, p < 0.01),"
        " for 4 minutes of training. Use BM25 + adapted: NDCG@10 56.2, after 4 minutes of training; BM25 has 49.0, +7.2 ("
    )
    assert text.endswith(
        " The row is chosen on the same 1,000 queries of test, so its score is slightly too optimistic."
    )


def test_where_rows_cannot_be_told_apart_the_simpler_one_is_used_and_that_is_said() -> None:
    use, text = told(means(0.30, 0.516, 0.517, 0.56, 0.561), noise=0.05)
    assert use == "BM25 + as it is"
    assert "adapted does not differ significantly from as it is: NDCG@10 51.7 against 51.6, +0.1 (" in text
    assert "Use BM25 + as it is: NDCG@10 56.0; BM25 has 30.0, +26.0 (" in text
    assert "BM25 + adapted, after 4 minutes of training, has the highest score, 56.1, +0.1 (" in text
    assert re.search(
        r"cannot be told apart with 1,000 queries \(about [\d,]{6,} would be needed\), and BM25 \+ as it is is simpler\.",
        text,
    )


def few(values: dict[str, float], queries: int) -> list[Row]:
    """Rows with so many queries and these means."""
    rows = [row(name, 0.5, 0.2) for name in values]
    for one, mean in zip(rows, values.values(), strict=True):
        own = one.per_query["NDCG@10"][:queries]
        one.per_query["NDCG@10"], one.metrics["NDCG@10"] = own - own.mean() + mean, mean
        one.query_ids[queries:] = []
    return rows


def told_of_few(rows: list[Row], made: dict[str, Made]) -> tuple[str, str]:
    found = recommendation(lines(rows, "as it is"), {f"evaluate/{name}": one for name, one in made.items()})
    assert found is not None
    return found.row, found.text


@pytest.mark.parametrize(("lead", "wanted"), [(0.03, "BM25 + as it is"), (0.008, "BM25")])
def test_a_simpler_row_is_used_only_where_its_figure_is_nearly_as_high(lead: float, wanted: str) -> None:
    rows = few({"BM25": 0.5, "as it is": 0.45, "BM25 + as it is": 0.5 + lead}, 40)
    use, text = told_of_few(rows, MADE)
    assert use == wanted
    needed = queries_needed(rows[2].per_query["NDCG@10"] - rows[0].per_query["NDCG@10"], 0.01 / 2)
    assert f"+{100 * lead:.1f} (" in text
    assert f"they cannot be told apart with 40 queries (about {needed:,} would be needed)" in text
    highest = (
        "BM25 + as it is has the highest score, 50.8, "
        if wanted == "BM25"
        else "Use BM25 + as it is: NDCG@10 53.0; BM25 has"
    )
    assert highest in text


def test_a_handful_of_queries_does_not_overrule_what_is_known_of_such_rows() -> None:
    rows = few({"BM25": 0.5, "as it is": 0.6, "BM25 + as it is": 0.55}, 5)
    use, text = told_of_few(rows, MADE)
    assert use == "BM25 + as it is"
    assert "Use BM25 + as it is: the fusion of BM25 and a retriever mostly ranks better than either; NDCG@10 55.0;" in (
        text
    )
    assert text.count("as it is has the highest score, 60.0, +5.0 (") == text.count("60.0") == 1, "it is said once"
    assert text.endswith(
        " So few queries (5 of test) cannot choose a row: this row is the one that is recommended without judgements."
    )
    strange = {name: replace(one, unknown=0.0 if name == "BM25" else 0.4) for name, one in MADE.items()}
    assert told_of_few(rows, strange)[0] == "BM25"
    alone = {name: one for name, one in MADE.items() if name != "BM25 + as it is"}
    use, text = told_of_few(rows[:2], alone)
    assert use == "as it is", "nothing is known of them"
    assert text.endswith(" 5 queries of test, with so few queries, a choice based on them is mostly chance.")
    for one in rows:
        one.per_query["NDCG@10"] = np.full(5, one.metrics["NDCG@10"])
    clear = recommendation(lines(rows, test="t"), {f"evaluate/{name}": one for name, one in MADE.items()})
    assert clear is not None
    assert clear.row == "as it is", "the difference is the same for every query"
    assert clear.text.endswith(
        " The row is chosen on the same 5 queries of test, on which BM25 + as it is, the row that is recommended without"
        " judgements, is significantly worse."
    )


def test_so_many_queries_find_a_difference_four_times_of_five() -> None:
    draw = np.random.default_rng(5)
    needed = queries_needed(draw.normal(0.1, 0.4, 100_000), 0.01)
    assert needed == pytest.approx(((2.576 + 0.842) * 4) ** 2, rel=0.05)
    assert np.mean([t_test(draw.normal(0.1, 0.4, needed)) < 0.01 for _ in range(400)]) == pytest.approx(0.8, abs=0.06)
    assert queries_needed(np.array([0.5]), 0.01) is None
    assert queries_needed(np.array([0.5, -0.5]), 0.01) is None


def test_a_single_query_has_no_interval() -> None:
    rows = [row(name, mean) for name, mean in {"BM25": 0.5, "as it is": 0.7}.items()]
    for one in rows:
        one.per_query["NDCG@10"], one.query_ids[1:] = np.array([one.metrics["NDCG@10"]]), []
    found = recommendation(lines(rows), {f"evaluate/{name}": one for name, one in MADE.items()})
    assert found is not None
    assert "Use as it is: NDCG@10 70.0; BM25 has 50.0, +20.0 (p = 1 after Holm's correction): they" in found.text
    assert "cannot be told apart with 1 query. " in found.text


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((0.6, 0.5, 0.5, 0.55, 0.55), "BM25"),
        ((0.5, 0.6, 0.55, 0.58, 0.56), "as it is"),
        ((0.5, 0.6, 0.65, 0.62, 0.64), "adapted"),
        ((0.5, 0.6, 0.5, 0.65, 0.5), "BM25 + as it is"),
    ],
)
def test_a_row_that_is_behind_a_simpler_one_is_never_the_one_to_use(values: tuple[float, ...], wanted: str) -> None:
    use, text = told(means(*values))
    assert use == wanted
    assert f"Use {wanted}: " in text


def test_training_that_harms_is_told() -> None:
    _, text = told(means(0.5, 0.6, 0.5, 0.65, 0.55))
    assert "adapted is behind as it is: NDCG@10 50.0 against 60.0, -10.0 (" in text


def test_of_a_training_that_was_not_kept_it_is_said_and_nothing_is_paid_for_it() -> None:
    same = Made(frozenset({"retriever/1"}), kept=NOT_KEPT)
    made = {**MADE, "adapted": same, "BM25 + adapted": Made(frozenset({"bm25/1", "retriever/1"}), kept=NOT_KEPT)}
    use, text = told(means(0.5, 0.6, 0.6, 0.65, 0.65), made)
    assert use == "BM25 + as it is"
    assert (
        "adapted has the weights of as it is, because no trained weights are kept. MRR@10 of 80 dev queries:"
        " 71.5 with the initial weights, 73.7 with 50 % of the weights of distilled (p = 0.25):"
        " the initial weights are kept." in text
    )
    assert "of training" not in text


def test_where_a_trained_row_is_used_and_dev_queries_kept_the_start_both_are_told_apart() -> None:
    made = {
        "BM25": MADE["BM25"],
        "as it is": MADE["as it is"],
        "best on dev": Made(frozenset({"retriever/1"}), kept={**NOT_KEPT, "level": 0.05}),
        "both towers": Made(frozenset({"finetune/1"}), True, 60.0),
    }
    use, text = told(dict(zip(made, (0.3, 0.5, 0.5, 0.6), strict=True)), made)
    assert use == "both towers"
    assert (
        "73.7 with 50 % of the weights of distilled (p = 0.25, not below 0.05): the initial weights are kept." in text
    )
    assert text.endswith(
        "The row is chosen on the same 1,000 queries of test, so its score is slightly too optimistic;"
        " the 80 dev queries chose the initial weights instead."
    )
    _, text = told(dict(zip(made, (0.3, 0.5, 0.5, 0.4), strict=True)), made)
    assert "instead" not in text, "no trained row is used"
    made["both towers"] = replace(made["both towers"], kept=KEPT)
    _, text = told(dict(zip(made, (0.3, 0.5, 0.5, 0.6), strict=True)), made)
    assert "instead" not in text, "dev queries chose the trained weights"


@pytest.mark.parametrize(
    ("p", "level", "words"),
    [
        (0.01, 0.05, "(p = 0.01, below 0.05)"),
        (0.04996, 0.05, "(p = 0.04996, below 0.05)"),
        (0.0504, 0.05, "(p = 0.05, not below 0.05)"),
        (0.2, 1, "(p = 0.2)"),
    ],
)
def test_a_p_value_stands_on_its_side_of_the_limit(p: float, level: float, words: str) -> None:
    assert words in choice({**KEPT, "p": p, "level": level})


def test_a_choice_tells_the_best_trained_weights_although_none_are_kept() -> None:
    values = [KEPT["values"][0], *({**one, "MRR@10": 0.17 / one["share"]} for one in KEPT["values"][1:])]
    assert choice({**NOT_KEPT, "p": 1.0, "values": values}).endswith(
        "71.5 with the initial weights; no candidate scores higher (best: 34.0 with 50 % of the weights of distilled): the"
        " initial weights are kept"
    )


def test_of_several_seeds_a_training_that_some_kept_is_compared() -> None:
    made = {**MADE, "adapted": Made(frozenset({"retriever/1"}), kept=NOT_KEPT)}
    rows = [row(name, mean) for name, mean in means(0.49, 0.516, 0.516, 0.54, 0.562).items()]
    rows += [replace(one, seed=2, artifact=f"{one.artifact} 2") for one in rows[:2] + rows[3:]]
    rows.append(row("adapted", 0.542, seed=2, artifact="evaluate/adapted 2"))
    artifacts = {one.artifact: (MADE if one.seed == 2 else made)[one.name] for one in rows}
    found = recommendation(lines(rows, "as it is"), artifacts)
    assert found is not None
    assert "adapted is ahead of as it is: NDCG@10 52.9 against 51.6, +1.3 (" in found.text
    assert "no trained weights are kept" not in found.text


def test_weights_that_were_not_kept_equal_no_other_baseline() -> None:
    made = {**MADE, "adapted": Made(frozenset({"retriever/1"}), kept=NOT_KEPT)}
    rows = [row(name, mean) for name, mean in means(0.3, 0.6, 0.6, 0.65, 0.65).items()]
    found = recommendation(lines(rows, "BM25"), {f"evaluate/{name}": one for name, one in made.items()})
    assert found is not None
    assert found.text.startswith("adapted has the initial weights, because no trained weights are kept. MRR@10 of 80")


def test_near_one_another_what_dev_queries_chose_comes_before_what_these_would_choose() -> None:
    made = {
        "as it is": Made(frozenset({"retriever/1"})),
        "fine-tuned": Made(frozenset({"finetune/1"}), True, 60.0),
        "best on dev": Made(frozenset({"keep_best/1"}), True, 180.0, KEPT),
        "+ distillation": Made(frozenset({"finetune/2"}), True, 120.0),
    }
    use, text = told(dict(zip(made, (0.3, 0.413, 0.414, 0.4141), strict=True)), made, noise=0.1)
    assert use == "best on dev"
    assert "+ distillation has the highest" in text


def test_nothing_is_recommended_of_rows_that_cannot_be_compared() -> None:
    one = row("BM25", 0.5)
    other = Row("as it is", "another", "test", {"NDCG@10": 0.6}, artifact="evaluate/as it is")
    assert recommendation(lines([one]), {one.artifact: MADE["BM25"]}) is None
    assert recommendation(lines([one, other]), {one.artifact: MADE["BM25"]}) is None


def test_the_intervals_are_those_of_a_paired_bootstrap_over_queries() -> None:
    draw = np.random.default_rng(3)
    ranks = [1 / draw.integers(1, 12, 225) * (draw.random(225) < share) for share in (0.75, 0.7)]  # as skewed as MRR is
    reach = interval(ranks[:1], ranks[1:])
    differences = ranks[0] - ranks[1]
    again = differences[draw.integers(0, 225, (10_000, 225))].mean(axis=1)
    low, high = np.quantile(again, [0.025, 0.975])
    assert (reach.low, reach.high) == pytest.approx((low, high), abs=0.003)


def test_without_judgements_the_joined_row_is_used_and_the_proxy_is_named() -> None:
    kept = {**NOT_KEPT, "by": HELD_OUT}
    same = Made(frozenset({"bm25/1", "retriever/1"}), kept=kept)
    found = unmeasured({**MADE, "adapted": Made(frozenset({"retriever/1"}), kept=kept), "BM25 + adapted": same}, "test")
    assert found.row == "BM25 + as it is"
    assert "so no row is measured. Weights are chosen by a proxy: to find" in found.text
    assert (
        "adapted: MRR@10 of 80 queries of passages that are held out: 71.5 with the initial weights, 73.7 with 50 %"
        in found.text
    )
    assert found.text.endswith(
        "Use BM25 + as it is: the fusion of BM25 and a retriever mostly ranks better than either."
    )
    found = unmeasured(MADE, "dl19")
    assert found.row == "BM25 + adapted"
    assert "a proxy" not in found.text, "dev queries chose"
    assert "Use BM25 + adapted, after 4 minutes of training: " in found.text


def test_without_judgements_bm25_is_used_where_its_fusion_does_not_rank_better() -> None:
    kept = {**NOT_KEPT, "by": HELD_OUT, "MRR@10": 0.715}
    for lexical, row in ((0.715, "BM25"), (0.8, "BM25"), (0.7, "BM25 + as it is")):
        same = Made(frozenset({"bm25/1", "retriever/1"}), kept={**kept, "BM25": lexical})
        found = unmeasured({**MADE, "BM25 + adapted": same}, "test")
        assert found.row == row
        assert f"; {100 * lexical:.1f} with BM25 alone" in found.text
        assert f"Use {row}: " in found.text
    own = {**MADE, "BM25 + adapted": same}
    del own["BM25"]
    assert unmeasured(own, "test").row == "BM25 + as it is", "a recipe without a row for BM25"


def test_without_judgements_a_retriever_that_is_ahead_of_the_fusion_is_told() -> None:
    for by, proxy in ((HELD_OUT, ", but sentences are only a proxy"), ("dev queries", "")):
        kept = {**NOT_KEPT, "by": by, "MRR@10": 0.715}
        alone = Made(frozenset({"retriever/1"}), kept=kept)
        for fused in (0.7, 0.72):
            same = Made(frozenset({"bm25/1", "retriever/1"}), kept={**kept, "MRR@10": fused, "BM25": 0.5})
            found = unmeasured({**MADE, "adapted": alone, "BM25 + adapted": same}, "test")
            assert found.row == "BM25 + as it is"
            words = f" ranks better than either; on these 80 {by} the retriever alone scores higher{proxy}."
            assert found.text.endswith(words) == (fused == 0.7)


def test_without_judgements_weights_kept_without_a_test_are_not_used_where_a_tested_choice_kept_none() -> None:
    same = frozenset({"bm25/1", "retriever/1"})
    rate = {**KEPT, "p": 1.0, "values": KEPT["values"][:2]}  # the better of two trainings, whatever its p
    best = {**NOT_KEPT, "MRR@10": 0.715, "values": KEPT["values"] * 3}
    of_fusion = {**NOT_KEPT, "MRR@10": 0.8, "BM25": 0.7}
    made = {
        **MADE,
        "BM25 + adapted": Made(same, kept=of_fusion),
        "BM25 + best": Made(same, kept=best),
        "BM25 + both towers": Made(frozenset({"bm25/1", "keep_best/2"}), True, 60.0, rate),
    }
    assert unmeasured(made, "test").row == "BM25 + as it is"
    behind = {**made, "BM25 + adapted": Made(same, kept={**of_fusion, "BM25": 0.8})}
    assert unmeasured(behind, "test").row == "BM25", "what one row measured of the fusion holds for each that equals it"
    better = Made(frozenset({"bm25/1", "keep_best/3"}), True, 90.0, {**best, "share": 1.0, "p": 0.01})
    sure = Made(frozenset({"bm25/1", "keep_best/2"}), True, 60.0, {**rate, "p": 0.01})
    chosen = unmeasured({**made, "BM25 + best": better, "BM25 + both towers": sure}, "test")
    assert chosen.row == "BM25 + best", "both towers were among its candidates"
    assert unmeasured({**made, "BM25 + adapted": MADE["BM25 + adapted"]}, "test").row == "BM25 + adapted"


def test_without_judgements_bm25_is_used_where_the_retriever_cannot_read_the_text() -> None:
    for unknown, row in ((0.33, "BM25"), (0.05, "BM25 + adapted")):
        made = {name: replace(one, unknown=0.0 if name == "BM25" else unknown) for name, one in MADE.items()}
        found = unmeasured(made, "test")
        assert found.row == row
        assert ("33% of the tokens of the text are unknown to the retriever's tokenizer" in found.text) == (
            row == "BM25"
        )


def test_without_judgements_each_choice_is_told_with_the_first_row_that_it_made() -> None:
    kept = {**NOT_KEPT, "by": HELD_OUT}
    of_fusion = {**kept, "queries": 90}
    rows = {
        "adapted": Made(frozenset({"retriever/1"}), kept=kept),
        "the same again": Made(frozenset({"retriever/1"}), kept=kept),
        "BM25 + adapted": Made(frozenset({"bm25/1", "retriever/1"}), kept=of_fusion),
    }
    text = unmeasured(rows, "test").text
    assert " adapted: MRR@10 of 80 " in text
    assert " BM25 + adapted: MRR@10 of 90 " in text
    assert text.count("MRR@10") == 2


def test_a_corrected_p_value_beside_an_interval_is_named_as_one() -> None:
    _, text = told(means(0.30, 0.516, 0.517, 0.56, 0.561), noise=0.05)
    assert text.count(" after Holm's correction)") == 2
    assert "p < 0.01 after" not in text


def test_a_choice_without_queries_is_told_as_one() -> None:
    nothing = {"by": None, "queries": 0, "kept": "start", "share": 0.0, "values": []}
    assert choice(nothing) == "There are no queries to choose weights by: the initial weights are kept"
    bare = choice({**NOT_KEPT, "values": KEPT["values"][:1]})
    assert bare.endswith(
        "71.5 with the initial weights; there are no trained weights to compare: the initial weights are kept"
    )
    assert choice(KEPT).endswith("73.7 with 50 % of the weights of distilled (p = 0.01): these weights are kept")


def test_the_row_to_use_is_in_the_results(tmp_path: Any) -> None:
    rows = [row("BM25", 0.5), row("as it is", 0.6, recommended="because")]
    write_results(tmp_path / "results.json", rows)
    assert [one.recommended for one in read_results(tmp_path / "results.json")] == ["", "because"]
