"""What the fixtures of this folder give, as types."""

import subprocess
from collections.abc import Callable

from omegaconf import DictConfig

Compose = Callable[..., DictConfig]
Launch = Callable[..., "subprocess.Popen[str]"]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
