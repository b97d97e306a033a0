"""What ``spark-submit`` runs: a job is the ``freshet`` command of the same name, in the session that was submitted.

So options and settings are the command's: Kafka's user and password come from ``--config FILE`` or ``FRESHET_*``, never
from the command line, which all users of a machine can read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(command: str) -> None:
    """Runs ``freshet COMMAND`` with this process's arguments, and ends it. ``--config FILE`` may stand among them."""
    from freshet.cli import main as freshet

    given, first = sys.argv[1:], list[str]()
    while "--config" in given[:-1]:
        at = given.index("--config")
        first += given[at : at + 2]
        del given[at : at + 2]
    # spark-submit puts the job's folder first: its modules would hide others of the same name
    sys.path[:] = [place for place in sys.path if Path(place or os.curdir).resolve() != Path(__file__).resolve().parent]
    sys.argv[1:] = [*first, command, *given]
    freshet()
