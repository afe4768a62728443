"""A collection with graded judgements."""

from pathlib import Path

import pytest

from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

# Query ids are not in sorted order ("q10" < "q9"), so that a mix-up of orders shows.
GRADES = {"q9": {"p0": 1}, "q10": {"p1": 2, "p2": 1, "p3": 0}, "q8": {"p4": 1, "p5": 1}, "q7": {"p6": 1}}


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Four queries, thirty passages."""
    folder: Path = tmp_path_factory.mktemp("graded")
    with CollectionWriter(folder, "graded") as writer:
        for query, grades in GRADES.items():
            for passage, grade in grades.items():
                writer.add_judgement("test", query, passage, grade)
        for passage in range(30):
            writer.add_passage(Passage(f"p{passage}", "", f"text {passage}"))
        for query in GRADES:
            writer.add_query(Query(query, query))
    return Collection(folder)
