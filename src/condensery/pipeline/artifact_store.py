"""The store: finished artifacts by kind and id. Each is computed once, even if processes are killed or run in parallel.

An artifact ``<root>/artifacts/<kind>/<id>/`` is complete when it has a manifest. A stage works in ``<id>.partial/`` under the
lock ``<id>.lock``, and resumes there after an interruption. The manifest is written last, and then the folder is renamed. So
a folder with the final name is always complete.

The manifest lists exactly the files of an artifact, with size and digest. The list, the sizes and the content of small files
are checked whenever an artifact is to be reused. The digests of large files are checked before a stage reads them, once per
process.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from condensery.errors import UserError
from condensery.pipeline.graph import Graph, Node
from condensery.pipeline.launch import on_ray
from condensery.pipeline.launch.processes import compute
from condensery.stages.base import Artifact, Context, Runtime
from condensery.stages.registry import Stage, registry
from condensery.system.files import content_hash, inside, read_json, remove, write_json
from condensery.system.seconds import Seconds

SCHEMA = 1
SMALL = 1 << 18  # bytes; the digest of a file up to this size is checked at every reuse
WANDB = "wandb"  # W&B's own folder in an artifact
FIELDS: dict[str, type | tuple[type, ...]] = {  # fields of a manifest
    **dict.fromkeys(("schema", "version"), int),
    **dict.fromkeys(("kind", "makes", "id", "name", "created", "digest"), str),
    **dict.fromkeys(("config", "inputs", "metrics", "versions", "machine", "files", "digests"), dict),
    **dict.fromkeys(("wall_seconds", "cpu_seconds"), (int, float)),
}
LIBRARIES: tuple[str, ...] = ("torch", "pytorch-lightning", "transformers", "tokenizers", "numpy")
LIBRARIES += ("faiss-cpu", "faiss-gpu-cu12", "bm25s", "hydra-core")
State = Literal["hit", "miss", "after", "interrupted", "forced"]


class Store:
    """The artifacts under ``root/artifacts``.

    Args:
        root: the output root.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "artifacts"
        self._sound: set[Path] = set()  # artifacts that this process has written or checked

    def path(self, node: Node) -> Path:
        """Return the present or future folder of the artifact of ``node``."""
        return self.folder / node.kind / node.id

    def partial(self, node: Node) -> Path:
        """Return the folder of unfinished work on the artifact of ``node``."""
        return self.folder / node.kind / f"{node.id}.partial"

    def has(self, node: Node) -> bool:
        """Return whether the artifact exists. Raises ``UserError`` if it exists but is damaged."""
        if fault := _twice(path := self.path(node)):
            raise UserError(f"{path}: damaged artifact ({fault}); delete the folder, or give force=[{node.name}]")
        return path.exists()

    def sound(self, node: Node) -> bool:
        """Return whether the artifact exists and passes the checks of ``has``."""
        return self.path(node).exists() and not _twice(self.path(node))

    def check(self, artifacts: Iterable[Artifact], parents: bool = True) -> None:
        """Check the artifacts in full, with the digests of large files.

        Args:
            artifacts: artifacts to check.
            parents: whether to check their input artifacts too.

        Raises:
            UserError: an artifact has changed since it was written.
        """
        left = list(artifacts)
        while left:
            artifact = left.pop()
            if artifact.path in self._sound or not artifact.path.exists():
                continue
            if fault := _twice(artifact.path, whole=True):
                raise UserError(f"{artifact.path}: damaged artifact ({fault}); delete the folder and run again")
            if parents:
                self._sound.add(artifact.path)
                left += artifact.parents()

    def states(self, graph: Graph) -> dict[str, State]:
        """Return the state of each node: whether a run would reuse the artifact, compute it, or first compute an input.

        Raises:
            UserError: an artifact is damaged.
        """
        states: dict[str, State] = {}
        for name, node in graph.nodes.items():
            if name in graph.root.force:
                states[name] = "forced"
            elif node.id and self.has(node):
                states[name] = "hit"
            elif any(states[parent] in ("miss", "after", "interrupted") for parent in node.parents):
                states[name] = "after"
            else:
                states[name] = "interrupted" if node.id and self.partial(node).exists() else "miss"
        return states

    def ensure(self, node: Node, runtime: Runtime, force: bool = False) -> bool:
        """Make the artifact of ``node`` unless it exists.

        Args:
            node: the stage.
            runtime: settings of this machine.
            force: whether to recompute the artifact; the new artifact replaces the old one when it is complete.

        Returns:
            whether this call computed the artifact.

        Raises:
            UserError: an artifact is damaged.
            Exception: any exception that the stage raises.
        """
        if not force and self.has(node):
            return False
        self.partial(node).parent.mkdir(parents=True, exist_ok=True)
        with self._lock(node):
            if force:
                shutil.rmtree(self.partial(node), ignore_errors=True)
            elif self.has(node):
                return False
            # A manifest in the partial folder is complete: an earlier run was killed just before it renamed the folder.
            if not (self.partial(node) / "manifest.json").exists():
                self._compute(node, runtime)
            self._publish(node)
        return True

    def _compute(self, node: Node, runtime: Runtime) -> None:
        stage = registry()[node.kind]
        if node.present_id(stage.version) != node.id:
            raise UserError(f"stages.{node.name}: a file that it reads has changed during this run; run it again")
        folder = self.partial(node)
        folder.mkdir(exist_ok=True)
        _remove_half_written(folder)
        made_from = {
            field: tuple(Artifact(self.folder / reference) for reference in references)
            for field, references in node.made_from.items()
        }
        self.check(artifact for artifacts in made_from.values() for artifact in artifacts)
        seconds = Seconds(folder)
        try:
            context = Context(node.name, folder, runtime, made_from)
            if runtime.launcher.kind == "ray":
                summary, where = on_ray.compute(stage, node.config, context, seconds)
            else:
                summary, where = compute(stage, node.config, context)
        except BaseException:
            seconds.interrupted()
            raise
        manifest = _manifest(stage, node, dict(summary), seconds.total())
        manifest["machine"] = where
        files = _files(folder)
        _for_all(files.values())
        manifest["files"] = {name: path.stat().st_size for name, path in files.items()}
        manifest["digests"] = {name: content_hash(path) for name, path in files.items()}
        write_json(folder / "manifest.json", {**manifest, "digest": _digest(manifest)})
        self._sound.add(self.path(node))

    def _publish(self, node: Node) -> None:
        path = self.path(node)
        old = path.with_name(f"{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(self.partial(node), path)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _lock(self, node: Node) -> Iterator[None]:
        lock = FileLock(self.folder / node.kind / f"{node.id}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"[{node.name}] another process computes this stage; waiting for it", flush=True)
            lock.acquire(poll_interval=0.2)
        try:
            yield
        finally:
            lock.release()


def _for_all(files: Iterable[Path]) -> None:
    """Give files the permissions of this process's umask; safetensors makes its files readable only by the owner."""
    os.umask(mask := os.umask(0))
    for path in files:
        path.chmod(0o666 & ~mask)


def _twice(path: Path, whole: bool = False) -> str:
    """Return the fault of an artifact. A second check confirms it, because a forced run may replace the folder meanwhile."""
    return _damage(path, whole) if _damage(path, whole) and path.exists() else ""


def _damage(path: Path, whole: bool) -> str:
    """Return the fault of an artifact folder; an empty string if there is none.

    Args:
        path: folder of the artifact.
        whole: whether the content of large files is checked too.
    """
    try:
        manifest = read_json(path / "manifest.json")
    except (UserError, OSError):
        return "no readable manifest.json"
    if not isinstance(manifest, dict) or (manifest.get("kind"), manifest.get("id")) != (path.parent.name, path.name):
        return "its manifest.json belongs to another artifact"
    if missing := [name for name, kind in FIELDS.items() if not isinstance(manifest.get(name), kind)]:
        return f"its manifest.json has no {', '.join(missing)}"
    if manifest.pop("digest") != _digest(manifest):
        return "its manifest.json has changed"
    files, digests = manifest["files"], manifest["digests"]
    if files.keys() != digests.keys():
        return "its manifest.json lists different names in `files` and `digests`"
    for name, size in files.items():
        file = inside(path, name, path / "manifest.json")
        try:
            actual = file.stat().st_size
            if actual != size:
                return f"{name} has {actual} bytes instead of {size}"
            if (whole or size <= SMALL) and content_hash(file) != digests[name]:
                return f"the content of {name} has changed"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    surplus = _surplus(path, files)
    return f"{surplus} does not belong to the artifact" if surplus else ""


def _surplus(path: Path, files: Collection[str]) -> str:
    """Return a file or linked folder in an artifact's folder that does not belong to the artifact; empty if there is none.

    Names that begin with a dot are ignored, because file systems and viewers create such files, and no stage reads them.
    """
    known = {"manifest.json", *files}
    for above, folders, names in os.walk(path):
        inner = Path(above).relative_to(path)
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and (inner / name) != Path(WANDB)]
        links = [name for name in folders if (path / inner / name).is_symlink()]
        for name in sorted([*links, *names]):
            if not name.startswith(".") and (inner / name).as_posix() not in known:
                return (inner / name).as_posix()
    return ""


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest's content. Writing and reading the manifest does not change the digest."""
    text = json.dumps(json.loads(json.dumps(manifest)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _remove_half_written(folder: Path) -> None:
    """Remove files that ``files.atomic`` was writing when an earlier attempt was killed. These files are incomplete."""
    for path in sorted(folder.rglob(".*.tmp")):
        remove(path)


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of an artifact by their names in its folder, without the manifest and W&B's own files."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != "manifest.json" and not name.startswith(f"{WANDB}/")}


def _manifest(stage: Stage, node: Node, summary: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": node.kind,
        "version": stage.version,
        "makes": stage.makes,
        "id": node.id,
        "name": node.name,
        "config": node.config.model_dump(mode="json"),
        "inputs": {field: list(references) for field, references in node.made_from.items()},
        "metrics": summary,
        "versions": _versions(),
        "git": _revision(),
        **{key: round(value, 3) for key, value in seconds.items()},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for library in ("condensery", *LIBRARIES):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


@cache
def _revision() -> str | None:
    """Return the git revision of this package's checkout, with ``+`` for changed files; None if there is no checkout."""
    project = Path(__file__).parents[3]
    if not (project / ".git").exists():  # installed as a package, perhaps inside a checkout of something else
        return None
    safe = ["-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]  # git must run no command of its config
    git = ["git", "-C", str(project), *safe]
    describe = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # which can name commands
    own["GIT_OPTIONAL_LOCKS"] = "0"
    with suppress(OSError, subprocess.SubprocessError):
        completed = subprocess.run(
            [*git, *describe], capture_output=True, text=True, check=True, timeout=10, env=own, stdin=subprocess.DEVNULL
        )
        return completed.stdout.strip() or None
    return None
