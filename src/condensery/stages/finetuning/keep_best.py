"""Stage ``keep_best``: what a training changed is kept where it helps, as much of it as helps; else the start is."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, field_validator

from condensery.reporting.choice import HELD_OUT, choice
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.finetuning.sample import DEV, LEFT_OUT, SampleConfig, judge_of
from condensery.stages.training import Share
from condensery.stages.work import Read, Work, known

FEW = 30  # queries to choose by


class KeepBestConfig(SampleConfig):
    """``start`` and each of ``trained``, in ``shares`` of its weights: the best by MRR@10 of what is asked.

    What was trained is kept where it is better than the start with p below ``level``, and not worse on dev queries.
    ``add_left_out_queries``: to fewer than ``number`` of these, the training queries that no stage of ``trained`` has read
    (``leave_out_dev_passages``).
    """

    start: Annotated[str, Input("encoder")]
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    shares: Annotated[list[Share], Field(min_length=1)]
    level: Annotated[float, Field(gt=0, le=1)]
    add_left_out_queries: bool

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("each share is above 0 and stands once; the start itself is always tried")
        return sorted(shares)

    def by_content(self) -> set[str]:
        """``add_left_out_queries`` came later: where it is false the ids are those of before."""
        return super().by_content() | (set() if self.add_left_out_queries else {"add_left_out_queries"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Queries that were trained on cannot choose."""
        left_out = (getattr(config, "leave_out_dev_passages", True) for config in inputs["trained"])
        if self.add_left_out_queries and not all(left_out):
            wanted = "set leave_out_dev_passages to true where they are trained, or this to false"
            return "add_left_out_queries", f"true, but a stage of `trained` has read these queries; {wanted}"
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """The sample's passages are encoded with the start, and with each candidate whose tower of passages is another."""
        others = sum(not sizes.same_passages for sizes in read.get("trained", ()))
        return self.encoding(known(read), 1 + others * len(self.shares))


@stage("keep_best", version=3, makes="encoder", cost=2.0)
def keep_best(config: KeepBestConfig, context: Context) -> dict[str, Any]:
    """Save the best candidate, and kept.json: what each has, and the p-value of the best against the start."""
    import numpy as np

    from condensery.evaluation.significance import randomisation_test
    from condensery.models.blending import blended
    from condensery.models.checkpoint import SavedRetriever, load_retriever, save_retriever
    from condensery.system.files import write_json

    start = load_retriever(context.input("start"))
    judge = judge_of(config, context, context.input("start"), start, config.add_left_out_queries)
    if judge is None:
        wanted = DEV if config.by == "dev" or config.queries is None else HELD_OUT
        print(f"[{context.stage_name}] there are no {wanted} to choose by: the start is kept", flush=True)
        save_retriever(start, context.folder, context.input("start"))
        nothing = {"by": None, "queries": 0, "kept": "start", "share": 0.0}
        write_json(context.folder / "kept.json", {**nothing, "values": []})
        return nothing
    ranks = {("start", 0.0): judge.first}
    models = {
        name: load_retriever(folder).model
        for name, folder in zip(config.trained, context.inputs("trained"), strict=True)
    }
    for name, model in models.items():
        for share in config.shares:
            found = judge.reciprocal_ranks(blended(start.model, model, share))
            if found is None:
                print(f"[{context.stage_name}] {share:g} of {name}: vectors that are not finite; left out", flush=True)
                continue
            ranks[name, share] = found
    every = {candidate: np.concatenate(found) for candidate, found in ranks.items()}
    means = {candidate: float(values.mean()) for candidate, values in every.items()}
    best = max(means, key=lambda candidate: (means[candidate], -candidate[1]))
    p = randomisation_test(every[best] - every["start", 0.0]) if best[1] else 1.0
    of_each = {
        candidate: {name: float(of_sample.mean()) for name, of_sample in zip(judge.samples, found, strict=True)}
        for candidate, found in ranks.items()
    }
    judged = LEFT_OUT if config.add_left_out_queries else DEV
    worse_on_dev = judged in judge.samples and of_each[best][judged] < of_each["start", 0.0][judged]
    name, share = best if (p < config.level or config.level == 1) and not worse_on_dev else ("start", 0.0)
    kept = blended(start.model, models[name], share) if share else start.model
    save_retriever(
        SavedRetriever(kept, start.query_length, start.passage_length), context.folder, context.input("start")
    )
    queries = len(every[best])
    said = {"by": judge.by, "queries": queries, "kept": name, "share": share, "p": round(p, 6)}
    said["worse_on_dev"] = worse_on_dev
    values = [{"of": of, "share": part, "MRR@10": means[of, part], "by": of_each[of, part]} for of, part in means]
    write_json(context.folder / "kept.json", {**said, "values": values})
    print(f"[{context.stage_name}] {choice({**said, 'values': values})}", flush=True)
    if queries < FEW:
        print(f"[{context.stage_name}] so few queries can hardly choose", flush=True)
    return {**said, "MRR@10 of the start": means["start", 0.0], "MRR@10": means[name, share]}
