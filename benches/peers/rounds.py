# SPDX-License-Identifier: Apache-2.0
"""Interleaved runs of ours and the peers on one workload; prints one JSON document.

A round is ours, a peer, ours, the next peer, and so on, ours at the end: every peer stands between two runs of ours.
"""
import argparse
import json
import os
import pathlib

# Before torch: one accelerator-free process.
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from . import llama3, take_output, tensors  # noqa: E402
from .ours import Copied, InPlace  # noqa: E402
from .writers import PEERS  # noqa: E402

OURS = {writer.name: writer for writer in (Copied, InPlace)}


def workload(text):
    """single:BYTES, model:SCALE, optimizer:SCALE, or model-joined:SCALE: the bytes of the model's list in one tensor."""
    kind, number = text.split(":")
    number = int(number)
    if kind == "single":
        return tensors.single(number)
    if kind == "model-joined":
        return tensors.single(tensors.of_list(llama3.model(number)).bytes)
    return tensors.of_list({"model": llama3.model, "optimizer": llama3.optimizer}[kind](number))


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--library", required=True)
    options.add_argument("--dir", type=pathlib.Path, required=True)
    options.add_argument("--workload", required=True, help=workload.__doc__)
    options.add_argument("--ours", choices=OURS, default=Copied.name)
    options.add_argument("--peers", required=True, help=f"of {', '.join(PEERS)}; ours:WORKLOAD is ours on another workload")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    output = take_output()
    load = workload(given.workload)
    ours = OURS[given.ours](given.library, given.dir, load)
    peers = {name: make_peer(given, name, load) for name in given.peers.split(",")}
    runs = {name: {"first": [], "peer": [], "again": []} for name in peers}
    for peer in peers.values():
        # Imports, locked memory, the first file.
        peer.save()
    for _ in range(given.rounds):
        before = ours.save()
        for name, peer in peers.items():
            runs[name]["first"].append(before)
            runs[name]["peer"].append(peer.save())
            before = ours.save()
            runs[name]["again"].append(before)
    for writer in (*peers.values(), ours):
        writer.close()
    json.dump({"bytes": load.bytes, "tensors": len(load.tensors), "seconds": runs}, output)


def make_peer(given, name, load):
    if name.startswith("ours:"):
        directory = given.dir / "other"
        directory.mkdir(exist_ok=True)
        return OURS[given.ours](given.library, directory, workload(name.removeprefix("ours:")))
    return PEERS[name](given.dir, load)


main()
