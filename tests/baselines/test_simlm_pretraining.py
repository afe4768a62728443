"""SimLM's pre-training: what is replaced and by what, the losses and gradients of the paper, kills, and the stage."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from safetensors import safe_open
from slow import slow_except
from torch import Tensor, nn
from transformers import BertForSequenceClassification, ElectraConfig, ElectraForMaskedLM

from condensery import UserError, check_gradients
from condensery.baselines.simlm.replacing import SimlmModule, TokenReplacer, load_replacing_model
from condensery.losses.gradient_cache import backpropagate
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.system.files import read_json
from condensery.tokens.batches import Chunk
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.span_batches import ContextMasking, SpanBatches
from condensery.training.loop import fit

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir

PREDICT: Any = pytest.mark.parametrize("predict", ["all", "replaced"])


def batches(folder: Path, **changes: Any) -> SpanBatches:
    return trainings.span_batches(folder, pairs=False, context=ContextMasking("same", True, 0.3), **changes)


def replacer(predict: Any = "all") -> TokenReplacer:
    """The generator has other weights than the encoder, and dropout that must not be used."""
    model = textbook.perturbed(textbook.language_model(layers=1, dropout=0.4).float(), 0.5)
    return TokenReplacer(model, textbook.vocabulary(), predict)


def module(predict: Any = "all", dropout: float = 0.0, **changes: Any) -> SimlmModule:
    model = MaskedAutoEncoder(textbook.language_model(dropout=dropout).float(), DecoderShape("masked", 2), "last")
    textbook.perturbed(model.decoder)
    return SimlmModule(model, replacer(predict), mlm_weight=0.7, **trainings.optimiser(**changes))


def original(chunk: Chunk) -> Tensor:
    """The ids (b, t) before masking."""
    ids = chunk.input_ids.clone()
    ids.view(-1)[chunk.masked] = chunk.targets
    return ids


@PREDICT
def test_the_masked_tokens_are_replaced_and_for_the_decoder_further_ones(predict: Any, tmp_path: Path) -> None:
    made, changed = replacer(predict), 0
    for chunk in batches(tmp_path).batch(0).chunks:
        ids, read = original(chunk), made(chunk)
        torch.testing.assert_close(ids, original(chunk.context), rtol=0, atol=0)
        own = torch.zeros(ids.numel(), dtype=torch.bool).index_fill(0, chunk.masked, True).view_as(ids)
        both = own.flatten().index_fill(0, chunk.context.masked, True).view_as(ids)
        assert own.sum() < both.sum()
        ordinary = torch.from_numpy(~textbook.vocabulary().is_special)[ids]
        for one, replaced in ((read, own), (read.context, both)):
            assert torch.equal(one.input_ids[~replaced], ids[~replaced])
            changed += int((one.input_ids[replaced] != ids[replaced]).sum())
            expected = ordinary if predict == "all" else replaced
            assert one.masked.tolist() == expected.flatten().nonzero()[:, 0].tolist()
            assert torch.equal(one.targets, ids.flatten()[one.masked])
        assert made.predicted(chunk) == (len(read.masked), len(read.context.masked))
        again = read.context.input_ids[own] != read.input_ids[own]
        assert again.any(), "the decoder's tokens are drawn anew"
    assert changed > 20


def test_tokens_are_drawn_from_the_models_distribution_with_all_masked_at_once() -> None:
    made, rows = replacer(), 6000
    ids = torch.tensor([[textbook.CLS, 9, 17, 30, 44, textbook.SEP]])
    places = torch.tensor([2, 4])
    chunk = Chunk(ids.repeat(rows, 1), torch.full((rows,), 6), torch.arange(rows))
    masked = ids.clone()
    masked[0, places] = textbook.MASK
    with torch.no_grad():
        odds = made.model(input_ids=masked, attention_mask=torch.ones_like(masked)).logits[0, places].softmax(dim=1)
    asked: list[Tensor] = []
    made.model.register_forward_pre_hook(lambda _, __, given: asked.append(given["input_ids"]), with_kwargs=True)
    torch.manual_seed(0)
    drawn = made.drawn(chunk, (torch.arange(rows)[:, None] * 6 + places).flatten()).view(rows, 2)
    for column, expected in enumerate(odds):
        found = torch.bincount(drawn[:, column], minlength=textbook.SIZE) / rows
        assert float((found - expected).abs().sum()) / 2 < 0.05
        assert float((expected - 1 / textbook.SIZE).abs().sum()) / 2 > 0.3, "or this shows nothing"
    assert torch.equal(torch.cat(asked), masked.expand(rows, -1))


def padded(parts: list[Chunk], predicted: bool, of: list[Chunk]) -> tuple[Tensor, Tensor, Tensor]:
    """What was read, row by row: ids, attention mask, and as labels the original ids of what is predicted."""
    number, width = sum(map(len, parts)), max(part.input_ids.shape[1] for part in parts)
    ids, attention = torch.full((number, width), textbook.PAD), torch.zeros(number, width, dtype=torch.long)
    labels = torch.full((number, width), -100)
    ordinary = torch.from_numpy(~textbook.vocabulary().is_special)
    for part, given in zip(parts, of, strict=True):
        right, places = original(given), set(given.masked.tolist())
        for at, (row, length) in enumerate(zip(part.rows.tolist(), part.lengths.tolist(), strict=True)):
            ids[row, :length], attention[row, :length] = part.input_ids[at, :length], 1
            for place in range(length):
                flat = at * right.shape[1] + place
                if ordinary[right[at, place]] if predicted else flat in places:
                    labels[row, place] = right[at, place]
    return ids, attention, labels


@PREDICT
def test_losses_and_gradients_through_chunks_equal_the_papers(predict: Any, tmp_path: Path) -> None:
    """Wang et al. 2023, §3.1: L = L_enc + L_dec over the replaced texts, here read all at once and padded."""
    batch, made = batches(tmp_path, budget=20).batch(0), module(predict).double()
    read: list[Chunk] = []
    made.replacer.register_forward_hook(lambda _, __, chunk: read.append(chunk))
    plain = copy.deepcopy(nn.ModuleDict({"language_model": made.model.language_model, "decoder": made.model.decoder}))
    losses = backpropagate(made.objective(batch)[0], batch.chunks, None)
    assert len(read) == len(batch.chunks) > 2
    every, given = predict == "all", list(batch.chunks)
    own = padded(read, every, given)
    both = [  # the decoder's replaced tokens: its own, and the encoder's
        Chunk(original(one), one.lengths, one.rows, places, original(one).flatten()[places])
        for one in given
        for places in [torch.tensor(sorted({*one.masked.tolist(), *one.context.masked.tolist()}))]
    ]
    others = padded([one.context for one in read], every, both)
    found = textbook.autoencoder(plain["language_model"], list(plain["decoder"]), "masked", own, others)
    late = 0.7 * found.late.sum() / int((own[2] != -100).sum())
    context = found.context.sum() / int((others[2] != -100).sum())
    assert float(losses["mlm_late"]) == pytest.approx(float(late.detach()), rel=1e-11)
    assert float(losses["mlm_context"]) == pytest.approx(float(context.detach()), rel=1e-11)
    (late + context).backward()
    ours = nn.ModuleDict({"language_model": made.model.language_model, "decoder": made.model.decoder})
    assert textbook.worst(textbook.gradients(ours), textbook.gradients(plain)) < 1e-9
    assert all(weight.grad is None for weight in made.replacer.parameters())


@pytest.mark.parametrize("predict", slow_except(["all", "replaced"], "replaced"))
def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(predict: Any, tmp_path: Path) -> None:
    made = module(predict, dropout=0.2).train()
    report = check_gradients(made, batches(tmp_path))
    assert report, report
    assert any("with dropout" in outcome.setting for outcome in report.outcomes)

    def next_token(chunk: Chunk, masked: Tensor) -> Tensor:
        return chunk.input_ids.flatten()[masked] % (textbook.SIZE - 6) + 6

    made.replacer.drawn = next_token  # type: ignore[method-assign]  # draws would differ between processes
    report = check_gradients(made, batches(tmp_path), processes=2)
    assert report, report
    assert any("2 processes" in outcome.setting for outcome in report.outcomes)


@pytest.mark.slow
def test_the_generator_stays_as_it_is_and_a_stopped_run_ends_bit_identical(tmp_path: Path) -> None:
    before = module(dropout=0.1)
    whole = trainings.check_stopped_run(lambda: (module(dropout=0.1), StepDataModule(batches(tmp_path))), tmp_path)
    assert isinstance(whole, SimlmModule)
    assert not whole.train().replacer.model.training
    for (name, one), other in zip(whole.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other) == name.startswith("replacer."), name


@pytest.mark.slow
def test_it_learns_what_was_replaced(tmp_path: Path) -> None:
    def loss(steps: int) -> float:
        made, settings = module(learning_rate=1e-2), trainings.loop(steps=steps, checkpoint_every=0, validate_every=0)
        return fit(made, StepDataModule(batches(tmp_path)), settings, tmp_path / str(steps), "x")["train/loss"]

    assert loss(80) < 0.85 * loss(1)


def electra(folder: Path, size: int = textbook.SIZE) -> Path:
    """A generator of another family, whose vectors of tokens have other dimensions than its states."""
    sizes = {"embedding_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = ElectraConfig(vocab_size=size, intermediate_size=8, max_position_embeddings=40, pad_token_id=1, **sizes)
    ElectraForMaskedLM(config).save_pretrained(folder)
    return folder


def test_a_generator_of_electra_is_read_from_its_folder_and_others_are_one_line(tmp_path: Path) -> None:
    vocabulary = textbook.vocabulary()
    found = load_replacing_model(electra(tmp_path / "electra"), vocabulary, None, "here")
    other = ElectraForMaskedLM.from_pretrained(tmp_path / "electra").eval()
    ids = torch.tensor([[0, 7, textbook.MASK, 9, 2]])
    torch.testing.assert_close(found.eval()(input_ids=ids).logits, other(input_ids=ids).logits)
    read = TokenReplacer(found, vocabulary)(batches(tmp_path).batch(0).chunks[0])
    assert read.input_ids.max() < textbook.SIZE
    with pytest.raises(UserError, match=r"few: the model knows 50 tokens, but the tokenizer has 60"):
        load_replacing_model(electra(tmp_path / "few", 50), vocabulary, None, "here")
    BertForSequenceClassification(textbook.language_model().config).save_pretrained(tmp_path / "classifier")
    with pytest.raises(UserError, match=r"^.*classifier: its tensors are not those .* missing"):
        load_replacing_model(tmp_path / "classifier", vocabulary, None, "here")
    with pytest.raises(UserError, match=r"^.*nowhere: cannot be loaded \(no such folder"):
        load_replacing_model(tmp_path / "nowhere", vocabulary, None, "here")


FEW = [
    f"++stage.{kind}.{key}"
    for kind in ("pretrain_mlm", "pretrain_simlm", "finetune")
    for key in ("steps=2", "batch_size=6")
]


@pytest.mark.slow
def test_the_recipe_runs_to_its_table_and_the_generator_is_not_saved(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *FEW]
    done = run_command("experiment=simlm_pretraining", *given).sound()
    found = metrics_of(done.folder)
    assert list(found) == ["BM25", "warm start", "MLM", "SimLM"]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    folder = (done.folder / "stages" / "simlm").resolve()
    assert read_json(folder / "manifest.json")["metrics"]["steps"] == 2
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as stored:
            assert not [name for name in stored.keys() if "replacer" in name]  # noqa: SIM118
    # a generator in a folder enters the id by its content
    named = ["stages.simlm.generator=null", f"stages.simlm.generator_name={done.folder / 'stages' / 'mlm'}"]
    plan = [*given, *named, "dry_run=plan"]
    first = run_command("experiment=simlm_pretraining", *plan).sound().out
    moved = tmp_path / "moved"
    moved.symlink_to((done.folder / "stages" / "mlm").resolve())
    plan[-2] = f"stages.simlm.generator_name={moved}"
    assert run_command("experiment=simlm_pretraining", *plan).sound().out == first
    again = run_command("experiment=simlm_pretraining", *given).sound()
    assert again.computed == [], "all is there already"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stages.simlm.generator=null", "give either generator or generator_name"),
        ("++stages.simlm.generator_name=a/b", "give either generator or generator_name"),
        (
            "stages.simlm.generator=warm_tuned",
            "generator: warm_tuned is no masked language model; name a stage of kind",
        ),
        ("++stages.simlm.decoder_mask_rate=0.3", "decoder_mask_rate: 0.3 must be above mask_rate=0.3"),
        ("++stages.simlm.predict=some", "predict"),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=simlm_pretraining", given)
