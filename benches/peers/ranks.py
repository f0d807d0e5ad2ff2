# SPDX-License-Identifier: Apache-2.0
"""MLPerf Storage's checkpointing run, scaled down: 8 ranks, 10 saves, then 10 restores; prints one JSON document.

Each rank saves its own weights and optimizer state. A save lasts from the moment that all ranks may start until the last
of them is durable, and a restore until the last of them has its bytes in memory. The peers have a process and a file
for each rank, which is how they run; ours has a thread for each rank of one process, which is how it is used, and
one checkpoint that becomes visible once, when all ranks have committed. Peers' files are dropped from the page cache
before each restore; ours never is in there. Ours and the peers take turns.
"""
import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import time

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import deepspeed.io.fast_file_writer  # noqa: E402, F401  (before the fork: it takes seconds)
import torch  # noqa: E402

from . import llama3, take_output, tensors  # noqa: E402
from .ours import MIB, OneDrive, Pipeline  # noqa: E402
from .writers import PEERS  # noqa: E402


def rank_workload(scale, rank):
    return tensors.of_list(llama3.model(scale) + llama3.optimizer(scale), seed=1000 * (rank + 1))


class Ours:
    name = "stanchion"

    def __init__(self, given):
        loads = [rank_workload(given.scale, rank) for rank in range(llama3.RANKS)]
        self.bytes = sum(load.bytes for load in loads)
        self.drive = OneDrive(given.library, given.dir, sum(-(-load.bytes // MIB) * MIB for load in loads))
        self.ranks = [
            Pipeline(self.drive.pool, load, llama3.RANKS, rank, buffers_bytes=16 * MIB) for rank, load in enumerate(loads)
        ]
        self.room = [torch.empty(load.bytes, dtype=torch.uint8) for load in loads]
        # Its pages are mapped before they are read into, as those of a trainer's tensors are.
        for room in self.room:
            room.zero_()
        self.threads = concurrent.futures.ThreadPoolExecutor(llama3.RANKS)
        self.checkpoints = None
        self.drive.warm(self)

    def save(self):
        if self.checkpoints:
            self.drive.pool.remove(self.drive.name())
        self.drive.step += 1
        name = self.drive.name()
        started = time.perf_counter()
        self.checkpoints = list(self.threads.map(lambda rank: rank.save(name), self.ranks))
        seconds = time.perf_counter() - started
        for rank, checkpoint in zip(self.ranks, self.checkpoints):
            rank.session.close(checkpoint)
        return seconds

    def restore(self):
        name = self.drive.name()

        def read(rank):
            room = self.room[rank]
            self.drive.pool.restore(name, rank, room.data_ptr(), room.nbytes)

        started = time.perf_counter()
        list(self.threads.map(read, range(llama3.RANKS)))
        return time.perf_counter() - started

    def check(self):
        """Every byte that was restored is the one that was saved."""
        for rank, room in zip(self.ranks, self.room):
            offset = 0
            for name, tensor in rank.workload.tensors.items():
                view = tensor.view(torch.uint8)
                if not torch.equal(view, room[offset : offset + tensor.nbytes]):
                    raise SystemExit(f"rank {rank.participant}: {name} is not what was saved")
                offset += tensor.nbytes

    def close(self):
        self.threads.shutdown()
        for rank in self.ranks:
            rank.close()
        self.drive.close()


def peer_rank(scale, rank, writer, directory, pipe):
    """A process of a peer: it receives `save` or `restore`, does it and answers."""
    torch.set_num_threads(1)
    load = rank_workload(scale, rank)
    home = directory / f"rank-{rank}"
    home.mkdir(exist_ok=True)
    peer = PEERS[writer](home, load)
    pipe.send("ready")
    while (word := pipe.recv()) != "end":
        if word == "prepare save":
            peer.remove()
        elif word == "save":
            peer.write()
        elif word == "prepare restore":
            descriptor = os.open(peer.path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        elif word == "restore":
            torch.load(peer.path, weights_only=True)
        pipe.send(word)
    peer.close()


class PeerRanks:
    def __init__(self, given, writer):
        self.name = writer
        # Forked before the engine has any thread; what was imported need not be imported eight times.
        fork = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for rank in range(llama3.RANKS):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=peer_rank, args=(given.scale, rank, writer, given.dir, theirs), daemon=True)
            process.start()
            # Otherwise the end of a process would not be noticed.
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.receive()

    def receive(self):
        for pipe in self.pipes:
            pipe.recv()

    def ask(self, word):
        started = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(word)
        self.receive()
        return time.perf_counter() - started

    def save(self):
        self.ask("prepare save")
        return self.ask("save")

    def restore(self):
        self.ask("prepare restore")
        return self.ask("restore")

    def close(self):
        for pipe in self.pipes:
            pipe.send("end")
        for process in self.processes:
            process.join()


def phase(rounds, ours, peers):
    runs = {name: {"first": [], "peer": [], "again": []} for name in peers}
    for _ in range(rounds):
        before = ours()
        for name, peer in peers.items():
            runs[name]["first"].append(before)
            runs[name]["peer"].append(peer())
            before = ours()
            runs[name]["again"].append(before)
    return runs


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--library", required=True)
    options.add_argument("--dir", type=pathlib.Path, required=True)
    options.add_argument("--scale", type=int, required=True)
    options.add_argument("--rounds", type=int, default=10)
    given = options.parse_args()
    output = take_output()
    peers = [PeerRanks(given, writer) for writer in ("torch_save_fsync", "deepspeed")]
    ours = Ours(given)
    for peer in peers:
        peer.save()
    saves = phase(given.rounds, ours.save, {peer.name: peer.save for peer in peers})
    # DeepSpeed's files are what torch.load cannot read: it has no reader of its own.
    readers = {peer.name: peer.restore for peer in peers if peer.name == "torch_save_fsync"}
    ours.restore()
    ours.check()
    restores = phase(given.rounds, ours.restore, readers)
    for writer in (*peers, ours):
        writer.close()
    json.dump({"bytes": ours.bytes, "ranks": llama3.RANKS, "save": saves, "restore": restores}, output)


if __name__ == "__main__":
    main()
