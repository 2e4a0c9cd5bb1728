"""What watching costs a training: quickstarts without and with three `overwatch` (200x60) and five readers of
`/status/stream`, in turn, on the same cores.

    cargo build --profile synced && python3 scripts/bench/watching.py [--rounds 3] [--updates 100]

Prints for each run the seconds from the first update to the last and the processor seconds of every part, and then
the ratios of the medians. The first count for a machine with nothing else to do, processor seconds for any. The readers
are threads of this script and stand for browsers; their time is not that of a program here, so it is only shown.
"""

import argparse
import fcntl
import http.client
import json
import os
import pathlib
import pty
import resource
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("AJET_SWARM", ROOT / "target/synced/ajet-swarm")
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    """Returns the user and system time of a process, as of now."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def descendants_seconds(pid):
    """Returns the same of all descendants that run; a thread or process that ends meanwhile counts as nothing."""
    total = 0.0
    try:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += processor_seconds(child) + descendants_seconds(child)
    except OSError:
        pass
    return total


def drain(read):
    """Reads until the other side ends."""
    try:
        while read():
            pass
    except (OSError, http.client.HTTPException):
        pass


class Overwatch:
    """A dashboard in a terminal of its own, whose output is thrown away."""

    def __init__(self, url):
        self.master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        env = dict(os.environ, TERM="xterm-256color")
        command = [PROGRAM, "overwatch", "--swarm-url", url]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=env, start_new_session=True
        )
        os.close(terminal)
        threading.Thread(target=drain, args=(lambda: os.read(self.master, 1 << 16),), daemon=True).start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def watch_stream(url):
    stream = urllib.request.urlopen(url + "/status/stream")
    threading.Thread(target=drain, args=(lambda: stream.read1(1 << 16),), daemon=True).start()


def run(updates, watchers):
    """Returns the wall seconds of the updates, and the processor seconds by part."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as box, open(os.devnull, "w") as nowhere:
        server = subprocess.Popen([PROGRAM, "start", "--swarm-port", str(port)], cwd=box, stdout=nowhere, stderr=nowhere)
        overwatches = []
        try:
            while subprocess.run([PROGRAM, "status", "--swarm-url", url], capture_output=True).returncode != 0:
                time.sleep(0.1)
            if watchers:
                overwatches = [Overwatch(url) for _ in range(3)]
                for _ in range(5):
                    watch_stream(url)
            own = resource.getrusage(resource.RUSAGE_SELF)
            roll = subprocess.Popen(
                [PROGRAM, "roll", ROOT / "config/jobs/quickstart.yaml", "--swarm-url", url, "--json"]
                + ["--set", f"roll.steps={updates}", "--set", "roll.eval=null"],
                cwd=box, stdout=subprocess.PIPE, stderr=nowhere, text=True,
            )
            times, of_roll, of_engine = [], 0.0, 0.0
            for line in roll.stdout:
                if json.loads(line)["event"] == "step":
                    times.append(time.monotonic())
                    of_roll = processor_seconds(roll.pid)
                    of_engine = max(of_engine, descendants_seconds(server.pid))
            assert roll.wait() == 0 and len(times) == updates, (roll.returncode, len(times))
            spent = {
                "engine": of_engine,
                "server": processor_seconds(server.pid),
                "roll": of_roll,
                "overwatches": sum(processor_seconds(watch.process.pid) for watch in overwatches),
            }
            now = resource.getrusage(resource.RUSAGE_SELF)
            readers = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
            return times[-1] - times[0], spent, readers
        finally:
            for watch in overwatches:
                watch.stop()
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=100)
    arguments = parser.parse_args()
    seconds, processor = {False: [], True: []}, {False: [], True: []}
    for _ in range(arguments.rounds):
        for watched in (False, True):
            wall, spent, readers = run(arguments.updates, watched)
            seconds[watched].append(wall)
            processor[watched].append(sum(spent.values()))
            parts = ", ".join(f"{part} {value:.2f}" for part, value in spent.items())
            print(f"{'watched' if watched else 'alone':8} {wall:6.1f} s; processor: {parts} s; readers {readers:.2f} s", flush=True)
    for name, values in (("seconds", seconds), ("processor seconds", processor)):
        alone, watched = statistics.median(values[False]), statistics.median(values[True])
        print(f"{name}: {alone:.1f} alone, {watched:.1f} watched, ratio {watched / alone:.3f}")


if __name__ == "__main__":
    main()
