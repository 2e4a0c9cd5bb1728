"""A server with made-up data for the page: many episodes, long runs, and text that tries to do harm.

The page's files come from assets/ui, with the policy that the real server sends. Standard library only.
Usage: fixture.py PORT [offline|finished|booting|rolling|updating] [--token TOKEN]
"""

import argparse
import json
import math
import pathlib
import random
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = pathlib.Path(__file__).parents[3]
ASSETS = ROOT / "assets/ui"
POLICY = re.search(r'CONTENT_SECURITY_POLICY: &str = "(.*?)";', (ROOT / "src/server/handlers/ui.rs").read_text(), re.S)
POLICY = re.sub(r"\\\n\s*", "", POLICY.group(1))
TYPES = {".html": "text/html", ".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml"}

STEPS, GROUPS, REPEATS, EPISODES = 1000, 16, 8, 10_000
HOSTILE = (
    "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>\n"
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 back\x08space\n"
    "right-to-left \u202egnp.exe\u202c zero\u200bwidth \ufeffmark tag\U000e0041\n"
    "javascript:alert(1) {{7*7}} ${alert(1)} </pre></body>"
)
RANDOM = random.Random(7)
NOW = time.time()


def step_metrics(step):
    learnt = 1 - math.exp(-step / 260)
    mean = 0.1 + 0.8 * learnt + RANDOM.gauss(0, 0.035)
    std = 0.45 - 0.25 * learnt
    values = {
        "episodes": 128,
        "tasks": 16,
        "dummy_tasks": RANDOM.randint(1, 9),
        "reward_mean": mean,
        "reward_std": std,
        "reward_min": 0,
        "reward_max": 1,
        "success_rate": min(1, max(0, mean)),
        "loss": RANDOM.gauss(0, 0.02),
        "pg_loss": RANDOM.gauss(0, 0.02),
        "kl": 0.01 + step * 2e-5,
        "entropy": 1.8 * math.exp(-step / 500) + 0.1,
        "clip_frac_high": abs(RANDOM.gauss(0, 0.01)),
        "grad_norm": abs(RANDOM.gauss(0.8, 0.3)),
        "lr": 4e-5 * (1 - step / 1200),
        "mismatch_kl": abs(RANDOM.gauss(1e-5, 1e-6)),
        "truncated_share": max(0, RANDOM.gauss(0.04, 0.02)),
        "response_length_mean": 210 + 90 * learnt + RANDOM.gauss(0, 8),
        "llm_calls_per_episode": 3 + RANDOM.random(),
        "prefix_cache_share": 0.87 + RANDOM.gauss(0, 0.01),
        "dropped/idle": RANDOM.randint(0, 2),
        "seconds/rolling": 21 + RANDOM.gauss(0, 2),
        "seconds/post": 1.4,
        "seconds/update": 9 + RANDOM.gauss(0, 0.4),
        "tokens_per_second/sampling": 2900 + RANDOM.gauss(0, 90),
        "peak_memory_mb": 7800,
        "client/tool_errors": RANDOM.random(),
    }
    if step % 50 == 1:
        values |= {
            "eval/reward_mean": 0.12 + 0.8 * learnt,
            "eval/success_rate": 0.1 + 0.8 * learnt,
            "eval/episodes": 256,
        }
    return {"global_step": step, "metrics": values}


HISTORY = [step_metrics(step) for step in range(1, STEPS + 1)]


def summary(index):
    step = max(1, STEPS - index // 128)
    reward = round(min(1, max(0, RANDOM.gauss(0.7, 0.3))), 3)
    return {
        "episode_uuid": f"{index:08x}-5f1e-4a7c-9d2b-0123456789ab",
        "episode_type": "eval" if index % 20 == 19 else "train",
        "global_step": step,
        "task_id": HOSTILE if index == 3 else f"astropy__astropy-{12000 + index % 1280 // 8}",
        "client_uuid": f"client-{index % 3}",
        "reward": reward,
        "is_success": reward > 0.8,
        "tag": "hard" if index % 7 == 0 else None,
        "llm_calls": 1 + index % 9,
        "prompt_tokens": 4000 + index,
        "completion_tokens": 300 + index % 900,
        "seconds": 8 + index % 50,
        "ended": NOW - index * 3,
        "dropped": "idle" if index % 97 == 96 else None,
        "has_transcript": True,
    }


ALL = [summary(index) for index in range(EPISODES)]
BY_ID = {episode["episode_uuid"]: episode for episode in ALL}
SORTS = {"ended": "ended", "reward": "reward", "tokens": "completion_tokens", "calls": "llm_calls"}

MESSAGES = [
    {"role": "system", "content": "You fix bugs in a repository. Use the tools; finish with `submit`."},
    {
        "role": "user",
        "content": "The separability matrix is wrong for nested compound models. Find the fault and fix it.",
    },
    {
        "role": "assistant",
        "content": "I look for the function first.",
        "reasoning_content": "separability_matrix is in modeling/separable.py. " * 12,
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"pattern": "def _cstack", "path": "astropy/modeling"}'},
            }
        ],
    },
    {
        "role": "tool",
        "tool_call_id": "1",
        "content": "astropy/modeling/separable.py:219:def _cstack(left, right):\n" * 30,
    },
    {
        "role": "assistant",
        "content": "In `_cstack` the right matrix is 1:\n\n    cright[:, -n:] = 1\n\nIt must be `= right`.",
        "tool_calls": [
            {
                "id": "2",
                "type": "function",
                "function": {
                    "name": "edit",
                    "arguments": '{"path": "astropy/modeling/separable.py", "line": 245, "text": "= right"}',
                },
            }
        ],
    },
    {"role": "tool", "tool_call_id": "2", "content": "1 line changed"},
    {
        "role": "user",
        "content": [{"type": "text", "text": HOSTILE}, {"type": "image_url", "image_url": {"url": "data:,x"}}],
    },
    {"role": "assistant", "content": HOSTILE, "name": "agent<b>"},
]


def token_row(count):
    words = [
        "The",
        " right",
        " matrix",
        " is",
        " filled",
        " with",
        " 1",
        ".",
        "\n",
        "\tcright",
        " =",
        " right",
        "<|im_end|>",
        "\u202e",
        " <b>",
    ]
    mask = [(index // 40) % 2 == 1 for index in range(count)]
    return {
        "ids": [RANDOM.randint(1, 150_000) for _ in range(count)],
        "texts": [RANDOM.choice(words) for _ in range(count)],
        "mask": mask,
        "logprobs": [-RANDOM.expovariate(1.2) if on else 0 for on in mask],
        "truncated": False,
        "advantages": [
            (0.8 if index < count // 2 else -1.1) + RANDOM.gauss(0, 0.4) if on else 0 for index, on in enumerate(mask)
        ],
    }


def detail(uuid, tokens):
    told = BY_ID.get(uuid)
    running = told is None
    told = told or {**ALL[0], "episode_uuid": uuid, "reward": 0, "ended": 0, "seconds": 0}
    return {
        "summary": told,
        "running": running,
        "log_metrics": {"reward/format": 1, "reward/answer": told["reward"], "note": HOSTILE},
        "conversations": [
            {
                "model": "agent",
                "tools": [
                    {"type": "function", "function": {"name": "search"}},
                    {"type": "function", "function": {"name": "edit"}},
                ],
                "messages": MESSAGES,
            }
        ],
        "rows": [token_row(420), token_row(9000)] if tokens else [],
    }


def phases(now):
    made, at, step = (
        [
            {"status": "ENGINE.OFFLINE", "since": now - 1000, "global_step": 0},
            {"status": "ENGINE.BOOTING", "since": now - 960, "global_step": 0},
        ],
        now - 925,
        STEPS - 28,
    )
    while at < now:
        for status, seconds in (("ROLLING", 21), ("ROLLING_POST", 1.4), ("WEIGHT_SYNCING", 9)):
            made.append({"status": f"ENGINE.{status}", "since": at, "global_step": step})
            at += seconds + RANDOM.random()
        step += 1
    return [phase for phase in made if phase["since"] < now]


# Of the 72 claimed episodes, those that have made no call.
UNCALLED = sum(1 for i in range(72) if i % 7 == 0 and i % 3 == 0)

STARTED = time.time()
PHASES = phases(STARTED - 12)


def status(mode):
    now = time.time()
    states = {"booting": "BOOTING", "rolling": "ROLLING", "updating": "WEIGHT_SYNCING"}
    state = states.get(mode, "OFFLINE")
    common = {"server": {"version": "0.1.0", "started": STARTED - 1000, "now": now}}
    engine = {
        "status": f"ENGINE.{state}",
        "detail": None,
        "since": STARTED - 12,
        "global_step": STEPS + 1,
        "total_steps": 1200,
        "restarts": 0,
        "phases": PHASES + [{"status": f"ENGINE.{state}", "since": STARTED - 12, "global_step": STEPS}],
    }
    empty = {
        "experiment": None,
        "batch": {
            "rule": "",
            "unit": "",
            "done": 0,
            "target": 0,
            "episodes": 0,
            "episodes_target": 0,
            "repeats": 0,
            "seconds_left": None,
            "reward": None,
        },
        "sampling": None,
        "clients": [],
        "running": [],
        "running_total": 0,
        "claimed_total": 0,
        "groups": [],
        "dropped": {},
        "latest_metrics": {},
        "latest_eval": None,
        "log": [],
    }
    if mode == "offline":
        return {
            **common,
            **empty,
            "engine": {**engine, "global_step": 0, "total_steps": None, "phases": engine["phases"][:1]},
        }
    experiment = {
        "project": "swe",
        "name": "swe_bench_qwen3_4b",
        "directory": "/data/saved_experiments/swe_bench_qwen3_4b",
        "model": "Qwen/Qwen3-4B",
        "device": "cuda:0",
        "parameters": 4_022_468_096,
        "trainable_parameters": 33_030_144,
    }
    if mode == "finished":
        detail = f"all {STEPS} updates of ajet.trainer_common.total_training_steps are done; more"
        return {
            **common,
            **empty,
            "experiment": experiment,
            "engine": {**engine, "detail": detail, "global_step": 0, "total_steps": None},
            "latest_metrics": HISTORY[-1]["metrics"],
        }
    if mode == "booting":
        return {
            **common,
            **empty,
            "experiment": experiment,
            "engine": {**engine, "detail": "loading model-00002-of-00003.safetensors"},
        }
    done = 9 + int(now - STARTED) % 6
    groups = []
    for index in range(GROUPS):
        finished = REPEATS if index < done else (index * 3) % 5
        rewards = [1.0 if index % 4 == 0 else round(((index * 7 + i * 13) % 11) / 10, 2) for i in range(finished)]
        groups.append(
            {
                "task_id": HOSTILE if index == 5 else f"astropy__astropy-{12000 + index}",
                "running": (REPEATS - finished) // 2,
                "has_signal": len(set(rewards)) > 1,
                "episodes": [
                    {"episode_uuid": ALL[index * 8 + i]["episode_uuid"], "client_uuid": "client-0", "reward": reward}
                    for i, reward in enumerate(rewards)
                ],
            }
        )
    wave = math.sin(now / 3)
    return {
        **common,
        "experiment": experiment,
        "engine": engine,
        "batch": {
            "rule": "rollout_until_finish_enough_tasks",
            "unit": "tasks",
            "done": done,
            "target": GROUPS,
            "episodes": done * REPEATS,
            "episodes_target": GROUPS * REPEATS,
            "repeats": REPEATS,
            "seconds_left": 3.0 * (GROUPS - done),
            "reward": {"count": done * REPEATS, "mean": 0.78, "p10": 0.2, "p50": 0.9, "p90": 1},
        },
        "sampling": {
            "running_requests": int(30 + 8 * wave),
            "waiting_requests": max(0, int(6 * wave)),
            "cache_usage": 0.61 + 0.2 * wave,
            "prefix_hit_rate": 0.874,
            "tokens_per_second": 2900 + 300 * wave,
            "prompt_tokens_per_second": 11_200 + 900 * wave,
            "episodes_per_second": 4.3,
            "time_to_first_token": {"count": 200, "mean": 0.31, "p10": 0.12, "p50": 0.28, "p90": 0.6},
            "time_per_token": {"count": 200, "mean": 0.012, "p10": 0.009, "p50": 0.011, "p90": 0.018},
            "memory_bytes": 8_200_000_000,
        },
        "clients": [
            {
                "client_uuid": f"laptop-{i}-7c1f",
                "last_activity": now - i * 2 - 0.4,
                "running": 24,
                "finished": 30 + i,
                "agreed": i == 1,
            }
            for i in range(3)
        ],
        "running": [
            {
                "episode_uuid": f"running-{i}",
                "episode_type": "eval" if i % 9 == 0 else "train",
                "task_id": HOSTILE if i == 2 else f"astropy__astropy-{12000 + i}",
                "client_uuid": f"laptop-{i % 3}-7c1f",
                "claimed": now - 20 - i,
                "idle": 0 if i % 3 else (now + i * 9) % 200,
                "patience": 240,
                "llm_calls": i % 7,
                "calls_in_flight": 1 if i % 3 else 0,
                "completion_tokens": int(now * 7 + i * 31) % 2000,
            }
            for i in range(72)
        ],
        "running_total": 72 - UNCALLED,
        "claimed_total": UNCALLED,
        "groups": groups,
        "dropped": {"idle": 31, "late": 4, "dummy": 208},
        "latest_metrics": HISTORY[-1]["metrics"],
        "latest_eval": {"global_step": 951, "metrics": {"eval/reward_mean": 0.894, "eval/success_rate": 0.88}},
        "log": [
            {
                "timestamp": second,
                "tag": "client" if second % 3 else "engine",
                "message": (
                    HOSTILE
                    if second % 20 == 0
                    else f"update {second % 1000}: reward {0.8 + second % 17 / 100:.3f}, loss 0.01, gradient norm 0.8"
                ),
            }
            for second in range(int(now) - 60, int(now))
        ],
    }


def episodes(query):
    found = ALL
    for name, field in (
        ("type", "episode_type"),
        ("step", "global_step"),
        ("task", "task_id"),
        ("client", "client_uuid"),
    ):
        if name in query:
            found = [episode for episode in found if str(episode[field]) == query[name]]
    sort = query.get("sort", "-ended")
    found = sorted(found, key=lambda episode: episode[SORTS[sort.lstrip("-")]], reverse=sort.startswith("-"))
    offset, limit = int(query.get("offset", 0)), int(query.get("limit", 100))
    return {"episodes": found[offset : offset + limit], "total": len(found)}


def history(query):
    since, limit, run = (
        int(query.get("since", 0)),
        int(query.get("limit", 1000)),
        query.get("run") or "swe_bench_qwen3_4b",
    )
    steps = [step for step in HISTORY if step["global_step"] >= since]
    if run != "swe_bench_qwen3_4b":
        steps = [
            {**step, "metrics": {**step["metrics"], "reward_mean": step["metrics"]["reward_mean"] * 0.8}}
            for step in steps[:700]
        ]
    return {"run": run, "steps": steps[:limit], "next": steps[limit]["global_step"] if len(steps) > limit else None}


RUNS = {
    "runs": [
        {
            "name": name,
            "model": "Qwen/Qwen3-4B",
            "last_step": last,
            "changed": NOW - 9000 * i,
            "current": i == 0,
            "reward_mean": 0.91 - i * 0.1,
        }
        for i, (name, last) in enumerate(
            [("swe_bench_qwen3_4b", STEPS), ("swe_bench_small_batch", 700), ("baseline", 700), (HOSTILE, 0)]
        )
    ]
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, code, kind, body):
        self.send_response(code)
        for name, value in (
            ("content-type", kind),
            ("content-length", len(body)),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-cache"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, code=200):
        self.send(code, "application/json", json.dumps(value).encode())

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path.startswith("/ui"):
            file = ASSETS / (url.path.removeprefix("/ui").strip("/") or "index.html")
            return (
                self.send(200, TYPES.get(file.suffix, "text/plain") + "; charset=utf-8", file.read_bytes())
                if file.is_file()
                else self.json({"detail": "no such endpoint"}, 404)
            )
        if OPTIONS.token and self.headers.get("authorization") != f"Bearer {OPTIONS.token}":
            return self.json({"detail": "this server requires an access token"}, 401)
        if url.path == "/status/stream":
            return self.stream()
        # A server that was restarted has earlier runs, and no current one.
        current = "run" not in query
        if OPTIONS.mode == "offline" and current and url.path.startswith(("/history", "/episodes")):
            return self.json({"detail": "no experiment has been started"}, 404)
        if url.path.startswith("/episodes/"):
            return self.json(detail(unquote(url.path.removeprefix("/episodes/")), "tokens" in query))
        none = OPTIONS.mode in ("offline", "booting")
        answers = {
            "/status": lambda: status(OPTIONS.mode),
            "/history": lambda: {"run": "", "steps": [], "next": None} if none and current else history(query),
            "/runs": lambda: {"runs": []} if OPTIONS.mode == "booting" else RUNS,
            "/episodes": lambda: {"episodes": [], "total": 0} if none else episodes(query),
        }
        answer = answers.get(url.path)
        return self.json(answer()) if answer else self.json({"detail": f"no such endpoint: {url.path}"}, 404)

    def stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            while True:
                self.wfile.write(f"data: {json.dumps(status(OPTIONS.mode))}\n\n".encode())
                self.wfile.flush()
                time.sleep(0.25)
        except OSError:
            pass  # the page went away


def main():
    server = ThreadingHTTPServer(("127.0.0.1", OPTIONS.port), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # pages that went away
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    modes = ["offline", "finished", "booting", "rolling", "updating"]
    parser.add_argument("mode", nargs="?", default="rolling", choices=modes)
    parser.add_argument("--token")
    OPTIONS = parser.parse_args()
    main()
