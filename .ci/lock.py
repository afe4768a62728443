"""Write requirements-lock.txt: the tested version of each package, with the hash of each of its files.

    make lock

One lock file serves all systems and versions of Python. It leaves out torch, because torch's builds for CPUs and for GPUs
come from different indexes and have different hashes. It also leaves out packages that only the build for GPUs needs.
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
LOCK = PROJECT / "requirements-lock.txt"
WANTED = ("requirements-dev.txt", "requirements-docs.txt")
LEFT_OUT = re.compile(r"(torch==|triton==|nvidia-|cuda-)")
HEAD = """\
# The packages that are tested, with hashes: `make install-locked` installs them, `make lock` writes this file anew.
# torch has other hashes for CPUs than for GPUs, and none here:
# locked without hashes: {torch}
"""


def main() -> None:
    """Resolve the requirements for every system and Python, and write the lock file."""
    uv = Path(sys.executable).with_name("uv")
    options = ("--universal", "--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--upgrade")
    command = [uv, "pip", "compile", "--python-version", "3.11", *options, *WANTED]
    resolved = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    entries = re.split(r"^(?=\S)", resolved, flags=re.MULTILINE)
    (torch,) = re.findall(r"^torch==[\d.]+", resolved, re.MULTILINE)
    LOCK.write_text(HEAD.format(torch=torch) + "".join(entry for entry in entries if not LEFT_OUT.match(entry)))


if __name__ == "__main__":
    main()
