"""Small stages with the products of the real ones, known through CONDENSERY_STAGES: what the tests here run."""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from condensery.errors import UserError
from condensery.randomness import hash64
from condensery.sharing import NotRankZero
from condensery.stages.base import Context, Input, Operational, StageConfig
from condensery.stages.registry import stage
from condensery.system.files import atomic, content_hash, read_json, write_json

RAN = "TOY_LOG"  # environment variable: a file that gets a line each time a stage function starts
STOP = "TOY_STOP"  # environment variable: the stages that fail, or `stage:step`
FULL = "TOY_FULL"  # environment variable: the stage that finds the disk full


def ran(context: Context) -> None:
    """Note that the stage was computed; fail where the environment says so."""
    if os.environ.get(RAN):
        with open(os.environ[RAN], "a", encoding="utf-8") as stream:
            threads, process = os.environ.get("OMP_NUM_THREADS"), os.getpid()
            stream.write(f"{context.stage_name} {context.runtime.threads} {threads} {process}\n")
    if os.environ.get(FULL) == context.stage_name:
        raise OSError(errno.ENOSPC, "full", "/full")
    stop(context.stage_name)


def stop(place: str) -> None:
    """Fail at this place if the environment says so."""
    if place in os.environ.get(STOP, "").split():
        raise UserError(f"stopped at {place}")


class ToyBackbone(BaseModel):
    """Stands for the backbone group."""

    model_config = {"extra": "forbid"}
    size: Annotated[int, Field(gt=0)]
    depth: int


class ToyData(BaseModel):
    """Stands for the data group."""

    model_config = {"extra": "forbid"}
    format: str
    root: Path

    def fingerprint(self) -> str:
        """By content, wherever it lies."""
        if not self.root.exists():
            raise UserError(f"{self.root}: no such file")
        return content_hash(self.root)


class Corpus(StageConfig):
    data: ToyData
    workers: Annotated[int, Operational()]


@stage("toy_corpus", version=1, makes="corpus")
def corpus(config: Corpus, context: Context) -> dict[str, Any]:
    """Copies the text; lines that begin with "warning: " are what it warns of."""
    ran(context)
    text = config.data.root.read_text()
    (context.folder / "text.txt").write_text(text)
    write_json(context.folder / "collection.json", {"name": "toys"})
    found = [line.removeprefix("warning: ") for line in text.splitlines() if line.startswith("warning: ")]
    return {"characters": len(text), "warnings": found}


class Train(StageConfig):
    corpus: Annotated[str, Input("corpus")]
    init: Annotated[str, Input("encoder", literal=("backbone",))]
    negatives: Annotated[list[str], Input("negatives")]
    backbone: ToyBackbone
    learning_rate: Annotated[float, Field(gt=0)]
    steps: Annotated[int, Field(gt=0)]
    seed: int
    fail: str | None
    pause: Annotated[float, Operational()]


@stage("toy_train", version=1, makes="encoder")
def train(config: Train, context: Context) -> dict[str, Any]:
    """A chain of hashes, a checkpoint each step; goes on from the last one."""
    ran(context)
    if config.fail == "user":
        raise UserError("text.txt:3: this text is not to be trained on")
    if config.fail == "bug":
        raise ZeroDivisionError("a fault of ours")
    if config.fail == "gpu":
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported at some other call")
    if config.fail == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint = context.folder / "checkpoint.json"
    parents = [content_hash(path / "weights.json") for path in context.inputs("init")]
    parents += [content_hash(path / "negatives.json") for path in context.inputs("negatives")]
    state = {
        "step": 0,
        "value": hash64(config.seed, config.backbone.size, config.backbone.depth, *parents),
        "losses": [],
    }
    if checkpoint.exists():
        state = read_json(checkpoint)
    while state["step"] < config.steps:
        state["step"] += 1
        state["value"] = hash64(state["value"], state["step"])
        state["losses"].append(1 / state["step"])
        write_json(checkpoint, state)
        stop(f"{context.stage_name}:{state['step']}")
        time.sleep(config.pause)
    write_json(context.folder / "weights.json", state["value"])
    checkpoint.unlink()
    logs = context.folder / "logs"
    logs.mkdir(exist_ok=True)
    lines = "".join(f"{step},{loss}\n" for step, loss in enumerate(state["losses"], 1))
    (logs / "metrics.csv").write_text("step,loss\n" + lines)
    return {"loss": state["losses"][-1], "queries": 100 * config.steps}


class Bm25(StageConfig):
    corpus: Annotated[str, Input("corpus")]


@stage("toy_bm25", version=1, makes="index")
def bm25(config: Bm25, context: Context) -> dict[str, Any]:
    """Stands for an index that needs no encoder."""
    ran(context)
    write_json(context.folder / "index.json", {"method": "bm25"})
    return {}


class Encode(StageConfig):
    model: Annotated[str, Input("encoder")]
    corpus: Annotated[str, Input("corpus")]
    shard_size: Annotated[int, Operational()]


@stage("toy_encode", version=1, makes="index", adapts="model")
def encode(config: Encode, context: Context) -> dict[str, Any]:
    """Stands for a dense index."""
    ran(context)
    write_json(
        context.folder / "index.json", {"method": "dense", "of": read_json(context.input("model") / "weights.json")}
    )
    return {}


class Mine(StageConfig):
    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]


@stage("toy_mine", version=1, makes="negatives")
def mine(config: Mine, context: Context) -> dict[str, Any]:
    """Stands for mining."""
    ran(context)
    write_json(
        context.folder / "negatives.json", [content_hash(context.input("retriever") / "index.json"), config.depth]
    )
    return {}


class Evaluate(StageConfig):
    index: Annotated[str, Input("index")]
    split: str
    metrics: list[str]


@stage("toy_evaluate", version=1, makes="evaluation", adapts="index")
def evaluate(config: Evaluate, context: Context) -> dict[str, Any]:
    """Metrics that are a function of the index alone."""
    import numpy as np

    from condensery.evaluation.metrics import Evaluation

    ran(context)
    content = content_hash(context.input("index") / "index.json")
    queries = [str(number) for number in range(30)]
    scores = {m: np.array([hash64(content, m, q) % 1000 / 1000 for q in queries]) for m in config.metrics}
    found = Evaluation(queries, scores)
    found.save(context.folder / "evaluation.npz")
    write_json(context.folder / "metrics.json", {"metrics": found.metrics})
    return found.metrics


class Together(StageConfig):
    act: str


def _jobs_before(folder: Path, rank: int) -> int:
    """How many jobs of this stage there were; all but the third leave a checkpoint."""
    mine = folder / "jobs" / str(rank)
    mine.mkdir(parents=True, exist_ok=True)
    before = len(list(mine.iterdir()))
    (mine / str(before)).touch()
    if not rank and before != 2:
        (folder / "checkpoints").mkdir(exist_ok=True)
        for old in (folder / "checkpoints").iterdir():
            old.unlink()
        (folder / "checkpoints" / f"step={before}.ckpt").touch()
    return before


@stage("toy_together", version=1, makes="encoder", together=True)
def together(config: Together, context: Context) -> dict[str, Any]:
    """What several processes compute: each leaves its number and, when all have, acts as it is told."""
    member = context.runtime.distributed
    if member is None:
        return {"processes": 1}
    print(f"process {member.rank} at work", flush=True)
    with atomic(context.folder / f"{member.rank}.txt") as temporary:
        temporary.write_text(f"{os.getpid()} {context.runtime.threads}")
    while len(list(context.folder.glob("?.txt"))) < member.processes:
        time.sleep(0.01)
    if config.act == "all fail" or (config.act == "one fails" and member.rank):
        raise UserError("text.txt:3: this text is not to be trained on")
    if config.act == "a fault of ours" and member.rank:
        raise ZeroDivisionError("a fault of ours")
    if config.act == "one dies" and member.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.act == "reach the time limit" and _jobs_before(context.folder, member.rank) < 3:
        os.kill(os.getpid(), signal.SIGUSR2)
    if config.act == "no result":
        raise NotRankZero
    if config.act not in ("go well", "reach the time limit"):
        time.sleep(300)
    if member.rank:
        raise NotRankZero
    write_json(context.folder / "weights.json", member.processes)
    return {"processes": member.processes, "local": member.local_processes}


class Shared(StageConfig):
    queries: int


def more_than_two_queries(config: Shared, context: Context) -> bool:
    """Whether sharing pays."""
    return config.queries > 2


@stage("toy_shared", version=1, makes="ranking", together="more_than_two_queries")
def shared(config: Shared, context: Context) -> dict[str, Any]:
    """A search whose shards, of two queries, several processes share; each leaves its number where it searched."""
    import numpy as np

    from condensery.retrieval.ranking import pack, top, unpack
    from condensery.retrieval.runs import Run
    from condensery.retrieval.shards import rank_in_shards
    from condensery.stages.sharing import process_group

    group = process_group(context.runtime)
    passages = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)

    def rank(rows: Any, task: Any) -> Any:
        with open(context.folder.parent / f"searched-{group.rank}.txt", "a") as lines:
            lines.write(f"{rows.tolist()}\n")
        return unpack(top(pack(passages[rows] @ passages.T, np.arange(50)), 5))

    rank_in_shards(rank, np.arange(config.queries), context.folder, "toy", size=2, group=group)
    group.leave_unless_rank_zero()
    return {"queries": len(Run.mapped(context.folder).query_rows)}
