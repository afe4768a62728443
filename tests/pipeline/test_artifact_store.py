"""Artifacts: whole or not there, computed once, found again, and never trusted when damaged."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_commands import Command, Compose, Launch

from condensery.errors import UserError
from condensery.pipeline.artifact_store import FIELDS, Store, _digest
from condensery.pipeline.graph import build
from condensery.pipeline.run import run
from condensery.stages.base import Artifact
from condensery.system.files import write_json
from condensery.system.seconds import SPENT, Seconds

Computed = Callable[[], list[str]]
Contents = Callable[[Path], dict[str, bytes]]


@pytest.fixture
def small(composed: Compose) -> Compose:
    """The toy recipe cut down to one row and five stages."""
    cut = ["~stages.mined", "~stages.round2", "~stages.better", "table.rows.plain=plain"]
    return lambda *overrides: composed(*cut, *overrides, recipe="bare")


def test_a_second_run_computes_nothing(small: Compose, computed: Computed) -> None:
    run(small())
    first = computed()
    assert sorted(first) == ["bm25", "corpus", "plain", "plain.evaluation", "plain.index"]
    run(small())
    assert computed() == first


def test_the_manifest_tells_where_an_artifact_comes_from(small: Compose, tmp_path: Path) -> None:
    run(small())
    graph = build(small())
    index = Artifact(Store(tmp_path / "out").path(graph.nodes["plain.index"]))
    manifest = index.manifest
    assert (manifest["kind"], manifest["makes"], manifest["name"]) == ("toy_encode", "index", "plain.index")
    assert manifest["inputs"]["model"] == [graph.nodes["plain"].reference]
    assert manifest["versions"]["python"]
    assert manifest["wall_seconds"] >= 0
    assert index.input("model").manifest["metrics"] == {"loss": pytest.approx(1 / 3), "queries": 300}
    corpus = index.ancestor("corpus")
    assert isinstance(corpus, Artifact)
    assert corpus.id == graph.nodes["corpus"].id


def test_the_seconds_of_an_interrupted_stage_are_those_of_all_its_parts(
    small: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("stage.toy_train.pause=1.0")  # after each of the first two steps; the last part does none
    node = build(config).nodes["plain"]
    store = Store(tmp_path / "out")
    monkeypatch.setenv("TOY_STOP", "plain:3")
    with pytest.raises(UserError, match="stopped"):
        run(config)
    assert (store.partial(node) / SPENT).is_file()
    monkeypatch.delenv("TOY_STOP")
    run(config)
    manifest = Artifact(store.path(node)).manifest
    assert 2.0 <= manifest["wall_seconds"] < 30
    assert SPENT not in manifest["files"]
    assert not list(store.path(node).rglob(f"*{SPENT}*"))


def test_a_part_that_was_killed_counts_up_to_the_last_file_that_it_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    begun = time.time() - 1000  # by the clock of the file server
    write_json(folder / SPENT, [20.0, 10.0, 5.0, begun - 3600])
    (folder / "checkpoint").write_text("x")
    for name, at in ((SPENT, begun), ("checkpoint", begun + 100)):
        os.utime(folder / name, (at, at))
    total = Seconds(folder).total()
    assert total["wall_seconds"] == pytest.approx(125, abs=2)
    assert total["cpu_seconds"] == pytest.approx(10 * 125 / 20, rel=0.1)
    (folder / SPENT).write_text("[1, 2")
    assert Seconds(folder).total()["wall_seconds"] < 5
    assert [path.name for path in folder.iterdir()] == ["checkpoint"]


def test_who_may_read_what_we_write_may_read_each_file_of_an_artifact(
    small: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Store._compute

    def private(self: Store, node: Any, runtime: Any) -> None:
        monkeypatch.setattr("condensery.pipeline.artifact_store._files", lambda folder: closed(folder))
        saved(self, node, runtime)

    def closed(folder: Path) -> dict[str, Path]:
        found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        for path in found.values():
            path.chmod(0o600)  # as safetensors leaves them
        return found

    monkeypatch.setattr(Store, "_compute", private)
    before = os.umask(0o027)
    try:
        run(small())
        assert os.umask(0o027) == 0o027, "the process's own is untouched"
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "out" / "artifacts").glob("*/*/**/*") if path.is_file()]
    assert files
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


def test_a_link_to_a_stage_is_replaced_and_not_followed(small: Compose, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(small())
    link = next((tmp_path / "out" / "runs").iterdir()) / "stages" / "plain"
    link.unlink()
    link.symlink_to(elsewhere, target_is_directory=True)
    run(small())
    assert link.resolve() == Store(tmp_path / "out").path(build(small()).nodes["plain"])
    assert list(elsewhere.iterdir()) == []


def test_outputs_that_were_copied_with_folders_in_place_of_links_are_gone_on_with(
    small: Compose, tmp_path: Path
) -> None:
    run(small())
    shutil.copytree(tmp_path / "out", tmp_path / "copied", symlinks=False)  # as `scp -r` copies
    run(small(f"output_root={tmp_path / 'copied'}"))
    link = next((tmp_path / "copied" / "runs").iterdir()) / "stages" / "plain"
    assert (link / "manifest.json").exists()


def test_a_manifest_that_names_files_elsewhere_is_not_believed(small: Compose, tmp_path: Path) -> None:
    run(small())
    path = Store(tmp_path / "out").path(build(small()).nodes["bm25"]) / "manifest.json"
    elsewhere = "../../../../text.txt"
    written(path, lambda manifest: manifest.update(files={elsewhere: 10}, digests={elsewhere: "0"}))
    with pytest.raises(UserError, match=r"manifest\.json: '\.\./\.\./.*' does not name a file or folder in"):
        run(small())


def test_a_file_that_changes_before_its_stage_begins_is_said(small: Compose, tmp_path: Path) -> None:
    graph, store = build(small()), Store(tmp_path / "out")
    (tmp_path / "text.txt").write_text("other text\n")
    with pytest.raises(UserError, match=r"^stages\.corpus: a file that it reads has changed during this run; run it"):
        store.ensure(graph.nodes["corpus"], graph.root.runtime())
    assert not store.path(graph.nodes["corpus"]).exists()
    run(small())
    assert not store.path(graph.nodes["corpus"]).exists(), "the content is other, so is the id"


def test_only_forced_stages_are_computed_anew(small: Compose, computed: Computed) -> None:
    run(small())
    before = len(computed())
    run(small("force=[plain,plain.index]"))
    assert computed()[before:] == ["plain", "plain.index"]


def test_a_forced_stage_keeps_its_old_artifact_until_the_new_one_is_whole(
    small: Compose, tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(small())
    before = contents(tmp_path / "out")
    monkeypatch.setenv("TOY_STOP", "plain:2")
    with pytest.raises(UserError, match="stopped at plain:2"):
        run(small("force=[plain]"))
    kept = {name: content for name, content in contents(tmp_path / "out").items() if ".partial/" not in name}
    assert kept == before
    monkeypatch.delenv("TOY_STOP")
    run(small("force=[plain]"))
    assert contents(tmp_path / "out") == before


def test_an_interrupted_stage_goes_on_from_its_work(
    small: Compose, tmp_path: Path, computed: Computed, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(small())
    whole = contents(tmp_path / "out")
    other = f"output_root={tmp_path / 'other'}"
    monkeypatch.setenv("TOY_STOP", "plain:2")
    with pytest.raises(UserError):
        run(small(other))
    graph, store = build(small(other)), Store(tmp_path / "other")
    assert store.states(graph)["plain"] == "interrupted"
    assert store.states(graph)["plain.index"] == "after"
    assert json.loads((store.partial(graph.nodes["plain"]) / "checkpoint.json").read_text())["step"] == 2
    (store.partial(graph.nodes["plain"]) / ".weights.json.4711.tmp").write_text("half")  # as a kill leaves it
    for number, path in enumerate((tmp_path / "other").rglob("*")):  # the clock has jumped back and forth meanwhile
        os.utime(path, (number % 2 * 2**32, number % 2 * 2**32), follow_symlinks=False)
    monkeypatch.setenv("TOY_STOP", "plain:1")  # would stop a start from nothing
    run(small(other))
    assert contents(tmp_path / "other") == whole


def test_a_stage_killed_before_its_folder_was_renamed_is_not_computed_again(
    small: Compose, tmp_path: Path, computed: Computed
) -> None:
    run(small())
    before = computed()
    graph, store = build(small()), Store(tmp_path / "out")
    os.replace(store.path(graph.nodes["plain"]), store.partial(graph.nodes["plain"]))
    run(small())
    assert computed() == before
    assert store.has(graph.nodes["plain"])


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage", ["no manifest", "broken manifest", "other manifest", "file cut", "file gone", "link to itself", "byte"]
)
def test_a_damaged_artifact_is_said_and_repaired_by_force(damage: str, small: Compose, tmp_path: Path) -> None:
    run(small())
    path = Store(tmp_path / "out").path(build(small()).nodes["plain"])
    if damage == "no manifest":
        (path / "manifest.json").unlink()
    elif damage == "broken manifest":
        (path / "manifest.json").write_text("{")
    elif damage == "other manifest":
        text = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(text.replace('"queries": 300', '"queries": 301'))
    elif damage == "byte":
        flip(path / "weights.json")
    elif damage == "link to itself":
        (path / "weights.json").unlink()
        (path / "weights.json").symlink_to("weights.json")
    elif damage == "file cut":
        (path / "weights.json").write_text("1")
    else:
        (path / "weights.json").unlink()
    for overrides in ([], ["dry_run=plan"]):
        with pytest.raises(UserError, match=r"damaged artifact .*; delete the folder, or give force=\[plain\]"):
            run(small(*overrides))
    run(small("force=[plain]"))
    run(small())


def test_a_large_file_is_looked_at_before_a_stage_near_or_far_behind_it_begins(
    small: Compose, tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.pipeline.artifact_store.SMALL", 0)
    monkeypatch.setenv("TOY_STOP", "plain.index")
    with pytest.raises(UserError, match=r"stopped at plain\.index"):
        run(small())
    monkeypatch.delenv("TOY_STOP")
    before, store = len(computed()), Store(tmp_path / "out")
    path = store.path(build(small()).nodes["corpus"])
    flip(path / "text.txt")
    with pytest.raises(UserError) as raised:
        run(small())
    assert str(raised.value) == (
        f"{path}: damaged artifact (the content of text.txt has changed); delete the folder and run again"
    )
    assert computed()[before:] == []


def test_what_is_said_of_two_damaged_artifacts_is_what_can_be_done(
    small: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(small())
    monkeypatch.setattr("condensery.pipeline.artifact_store.SMALL", 0)
    store, graph = Store(tmp_path / "out"), build(small())
    paths = {name: store.path(graph.nodes[name]) for name in ("corpus", "plain")}
    flip(paths["corpus"] / "text.txt")
    (paths["plain"] / "weights.json").write_text("1")
    with pytest.raises(UserError, match=f"^{re.escape(str(paths['corpus']))}: damaged"):
        run(small("force=[plain]"))
    run(small("force=[corpus,plain]"))
    run(small())


def written(path: Path, change: Callable[[dict[str, Any]], object], sealed: bool = True) -> None:
    """Change a manifest; ``sealed``: with the digest of what it then says, as one who knows how would."""
    manifest = json.loads(path.read_text())
    change(manifest)
    if sealed:
        manifest.pop("digest", None)
        manifest["digest"] = _digest(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("field", [*FIELDS])
def test_a_manifest_that_lacks_a_field_or_has_another_thing_there_is_said(
    field: str, small: Compose, tmp_path: Path
) -> None:
    run(small())
    path = Store(tmp_path / "out").path(build(small()).nodes["plain"]) / "manifest.json"
    whole = path.read_text()
    said = (
        rf"damaged artifact \(its manifest\.json (has no {field}|belongs to another artifact)\); delete the folder, or"
    )
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda manifest: manifest.pop(field),
        lambda manifest: manifest.update({field: None}),
        lambda manifest: manifest.update({field: [3]}),
    ]
    for change in changes:
        path.write_text(whole)
        written(path, change, sealed=field != "digest")
        with pytest.raises(UserError, match=said):
            run(small())


@pytest.mark.parametrize("where", ["files", "digests"])
def test_a_file_that_is_in_one_of_the_two_lists_is_said(where: str, small: Compose, tmp_path: Path) -> None:
    run(small())
    path = Store(tmp_path / "out").path(build(small()).nodes["plain"]) / "manifest.json"
    written(path, lambda manifest: manifest[where].pop("weights.json"))
    with pytest.raises(UserError, match="lists different names in `files` and `digests`"):
        run(small())


@pytest.mark.parametrize("name", ["query_encoder/config.json", "wandb.json", "deep/wandb/file", "zzz"])
def test_a_file_that_the_manifest_does_not_list_is_said(name: str, small: Compose, tmp_path: Path) -> None:
    run(small())
    folder = Store(tmp_path / "out").path(build(small()).nodes["plain"])
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    for overrides in ([], ["dry_run=plan"]):
        with pytest.raises(UserError, match=rf"damaged artifact \({re.escape(name)} does not belong to the artifact\)"):
            run(small(*overrides))
    run(small("force=[plain]"))
    run(small())


def test_a_link_to_a_folder_in_an_artifact_is_said(small: Compose, tmp_path: Path) -> None:
    run(small())
    folder = Store(tmp_path / "out").path(build(small()).nodes["plain"])
    (folder / "query_encoder").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(UserError, match=r"damaged artifact \(query_encoder does not belong to the artifact\)"):
        run(small())


def test_what_viewers_and_wandb_leave_in_an_artifact_is_let_be(
    small: Compose, tmp_path: Path, computed: Computed
) -> None:
    run(small())
    before, folder = computed(), Store(tmp_path / "out").path(build(small()).nodes["plain"])
    for name in (".DS_Store", ".cache/x", "wandb/run/file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    run(small())
    assert computed() == before


def test_files_are_listed_in_a_store_below_a_folder_called_wandb(small: Compose, tmp_path: Path) -> None:
    other = f"output_root={tmp_path / 'wandb' / 'out'}"
    run(small(other))
    path = Store(tmp_path / "wandb" / "out").path(build(small(other)).nodes["plain"])
    assert "weights.json" in json.loads((path / "manifest.json").read_text())["files"]


def test_two_runs_at_once_compute_each_stage_once(launch: Launch, computed: Computed) -> None:
    runs = [launch("stage.toy_train.pause=0.3", recipe="bare") for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in runs]
    assert [process.returncode for process in runs] == [0, 0], outputs
    assert len(computed()) == len(set(computed())) == 7
    assert any("another process computes this stage; waiting for it" in out for out, _ in outputs)


def test_a_dry_run_writes_nothing_and_tells_what_is_there(command: Command, tmp_path: Path) -> None:
    done = command("dry_run=plan")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "out").glob("*"))
    shown = done.stdout.partition("stages to be made")[0]
    states = {line.split("│")[1].strip(): line.split("│")[4].strip() for line in shown.splitlines() if "│" in line}
    assert states["corpus"] == "to be made"
    assert "unknown before the run" in done.stdout, "stages that do not say their work"
    assert states["round2.evaluation"] == "waits for round2.index"
