"""The shape of the source: which module may import which, files stay short, and `drop --help` needs no JAX."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import droprl
from droprl.algorithms import ALGORITHMS

ROOT = Path(droprl.__file__).parent
# The way of one transition, earliest first. A module may import from its own part and from earlier parts.
WAY = (
    "errors",
    "version",
    "compiler",
    "terminal",
    "interrupts",
    "progress",
    "svg",
    "notebook",
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
    "video",
    "evaluation",
    "judging",
    "finetuning",
    "select",
    "report",
    "bench",
    "deploy",
    "cli",
)
FRONT_DOORS = ("__init__", "__main__")  # `import droprl` and `python -m droprl` may import everything
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = sorted(folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists())
# Modules of `droprl.algorithms` that belong to no single algorithm. Other packages may import these and the package.
FOR_ALL_ALGORITHMS = ("protocol", "saved", "curves", "judging")
CLASSES = {kind.__name__ for kind in ALGORITHMS.values()}
# These parts may import a class such as DROP: the demo compares three algorithms, and only DROP has an N and a K for
# `drop select` to choose. All other parts must work with every algorithm.
MAY_NAME_AN_ALGORITHM = ("algorithms", "select", "cli")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """The name that an import of this file uses."""
    return ".".join(["droprl", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = frozenset(map(module_of, FILES))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(tree: ast.AST, package: str, modules: Collection[str] = MODULES) -> Iterator[tuple[int, str, str]]:
    """Every import of droprl in a file, also inside functions: the line, the module, and the name taken from it.

    `package` is where relative imports start. If the imported name is itself a module, as in `from droprl import data`,
    this module is meant, and the name is empty.
    """
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            assert isinstance(node, ast.If)
            yield from imports(ast.Module(node.orelse, []), package, modules)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name.split(".")[0] == "droprl")
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names if base.split(".")[0] == "droprl" else []:
                whole = f"{base}.{alias.name}"
                is_module = base == "droprl" or whole in modules
                yield (node.lineno, whole, "") if is_module else (node.lineno, base, alias.name)
        yield from imports(node, package, modules)


def imports_of(source: str, path: Path) -> Iterator[tuple[int, str, str]]:
    package = module_of(path.parent / "__init__.py")
    return imports(ast.parse(source), package)


# --- between parts: imports point backwards ---


def offences(source: str, path: Path) -> list[str]:
    own = part_of(path)
    found = []
    for line, module, _ in imports_of(source, path):
        part = module.split(".")[1] if "." in module else "__init__"
        if part not in WAY:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {module}, which is not a part of the way")
        elif WAY.index(part) > WAY.index(own):
            found.append(f"{path.relative_to(ROOT)}:{line} imports {module}, which comes later on the way")
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
def test_the_check_of_the_way_sees_every_offence(source: str, n_offences: int) -> None:
    assert len(offences(source, ROOT / "adapt" / "search.py")) == n_offences


# --- inside a package: no cycle ---


def cycle_in(sources: Mapping[str, str]) -> list[str]:
    """Modules of one package that import each other in a circle, or none. `sources` are by the module's name."""
    inside = frozenset(sources)
    graph = {}
    for module, source in sources.items():
        is_package = any(other.startswith(f"{module}.") for other in sources)
        package = module if is_package else module.rpartition(".")[0]
        graph[module] = {name for _, name, _ in imports(ast.parse(source), package, inside) if name in inside}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_of_a_package_import_each_other_in_no_circle(package: str) -> None:
    paths = [path for path in FILES if part_of(path) == package]
    assert cycle_in({module_of(path): path.read_text(encoding="utf-8") for path in paths}) == []


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"p": "from droprl.p.a import x", "p.a": "from droprl.p.b import x", "p.b": "import droprl.p.c"}, set()),
        (
            {"p.a": "from droprl.p.b import x", "p.b": "from droprl.p.a import x", "p.c": "import droprl.p.a"},
            {"a", "b"},
        ),
        ({"p": "", "p.a": "from droprl.p import b", "p.b": "import droprl.p.a"}, {"a", "b"}),
        ({"p": "", "p.a": "from . import b", "p.b": "from .a import x"}, {"a", "b"}),
        ({"p.a": "import droprl.p.b", "p.b": "def later():\n    from droprl.p.a import x"}, {"a", "b"}),
        ({"p.a": "import droprl.p.b", "p.b": "if TYPE_CHECKING:\n    from droprl.p.a import x"}, set()),
        ({"p.a": "import droprl.p.b", "p.b": "import droprl.p.c", "p.c": "import droprl.p.a"}, {"a", "b", "c"}),
        ({"p.a": "from droprl.p.q.b import x", "p.q": "", "p.q.b": "from ..a import x"}, {"a", "q.b"}),
        ({"p": "from droprl.p.a import x", "p.a": "from droprl.p import x"}, {"", "a"}),  # through the package itself
        ({"p": "", "p.a": "from droprl.p import a"}, {"a"}),
        ({"p.a": "from droprl.r.b import x", "p.b": "from droprl.p.a import x"}, set()),  # another package's b
    ],
)
def test_the_check_of_circles_sees_every_circle(sources: dict[str, str], circle: set[str]) -> None:
    found = cycle_in({f"droprl.{module}": source for module, source in sources.items()})
    assert {module.removeprefix("droprl.p").removeprefix(".") for module in found} == circle


# --- algorithms: only their own package knows a single one ---


def knowledge_of_one_algorithm(source: str, path: Path) -> list[str]:
    """Where a file outside `droprl.algorithms` knows a single algorithm."""
    own, found = part_of(path), []
    for line, module, name in imports_of(source, path) if own != "algorithms" else []:
        parts = module.split(".")
        if parts[:2] != ["droprl", "algorithms"]:
            continue
        if len(parts) > 2 and parts[2] not in FOR_ALL_ALGORITHMS:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {module}, a module of a single algorithm")
        elif name in CLASSES and own not in MAY_NAME_AN_ALGORITHM:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}, a single algorithm")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_single_algorithm_is_known_only_in_its_own_package(path: Path) -> None:
    if part_of(path) not in FRONT_DOORS:
        assert knowledge_of_one_algorithm(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("source", "in_bench", "in_select"),
    [
        ("import droprl.algorithms.drop", 1, 1),
        ("from droprl.algorithms.drop import DropState", 1, 1),
        ("from droprl.algorithms import dt", 1, 1),
        ("from ..algorithms.scoring import f", 1, 1),
        ("def later():\n    from droprl.algorithms import bc, coms", 2, 2),
        ("from droprl.algorithms import DROP", 1, 0),
        ("from droprl.algorithms import ALGORITHMS, Algorithm", 0, 0),
        ("from droprl.algorithms import curves, protocol", 0, 0),
        ("from droprl.algorithms.saved import algorithm_from_dict", 0, 0),
        ("import droprl.algorithms", 0, 0),
        ("if TYPE_CHECKING:\n    from droprl.algorithms.drop import DropState", 0, 0),
    ],
)
def test_the_check_of_algorithms_sees_every_offence(source: str, in_bench: int, in_select: int) -> None:
    assert len(knowledge_of_one_algorithm(source, ROOT / "bench" / "suite.py")) == in_bench
    assert len(knowledge_of_one_algorithm(source, ROOT / "select" / "selection.py")) == in_select
    assert knowledge_of_one_algorithm(source, ROOT / "algorithms" / "cvae.py") == []


# --- the screen: only `terminal` prints ---


def prints_of(source: str) -> list[int]:
    """The lines that print past `droprl.terminal`: names from files would reach the screen as they are."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            past = called == "print" or called.endswith(("TextColumn", "from_markup", "stdout.write", "stderr.write"))
            found += [node.lineno] if past else []
        elif isinstance(node, ast.ImportFrom) and node.module in ("rich.console", "rich.markup"):
            found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "rich":
            found += [node.lineno for alias in node.names if alias.name in ("print", "console", "get_console")]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_terminal_prints(path: Path) -> None:
    assert part_of(path) == "terminal" or prints_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("print('x')", [1]),
        ("from rich.console import Console", [1]),
        ("import sys\nsys.stderr.write('x')", [2]),
        ("from rich.progress import TextColumn\nTextColumn('{task.description}')", [2]),
        ("from rich.text import Text\nText.from_markup('x')", [2]),
        ("from droprl.terminal import say\nsay('x')\nfingerprint('x')", []),
    ],
)
def test_the_check_of_prints_sees_every_offence(source: str, lines: list[int]) -> None:
    assert prints_of(source) == lines


# --- files, and what an import costs ---


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


def test_neither_the_package_nor_the_command_line_imports_jax() -> None:
    code = (
        "import sys, droprl, droprl.cli\n"
        "droprl.cli.main(['--help'])\n"
        "print(sorted({'jax', 'jaxlib', 'equinox', 'optax', 'scipy', 'gymnasium'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_every_public_name_exists() -> None:
    for name in droprl.__all__:
        assert getattr(droprl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = droprl.unheard_of


def printed_by(code: str) -> str:
    """The output of a new process, in which nothing has been imported yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_no_import_replaces_a_public_name() -> None:
    """A sub-package with the name of a function would replace the function when it is imported."""
    code = (
        "import droprl.cli.demo, droprl; "
        "print(all(callable(getattr(droprl, n)) or n == '__version__' for n in droprl.__all__))"
    )
    assert printed_by(code) == "True"


def test_importing_a_command_starts_no_backend() -> None:
    """XLA ignores flags that are set after a backend has started, and we set flags that make XLA repeat its bits."""
    code = (
        "import droprl.cli.train, droprl.cli.demo; from jax._src import xla_bridge; "
        "print(xla_bridge.backends_are_initialized())"
    )
    assert printed_by(code) == "False"
