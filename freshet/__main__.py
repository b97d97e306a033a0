"""The command ``freshet``, also as ``python -m freshet``."""

import signal


def main() -> None:
    """Runs the command line. While it is loaded, Ctrl-C ends the process as SIGTERM does: without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as after nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from freshet.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
