"""The errors that a person sees: bad input or a disk that will not take it, said in one line."""

import difflib
import errno
import re
from collections.abc import Iterable

DISK = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this disk, or `ulimit -f`, allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to read or write here",
    errno.EPERM: "no permission to read or write here",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.ENAMETOOLONG: "the name is too long for this disk",
    errno.ELOOP: "links that lead in a circle",
}

# What libraries say of a full disk in exceptions of their own: safetensors, tokenizers; NumPy's `tofile`; faiss
LARGE = re.compile(r"File too large \(os error")
FULL = re.compile(
    r"No space left on device|^\d+ requested and \d+ written$|faiss::write_.* failed: write error", re.DOTALL
)


SHOWN = 60  # characters of a wrong value in a message

# what steers a terminal (ESC and the like) or turns the direction of writing, as a message shows it
STEERING = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
STEERING |= {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class UserError(Exception):
    """Bad input. The message is one line that names the file and line, or the config key, and what to do.

    The command line prints it as ``error: <message>`` and exits with code 1; no traceback is shown. What it quotes of an
    input may hold anything: control characters and halves of a character are written as escapes, as ``\\x1b``.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(str(message).translate(STEERING).encode(errors="backslashreplace").decode())


class DiskError(UserError):
    """The disk is full or closed. A run ends at once: its other stages would fare no better."""


def of_the_disk(error: BaseException) -> DiskError | None:
    """What is said where ``error`` is a fault of the disk; None where it is another."""
    if isinstance(error, OSError) and error.errno in DISK:
        return DiskError(f"{error.filename2 or error.filename or 'output_root'}: {DISK[error.errno]}")
    if LARGE.search(str(error)):
        return DiskError(f"output_root: {DISK[errno.EFBIG]}")
    if FULL.search(str(error)):
        return DiskError(f"output_root: {DISK[errno.ENOSPC]}")
    return None


def said_within(error: BaseException) -> UserError | None:
    """The ``UserError`` that a library has wrapped into an error of its own; None where there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__ or cause.__context__
    return cause


RENAMED = {  # what recipes of before call it -> what it is called now
    "approximate": "ann_index",
    "augment": "pseudo_label",
    "breadth": "ef_search",
    "clip": "max_grad_norm",
    "contrastive": "info_nce",
    "ltr": "learning_to_rank",
    "minimum": "min_length",
    "probes": "nprobe",
    "triples": "read_negatives",
    "warmup": "warmup_ratio",
}


ELSEWHERE = {  # what other toolkits call it -> what it is called here
    "gradient_clip_val": "max_grad_norm",
    "lr": "learning_rate",
    "max_length": "length",
    "max_seq_length": "length",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "p_max_len": "passage_length",
    "passage_max_len": "passage_length",
    "per_device_train_batch_size": "batch_size",
    "q_max_len": "query_length",
    "query_max_len": "query_length",
    "train_batch_size": "batch_size",
    "warmup_steps": "warmup_ratio",
}


def close_to(word: str, known: Iterable[str]) -> str:
    """The hint `` (did you mean 'x'?)`` where a known word is near or is the new name, otherwise the known words."""
    words = sorted(known)
    if RENAMED.get(word) in words:
        return f" (it is now called {RENAMED[word]!r})"
    if ELSEWHERE.get(word) in words:
        return f" (here it is called {ELSEWHERE[word]!r})"
    near = difflib.get_close_matches(word, words, 1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {', '.join(words)})" if words else ""


def shown(text: str, most: int = SHOWN) -> str:
    """A wrong value as a message shows it: its first ``most`` characters, and how long it is where it is longer."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
