"""The requests of docs/start/http-api.md, run as they are written there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from freshet.local.java import find_java
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack
from tokens import Vector

PAGE = (Path(__file__).parents[2] / "docs/start/http-api.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### Make a token from a GTID")[2].partition("\n## ")[0]
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL))
MAIN = """
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.regex.*;

class Main {
  public static void main(String[] given) throws Exception {
    String front = given[0], gtid = given[1];
    %s
    System.out.println(answer.body());
    System.out.println(token);
  }
}
"""


def of_stack(text: str, stack: ServingStack) -> str:
    """A documented text with the names of a running stack instead of the page's."""
    return re.sub(r"\bshop\b", stack.keyspace, text).replace("orders/7", "accounts/4242")


def written(stack: ServingStack, name: str) -> str:
    """Writes a row, and returns what ``SELECT @@last_gtid`` says."""
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute("REPLACE INTO accounts VALUES (4242, 1, %s)", (name,))
        cursor.execute("SELECT @@last_gtid")
        return str(cursor.fetchone()[0])


def test_the_documented_token_is_one() -> None:
    """The text that the page shows is accepted, and so is each template with its variables filled in."""
    assert Vector.parse(re.findall(r"`(time=\S+)`", SECTION)[0]) == Vector.parse(
        "time=9;shard=shop/0;epoch=1;position=MariaDB/0-1-15"
    )
    filled = SECTION.replace("$epoch", "3").replace("{$place['epoch']}", "3").replace('" + epoch.group(1) + "', "3")
    filled = filled.replace("$GTID", "0-1-9").replace("$gtid", "0-1-9").replace('" + gtid', '0-1-9"')
    found = re.findall(r'(time=0;shard=[^"…`\n]*)"', filled)
    assert len(found) == 3
    wanted = Vector.parse("time=0;shard=shop/0;epoch=3;position=MariaDB/0-1-9")
    assert {Vector.parse(text) for text in found} == {wanted}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_its_own_write(stack: ServingStack) -> None:
    """The lines for the shell see the write whose GTID they are given, proved fresh."""
    gtid = written(stack, "curl")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", of_stack(BLOCKS["sh"], stack)],
        env={"FRONT": stack.url, "GTID": gtid, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert '"name":"curl"' in done.stdout
    assert '"freshness":"fresh"' in done.stdout


def test_java_reads_its_own_write(stack: ServingStack, tmp_path: Path) -> None:
    """The lines for Java do, and the token that they keep holds the write."""
    gtid = written(stack, "java")
    (tmp_path / "Main.java").write_text(MAIN % of_stack(BLOCKS["java"], stack))
    command = [find_java().path, str(tmp_path / "Main.java"), stack.url, gtid]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    body, token = done.stdout.splitlines()
    assert '"name":"java"' in body
    assert '"freshness":"fresh"' in body
    component = Vector.parse(token).get(stack.shard)
    assert component is not None
    assert gtid in str(component.position)
