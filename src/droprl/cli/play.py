"""`drop play`: one episode, and a video of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from droprl.cli.evaluate import AdaptationOptions
from droprl.cli.options import Flag, Folder, parse, print_json, refuse_to_replace, use_compilation_cache
from droprl.data.dataset import normalized_scores
from droprl.data.tasks import limit_of_data
from droprl.environments.ids import given_by_user
from droprl.errors import DropError, require
from droprl.evaluation import EVALUATION_SEED
from droprl.loaded import load_policy
from droprl.progress import bar
from droprl.terminal import say
from droprl.video import MOST_OF_A_GIF, check_video, film_episode, write_video


@dataclass(frozen=True)
class PlayOptions:
    """Play one episode of a run or of a policy, and write a video of it.

    Mazes draw themselves. MuJoCo draws by EGL or OSMesa and needs no screen.
    """

    run: Folder
    """The folder that `drop train` or `drop export` made."""
    video: Path
    """The file: .gif, or .mp4, which is smaller."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    seed: int | None = None
    """For a run: which training seed; by default the first."""
    episode: int = 0
    """Which episode: 0 is the first that `drop evaluate` plays."""
    env: str | None = None
    """The Gymnasium id of the task, if the data did not name it."""
    force: Flag = False
    """Replace a file that is there already."""
    json: Flag = False
    """Print one JSON object: the file, the steps and the return."""


def play(words: list[str]) -> None:
    use_compilation_cache()
    options = parse(PlayOptions, "play", words)
    require(options, "from 0 to 1,000,000", "episode")
    check_video(options.video)
    refuse_to_replace(options.video, options.force)
    policy = load_policy(options.run, seed=options.seed, **options.adaptation.chosen())
    origin = policy.origin
    task = origin.env if options.env is None else given_by_user(options.env)
    if task is None:
        raise DropError(f"{origin.dataset}: no task is known for this data: give its Gymnasium id with --env")
    limit = limit_of_data(origin.time_limit, origin.env, task)
    most = MOST_OF_A_GIF if options.video.suffix.lower() == ".gif" else None
    with bar(f"playing {task}", "steps") as drawn:
        seed = EVALUATION_SEED + options.episode
        film = film_episode(policy, task, limit, seed, most, lambda step: drawn(step, max(limit or 0, step)))
    write_video(film, options.video)
    score = None
    if origin.score_range is not None and task == origin.env:
        score = float(normalized_scores([film.earned], origin.score_range)[0])  # type: ignore[arg-type]
    if options.json:
        print_json({"video": str(options.video), "steps": film.steps, "return": film.earned, "score": score})
        return
    scored = "" if score is None else f" (score {score:.1f})"
    skipped = "" if film.every == 1 else f", a frame every {film.every} steps"
    say(f"{options.video}: {film.steps:,} steps{skipped}, return {film.earned:,.1f}{scored}")
