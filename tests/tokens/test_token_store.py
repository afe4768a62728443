"""The token store holds what the tokenizer gives, in order, with sentences and documents where they begin."""

import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sentencex import get_sentence_boundaries

from condensery.errors import UserError
from condensery.tokens.store import TokenStore, tokenise
from condensery.tokens.tokenizer import load_tokenizer


@pytest.fixture(params=["wordpiece", "bytelevel"])
def tokenizer(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_every_text_has_the_ids_that_the_tokenizer_gives_it(texts: list[str], tokenizer: Path, tmp_path: Path) -> None:
    store = tokenise(texts, tokenizer, tmp_path, sentences=True, batch=7)
    loaded = load_tokenizer(tokenizer)
    assert len(store) == len(texts)
    for index, text in enumerate(texts):
        assert store.text(index).tolist() == loaded(text, add_special_tokens=False)["input_ids"]
    assert store.tokens.dtype == np.uint16
    assert store.lengths.sum() == store.token_count == len(store.tokens)


def test_another_process_gets_the_place_of_a_store_and_not_its_content(
    texts: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    store = tokenise(texts, wordpiece, tmp_path, sentences=True)
    sent = pickle.dumps(store)
    assert len(sent) < store.tokens.nbytes / 4
    assert np.array_equal(pickle.loads(sent).tokens, store.tokens)


def test_byte_level_sentences_decode_to_the_sentences_of_the_text(
    texts: list[str], bytelevel: Path, tmp_path: Path
) -> None:
    store = tokenise(texts, bytelevel, tmp_path, sentences=True)
    loaded = load_tokenizer(bytelevel)
    assert store.sentences is not None
    checked = 0
    for index, text in enumerate(texts):
        begin, end = store.starts[index], store.starts[index + 1]
        places = store.sentences[(store.sentences >= begin) & (store.sentences < end)]
        found = [str(loaded.decode(part)).strip() for part in np.split(store.tokens[begin:end], places[1:] - begin)]
        ranges = [(item["start_index"], item["end_index"]) for item in get_sentence_boundaries("en", text)]
        expected = [text[a:b].strip() for a, b in ranges]
        # Line breaks between sentences are a range of their own and stay with one neighbour; they hold no letter.
        assert [part for part in found if part] == [part for part in expected if part]
        checked += len(found)
    assert checked > 400


def test_each_text_that_is_not_empty_begins_a_sentence_and_sentences_ascend(
    texts: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    store = tokenise(texts, tokenizer, tmp_path, sentences=True)
    assert store.sentences is not None
    assert (np.diff(store.sentences) > 0).all()
    assert set(store.starts[:-1][store.lengths > 0]) <= set(store.sentences)
    assert store.sentences[-1] < store.token_count
    assert len(store.sentences) > 2 * len(store)


def test_a_text_without_tokens_has_no_sentences(wordpiece: Path, tmp_path: Path) -> None:
    store = tokenise(
        ["", "One is here. Two is there.", "\u200b\u200b", "Three. ", ""], wordpiece, tmp_path, sentences=True
    )
    assert [len(store.sentence_spans(index)) for index in range(5)] == [0, 2, 0, 1, 0]
    assert sum(size for index in range(5) for _, size in store.sentence_spans(index)) == store.token_count


def test_workers_and_batches_do_not_change_a_byte(texts: list[str], wordpiece: Path, tmp_path: Path) -> None:
    documents = [0, 10, 10, 150, len(texts)]
    for name, workers, batch in (("one", 1, 512), ("two", 2, 9)):
        tokenise(texts, wordpiece, tmp_path / name, sentences=True, documents=documents, workers=workers, batch=batch)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["documents.npy", "sentences.npy", "starts.npy", "store.json", "tokens.bin"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_long_list_is_read_a_few_batches_ahead_only(wordpiece: Path, tmp_path: Path) -> None:
    from condensery.tokens.workers import encode, in_order

    taken = 0

    def batches() -> object:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield ["one text."]

    pieces = in_order(partial(encode, dtype="uint16", sentences=False), batches(), wordpiece, workers=2)  # type: ignore[arg-type]
    next(pieces)
    assert taken <= 6
    pieces.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("workers", "batch"), [(1, 1), (2, 2)])
def test_one_worker_or_batch_starts_no_process_and_imports_neither_torch_nor_transformers(
    wordpiece: Path, workers: int, batch: int
) -> None:
    code = (
        "import sys, multiprocessing.process as p; p.BaseProcess.start = None\n"
        "from pathlib import Path; from condensery.tokens.store import tokenise; import tempfile\n"
        f"tokenise(['a b. C d.', 'e'], Path({str(wordpiece)!r}), Path(tempfile.mkdtemp()), sentences=True, "
        f"workers={workers}, batch={batch})\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_documents_are_runs_of_texts_and_without_them_each_text_is_its_own(
    texts: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    store = tokenise(texts, wordpiece, tmp_path / "a", sentences=False, documents=[0, 4, len(texts)])
    assert store.sentences is None
    assert store.document_lengths.tolist() == [store.lengths[:4].sum(), store.lengths[4:].sum()]
    alone = tokenise(texts, wordpiece, tmp_path / "b", sentences=False)
    assert (alone.document_lengths == alone.lengths).all()
    with pytest.raises(ValueError, match="documents must ascend"):
        tokenise(texts, wordpiece, tmp_path / "c", sentences=False, documents=[0, 4])


def test_each_text_may_be_taken_as_a_document_here_and_in_another_process(
    texts: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    grouped = tokenise(texts, wordpiece, tmp_path, sentences=True, documents=[0, 4, len(texts)])
    single = TokenStore(tmp_path, single_texts=True)
    for store in (single, pickle.loads(pickle.dumps(single))):
        assert np.array_equal(store.document_starts, grouped.starts)
        assert np.array_equal(store.document_lengths, grouped.lengths)
        assert np.array_equal(store.tokens, grouped.tokens)
        assert store.sentences is not None
        assert np.array_equal(store.sentences, grouped.sentences)
    for store in (TokenStore(tmp_path), pickle.loads(pickle.dumps(grouped))):
        assert store.documents.tolist() == [0, 4, len(texts)]


def test_an_empty_list_of_texts_gives_an_empty_store(wordpiece: Path, tmp_path: Path) -> None:
    store = tokenise([], wordpiece, tmp_path, sentences=True)
    assert len(store) == store.token_count == 0
    assert store.sentences is not None
    assert len(store.sentences) == 0


def test_a_vocabulary_above_sixteen_bits_is_stored_in_thirty_two(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(70_000)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    store = tokenise(["w1 w69999 w65536"], tmp_path / "tokenizer", tmp_path / "store", sentences=True)
    assert store.tokens.dtype == np.uint32
    assert store.text(0).tolist() == [1, 69_999, 65_536]


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _halve(path: Path) -> None:
    np.save(path, np.load(path)[::2])


def _describe(path: Path) -> None:
    path.write_text(json.dumps({"dtype": "uint16", "texts": "three"}))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("tokens.bin", _shorten, "has .* tokens, but store.json says .*; give force"),
        ("tokens.bin", Path.unlink, "has 0 tokens, but store.json says .*; give force"),
        ("starts.npy", _halve, "does not fit the tokens in its folder"),
        ("starts.npy", _shorten, "starts.npy: not readable"),
        ("sentences.npy", Path.unlink, "sentences.npy: not readable"),
        ("documents.npy", Path.unlink, "documents.npy: not readable"),
        ("documents.npy", _halve, "does not fit the tokens in its folder"),
        ("store.json", Path.unlink, "holds no complete token store"),
        ("store.json", _describe, "does not describe a token store"),
    ],
)
def test_a_spoiled_store_is_one_clear_error(
    name: str, spoil: object, message: str, texts: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    tokenise(texts, wordpiece, tmp_path, sentences=True, documents=[0, 4, len(texts)])
    spoil(tmp_path / name)  # type: ignore[operator]
    with pytest.raises(UserError, match=message) as caught:
        TokenStore(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_usable_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: no such file"):
        tokenise(["a"], tmp_path, tmp_path / "store", sentences=False)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        tokenise(["a"], tmp_path, tmp_path / "store", sentences=False)
