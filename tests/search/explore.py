"""Breadth-first search by replay: generators cannot be copied, so each state is reached from the start."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .world import Action, Config, Violation, World


@dataclass
class Report:
    """What a search saw. ``path`` is the shortest way to ``violation``, in words."""

    states: int = 0
    finals: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    effects: Counter[int] = field(default_factory=Counter)  # at the final states
    violation: str | None = None
    path: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.violation is None:
            faults = ", ".join(f"{kind} {n}" for kind, n in sorted(self.kinds.items()))
            return f"{self.states} states, {self.finals} final, no violation; {faults}"
        steps = "\n".join(f"  {i:2}. {step}" for i, step in enumerate(self.path, 1))
        return f"{self.violation}, after {self.states} states:\n{steps}"


def replay(config: Config, path: Sequence[Action]) -> World:
    world = World(config)
    for action in path:
        world.act(action)
    return world


def describe(config: Config, path: Sequence[Action]) -> list[str]:
    """The path in words; its last action may be the one that breaks the promise."""
    world, words = World(config), []
    for action in path:
        words.append(world.label(action))
        try:
            world.act(action)
        except Violation:
            break
    return words


def explore(config: Config, limit: int = 200_000) -> Report:
    """Every reachable state once, or up to the first violation, which is then a shortest one."""
    report = Report()
    seen = {World(config).key()}
    todo: deque[tuple[Action, ...]] = deque([()])
    while todo:
        path = todo.popleft()
        report.states += 1
        if report.states > limit:
            raise RuntimeError(f"{config.name}: more than {limit} states; lower its budgets")
        here = replay(config, path)
        final = here.over()
        world: World | None = here
        for action in here.actions():
            longer = (*path, action)
            world = replay(config, path) if world is None else world
            try:
                world.act(action)
            except Violation as violation:
                return _found(config, report, violation, longer)
            report.kinds[action[0]] += 1
            key = world.key()
            if key not in seen:
                seen.add(key)
                todo.append(longer)
            world = None  # used up; the next action starts from the beginning again
        if final:
            try:
                _finish(replay(config, path), report)
            except Violation as violation:
                return _found(config, report, violation, path, "a fresh delivery, after all leases")
    return report


def _finish(world: World, report: Report) -> None:
    report.finals += 1
    report.effects[world.effects] += 1
    world.probe()


def _found(
    config: Config, report: Report, violation: Violation, path: Sequence[Action], *more: str
) -> Report:
    report.violation, report.path = str(violation), [*describe(config, path), *more]
    return report
