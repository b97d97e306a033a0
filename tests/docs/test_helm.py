"""The Helm chart: what it renders runs commands that exist with settings that exist, and can be rolled.

``docker/helm/rendered.yaml`` is what `helm template` makes of it and of ``example.yaml``: made again and compared where
helm is installed. Else the sum in its first line shows that the chart is the one that it was made of.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from freshet.settings import Settings
from tests.docs.test_docs import NO_SETTINGS, fields_of, problem_of

HELM = Path(__file__).parents[2] / "docker" / "helm"
CHART = HELM / "freshet"
EXAMPLE = HELM / "example.yaml"
KEPT = HELM / "rendered.yaml"
RENDERED = KEPT.read_text(encoding="utf-8") if KEPT.exists() else ""
OBJECTS: list[dict[str, Any]] = [each for each in yaml.safe_load_all(RENDERED) if each]
WORKLOADS = [each for each in OBJECTS if each["kind"] in ("Deployment", "StatefulSet")]


def name_of(workload: dict[str, Any]) -> str:
    """Of an object."""
    return str(workload["metadata"]["name"])


def kind_and_name(each: dict[str, Any]) -> tuple[str, str]:
    """Of an object."""
    return str(each["kind"]), name_of(each)


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    """What its pods are."""
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def sum_of_chart() -> str:
    """Of all files of the chart, by name, and of the example."""
    files = sorted(each for each in CHART.rglob("*") if each.is_file())
    text = b"".join(str(each.relative_to(HELM)).encode() + each.read_bytes() for each in [*files, EXAMPLE])
    return hashlib.sha256(text).hexdigest()


def rendered(helm: str) -> str:
    """What is kept: the sum of the chart, and what helm makes of it. Raises if helm finds something wrong."""
    values = ["--values", str(EXAMPLE)]
    subprocess.run([helm, "lint", "--strict", str(CHART), *values], check=True, capture_output=True, timeout=60)
    command = [helm, "template", "freshet", str(CHART), "--namespace", "cache", *values]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return f"# of the chart {sum_of_chart()}, by `make helm`\n{made}"


def test_what_is_kept_is_what_the_chart_renders() -> None:
    """A change of the chart is a change of the kept file, which `make helm` writes."""
    assert RENDERED.startswith(f"# of the chart {sum_of_chart()}, by `make helm`\n")
    helm = os.environ.get("FRESHET_TEST_HELM") or shutil.which("helm")
    if helm is not None:
        made = [each for each in yaml.safe_load_all(rendered(helm)) if each]  # versions differ in spaces and in order
        assert sorted(made, key=kind_and_name) == sorted(OBJECTS, key=kind_and_name)


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_its_command_and_its_environment_exist(workload: dict[str, Any]) -> None:
    """The command line and the settings know them; none of them is a secret, which come from the Secret."""
    [container] = pod_of(workload)["containers"]
    assert problem_of(" ".join(["freshet", *container["args"]])) == ""
    known = {f"FRESHET_{name.upper().replace('.', '__')}" for name in fields_of(Settings)} | NO_SETTINGS | {"POD"}
    names = {each["name"] for each in container["env"]}
    assert names <= known
    assert not [name for name in names if re.search("PASSWORD|TOKEN|SECRET", name)]
    assert container["envFrom"] == [{"secretRef": {"name": "freshet"}}]


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_it_is_probed_where_it_listens(workload: dict[str, Any]) -> None:
    """At the port that its environment names; only fronts and consumers are asked whether they are ready."""
    [container] = pod_of(workload)["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    probed = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {each["port"] for each in probed.values()} <= ports
    assert probed["livenessProbe"]["path"] == "/healthz"
    assert ("readinessProbe" in probed) is ("source" not in name_of(workload))
    stated = {each["name"]: each.get("value") for each in container["env"]}
    given = {value for name, value in stated.items() if name.endswith("_PORT")}
    assert ports == {int(value) for value in given if value}


def test_a_source_that_listens_nowhere_is_not_probed() -> None:
    """Kubernetes would kill it each minute: the probe asked each source, and `freshet source workload` has no port."""
    text = (CHART / "templates" / "sources.yaml").read_text(encoding="utf-8")
    [asked] = re.findall(r'\{- if ne \(index \.command 1\) "workload" \}\}\n(.*?)\{\{- end \}\}\n', text, re.DOTALL)
    assert "livenessProbe:" in asked
    assert "containerPort:" in asked
    assert "9481" not in text.replace(asked, "")


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_it_has_no_more_rights_than_it_needs(workload: dict[str, Any]) -> None:
    """Not root, nothing to gain, and it writes only where a volume is."""
    pod = pod_of(workload)
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"/data", "/tmp", "/etc/freshet"} == {each["mountPath"] for each in container["volumeMounts"]}


def test_there_is_one_source_of_a_shard_and_the_old_one_ends_first() -> None:
    """Two would fence each other in turn."""
    [source] = [each for each in WORKLOADS if "source" in name_of(each)]
    assert (source["spec"]["replicas"], source["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_selectors_select_the_pods_that_are_meant() -> None:
    """Of workloads, services and budgets: the labels are those of exactly one workload's pods."""
    labels = {name_of(each): each["spec"]["template"]["metadata"]["labels"] for each in WORKLOADS}
    for each in OBJECTS:
        selector = each.get("spec", {}).get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            meant = [name for name, of in labels.items() if wanted.items() <= of.items()]
            assert len(meant) == 1, name_of(each)


def test_an_owner_is_announced_under_its_own_name() -> None:
    """Pods of the set have names in the headless service's domain, also while they are not ready."""
    [consumer] = [each for each in WORKLOADS if each["kind"] == "StatefulSet"]
    [service] = [each for each in OBJECTS if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"]
    stated = {each["name"]: each.get("value") for each in pod_of(consumer)["containers"][0]["env"]}
    assert consumer["spec"]["serviceName"] == name_of(service)
    assert stated["FRESHET_CONSUMER__OWNER_ANNOUNCED"] == f"$(POD).{name_of(service)}.cache.svc:8481"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_chart_adds_no_keyspace_to_those_that_it_is_given() -> None:
    """Helm merges maps: one in its own values would be in every installation, without a source, and never be ready."""
    own = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert (own["settings"], own["sources"]) == ({"kafka": {"bootstrap": "kafka:9092"}, "keyspaces": {}}, [])


def test_the_settings_file_is_one() -> None:
    """What the ConfigMap holds is read by Freshet."""
    [config] = [each for each in OBJECTS if each["kind"] == "ConfigMap"]
    settings = Settings(**tomllib.loads(config["data"]["freshet.toml"]))
    assert list(settings.keyspaces) == ["shop"]


if __name__ == "__main__":
    KEPT.write_text(rendered(os.environ.get("FRESHET_TEST_HELM") or "helm"), encoding="utf-8")
