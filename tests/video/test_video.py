"""Videos of episodes: mazes without any graphics library, MuJoCo without a screen, and one line where neither works."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import TINY_BC, learnable_dataset, refusal, tiny
from PIL import Image

from droprl import evaluate, load_policy
from droprl.cli import main
from droprl.environments import frames
from droprl.environments.frames import BALL_COLOUR, GOAL_COLOUR, PIXELS, WALL, WEDGE, task_to_film
from droprl.train import fit
from droprl.video import Film, film_episode, gif, write_video

pytest.importorskip("gymnasium_robotics")
Captured = pytest.CaptureFixture[str]
MAZE, GATES = "droprl/maze2d-umaze-v0", "droprl/maze2d-gates-v0"


@pytest.fixture(scope="module")
def maze_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maze")
    main(["data", "make", "maze2d-umaze", "--steps", "900", "--out", str(folder / "maze2d-umaze.hdf5")])
    main(["train", str(folder / "maze2d-umaze.hdf5"), "--out", str(folder / "run"), *TINY_BC, "--steps=4"])
    return folder / "run"


@pytest.fixture
def no_way_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_found", {})
    monkeypatch.setenv("MUJOCO_GL", "nonsense")


def pixels(frame: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.all(frame == colour, axis=-1)


# --- mazes ---


@pytest.mark.usefixtures("no_way_to_draw")
@pytest.mark.parametrize("task", [MAZE, GATES])
def test_a_maze_draws_its_ball_where_it_is_and_never_in_a_wall(task: str) -> None:
    env, draw = task_to_film(task)
    rng = np.random.default_rng(0)
    env.reset(seed=1)
    draw.begin()  # type: ignore[attr-defined]
    walls = pixels(draw(), WALL)
    inner: Any = env.unwrapped
    offset = 0.2 if task == MAZE else 0.0  # how far D4RL's positions are beyond the middle of their cell
    for _ in range(60):
        env.step(rng.uniform(-1, 1, 2) if rng.random() < 0.5 else np.array([0.0, 1.0]))
        frame = draw()
        ball = pixels(frame, BALL_COLOUR)
        middle = np.argwhere(ball).mean(axis=0) / PIXELS - 0.5
        np.testing.assert_allclose(middle, np.asarray(inner.position) + offset, atol=0.05)
        assert (ball & walls).sum() < 0.35 * ball.sum()  # the ball has a size, its middle stays outside
        row, column = np.round(middle).astype(int)
        assert (inner.maze.rows if task == MAZE else inner.gates.rows)[row][column] != "#"
    env.close()
    assert pixels(frame, GOAL_COLOUR).any() == (task == MAZE)
    assert pixels(frame, WEDGE).any() == (task == GATES)


def test_a_film_is_the_episode_that_an_evaluation_plays(maze_run: Path) -> None:
    played = evaluate(maze_run, episodes=2, progress=False)
    policy = load_policy(maze_run)
    film = film_episode(policy, MAZE, 300, 10_001)
    assert film.steps == 300
    assert film.earned == pytest.approx(played.results[0].returns[1])
    assert len(film.frames) == 301
    few = film_episode(policy, MAZE, 300, 10_001, most_frames=50)
    assert (len(few.frames), few.every, few.earned) == (51, 6, film.earned)
    np.testing.assert_array_equal(few.frames[0], film.frames[0])


@pytest.mark.usefixtures("no_way_to_draw")
def test_the_command_writes_both_kinds(maze_run: Path, tmp_path: Path, capsys: Captured) -> None:
    capsys.readouterr()
    main(["play", str(maze_run), "--video", str(tmp_path / "new" / "a.gif"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["video"]) == (300, str(tmp_path / "new" / "a.gif"))
    assert found["score"] == pytest.approx(100 * (found["return"] - 23.85) / (161.86 - 23.85))
    with Image.open(found["video"]) as picture:
        assert picture.size == (5 * PIXELS, 5 * PIXELS)
        assert picture.n_frames > 100  # type: ignore[attr-defined]
    main(["play", str(maze_run), "--video", str(tmp_path / "a.mp4"), "--episode=1"])
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{tmp_path / 'a.mp4'}: 300 steps, return ")
    assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "new"]
    for words, said, code in (
        (["--video", str(tmp_path / "a.mp4")], "exists already", 1),
        (["--video", str(tmp_path / "a.avi")], "is no video: give a name that ends in .gif or .mp4", 2),
        (["--video", str(tmp_path / "b.gif"), "--episode=-1"], "episode is -1", 2),
        (["--video", str(tmp_path / "b.gif"), "--env=NoSuchTask-v7"], "cannot be", 1),
        ([], "Missing from drop play: --video", 2),
    ):
        with pytest.raises(SystemExit) as end:
            main(["play", str(maze_run), *words])
        printed = capsys.readouterr()
        assert (end.value.code, printed.out, printed.err.count("\n")) == (code, "", 1)
        assert said in printed.err


def test_an_mp4_has_every_frame(tmp_path: Path) -> None:
    import imageio_ffmpeg

    made = [np.full((33, 47, 3), level, np.uint8) for level in (10, 120, 240)]
    file = write_video(Film(made, 1, 5.0, 2, 0.0), tmp_path / "a.mp4")
    program = imageio_ffmpeg.get_ffmpeg_exe()
    read = [program, "-i", str(file), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    answer = subprocess.run(read, capture_output=True, check=True)
    assert b"46x32" in answer.stderr  # even, for the codec
    assert b"5 fps" in answer.stderr
    shown = np.frombuffer(answer.stdout, np.uint8).reshape(3, 32, 46, 3).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(shown, (10, 120, 240), atol=6)


def test_a_gif_has_every_frame() -> None:
    made = [np.full((20, 40, 3), level, np.uint8) for level in (10, 120, 240)]
    with Image.open(io.BytesIO(gif(Film(made, 1, 5.0, 2, 0.0), width=20))) as picture:
        assert (picture.size, picture.n_frames) == ((20, 10), 3)  # type: ignore[attr-defined]
        levels = []
        for i in range(3):
            picture.seek(i)
            levels.append(np.asarray(picture.convert("RGB")).mean())
            assert picture.info["duration"] == (200 if i < 2 else 1500)
    np.testing.assert_allclose(levels, (10, 120, 240), atol=2)


# --- MuJoCo ---

HOPPER = """
import sys
import numpy as np
from pathlib import Path
from helpers.training import tiny
from droprl.data import from_arrays
from droprl.loaded import load_policy
from droprl.train import fit
from droprl.video import film_episode
rng, n = np.random.default_rng(0), 60
ends = np.zeros(n, bool)
ends[19::20] = True
data = from_arrays(rng.normal(size=(n, 11)), rng.uniform(-1, 1, (n, 3)), rng.normal(size=n), np.zeros(n, bool), ends,
                   action_low=-1.0, action_high=1.0)
policy = load_policy(fit(data, tiny("bc"), out=sys.argv[1], steps=2, progress=False).path)
film = film_episode(policy, "Hopper-v5", 40, 0)
moved = np.abs(film.frames[0].astype(int) - film.frames[-1]).mean()
print(len(film.frames) == film.steps + 1, film.frames[0].shape, moved > 0.5, len(np.unique(film.frames[0])) > 30)
"""


@pytest.mark.skipif(frames.drawing_backend() is None, reason="MuJoCo cannot draw on this machine")
def test_mujoco_is_filmed_without_a_screen(tmp_path: Path) -> None:
    """In a process of its own: graphics drivers stay in a process once they are loaded."""
    answer = subprocess.run(
        [sys.executable, "-c", HOPPER, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert answer.stdout.splitlines()[-1] == "True (330, 480, 3) True True"


@pytest.mark.usefixtures("no_way_to_draw")
def test_where_nothing_can_draw_one_line_says_so(tmp_path: Path) -> None:
    policy = load_policy(fit(learnable_dataset(), tiny("bc"), out=tmp_path / "run", steps=2, progress=False).path)
    said = refusal(film_episode, policy, "Hopper-v5", None, 0)
    assert said == (
        "Hopper-v5: cannot be drawn: MuJoCo finds no way to draw on this machine (EGL or OSMesa): install one of them"
    )
