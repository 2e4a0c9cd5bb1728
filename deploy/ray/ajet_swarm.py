#!/usr/bin/env python3
"""The swarm server and its engine's ranks on the nodes of a Ray cluster; see docs/ray.md.

    ray job submit --address http://HEAD:8265 -- python ajet_swarm.py --nodes 2 --gpus 8 --dir /shared/ajet

Ray reserves the nodes and names them; mpirun starts the ranks, on other nodes by SSH. The server runs on the first node,
and ends with the job.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

STOP_SECONDS = 300


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="ajet-swarm", help="ajet-swarm, built with --features mpi, on every node")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a node, one for each of its ranks; 0 for CPUs alone")
    parser.add_argument("--ranks", type=int, help="ranks on a node, without GPUs (default: 1)")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs to reserve on a node")
    parser.add_argument("--port", type=int, default=10086, help="port of the server")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="directory of experiments, the same on all nodes")
    parser.add_argument("--mpirun", default="mpirun --bind-to none", help="mpirun with options of your cluster")
    parser.add_argument("--timeout", type=float, default=600, help="seconds to wait for the nodes")
    return parser.parse_args()


@ray.remote
def address():
    """The address of the node on which this runs."""
    return ray.util.get_node_ip_address()


@ray.remote
class Server:
    """The server's process. It writes to the actor's output, which Ray copies to the job's log."""

    def start(self, options, addresses):
        ranks = options.gpus or options.ranks or 1
        hosts = tempfile.NamedTemporaryFile("w", prefix="ajet-hosts-", delete=False)
        with hosts:
            hosts.writelines(f"{host} slots={ranks}\n" for host in addresses)
        options.dir.mkdir(parents=True, exist_ok=True)
        token = options.dir / "ajet-swarm.token"
        if not token.exists():
            with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        on_nodes = [] if len(addresses) == 1 else ["--hostfile", hosts.name, "-x", "AJET_RANKS_ADDRESS"]
        launcher = " ".join([options.mpirun, *on_nodes, "-np", str(ranks * len(addresses))])
        command = [options.program, "start", "--host", "0.0.0.0", "--swarm-port", str(options.port)]
        command += ["--token-file", str(token), "--launcher", launcher]
        if any(options.dir.glob("saved_experiments/*/unfinished.yaml")):
            command.append("--continue")
        print(f"server: http://{addresses[0]}:{options.port}/t/TOKEN, with the token of {token}", flush=True)
        environment = {**os.environ, "AJET_RANKS_ADDRESS": addresses[0]}
        # Ray hides the GPUs that it has not given to this actor; the ranks share out all that the job has reserved.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.process = subprocess.Popen(command, cwd=options.dir, env=environment)

    def wait(self):
        """Waits for the end of the server; returns its exit code."""
        return self.process.wait()

    def stop(self):
        """Ends the server, whose engine writes a last checkpoint."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main():
    options = arguments()
    ray.init()
    resources = {"CPU": options.cpus, **({"GPU": options.gpus} if options.gpus else {})}
    group = placement_group([resources] * options.nodes, strategy="STRICT_SPREAD")
    if not group.wait(options.timeout):
        sys.exit(f"error: Ray has no {options.nodes} nodes with {resources}\nhint: see `ray status`")

    def on(bundle):
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)

    addresses = ray.get([
        address.options(num_cpus=0, scheduling_strategy=on(bundle)).remote() for bundle in range(options.nodes)
    ])
    # `wait` blocks one of its threads, and `stop` needs another.
    server = Server.options(num_cpus=0, max_concurrency=2, scheduling_strategy=on(0)).remote()
    ray.get(server.start.remote(options, addresses))

    def interrupted(*_):
        ray.get(server.stop.remote())

    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    ended = server.wait.remote()
    # In pieces, between which Python handles signals.
    while not ray.wait([ended], timeout=1)[0]:
        pass
    sys.exit(ray.get(ended))


if __name__ == "__main__":
    main()
