"""What docs/security.md promises: text from others runs nothing and leaves no folder."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import check_text

ROOT = Path(__file__).parents[2]
SPEC = (ROOT / "tests" / "fixtures" / "tiny_train.yaml").read_text(encoding="utf-8")

# Calls that can turn data into code, with the only files that may make them.
DANGEROUS = {
    "eval": (),
    "exec": ("diag/frozen.py",),  # The `__init__` of classes of our own, as `dataclass` makes it.
    "compile": ("layers/parallel_context.py",),  # torch.compile, of functions of our own.
    "__import__": (),
    "system": (),
    "popen": (),
    "import_module": (
        # Names of our own.
        "cli/app.py",
        "data/digit_images.py",
        "hugging_face/registry.py",
        "kinds/registry.py",
        "layers/shaped_layer.py",
        "layers/te_layers.py",
        "models/build.py",
        "optimizer/module_optimizers.py",
        # The class that a spec names: whoever starts a run of it runs that class.
        "diag/users_code.py",
    ),
    # What a child of this process wrote.
    "loads of pickle": ("launcher/forking.py", "launcher/run_on_ranks.py"),
    "load of pickle": (),
    "load of torch": (),
    "load of yaml": (),
    "unsafe_load": (),
    "full_load": (),
}


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name):
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield from (f"{name} of {owner}", *([name] if owner != "re" else []))
            case ast.Attribute(attr=name):
                yield name


def found_in(code: str) -> set[str]:
    # `module.eval()` without arguments is torch's switch.
    return set(calls(ast.parse(code.replace(".eval()", ".as_evaluated()")))) & set(DANGEROUS)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: "/".join(path.parts[-2:])
)
def test_no_file_turns_data_into_code(path: Path) -> None:
    name = path.relative_to(ROOT / "src" / "mimo_launch").as_posix()
    found = found_in(path.read_text(encoding="utf-8"))
    assert {call for call in found if name not in DANGEROUS[call]} == set()


@pytest.mark.parametrize(
    "code", ["eval(x)", "pickle.loads(x)", "torch.load(f)", "os.system(x)", "yaml.load(f, L)"]
)
def test_the_search_finds_what_it_should(code: str) -> None:
    assert found_in(code)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:pathlib.Path.touch [{}]",
        "name: !!python/object/apply:pathlib.Path.touch [{}]",
        "name: !!python/name:os.system",
    ],
)
def test_tags_of_yaml_run_nothing(text: str, tmp_path: Path) -> None:
    target = tmp_path / "made"
    assert check_text(text.format(target)).spec is None
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["..", "../up", "a/b", "/abs", ".hidden", "-rf", '"a\\n"', '"a\\0"', "a b", "~"]
)
def test_the_name_of_a_run_stays_in_its_folder(name: str) -> None:
    assert "name: tiny" in SPEC
    (found,) = check_text(SPEC.replace("name: tiny", f"name: {name}")).diagnostics
    assert found.path == ("name",)


@pytest.mark.parametrize("name", ["../up", "a/b", '"a\\n"', "A", "a.b"])
def test_the_name_of_a_module_is_a_word(name: str) -> None:
    """It appears in file names, drawings and logs."""
    text = SPEC.replace("  vision:", f"  {name}:")
    assert text != SPEC
    assert check_text(text).spec is None


@pytest.mark.parametrize("project", ["../up", "a/b", "a?b", "", "x" * 129])
def test_a_project_of_wandb_is_a_name(project: str) -> None:
    text = f"{SPEC}log: {{wandb: {{project: '{project}', mode: offline}}}}\n"
    (found,) = check_text(text).diagnostics
    assert found.path == ("log", "wandb", "project")


def test_aliases_within_aliases_cost_nothing() -> None:
    """Nine levels of nine: 400 million values, if each were copied."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    lines.insert(0, "a0: &a0 [x, x, x, x, x, x, x, x, x]")
    assert check_text("\n".join(lines)).spec is None


def test_a_run_on_one_host_listens_to_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the store of the workers can run code in them."""
    from mimo_launch.launcher.network import WorkerStore

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    store = WorkerStore("localhost")
    place = store.environment
    store.serve()
    wanted = f":{int(place['MASTER_PORT']):04X}"
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    listening = {row[1] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    assert listening == {f"0100007F{wanted}"}
    assert place["GLOO_SOCKET_IFNAME"] == place["NCCL_SOCKET_IFNAME"] == "lo"
    store.close()
