"""The places that rows came from, in 8 bytes a row. So a fault that is found at the end still names file and line."""

import re
from array import array


class Places:
    """A list of places ``path:line`` (or ``path:line:column``) that keeps each path once."""

    def __init__(self) -> None:
        self._paths: dict[str, int] = {}
        self._path, self._line = array("I"), array("I")

    def __len__(self) -> int:
        return len(self._line)

    def add(self, where: str) -> None:
        """Append ``where`` (``path:line``, or any text without a line)."""
        path, _, line = where.rpartition(":")
        if not line.isdecimal():
            path, line = where, "0"
        self._path.append(self._paths.setdefault(path, len(self._paths)))
        self._line.append(int(line))

    def path(self, row: int) -> str:
        """The file of a place."""
        return re.sub(r":\d+$", "", list(self._paths)[self._path[row]])  # of path:line:column the path keeps the line

    def __getitem__(self, row: int) -> str:
        path = list(self._paths)[self._path[row]]
        return f"{path}:{self._line[row]}" if self._line[row] else path
