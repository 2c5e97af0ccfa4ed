"""What the site's pages take from the code: the algorithms as a table, their settings, their part of the reference.

A page has a comment `<!-- NAME: … -->` where the lines of `PARTS[NAME]` go. `make_site.py` puts them there, so that
nobody keeps a second list of the algorithms.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from droprl.adapt import Adaptation
from droprl.algorithms import ALGORITHMS

MARK = re.compile(r"<!-- (\w+): .*? -->")


def filled(page: str) -> str:
    """The page with the lines from the code in the place of each mark."""
    return MARK.sub(lambda mark: "\n".join(PARTS[mark[1]]()), page)


def algorithm_table() -> Iterator[str]:
    yield "| `--algo` | class | what it is | ONNX file | learns on in the task (`drop finetune --level policy`) |"
    yield "|---|---|---|---|---|"
    for name, kind in ALGORITHMS.items():
        exports = f"no: {kind.card.no_export}" if kind.card.no_export else "yes"
        online = "yes" if kind.card.learns_online else "no"
        yield f"| [`{name}`](settings.md#{name}) | `{kind.__name__}` | {_first_line(kind)} | {exports} | {online} |"


def api_of_algorithms() -> Iterator[str]:
    for name, kind in ALGORITHMS.items():
        yield f"::: droprl.{kind.__name__}\n    options:\n      members: false\n      show_signature: false\n"
        yield f"[Its settings, with their defaults](settings.md#{name}).\n"


def settings_of_all() -> Iterator[str]:
    """A default stands before the value under `--preset small`, which is in brackets where it is another one."""
    yield "In brackets is the value under `--preset small` (in Python `droprl.DROP.small()`), if that is another one."
    yield "On the command line dashes take the place of underscores: `n_sub_tasks` is `--n-sub-tasks`.\n"
    for name, kind in ALGORITHMS.items():
        yield f"## {name}\n"
        yield f"`droprl.{kind.__name__}`. {_first_line(kind)}\n"
        yield from settings_of(kind)
        yield ""


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def settings_of(kind: Any) -> Iterator[str]:
    parent: Any = next((base for base in kind.__bases__ if is_dataclass(base) and hasattr(base, "name")), None)
    shown = list(fields(kind))
    if parent is not None:
        gone = sorted({field.name for field in fields(parent)} - {field.name for field in shown})
        yield f"It has the settings of [{parent.name}](#{parent.name}){_except(gone)}, and:\n"
        shown = [field for field in shown if field.name in inspect.get_annotations(kind)]
    said, hints = field_docstrings(kind), get_type_hints(kind)
    small = kind.small() if hasattr(kind, "small") else None
    yield "| setting | default | what it is |\n|---|---|---|"
    for field in shown:
        name, default = field.name, _default(field)
        smaller = "" if small is None or getattr(small, name) == default else f" ({_code(getattr(small, name))})"
        yield f"| `{name}` | {_code(default)}{smaller} | {_choices(hints[name])}{said.get(name, '')} |"


def _except(names: list[str]) -> str:
    return f" except {' and '.join(f'`{name}`' for name in names)}" if names else ""


def field_docstrings(kind: type) -> dict[str, str]:
    """The string below each field, of the class and of those it inherits from."""
    found: dict[str, str] = {}
    for each in reversed([c for c in kind.__mro__ if is_dataclass(c)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                said = " ".join(str(ast.literal_eval(below.value)).split())
                found[field.target.id] = said.replace("|", "\\|").replace("z*", "z\\*")
    return found


def _default(field: Field) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _code(value: Any) -> str:
    if isinstance(value, Adaptation):
        return "[Adaptation](#adaptation)"
    return f"`{value}`"


def _choices(hint: Any) -> str:
    if get_origin(hint) is not Literal:
        return ""
    return f"{', '.join(f'`{choice}`' for choice in get_args(hint))}. "


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "algorithms": algorithm_table,
    "api": api_of_algorithms,
    "settings": settings_of_all,
    "adaptation": lambda: settings_of(Adaptation),
}
