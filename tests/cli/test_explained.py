"""Each command's help: examples that are valid, types that people say, -h, and completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from freshet import cli
from freshet.help.examples import EXAMPLES
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter
from stream.kafka.topics import events_topic
from tests.docs.test_docs import problem_of
from tests.patience import PATIENCE_S


def leaves(name: str, node: Any) -> list[str]:
    """The names of all commands below a group."""
    if not hasattr(node, "get_command"):
        return [name]
    inner = [(each, node.get_command(None, each)) for each in node.list_commands(None)]
    return [leaf for each, below in inner for leaf in leaves(f"{name} {each}".strip(), below)]


NAMES = leaves("", typer.main.get_command(cli.app))


def test_every_command_has_examples_and_every_example_a_command() -> None:
    """No command is without an example, and none is kept for a command that is gone."""
    assert set(NAMES) == set(EXAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_valid_examples_and_no_types_of_python(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` shows examples of this very command with options that it has, and says N, TEXT or PATH for what it takes."""
    assert cli.run([*name.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    examples = re.findall(r"^ +(freshet (?!.*OPTIONS).*)$", shown.partition("Examples:")[2], re.MULTILINE)
    assert tuple(examples) == EXAMPLES[name]
    assert [each for each in examples if f" {name}" not in each] == []
    problems = {each: problem_of(re.sub(r"--config \S+ ", "", each), is_whole=True) for each in examples}
    assert {each: problem for each, problem in problems.items() if problem} == {}
    assert re.findall(r"<(?:str|int|float|path|list|Path)\b[^>]*>", shown) == []
    assert "[[" not in shown  # what may be left out has brackets once


@pytest.mark.parametrize("name", ["dlq show", "dlq retry", "dlq dismiss"])
def test_a_letter_in_an_example_is_named_as_the_list_names_it(name: str) -> None:
    """With its topic: without it there is no such letter."""
    [example] = EXAMPLES[name]
    letter = DeadLetter(events_topic(KafkaCluster("nowhere:1"), "shop"), 0, 17, "", "")
    assert example == f"freshet {name} shop {letter.id}"


def test_a_shell_can_complete_commands() -> None:
    """The completion that `--install-completion` installs knows the commands."""
    asked = {**os.environ, "_FRESHET_COMPLETE": "complete_bash", "COMP_WORDS": "freshet loc", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "freshet"], env=asked, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout.split() == ["local"]
