# SPDX-License-Identifier: Apache-2.0
"""libstanchion through ctypes: a pool on file drives, one session for each thread. The structures are those of stanchion.h."""
import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

WRITE, COMMIT = 1, 3


class PoolOpts(Structure):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("drives", POINTER(c_char_p)), ("cores", POINTER(c_uint32)),
        ("drive_count", c_uint32), ("core_count", c_uint32), ("huge_pages", c_uint32), ("reactors", c_uint32),
        ("queue_depth", c_uint32), ("checksum_threads", c_uint32),
    ]


class FormatOpts(Structure):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("drives", POINTER(c_char_p)), ("drive_count", c_uint32),
        ("reserved", c_uint32), ("chunk_bytes", c_uint64), ("create_bytes", c_uint64),
    ]


class SessionOpts(Structure):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("memory_bytes", c_uint64), ("entries", c_uint32), ("reserved", c_uint32),
    ]


class Shard(Structure):
    _fields_ = [
        ("name", c_char_p), ("offset_bytes", c_uint64), ("len_bytes", c_uint64), ("dtype", c_char_p),
        ("shape", POINTER(c_uint64)), ("dimensions", c_uint32), ("reserved", c_uint32),
    ]


class BeginOpts(Structure):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("name", c_char_p), ("participants", c_uint32),
        ("participant", c_uint32), ("len_bytes", c_uint64), ("shards", POINTER(Shard)), ("shard_count", c_uint32),
        ("shard_size", c_uint32),
    ]


class RestoreOpts(Structure):
    _fields_ = [
        ("size", c_uint32), ("flags", c_uint32), ("name", c_char_p), ("shard", c_char_p), ("participant", c_uint32),
        ("reserved", c_uint32), ("offset_bytes", c_uint64), ("len_bytes", c_uint64),
    ]


class Sqe(Structure):
    _fields_ = [
        ("opcode", c_uint8), ("flags", c_uint8), ("reserved0", c_uint16), ("buffer", c_uint32), ("checkpoint", c_uint64),
        ("buffer_offset_bytes", c_uint64), ("len_bytes", c_uint64), ("segment_offset_bytes", c_uint64),
        ("user_data", c_uint64), ("reserved1", c_uint64 * 2),
    ]


class Cqe(Structure):
    _fields_ = [
        ("user_data", c_uint64), ("result", c_int64), ("flags", c_uint32), ("detail", c_uint32), ("aux", c_uint64),
    ]


# The 64-bit results of the header; by default ctypes takes a result for an int.
RESULTS = {"stn_restore": c_int64, "stn_last_error": ctypes.c_size_t}
ARGUMENTS = {
    "stn_format": [POINTER(FormatOpts)],
    "stn_pool_open": [POINTER(PoolOpts), POINTER(c_void_p)],
    "stn_pool_close": [c_void_p],
    "stn_remove": [c_void_p, c_char_p],
    "stn_restore": [c_void_p, POINTER(RestoreOpts), c_void_p, c_uint64],
    "stn_session_create": [c_void_p, POINTER(SessionOpts), POINTER(c_void_p)],
    "stn_session_destroy": [c_void_p],
    "stn_submit": [c_void_p, POINTER(Sqe), c_uint32],
    "stn_wait": [c_void_p, POINTER(Cqe), c_uint32, c_uint32, c_int64],
    "stn_buf_alloc": [c_void_p, c_uint64, POINTER(c_void_p), POINTER(c_uint32)],
    "stn_buf_free": [c_void_p, c_uint32],
    "stn_begin": [c_void_p, POINTER(BeginOpts), POINTER(c_uint64)],
    "stn_close": [c_void_p, c_uint64],
    "stn_last_error": [c_char_p, ctypes.c_size_t],
}


class StanchionError(Exception):
    """A call, or an entry, that failed."""


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name, arguments in ARGUMENTS.items():
            function = getattr(self.c, name)
            function.argtypes, function.restype = arguments, RESULTS.get(name, c_int)

    def check(self, result):
        if result < 0:
            text = ctypes.create_string_buffer(4096)
            self.c.stn_last_error(text, len(text))
            raise StanchionError(f"{result}: {text.value.decode()}")
        return result


def sized(kind, **fields):
    return kind(size=ctypes.sizeof(kind), **fields)


class Pool:
    """An open pool on one new drive in a file."""

    def __init__(self, library, drive, size_bytes):
        self.library = library
        drives = (c_char_p * 1)(str(drive).encode())
        library.check(library.c.stn_format(byref(sized(FormatOpts, drives=drives, drive_count=1, create_bytes=size_bytes))))
        self.handle = c_void_p()
        options = sized(PoolOpts, drives=drives, drive_count=1)
        library.check(library.c.stn_pool_open(byref(options), byref(self.handle)))

    def remove(self, name):
        self.library.check(self.library.c.stn_remove(self.handle, name.encode()))

    def restore(self, name, participant, address, length):
        """The whole segment into memory, verified."""
        options = sized(RestoreOpts, name=name.encode(), participant=participant)
        return self.library.check(self.library.c.stn_restore(self.handle, byref(options), address, length))

    def close(self):
        self.library.check(self.library.c.stn_pool_close(self.handle))


class Session:
    """What one thread submits through, and its memory in huge pages."""

    def __init__(self, pool, memory_bytes, entries=256):
        self.library, self.c = pool.library, pool.library.c
        self.handle = c_void_p()
        options = sized(SessionOpts, memory_bytes=memory_bytes, entries=entries)
        self.library.check(self.c.stn_session_create(pool.handle, byref(options), byref(self.handle)))
        self.taken = (Cqe * 64)()
        self.sqe = Sqe()

    def alloc(self, length):
        """Address and key of a buffer."""
        address, key = c_void_p(), c_uint32()
        self.library.check(self.c.stn_buf_alloc(self.handle, length, byref(address), byref(key)))
        return address.value, key.value

    def begin(self, name, length, shards=None, participants=1, participant=0):
        handle = c_uint64()
        options = sized(BeginOpts, name=name.encode(), participants=participants, participant=participant, len_bytes=length)
        if shards is not None:
            options.shards, options.shard_count, options.shard_size = shards, len(shards), ctypes.sizeof(Shard)
        self.library.check(self.c.stn_begin(self.handle, byref(options), byref(handle)))
        return handle.value

    def submit(self, opcode, checkpoint, tag, buffer=0, buffer_offset=0, length=0, segment_offset=0):
        sqe = self.sqe
        sqe.opcode, sqe.buffer, sqe.checkpoint, sqe.user_data = opcode, buffer, checkpoint, tag
        sqe.buffer_offset_bytes, sqe.len_bytes, sqe.segment_offset_bytes = buffer_offset, length, segment_offset
        if self.library.check(self.c.stn_submit(self.handle, byref(sqe), 1)) != 1:
            raise StanchionError("the ring is full")

    def wait(self):
        """Tags of completions, at least one."""
        count = self.library.check(self.c.stn_wait(self.handle, self.taken, 1, len(self.taken), -1))
        for cqe in self.taken[:count]:
            if cqe.result < 0:
                raise StanchionError(f"entry {cqe.user_data}: {cqe.result}, detail {cqe.detail}, aux {cqe.aux}")
        return [cqe.user_data for cqe in self.taken[:count]]

    def close(self, checkpoint):
        self.library.check(self.c.stn_close(self.handle, checkpoint))

    def destroy(self):
        self.library.check(self.c.stn_session_destroy(self.handle))
