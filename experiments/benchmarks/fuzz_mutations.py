"""Change input files: accidents, changes that must not matter, and changes that must be reported.

A mutation is a function of a random generator (``fuzz.Draws``) and a file, which it changes. It returns a description of the
change, or "" if the mutation does not apply to this file.
"""

import gzip
import json
import os
import re
import struct
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Mutation = Callable[[Any, Path], str]

TEXT = {".jsonl", ".json", ".tsv", ".csv", ".txt", ".md", ".trec", ".yaml"}
VALUES = json.loads(Path(__file__).with_name("fuzz_values.json").read_text(encoding="utf-8"))
WORDS = [word.encode(errors="surrogateescape") for word in VALUES["words"]] + [b"9" * 5000, b"[" * 3000]
ODD: list[Any] = [*VALUES["odd"], float("nan"), float("-inf"), "x" * 100_000]
LETTERS: list[str] = VALUES["letters"]  # letters of many scripts, combining marks, and invisible characters
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s",:\[\]{}]+')  # a string with its quotes, a word, or a number


# Accidents: any outcome is allowed except a traceback, a hang, or a file in another folder.


def flip(draw: Any, path: Path) -> str:
    """A bit of a file is flipped."""
    raw = bytearray(path.read_bytes())
    at, bit = draw.randrange(len(raw)), draw.randrange(8)
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"bit {bit} of byte {at} flipped"


def tear(draw: Any, path: Path) -> str:
    """A piece is cut out, doubled, or replaced; or the file ends early."""
    raw = path.read_bytes()
    at, stop = sorted(draw.randint(0, len(raw)) for _ in range(2))
    other = draw.choice([b"", raw[at:stop], *WORDS])
    end = draw.choice([raw[stop:], raw[at:], b""])
    path.write_bytes(raw[:at] + other + end)
    return f"torn at {at} to {stop}, {other[:20]!r}, {len(end)} bytes behind"


def another_word(draw: Any, path: Path) -> str:
    """A value becomes something odd, or another value of the file."""
    raw = path.read_bytes()
    values = [found.span() for found in VALUE.finditer(raw[:1_000_000])]
    (at, stop), (first, last) = draw.choice(values), draw.choice(values)
    other = draw.choice([raw[first:last], *WORDS])
    path.write_bytes(raw[:at] + other + raw[stop:])
    return f"{raw[at:stop][:40]!r} becomes {other[:40]!r}"


def lines_moved(draw: Any, path: Path) -> str:
    """A line is left out, doubled, or changes places with another."""
    lines = path.read_bytes().split(b"\n")
    one, two, how = draw.randrange(len(lines)), draw.randrange(len(lines)), draw.randrange(3)
    if how == 0:
        del lines[one]
    elif how == 1:
        lines.insert(two, lines[one])
    else:
        lines[one], lines[two] = lines[two], lines[one]
    path.write_bytes(b"\n".join(lines))
    return f"line {one + 1} {('left out', 'doubled', 'exchanged')[how]} ({two + 1})"


def other_encoding(draw: Any, path: Path) -> str:
    """The file is saved in another encoding than UTF-8."""
    codec = draw.choice(["utf-16", "latin-1", "utf-32", "cp1252", "utf-7"])
    try:
        made = path.read_bytes().decode().replace("a", "ä").encode(codec)
    except UnicodeError:
        return ""
    path.write_bytes(made)
    return f"saved in {codec}"


def odd_value(draw: Any, path: Path) -> str:
    """A value somewhere in JSON or YAML becomes something odd, is removed, renamed, or wrapped."""
    raw = path.read_text()
    if path.suffix == ".yaml":
        value = yaml.safe_load(raw)
        done = _change(draw, value)
        path.write_text("# @package _global_\n" + yaml.safe_dump(value, sort_keys=False))
        return done
    texts = [raw] if path.suffix == ".json" else raw.split("\n")
    at = draw.choice([number for number, text in enumerate(texts) if text.strip()])
    value = json.loads(texts[at])
    done = _change(draw, value)
    texts[at] = json.dumps(value, ensure_ascii=draw.random() < 0.7)
    path.write_bytes("\n".join(texts).encode(errors="surrogatepass"))
    return f"{done} (line {at + 1})"


def _change(draw: Any, value: Any) -> str:
    """Change one place within a value of lists and objects."""
    places: list[tuple[Any, Any, str]] = []  # container, key or index, path

    def walk(node: Any, above: str) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, item in pairs:
            places.append((node, key, f"{above}.{key}"))
            walk(item, f"{above}.{key}")

    walk(value, "")
    if not places:
        return ""
    inside, key, name = draw.choice(places)
    how, odd = draw.choice(["set"] * 5 + ["remove", "rename", "wrap", "swap"]), draw.choice(ODD)
    if how == "set":
        inside[key] = odd
        return f"{name[1:][:60]} becomes {odd!r:.40}"
    if how == "wrap":
        inside[key] = draw.choice([[inside[key]], {"a": inside[key]}])
    elif how == "swap":
        other, place, _ = draw.choice(places)
        if other is not inside[key]:
            inside[key] = json.loads(json.dumps(other.get(place) if isinstance(other, dict) else other[place]))
    elif how == "rename" and isinstance(inside, dict):
        inside[draw.choice(["x", "", "_target_", "hydra", f"{key} ", str(key).upper()])] = inside.pop(key)
    else:
        del inside[key]
    return f"{name[1:][:60]}: {how}"


def packed_oddly(draw: Any, path: Path) -> str:
    """A file is compressed with gzip under another name, or compressed twice."""
    raw = gzip.compress(path.read_bytes(), mtime=0)
    if draw.random() < 0.5:
        path.write_bytes(raw)
        return "packed, without .gz"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(raw, mtime=0))
    path.unlink()
    return "packed twice"


def renamed(draw: Any, path: Path) -> str:
    """A file is removed, or gets the name of another file."""
    other = draw.choice(sorted(one for one in path.parent.iterdir() if one.is_file()))
    if other == path or draw.random() < 0.3:
        path.unlink()
        return "removed"
    other.write_bytes(path.read_bytes())
    return f"copied over {other.name}"


def header(draw: Any, path: Path) -> str:
    """The header of a safetensors file or of a NumPy array is changed."""
    raw = path.read_bytes()
    if path.suffix == ".npy" and raw[:6] == b"\x93NUMPY":
        text = bytearray(raw[:128])
        values = [found.span() for found in re.finditer(rb"\d+|'[^']*'|True|False", text[10:])]
        at, stop = draw.choice(values)
        other = draw.choice([b"'O'", b"'<f8'", b"-1", b"999999999999", b"None", b"()", b"__import__('os')"])
        path.write_bytes(raw[: 10 + at] + other + raw[10 + stop :])
        return f"header: {bytes(text[10 + at : 10 + stop])!r} becomes {other!r}"
    if path.suffix != ".safetensors":
        return ""
    about, rest = unpacked(raw)
    done = _change(draw, about)
    path.write_bytes(packed(about, rest))
    return f"header: {done}"


def unpacked(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the tensors of a safetensors file."""
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def packed(about: dict[str, Any], rest: bytes) -> bytes:
    """Return a safetensors file with this header and these tensors."""
    text = json.dumps(about).encode(errors="surrogatepass")
    return struct.pack("<Q", len(text)) + text + rest


def _texts(value: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the object and the key of each text in a record."""
    return [(value, key) for key in ("text", "title", "query") if isinstance(value.get(key), str)]


def _records(path: Path) -> list[Any]:
    records = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
    return records if path.suffix == ".jsonl" and all(isinstance(one, dict) for one in records) else []


def _save(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))


def another_script(draw: Any, path: Path) -> str:
    """A text becomes letters of other scripts, or a long text."""
    records = _records(path)
    places = [place for record in records for place in _texts(record)]
    if not places:
        return ""
    record, key = draw.choice(places)
    letters = draw.choice(LETTERS) + draw.choice(["", " "]) + draw.choice(LETTERS)
    words = "".join(draw.choice(letters) for _ in range(draw.choice([1, 3, 20, 300])))
    record[key] = draw.choice([words, record[key] + words, draw.choice(LETTERS)])
    _save(path, records)
    return f"a text in another script: {record[key][:30]!r}"


def same_text(draw: Any, path: Path) -> str:
    """A text occurs twice in this file, or in this file and in the corpus, with the same id or another id."""
    records = _records(path)
    source = draw.choice([path, path.with_name("corpus.jsonl")])
    others = _records(source) if source.is_file() else []
    if not records or not others:
        return ""
    for _ in range(draw.choice([1, 1, 2, len(records)])):
        record, other = draw.choice(records), draw.choice(others)
        record |= {key: other[key] for key in ("text", "title") if key in other and key in record}
        if source != path and draw.random() < 0.7:
            record["_id"] = other.get("_id", "x")
    _save(path, records)
    return f"texts of {source.name} stand twice"


def odd_id(draw: Any, path: Path) -> str:
    """Two records get odd ids: numbers, other Unicode forms, or invisible characters."""
    records = _records(path)
    named = [record for record in records if "_id" in record]
    if len(named) < 2:
        return ""
    one, other = draw.sample(named, 2)
    name = str(one["_id"])
    accented = name + "é"
    ids = [accented, unicodedata.normalize("NFD", accented), name + "\u200b", name + "\u00ad", "１", "1", 1, 1.0, True]
    one["_id"], other["_id"] = draw.choice(ids), draw.choice(ids)
    _save(path, records)
    return f"ids {one['_id']!r} and {other['_id']!r}"


ACCIDENTS: list[Mutation] = [flip, tear, tear, another_word, another_word, another_word, lines_moved, other_encoding]
ACCIDENTS += [another_script, another_script, same_text, same_text, odd_id]
ACCIDENTS += [odd_value] * 6 + [packed_oddly, renamed, header, header, header]


# Changes that must not matter.


def windows_lines(draw: Any, path: Path) -> str:
    """Windows line ends."""
    raw = path.read_bytes()
    if b"\r" in raw or path.suffix not in TEXT:
        return ""
    path.write_bytes(raw.replace(b"\n", b"\r\n"))
    return "CRLF"


def byte_order_mark(draw: Any, path: Path) -> str:
    """A byte-order mark."""
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    return "byte-order mark"


def gzipped(draw: Any, path: Path) -> str:
    """The same content, compressed with gzip."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=draw.randrange(9)))
    path.unlink()
    return "packed"


def gzipped_in_parts(draw: Any, path: Path) -> str:
    """The same content, compressed with gzip in two members."""
    raw = path.read_bytes()
    at = draw.randint(0, len(raw))
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(raw[:at]) + gzip.compress(raw[at:]))
    path.unlink()
    return f"packed in two members, cut at {at}"


def blank_lines(draw: Any, path: Path) -> str:
    """Blank lines at the end."""
    if path.suffix not in TEXT:
        return ""
    path.write_bytes(path.read_bytes() + b"\n" * draw.randint(1, 3))
    return "blank lines at the end"


def no_last_line_end(draw: Any, path: Path) -> str:
    """No line end at the end of the file."""
    path.write_bytes(path.read_bytes().rstrip(b"\r\n"))
    return "no line end at the end"


def _rewritten(path: Path, change: Callable[[Any], Any], **style: Any) -> None:
    texts = [path.read_text()] if path.suffix == ".json" else path.read_text().split("\n")
    made = [json.dumps(change(json.loads(text)), **style) if text.strip() else text for text in texts]
    path.write_text("\n".join(made))


def key_order(draw: Any, path: Path) -> str:
    """The keys of all JSON objects in another order."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in draw.sample(list(value), len(value))}
        return [shuffled(one) for one in value] if isinstance(value, list) else value

    if path.suffix not in (".json", ".jsonl"):
        return ""
    _rewritten(path, shuffled)
    return "keys in another order"


def json_style(draw: Any, path: Path) -> str:
    """Other spaces and escapes in JSON."""
    if path.suffix not in (".json", ".jsonl"):
        return ""
    apart = draw.choice([(",", ":"), (" , ", " :\t")])
    _rewritten(path, lambda value: value, ensure_ascii=draw.random() < 0.5, separators=apart)
    return f"JSON with {apart!r}"


def one_key_more(draw: Any, path: Path) -> str:
    """An unknown key in JSON."""

    def more(value: Any) -> Any:
        return [more(one) for one in value] if isinstance(value, list) else {**value, "zz_nobody_knows": {"a": [1]}}

    if path.suffix not in (".json", ".jsonl"):
        return ""
    _rewritten(path, more)
    return "a key that nobody knows"


def comments(draw: Any, path: Path) -> str:
    """Comments and blank lines in YAML."""
    if path.suffix != ".yaml":
        return ""
    lines = path.read_text().split("\n")
    for _ in range(3):  # after the first line, which names the package
        lines.insert(draw.randint(1, len(lines)), draw.choice(["", "# ${oc.env:HOME} [", "   # a comment"]))
    path.write_text("\n".join(lines))
    return "comments"


def _with_texts(path: Path, change: Callable[[str], str]) -> None:
    records = _records(path)
    for record in records:
        for inside, key in _texts(record):
            inside[key] = change(inside[key])
    _save(path, records)


def another_form(draw: Any, path: Path) -> str:
    """Texts in another Unicode form; the words are the same."""
    form = draw.choice(("NFC", "NFD", "NFKC", "NFKD"))
    if path.suffix != ".jsonl":
        return ""
    _with_texts(path, lambda text: unicodedata.normalize(form, text))
    return f"texts in {form}"


def invisible(draw: Any, path: Path) -> str:
    """Soft hyphens and other invisible characters within words."""
    unseen = draw.choice("\u00ad\u200d\u2060\ufeff")
    if path.suffix != ".jsonl":
        return ""
    _with_texts(path, lambda text: re.sub(r"(?<=\w)(?=\w)", lambda _: unseen * (draw.random() < 0.3), text))
    return f"{unseen!a} within words"


def capitals(draw: Any, path: Path) -> str:
    """Texts in capitals."""
    if path.suffix != ".jsonl":
        return ""
    _with_texts(path, str.upper)
    return "capitals"


NEUTRAL: dict[str, Mutation] = {
    one.__name__: one
    for one in (
        *(windows_lines, byte_order_mark, gzipped, gzipped_in_parts, blank_lines, no_last_line_end),
        *(key_order, json_style, one_key_more, comments),
        *(another_form, invisible, capitals),
    )
}


# Changes that must be reported.


def torn_object(draw: Any, path: Path) -> str:
    """A file of JSON lines that ends within a line."""
    raw = path.read_bytes().rstrip(b"\n")
    start = raw.rfind(b"\n") + 1
    if path.suffix != ".jsonl" or len(raw) < start + 2:
        return ""
    path.write_bytes(raw[: draw.randint(start + 1, len(raw) - 1)])
    return "ends within a JSON object"


def no_utf8(draw: Any, path: Path) -> str:
    """A byte that is not UTF-8."""
    raw = path.read_bytes()
    at = draw.randint(0, len(raw))
    path.write_bytes(raw[:at] + b"\xff" + raw[at:])
    return f"byte 255 at {at}"


def no_file(draw: Any, path: Path) -> str:
    """Something else in place of a file."""
    how = draw.choice(["folder", "pipe", "dangling link", "link to itself", "device", "nothing"])
    path.unlink()
    made: dict[str, Callable[[], Any]] = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "link to itself": lambda: path.symlink_to(path.name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "nothing": lambda: None,
    }
    made[how]()
    return f"{how} in place of it"


def broken_gzip(draw: Any, path: Path) -> str:
    """A damaged gzip file. The outcome may be an error message or the undamaged content."""
    raw = bytearray(gzip.compress(path.read_bytes(), mtime=0))
    at = draw.randrange(1, len(raw))  # not 0, because an empty file is valid
    if draw.random() < 0.3:
        raw = raw[:at]
    else:
        raw[at] ^= 1 << draw.randrange(8)
    path.with_name(f"{path.name}.gz").write_bytes(raw)
    path.unlink()
    return f"packed, and broken at {at}"


def doubled_line(draw: Any, path: Path) -> str:
    """A line with an id, twice."""
    lines = path.read_text().split("\n")
    first = 1 if path.name == "psgs_w100.tsv" else 0
    lines.insert(draw.randint(first, len(lines) - 1), lines[draw.randrange(first, len(lines) - 1)])
    path.write_text("\n".join(lines))
    return "an id twice"


def judged_in_another_form(draw: Any, path: Path) -> str:
    """Judgements name their passages in another Unicode form."""
    raw = path.read_text()
    made = unicodedata.normalize("NFD", raw)
    if made == raw:
        return ""
    path.write_text(made)
    return "ids in NFD"


def tensors_changed(draw: Any, path: Path) -> str:
    """A tensor of the backbone is missing, or has another name or shape."""
    if path.suffix != ".safetensors":
        return ""
    about, rest = unpacked(path.read_bytes())
    names = [name for name in about if re.search(r"(layer|block)\.\d", name)]
    if not names:
        return ""
    name, how = draw.choice(names), draw.choice(["gone", "renamed", "of another shape"])
    if how == "of another shape":
        shape = about[name]["shape"]
        about[name]["shape"] = [1, *shape] if len(shape) == 1 else [shape[0] * shape[1]]
    else:
        entry = about.pop(name)
        if how == "renamed":
            about[f"{name}.x"] = entry
        else:  # safetensors allows no bytes that belong to no tensor
            rest = _without(about, rest, *entry["data_offsets"])
    path.write_bytes(packed(about, rest))
    return f"{name} {how}"


def _without(about: dict[str, Any], rest: bytes, first: int, stop: int) -> bytes:
    for name, entry in about.items():
        if name != "__metadata__" and entry["data_offsets"][0] >= stop:
            entry["data_offsets"] = [at - (stop - first) for at in entry["data_offsets"]]
    return rest[:first] + rest[stop:]


def another_size(draw: Any, path: Path) -> str:
    """A config whose numbers of layers or sizes are not those of the weights."""
    if path.name != "config.json":
        return ""
    about = json.loads(path.read_text())
    sizes = ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"]
    key = draw.choice([key for key in (*sizes, "d_model", "d_ff", "num_layers") if key in about])
    about[key] += draw.choice([-1, 1, 2])
    if about[key] < 1:
        about[key] = 3
    path.write_text(json.dumps(about))
    return f"{key} is {about[key]}"


TOLD: dict[str, Mutation] = {
    one.__name__: one
    for one in (torn_object, no_utf8, no_file, doubled_line, judged_in_another_form, tensors_changed, another_size)
}
EITHER: dict[str, Mutation] = {"broken_gzip": broken_gzip}  # an error line or the result of the valid input
