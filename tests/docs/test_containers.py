"""The container file and the batch script of the page are as right as one host can tell."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.docs.test_docs import ROOT, blocks, write_files

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.layout.layout import world_size

PAGE = ROOT / "docs" / "containers.md"
FILES = {block.title: block.text for block in blocks(PAGE) if block.title}
SBATCH, CONTAINER = FILES["train.sbatch"], FILES["Containerfile"]
OPTIONS = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", SBATCH, re.MULTILINE))

# Four ranks on two hosts.
SPEC = """
version: 1
name: tiny
modules:
  vision:
    model: {kind: vit, layers: 1, hidden: 16, heads: 2, patch: 8}
    ranks: 0-1
    grid: {dp: 2}
  language:
    model: {kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: digits}
    ranks: 2-3
    grid: {dp: 2}
batch: {global: 8, seq: 24}
data: {kind: digits}
train: {steps: 2}
"""
# Starts the tasks of two hosts on this one, with the variables of a step.
SRUN = """
import os, subprocess, sys
if sys.argv[1] != "--kill-on-bad-exit=0":
    sys.exit("an option that srun does not expect: " + sys.argv[1])
step = dict(SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0", SLURM_LOCALID="0",
            SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="2", SLURM_STEP_NODELIST="localhost,b")
tasks = [
    subprocess.Popen(sys.argv[2:], env={**os.environ, **step, "SLURM_PROCID": n, "SLURM_NODEID": n})
    for n in "01"
]
sys.exit(max([task.wait() for task in tasks]))
"""
# Runs what stands behind the image.
APPTAINER = """
import os, sys
open("apptainer.txt", "a").write(" ".join(sys.argv[1:]) + "\\n")
at = sys.argv.index("image.sif") + 1
os.execvp(sys.argv[at], sys.argv[at:])
"""


def submit(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the batch script as its first host would, in a folder with the spec."""
    (folder / "train.sbatch").write_text(SBATCH, encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    tools = folder / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("apptainer", APPTAINER)):
        (tools / name).write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        (tools / name).chmod(0o755)
    command = "#!/bin/sh\nexec " + shlex.join([sys.executable, "-m", "mimo_launch"]) + ' "$@"\n'
    (tools / "mimo-launch").write_text(command, encoding="utf-8")
    (tools / "mimo-launch").chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NUM_NODES": "2"}
    environment: Mapping[str, str] = {
        **os.environ,
        **job,
        "SLURM_GPUS_PER_NODE": "h200:2",
        "PATH": f"{tools}:{os.environ['PATH']}",
        **more,
    }
    return subprocess.run(
        ["bash", "train.sbatch"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.example
def test_the_batch_script_trains_on_two_hosts(tmp_path: Path) -> None:
    done = submit(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "valid, 2 modules on 4 ranks" in done.stdout
    assert "done: 2 steps" in done.stdout
    assert (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text().count('"loss"') == 2


@pytest.mark.example
def test_the_batch_script_runs_in_an_image(tmp_path: Path) -> None:
    done = submit(tmp_path, IMAGE="image.sif", RUNS=str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "apptainer.txt").read_text().splitlines()
    bound = f"exec --nv --bind {tmp_path},{tmp_path}/elsewhere image.sif mimo-launch "
    commands = [line.removeprefix(bound).split()[0] for line in called]
    assert commands == ["validate", "train", "train"]
    assert (tmp_path / "elsewhere" / "tiny" / "metrics.jsonl").exists()


def test_a_spec_for_other_gpus_ends_the_job_before_srun(tmp_path: Path) -> None:
    done = submit(tmp_path, SLURM_GPUS_PER_NODE="8")
    assert done.returncode == 2
    assert "the job has 16 processes" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_spec_of_the_page_has_the_ranks_that_the_script_asks_for(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    checked = load_and_check(tmp_path / "spec.yaml")
    assert checked.diagnostics == ()
    assert checked.spec is not None
    hosts, gpus = int(OPTIONS["nodes"]), int(OPTIONS["gpus-per-node"])
    assert world_size(checked.spec) == hosts * gpus
    assert checked.spec.nodes is not None
    assert checked.spec.nodes.gpus == gpus


def test_the_script_agrees_with_the_page_on_many_hosts() -> None:
    other = (ROOT / "docs" / "many-hosts.md").read_text(encoding="utf-8")
    short = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", other, re.MULTILINE))
    short.pop("cpus-per-task")
    assert short.items() <= OPTIONS.items()
    assert re.search(r"srun --kill-on-bad-exit=0 .*--max-restarts 2$", other, re.MULTILINE)
    variables = re.findall(r"export (\w+)=", SBATCH)
    assert variables == ["GLOO_SOCKET_IFNAME"]
    assert all(f"`{name}`" in other for name in variables)


def test_bash_reads_the_script() -> None:
    checked = subprocess.run(
        ["bash", "-n"], input=SBATCH, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_container_file_names_what_is_here() -> None:
    lines = re.sub(r"\\\n", " ", CONTAINER).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    assert {kind for kind, _ in steps} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENTRYPOINT"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    metadata = project["project"]
    copied = {name for kind, text in steps if kind == "COPY" for name in text.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    built = {metadata["readme"], *metadata["license-files"], "pyproject.toml"}
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert built | {package.split("/")[0] for package in packages} == copied
    extras = re.search(r"'\.\[(.*)\]'", CONTAINER)
    assert extras is not None
    assert set(extras[1].split(",")) <= metadata["optional-dependencies"].keys()
    python = tuple(map(int, steps[0][1].partition(":")[2].split("-")[0].split(".")))
    least = tuple(map(int, metadata["requires-python"].removeprefix(">=").split(".")))
    assert least <= python
    assert (
        f"Programming Language :: Python :: {'.'.join(map(str, python))}" in metadata["classifiers"]
    )
    assert json.loads(dict(steps)["ENTRYPOINT"]) == list(metadata["scripts"])[:1]
