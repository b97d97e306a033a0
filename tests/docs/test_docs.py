"""Everything that the documentation names exists, and everything that an operator must know is documented."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from freshet import cli
from freshet.sections.access import TokenSettings
from freshet.sections.shards import ShardSettings
from freshet.sections.sources import HiveSourceSettings, MariaDBSourceSettings, WorkloadSourceSettings
from freshet.settings import KeyspaceSettings, Settings
from serving.client import FreshetClient
from serving.client.answers import STATUS_OF_CODE
from tests.docs.naming import ROOT, dotted_exists, file_exists, is_dotted, is_file, number_in, number_of
from tokens.errors import FreshetError

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
SETTINGS, METRICS, HTTP_API = (
    ROOT / "docs" / name for name in ("operating/settings.md", "operating/monitoring.md", "start/http-api.md")
)
NUMBERS = [
    ROOT / "docs" / name
    for name in (
        "internals/wire.md",
        "internals/store.md",
        "internals/owner-protocol.md",
        "operating/running.md",
        "operating/performance.md",
        "start/http-api.md",
    )
]
"""Pages whose numbers with a unit must be in tables that are compared with the code."""
ROOMS = ("consumers", "freshet", "lab", "serving", "spark_jobs", "stream", "tokens")
NO_SETTINGS = {"FRESHET_CONFIG", "FRESHET_CACHE", "FRESHET_DEBUG", "FRESHET_MARIADB_PASSWORD"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_TABLE = re.compile(r"^\|.*\| value \| in the code \|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
_MEASURE = re.compile(r"\b\d[\d.,]* ?(?:[KMG]iB|[kMG]B|bytes|ms|s|seconds|minutes|days?|rows|keys|%)(?!\w)")
_PAGE_IN_CODE = re.compile(r"(?<![\w/])[a-z][\w/-]*\.md\b")
_SAMPLE_SUFFIX = re.compile(r"_(total|bucket|count|sum)$")


def text_of(page: Path) -> str:
    """A page's text."""
    return page.read_text(encoding="utf-8")


@cache
def code_of_rooms() -> str:
    """All our Python, without tests."""
    return "\n".join(text_of(file) for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lines_of(page: Path) -> list[str]:
    """Each ``freshet …`` line of code that a page shows, without comments and prompts."""
    found = []
    for language, block in _FENCE.findall(text_of(page)):
        if language in ("", "sh", "bash"):
            found += [line.split(" #")[0].rstrip(" &") for line in block.splitlines() if line.startswith("freshet ")]
    return found


def problem_of(command: str, *, is_whole: bool = False) -> str:
    """Why a shown command is invalid; "" if it is valid. Words in capitals and ``…`` are placeholders.

    ``is_whole``: it is to be typed as it stands, so it has all that it must have; in a sentence its name may do.
    """
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
    if unknown:
        return f"no option {unknown}"
    return _lack_of(node, words) if is_whole and not hasattr(node, "get_command") else ""


def _lack_of(command: Any, words: list[str]) -> str:
    """What of a command's required parameters is not among the words, or which words are too many."""
    typed = [*takewhile(lambda word: word not in ("<", ">"), words)]
    context = command.context_class(command, resilient_parsing=True)
    given, rest, _ = command.make_parser(context).parse_args(typed)
    lacking = [each.name for each in command.params if each.required and not given.get(each.name)]
    return f"lacks {lacking}" if lacking else f"has {rest} beyond its arguments" if rest else ""


def fields_of(model: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted names of all settings of a model and its sections, with their defaults (`...` where one must be set)."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            found |= fields_of(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = ... if field.is_required() else field.get_default(call_default_factory=True)
    return found


def is_of_a_keyspace(variable: str) -> bool:
    """Whether it sets something of one keyspace or of its source: ``FRESHET_KEYSPACES__SHOP__SOURCE__PASSWORD``."""
    section, _, path = variable.lower().partition("__")
    name = path.partition("__")[2].removeprefix("source__")
    models = (KeyspaceSettings, MariaDBSourceSettings, WorkloadSourceSettings, HiveSourceSettings)
    return section == "freshet_keyspaces" and any(name in model.model_fields for model in models)


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
    """Commands, subcommands and options of `freshet` are as the command line has them, and lines can be typed."""
    spans = [span for span in _SPAN.findall(text_of(page)) if span.startswith("freshet ")]
    assert {command: problem for command in spans if (problem := problem_of(command))} == {}
    assert {line: problem for line in lines_of(page) if (problem := problem_of(line, is_whole=True))} == {}


def test_a_wrong_command_in_a_page_would_be_found() -> None:
    """The check of commands finds a wrong command."""
    assert problem_of("freshet local sideways")
    assert problem_of("freshet lag shop --nonsense")
    assert problem_of("freshet local up --json") == ""
    assert problem_of("freshet bytes replay trace.jsonl") == ""
    assert problem_of("freshet bytes replay trace.jsonl", is_whole=True) == "lacks ['capacity']"
    assert problem_of("freshet lag shop bank", is_whole=True) == "has ['bank'] beyond its arguments"
    assert problem_of("freshet token hash < secret", is_whole=True) == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_shown_exists(page: Path) -> None:
    """Every `make` target in a page is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    code = "\n".join([block for _, block in _FENCE.findall(text_of(page))] + _SPAN.findall(text_of(page)))
    shown = re.findall(r"^(?:[A-Z_]+=\S+ )*make ([a-z]+)", code, re.MULTILINE)
    assert set(shown) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_is_named_exists(page: Path) -> None:
    """Every `section.key` and FRESHET_ variable in a page is a setting."""
    known = fields_of(Settings)
    sections = {name.split(".")[0] for name in known if "." in name}
    known |= {f"{name}_file": "" for name in known} | {name.rpartition(".")[0]: "" for name in known}
    named = {span for span in _SPAN.findall(text_of(page)) if re.fullmatch(r"[a-z]+\.[a-z_]+", span)}
    wrong = {
        span
        for span in named
        if span.split(".")[0] in sections and span not in known and not span.endswith(".py")
        if not (span.startswith("client.") and hasattr(FreshetClient, span.removeprefix("client.")))
    }
    variables = {f"FRESHET_{name.upper().replace('.', '__')}" for name in known} | NO_SETTINGS
    mentioned = set(re.findall(r"\bFRESHET_[A-Z_]*[A-Z]\b", text_of(page)))
    wrong |= {name for name in mentioned - variables if not name.startswith(("FRESHET_TEST_", "FRESHET_A__"))}
    wrong -= {name for name in wrong if name.startswith("FRESHET_") and name in code_of_rooms()}
    wrong -= {name for name in wrong if is_of_a_keyspace(name)}
    assert wrong == set()


def test_every_setting_is_documented_with_its_default() -> None:
    """The page of settings lists every setting with its real default."""
    page = text_of(SETTINGS)
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", page, re.MULTILINE))
    known = (
        fields_of(ShardSettings)
        | fields_of(Settings)
        | fields_of(KeyspaceSettings)
        | fields_of(MariaDBSourceSettings)
        | fields_of(WorkloadSourceSettings)
        | fields_of(HiveSourceSettings)
    )
    for name in ("keyspaces", "source"):
        known.pop(name)
    known |= fields_of(TokenSettings)
    told = {name: value.strip().strip("`") for name, value in rows.items()}
    plain = {name: str(value) for name, value in known.items() if isinstance(value, str | int | float) and value != ""}
    wanted = plain | {"kind": "must be set"}
    expected = "\n".join(f"| `{name}` | {wanted.get(name, told.get(name, '…'))} | … |" for name in known)
    assert set(rows) == set(known), f"the rows should be\n{expected}"
    assert {name: told[name] for name in wanted} == wanted, f"the rows should be\n{expected}"


def test_the_settings_that_are_shown_can_be_loaded() -> None:
    """A settings file that is shown in a page can be loaded."""
    for page in (SETTINGS, ROOT / "docs/start/own-mariadb.md"):
        first, *others = [shown for language, shown in _FENCE.findall(text_of(page)) if language == "toml"]
        assert Settings(**tomllib.loads(first)).keyspaces["shop"].partitions == 16
        for shown in others:
            assert Settings(**tomllib.loads(shown)).keyspaces["shop"]


@cache
def names_of_tests() -> set[str]:
    """All our tests, by the name of their function."""
    code = "\n".join(text_of(file) for file in (ROOT / "tests").rglob("test_*.py"))
    return set(re.findall(r"def (test_\w+)", code))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem)
def test_every_file_and_name_of_the_code_exists(page: Path) -> None:
    """Every ``path/to/module.py`` and ``package.module.Name`` in a page exists under that name."""
    spans = set(_SPAN.findall(text_of(page)))
    missing = {name for name in spans if is_file(name) and not file_exists(name)}
    missing |= {name for name in spans if is_dotted(name) and not dotted_exists(name)}
    missing |= {name for name in spans if re.fullmatch(r"test_\w+", name)} - names_of_tests()
    assert missing == set()


def test_a_name_that_is_gone_would_be_found() -> None:
    """The check of names finds a missing name."""
    assert is_file("stream/wire/gone.py")
    assert not file_exists("stream/wire/gone.py")
    assert is_dotted("stream.wire.batch.Framer.gone")
    assert not dotted_exists("stream.wire.batch.Framer.gone")
    assert not dotted_exists("stream.wire.gone")
    assert dotted_exists("stream.wire.batch.Framer.take")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_of_the_code_is_the_codes(page: Path) -> None:
    """The tables of values say what the constants, defaults and settings say."""
    settings = fields_of(Settings) | fields_of(KeyspaceSettings)
    wrong = []
    for rows in _TABLE.findall(text_of(page)):
        for row in rows.splitlines():
            *_, cell, source = (part.strip() for part in row.strip("|").split("|"))
            name = source.strip("`")
            if number_in(cell) != pytest.approx(number_of(name, settings)):
                wrong.append(f"{name}: the page says {cell}, the code {number_of(name, settings):,g} bytes, s or times")
    assert wrong == []


def test_a_wrong_number_would_be_found() -> None:
    """The check of numbers finds a wrong number."""
    assert sum(len(_TABLE.findall(text_of(page))) for page in PAGES) >= len(NUMBERS)
    assert number_in("16 MiB") == number_of("stream.kafka.topics.MESSAGE_BYTES_MAX", {}) == 16 * 1024 * 1024
    assert number_in("26 ms") != number_of("publisher.batch_interval_ms", fields_of(Settings))


@pytest.mark.parametrize("page", NUMBERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_with_a_unit_stand_in_tables(page: Path) -> None:
    """A limit is written only in a table that is compared with the code, so the text cannot become outdated."""
    text = _FENCE.sub("", _TABLE.sub("", text_of(page)))
    assert _TABLE.search(text_of(page))
    assert _MEASURE.findall(text) == []
    assert _MEASURE.search("ends at 500 rows or 256 KiB")


def test_the_errors_of_the_api_have_their_status() -> None:
    """The table of HTTP errors has every code under its status."""
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", text_of(HTTP_API), re.MULTILINE)
    told = {code: int(status) for status, cell in rows for code in _SPAN.findall(cell)}
    assert told == STATUS_OF_CODE


def test_each_command_that_ends_with_0_when_it_is_stopped_is_named() -> None:
    """Whoever runs one in a script must know which exit codes mean that it was stopped before its end."""
    [section] = re.findall(r"^## Exit codes\n(.*?)^## ", text_of(ROOT / "docs/operating/running.md"), re.M | re.S)
    told = set(_SPAN.findall(section))
    services = {entry.name for entry in cli.ENTRIES if entry.service or entry.unlike}
    assert services <= told
    assert {entry.unlike for entry in cli.ENTRIES if entry.unlike} <= told
    assert not told & ({entry.name for entry in cli.ENTRIES} - services)


def test_the_code_cites_only_pages_that_are_there() -> None:
    """Every page that a docstring cites is in the repository."""
    gone = []
    for file in [path for room in (*ROOMS, "tests", "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]:
        if file != Path(__file__):
            cited = set(_PAGE_IN_CODE.findall(text_of(file)))
            gone += [f"{file.relative_to(ROOT)}: {page}" for page in cited if not (ROOT / page).is_file()]
    assert gone == []


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    """The page of metrics and the code name the same ones."""
    names = r'"(freshet_(?:build|bytes|consumer|store|overlay|reads|owner|serve|source|verify)_[a-z_]+)"'
    exposed = set(re.findall(names, code_of_rooms()))
    told = {_SAMPLE_SUFFIX.sub("", name) for name in re.findall(r"freshet_[a-z_]+[a-z]", text_of(METRICS))}
    assert told == exposed


def test_every_error_code_of_ours_is_in_a_page() -> None:
    """An operator can find every `error[code]` in the documentation."""
    codes = set(re.findall(r'\bcode(?:: str)? ?= ?"([a-z_]+)"', code_of_rooms()))
    told = set(_SPAN.findall("\n".join(text_of(page) for page in ROOT.glob("docs/**/*.md"))))
    assert codes - told == {FreshetError.code}  # what every error of ours is one of


def test_a_metric_and_its_alert_name_the_same_threshold() -> None:
    """Where a HELP text says from when on something is wrong, the alert page says the same number."""
    helps = re.findall(r'"(freshet_[a-z_]+)",\s*"[^"]*\babove (\d+)', code_of_rooms())
    assert helps
    assert [(name, number) for name, number in helps if f"{name} > {number}" not in text_of(METRICS)] == []
