# SPDX-License-Identifier: Apache-2.0
"""Stanchion as a writer, on one preallocated file drive, through the C library.

`Copied` has its data in ordinary memory, as every peer has: it packs it into 64 MiB of the session's huge pages, piece by
piece, while earlier pieces are being written. `InPlace` has it in the session's memory, as a trainer has that copies
from its accelerator straight to there: no copy is left to count.
"""
import ctypes
import time

from .library import COMMIT, WRITE, Library, Pool, Session

MIB = 1 << 20
CHUNK = MIB
BUFFERS_BYTES = 64 * MIB
PIECE_BYTES = 2 * MIB
NAME = "bench@{}"


def pieces_of(tensors, piece_bytes):
    """What fills each piece: lists of (address, offset in the piece, bytes), tensors one after the other."""
    pieces, filled = [[]], 0
    for tensor in tensors.values():
        address, left = tensor.data_ptr(), tensor.nbytes
        while left:
            if filled == piece_bytes:
                pieces.append([])
                filled = 0
            count = min(left, piece_bytes - filled)
            pieces[-1].append((address, filled, count))
            address, left, filled = address + count, left - count, filled + count
    return pieces


class Pipeline:
    """One participant: its session, its buffers, and how to fill them."""

    def __init__(self, pool, workload, participants=1, participant=0, buffers_bytes=BUFFERS_BYTES):
        self.workload, self.participants, self.participant = workload, participants, participant
        self.session = Session(pool, buffers_bytes)
        self.buffers = [self.session.alloc(PIECE_BYTES) for _ in range(buffers_bytes // PIECE_BYTES)]
        self.shards = workload.shards()
        self.pieces = pieces_of(workload.tensors, PIECE_BYTES)

    def save(self, name):
        """Until it is durable and visible. The caller closes the checkpoint's handle."""
        session, move = self.session, ctypes.memmove
        checkpoint = session.begin(name, self.workload.bytes, self.shards, self.participants, self.participant)
        free = list(range(len(self.buffers)))
        for number, piece in enumerate(self.pieces):
            while not free:
                free += session.wait()
            place = free.pop()
            address, key = self.buffers[place]
            for source, offset, count in piece:
                move(address + offset, source, count)
            length = offset + count
            session.submit(WRITE, checkpoint, place, key, 0, length, number * PIECE_BYTES)
        session.submit(COMMIT, checkpoint, COMMIT_TAG)
        while COMMIT_TAG not in session.wait():
            pass
        return checkpoint

    def close(self):
        self.session.destroy()


COMMIT_TAG = 1 << 32


class OneDrive:
    """A pool with room for two generations, every block of which was written once."""

    def __init__(self, library, directory, size_bytes):
        self.path = directory / "stanchion.img"
        self.path.unlink(missing_ok=True)
        rounded = -(-size_bytes // CHUNK) * CHUNK
        self.pool = Pool(Library(library), self.path, 2 * rounded + 256 * MIB)
        self.step = 0

    def name(self):
        return NAME.format(self.step)

    def warm(self, writer):
        for _ in range(4):
            writer.save()

    def close(self):
        self.pool.close()
        self.path.unlink()


class Copied:
    name = "stanchion"

    def __init__(self, library, directory, workload):
        self.drive = OneDrive(library, directory, workload.bytes)
        self.pipeline = Pipeline(self.drive.pool, workload)
        self.drive.warm(self)

    def save(self):
        self.drive.step += 1
        started = time.perf_counter()
        checkpoint = self.pipeline.save(self.drive.name())
        seconds = time.perf_counter() - started
        self.pipeline.session.close(checkpoint)
        self.drive.pool.remove(self.drive.name())
        return seconds

    def close(self):
        self.pipeline.close()
        self.drive.close()


class InPlace:
    name = "stanchion_in_place"

    def __init__(self, library, directory, workload):
        self.workload = workload
        self.drive = OneDrive(library, directory, workload.bytes)
        rounded = -(-workload.bytes // (2 * MIB)) * 2 * MIB
        self.session = Session(self.drive.pool, rounded)
        address, self.key = self.session.alloc(rounded)
        for tensor in workload.tensors.values():
            ctypes.memmove(address, tensor.data_ptr(), tensor.nbytes)
            address += tensor.nbytes
        self.shards = workload.shards()
        self.drive.warm(self)

    def save(self):
        self.drive.step += 1
        started = time.perf_counter()
        length = self.workload.bytes
        checkpoint = self.session.begin(self.drive.name(), length, self.shards)
        self.session.submit(WRITE, checkpoint, 0, self.key, 0, length, 0)
        self.session.submit(COMMIT, checkpoint, COMMIT_TAG)
        while COMMIT_TAG not in self.session.wait():
            pass
        seconds = time.perf_counter() - started
        self.session.close(checkpoint)
        self.drive.pool.remove(self.drive.name())
        return seconds

    def close(self):
        self.session.destroy()
        self.drive.close()
