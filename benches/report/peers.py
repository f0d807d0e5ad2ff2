# SPDX-License-Identifier: Apache-2.0
"""Rows compared with other writers of checkpoints, on the file system of the working directory. The runs themselves are in
benches/peers; this says which, and makes rows of them."""
import json

from .compare import rows_of_rounds, say
from .tools import GIB, MIB, reserve_huge_pages

SIZES = {"16MiB": 16 * MIB, "64MiB": 64 * MIB, "256MiB": 256 * MIB, "1GiB": GIB, "4GiB": 4 * GIB}
# The one size at which all peers save a single tensor.
ALL_AT = "1GiB"
FILE_WRITERS = ("torch_save_fsync", "safetensors_fsync", "dcp")
# Huge pages of the engine and of a ring's buffers, in addition to those of a workload in place.
POOL_PAGES = 96


def rounds_of(plan, size_bytes):
    """Short runs are many, since one slow flush of the disk spoils one."""
    return plan.rounds if size_bytes >= GIB else 3 * plan.rounds


def side_by_side(plan, workload, peers, rounds, ours="stanchion"):
    """What benches/peers/rounds.py measured."""
    arguments = [
        "--library", plan.library, "--dir", plan.work, "--workload", workload, "--ours", ours,
        "--peers", ",".join(peers), "--rounds", rounds,
    ]
    return json.loads(plan.peers.run("peers.rounds", arguments, plan.root / "benches"))


def rows_of(name, document, seconds, note):
    """Seconds become rates: more is better, as in every row."""
    rate = lambda times: [document["bytes"] / time / 1e9 for time in times]
    found = rows_of_rounds(name, "GB/s", rate(seconds["first"]), rate(seconds["peer"]), rate(seconds["again"]), note)
    row = found[0]
    say(f"{name}: ours {row.value:.3g}, peer {row.peer_value:.3g} GB/s, ratio {row.ratio:.2f} ({row.ratio_min:.2f} to {row.ratio_max:.2f})")
    return found


def compare_with(plan, names, workload, rounds, note="", ours="stanchion"):
    """`names` has the row of each peer."""
    wanted = {peer: name for peer, name in names.items() if plan.wants(name)}
    if not wanted:
        return []
    reserve_huge_pages(POOL_PAGES)
    document = side_by_side(plan, workload, wanted, rounds, ours)
    note = note or f"{document['tensors']} tensors, {document['bytes'] / MIB:.0f} MiB"
    return [row for peer, name in wanted.items() for row in rows_of(name, document, document["seconds"][peer], note)]


def single_tensors(plan):
    """One tensor of each size: ours with its copy, and ours in place."""
    found = []
    for text, size in SIZES.items():
        name = f"save.kernel.{text}"
        names = {"deepspeed": f"{name}/deepspeed"}
        # The largest takes most of the time: only the row itself when time is short.
        only_row = plan.quick and size == 4 * GIB
        if not only_row:
            names["deepspeed_best"] = f"{name}/deepspeed_best"
        if text == ALL_AT:
            names |= {peer: f"save.kernel/{peer}" for peer in FILE_WRITERS}
        rounds = rounds_of(plan, size)
        found += compare_with(plan, names, f"single:{size}", rounds, "from ordinary memory")
        if only_row:
            continue
        names = {"deepspeed": f"{name}.in_place/deepspeed"}
        if plan.wants(*names.values()):
            reserve_huge_pages(POOL_PAGES + size // (2 * MIB))
        found += compare_with(plan, names, f"single:{size}", rounds, "ours from its own memory", "stanchion_in_place")
    return found


def tensor_lists(plan):
    """Many small tensors, and few huge ones: the lists of one rank of Llama 3 8B."""
    found = []
    everyone = (*FILE_WRITERS, "dcp_async", "deepspeed")
    rounds = rounds_of(plan, 0)
    model = f"model:{4 if plan.quick else 2}"
    names = {peer: f"save.small_tensors/{peer}" for peer in everyone}
    names[f"ours:model-joined:{model.removeprefix('model:')}"] = "save.small_tensors/one_tensor"
    found += compare_with(plan, names, model, rounds)
    names = {peer: f"save.huge_tensors/{peer}" for peer in everyone}
    return found + compare_with(plan, names, f"optimizer:{8 if plan.quick else 4}", rounds)


def mlperf(plan):
    names = [f"mlperf.save/{peer}" for peer in ("torch_save_fsync", "deepspeed")] + ["mlperf.restore/torch_load"]
    if not plan.wants(*names):
        return []
    reserve_huge_pages(POOL_PAGES + 8 * 8)
    arguments = ["--library", plan.library, "--dir", plan.work, "--scale", 16 if plan.quick else 8]
    document = json.loads(plan.peers.run("peers.ranks", arguments, plan.root / "benches"))
    note = f"{document['ranks']} ranks, {document['bytes'] / MIB:.0f} MiB"
    found = []
    for peer, seconds in document["save"].items():
        found += rows_of(f"mlperf.save/{peer}", document, seconds, note)
    (seconds,) = document["restore"].values()
    return found + rows_of("mlperf.restore/torch_load", document, seconds, f"{note}; ours verifies every chunk")


GROUPS = (single_tensors, tensor_lists, mlperf)
