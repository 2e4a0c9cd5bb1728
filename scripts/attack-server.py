#!/usr/bin/env python3
"""Attacks a server of its own on this machine's loopback interface and prints what came of each attack.

    scripts/attack-server.py [PROGRAM] [ATTACK ...]    attacks: rebinding configs bodies silent heads runtime refused bombs

Needs Python 3.9 or later. `refused` also asks with httpx, if it is installed. Every loop is bounded.
"""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

MODEL = "ajet: {experiment_name: attacked, model: {path: 'builtin:tiny'}, engine: {device: cpu, threads: 1}, %s}"


class Server:
    """A server without a token in a directory of its own, killed at the end."""

    def __init__(self, program, umask=0o022, env=()):
        self.dir = tempfile.mkdtemp(prefix="attacked-")
        self.child = subprocess.Popen(
            [os.path.abspath(program), "start", "--swarm-port", "0"], cwd=self.dir, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, "AJET_SWARM_TOKEN": "", **dict(env)},
            preexec_fn=lambda: os.umask(umask))
        self.port = None
        for line in self.child.stdout:
            found = re.search(r"listening on .* port (\d+)", line)
            self.port = int(found[1]) if found else self.port
            if "Ctrl-C" in line:
                break

    def connect(self, timeout=150):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def send(self, data, timeout=150):
        """The status line and body of the answer to these bytes."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # the server has hung up; what it said first may still be there
            return answer(s)

    def call(self, path, body=None, key=None, timeout=150):
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: 127.0.0.1:{self.port}",
                "connection: close", f"content-length: {len(data)}"] + ([f"authorization: Bearer {key}"] if key else [])
        return self.send("\r\n".join(head).encode() + b"\r\n\r\n" + data, timeout)

    def roll(self):
        """Starts an engine and claims an episode: its key."""
        self.call("/sync_train_config", {"yaml_as_string": MODEL % "data: {train_batch_size: 8}"})
        self.call("/start_engine", {})
        for _ in range(600):
            if "ROLLING" in self.call("/get_engine_status")[1]:
                break
            time.sleep(0.1)
        claim = {"client_uuid": "a", "episode_type": "train", "discard_episode_timeout": 600}
        return json.loads(self.call("/claim_episode", claim)[1])["openai_api_key"]

    def end(self, how=signal.SIGTERM):
        self.child.send_signal(how)
        self.child.wait()


def answer(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except OSError as error:
        return (f"no answer ({error})" if not data else data.split(b"\r\n")[0].decode(), "")
    head, _, body = data.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode() or "closed without an answer", body.decode(errors="replace")


def timed(call):
    began = time.time()
    result = call()
    return result, time.time() - began


def rebinding(program):
    server = Server(program)
    port = server.port
    evil = f"evil.example:{port}"
    requests = {
        "GET, host of a page that was rebound": f"GET /get_engine_status HTTP/1.1\r\nhost: {evil}",
        "the same with its origin": f"GET /get_engine_status HTTP/1.1\r\nhost: {evil}\r\norigin: http://{evil}",
        "POST, the same": f"POST /stop_engine HTTP/1.1\r\nhost: {evil}\r\norigin: http://{evil}",
        "model API": f"POST /v1/chat/completions HTTP/1.1\r\nhost: {evil}\r\nauthorization: Bearer x",
        "origin http://localhost:x@evil.com": "POST /stop_engine HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:x@evil.com",
        "origin null": "POST /stop_engine HTTP/1.1\r\nhost: localhost\r\norigin: null",
        "absolute form": f"GET http://{evil}/get_engine_status HTTP/1.1\r\nhost: localhost",
        "two hosts": f"GET /get_engine_status HTTP/1.1\r\nhost: localhost\r\nhost: {evil}",
        "cross-site, no origin": "GET /metrics HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors",
        "decimal address": "GET /get_engine_status HTTP/1.1\r\nhost: 2130706433",
        "GOOD localhost in capitals": "GET /get_engine_status HTTP/1.1\r\nhost: LOCALHOST:1",
        "GOOD tunnel's port": "GET /get_engine_status HTTP/1.1\r\nhost: 127.0.0.1:9",
        "GOOD HTTP/1.0, no host": "GET /get_engine_status HTTP/1.0",
    }
    for name, head in requests.items():
        status, _ = server.send(f"{head}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        print(f"  {name:40} {status}")
    server.end()


def while_attacked(server, attack, seconds):
    """Runs `attack` in threads and asks for /health meanwhile: the longest answer."""
    threads = [threading.Thread(target=one, daemon=True) for one in attack]
    began, longest, asked = time.time(), 0.0, 0
    for thread in threads:
        thread.start()
    while time.time() - began < seconds and (asked < 20 or any(thread.is_alive() for thread in threads)):
        try:
            longest = max(longest, timed(lambda: server.call("/health", timeout=60))[1])
        except OSError:
            longest = max(longest, 60.0)
        asked += 1
        time.sleep(0.02)
    return longest, asked, time.time() - began


def configs(program):
    server = Server(program)
    keys = "\n".join(f"  num_repeat_of_the_rollout_{i}: {i}" for i in range(4000))
    yaml = "ajet:\n  model: {path: builtin:tiny}\n" + keys
    took = []
    sync = lambda: took.append(timed(lambda: server.call("/sync_train_config", {"yaml_as_string": yaml})))
    longest, asked, _ = while_attacked(server, [sync, sync], 120)
    print(f"  two configurations of 4,000 unknown keys: longest of {asked} /health answers {longest:.3f} s; the")
    print("  configurations themselves:", ", ".join(f"{status[0]} in {seconds:.2f} s" for status, seconds in took))
    server.end()


def bodies(program):
    server = Server(program)
    key = server.roll()
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    host = f"host: 127.0.0.1:{server.port}\r\n"
    held = []
    for _ in range(16):
        s = server.connect()
        s.sendall(f"POST /end_episode HTTP/1.1\r\n{host}content-length: {64 << 20}\r\n\r\n{{".encode())
        held.append(s)
    for _ in range(64):
        s = server.connect()
        body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "user": "abcdefghij"'
        s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{host}authorization: Bearer {key}\r\n"
                  f"transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n")
        held.append(s)
    time.sleep(0.5)
    for name, call in [("a chat call", lambda: server.call("/v1/chat/completions", chat, key)),
                       ("a claim", lambda: server.call("/claim_episode", {"client_uuid": "b", "episode_type": "train", "discard_episode_timeout": 600})),
                       ("a chat of 8 MB", lambda: server.call(
                           "/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": "x" * 8_000_000}]}, key))]:
        (status, _), seconds = timed(call)
        print(f"  16 slow uploads and 64 chunked calls are open; {name}: {status} in {seconds:.2f} s")
    began, first = time.time(), held[0]
    for _ in range(150):  # a byte a second
        try:
            first.sendall(b" ")
            first.settimeout(1)
            first.recv(1)
            break
        except socket.timeout:
            continue
        except OSError:
            break
    print(f"  an upload of a byte a second is ended after {time.time() - began:.0f} s")
    server.end()


def silent(program, wanted=8192):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(wanted, hard - 200)
    server = Server(program)
    began, held = time.time(), []
    for _ in range(count):
        held.append(server.connect())
    print(f"  {count} silent connections in {time.time() - began:.1f} s")
    for number in range(3):
        try:
            (status, _), seconds = timed(lambda: server.call("/health", timeout=30))
        except OSError as error:
            status, seconds = f"no answer ({error})", 30.0
        print(f"  new client {number + 1}: {status} in {seconds:.3f} s")
    last = held[-1]
    last.settimeout(150)
    try:
        said = last.recv(1)
    except OSError as error:
        said = error
    print(f"  the last silent one is closed {time.time() - began:.0f} s after the first was opened ({said!r})")
    for s in held:
        s.close()
    server.end()


def heads(program):
    server = Server(program)
    host = f"host: 127.0.0.1:{server.port}\r\n"
    many = f"GET /metrics HTTP/1.1\r\n{host}\r\n".encode() * 500
    half = f"GET /metrics HTTP/1.1\r\n{host}x: {'a' * 15_000}".encode()
    endless = f"POST /claim_episode HTTP/1.1\r\n{host}transfer-encoding: chunked\r\n\r\n".encode()

    def hold(data, count, more=b""):
        held = [server.connect() for _ in range(count)]
        for s in held:
            s.settimeout(5)
            try:
                s.sendall(data)
                for _ in range(1000 if more else 0):
                    s.sendall(more)
            except OSError:
                pass  # it was refused, or takes no more
        time.sleep(3)

    for name, attack in {
        "100 connections with 500 requests each, no answer read": lambda: hold(many, 100),
        "1,000 unfinished heads of 15 kB": lambda: hold(half, 1000),
        "an extension of a chunk without end": lambda: hold(endless + b"1;", 1, b"x" * 10_000),
        "trailers without end": lambda: hold(endless + b"0\r\n", 1, b"t: x\r\n" * 1000),
    }.items():
        longest, asked, seconds = while_attacked(server, [attack], 30)
        with open(f"/proc/{server.child.pid}/status") as status:
            memory = re.search(r"VmRSS:\s+(\d+)", status.read())[1]
        print(f"  {name}: {seconds:.1f} s, longest of {asked} /health answers {longest:.3f} s, {int(memory) >> 10} MiB")
    server.end()


def runtime(program):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rt-") as temporary:
        env = {"TMPDIR": temporary, "XDG_RUNTIME_DIR": ""}
        for umask in [0o022, 0o000, 0o277]:
            server = Server(program, umask, env)
            server.call("/sync_train_config", {"yaml_as_string": MODEL % "data: {train_batch_size: 8}"})
            server.call("/start_engine", {})
            time.sleep(1)
            modes = [oct(os.stat(os.path.join(temporary, name)).st_mode & 0o7777) for name in os.listdir(temporary)]
            server.end(signal.SIGKILL)
            time.sleep(3)
            print(f"  umask {umask:03o}: {len(modes)} directories of mode {modes}; after SIGKILL {len(os.listdir(temporary))}")


def refused(program):
    server = Server(program)
    for size in [1 << 20, 100_000_000]:
        head = f"POST /claim_episode HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-length: {size + 1}\r\n\r\n".encode()
        seen = [server.send(head + b"x" * (size + 1))[0] for _ in range(5)]
        print(f"  raw socket, {size + 1} bytes, five times: {sorted(set(seen))}")
        try:
            import httpx
        except ImportError:
            continue
        seen = []
        for _ in range(5):
            try:
                seen.append(httpx.post(f"http://127.0.0.1:{server.port}/claim_episode", content=b"x" * (size + 1),
                                       timeout=60).status_code)
            except httpx.HTTPError as error:
                seen.append(type(error).__name__)
        print(f"  httpx, {size + 1} bytes, five times: {seen}")
    server.end()


def bombs(program):
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    long = "[" + ",".join(["x"] * 100_000) + "]"
    documents = {
        "billion laughs": laughs,
        "20,000 aliases of a list of 100,000": f"a: &a {long}\nb: [{','.join(['*a'] * 20_000)}]\n",
        "2,000 aliases of 400 kB of text": f"a: &a '{'x' * 400_000}'\nb: [{','.join(['*a'] * 2_000)}]\n",
        "nested 100,000 deep": "[" * 100_000,
        "brackets inside flow maps, 50,000 deep": "{a: [" * 50_000,
        "flow maps 100,000 deep": "{a: " * 100_000,
        "block lists 10,000 deep in a line": "- " * 10_000 + "x",
        "block maps 1,400 deep": "".join(f"{' ' * i}a:\n" for i in range(1_400)),
        "100,000 brackets in quotes": "a: '" + "[" * 100_000 + "'\n",
        "70,000 directives": "%YAML 1.2\n" * 70_000 + "---\na: 1\n",
        "130,000 unknown directives": "%X y\n" * 130_000 + "---\na: 1\n",
        "80,000 documents": "---\na: 1\n" * 80_000,
        "merge keys of merge keys": "a0: &a0 {x: 1}\n" + "".join(
            f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        "anchors in keys": "".join(f"? &k{i} [x, y]\n: *k{i}\n" for i in range(25_000)),
        "an alias to itself": "a: &a [*a]\n",
        "25,000 tags": "a:\n" + "".join(f"- !!python/object:x{i} y\n" for i in range(25_000)),
        "a plain scalar of 900 kB": "a: " + "x y " * 225_000 + "\n",
        "a plain scalar over 200,000 lines": "a: x\n" + "  y\n" * 200_000,
        "an integer of 900,000 digits": "ajet: {data: {train_batch_size: " + "9" * 900_000 + "}}\n",
        "a float of 900,000 digits": "ajet: {rollout: {temperature: 1." + "0" * 900_000 + "1e999999999}}\n",
        "100,000 escapes": 'a: "' + "\\U0001F600" * 90_000 + '"\n',
        "tabs and NULs": "a:\t\0" * 80_000,
        "180,000 comments and blanks": "#\n\n" * 180_000,
        "one key 60,000 times": "ajet:\n" + "  a: 1\n" * 60_000,
        "a key of 900 kB": f"ajet: {{{'k' * 900_000}: 1}}\n",
        "40,000 unknown keys": "ajet:\n" + "".join(f"  num_repeat_{i}: 1\n" for i in range(40_000)),
        "JSON nested 100,000 deep": None,
    }
    for name, yaml in documents.items():
        server = Server(program)
        resource.prlimit(server.child.pid, resource.RLIMIT_AS, (4 << 30, 4 << 30))
        got = []
        if yaml is None:
            data = b'{"yaml_as_string": ' + b"[" * 100_000
            head = f"POST /sync_train_config HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
            attack = lambda: got.append(server.send(head.encode() + data))
        else:
            attack = lambda: got.append(server.call("/sync_train_config", {"yaml_as_string": yaml}, timeout=30))
        longest, asked, seconds = while_attacked(server, [attack], 30)
        alive = server.child.poll() is None
        status, body = got[0] if got else ("no answer", "")
        print(f"  {name}: {status} in {seconds:.1f} s, longest /health {longest:.3f} s, server {'lives' if alive else 'DIED'}: {body[:110]}")
        if alive:
            server.end(signal.SIGKILL)


ATTACKS = {f.__name__: f for f in [rebinding, configs, bodies, silent, heads, runtime, refused, bombs]}


def main():
    arguments = sys.argv[1:]
    program = arguments.pop(0) if arguments and arguments[0] not in ATTACKS else "target/debug/ajet-swarm"
    for name in arguments or ATTACKS:
        print(f"{name}:", flush=True)
        ATTACKS[name](program)


if __name__ == "__main__":
    main()
