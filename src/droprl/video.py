"""An episode as a video: a .gif, or an .mp4, which is ten times smaller for what MuJoCo draws."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from droprl.environments.frames import Drawer, Environment, Frame, task_to_film
from droprl.errors import DropError, UsageError, reason
from droprl.files.durable import make_folder
from droprl.files.storage import TEMPORARY, write_bytes
from droprl.loaded import LoadedPolicy
from droprl.rollout import Trajectory, check_fit, longest_episode, play_episode

KINDS = (".gif", ".mp4")
FASTEST = 25.0  # frames a second
MOST_OF_A_GIF = 300  # frames
MOST_FRAMES = 100_000  # steps of an episode that nothing else ends
COLOURS = 64  # of a .gif
INSTALL = "pip install 'droprl[video]'"


@dataclass(frozen=True)
class Film:
    """The frames of an episode, and what it earned."""

    frames: list[Frame]
    every: int  # steps from one frame to the next
    per_second: float
    steps: int
    earned: float


def check_video(file: Path) -> None:
    """Refuse, before anything is played, a kind of file that cannot be written."""
    if file.suffix.lower() not in KINDS:
        raise UsageError(f"{file}: is no video: give a name that ends in {' or '.join(KINDS)}")
    _pillow()
    if file.suffix.lower() == ".mp4":
        _ffmpeg()


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws a frame after the reset and after every `every` steps."""

    def __init__(self, env: Environment, draw: Drawer, every: int, progress: Callable[[int], None]) -> None:
        super().__init__(env)
        self._draw, self._every, self._progress, self._clock = draw, every, progress, 0
        self.frames: list[Frame] = []

    def reset(self, **options: Any) -> Any:
        found = self.env.reset(**options)
        begin: Any = getattr(self._draw, "begin", None)
        if begin is not None:
            begin()
        self.frames.append(self._draw())
        return found

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        self._clock += 1
        if self._clock % self._every == 0 or found[2] or found[3]:
            self.frames.append(self._draw())
        self._progress(self._clock)
        return found


def film_episode(
    policy: LoadedPolicy,
    env_id: str,
    time_limit: int | None,
    seed: int,
    most_frames: int | None = None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Film:
    """The episode that an evaluation plays with this seed. With `most_frames`, steps between two frames are skipped."""
    env, draw = task_to_film(env_id, time_limit)
    try:
        check_fit(policy, env)
        limit = min(longest_episode(env) or MOST_FRAMES, MOST_FRAMES)
        every = 1 if most_frames is None else -(-limit // most_frames)
        filmed = _Filmed(env, draw, every, progress)
        played: Trajectory = play_episode(policy, filmed, seed, limit, None, 0.0)
    finally:
        env.close()
    rate = float(env.metadata.get("render_fps") or FASTEST) / every
    return Film(filmed.frames, every, min(rate, FASTEST), len(played.rewards), played.episode_return)


def write_video(film: Film, file: Path) -> Path:
    """Write the whole video or nothing."""
    write_bytes(file, gif(film) if file.suffix.lower() == ".gif" else _mp4(film, file))
    return file


def gif(film: Film, width: int | None = None) -> bytes:
    """`width`: shrink the frames to it."""
    image = _pillow()
    pictures = [image.fromarray(frame) for frame in film.frames]
    if width is not None and pictures[0].width > width:
        height = round(pictures[0].height * width / pictures[0].width)
        pictures = [picture.resize((width, height)) for picture in pictures]
    few = [picture.quantize(COLOURS, dither=image.Dither.NONE) for picture in pictures]
    durations = [1000 / film.per_second] * (len(few) - 1) + [1500]  # the end stays for a moment
    content = io.BytesIO()
    few[0].save(content, "GIF", save_all=True, append_images=few[1:], duration=durations, loop=0)
    return content.getvalue()


def _mp4(film: Film, file: Path) -> bytes:
    """The program writes to a file of its own, beside the place where the video will be."""
    height, width = (size - size % 2 for size in film.frames[0].shape[:2])  # the codec wants even sizes
    temporary = file.with_name(f"{TEMPORARY}{os.getpid()}-{file.name}")
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{film.per_second:g}", "-i", "-"]
    wanted = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "23", "-movflags", "+faststart", "-f", "mp4"]
    frames = b"".join(np.ascontiguousarray(frame[:height, :width]).tobytes() for frame in film.frames)
    command = [_ffmpeg(), "-y", "-loglevel", "error", *given, *wanted, str(temporary)]
    try:
        make_folder(file.parent)
        made = subprocess.run(command, input=frames, capture_output=True, check=False)
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().splitlines() or ["it does not say why"]
            raise DropError(f"{file}: cannot be written ({said[-1]}): choose another place, or a .gif")
        return temporary.read_bytes()
    except OSError as error:
        raise DropError(f"{file}: cannot be written ({reason(error)}): choose another place, or a .gif") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DropError(f"a video needs {error.name}, which is not installed: {INSTALL}") from error
    return Image


def _ffmpeg() -> str:
    """The program that comes with the package, or the one that the system has."""
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except ImportError as error:
        raise DropError(f"an .mp4 needs {error.name}, which is not installed: {INSTALL}, or give a .gif") from error
    except RuntimeError as error:
        raise DropError(f"an .mp4 cannot be made ({reason(error)}): give a .gif") from error
