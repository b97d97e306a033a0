"""The bill of materials that `make sbom` writes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_bill_of_materials_names_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    """Who must tell what an installation holds gets all of it, by name, version and hash, from the lock itself."""
    made = ["make", "sbom", f"DIST={tmp_path}"]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True, timeout=300)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "freshet-cache")
    locked = re.findall(r"^([\w.-]+)==([\w.+-]+)", (ROOT / "docker/requirements.lock").read_text(), re.MULTILINE)
    assert {(each["name"], each["version"]) for each in bill["components"]} == set(locked)
    assert len(locked) > 20
    for each in bill["components"]:
        hashes = each["externalReferences"][0]["hashes"]
        assert hashes, each["name"]
        assert {one["alg"] for one in hashes} == {"SHA-256"}
