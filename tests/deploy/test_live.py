"""Behind the live page: its search is the policy's own, it draws or says why not, and it reports errors."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pages import Page, assert_orderly
from helpers.serving import MAZE, client_of, tiny_policy
from helpers.training import refusal
from PIL import Image
from pydantic import ValidationError

from droprl.adapt import RULES, InferenceRule
from droprl.deploy.serve.app import Limits
from droprl.deploy.serve.live import pictures, show
from droprl.deploy.serve.live.look import Settings, no_choice_yet, see
from droprl.deploy.serve.live.routes import Change
from droprl.deploy.serve.live.show import MOST_SHOWS, Stage, tasks_of
from droprl.environments import frames
from droprl.environments.simulation import _quiet
from droprl.loaded import LoadedPolicy

STATES = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32)
PAGE = Path(pictures.__file__).parent / "page"


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.mark.parametrize("rule", RULES)
def test_the_page_shows_the_policys_own_search(policy: LoadedPolicy, rule: InferenceRule) -> None:
    """Over a whole episode: the same actions, embeddings and sub-tasks as the policy, also if a rule keeps its z."""
    adapted = policy.adapted(rule=rule, ascent_steps=4, reinference_interval=3, starts=3, step_size=0.5)
    search, settings = adapted.search, Settings(rule, 4, 3)
    assert search is not None
    choice, carry = no_choice_yet(search), adapted.start(1)
    for step, state in enumerate(STATES):
        carry, actions = adapted.step(carry, state[None], None)
        action, sight = see(search, adapted.scaling, settings, step, choice, state, None)
        choice = sight.choice
        np.testing.assert_allclose(action, actions[0], atol=1e-5)
        np.testing.assert_allclose(sight.choice.z, carry.inferred.z[0], atol=1e-5)
        assert int(sight.choice.start) == int(carry.inferred.start[0])
        if settings.due(step):
            np.testing.assert_allclose(sight.score, carry.inferred.score[0], atol=1e-5)
        climbed = np.abs(np.asarray(sight.ends) - np.asarray(search.embeddings)).max()
        assert (climbed > 0) == rule.startswith("grad")


def test_tasks_and_settings(policy: LoadedPolicy) -> None:
    assert tasks_of(MAZE)[0] == MAZE
    assert len(tasks_of(MAZE)) == 3
    assert tasks_of("Hopper-v4") == ["Hopper-v4"]
    assert tasks_of(None) == []
    stage = Stage(policy)
    watched = stage.open()
    watched.change(rule="best", ascent_steps=3)
    watched.change(paused=True, restart=True)
    assert watched.wish.settings == Settings("best", 3, 1)
    assert (watched.wish.paused, watched.wish.restarts) == (True, 1)
    assert "is not a task for this policy" in refusal(watched.change, task="Ant-v5")
    for _ in range(MOST_SHOWS - 1):
        stage.open()
    assert "are watching already" in refusal(stage.open)
    assert "infers no embedding" in refusal(Stage(tiny_policy("bc")).open().change, rule="best")


def test_without_a_way_to_draw_the_page_says_why(policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_found", {})
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert frames.drawing_backend() is None
    env, reason = pictures.task_to_watch(MAZE)
    env.close()
    assert reason is not None
    assert "no way to draw" in reason
    kinds = asyncio.run(first_events(Stage(policy), 4))
    assert [event["kind"] for event in kinds] == ["hello", "task", "frame", "frame"]
    assert kinds[1]["no_frames"] == reason
    assert kinds[2]["image"] is None
    assert len(kinds[2]["scores"]) == len(kinds[2]["ends"]) == len(kinds[0]["embeddings"]) == 11  # the fallback and ten


def test_a_task_that_does_not_fit_is_refused_before_anything_is_served(policy: LoadedPolicy) -> None:
    assert "Hopper-v4: its observations have 11 entries" in refusal(Stage, policy, "Hopper-v4")
    assert "Nowhere-v0: cannot be made" in refusal(Stage, policy, "Nowhere-v0")


@pytest.mark.parametrize("spoilt", ["score", "scores", "ends"])
def test_a_number_that_is_not_finite_ends_the_show_with_an_error(
    policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    def spoil(*args: Any) -> Any:
        action, sight = see(*args)
        return action, sight._replace(**{spoilt: np.full_like(getattr(sight, spoilt), np.nan)})

    monkeypatch.setattr(show, "see", spoil)
    said = asyncio.run(first_events(Stage(policy), 10))
    assert [event["kind"] for event in said] == ["hello", "task", "trouble"]
    assert "step 0: an action, a score or the reward is not finite" in said[-1]["error"]


def test_two_tasks_made_at_once_leave_standard_error_open() -> None:
    before, inside, go = os.fstat(2), threading.Event(), threading.Event()

    def other() -> None:
        with _quiet():
            inside.set()
            go.wait(10)

    with _quiet():
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(0.2)
    go.set()
    thread.join()
    assert os.path.samestat(os.fstat(2), before)


def test_the_camera_follows_an_agent_that_walks_away() -> None:
    env, reason = pictures.task_to_watch("Hopper-v4")
    if reason is not None:
        pytest.skip(reason)
    env.reset(seed=0)
    simulation: Any = env.unwrapped
    camera = pictures.Camera(env)
    near = camera.frame()
    position = simulation.data.qpos.copy()
    position[0] += 7.0
    simulation.set_state(position, simulation.data.qvel.copy())
    far = camera.frame()
    env.close()
    body = [np.asarray(Image.open(io.BytesIO(base64.b64decode(f.split(",")[1])))).astype(int) for f in (near, far)]
    hopper = [np.argwhere(picture[..., 0] - picture[..., 2] > 60) for picture in body]  # brown on grey
    assert min(map(len, hopper)) > 500
    np.testing.assert_allclose(hopper[0].mean(axis=0), hopper[1].mean(axis=0), atol=3.0)


async def first_events(stage: Stage, n: int) -> list[Any]:
    found: list[Any] = []
    async for event in stage.open().events():
        found += [event] if event is not None else []
        if len(found) == n:
            break
    stage.close()
    return found


def test_the_page_is_orderly_and_its_settings_are_checked(policy: LoadedPolicy) -> None:
    assert_orderly(Page((PAGE / "live.html").read_text(encoding="utf-8")))
    with client_of(policy, Limits(rows=1)) as client:
        for body, status in (({"rule": "bold"}, 422), ({"ascent_steps": 10**9}, 422), ({"rule": "best"}, 404)):
            assert client.post("/live/nobody", json=body).status_code == status
    Change.within(None).model_validate({"ascent_steps": 200})
    own = Change.within(Settings("grad", 300, 1))
    own.model_validate({"ascent_steps": 300})
    with pytest.raises(ValidationError):
        own.model_validate({"ascent_steps": 301})
