"""A web server for tests: a folder that is served over HTTP on this machine, and data sets that are fetched from it."""

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Place:
    """A served folder. ``asked``: (file name, Range header) of every request.

    ``breaks_after``: number of bytes after which the next response is cut off; only that response is cut off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.breaks_after = folder, list[tuple[str, str]](), 0
        self.url = ""
        self.headers: dict[str, dict[str, str]] = {}  # path -> further headers of its response


@contextmanager
def served(folder: Path) -> Iterator[Place]:
    """Serve ``folder`` while the block runs. Requests for ranges of bytes are supported."""
    place = Place(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET(whole=False)

        def do_GET(self, whole: bool = True) -> None:
            path, wanted = folder / self.path.lstrip("/").partition("?")[0], self.headers.get("Range", "")
            place.asked.append((path.name, wanted))
            if not path.is_file():
                self.send_response(404)
                if path.is_relative_to(folder / "api"):
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            content = path.read_bytes()
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if wanted and first >= len(content):
                return self.send_error(416)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(content) - first))
            for name, value in place.headers.get(path.relative_to(folder).as_posix(), {}).items():
                self.send_header(name, value)
            self.end_headers()
            if not whole:
                return None
            end, place.breaks_after = place.breaks_after or len(content), 0
            self.wfile.write(content[first:end])
            self.close_connection = True
            return None

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    place.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield place
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def packed(files: dict[str, str]) -> bytes:
    """Return the bytes of a .tar.gz file with these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


MARCO = ["msmarco-passage"] + [
    f"msmarco-passage/{split}" for split in ("train", "dev/small", "trec-dl-2019/judged", "trec-dl-2020/judged")
]


def publish_marco(folder: Path, files: Mapping[str, str]) -> Path:
    """Write MS MARCO's native files in their published forms: in archives, compressed, or plain."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = ("collection.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv")
    (folder / "collectionandqueries.tar.gz").write_bytes(packed({name: files[name] for name in archive}))
    (folder / "queries.tar.gz").write_bytes(packed({"queries.train.tsv": files["queries.train.tsv"]}))
    for name in ("qrels.train.tsv", "2019qrels-pass.txt", "2020qrels-pass.txt"):
        (folder / name).write_text(files[name])
    for name in ("msmarco-test2019-queries.tsv", "msmarco-test2020-queries.tsv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress(files[name].encode(), mtime=0))
    return folder


def empty_home() -> Path:
    """Remove the files of ir_datasets and return their folder. Its subfolders stay: only an import creates them."""
    import ir_datasets

    folder = ir_datasets.util.home_path()
    for file in [one for one in folder.rglob("*") if one.is_file()]:
        file.unlink()
    return Path(folder)


def stand_in(url: str, folder: Path, *identifiers: str) -> None:
    """Make ir_datasets fetch the files of these data sets from ``url``, where ``folder`` is served.

    The readers, ids and file names of ir_datasets stay the same. Its digests become the digests of the files in ``folder``.
    """
    import ir_datasets

    from condensery.text.formats.ir_datasets import files_of

    for identifier in identifiers:
        data = ir_datasets.load(identifier)
        handlers = [getattr(data, f"{kind}_handler")() for kind in ("docs", "queries", "qrels") if data.has(kind)]
        for one in (found for handler in handlers for found in files_of(handler)):
            one._path = None
            for mirror in one.mirrors:
                if isinstance(mirror, ir_datasets.util.RequestsDownload):
                    name = mirror.url.rsplit("/", 1)[-1]
                    mirror.url = f"{url}/{name}"
                    if (folder / name).exists():
                        content = (folder / name).read_bytes()
                        one.expected_md5, one._size_hint = hashlib.md5(content).hexdigest(), len(content)


def publish_data_set(place: Place, name: str, files: Mapping[str, bytes], commit: str = "0" * 40) -> None:
    """Add a data set to a place that acts as the Hugging Face hub: all responses that huggingface_hub requests for it."""
    tree = []
    for path, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob}
        if path.endswith((".parquet", ".gz")):
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        tree.append(entry)
        at = f"datasets/{name}/resolve/{commit}/{path}"
        _publish(place.folder / at, content)
        place.headers[at] = {"ETag": f'"{digest if "lfs" in entry else blob}"', "X-Repo-Commit": commit}
    about = {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files], "tags": []}
    about |= {"private": False, "downloads": 0, "likes": 0}
    for revision in ("main", commit):
        _publish(place.folder / "api" / "datasets" / name / "revision" / revision, json.dumps(about).encode())
        _publish(place.folder / "api" / "datasets" / name / "tree" / revision, json.dumps(tree).encode())


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
