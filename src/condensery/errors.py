"""Errors with a message for the user: bad input, a disk that cannot be written, or a stage that failed."""

import difflib
import errno
import re
from collections.abc import Collection, Iterable, Iterator

DISK = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this disk, or `ulimit -f`, allows",
    errno.EROFS: "the file system is read-only",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "no permission to read or write here"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a file, or a link to nothing, exists where a folder is needed"),
    errno.EISDIR: "a folder exists where a file is needed",
    errno.EIO: "the disk or the terminal reports an input/output error",
    errno.EMFILE: "too many files are open at once; raise `ulimit -n`",
    errno.ENAMETOOLONG: "the name is too long for this disk",
    errno.ELOOP: "the links in this path form a circle",
}

SAID = {  # phrases in exceptions raised by safetensors, tokenizers, NumPy's `tofile` and faiss -> the disk's error
    r"File too large \(os error": errno.EFBIG,
    r"No space left on device|^\d+ requested and \d+ written$|faiss::write_.* failed: write error": errno.ENOSPC,
}

# names of the exceptions that the hub's library raises if it has no network
UNREACHABLE = "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"

GPU_FULL = re.compile(r"(CUDA|HIP)( error:)? out of memory")
MEMORY_FULL = re.compile(r"[Cc]an('|no)t allocate memory|std::bad_alloc")  # as torch and C libraries say it

LISTED = 25  # maximum number of names that a message lists
SHOWN = 60  # maximum number of characters of a wrong value in a message

CONTROLS = (*range(0x20), *range(0x7F, 0xA0))  # codes of control characters, such as ESC, which controls a terminal
# codes of characters that change the text direction
TURNS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SINGULAR = {"have": "has", "are": "is", "were": "was", "share": "shares", "do": "does"}
STEERING = {code: f"\\x{code:02x}" for code in CONTROLS if chr(code) not in "\n\t"}  # code -> its escape in messages
STEERING |= {code: f"\\u{code:04x}" for code in TURNS}


class UserError(Exception):
    """Exception for bad input.

    The message is one line that names the file and line, or the config key, and tells the user what to do. The command line
    prints ``error: <message>`` without a traceback, and exits with code 1. The message may quote any input, because control
    characters and lone surrogates in it are written as escapes, such as ``\\x1b``.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(str(message).translate(STEERING).encode(errors="backslashreplace").decode())


class MissingDataError(UserError):
    """Exception for missing files of a collection that can also be downloaded by its name.

    Attributes:
        missing: the message about the files.
        by_name: overrides that read the collection by its name, such as ``data=ir_datasets data.name=msmarco-passage``.
    """

    def __init__(self, missing: str, by_name: str) -> None:
        super().__init__(f"{missing}; or set {by_name}, which downloads them")
        self.missing, self.by_name = missing, by_name


class StageError(Exception):
    """An error whose text is printed unchanged: the traceback of an unexpected exception, or lines about several stages."""


class DiskError(UserError):
    """Exception for a disk that is full or cannot be written.

    It ends the run at once, because the remaining stages would fail as well.
    """


class HubError(UserError):
    """Exception for a name that is not in the hub's local cache while the hub cannot be reached. It ends the run at once."""


def of_the_disk(error: BaseException) -> DiskError | None:
    """Return a ``DiskError`` for an ``error`` that the disk caused; None for any other error."""
    if isinstance(error, OSError) and error.errno in DISK:
        return DiskError(f"{error.filename2 or error.filename or 'output_root'}: {DISK[error.errno]}")
    found = next((number for phrase, number in SAID.items() if re.search(phrase, str(error), re.DOTALL)), None)
    return DiskError(f"output_root: {DISK[found]}") if found else None


def of_memory(error: BaseException, place: str) -> UserError | None:
    """Return a ``UserError`` for an ``error`` that full memory of a GPU or of the machine caused; None for any other."""
    if GPU_FULL.search(str(error)):
        return UserError(f"{place}: the GPU's memory is full; lower chunk_tokens, or end other programs on this GPU")
    if isinstance(error, MemoryError) or MEMORY_FULL.search(str(error)):
        return UserError(f"{place}: this machine's memory is full, or `ulimit -v` is reached; end other programs")
    return None


def of_loading(error: BaseException) -> type[UserError]:
    """Return the class of exception to raise for an ``error`` in loading a checkpoint or a tokenizer.

    The class is ``HubError`` if the hub could not be reached, otherwise ``UserError``.
    """
    return HubError if any(type(cause).__name__ in UNREACHABLE for cause in _causes(error)) else UserError


def message_within(error: BaseException) -> UserError | None:
    """Return the ``UserError`` that a library wrapped in its own exception; None if there is none."""
    return next((cause for cause in _causes(error) if isinstance(cause, UserError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, then the exception that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


ELSEWHERE = {  # name in other toolkits or in older recipes -> name here
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
    "zero_bias": "lexical_start",
    **dict.fromkeys(("max_length", "max_seq_length"), "length"),
    **dict.fromkeys(("p_max_len", "passage_max_len"), "passage_length"),
    **dict.fromkeys(("q_max_len", "query_max_len"), "query_length"),
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "batch_size"),
    "gradient_clip_val": "max_grad_norm",
    "lr": "learning_rate",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "warmup_steps": "warmup_ratio",
}


OF_YOUR_OWN = "; for one of your own, set CONDENSERY_STAGES to the module that registers it"


def close_to(word: str, known: Iterable[str]) -> str:
    """Return a hint for an error message about an unknown ``word``, with a leading space.

    For a former name, or a name from another toolkit, the hint is the current name in this project. Otherwise it is a similar
    known word (`` (did you mean 'x'?)``), or the list of known words.
    """
    words = sorted(known)
    if ELSEWHERE.get(word) in words:
        return f" (here it is called {ELSEWHERE[word]!r})"
    if near := difflib.get_close_matches(word, words, 1):
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {listed(words, word)})" if words else ""


def check_known(word: str, known: Collection[str], message: str, error: type[Exception] = UserError) -> None:
    """Raise an ``error`` with ``message`` and the hint of ``close_to``, unless ``word`` is in ``known``.

    ``error``: ``ValueError`` in a validator of pydantic.
    """
    if word not in known:
        raise error(f"{message}{close_to(word, known)}")


def listed(words: Iterable[str], word: str = "") -> str:
    """Return a list of words for an error message; from a long list, only the words that are most similar to ``word``."""
    every = sorted(words)
    if len(every) <= LISTED:
        return ", ".join(every)
    nearest = sorted(difflib.get_close_matches(word, every, LISTED, 0.0))
    return f"{', '.join(nearest)} and {len(every) - len(nearest)} others"


def number_of(number: int, words: str) -> str:
    """Return a number with what it counts, in the singular for 1: ``1 query has``, ``1 of 9 queries is``, ``2 layers``."""
    if number == 1:
        words = re.sub(r"^(?!of )(.*?)(ie)?s\b", lambda noun: noun[1] + "y" * bool(noun[2]), words)
        words = re.sub(r"\b(have|are|were|share|do)\b", lambda verb: _SINGULAR[verb[1]], words, count=1)
    return f"{number:,} {words}"


def shown(text: str, most: int = SHOWN) -> str:
    """Return a wrong value in a form for error messages.

    A value longer than ``most`` characters is truncated, and its length is appended.
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
