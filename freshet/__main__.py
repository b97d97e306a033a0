"""``python -m freshet``: the same as the command ``freshet``."""

from freshet.cli import main

main()
