"""The examples run as they stand, but for the names of model and data, and in fewer steps.

Those that serve and measure what was trained: ``test_serve.py``.
"""

import re
from pathlib import Path

import pytest
from forked import run_program

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORTER = {
    "google-bert/bert-base-uncased": "bert",
    "sentence-transformers/all-MiniLM-L6-v2": "bert",
    "IVF64,Flat": "IVF4,Flat",
    "max_steps=1000": "max_steps=4",
    "max_steps=100)": "max_steps=4)",
    "max_epochs=3": "max_epochs=1",
}


@pytest.fixture(scope="module")
def ran(world: Path) -> dict[str, str]:
    """What each of them prints; the first makes what the second starts from."""
    printed = {}
    sources = {path.stem: path for path in EXAMPLES.glob("*.py") if path.stem not in ("serve", "nanobeir")}
    for name in ("pretrain", *sorted(sources.keys() - {"pretrain"})):
        text = sources[name].read_text()
        for before, after in SHORTER.items():
            text = text.replace(before, after)
        printed[name] = run_program(text, world)
    return printed


def test_what_was_trained_opens_elsewhere(ran: dict[str, str], world: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModelForMaskedLM

    assert AutoModelForMaskedLM.from_pretrained(world / "cocondenser").config.hidden_size == 32
    assert SentenceTransformer(str(world / "cocondenser"), device="cpu").encode(["rain"]).shape == (1, 32)


def test_what_they_print(ran: dict[str, str]) -> None:
    assert re.search(r"^(rain falls|iron rusts).*\n\{'NDCG@10': [01]\.\d+\}$", ran["finetune"], re.M)
    assert re.search(r"^\{'NDCG@10': [01]\.\d+\}$", ran["distillation"], re.M)
    measured = r"\{'NDCG@10': [01]\.\d+, 'Recall@100': [01]\.\d+\}"
    assert re.search(rf"^{measured} {measured}\n{measured}$", ran["adapt"], re.M)
    assert re.search(rf"^kept: (tuned|the start)\n{measured} {measured}\n{measured}$", ran["adapt_queries"], re.M)
    assert re.search(r"^loss \d+\.\d{3}$", ran["gradient_cache"], re.M)
    assert re.search(
        r"^probably: weights .* \(log_scale\).*\nprobably: dropout is not replayed", ran["check_gradients"], re.M
    )
    assert "the gradient equals that of the whole batch in 10 settings" in ran["check_gradients"]
    assert re.search(r"^\[Hit\(rank=1, .*\)\]\n\{'NDCG@10': [01]\.\d+\} \{'NDCG@10': [01]\.\d+\}$", ran["search"], re.M)
    assert re.search(r"^\[\[-?\d.*\]\] \[\[\d+ .*\d+\]\] (1\.0|0\.\d+)$", ran["large_search"], re.M)
    assert re.search(r"^tensor\(\[\[", ran["sentence_similarity"], re.M)
