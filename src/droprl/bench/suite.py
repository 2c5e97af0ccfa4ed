"""A suite is a small TOML file: which tasks, which methods with which settings, how they are played, what is drawn."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from droprl.adapt import Adaptation
from droprl.algorithms import ALGORITHMS, Algorithm
from droprl.algorithms.saved import algorithm_from_dict, algorithm_to_dict
from droprl.errors import DropError, perhaps, reason
from droprl.evaluation.evaluation import PlayedCheckpoints
from droprl.files.names import file_name
from droprl.files.seals import MOST_BYTES, check_depth, check_size
from droprl.files.settings import from_dict, shown
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
    preset: str = ""  # a preset of the algorithm's own, from which its settings depart

    def algorithm(self, preset: Literal["paper", "small"], where: str) -> Algorithm:
        """With the small preset the suite's own sizes are left out."""
        if self.algo not in ALGORITHMS:
            raise DropError(f"{where}: method {self.name}: there is no algorithm {self.algo!r}")
        kind = ALGORITHMS[self.algo]
        if self.preset and self.preset not in kind.card.presets:
            raise DropError(f"{where}: method {self.name}: {self.algo} has no preset {shown(self.preset)}")
        settings = algorithm_to_dict(kind.small()) if preset == "small" else algorithm_to_dict(kind()) | self.sizes
        if self.preset:
            default, own = algorithm_to_dict(kind()), algorithm_to_dict(getattr(kind, self.preset)())
            settings |= {name: value for name, value in own.items() if value != default[name]}
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
class Search:
    """The same search for every method, see `droprl.bench.searched`."""

    candidates: int
    """How many candidates every method has: each is one of its trainings with one play."""
    episodes: int
    """How many episodes each candidate plays to be chosen by, for each seed."""
    of: dict[str, tuple[str, ...]]
    """By the name in the tables: the methods of the suite that are its candidates, with all their plays."""

    def __post_init__(self) -> None:
        for what in ("candidates", "episodes"):
            given = getattr(self, what)
            if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given < 2**31:
                raise DropError(f"search: {what} is {shown(given)}: give a whole number, at least 1 and less than 2³¹")


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
    search: Search | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before anything is trained."""
        for what, least in (("steps", 1), ("seeds", 1), ("episodes", 0)):
            given = getattr(self, what)
            if not isinstance(given, int) or isinstance(given, bool) or not least <= given < 2**31:
                raise DropError(
                    f"{self.name}: {what} is {shown(given)}: give a whole number, at least {least} and less than 2³¹"
                )
        if self.protocol not in get_args(PlayedCheckpoints):
            raise DropError(
                f"{self.name}: protocol is {shown(self.protocol)}: choose one of "
                f"{', '.join(get_args(PlayedCheckpoints))}"
            )
        if self.search is not None and self.seeds < 2:
            raise DropError(f"{self.name}: a search needs at least 2 seeds, because no seed chooses for itself")
        if not self.tasks or not all(isinstance(task, str) and task for task in self.tasks):
            raise DropError(f"{self.name}: tasks are {shown(list(self.tasks))}: give a list of names")
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


def _refuse_one_place(where: str, kind: str, names: Iterable[str]) -> None:
    """Refuse two names that would be written to the same file."""
    found: dict[str, str] = {}
    for name in names:
        try:
            part = file_name(name)
        except DropError as error:
            raise DropError(f"{where}: the {kind}: {error}") from error
        if (other := found.get(part)) is not None:
            raise DropError(f"{where}: the {kind} {other!r} and {name!r} would have the same files, {part}: rename one")
        found[part] = name


def suite_from_json(content: Any, where: str) -> Suite:
    """The suite that `asdict` turned into JSON."""
    suite = from_dict(Suite, content, where, "restore it, or remove it and run the suite again")
    for method in suite.methods:
        if method.algo not in ALGORITHMS:
            raise DropError(f"{where}: method {method.name}: there is no algorithm {shown(method.algo)}")
    _check_plays(suite.plays, where)
    return suite


def _check_plays(plays: dict[str, dict[str, Any]], where: str) -> None:
    for play, given in plays.items():
        from_dict(Adaptation, vars(Adaptation()) | given, f"{where}: play {play}", remedy="change this setting")


def label(method: Method, play: str) -> str:
    """The name of a method under a play, as tables and figures print it."""
    return method.name if play == method.name else f"{method.name} · {play}"


def load_suite(name: str | Path) -> Suite:
    """A ready-made suite by its name, or a suite from a .toml file."""
    path = Path(name)
    if str(name) in SUITES:
        text, where = _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8"), str(name)
    elif path.suffix == ".toml" and path.exists():
        text, where = _own_text(path), str(path)
    else:
        near = perhaps(str(name), SUITES)
        raise DropError(
            f"there is no suite {str(name)!r}{near}: choose one of {', '.join(SUITES)}, or give a .toml file"
        )
    try:
        content = tomllib.loads(text)
        check_depth(content)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise DropError(f"{where}: is not valid TOML ({reason(error)}): correct it") from error
    try:
        return _suite(path.stem, content, where)
    except DropError as error:
        raise error if str(error).startswith(where) else DropError(f"{where}: {error}") from error


def _own_text(path: Path) -> str:
    """The text of a suite that somebody wrote."""
    try:
        check_size(path, MOST_BYTES, "give a suite's .toml file")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DropError(f"{path}: cannot be read ({reason(error)}): save it as UTF-8") from error


def _suite(name: str, content: dict[str, Any], where: str) -> Suite:
    unknown = set(content) - {f.name for f in fields(Suite)} - {"sizes"} | {"name"} & set(content)
    missing = {"title", "tasks", "methods", "figure", "steps", "seeds", "episodes"} - set(content)
    if unknown or missing:
        fault = f"must have {', '.join(sorted(missing))}" if missing else f"has no field {', '.join(sorted(unknown))}"
        raise DropError(f"{where}: a suite {fault}")
    tables = {part: content.get(part, {}) for part in ("sizes", "methods", "plays", "figure")}
    for part, given in [*tables.items(), *(i for kind in ("methods", "plays") for i in _entries(tables[kind]))]:
        if not isinstance(given, dict):
            raise DropError(f"{where}: {part} is {shown(given)}: give a table of settings")
    if not isinstance(content["tasks"], list):
        raise DropError(f"{where}: tasks is {shown(content['tasks'])}: give a list of names")
    sizes = dict(tables["sizes"])
    methods = tuple(
        Method(
            name,
            algo=str(given.pop("algo", "drop")),
            share=_share(given, where),
            preset=str(given.pop("preset", "")),
            settings=given,
            sizes=sizes,
        )
        for name, given in ((name, dict(given)) for name, given in content["methods"].items())
    )
    plays = {p: dict(given) for p, given in content.get("plays", {}).items()}
    _check_plays(plays, where)
    figure = dict(content["figure"])
    if figure.get("kind") not in get_args(FigureKind):
        raise DropError(
            f"{where}: figure.kind is {shown(figure.get('kind'))}: choose one of {', '.join(get_args(FigureKind))}"
        )
    if odd := set(figure) - {f.name for f in fields(Figure)}:
        raise DropError(f"{where}: a figure has no field {', '.join(sorted(odd))}")
    if not isinstance(values := figure.get("values", []), list):
        raise DropError(f"{where}: figure.values is {shown(values)}: give a list of labels")
    figure["values"] = tuple(map(str, values))
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
        search=_search(content["search"], where) if "search" in content else None,
    )
    _refuse_unequal_search(suite, where)
    for method in methods:
        method.algorithm("paper", where)
    return suite


def _search(given: Any, where: str) -> Search:
    of: Any = given.get("of") if isinstance(given, dict) else None
    lists = list(of.values()) if isinstance(of, dict) else [None]
    listed = all(isinstance(members, list) and all(isinstance(n, str) for n in members) for members in lists)
    if not listed or set(given) != {"candidates", "episodes", "of"}:
        raise DropError(
            f"{where}: search needs candidates, episodes, and of: a table with a list of methods for each name"
        )
    return Search(given["candidates"], given["episodes"], {name: tuple(members) for name, members in of.items()})


def _refuse_unequal_search(suite: Suite, where: str) -> None:
    """Refuse a search that gives one method more candidates than another."""
    methods = {method.name: method for method in suite.methods}
    for name, members in ({} if suite.search is None else suite.search.of).items():
        if odd := [member for member in members if member not in methods]:
            raise DropError(
                f"{where}: search: {name}: has no method {', '.join(odd)}: choose from {', '.join(methods)}"
            )
        number = sum(len(suite.plays_of(methods[member])) for member in dict.fromkeys(members))
        if suite.search is not None and number != suite.search.candidates:
            raise DropError(
                f"{where}: search: {name} has {number} candidates (trainings × plays): give every method "
                f"{suite.search.candidates}"
            )


def _entries(table: Any) -> Iterable[tuple[str, Any]]:
    return table.items() if isinstance(table, dict) else ()


def _share(given: dict[str, Any], where: str) -> float:
    share = given.pop("share", 1.0)
    if not isinstance(share, int | float) or isinstance(share, bool):
        raise DropError(f"{where}: share is {shown(share)}: give a part of 1")
    return float(share)
