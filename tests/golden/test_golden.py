"""The check against reference numbers: it accepts the shared ones and ones of other sizes, and it notices errors."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import check
import numpy as np
import pytest
import reference
import textbook
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

OTHER = {"layers": 3, "heads": 4, "head_layers": 1, "skip_from": 1, "late_mlm": True, "docs": 5, "chunks": (3, 4, 10)}
NO_LATE = {"layers": 2, "heads": 2, "head_layers": 3, "skip_from": 0, "late_mlm": False, "docs": 3, "chunks": (5,)}


def _config(sizes: dict[str, Any]) -> dict[str, Any]:
    bert = {
        "vocab_size": textbook.SIZE,
        "hidden_size": 24,
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": 40,
        "max_position_embeddings": 30,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-9,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": textbook.PAD,
    }
    shape = {"n_head_layers": sizes["head_layers"], "skip_from": sizes["skip_from"], "late_mlm": sizes["late_mlm"]}
    return {"bert": bert, **shape, "docs": sizes["docs"], "spans": 2 * sizes["docs"], "seq_len": 17}


def _losses(
    model: BertForMaskedLM, head: nn.ModuleList, sizes: dict[str, Any], rows: Any, run: str
) -> dict[str, Tensor]:
    """One reference run in a single pass; ``total`` is what is differentiated."""
    late = sizes["late_mlm"] and run != "condenser_no_late_mlm"
    output = textbook.condenser(model, head, sizes["skip_from"], late, rows)
    labels, spans = rows[2], len(rows[0])
    parts = {"head_mlm": output.head, "late_mlm": output.late}
    if run.startswith("cocondenser_gradcache"):
        size, total = int(run.rsplit("chunk", 1)[1]), textbook.span_contrast(output.cls)
        for first in range(0, spans, size):
            here = slice(first, min(spans, first + size))
            share = (here.stop - here.start) / sizes["docs"] / int((labels[here] != -100).sum())
            total = total + sum(part[here].sum() * share for part in parts.values() if part is not None)
        return {"returned_loss": total, "check_2x_formula": total, "total": total}
    losses = {name: part.sum() / (labels != -100).sum() for name, part in parts.items() if part is not None}
    if run.startswith("cocondenser"):
        losses["contrastive"] = textbook.span_contrast(output.cls)
    return {**losses, "total": sum(losses.values(), torch.zeros(()))}


def _write(folder: Path, sizes: dict[str, Any]) -> Path:
    """A folder of the form of ../shared/golden, computed by the textbook implementation in float64."""
    config = _config(sizes)
    torch.manual_seed(3)
    bert = BertConfig(**config["bert"], attn_implementation="eager")
    model, head = BertForMaskedLM(bert), nn.ModuleList(BertLayer(bert) for _ in range(sizes["head_layers"]))
    both = nn.ModuleDict({"lm": model, "c_head": head}).double().train()
    textbook.perturbed(both, by=0.1)
    lengths = np.random.default_rng(5).integers(6, 18, config["spans"])
    rows = textbook.rows(lengths.tolist(), without=[2]).padded
    inputs = {"input_ids": rows[0], "attention_mask": rows[1], "labels": rows[2]}
    np.savez(folder / "inputs.npz", **{name: value.numpy() for name, value in inputs.items()})
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.clone() for name, value in both.state_dict().items()}, folder / "state_dict.safetensors")
    runs = ["cocondenser_plain", "condenser", *(f"cocondenser_gradcache_chunk{size}" for size in sizes["chunks"])]
    written = {}
    for run in [*runs, "condenser_no_late_mlm"]:
        both.zero_grad()
        losses = _losses(model, head, sizes, rows, run)
        losses["total"].backward()
        written[run] = {name: float(value.detach()) for name, value in losses.items()}
        save_file(textbook.gradients(both), folder / f"grads_{run}.safetensors")
    (folder / "losses.json").write_text(json.dumps(written))
    return folder


def test_the_reference_implementations_numbers_are_reproduced(shared: Path) -> None:
    folder = shared / "golden"
    if not folder.is_dir():
        pytest.skip("the folder ../shared/golden is not here")
    assert check.main(folder) == 0


RUNS = (
    "cocondenser_plain",
    "condenser",
    "condenser_no_late_mlm",
    *(f"cocondenser_gradcache_chunk{n}" for n in (4, 5, 12)),
)


@pytest.mark.parametrize("name", RUNS)
def test_the_reference_numbers_that_stand_in_the_repository_are_reproduced(name: str) -> None:
    """The reference implementation's own numbers, on its weights in 16 bits; needs no folder beside the project."""
    fixture, norms = reference.read(reference.PLACE)
    assert norms.keys() == fixture.losses.keys() == set(RUNS)
    of_losses, of_norms = reference.errors(fixture, name, norms[name])
    assert of_losses < reference.LOSS_TOLERANCE
    assert of_norms < reference.NORM_TOLERANCE


def test_the_numbers_of_the_repository_are_those_of_the_shared_folder(shared: Path, tmp_path: Path) -> None:
    if not (shared / "golden").is_dir():
        pytest.skip("the folder ../shared/golden is not here")
    reference.write(shared / "golden", tmp_path / "reference.json")
    made, kept = (json.loads(path.read_text()) for path in (tmp_path / "reference.json", reference.PLACE))
    for name, norms in kept.pop("gradient_norms").items():
        assert made["gradient_norms"].pop(name) == pytest.approx(norms, rel=1e-12, abs=1e-15)
    assert made == {**kept, "gradient_norms": {}}


@pytest.mark.parametrize("sizes", [OTHER, NO_LATE], ids=["other sizes", "no late MLM, skip from 0"])
def test_a_textbook_implementation_of_other_sizes_is_reproduced(
    sizes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(_write(tmp_path, sizes)) == 0
    printed = capsys.readouterr().out
    for size in sizes["chunks"]:
        assert f"cocondenser_gradcache_chunk{size} " in printed
    assert "worst relative error" in printed


def test_an_error_of_a_millionth_in_one_gradient_or_loss_is_noticed(tmp_path: Path) -> None:
    folder = _write(tmp_path, NO_LATE)
    path = folder / "grads_condenser.safetensors"
    right = load_file(path)
    wrong = {name: value.clone() for name, value in right.items()}
    name = "c_head.1.output.dense.weight"
    wrong[name].view(-1)[wrong[name].abs().argmax()] *= 1 + 1e-6
    save_file(wrong, path)
    assert check.main(folder) == 1
    save_file({other: value for other, value in right.items() if other != name}, path)
    assert check.main(folder) == 1, "a gradient that the reference lacks"
    save_file(right, path)
    losses = json.loads((folder / "losses.json").read_text())
    losses["cocondenser_plain"]["contrastive"] *= 1 + 1e-6
    (folder / "losses.json").write_text(json.dumps(losses))
    assert check.main(folder) == 1


def test_a_loss_that_the_reference_gives_as_zero_because_it_is_off_is_no_error(tmp_path: Path) -> None:
    folder = _write(tmp_path, NO_LATE)
    losses = json.loads((folder / "losses.json").read_text())
    losses["condenser"]["late_mlm"] = 0.0
    (folder / "losses.json").write_text(json.dumps(losses))
    assert check.main(folder) == 0


def test_the_command_explains_itself_without_a_folder_and_names_what_an_empty_one_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [check.__file__])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(check.__file__, run_name="__main__")
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("usage: ")
    assert check.main(tmp_path) == 1
    assert "no config.json, inputs.npz, losses.json, state_dict.safetensors" in capsys.readouterr().out
