"""Every check that CI runs; `nox -l` lists them."""

import os
import sys

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"  # torch is large.
nox.options.sessions = ["lint", "types", "layers", "docs", "tests", "example"]

PROJECT = nox.project.load_toml("pyproject.toml")


# The project with the extras that tests use: half a minute to install, small beside torch.
WITH_EXTRAS = ("-e", ".[audio,data,mlflow,remote,report,tables,tensorboard,video,wandb]")
# One more than cores, because tests wait for ranks and commands; each takes up to 3 GB.
IN_PROCESSES = ("-n", str(min(8, (os.cpu_count() or 1) + 1)))
# A file is a process's own: its fixtures are made once.
BY_FILE = (*IN_PROCESSES, "--dist", "loadfile")
# Also where the environment says otherwise: else each command that a test starts compiles all
# sources anew.
KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


def group(name: str) -> list[str]:
    """Return the packages of a dependency group, so that no list is written twice."""
    return list(nox.project.dependency_groups(PROJECT, name))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the default suite in several processes; arguments go to pytest."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run("pytest", *BY_FILE, *session.posargs, env=KEEPS_BYTECODE)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    session.install("-e", ".", "nox", *group("types"))
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Check that each room imports only lower ones, and that no files import in circles."""
    session.install("-e", ".", *group("layers"))
    session.run("lint-imports")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install("-e", ".", *group("docs"))
    session.run("mkdocs", "build", "--strict", "-f", ".mkdocs.yml")


@nox.session
def example(session: nox.Session) -> None:
    """Run the longer examples of the documentation as written, and what starts many processes."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run(
        "pytest",
        "tests/docs",
        "tests/cli",
        "-m",
        "example",
        *IN_PROCESSES,
        *session.posargs,
        env=KEEPS_BYTECODE,
    )


# Extras that install in seconds from wheels.
OF_FILES = ("audio", "data", "report", "tables", "tensorboard", "video")
# Of these the `transformers` of tests needs newer ones; torch has an upper bound, too.
NOT_OLDEST = {"torch", "safetensors", "tokenizers"}
# The oldest Typer uses names that later ones warn of.
CLICK_OF_ITS_TIME = "click==8.2.1"


@nox.session(default=False)
def oldest(session: nox.Session) -> None:
    """Run tests of specs, files and commands with the oldest packages that users may have."""
    session.install(*WITH_EXTRAS, *group("test"))
    project = PROJECT["project"]
    extras = [project["optional-dependencies"][name] for name in OF_FILES]
    lines = [line for each in (project["dependencies"], *extras) for line in each]
    wanted = [line for line in lines if line.partition(">=")[0] not in NOT_OLDEST]
    session.install(*(line.replace(">=", "==") for line in wanted), CLICK_OF_ITS_TIME)
    session.run(
        "pytest",
        "tests/unit",
        "tests/cli",
        *BY_FILE,
        *session.posargs,
        env=KEEPS_BYTECODE,
    )


@nox.session(default=False)
def sweep(session: nox.Session) -> None:
    """Prove 600 random layouts, prints the seed and tables of coverage; all in fp32 and bf16."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run(
        "pytest",
        "tests/sweep",
        "tests/distributed",
        "tests/unit",
        "tests/cli",
        "tests/docs",
        "-m",
        "sweep",
        "-s",
        *session.posargs,
    )


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Break runs in every way we know, at random moments; prints the seed and a table."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run(
        "pytest",
        "tests/faults",
        "tests/cli",
        "tests/distributed",
        "-m",
        "faults",
        "-s",
        *session.posargs,
    )


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Change the sources in 208 small wrong ways and show which no test rejects; an hour."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run("python", "-m", "tests.mutants.run", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Validate and plan 20,000 mutated specs, train two steps of 200; prints the seed."""
    session.install(*WITH_EXTRAS, *group("test"))
    session.run("pytest", "tests/fuzz", "-m", "fuzz", "-s", *session.posargs)


@nox.session(default=False, venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the GPU tests with the torch that is installed here, on as many GPUs as there are."""
    session.run(sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", *session.posargs)


@nox.session(default=False, venv_backend="none")
def peers(session: nox.Session) -> None:
    """Train a Qwen3-VL here and with other libraries on one GPU: losses and times."""
    session.run(sys.executable, "-m", "tests.gpu.peers", *session.posargs)
