"""What the documentation names exists, and what an operator must know is documented."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from freshet import cli
from freshet.settings import KeyspaceSettings, MariaDBSourceSettings, Settings, WorkloadSourceSettings
from tokens.errors import FreshetError

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
ROOMS = ("consumers", "freshet", "lab", "serving", "spark_jobs", "stream", "tokens")
NO_SETTINGS = {"FRESHET_CONFIG", "FRESHET_CACHE", "FRESHET_DEBUG", "FRESHET_MARIADB_PASSWORD"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_SAMPLE_SUFFIX = re.compile(r"_(total|bucket|count|sum)$")


def text_of(page: Path) -> str:
    """A page's text."""
    return page.read_text(encoding="utf-8")


def code_of_rooms() -> str:
    """All our Python, without tests."""
    return "\n".join(text_of(file) for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[str]:
    """Each ``freshet …`` line of code that a page shows, without comments and prompts."""
    found = []
    for language, block in _FENCE.findall(text_of(page)):
        if language in ("", "sh", "bash"):
            found += [line.split(" #")[0].rstrip(" &") for line in block.splitlines() if line.startswith("freshet ")]
    return found + [span for span in _SPAN.findall(text_of(page)) if span.startswith("freshet ")]


def problem_of(command: str) -> str:
    """Why a shown command can't be one of ours; "" if it can. Words in capitals and ``…`` stand for a reader's own."""
    node: Any = typer.main.get_command(cli.app)
    words = shlex.split(command, comments=True)[1:]
    while words and hasattr(node, "get_command"):
        if words[0].startswith("--"):
            break
        names = words.pop(0).split("|")
        inner = [node.get_command(None, name) for name in names]
        if names == ["…"]:
            return ""
        if None in inner:
            return f"no command {names}"
        node = inner[0]
    options = {name for parameter in node.params for name in [*parameter.opts, *parameter.secondary_opts]}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in {*options, "--help"}]
    return f"no option {unknown}" if unknown else ""


def fields_of(model: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted names of all settings of a model and its sections, with their defaults (`...` where one must be set)."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            found |= fields_of(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = ... if field.is_required() else field.get_default(call_default_factory=True)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Files and headings that pages point to are there."""
    dead = []
    for link in _LINK.findall(text_of(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_shown_exists(page: Path) -> None:
    """Commands, subcommands and options of `freshet` are as the command line has them."""
    assert {command: problem for command in commands(page) if (problem := problem_of(command))} == {}


def test_a_wrong_command_in_a_page_would_be_found() -> None:
    """The check is no formality."""
    assert problem_of("freshet local sideways")
    assert problem_of("freshet lag shop --nonsense")
    assert problem_of("freshet local up --json") == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_shown_exists(page: Path) -> None:
    """`make demo` and its kin."""
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    code = "\n".join([block for _, block in _FENCE.findall(text_of(page))] + _SPAN.findall(text_of(page)))
    shown = re.findall(r"^(?:[A-Z_]+=\S+ )*make ([a-z]+)", code, re.MULTILINE)
    assert set(shown) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_is_named_exists(page: Path) -> None:
    """`section.key` and FRESHET_ variables."""
    known = fields_of(Settings)
    sections = {name.split(".")[0] for name in known if "." in name}
    named = {span for span in _SPAN.findall(text_of(page)) if re.fullmatch(r"[a-z]+\.[a-z_]+", span)}
    wrong = {
        span for span in named if span.split(".")[0] in sections and span not in known and not span.endswith(".py")
    }
    variables = {f"FRESHET_{name.upper().replace('.', '__')}" for name in known} | NO_SETTINGS
    mentioned = set(re.findall(r"\bFRESHET_[A-Z_]*[A-Z]\b", text_of(page)))
    wrong |= {name for name in mentioned - variables if not name.startswith(("FRESHET_TEST_", "FRESHET_A__"))}
    wrong -= {name for name in wrong if name.startswith("FRESHET_") and name in code_of_rooms()}
    assert wrong == set()


def test_every_setting_is_documented_with_its_default() -> None:
    """docs/settings.md is complete, and true."""
    page = text_of(ROOT / "docs/settings.md")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page, re.MULTILINE))
    known = (
        fields_of(Settings)
        | fields_of(KeyspaceSettings)
        | fields_of(MariaDBSourceSettings)
        | fields_of(WorkloadSourceSettings)
    )
    for name in ("keyspaces", "source"):
        known.pop(name)
    assert set(rows) == set(known)
    told = {name: value.strip().strip("`") for name, value in rows.items()}
    plain = {name: str(value) for name, value in known.items() if isinstance(value, str | int | float) and value != ""}
    words = {"shard": "NAME/0", "kind": "must be set"}
    assert {name: told[name] for name in plain} == plain | {name: words[name] for name in words if name in plain}


def test_the_settings_that_are_shown_can_be_loaded() -> None:
    """The file in docs/settings.md is a file of settings."""
    [(_, shown)] = [fence for fence in _FENCE.findall(text_of(ROOT / "docs/settings.md")) if fence[0] == "toml"]
    settings = Settings(**tomllib.loads(shown))
    assert settings.keyspaces["shop"].partitions == 16


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    """docs/operations.md and the code name the same metrics."""
    exposed = set(re.findall(r'"(freshet_(?:consumer|store|overlay|reads|owner|serve)_[a-z_]+)"', code_of_rooms()))
    page = text_of(ROOT / "docs/operations.md")
    told = {_SAMPLE_SUFFIX.sub("", name) for name in re.findall(r"freshet_[a-z_]+[a-z]", page)}
    assert told == exposed


def test_every_error_code_of_ours_is_in_a_page() -> None:
    """Whoever meets `error[code]` at night finds it."""
    codes = set(re.findall(r'\bcode(?:: str)? ?= ?"([a-z_]+)"', code_of_rooms()))
    told = set(_SPAN.findall("\n".join(text_of(page) for page in ROOT.glob("docs/*.md"))))
    assert codes - told == {FreshetError.code}  # what every error of ours is one of
