"""Adroit: which rewards do the files have, what would D4RL's rules give, and do recorded actions repeat a recording?

Observations have no velocities of the hand, so an episode can be replayed from its start only. Rewards need none, but
for door's cost of velocity (at most 0.1 in a step): each row is compared with D4RL's formula on the row after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from differences import spread

from droprl.data import Dataset, load_dataset
from droprl.data.tasks import find_task
from droprl.environments.simulation import make_env

COST_OF_VELOCITY = 0.1
# Where the distances are in each observation: from the palm to the handle, the hammer or the ball.
PALM = {"door": slice(35, 38), "relocate": slice(30, 33)}
REPLAYED = 20
PARTED = 1e-3  # a difference of this size is no rounding any more


def replay_file(path: Path) -> dict[str, Any]:
    dataset = load_dataset(path)
    task = dataset.name.split("-")[0]
    return {"door": _door, "pen": _pen}[task](dataset)


def _door(dataset: Dataset) -> dict[str, Any]:
    after = _next_rows(dataset)
    distance = np.linalg.norm(dataset.observations[after, PALM["door"]].astype(np.float64), axis=1)
    hinge = dataset.observations[after, 28].astype(np.float64)
    rest = -0.1 * (hinge - 1.57) ** 2 + 2.0 * (hinge > 0.2) + 8.0 * (hinge > 1.0) + 10.0 * (hinge > 1.35)
    rewards = dataset.rewards[after - 1].astype(np.float64)
    fits = {}
    for rule, sign in (("D4RL", -0.1), ("gymnasium-robotics 1.2.1 to 1.4.2", 0.1)):
        left = rewards - rest - sign * distance
        fits[rule] = float(np.mean((left <= 1e-5) & (left >= -COST_OF_VELOCITY)))
    episode = np.searchsorted(dataset.bounds, after, side="right") - 1
    gained = [0.2 * float(distance[episode == e].sum()) for e in range(dataset.n_episodes)]
    low, high = _range(dataset.name)
    return {
        "data": dataset.name,
        "share_of_rewards_that_fit": fits,
        "points_that_the_other_sign_gives_in_each_episode": [100 * g / (high - low) for g in gained],
        **_from_the_start(dataset, "AdroitHandDoor-v1"),
    }


def _pen(dataset: Dataset) -> dict[str, Any]:
    after = _next_rows(dataset)
    o = dataset.observations[after].astype(np.float64)
    near, alike = np.linalg.norm(o[:, 39:42], axis=1), (o[:, 33:36] * o[:, 36:39]).sum(axis=1)
    close, dropped = near < 0.075, o[:, 26] < 0.075
    expected = -near + alike + 10.0 * (close & (alike > 0.9)) + 50.0 * (close & (alike > 0.95)) - 5.0 * dropped
    rewards = dataset.rewards[after - 1].astype(np.float64)
    episode = np.searchsorted(dataset.bounds, after, side="right") - 1
    low, high = _range(dataset.name)
    played, ruled = [], []
    for e in range(dataset.n_episodes):
        earned, out = rewards[episode == e], dropped[episode == e]
        end = int(np.argmax(out)) + 1 if out.any() else len(earned)
        played.append(100 * (float(earned.sum()) - low) / (high - low))
        ruled.append(100 * (float(earned[:end].sum()) - low) / (high - low))
    return {
        "data": dataset.name,
        "reward": spread(np.abs(expected - rewards)),
        "score_in_each_episode": played,
        "score_if_a_dropped_pen_ended_it": ruled,
        **_from_the_start(dataset, "AdroitHandPen-v1"),
    }


def _from_the_start(dataset: Dataset, env_id: str) -> dict[str, Any]:
    """Play an episode's actions from its own start, and look for the first step that leads elsewhere."""
    env: Any = make_env(env_id).unwrapped
    low, high = _range(dataset.name)
    before, parted, recorded, replayed = [], [], [], []
    for episode in range(min(REPLAYED, dataset.n_episodes)):
        begin, end = dataset.bounds[episode], dataset.bounds[episode + 1]
        seen = dataset.observations[begin:end].astype(np.float64)
        env.reset(seed=0)
        if env_id.startswith("AdroitHandDoor"):
            body = env.model.body_pos[env.door_body_id]
            body += seen[0, 32:35] - env._get_obs()[32:35]
            env.set_state(env.init_qpos, env.init_qvel)
        else:
            _aim(env, seen[0, 36:39])
        if np.abs(env._get_obs() - seen[0]).max() > 1e-3:
            continue  # a recording that starts elsewhere than this task does
        found, rewards, *_ = zip(*(env.step(action) for action in dataset.actions[begin:end]), strict=True)
        errors = np.abs(np.array(found[:-1]) - seen[1:]).max(axis=1)
        other = errors > PARTED
        parted.append(int(np.argmax(other)) + 1 if other.any() else None)
        before.append(float(errors[: parted[-1] - 1].max()) if parted[-1] is not None else float(errors.max()))
        recorded.append(100 * (float(dataset.returns[episode]) - low) / (high - low))
        replayed.append(100 * (float(np.sum(rewards)) - low) / (high - low))
    return {
        "episodes_that_start_as_here": len(before),
        "first_step_that_is_another_in_each_episode": parted,
        "next_state_before_that": spread(np.array(before)),
        "score_recorded_in_each_episode": recorded,
        "score_replayed_in_each_episode": replayed,
    }


def _aim(env: Any, direction: np.ndarray) -> None:
    """Turn pen's target in this direction. Reset turns it about x by a and about y by b, and nothing else."""
    import mujoco

    target, best = env.model.body_quat[env.target_obj_body_id], (np.inf, 0.0, 0.0)

    def miss(a: float, b: float) -> float:
        target[:] = _turned(a, b)
        mujoco.mj_forward(env.model, env.data)
        return float(np.linalg.norm(env._get_obs()[36:39] - direction))

    env.set_state(env.init_qpos, env.init_qvel)
    wide = 1.0
    _, a, b = best
    while wide > 1e-9:
        _, a, b = min((miss(a + i * wide, b + j * wide), a + i * wide, b + j * wide) for i in _STEPS for j in _STEPS)
        wide *= 0.5
    miss(a, b)
    env.set_state(env.init_qpos, env.init_qvel)


_STEPS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def _turned(a: float, b: float) -> np.ndarray:
    from gymnasium_robotics.utils.rotations import euler2quat

    return euler2quat(np.array([a, b, 0.0]))


def play_at_random(episodes: int = 50) -> list[dict[str, Any]]:
    """What random actions earn, and by how much D4RL's rules would change it. There is no data for two of the tasks."""
    results = []
    for task, limit in (("door", 200), ("hammer", 200), ("relocate", 200), ("pen", 100)):
        env: Any = make_env(f"AdroitHand{task.capitalize()}-v1", limit)
        low, high = _range(f"{task}-expert")
        scores, ruled = [], []
        rng = np.random.default_rng(0)
        for episode in range(episodes):
            env.reset(seed=episode)
            earned, by_rule, ended = 0.0, 0.0, False
            for _ in range(limit):
                observation, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
                earned += float(reward)
                if not ended:
                    by_rule += float(reward) - (0.0 if task == "pen" else 0.2 * _palm_distance(env, task, observation))
                ended = ended or (task == "pen" and observation[26] < 0.075)
            scores.append(100 * (earned - low) / (high - low))
            ruled.append(100 * (by_rule - low) / (high - low))
        results.append(
            {"task": task, "play": "random actions", "score_in_each_episode": scores, "score_by_D4RLs_rules": ruled}
        )
    return results


def _palm_distance(env: Any, task: str, observation: np.ndarray) -> float:
    if task == "hammer":
        return float(np.linalg.norm(observation[33:36] - observation[36:39]))
    return float(np.linalg.norm(observation[PALM[task]]))


def _next_rows(dataset: Dataset) -> np.ndarray:
    rows = np.arange(1, dataset.n_steps)
    return rows[~np.isin(rows, dataset.bounds)]


def _range(name: str) -> tuple[float, float]:
    task = find_task(name)
    assert task is not None
    return task.score_range
