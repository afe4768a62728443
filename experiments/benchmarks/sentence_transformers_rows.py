"""Train a released retriever with sentence-transformers' own trainer, for rows to compare at equal CPU-seconds.

    python experiments/benchmarks/sentence_transformers_rows.py checkpoint=MODEL data=DIR budget=SECONDS out=FOLDER \
        [method=mnrl] [seed=1] [batch=] [rate=] [length=] [precision=auto] [threads=] [miner=] \
        [candidates=positives] [relative_margin=] [unit=sentence]

MODEL is a folder or a name on the hub. DIR is a folder in the BEIR layout, or stages/corpus in the folder of a run with data
in any format. Training reads the split train, without the dev queries that a run holds out of it. A query with several
positives gives several pairs. A passage is its title, a space and its text. The methods:

    mnrl         MultipleNegativesRankingLoss on pairs of a query and a positive
    mnrl_hard    the same loss on triplets, which mine_hard_negatives makes from the pairs. ``miner`` is the model that mines:
                 a folder or hub name, such as a checkpoint of mnrl; empty: MODEL
    tsdae        DenoisingAutoEncoderLoss on text alone, with the decoder tied to the encoder
    simcse       MultipleNegativesRankingLoss on text alone, where each text is its own positive

These settings are from the library's documentation (training_overview.md; the examples for TSDAE and SimCSE). Pairs and
triplets are in batches of 16 without duplicates, at a learning rate of 2e-5. tsdae has batches of 8 at 3e-5, and simcse of
128 at 5e-5. Warm-up takes a tenth of the training, and the decay is linear. Text is split into sentences. Of each, tsdae
reads 75 tokens and simcse 32. These settings are from the library's code: AdamW, gradients clipped to norm 1, and cosines
times 20. For each pair, the negatives are the 3 best among the positives of all queries, whatever their scores. Chosen
here:

- Training ends with the step in which ``budget`` CPU-seconds are used. Warm-up and decay follow the CPU-seconds.
- Training and mining are in bf16 if the processor has it (``precision``). The trainer leaves the decoder of tsdae in fp32.
- Pairs and triplets are truncated to MODEL's length, which the checkpoint keeps. All inputs have MODEL's prompts.
- tsdae deletes 60 % of the words, as in its paper and DenoisingAutoEncoderDataset (the example: 40 %). Words end at spaces.

``batch``, ``rate`` (the learning rate) and ``length`` (in tokens) set other values. ``candidates=passages`` mines among all
passages. ``relative_margin=0.05`` excludes passages that score nearly as high as the positive. ``unit=passage`` reads whole
passages as text. If ``threads`` is empty, torch chooses the number. On a machine that does other work, set threads=1, and
trainer.threads=1 for this project: threads that wait for each other use CPU-seconds (11 per step instead of 5).

FOLDER becomes a checkpoint. FOLDER.json has the arguments and these figures, which are also printed as one JSON line:

    pairs, texts, triplets            number of pairs, texts and triplets for training
    steps, epochs                     number of steps and epochs
    cpu_seconds, wall_seconds         from the loaded model to the last step, mining included
    mining_cpu_seconds                CPU-seconds of mining
    steps_per_cpu_s, rows_per_cpu_s   without mining; a row is a pair, a triplet or a text
    peak_mb                           peak of this process's resident memory, libraries included (Linux)

The checkpoint as a row in a table of this project:

    python run.py experiment=adapt data=beir data.root=DIR backbone.name=MODEL \
        '+stages.st={stage: retriever, folder: FOLDER}' '+table.rows.sentence-transformers=st'
"""

import importlib.metadata
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, get_args

import torch
from annotated_types import Ge
from large_collection import high_water
from sizes import given, mixed

from condensery.errors import UserError, close_to, of_the_disk
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import vector_settings
from condensery.models.checkpoints.weights import quiet, readable
from condensery.ranges import Count, CountOrZero, Length, Positive, Weight, fault
from condensery.system.files import atomic, expanded, write_json
from condensery.system.processor import quick_precision
from condensery.text.collection import DESCRIPTION, Collection
from condensery.text.to_collection import collection_of
from condensery.tokens.grouping import sentences

EMPTY = ("checkpoint", "data", "budget", "out", "batch", "rate", "length", "threads", "miner", "relative_margin")
DEFAULTS = dict.fromkeys(EMPTY, "") | {
    "method": "mnrl",
    "seed": "1",
    "precision": "auto",
    "candidates": "positives",
    "unit": "sentence",
}
METHODS: dict[str, dict[str, Any]] = {
    "mnrl": {"batch": 16, "rate": 2e-5},
    "mnrl_hard": {"batch": 16, "rate": 2e-5},
    "tsdae": {"batch": 8, "rate": 3e-5, "length": 75},
    "simcse": {"batch": 128, "rate": 5e-5, "length": 32},
}
CHOICES = {
    "method": METHODS,
    "precision": ("auto", "fp32", "bf16"),
    "candidates": ("positives", "passages"),
    "unit": ("sentence", "passage"),
}
NUMBERS = {
    "budget": Positive,
    "seed": CountOrZero,
    "batch": Annotated[int, Ge(2)],
    "rate": Positive,
    "length": Length,
    "threads": Count,
    "relative_margin": Weight,
}
WARM_UP, DELETED = 0.1, 0.6
ENDLESS = 10**9  # steps: the budget ends the training earlier
NEEDED = ("accelerate", "datasets", "sentence_transformers.sentence_transformer")  # the last one: since version 6


class Budget:
    """CPU-seconds of all threads of this process, from when it is made."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start, self.clock = seconds, time.process_time(), time.monotonic()
        self.mining = 0.0  # CPU-seconds used before the first step

    @property
    def used(self) -> float:
        """Return the CPU-seconds until now."""
        return time.process_time() - self.start

    def share_of_rate(self, step: int) -> float:
        """Return the learning rate over its peak. It rises in the first tenth of the budget after mining, and ends at 0."""
        done = min(1.0, (self.used - self.mining) / (self.seconds - self.mining))
        return done / WARM_UP if done < WARM_UP else (1 - done) / (1 - WARM_UP)


def options(words: dict[str, str]) -> dict[str, Any]:
    """Return the values of the arguments, None for empty arguments. Raises ``UserError`` for a wrong argument."""
    found: dict[str, Any] = {key: word or None for key, word in words.items()}
    if missing := [key for key in ("checkpoint", "data", "budget", "out") if found[key] is None]:
        raise UserError(f"{missing[0]} is not given; add {missing[0]}=...")
    for key, known in CHOICES.items():
        if found[key] not in known:
            raise UserError(f"{key}={words[key]}: there is no such value{close_to(words[key], known)}")
    for key in NUMBERS:
        if found[key] is not None:
            found[key] = number(key, found[key])
    found |= {key: value for key, value in METHODS[found["method"]].items() if found[key] is None}
    if found["precision"] == "auto":
        found["precision"] = quick_precision("cpu")
    found["out"] = expanded(found["out"]).absolute()
    for path in (found["out"], beside(found["out"])):
        if path.exists():
            raise UserError(f"{path}: it is there already; delete it, or give another out")
    return found


def number(key: str, word: str) -> float:
    """Return the number in an argument. Raises ``UserError`` if it is not a number, or is out of range."""
    kind, *_ = get_args(NUMBERS[key])
    try:
        value = kind(word)
    except ValueError:
        value = word
    if wanted := fault(NUMBERS[key], value):
        raise UserError(f"{key} must be a {wanted}, not {word}")
    return value


def beside(checkpoint: Path) -> Path:
    """Return the JSON file of a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}.json")


def check_libraries() -> None:
    """Raise ``UserError`` if a library that the trainer needs is not installed."""
    for name in NEEDED:
        try:
            there = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            there = None
        if there is None:
            what = "sentence-transformers 6" if "." in name else name
            raise UserError(f"{what} is not installed; pip install 'sentence-transformers[train]>=6'")


def collection_in(data: str) -> Collection:
    """Return the collection of the stage ``corpus``, or of a folder in a known layout; else raise ``UserError``."""
    folder = expanded(data)
    return Collection(folder) if (folder / DESCRIPTION).is_file() else collection_of(folder)


def columns_of(collection: Collection, wanted: dict[str, Any]) -> dict[str, list[str]]:
    """Return the training data by column: queries and positives, or texts. Raises ``UserError`` if no query is judged."""
    if wanted["method"] in ("mnrl", "mnrl_hard"):
        positives = collection.qrels("train").positives()
        queries = [query for query, rows in positives.items() for _ in rows]
        passages = [row for rows in positives.values() for row in rows.tolist()]
        asked = collection.queries.column("text").take(queries)
        return {"anchor": asked, "positive": collection.passages.full_texts(passages)}
    texts = passages_of(collection)
    if wanted["unit"] == "sentence":
        texts = [text[begin:end] for text in texts for begin, end in sentences(text)]
    texts = list(dict.fromkeys(texts))
    return {"text": texts} if wanted["method"] == "tsdae" else {"text": texts, "again": texts}


def passages_of(collection: Collection) -> list[str]:
    """Return all passages."""
    return collection.passages.full_texts(range(len(collection.passages)))


def loaded(folder: Path) -> Any:
    """Return the model of a folder, in fp32. Raises ``UserError`` if the folder has none."""
    from sentence_transformers import SentenceTransformer

    with readable(folder):
        return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})


def mined(pairs: Any, model: Any, corpus: list[str] | None, wanted: dict[str, Any], budget: Budget) -> Any:
    """Return triplets mined for the pairs, as a data set. Raises ``UserError`` if none are found or no budget is left."""
    from sentence_transformers.util import mine_hard_negatives

    with mixed(wanted["precision"]):
        margin = wanted["relative_margin"]
        found = mine_hard_negatives(pairs, model, corpus=corpus, relative_margin=margin, verbose=False)
    budget.mining = budget.used
    if not len(found):
        raise UserError("mine_hard_negatives left no negative of any query; take a smaller relative_margin")
    if budget.mining >= budget.seconds:
        raise UserError(f"budget={budget.seconds:g}: mining alone took {budget.mining:.0f} CPU-seconds; give more")
    return found


def damaging(seed: int) -> Callable[[dict[str, list[str]]], dict[str, list[str]]]:
    """Return a function that returns each text twice: without three fifths of its words (drawn anew each time), and whole."""
    draw = random.Random(seed)

    def damage(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        damaged = []
        for text in batch["text"]:
            words = text.split()
            damaged.append(" ".join([word for word in words if draw.random() >= DELETED] or [draw.choice(words)]))
        return {"damaged": damaged, "text": batch["text"]}

    return damage


def loss_of(model: Any, method: str) -> Any:
    """Return the training loss. Raises ``UserError`` if the library has no decoder for this kind of model."""
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss, MultipleNegativesRankingLoss

    if method != "tsdae":
        return MultipleNegativesRankingLoss(model)
    try:
        with quiet():  # hides the warning that the decoder has new weights
            return DenoisingAutoEncoderLoss(model).float()
    except ValueError as error:
        raise UserError(f"method=tsdae: {str(error).splitlines()[0]}; take simcse") from None


def train(model: Any, rows: Any, prompts: dict[str, str], wanted: dict[str, Any], budget: Budget, scratch: str) -> Any:
    """Train with the library's trainer until the budget is used. Return the trainer's state at the end."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers import PrinterCallback, TrainerCallback, set_seed

    class Trainer(SentenceTransformerTrainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            schedule: Any = torch.optim.lr_scheduler.LambdaLR
            self.lr_scheduler = schedule(optimizer or self.optimizer, budget.share_of_rate)
            return self.lr_scheduler

    class End(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop = budget.used >= budget.seconds

    set_seed(wanted["seed"])  # the decoder gets random weights
    loss = loss_of(model, wanted["method"])
    if wanted["method"] == "tsdae":
        rows.set_transform(damaging(wanted["seed"]), columns=["text"], output_all_columns=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=scratch,
        per_device_train_batch_size=wanted["batch"],
        learning_rate=wanted["rate"],
        batch_sampler="no_duplicates" if "anchor" in rows.column_names else "batch_sampler",
        prompts=prompts,
        bf16=wanted["precision"] == "bf16",
        seed=wanted["seed"],
        max_steps=ENDLESS,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, loss=loss, callbacks=[End()])
    trainer.remove_callback(PrinterCallback)
    own = model.max_seq_length
    model.max_seq_length = min((length for length in (wanted["length"], own) if length), default=None)
    trainer.train()
    model.max_seq_length = own
    return trainer.state


def make(wanted: dict[str, Any]) -> dict[str, Any]:
    """Write the checkpoint and its JSON file. Return the content of the JSON file."""
    import sentence_transformers.trainer  # noqa: F401 - imported here, so that the budget is for training alone
    from datasets import Dataset

    out: Path = wanted["out"]
    out.parent.mkdir(parents=True, exist_ok=True)
    if wanted["threads"]:
        torch.set_num_threads(wanted["threads"])
    start = checkpoint_folder(wanted["checkpoint"])
    own = vector_settings(start)  # refuses a checkpoint that this project cannot read, before any training
    collection = collection_in(wanted["data"])
    columns = columns_of(collection, wanted)
    corpus = passages_of(collection) if wanted["candidates"] == "passages" else None
    counts = {"pairs" if "anchor" in columns else "texts": len(next(iter(columns.values())))}
    model = loaded(start)
    miner = loaded(checkpoint_folder(wanted["miner"])) if wanted["miner"] else model
    budget, rows = Budget(wanted["budget"]), Dataset.from_dict(columns)
    if wanted["method"] == "mnrl_hard":
        rows = mined(rows, miner, corpus, wanted, budget)
        counts["triplets"] = len(rows)
    prompts = dict.fromkeys((*rows.column_names, "damaged"), own.passage_prefix) | {"anchor": own.query_prefix}
    with TemporaryDirectory() as scratch:
        state = train(model, rows, prompts, wanted, budget, scratch)
    done = {"steps": state.global_step, "epochs": round(state.epoch, 2)}
    result = {
        **wanted,
        "out": str(out),
        **counts,
        **done,
        **figures(state.global_step, state.epoch * len(rows), budget),
    }
    with atomic(out) as folder:
        model.save_pretrained(str(folder), create_model_card=False)
    write_json(beside(out), result)
    return result


def figures(steps: int, rows: float, budget: Budget) -> dict[str, Any]:
    """Time and memory, to be taken when the last step is done."""
    wall, cpu = time.monotonic() - budget.clock, budget.used
    training = cpu - budget.mining
    libraries = ("sentence-transformers", "transformers", "torch")
    return {
        "cpu_seconds": round(cpu, 2),
        "mining_cpu_seconds": round(budget.mining, 2),
        "wall_seconds": round(wall, 2),
        "steps_per_cpu_s": round(steps / training, 3),
        "rows_per_cpu_s": round(rows / training, 1),
        "peak_mb": round(high_water(os.getpid()) / 1024),
        "torch_threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
    }


def main(words: dict[str, str]) -> None:
    """Make the row and print its line."""
    try:
        wanted = options(words)
        check_libraries()
        print(json.dumps(make(wanted)), flush=True)
    except (UserError, OSError) as error:
        sys.exit(f"error: {of_the_disk(error) or error}")


if __name__ == "__main__":
    main(given(__doc__, **DEFAULTS))
