"""The shape of the source: imports point backwards along the data's way, files stay short, help waits for nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import droprl

ROOT = Path(droprl.__file__).parent
# The way of one transition, earliest first. A module may import what stands before it, and from its own part.
WAY = (
    "errors",
    "version",
    "compiler",
    "progress",
    "files",
    "environments",
    "data",
    "networks",
    "adapt",
    "policies",
    "algorithms",
    "train",
    "loaded",
    "rollout",
    "evaluation",
    "finetuning",
    "select",
    "report",
    "bench",
    "deploy",
    "cli",
)
FRONT_DOORS = ("__init__", "__main__")  # `import droprl` and `python -m droprl` open onto everything
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Every import of droprl in a file, those inside functions too: the line, and the module's full name."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            assert isinstance(node, ast.If)
            yield from imports(ast.Module(node.orelse, []), module)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "droprl")
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            if base == "droprl":  # `from droprl import data` names the part itself
                yield from ((node.lineno, f"droprl.{alias.name}") for alias in node.names)
            elif base.startswith("droprl."):
                yield node.lineno, base
        yield from imports(node, module)


def offences(source: str, path: Path) -> list[str]:
    own = part_of(path)
    module = ".".join(["droprl", *path.relative_to(ROOT).with_suffix("").parts])
    found = []
    for line, name in imports(ast.parse(source), module):
        part = name.split(".")[1] if "." in name else "__init__"
        if part not in WAY:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}, which is no part of the way")
        elif WAY.index(part) > WAY.index(own):
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}, which comes later on the data's way")
    return found


def test_every_file_belongs_to_a_part_of_the_way() -> None:
    assert {part_of(path) for path in FILES} - set(FRONT_DOORS) == set(WAY)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_backwards(path: Path) -> None:
    if part_of(path) not in FRONT_DOORS:
        assert offences(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("source", "n_offences"),
    [
        ("import droprl.data.dataset", 0),
        ("from droprl.train import fit", 1),
        ("from droprl import policy", 1),
        ("import droprl", 1),
        ("from ..train.run import Run", 1),
        ("from . import inference", 0),
        ("def later():\n    if True:\n        from droprl.cli import main", 1),
        ("try:\n    import droprl.report\nexcept ImportError:\n    pass", 1),
        ("if TYPE_CHECKING:\n    from droprl.cli import main", 0),
        ("if typing.TYPE_CHECKING:\n    import droprl.cli\nelse:\n    import droprl.report", 1),
        ("import jax, numpy.random", 0),
    ],
)
def test_the_check_itself_sees_what_it_should(source: str, n_offences: int) -> None:
    assert len(offences(source, ROOT / "adapt" / "search.py")) == n_offences


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


def test_neither_the_package_nor_the_command_line_waits_for_jax() -> None:
    code = (
        "import sys, droprl, droprl.cli\n"
        "droprl.cli.main(['--help'])\n"
        "print(sorted({'jax', 'jaxlib', 'equinox', 'optax', 'scipy', 'gymnasium'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_everything_the_package_promises_is_there() -> None:
    for name in droprl.__all__:
        assert getattr(droprl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = droprl.unheard_of


def printed_by(code: str) -> str:
    """In a process of its own: what was imported before must not matter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_public_names_are_themselves_whatever_was_imported_before() -> None:
    """A sub-package of the same name as a function would take its place once it is imported."""
    code = (
        "import droprl.cli.demo, droprl; "
        "print(all(callable(getattr(droprl, n)) or n == '__version__' for n in droprl.__all__))"
    )
    assert printed_by(code) == "True"


def test_xla_is_told_to_repeat_itself_before_it_starts() -> None:
    """Importing a command must not start a backend: flags that are set afterwards would be ignored."""
    code = (
        "import droprl.cli.train, droprl.cli.demo; from jax._src import xla_bridge; "
        "print(xla_bridge.backends_are_initialized())"
    )
    assert printed_by(code) == "False"
