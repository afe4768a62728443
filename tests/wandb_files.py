"""Read the files of W&B's offline runs. They contain protobuf records in the log format of LevelDB."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
FULL, FIRST = 1, 2


@dataclass(frozen=True)
class Offline:
    """One offline run.

    ``began``: time of the start in microseconds. ``curves``: metric -> (step, value) pairs, in the order of logging.
    """

    name: str
    group: str
    job_type: str
    id: str
    began: int
    config: dict[str, Any]
    curves: dict[str, list[tuple[int, Any]]]
    exit_code: int | None


def offline_runs(folder: Path) -> list[Offline]:
    """Return all runs under ``folder``/wandb, sorted by their start. The folder names have only whole seconds."""
    runs = [_whole(path) for path in (folder / "wandb").glob("offline-run-*/run-*.wandb")]
    return sorted(runs, key=lambda run: run.began)


def _whole(path: Path) -> Offline:
    """Read a run's file when its last record, the exit record, is there. W&B may still write after it has ended the run."""
    patience = time.monotonic() + 60
    while (found := _read(path)) is None or found.exit_code is None:
        assert time.monotonic() < patience, f"{path} holds no run that ended"
        time.sleep(0.1)
    return found


def _read(path: Path) -> Offline | None:
    from wandb.proto.wandb_internal_pb2 import Record

    run: Any = None
    curves: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    config: dict[str, Any] = {}
    code = None
    for content in _records(path.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in run.config.update}
        elif kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                curves[name].append((row.get("trainer/global_step", -1), value))
        elif kind == "exit":
            code = record.exit.exit_code
    if run is None:
        return None
    began = run.start_time.ToMicroseconds()
    return Offline(run.display_name, run.run_group, run.job_type, run.run_id, began, config, dict(curves), code)


def _records(raw: bytes) -> Iterator[bytes]:
    place, whole = HEADER, b""
    while place + 7 <= len(raw):
        if BLOCK - place % BLOCK < 7:  # the rest of the block is too short for another header
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        part = raw[place + 7 : place + 7 + size]
        place += 7 + size
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind not in (FIRST, 3) and len(part) == size:
            yield whole
