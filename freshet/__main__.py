"""The command ``freshet``, also as ``python -m freshet``."""

import faulthandler
import signal
from contextlib import suppress


def main() -> None:
    """Runs the command line. While it is loaded, Ctrl-C ends the process as SIGTERM does: without a traceback.

    If a library ends the process by a bad access to memory, where each thread was is told.
    """
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # stderr is closed, or no file
        faulthandler.enable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as after nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from freshet.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
