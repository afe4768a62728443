"""How the rows of a table were made: which encoders they search with, and the time of their own stages."""

from pathlib import Path

from condensery.pipeline.reports.row_origins import made_of
from condensery.stages.base import Artifact
from condensery.system.files import write_json


def test_the_time_of_a_row_has_its_own_training_also_where_a_choice_tried_its_weights_and_kept_the_start(
    tmp_path: Path,
) -> None:
    def artifact(name: str, makes: str, seconds: float, **inputs: str | list[str]) -> Artifact:
        found = {field: [given] if isinstance(given, str) else given for field, given in inputs.items()}
        (tmp_path / name).mkdir(parents=True)
        manifest = {"makes": makes, "inputs": found, "metrics": {}, "wall_seconds": seconds}
        write_json(tmp_path / name / "manifest.json", manifest)
        return Artifact(tmp_path / name)

    artifact("retriever/start", "encoder", 1.0)
    artifact("finetune/tuned", "encoder", 100.0, init="retriever/start")
    best = artifact("keep_best/best", "encoder", 10.0, start="retriever/start", trained=["finetune/tuned"])
    indexes = {
        "as it is": artifact("encode/start", "index", 2.0, model="retriever/start"),
        "fine-tuned": artifact("encode/tuned", "index", 4.0, model="finetune/tuned"),
        "best": artifact("encode/best", "index", 3.0, model="keep_best/best"),
    }
    for share, seconds in ((0.0, 0.0), (0.5, 100.0 + 10.0 + 3.0)):
        write_json(best.path / "kept.json", {"share": share})
        made = made_of(indexes)
        assert {name: one.seconds for name, one in made.items()} == {
            "as it is": 0.0,
            "fine-tuned": 104.0,
            "best": seconds,
        }
        assert made["best"].trained == (share > 0)
