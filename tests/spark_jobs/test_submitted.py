"""Jobs as the pages submit them: the commands are taken from the pages, and run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.engine.executors import OF_PLACES, PACKAGES, question, runs_here, unfit
from spark_jobs.output import read_report
from stream.kafka.connection import KafkaCluster
from tests.consumers.owning import schema
from tests.docs.naming import ROOT
from tests.servers.standalone import Standalone, spark_environment, standalone
from tests.spark_jobs.source.shop import COLUMNS
from tests.spark_jobs.test_live_verify import consuming
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.topics import TestTopic, history

SUBMIT_TIMEOUT_S = 850
TOO_OLD = """Job aborted due to stage failure: org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File "pyspark.zip/pyspark/errors/error_classes.py", line 26, in <module>
  AttributeError: module 'importlib.resources' has no attribute 'files'
PYTHONPATH was:
  /spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.
"""
"""What Spark says of a worker with Python 3.8."""


def blocks(page: str) -> list[str]:
    """The shell blocks of a page that submit a job."""
    text = (ROOT / page).read_text()
    return [block for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) if "spark-submit" in block]


def run(script: str, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs shell commands as a reader does, who stands in the repository: ``place`` looks like one."""
    for name in (".venv", "spark_jobs"):
        target = Path(sys.prefix) if name == ".venv" else ROOT / name
        if not (place / name).exists():
            (place / name).symlink_to(target)
    foreign = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {name: value for name, value in spark_environment().items() if name not in foreign} | more
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUBMIT_TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def shop(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> Iterator[TestTopic]:
    """A keyspace ``shop`` of an installation of its own, with its ``freshet.toml`` in ``tmp_path``."""
    filled = TestTopic(KafkaCluster(kafka.bootstrap, prefix=keyspace_name), "shop", 2)
    filled.write(0, history(frames=12, partitions=2))
    filled.write(1, history(frames=5, partitions=2))
    settings = f'[kafka]\nbootstrap = "{kafka.bootstrap}"\nprefix = "{keyspace_name}"\n'
    (tmp_path / "freshet.toml").write_text(settings)
    yield filled
    filled.remove()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Standalone]:
    """A standalone cluster with two workers."""
    with standalone() as running:
        yield running


@pytest.mark.slow
@pytest.mark.nightly
def test_the_pages_local_commands_rebuild_verify_and_export(shop: TestTopic, tmp_path: Path) -> None:
    """What the pages show for one machine works as it stands there, with the packages that they name."""
    [local, _] = blocks("docs/operating/rebuild.md")
    [export] = blocks("docs/operating/export.md")
    path = f"export PATH={sys.prefix}/bin:$PATH PYSPARK_PYTHON=.venv/bin/python\n"
    with consuming(shop, tmp_path / "data", tmp_path / "freshet.toml"):
        done = run(local, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shop: live and rebuilt: equal, byte for byte" in done.stdout
    assert differences(shop, tmp_path / "rebuilt", tmp_path / "live") == []
    done = run(path + export.strip() + " --json", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["rows"] > 40


@pytest.mark.slow
@pytest.mark.nightly
def test_the_pages_cluster_commands_rebuild_and_verify_with_the_environment_that_make_packs(
    shop: TestTopic, cluster: Standalone, tmp_path: Path
) -> None:
    """On workers with nothing but Python; the archive brings all that a task imports."""
    [_, remote] = blocks("docs/operating/rebuild.md")
    make, *rest = remote.splitlines()
    packed = run(f"{make} DIST={tmp_path}/dist -C {ROOT}", tmp_path)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    script = "\n".join(rest).replace("spark://HOST:7077", cluster.url).replace("/shared/", f"{tmp_path}/shared/")
    (tmp_path / "shared" / "tmp").mkdir(parents=True)
    with consuming(shop, tmp_path / "data", tmp_path / "freshet.toml"):
        done = run(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shop: live and rebuilt: equal, byte for byte" in done.stdout
    assert differences(shop, tmp_path / "shared" / "rebuilt", tmp_path / "live") == []
    assert read_report(tmp_path / "shared" / "rebuilt").ends == shop.ends()


@pytest.mark.slow
@pytest.mark.nightly
def test_an_export_to_a_directory_of_the_driver_alone_is_refused(
    shop: TestTopic, cluster: Standalone, tmp_path: Path
) -> None:
    """Nothing is committed whose files lie elsewhere. The path is another directory in each process."""
    shop.write(0, [schema(9000, columns=COLUMNS)])
    [_, remote] = blocks("docs/operating/rebuild.md")
    submit = re.sub(r"--archives \S+", "", remote.splitlines()[-1]).replace("spark://HOST:7077", cluster.url)
    export = submit.replace("verify.py", "export.py") + " --to /proc/self/cwd/"
    exports = f"export PATH={sys.prefix}/bin:$PATH\n"
    for more in ("changes", "rows --table shop.items"):
        done = run(exports + export + more, tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
        assert done.returncode == 1
        assert "error[target_not_shared]: " in done.stdout, done.stdout + done.stderr
    assert not list(tmp_path.rglob("commit.json"))
    assert not (tmp_path / "rows").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_an_executor_without_packages_says_so_before_it_folds(cluster: Standalone, tmp_path: Path) -> None:
    """The error names the executor and the packages, and the way to send them; nothing is folded."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    [_, remote] = blocks("docs/operating/rebuild.md")
    [rebuild] = re.findall(r".*rebuild\.py.*", remote)
    script = re.sub(r"--archives \S+", "", rebuild).replace("spark://HOST:7077", cluster.url)
    exports = f"export PATH={sys.prefix}/bin:$PATH PYSPARK_DRIVER_PYTHON=.venv/bin/python\n"
    done = run(
        exports + script.replace("/shared/", f"{tmp_path}/"), tmp_path, PYSPARK_PYTHON=f"{tmp_path}/bare/bin/python"
    )
    assert done.returncode == 1
    assert "error[executor_unfit]: the executor on " in done.stdout, done.stdout + done.stderr
    assert "rocksdict (No module named 'rocksdict')" in done.stdout
    assert "make environment" in done.stdout
    assert not list((tmp_path / "rebuilt").rglob("*.sst"))


def test_a_worker_that_cannot_run_tasks_is_told_from_other_failures() -> None:
    """What Spark raises of another Python, no Python or a missing module becomes one error with a way out."""
    for said in (
        "x\n[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, y\n",
        "Traceback\nModuleNotFoundError: No module named 'consumers'\n\n\tat org.apache",
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file',
        TOO_OLD,
    ):
        found = unfit(RuntimeError(said))
        assert found is not None
        assert found.code == "executor_unfit"
        assert "make environment" in found.hint
    assert str(unfit(RuntimeError(TOO_OLD))).endswith("module 'importlib.resources' has no attribute 'files'")
    assert unfit(RuntimeError("Caused by: OffsetOutOfRangeException")) is None


@pytest.mark.parametrize(
    "said", ["ModuleNotFoundError: No module named 's3fs'", "ImportError: Install s3fs to access S3"]
)
def test_a_worker_that_opens_no_place_of_snapshots_is_told_from_one_without_its_packages(said: str) -> None:
    """No executor is asked for what opens one: an archive that has all that they are asked for may lack it."""
    found = unfit(RuntimeError(f"Caused by: {said}\n\tat org.apache"))
    assert found is not None
    assert '--snapshots ""' in found.hint
    assert OF_PLACES.keys().isdisjoint(PACKAGES)
    listed = subprocess.run(
        [sys.executable, "-m", "spark_jobs.engine.executors"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {*listed.stdout.split()} == {*PACKAGES.values(), *OF_PLACES.values()}
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert all(f"\n{each}==" in locked for each in listed.stdout.split())


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_only_workers_of_another_interpreter_or_machine_are_asked(master: str) -> None:
    """Workers of this very interpreter lack nothing that the driver has; all others may."""
    assert runs_here(master, sys.executable)
    assert not runs_here(master, f"{sys.executable}-of-another-environment")
    assert not runs_here("local-cluster[1,1,1024]", sys.executable)
    assert not runs_here("spark://host:7077", sys.executable)


@pytest.mark.parametrize(
    ("modules", "version", "said"),
    [
        (("rocksdict", "no_such_package"), 0, "lacks no_such_package (No module named 'no_such_package')"),
        ((), -1, "lacks this Freshet: it folds by version"),
    ],
)
def test_an_executor_names_all_that_it_lacks(modules: tuple[str, ...], version: int, said: str) -> None:
    """Packages that can't be imported, and a Freshet that would fold otherwise."""
    [answer] = question(modules, version)(iter([]))
    assert said in answer


def test_an_executor_that_lacks_nothing_says_nothing() -> None:
    """This process can run the tasks, so it is fit."""
    from consumers.fold.state import FOLD_VERSION

    assert [*question(tuple(PACKAGES), FOLD_VERSION)(iter([]))] == [""]
