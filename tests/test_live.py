"""The live page: its search is the policy's own, it draws or says why not, and a real browser can switch everything."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from pages import BROWSER, Page, assert_orderly, needs_browser
from PIL import Image
from serving import MAZE, client_of, listening, tiny_policy
from training import refusal

from droprl.adapt import RULES, Adaptation, AdaptivePolicy, InferenceRule
from droprl.data.simulation import _quiet
from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.live import pictures
from droprl.deploy.serve.live.look import Plane, Settings, nothing_held, see
from droprl.deploy.serve.live.show import MOST_SHOWS, Stage, tasks_of
from droprl.policy import LoadedPolicy

STATES = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32)
PAGE = Path(pictures.__file__).parent / "page"


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return tiny_policy()


@pytest.mark.parametrize("rule", RULES)
def test_what_is_seen_is_the_policys_own_search(policy: LoadedPolicy, rule: InferenceRule) -> None:
    """Over an episode: the same actions, embeddings and sub-tasks as `policy.act`, for rules that hold z too."""
    adapted = policy.adapted(rule=rule, ascent_steps=4, reinference_interval=3, starts=3, step_size=0.5)
    adaptive, settings = adapted.policy, Settings(rule, 4, 3)
    assert isinstance(adaptive, AdaptivePolicy)
    held, carry, key = nothing_held(adaptive), adapted.start(1), jax.random.key(0)
    for step, state in enumerate(STATES):
        carry, actions = adapted.step(carry, state[None], key)
        action, sight = see(adaptive, adapted.scaling, settings, step, held, state, key)
        held = sight.held
        np.testing.assert_allclose(action, actions[0], atol=1e-5)
        np.testing.assert_allclose(sight.held.z, carry.inferred.z[0], atol=1e-5)
        assert int(sight.held.start) == int(carry.inferred.start[0])
        if settings.due(step):
            np.testing.assert_allclose(sight.score, carry.inferred.score[0], atol=1e-5)
        climbed = np.abs(np.asarray(sight.ends) - np.asarray(adaptive.embeddings)).max()
        assert (climbed > 0) == rule.startswith("grad")


def test_the_plane_keeps_distances_where_two_dimensions_are_all_there_is() -> None:
    flat = (
        np.random.default_rng(0).normal(size=(6, 2)) @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 2)))[0].T
    )
    plane = Plane(flat)
    points = np.array(plane.points(flat))
    assert plane.explained == pytest.approx(1.0)
    np.testing.assert_allclose(
        np.linalg.norm(points[0] - points[1:], axis=1), np.linalg.norm(flat[0] - flat[1:], axis=1), atol=1e-3
    )


def test_tasks_and_settings(policy: LoadedPolicy) -> None:
    assert tasks_of(MAZE)[0] == MAZE
    assert len(tasks_of(MAZE)) == 3
    assert tasks_of("Hopper-v4") == ["Hopper-v4"]
    assert tasks_of(None) == []
    stage = Stage(policy)
    show = stage.open()
    show.change(rule="best", ascent_steps=3)
    show.change(paused=True, restart=True)
    assert show.wish.settings == Settings("best", 3, 1)
    assert (show.wish.paused, show.wish.restarts) == (True, 1)
    assert "is not a task for this policy" in refusal(show.change, task="Ant-v5")
    for _ in range(MOST_SHOWS - 1):
        stage.open()
    assert "are watching already" in refusal(stage.open)
    assert "infers no embedding" in refusal(Stage(tiny_policy("bc")).open().change, rule="best")


def test_without_a_way_to_draw_the_reason_is_said(policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_found", {})
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert pictures.drawing_backend() is None
    env, reason = pictures.task_to_watch(MAZE)
    env.close()
    assert reason is not None
    assert "no way to draw" in reason
    kinds = asyncio.run(first_events(Stage(policy), 4))
    assert [event["kind"] for event in kinds] == ["hello", "task", "frame", "frame"]
    assert kinds[1]["no_frames"] == reason
    assert kinds[2]["image"] is None
    assert len(kinds[2]["scores"]) == len(kinds[2]["ends"]) == len(kinds[0]["embeddings"]) == 10


def test_two_tasks_made_at_once_leave_the_process_its_errors() -> None:
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


def test_what_walks_away_is_followed() -> None:
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


def test_the_page_is_orderly_and_its_knobs_are_checked(policy: LoadedPolicy) -> None:
    assert_orderly(Page((PAGE / "live.html").read_text(encoding="utf-8")))
    with client_of(policy, Limits(rows=1)) as client:
        for body, status in (({"rule": "bold"}, 422), ({"ascent_steps": 10**9}, 422), ({"rule": "best"}, 404)):
            assert client.post("/live/nobody", json=body).status_code == status


# --- in a real browser ---

DRIVER = """<!doctype html><body><iframe id="page" src="/" width="1280" height="1200"></iframe><script>
const frame = document.getElementById("page"), found = {};
const inside = () => frame.contentDocument, root = () => inside().documentElement.dataset;
const until = async (test) => { while (!test()) await new Promise((done) => setTimeout(done, 50)); };
const overflow = () => {
  const page = inside().documentElement, edge = page.clientWidth + 0.5;
  const shown = [...inside().querySelectorAll("main *")].filter((e) => e.getClientRects().length);
  const out = shown.filter((e) => !e.closest("svg") && e.getBoundingClientRect().right > edge);
  return out.map((e) => e.tagName + "#" + e.id);
};
const set = (id, value) => {
  const knob = inside().getElementById(id);
  knob.value = value;
  for (const kind of ["input", "change"]) knob.dispatchEvent(new Event(kind));
};
frame.onload = async () => {
  await until(() => root().step);
  found.first = root().rule;
  found.frames = root().frames;
  found.image = inside().getElementById("frame").src.slice(0, 23);
  found.dots = inside().querySelectorAll("#dots circle").length;
  found.climbs = inside().querySelectorAll("#climbs path").length;
  const z = root().z;
  await until(() => root().z !== z);
  found.wide = overflow();
  frame.width = 390;
  await new Promise((done) => setTimeout(done, 300));
  found.narrow = overflow();
  inside().querySelector("input[value=best]").click();
  await until(() => root().rule === "best");
  found.climbsOfBest = inside().querySelectorAll("#climbs path").length;
  const held = root().z, step = Number(root().step);
  await until(() => Number(root().step) > step + 4);
  found.held = root().z === held;
  inside().querySelector("input[value=grad-ada]").click();
  set("k", 1);
  set("m", 2);
  await until(() => root().rule === "grad-ada, K = 1, m = 5");
  found.trace = inside().getElementById("trace").getAttribute("d").split("L").length;
  set("task", "droprl/maze2d-medium-v0");
  await until(() => inside().getElementById("task-name").textContent.includes("medium"));
  await until(() => Number(root().step) < 20);
  found.error = root().error ?? null;
  frame.onload = null;
  frame.src = "/docs";
  await until(() => inside()?.documentElement?.dataset.calls);
  found.calls = Number(root().calls);
  await fetch("/test/found", {method: "POST", body: JSON.stringify(found)});
};
</script></body>"""


@pytest.fixture
def driven(policy: LoadedPolicy, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a script in a browser found when it used the page."""
    service = Service(policy, Limits(rows=1))
    app, reports = make_app(service), queue.Queue[dict[str, Any]]()

    @app.get("/test/drive", include_in_schema=False)
    async def drive() -> Response:
        return HTMLResponse(DRIVER)

    @app.post("/test/found", include_in_schema=False)
    async def found(request: Request) -> Response:
        reports.put(json.loads(await request.body()))
        return Response()

    with listening(app, service) as (address, _):
        assert BROWSER is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        words = [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"{address}/test/drive"]
        browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield reports.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(20)
    service.close()


@needs_browser
def test_in_a_browser_everything_moves_and_can_be_switched(driven: dict[str, Any]) -> None:
    assert driven["error"] is None
    assert driven["first"] == f"grad-ada, K = {Adaptation().ascent_steps}"
    assert driven["dots"] == driven["climbs"] == 10
    drawn = pictures.drawing_backend() is not None
    assert driven["frames"] == ("some" if drawn else "none")
    assert driven["image"] == ("data:image/jpeg;base64," if drawn else "")
    assert driven["wide"] == driven["narrow"] == []
    assert driven["climbsOfBest"] == 0
    assert driven["held"]  # Best keeps what it chose
    assert driven["trace"] > 5
    assert driven["calls"] == 7
