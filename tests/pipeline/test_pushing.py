"""``push_to_hub`` uploads an encoder with a card of its data, recipe, numbers and licence; faults of it are one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from error_lines import names
from small_runs import MODEL, Done, metrics_of, run_command, some_text, write_beir

Run = Callable[..., Done]


class Hub:
    """What stands in for the hub's client: it keeps what it is given, or fails."""

    kept: dict[str, Any] = {}  # noqa: RUF012
    fault: Exception | None = None

    def __init__(self, **_: Any) -> None: ...

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
        if self.fault:
            raise self.fault
        assert exist_ok
        self.kept |= {"name": name, "private": private}

    def upload_folder(self, **given: Any) -> None:
        patterns = given["allow_patterns"], given["ignore_patterns"]
        files = [path.relative_to(given["folder_path"]) for path in given["folder_path"].rglob("*") if path.is_file()]
        wanted = huggingface_hub.utils.filter_repo_objects(
            map(str, files), allow_patterns=patterns[0], ignore_patterns=patterns[1]
        )
        self.kept["files"] = set(wanted)

    def upload_file(self, **given: Any) -> None:
        self.kept[given["path_in_repo"]] = given["path_or_fileobj"].decode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A recipe of one fine-tuning, whose artifacts the tests share."""
    folder = tmp_path_factory.mktemp("pushing")
    data = write_beir(folder / "beir", some_text(documents=20, seed=2))
    own = ["experiment=short", "data=beir", f"data.root={data}", f"output_root={folder / 'out'}", *MODEL]
    steps = [f"stage.{kind}.steps=2" for kind in ("pretrain_condenser", "pretrain_cocondenser", "finetune")]
    return lambda *more: run_command(*own, *steps, *more)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr(Hub, "kept", {})
    monkeypatch.setattr(Hub, "fault", None)
    return Hub


def _front(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


def test_an_encoder_goes_to_the_hub_with_a_card_and_without_what_tells_of_the_machine(run: Run, hub: type[Hub]) -> None:
    done = run("push_to_hub={round1: {name: me/small, license: mit}}").sound()
    assert "[round1] is at https://huggingface.co/me/small (private)" in done.out
    kept = hub.kept
    assert (kept["name"], kept["private"]) == ("me/small", True)
    assert {"config.json", "model.safetensors", "tokenizer.json", "modules.json", "condensery.json"} <= kept["files"]
    assert {"1_Pooling/config.json"} <= kept["files"]
    assert not [name for name in kept["files"] if "manifest" in name or "logs" in name or name == "README.md"]
    front, card = _front(kept["README.md"]), kept["README.md"]
    assert (front["license"], front["library_name"]) == ("mit", "sentence-transformers")
    measured = {one["type"]: one["value"] for one in front["model-index"][0]["results"][0]["metrics"]}
    assert measured == pytest.approx(metrics_of(done.folder)["coCondenser"])
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == "beir"
    assert "- `steps`: 2\n" in card
    assert "- `beir`" in card
    assert str(Path.cwd()) not in card
    assert "/tmp" not in card


def test_the_artifact_has_a_card_of_its_own(run: Run) -> None:
    done = run().sound()
    card = (done.folder / "stages" / "round1" / "README.md").read_text()
    front = _front(card)
    assert front["license"] == "unknown"
    assert "model-index" not in front
    assert "No licence is named" in card
    assert "`train/loss`" in card


@pytest.mark.parametrize(
    ("given", "place", "words"),
    [
        ("push_to_hub={round9: me/small}", "push_to_hub.round9", ["makes an encoder", "did you mean", "round1"]),
        ("push_to_hub.bm25=me/small", "push_to_hub.bm25", ["makes an encoder"]),
        ("push_to_hub={round1: small}", "push_to_hub.round1", ["'small'", "owner/name"]),
    ],
)
def test_what_cannot_be_pushed_is_said_before_anything_is_computed(
    given: str, place: str, words: list[str], run: Run, hub: type[Hub]
) -> None:
    done = run(given, "seed=77")
    assert (done.code, done.computed, hub.kept) == (1, [], {})
    names(done.err.removeprefix("error: "), place, *words)


def test_nobody_being_logged_in_is_said_before_anything_is_computed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    done = run("push_to_hub={round1: me/small}", "seed=77")
    assert (done.code, done.computed) == (1, [])
    names(done.err.removeprefix("error: "), "push_to_hub", "hf auth login")


def test_without_a_network_it_is_one_line_and_what_was_computed_stays(
    run: Run, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "fault", ConnectionError("cannot reach\nthe hub"))
    done = run("push_to_hub={round1: me/small}")
    assert done.code == 1
    names(done.err.removeprefix("error: "), "push_to_hub", "me/small", "cannot reach the hub", "results are kept")
