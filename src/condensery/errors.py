"""The one error that a person sees: bad input, said in one line."""


class UserError(Exception):
    """Bad input. The message is one line that names the file and line, or the config key, and what to do.

    The command line prints it as ``error: <message>`` and exits with code 1; no traceback is shown.
    """
