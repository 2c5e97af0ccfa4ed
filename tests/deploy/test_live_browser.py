"""The live page in a real browser: everything moves and can be switched, and errors stay on the page."""

from __future__ import annotations

import json
import queue
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from helpers.pages import BROWSER, needs_browser
from helpers.serving import listening, tiny_policy

from droprl.deploy.serve.app import Limits, Service, make_app
from droprl.deploy.serve.live import show
from droprl.deploy.serve.live.look import see
from droprl.environments import frames
from droprl.loaded import LoadedPolicy

pytestmark = needs_browser
OWN = {"ascent_steps": 7, "reinference_interval": 3}  # between the sliders' usual values
FRAME = """<!doctype html><body><iframe id="page" src="/" width="1280" height="1200"></iframe><script>
const frame = document.getElementById("page"), found = {};
const inside = () => frame.contentDocument, root = () => inside().documentElement.dataset;
const $ = (id) => inside().getElementById(id), step = () => Number(root().step);
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (test) => { while (!test()) await wait(50); };
const report = () => fetch("/test/found", {method: "POST", body: JSON.stringify(found)});
"""
USE = (
    FRAME
    + """
const overflow = () => {
  const page = inside().documentElement, edge = page.clientWidth + 0.5;
  const shown = [...inside().querySelectorAll("main *")].filter((e) => e.getClientRects().length);
  const out = shown.filter((e) => !e.closest("svg") && e.getBoundingClientRect().right > edge);
  return out.map((e) => e.tagName + "#" + e.id);
};
const set = (id, value) => {
  $(id).value = value;
  for (const kind of ["input", "change"]) $(id).dispatchEvent(new Event(kind));
};
const halts = async () => {
  await wait(700);
  const at = step();
  await wait(700);
  return step() === at;
};
frame.onload = async () => {
  await until(() => root().step);
  found.first = root().rule;
  found.knobs = [$("k-out").textContent, $("m-out").textContent];
  found.frames = root().frames;
  found.image = $("frame").src.slice(0, 23);
  found.dots = inside().querySelectorAll("#dots circle").length;
  found.climbs = inside().querySelectorAll("#climbs path").length;
  const z = root().z;
  await until(() => root().z !== z);
  found.wide = overflow();
  frame.width = 390;
  await wait(300);
  found.narrow = overflow();
  found.rules = {};
  for (const rule of ["best", "grad", "best-ada", "grad-ada"]) {
    inside().querySelector(`input[value=${rule}]`).click();
    await until(() => root().rule.split(",")[0] === rule);
    const held = root().z, from = step();
    await until(() => step() > from + 8);
    const climbs = inside().querySelectorAll("#climbs path").length;
    const off = [$("k").disabled, $("m").disabled];
    found.rules[rule] = { label: root().rule, climbs, held: root().z === held, off };
  }
  set("k", 1);
  set("m", 0);
  await until(() => root().rule === "grad-ada, K = 1");
  found.trace = $("trace").getAttribute("d").split("L").length;
  $("restart").click();
  await until(() => $("progress").textContent.startsWith("Episode 2,") && step() < 20);
  $("pause").click();
  found.pause = [await halts(), $("pause").textContent];
  $("restart").click();
  await until(() => $("progress").textContent.startsWith("Episode 3,"));
  found.restart = $("pause").textContent;
  $("pause").click();
  await halts();
  set("task", "droprl/maze2d-medium-v0");
  await until(() => $("task-name").textContent.includes("medium"));
  await until(() => step() > 2 && step() < 20);
  found.task = $("pause").textContent;
  $("pause").click();
  await halts();
  const name = root().show;
  await fetch("/test/end", {method: "POST"});
  await until(() => root().show !== name);
  await until(() => $("task-name").textContent.includes("umaze") && step() > 2);
  found.again = [$("pause").textContent, $("trouble").hidden];
  found.error = root().error ?? null;
  frame.onload = null;
  frame.src = "/docs";
  await until(() => inside()?.documentElement?.dataset.calls);
  found.calls = Number(root().calls);
  report();
};
</script></body>"""
)
FAIL = (
    FRAME
    + """
frame.onload = async () => {
  await until(() => $("trouble") && !$("trouble").hidden);
  found.said = $("trouble").textContent;
  await wait(5000);  // a browser opens a lost stream again after three seconds
  found.later = $("trouble").textContent;
  report();
};
</script></body>"""
)


def driven(policy: LoadedPolicy, script: str, profile: Path) -> tuple[dict[str, Any], int]:
    """What a script found when it used the page in a browser, and how many streams it opened."""
    service = Service(policy, Limits(rows=1))
    app, reports, opened = make_app(service), queue.Queue[dict[str, Any]](), []
    opens = service.stage.open

    def counted() -> show.Show:
        opened.append(opens())
        return opened[-1]

    service.stage.open = counted  # type: ignore[method-assign]

    @app.get("/test/drive", include_in_schema=False)
    async def drive() -> Response:
        return HTMLResponse(script)

    @app.post("/test/end", include_in_schema=False)
    async def end() -> Response:
        opened[-1].stop()
        return Response()

    @app.post("/test/found", include_in_schema=False)
    async def found(request: Request) -> Response:
        reports.put(json.loads(await request.body()))
        return Response()

    with listening(app, service) as (address, _):
        assert BROWSER is not None
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
        ]  # fmt: skip
        words = [BROWSER, *flags, f"{address}/test/drive"]
        browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return reports.get(timeout=120), len(opened)
        finally:
            browser.terminate()
            browser.wait(20)
            service.close()


def test_everything_moves_and_can_be_switched(tmp_path: Path) -> None:
    found, _ = driven(tiny_policy().adapted(**OWN), USE, tmp_path / "profile")
    assert found["error"] is None
    assert found["first"] == "grad-ada, K = 7, m = 3"
    assert found["knobs"] == ["7", "3"]
    assert found["dots"] == found["climbs"] == 11  # the fallback and ten
    drawn = frames.drawing_backend() is not None
    assert found["frames"] == ("some" if drawn else "none")
    assert found["image"] == ("data:image/jpeg;base64," if drawn else "")
    assert found["wide"] == found["narrow"] == []
    assert {rule: seen["label"] for rule, seen in found["rules"].items()} == {
        "best": "best",
        "grad": "grad, K = 7",
        "best-ada": "best-ada, m = 3",
        "grad-ada": "grad-ada, K = 7, m = 3",
    }
    assert {rule: seen["climbs"] for rule, seen in found["rules"].items()} == {
        "best": 0, "grad": 11, "best-ada": 0, "grad-ada": 11,
    }  # fmt: skip
    for rule in ("best", "grad"):  # these rules keep the z* that they chose
        assert found["rules"][rule]["held"]
    assert [seen["off"] for seen in found["rules"].values()] == [
        [True, True], [False, True], [True, False], [False, False],
    ]  # fmt: skip
    assert found["trace"] > 5
    assert found["pause"] == [True, "Go on"]
    assert found["restart"] == found["task"] == "Pause"  # both end the pause
    assert found["again"] == ["Pause", True]  # the stream was lost, and the browser opened it again
    assert found["calls"] == 7


def test_an_error_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(*args: Any) -> Any:
        action, sight = see(*args)
        return action, sight._replace(score=np.nan * sight.score)

    monkeypatch.setattr(show, "see", spoil)
    found, opened = driven(tiny_policy(), FAIL, tmp_path / "profile")
    assert "is not finite" in found["said"]
    assert found["later"] == found["said"]
    assert opened == 1
