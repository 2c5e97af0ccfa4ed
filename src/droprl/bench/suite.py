"""A suite is a small TOML file: which tasks, which methods with which settings, how they are played, what is drawn."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from droprl.adapt import Adaptation
from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.errors import DropError
from droprl.evaluation.evaluation import PlayedCheckpoints
from droprl.files.settings import from_dict
from droprl.train.checkpoints import KEEP

FigureKind = Literal["plays", "methods", "dots", "training"]
_FOLDER = resources.files("droprl.bench").joinpath("suites")
SUITES = tuple(sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir() if f.name.endswith(".toml")))


@dataclass(frozen=True)
class Method:
    """One algorithm with its settings; trained once for each task."""

    name: str
    algo: str
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    sizes: dict[str, Any] = field(default_factory=dict, hash=False)  # the suite's [sizes], the same for all methods
    share: float = 1.0  # of the suite's updates; below 1 for a method whose updates cost more

    def algorithm(self, preset: Literal["paper", "small"], where: str) -> Algorithm:
        """With the small preset the suite's own sizes are left out."""
        if self.algo not in ALGORITHMS:
            raise DropError(f"{where}: method {self.name}: there is no algorithm {self.algo!r}")
        kind = ALGORITHMS[self.algo]
        settings = algorithm_to_dict(kind.small()) if preset == "small" else algorithm_to_dict(kind()) | self.sizes
        return algorithm_from_dict(
            settings | self.settings, f"{where}: method {self.name}", remedy="change this setting"
        )


@dataclass(frozen=True)
class Figure:
    """What the suite's figure shows, with one panel for each task."""

    kind: FigureKind
    """plays: the score against the play, one line for each method. methods: the score against the method, one line for
    each play. dots: one row for each method and play, and the IQM over all tasks. training: a metric against the
    updates, one line for each method."""
    x: str = ""
    """The title of the x axis."""
    values: tuple[str, ...] = ()
    """The labels along the x axis; by default the names of the plays or methods."""
    metric: str = "clone_loss"
    """For `training`: which metric of the training log."""
    time: bool = False
    """For `plays`: draw the milliseconds of an action too."""


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    claim: str  # what the paper says
    tasks: tuple[str, ...]
    methods: tuple[Method, ...]
    plays: dict[str, dict[str, Any]]  # settings of adaptation; a method without adaptation is played once
    figure: Figure
    steps: int
    seeds: int
    episodes: int
    protocol: PlayedCheckpoints = "last"
    note: str = ""  # what a reader of the page must know about these results

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before anything is trained."""
        for what, least in (("steps", 1), ("seeds", 1), ("episodes", 0)):
            given = getattr(self, what)
            if not isinstance(given, int) or isinstance(given, bool) or given < least:
                raise DropError(f"{self.name}: {what} is {given!r}: give a whole number, at least {least}")
        if self.protocol not in get_args(PlayedCheckpoints):
            raise DropError(
                f"{self.name}: protocol is {self.protocol!r}: choose one of {', '.join(get_args(PlayedCheckpoints))}"
            )
        if not self.tasks or not all(isinstance(task, str) and task for task in self.tasks):
            raise DropError(f"{self.name}: tasks are {list(self.tasks)}: give a list of names")
        for method in self.methods:
            if not 0 < method.share <= 1:
                raise DropError(f"{self.name}: method {method.name}: share is {method.share:g}: give a part of 1")
            if self.protocol == "paper" and self.steps_of(method) < KEEP:
                raise DropError(
                    f"{self.name}: method {method.name}: {self.steps_of(method)} updates leave too few checkpoints for "
                    f'protocol "paper", which plays {KEEP}: give more steps, or protocol "last"'
                )
        for kind, names in (("tasks", self.tasks), ("methods", [m.name for m in self.methods]), ("plays", self.plays)):
            _refuse_one_place(self.name, kind, names)

    def changed(self, **changes: Any) -> Suite:
        """The suite with these fields changed; None leaves a field as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def only(self, names: Sequence[str]) -> Suite:
        """The suite with only these methods."""
        known = [method.name for method in self.methods]
        if odd := [name for name in names if name not in known]:
            raise DropError(f"{self.name}: has no method {', '.join(odd)}: choose from {', '.join(known)}")
        return replace(self, methods=tuple(m for m in self.methods if m.name in names))

    def steps_of(self, method: Method) -> int:
        return max(1, round(self.steps * method.share))

    def plays_of(self, method: Method) -> dict[str, dict[str, Any]]:
        adapts = self.plays and ALGORITHMS[method.algo]().adaptation is not None
        return self.plays if adapts else ({method.name: {}} if self.episodes else {})


def default_play(suite: Suite, method: Method, preset: Literal["paper", "small"]) -> str:
    """How a method is played if nobody chooses: the play with its trained settings, or else the first play."""
    trained = method.algorithm(preset, suite.name).adaptation
    plays = suite.plays_of(method)
    same = (p for p, given in plays.items() if trained is not None and replace(trained, **given) == trained)
    return next(same, next(iter(plays)))


def file_name(text: str) -> str:
    return re.sub(r"[^-+.=\w]+", "-", text)


def _refuse_one_place(where: str, kind: str, names: Iterable[str]) -> None:
    """Refuse two names that would be written to the same file."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.get(file_name(name))) is not None:
            raise DropError(
                f"{where}: the {kind} {other!r} and {name!r} would have the same files, {file_name(name)}: rename one"
            )
        found[file_name(name)] = name


def suite_from_json(content: Any, where: str) -> Suite:
    """The suite that `asdict` turned into JSON."""
    try:
        methods = tuple(Method(**m) for m in content["methods"])
        figure = Figure(**content["figure"] | {"values": tuple(content["figure"]["values"])})
        return Suite(**content | {"methods": methods, "figure": figure, "tasks": tuple(content["tasks"])})
    except (KeyError, TypeError) as error:
        raise DropError(f"{where}: is not a suite: restore it, or remove it and run the suite again") from error


def label(method: Method, play: str) -> str:
    """The name of a method under a play, as tables and figures print it."""
    return method.name if play == method.name else f"{method.name} · {play}"


def load_suite(name: str | Path) -> Suite:
    """A ready-made suite by its name, or a suite from a .toml file."""
    path = Path(name)
    if str(name) in SUITES:
        text, where = _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8"), str(name)
    elif path.suffix == ".toml" and path.exists():
        text, where = path.read_text(encoding="utf-8"), str(path)
    else:
        raise DropError(f"there is no suite {str(name)!r}: choose one of {', '.join(SUITES)}, or give a .toml file")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DropError(f"{where}: is not valid TOML ({error}): correct it") from error
    return _suite(path.stem, content, where)


def _suite(name: str, content: dict[str, Any], where: str) -> Suite:
    unknown = set(content) - {f.name for f in fields(Suite)} - {"sizes"} | {"name"} & set(content)
    missing = {"title", "tasks", "methods", "figure", "steps", "seeds", "episodes"} - set(content)
    if unknown or missing:
        fault = f"must have {', '.join(sorted(missing))}" if missing else f"has no field {', '.join(sorted(unknown))}"
        raise DropError(f"{where}: a suite {fault}")
    tables = {part: content.get(part, {}) for part in ("sizes", "methods", "plays", "figure")}
    for part, given in [*tables.items(), *(i for kind in ("methods", "plays") for i in _entries(tables[kind]))]:
        if not isinstance(given, dict):
            raise DropError(f"{where}: {part} is {given!r}: give a table of settings")
    if not isinstance(content["tasks"], list):
        raise DropError(f"{where}: tasks is {content['tasks']!r}: give a list of names")
    sizes = dict(tables["sizes"])
    methods = tuple(
        Method(name, str(given.pop("algo", "drop")), share=_share(given, where), settings=given, sizes=sizes)
        for name, given in ((name, dict(given)) for name, given in content["methods"].items())
    )
    plays = {p: dict(given) for p, given in content.get("plays", {}).items()}
    for play, given in plays.items():
        from_dict(Adaptation, vars(Adaptation()) | given, f"{where}: play {play}", remedy="change this setting")
    figure = dict(content["figure"])
    if figure.get("kind") not in get_args(FigureKind):
        raise DropError(
            f"{where}: figure.kind is {figure.get('kind')!r}: choose one of {', '.join(get_args(FigureKind))}"
        )
    if odd := set(figure) - {f.name for f in fields(Figure)}:
        raise DropError(f"{where}: a figure has no field {', '.join(sorted(odd))}")
    figure["values"] = tuple(map(str, figure.get("values", ())))
    suite = Suite(
        name=name,
        title=str(content["title"]),
        claim=str(content.get("claim", "")),
        tasks=tuple(content["tasks"]),
        methods=methods,
        plays=plays,
        figure=from_dict(Figure, figure, f"{where}: figure", remedy="change this setting"),
        steps=content["steps"],
        seeds=content["seeds"],
        episodes=content["episodes"],
        protocol=content.get("protocol", "last"),
        note=str(content.get("note", "")),
    )
    for method in methods:
        method.algorithm("paper", where)
    return suite


def _entries(table: Any) -> Iterable[tuple[str, Any]]:
    return table.items() if isinstance(table, dict) else ()


def _share(given: dict[str, Any], where: str) -> float:
    share = given.pop("share", 1.0)
    if not isinstance(share, int | float) or isinstance(share, bool):
        raise DropError(f"{where}: share is {share!r}: give a part of 1")
    return float(share)
