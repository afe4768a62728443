"""Error messages for exceptions that end a run. A foreseeable fault is reported in one line."""

import os
import re
import shlex
import sys

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from condensery.errors import SHOWN, StageError, UserError, close_to, message_within, of_the_disk


class Stopped(BaseException):
    """Raised from the exception that ends a run. Hydra lets ``Stopped`` pass, and adds no lines to the message."""


def in_one_line(error: BaseException) -> str | None:
    """Return the error message for a foreseeable fault or for failed stages; ``None`` for any other exception."""
    error = of_the_disk(error) or error
    if isinstance(error, UserError):
        return "error: " + shortened(" ".join(str(error).split()))
    if isinstance(error, StageError):
        return str(error)
    of_hydra = isinstance(error, HydraException | OmegaConfBaseException)
    if of_hydra and (message := message_within(error)):
        return in_one_line(message)
    plain = isinstance(error, ValueError | RuntimeError | TypeError) and _raised_in(error)[1].startswith("hydra.")
    if of_hydra or plain:  # for example, ``data=null`` or an unknown launcher raises a plain exception
        return "error: " + shortened(_of_hydra(error)).replace("\n", r"\n")  # a key or value may have line ends
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark
        return f"error: {f'{mark.name}:{mark.line + 1}: ' if mark else ''}not valid YAML ({error.problem})"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return f"error: {UserError(error.object[:SHOWN])}: contains half a character, or bytes that are not UTF-8"
    if isinstance(error, FileNotFoundError) and error.filename is None and not os.stat(".").st_nlink:  # from `getcwd`
        return "error: the folder in which this command was started no longer exists; start it in another"
    if isinstance(error, FileNotFoundError) and _raised_in(error)[0] == "mkdir":
        return f"error: {error.filename}: no folder can be made here; choose another output_root"
    return None


def quoted(key: str, value: str) -> str:
    """Return ``key=value``, quoted so that the shell and Hydra take the value literally."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return shlex.quote(f"{key}={QuotedString(value, Quote.double).with_quotes()}")


def shortened(text: str) -> str:
    """Shorten very long numbers and words in a message; the limits exceed the length of any file name."""
    text = re.sub(r"\d{101,}", lambda match: f"{match[0][:20]}… ({len(match[0]):,} digits)", text)
    return re.sub(r"[^\s/]{256,}", lambda match: f"{match[0][:40]}… ({len(match[0]):,} characters)", text)


def _raised_in(error: BaseException) -> tuple[str, str]:
    """Return the function and the module that raised the exception."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_name, trace.tb_frame.f_globals["__name__"]) if trace else ("", "")


def _of_hydra(error: BaseException) -> str:
    text = str(error) or str(error.__cause__ or type(error).__name__)
    if unheaded := re.match(r"In '(experiment/[^']*)': Could not override '[^']*@experiment", text):
        return f"{unheaded[1]}: the first line of a recipe must be `# @package _global_`"
    if unknown := re.match(r"Could not override '([^']*)'", text):
        from condensery.pipeline.config import hint_for_key

        return f"{unknown[1]}: unknown key{hint_for_key(unknown[1].partition('.')[0])}"
    if merged := re.match(r"Error merging override \+*([^=]*)=", text):
        why = str(error.__cause__ or error.__context__).split("\n")[0]
        return f"{merged[1]}: {'is a list where a mapping is needed, or the reverse' if 'Cannot merge' in why else why}"
    if appended := re.match(r"Could not append to config\. An item is already at '(.*?)'", text):
        return f"{appended[1]}: exists already; leave out the + before it"
    if several := re.match(r"Ambiguous value for argument '\+*([^=]*)=(.*?)'\n", text, re.S):
        key, values = several[1], several[2]
        return (
            f"{key}={values}: several values are a sweep; add -m, or write one list as {key}=[{values}], or one value"
            f" with a comma as {quoted(key, values)}"
        )
    if text.startswith("While dereferencing interpolation '${output_root}'"):
        return "output_root: names no folder; give a path"
    # raised for experiment=5 and experiment=[5]; Hydra's message does not name the override
    if text.startswith("Config group override must be") or isinstance(error, TypeError):
        no_names = r"[+~]*\w+=(null|true|false|[-+.\de]+|\[.*)"  # with values that Hydra does not read as strings
        groups = [argument for argument in sys.argv[1:] if re.fullmatch(no_names, argument, re.I)]
        text = f"{' or '.join(groups)}: a group needs the name of one of its options"
    if isinstance(error, OverrideParseException):
        word = (error.override or "").lstrip("+")
        key, equals, value = word.partition("=")
        if not equals and word.isidentifier():
            return f'{word}: not of the form key=value; write experiment=NAME for a recipe, ask="two words" for a text'
        unquoted = re.sub(r"""(['"]).*?(\1|$)""", "", word)
        if letter := re.search("[^\0-\x7f]", unquoted):
            return (
                f"{word}: {letter[0]} is read only in quotes, as in 'key=[\"{letter[0]}\"]'; write a name with such letters,"
                " such as a row of the table, in the recipe's file"
            )
        example = quoted(key, value) if key and value and value[0] not in "[{'\"" else "'key=\"a, b\"'"
        return (
            f"{word}: not of the form key=value; close each bracket and quote, and leave out a last comma "
            f"(quote a value with special characters: {example}; quote no name in a mapping; null removes a row:"
            " 'table.rows={+ hard negatives: null}')"
        )
    if option := re.match(r"In '.*?': Could not find '(.*?)'\s*Available options in '(.*?)':(.*?)Config s", text, re.S):
        group, name = option[2], option[1].removeprefix(f"{option[2]}/")
        hint = close_to(name, option[3].split())
        if "did you mean" not in hint:
            hint = f"; for your own, write FOLDER/{group}/{name}.yaml and add --config-dir FOLDER{hint}"
        return f"{group}={name}: there is no such option{hint}"
    if key := getattr(error, "full_key", None):  # an exception of OmegaConf
        return f"{key}: {text.partition(chr(10))[0]}"
    text = text.partition("Config search path:")[0]
    if "'study/" in text:
        text += " (the folder study is now called base)"
    return " ".join(text.split())
