# SPDX-License-Identifier: Apache-2.0
"""The structures of on-disk format 2.0, from docs/on-disk-format.md alone. What they say is checked against the page before
anybody uses it."""

import collections
import struct

from pool_hashes import xxh3_128

BLOCK, MIB = 4096, 1 << 20
UNIT = 64 << 10
LIMIT = 1 << 62
MOST_CHECKPOINTS = 65536
MEMBER, ABSENT, REBUILDING = 0, 1, 2
EXIT_FAILED, EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_REFUSED = 1, 3, 10, 12


class Failure(Exception):
    """The end of the run, with an exit code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Unsound(Exception):
    """A structure, or a copy of one, that cannot be used."""


def expect(condition, text):
    if not condition:
        raise Unsound(text)


def rounded_up(number, unit):
    return -(-number // unit) * unit


class Fields:
    """Reads the bytes of one structure in their order."""

    def __init__(self, data, position, minor):
        self.data, self.position, self.minor = data, position, minor

    def take(self, count):
        expect(count <= len(self.data) - self.position, "a field ends behind the structure")
        self.position += count
        return bytes(self.data[self.position - count:self.position])

    def number(self, size):
        return int.from_bytes(self.take(size), "little")

    def numbers(self, *sizes):
        return [self.number(size) for size in sizes]

    def zero(self, count):
        expect(not any(self.take(count)) or self.minor > 0, "a reserved byte is not zero")

    def counter(self, name):
        value = self.number(8)
        expect(1 <= value <= LIMIT, f"{name} {value}")
        return value

    def text(self, size):
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise Unsound("text that is not UTF-8") from None

    def padded_text(self, length, size):
        expect(length <= size, "a text that is too long")
        text = self.text(length)
        self.zero(size - length)
        expect(not has_controls(text), "a control character")
        return text

    def extent(self):
        return Extent(*self.numbers(8, 8), self.take(16))

    def attributes(self, size):
        """Content by type, of the types that occur once at most."""
        expect(size <= 4096, "too many attributes")
        end, found = self.position + size, {}
        while self.position < end:
            kind, length = self.numbers(2, 2)
            expect(kind != 0 and length <= end - self.position, "a bad attribute")
            expect(kind > 5 or kind not in found, "an attribute that occurs twice")
            content = self.take(length)
            expect({1: length == 4, 2: length == 8, 3: length == 1 and content[0] <= 2, 4: length > 0, 5: length == 0}.get(kind, True),
                   "a bad attribute")
            if kind <= 5:
                found[kind] = content
        return found

    def end(self):
        """Of the fields: what follows is padding."""
        expect(self.position == self.length or self.minor > 0, "another length than its fields have")
        expect(not any(self.data[self.length:]), "padding that is not zero")


Extent = collections.namedtuple("Extent", "offset length hash")


def has_controls(text):
    return any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)


def structure(data, magic, self_offset, pool, length=None, known_hash=None):
    """The fields behind the prologue, after its checks in the page's order. `data` is whole blocks; without `length`, one block."""
    expect(any(data), "blank")
    expect(data[:8] == magic, "not ours")
    stored = bytes(data[8:24])
    expect(xxh3_128(data[24:]) == stored, "corrupt")
    major, minor, zero, its_offset, its_length = struct.unpack_from("<HHIQQ", data, 24)
    expect(major != 0, "corrupt")
    if major != 2:
        remedy = "restore its checkpoints with the release that wrote them" if major < 2 else "a newer reader is needed"
        raise Failure(EXIT_REFUSED, f"this pool has version {major}.{minor} of the format, and this reader knows 2.0: {remedy}")
    expect(zero == 0 or minor > 0, "a reserved byte is not zero")
    expect(its_offset == self_offset, "written for another place")
    expect(64 <= its_length <= len(data) < its_length + BLOCK and length in (None, its_length), "another length")
    expect(pool in (None, bytes(data[48:64])), "of another pool")
    expect(known_hash in (None, stored), "a copy from another time")
    fields = Fields(memoryview(data), 64, minor)
    fields.length = its_length
    return fields


DriveEntry = collections.namedtuple("DriveEntry", "uuid capacity state serial")


class Label:
    def __init__(self, data, offset):
        f = structure(data, b"STNLABEL", offset, None)
        self.pool, self.epoch, _created = bytes(data[48:64]), f.counter("epoch"), f.number(8)
        _compatible, _read_only, incompatible = f.numbers(8, 8, 8)
        if incompatible & ~3:
            raise Failure(EXIT_REFUSED, "this pool has a feature that this reader does not know: a newer one is needed")
        self.index, count, self.copies, table_copies = f.numbers(2, 2, 1, 1)
        f.zero(2)
        self.chunk, root_slots, stride, front, back, catalogues, self.most = f.numbers(8, 4, 4, 8, 8, 4, 4)
        catalogue_start, self.catalogue_bytes, self.area_start, self.area_blocks, self.data_start = f.numbers(8, 8, 8, 8, 8)
        f.zero(32 + 288)
        self.ancestors = [f.take(16) for _ in range(32)]
        expect(1 <= count <= 32 and self.index < count and self.copies in (1, 2) and self.copies <= count, "a bad number of drives")
        expect(1 <= table_copies <= min(8, count), "a bad number of table copies")
        known = [a for a in self.ancestors if any(a)]
        expect(self.ancestors[:len(known)] == known and len(known) < self.epoch, "bad ancestors")
        self.drives = []
        for _ in range(count):
            uuid, capacity, serial_length, state = f.take(16), *f.numbers(8, 1, 1)
            f.zero(6)
            self.drives.append(DriveEntry(uuid, capacity, state, f.padded_text(serial_length, 64)))
            expect(any(uuid) and 32 * MIB <= capacity <= 1 << 56 and state <= REBUILDING, "a bad drive table")
        table_end = f.position
        f.end()
        states = [drive.state for drive in self.drives]
        expect(len({drive.uuid for drive in self.drives}) == count and MEMBER in states, "a bad drive table")
        expect(incompatible == (self.copies == 2) | any(states) << 1, "feature bits that do not fit")
        area = self.area_blocks * BLOCK
        expect(self.chunk in [1 << n for n in range(12, 25)] and MIB <= area <= 1 << 40 and area % UNIT == 0, "bad sizes")
        expect((root_slots, stride, front, back, catalogues, catalogue_start) == (64, 16384, 3 * MIB, 3 * MIB, 4, 4 * MIB), "bad places")
        expect(self.most == min(max(area // (256 << 10), 16), MOST_CHECKPOINTS), "a bad number of checkpoints")
        expect(self.catalogue_bytes == rounded_up(80 + 256 * self.most, UNIT), "bad places")
        expect(self.area_start == 4 * MIB + 4 * self.catalogue_bytes and
               self.data_start == rounded_up(self.area_start + area, MIB), "bad places")
        expect(all(self.data_start <= self.end(n) - 3 * MIB for n in range(count)), "a drive without room")
        self.id = xxh3_128(self.pool + data[64:104] + data[106:table_end])

    def end(self, index):
        return self.drives[index].capacity // MIB * MIB


class Root:
    def __init__(self, data, offset, slot, label, drive):
        f = structure(data, b"STN ROOT", offset, label.pool)
        expect(f.take(16) == drive.uuid, "of another drive")
        self.generation, self.epoch = f.counter("generation"), f.counter("epoch")
        self.parent, self.catalogue = f.take(16), f.extent()
        self.committed = f.number(8)
        f.numbers(16, 16, 8, 4)
        f.zero(4)
        f.numbers(8, 16, 8)
        host_length, command_length = f.numbers(1, 1)
        f.zero(6)
        f.padded_text(host_length, 64)
        f.padded_text(command_length, 32)
        f.end()
        expect(self.generation % 64 == slot, "in another slot")
        expect(self.catalogue.offset == 4 * MIB + self.generation % 4 * label.catalogue_bytes, "a catalogue elsewhere")
        expect(80 <= self.catalogue.length <= label.catalogue_bytes, "a catalogue of another length")
        self.id = xxh3_128(label.pool + data[80:168])
        self.order = (self.epoch, self.generation)


Checkpoint = collections.namedtuple("Checkpoint", "id step bytes participants pinned generation manifest uid gid mode name")


def catalogue_entries(f, root, label):
    expect(f.counter("generation") == root.generation, "of another generation")
    count = f.number(4)
    f.zero(4)
    expect(count <= min(label.most, (f.length - 80) // 104), "too many entries")
    found = []
    for _ in range(count):
        uuid, (step, size, participants, name_length, flags, _time) = f.take(16), f.numbers(8, 8, 4, 2, 2, 8)
        generation, manifest, (uid, gid, mode, attributes) = f.counter("generation"), f.extent(), f.numbers(4, 4, 2, 2)
        f.zero(4)
        expect(1 <= participants <= 65536 and 1 <= name_length <= 128 and mode <= 0o777, "a bad entry")
        expect(generation <= root.generation and (flags & ~1 == 0 or f.minor > 0), "a bad entry")
        name = f.text(name_length)
        f.attributes(attributes)
        found.append(Checkpoint(uuid, step, size, participants, bool(flags & 1), generation, manifest, uid, gid, mode, name))
    f.end()
    order = [(c.name.encode(), c.step) for c in found]
    expect(all(a < b for a, b in zip(order, order[1:])) and len({c.id for c in found}) == count, "entries out of order, or twice")
    return found


Run = collections.namedtuple("Run", "drive copy blocks first")
Reference = collections.namedtuple("Reference", "length hash copies")
Segment = collections.namedtuple("Segment", "length table shards")
Shard = collections.namedtuple("Shard", "name offset length dtype shape attributes")


def reference(f, label):
    length, known_hash, runs = f.number(8), f.take(16), f.number(2)
    f.zero(6)
    expect(64 <= length <= label.area_blocks * BLOCK and 1 <= runs <= 8 * 16, "a bad reference")
    copies = []
    for _ in range(runs):
        drive, copy, zero, blocks, first = f.numbers(2, 1, 1, 4, 8)
        start = first * BLOCK - label.area_start
        expect(zero == 0 or f.minor > 0, "a reserved byte is not zero")
        expect(drive < len(label.drives) and blocks and 0 <= start <= (label.area_blocks - blocks) * BLOCK, "a run elsewhere")
        if copy == len(copies):
            copies.append([])
        expect(copy == len(copies) - 1 and len(copies[copy]) < 16 and len(copies) <= 8, "runs out of order")
        copies[copy].append(Run(drive, copy, blocks, first))
    for runs in copies:
        expect(len({run.drive for run in runs}) == 1, "a copy on two drives")
        expect(sum(run.blocks for run in runs) == rounded_up(length, BLOCK) // BLOCK, "runs of another length")
    expect(len({runs[0].drive for runs in copies}) == len(copies), "two copies on one drive")
    return Reference(length, known_hash, copies)


def manifest_segments(f, checkpoint, label):
    expect(f.take(16) == checkpoint.id and f.number(8) == checkpoint.step, "of another checkpoint")
    count, name_length = f.numbers(4, 2)
    f.zero(2)
    expect(count == checkpoint.participants and count <= (f.length - 96) // 72, "another number of segments")
    segments = [Segment(f.number(8), reference(f, label), reference(f, label)) for _ in range(count)]
    expect(f.text(name_length) == checkpoint.name and sum(s.length for s in segments) == checkpoint.bytes, "of another checkpoint")
    f.end()
    return segments


def table_chunks(f, checkpoint, participant, length, label):
    """CRC and locations of each chunk: `(crc, [(drive, slot), ...])`."""
    count = rounded_up(length, label.chunk) // label.chunk
    expect(f.take(16) == checkpoint.id and f.numbers(8, 8, 8, 4) == [length, label.chunk, count, participant], "of another segment")
    f.zero(4)
    copies = f.number(1)
    f.zero(15)
    expect(copies in (1, 2) and count <= (f.length - 128) // (8 + 8 * copies), "too many chunks")
    chunks = []
    for _ in range(count):
        crc, *locations = f.numbers(*[8] * (1 + copies))
        places = [(location >> 48, location & (1 << 48) - 1) for location in locations]
        for drive, slot in places:
            expect(drive < len(label.drives), "a drive that is not in the table")
            expect(label.data_start + (slot + 1) * label.chunk <= label.end(drive) - 3 * MIB, "a slot elsewhere")
        expect(len({drive for drive, _ in places}) == copies, "two copies on one drive")
        chunks.append((crc, places))
    f.end()
    return chunks


def shard_list(f, checkpoint, participant, length):
    expect(f.take(16) == checkpoint.id and f.numbers(8, 4) == [length, participant], "of another segment")
    count = f.number(4)
    expect(count <= min(1 << 20, (f.length - 96) // 25), "too many shards")
    shards, end = [], 0
    for _ in range(count):
        offset, size, name_length, dtype_length, dimensions, attributes = f.numbers(8, 8, 2, 1, 1, 2)
        f.zero(2)
        expect(1 <= name_length <= 1024 and dtype_length <= 16 and dimensions <= 16, "a bad shard")
        shape = f.numbers(*[8] * dimensions)
        name, dtype = f.text(name_length), f.text(dtype_length)
        kept = f.attributes(attributes)
        expect(end <= offset and size <= length - offset and dtype.isascii(), "a shard out of order")
        shards.append(Shard(name, offset, size, dtype, shape, kept))
        end = offset + size
    f.end()
    expect(len({shard.name for shard in shards}) == count, "two shards of one name")
    return shards
