#!/usr/bin/env python3
"""Draws the reward of runs over their updates as SVG: training as dots, evaluation as a line.

    scripts/learning-curve.py TITLE RUN=LABEL [RUN=LABEL ...] > curve.svg

RUN is the directory of an experiment, whose metrics.jsonl is read. A reward between 0 and 1 is assumed.
"""

import json
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 48, 48
COLORS = ["#2f6fb3", "#c2571a", "#3b8a4e", "#8a4fa3"]


def curves(run):
    """The training and evaluation rewards as (updates done, reward); a line's weights are those before its update."""
    lines = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").open()]
    series = lambda name: [(line["global_step"] - 1, line[name]) for line in lines if name in line]
    return series("reward_mean"), series("eval/reward_mean")


def draw(title, runs):
    last = max(step for _, rewards, evals in runs for step, _ in rewards + evals)
    x = lambda step: round(LEFT + (WIDTH - LEFT - RIGHT) * step / last, 1)
    y = lambda reward: round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * reward, 1)
    text = lambda left, top, content, more="": f'<text x="{left}" y="{top}" {more}>{escape(content)}</text>'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield text(LEFT, 26, title, 'font-size="16" font-weight="bold"')
    for fifth in range(6):
        yield f'<path d="M{LEFT} {y(fifth / 5)}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield text(LEFT - 8, y(fifth / 5) + 4, f"{fifth / 5:.1f}", 'text-anchor="end" fill="#555555"')
    for sixth in range(7):
        step = round(last * sixth / 6)
        yield text(x(step), HEIGHT - BOTTOM + 20, str(step), 'text-anchor="middle" fill="#555555"')
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "updates", 'text-anchor="middle" fill="#555555"')
    for number, (label, rewards, evals) in enumerate(runs):
        color = COLORS[number % len(COLORS)]
        yield f'<g fill="{color}" fill-opacity="0.3">'
        yield from (f'<circle cx="{x(step)}" cy="{y(reward)}" r="2"/>' for step, reward in rewards)
        yield "</g>"
        points = " ".join(f"{x(step)},{y(reward)}" for step, reward in evals)
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>'
        yield from (f'<circle cx="{x(step)}" cy="{y(reward)}" r="4" fill="{color}"/>' for step, reward in evals)
        legend = f"{label}: {evals[0][1]:.2f} → {evals[-1][1]:.2f}"
        yield text(WIDTH - RIGHT - 8, HEIGHT - BOTTOM - 14 - 20 * number, legend, f'text-anchor="end" fill="{color}"')
    yield "</svg>"


title, *arguments = sys.argv[1:]
runs = [(label, *curves(run)) for run, label in (argument.rsplit("=", 1) for argument in arguments)]
print("\n".join(draw(title, runs)))
