"""Where a backbone comes from, and one line of explanation where it cannot come from there."""

import json
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from condensery.errors import UserError
from condensery.models.checkpoints.backbone import load_masked_language_model, masked_language_model
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.pretraining import load_condenser
from condensery.models.checkpoints.retrievers import load_biencoder, load_encoder
from condensery.models.generator import load_generator
from condensery.stages.checks import content_of_model
from condensery.stages.corpus.config import TokenizerConfig
from condensery.tokens.tokenizer import load_tokenizer


def _config(**changes: Any) -> BackboneConfig:
    values: dict[str, Any] = {
        "name": None,
        "revision": None,
        "tokenizer": None,
        "vocab_size": 100,
        "family": "bert",
        "layers": 2,
        "hidden": 16,
        "heads": 2,
        "intermediate": 32,
        "max_positions": 30,
        "dropout": None,
        "initializer_range": 0.04,
    }
    return BackboneConfig(**{**values, **changes})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small BERT as the library saves it."""
    textbook.language_model(dropout=0.1).float().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def _refused(source: Path | str, match: str) -> None:
    """Every way of loading ``source`` refuses it in one line that names it."""
    ways = (
        lambda: load_masked_language_model(source, textbook.vocabulary()),
        lambda: masked_language_model(_config(name=str(source)), textbook.vocabulary(), seed=0),
        lambda: load_condenser(Path(source), textbook.vocabulary(), 1, None, True, None),
        lambda: load_encoder(Path(source)),
        lambda: load_biencoder(Path(source)),
    )
    for way in ways:
        with pytest.raises(UserError, match=match) as raised:
            way()
        assert str(source) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    _refused(tmp_path / "nowhere", "load")


def test_a_folder_without_a_checkpoint_is_one_line(tmp_path: Path) -> None:
    _refused(tmp_path, "load")


def test_a_model_of_another_family_is_one_line(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=60, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    _refused(tmp_path / "gpt2", 'model_type is "gpt2"; use one of the families bert, roberta, xlm-roberta')


@pytest.mark.parametrize("damage", ["cut", "emptied", "other sizes", "config is no JSON"])
def test_a_damaged_checkpoint_is_one_line(checkpoint: Path, damage: str) -> None:
    weights, config = checkpoint / "model.safetensors", checkpoint / "config.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "emptied":
        weights.write_bytes(b"")
    elif damage == "other sizes":
        config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_size": 32}))
    else:
        config.write_text("{")
    said = {
        "other sizes": r"\d+ of another shape \(\S+ 16 instead of 32",
        "config is no JSON": r"config\.json: not valid JSON",
    }
    _refused(checkpoint, said.get(damage, "load"))


class Poison:
    """What leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_of_pickled_weights_tensors_alone_are_read(checkpoint: Path, tmp_path: Path) -> None:
    saved = textbook.language_model(dropout=0.1).float().state_dict()
    (checkpoint / "model.safetensors").unlink()
    torch.save(saved, checkpoint / "pytorch_model.bin")
    found = load_masked_language_model(checkpoint, textbook.vocabulary()).state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in found.items())
    torch.save({**saved, "x": Poison(tmp_path / "trace")}, checkpoint / "pytorch_model.bin")
    _refused(checkpoint, "load")
    assert not (tmp_path / "trace").exists()


def test_a_folder_in_the_home_folder_counts_by_its_content(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    named = f"~/{checkpoint.name}"
    config, whole = _config(name=named, tokenizer=named), _config(name=str(checkpoint), tokenizer=str(checkpoint))
    before = config.fingerprint()
    assert before == whole.fingerprint()
    (checkpoint / "pytorch_model.bin").write_bytes(b"other weights")
    assert config.fingerprint() == whole.fingerprint() != before


def test_the_manifest_of_an_artifact_does_not_count(checkpoint: Path) -> None:
    named = {"name": str(checkpoint), "tokenizer": str(checkpoint)}

    def identities() -> tuple[str, list[str], list[str]]:
        tokens = TokenizerConfig(name=str(checkpoint), vocab_size=100)
        return _config(**named).fingerprint(), tokens.identity(), content_of_model(str(checkpoint), "model")

    before = identities()
    (checkpoint / "manifest.json").write_text('{"wall_seconds": 3.1}')
    assert identities() == before
    (checkpoint / "config.json").write_text("{}")
    assert all(new != old for new, old in zip(identities(), before, strict=True))


def test_pickled_weights_count_by_their_content(checkpoint: Path) -> None:
    config = _config(name=str(checkpoint))
    before = config.fingerprint()
    (checkpoint / "pytorch_model.bin").write_bytes(b"one")
    with_bin = config.fingerprint()
    (checkpoint / "pytorch_model.bin").write_bytes(b"two")
    assert len({before, with_bin, config.fingerprint()}) == 3


@pytest.mark.parametrize("model_type", ["bert", "evil"])
def test_code_that_a_checkpoint_brings_along_is_not_run(checkpoint: Path, tmp_path: Path, model_type: str) -> None:
    trace = tmp_path / "trace"
    (checkpoint / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((checkpoint / "config.json").read_text())
    classes = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoTokenizer": ["evil.Model", "evil.Model"]}
    changed = {**config, "model_type": model_type, "auto_map": classes}
    (checkpoint / "config.json").write_text(json.dumps(changed))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": classes}))
    if model_type == "bert":  # the library has a class of its own
        load_encoder(checkpoint)
        load_masked_language_model(checkpoint, textbook.vocabulary())
    else:
        _refused(checkpoint, 'model_type is "evil"')
        with pytest.raises(UserError, match=r'stages\.x: .*model_type is "evil"'):
            load_generator(checkpoint, "stages.x")
    with pytest.raises(UserError, match=r"no tokenizer in this folder can be read|has no fast tokenizer|has no"):
        load_tokenizer(checkpoint)
    assert not trace.exists()


def test_a_vocabulary_larger_than_the_model_is_one_line(checkpoint: Path) -> None:
    load_masked_language_model(checkpoint, textbook.vocabulary(60))
    with pytest.raises(
        UserError, match=r"knows 60 tokens, but the tokenizer has 61; use .* \(backbone\.tokenizer\)"
    ) as raised:
        load_masked_language_model(checkpoint, textbook.vocabulary(61))
    assert "\n" not in str(raised.value)


def test_a_checkpoint_keeps_its_weights_and_its_dropout_unless_another_is_asked_for(checkpoint: Path) -> None:
    saved = textbook.language_model(dropout=0.1).float().state_dict()
    kept = masked_language_model(_config(name=str(checkpoint)), textbook.vocabulary(), seed=0)
    assert all(torch.equal(value, saved[name]) for name, value in kept.state_dict().items())
    assert kept.config.hidden_dropout_prob == kept.config.attention_probs_dropout_prob == 0.1
    changed = masked_language_model(_config(name=str(checkpoint), dropout=0.0), textbook.vocabulary(), seed=0)
    assert changed.config.hidden_dropout_prob == changed.config.attention_probs_dropout_prob == 0.0
    assert load_encoder(checkpoint, dropout=0.3).model.config.hidden_dropout_prob == 0.3


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_from_scratch_has_the_sizes_asked_for_and_is_a_function_of_the_seed(family: str) -> None:
    config = _config(family=family)
    one, again, other = (masked_language_model(config, textbook.vocabulary(), seed) for seed in (1, 1, 2))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in one.state_dict().items())
    layer = one.base_model.encoder.layer[0]
    assert not torch.equal(layer.output.dense.weight, other.base_model.encoder.layer[0].output.dense.weight)
    assert len(one.base_model.encoder.layer) == 2
    assert tuple(layer.intermediate.dense.weight.shape) == (32, 16)
    assert float(layer.intermediate.dense.weight.detach().std()) == pytest.approx(0.04, rel=0.15)
    assert one.config.vocab_size == textbook.SIZE
    ids = torch.full((1, 30), 7)  # all of max_positions, in both families
    assert one(input_ids=ids).logits.shape == (1, 30, textbook.SIZE)


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        _config(hidden=16, heads=3)
