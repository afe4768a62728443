"""Small files in the format of PAQ: passages, and the metadata of questions."""

import json
from pathlib import Path

from small_runs import some_text, write


def write_paq(root: Path, questions: int = 24) -> list[dict[str, object]]:
    """Write passages and ``questions`` questions with one or two passages each. Return the lines of the questions."""
    text = some_text(documents=12, seed=9)
    rows = [f"{number}\t{words}\t{title}" for number, (_, title, words, _) in enumerate(text.passages, start=1)]
    write(root / "psgs_w100.tsv", ["id\ttext\ttitle", *rows])
    lines: list[dict[str, object]] = []
    for number in range(questions):
        _, title, words, _ = text.passages[number % len(rows)]
        places = [number % len(rows) + 1, *([1] if number % 5 == 4 else [])]
        answers = [
            {"passage_id": str(place), "offset": 0, "text": words.split()[0], "extractor": "L"} for place in places
        ]
        question = f"what is said about {title} and {' '.join(words.split()[1:4])}"
        subsets = ["L1", "L4"] if number % 2 else ["NE"]
        line = {"question": question, "subsets": subsets, "answer": words.split()[0], "passage_score": "-1.2"}
        lines.append({**line, "answers": answers})
    write(root / "PAQ.metadata.jsonl", map(json.dumps, lines))
    return lines
