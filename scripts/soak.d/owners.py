# SPDX-License-Identifier: Apache-2.0
"""two hosts write one pool behind an NVMe-oF target; one is stopped or killed at a random instant

With reservations nothing that was acknowledged is lost, by whichever host. Every second instant runs without them: then one
acknowledged commit may be lost, and its host does not acknowledge another one; the next opening reports it.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import time

import hosts
import run

NEEDS_ROOT = True
FILE_BYTES = 3 << 20
KEPT = 6
BUSY, DAMAGED = 11, 3
# A target that gets no processor for a while does not answer in time. That loses nothing: it is tried again, and counted.
UNANSWERED, TRIES = "no NVMe controller answered", 5


class Violation(Exception):
    """A promise that was broken."""


class Scenario(contextlib.ExitStack):
    def __init__(self, repository, binary, folder, say):
        super().__init__()
        self.repository, self.binary, self.folder, self.say = repository, binary, pathlib.Path(folder), say
        self.step, self.by_mode = 0, {"on": {}, "off": {}}
        self.repeated = 0
        self.acknowledged = {}

    def __enter__(self):
        super().__enter__()
        self.enter_context(run.private_network())
        # Killed processes leave no pages behind, and two run at once.
        hosts.checked(self.repository / "scripts" / "hugepages", "--add", "1280")
        self.target = hosts.Target(self.repository, self.folder / "target", drives=4, size="128MiB")
        self.callback(self.target.stop)
        self.hosts = []
        for number, name in enumerate(("north", "south"), 1):
            host = hosts.Host(name, number, self.target)
            self.callback(host.stop)
            self.hosts.append(host)
        # A pool for each: a drive that was reserved refuses a host that does not use reservations.
        for reservations in ("on", "off"):
            self.stanchion(self.hosts[0], reservations, "format", "--yes", expect=0)
        self.typical_seconds = self.measure()
        self.say(f"a save takes {self.typical_seconds:.2f} s")
        return self

    def measure(self):
        started = time.monotonic()
        self.save(self.hosts[0], "on").end()
        return time.monotonic() - started

    def command(self, host, reservations, subcommand, *words):
        drives = host.drives[:2] if reservations == "on" else host.drives[2:]
        drives = [word for drive in drives for word in ("--drive", drive)]
        # The environment of the command: nsenter keeps ours.
        return ["env", f"STANCHION_RESERVATIONS={reservations}", "STANCHION_SPDK_MEM_MB=32", self.binary, subcommand, *drives, *words]

    def stanchion(self, host, reservations, subcommand, *words, expect=None):
        for _ in range(TRIES):
            code, out, err = host.run(self.command(host, reservations, subcommand, *words))
            if code == 0 or UNANSWERED not in err:
                break
            self.repeated += 1
        if expect is not None and code != expect:
            raise Violation(f"{subcommand} {' '.join(words)} on {host.name} ended with {code}: {err}")
        return code, out, err

    def save(self, host, reservations, *words):
        """Begins to save the next checkpoint."""
        self.step += 1
        step = self.step
        path = self.folder / f"data-{step}"
        path.write_bytes(hashlib.shake_128(f"{step}".encode()).digest(FILE_BYTES))
        running = host.start(self.command(host, reservations, "save", f"run@{step}", str(path), *words))
        running.step = step
        return running

    def save_beside(self, host, reservations, *words):
        """Saves the next checkpoint to its end: exit code and standard error."""
        for _ in range(TRIES):
            running = self.save(host, reservations, *words)
            code = self.note(running, (ended := running.end()))
            if code == 0 or UNANSWERED not in ended[2]:
                break
            self.repeated += 1
        return running.step, code, ended[2]

    def note(self, running, ended):
        """What a save that ended said; remembers it when it was acknowledged."""
        code, _, err = ended
        (self.folder / f"data-{running.step}").unlink()
        if code == 0:
            self.acknowledged[running.step] = err
        return code

    def instant(self, _, rng):
        first, second = rng.sample(self.hosts, 2)
        reservations = rng.choice(("on", "off"))
        self.acknowledged = self.by_mode[reservations]
        ends = rng.choice((signal.SIGSTOP, signal.SIGKILL))
        counts = {f"with reservations {reservations}": 1, "killed" if ends == signal.SIGKILL else "stopped": 1}
        one = self.save(first, reservations)
        time.sleep(rng.uniform(0.2, 1) * self.typical_seconds)
        hit = one.signal(ends)
        counts["hit"] = int(hit)
        # The machine has other work, too.
        self.typical_seconds *= 1.1 if hit else 0.9
        step, code, err = self.save_beside(second, reservations)
        if code == BUSY:
            counts["refused as busy"] = 1
            if reservations == "off":
                raise Violation(f"without reservations, yet busy: {err}")
            step, code, err = self.save_beside(second, reservations, "--take-over")
            counts["taken over"] = 1
        if code != 0:
            # The other one may go on meanwhile only where it was not hit.
            if hit or code != BUSY:
                raise Violation(f"save of {step} on {second.name} ended with {code}: {err}")
        one.signal(signal.SIGCONT)
        code = self.note(one, (ended := one.end()))
        counts["of the first acknowledged"] = int(code == 0)
        if code not in (0, -signal.SIGKILL):
            counts["of the first refused later"] = 1
        if "panicked" in ended[2]:
            raise Violation(f"a panic: {ended[2]}")
        lost = self.check(second, reservations)
        counts["acknowledged and lost"] = len(lost)
        counts["repeated: a drive did not answer"], self.repeated = self.repeated, 0
        counts["acknowledged"] = 2 if code == 0 else 1
        return counts

    def check(self, host, reservations):
        """Compares what was acknowledged with what is there. The steps that were lost or damaged."""
        _, out, err = self.stanchion(host, reservations, "list", "--json", expect=0)
        found = {checkpoint["step"] for checkpoint in json.loads(out)["checkpoints"]}
        lost = [step for step in self.acknowledged if step not in found]
        if lost and reservations == "on":
            raise Violation(f"acknowledged with reservations, and lost: {lost}; there are {sorted(found)}")
        if len(lost) > 1:
            raise Violation(f"more than one acknowledged commit was lost: {lost}; there are {sorted(found)}")
        if lost and "owner" not in err:
            raise Violation(f"{lost} was lost, and the next opening did not report it: {err}")
        for step in lost:
            del self.acknowledged[step]
        for step in sorted(self.acknowledged)[-2:]:
            if not self.compare(host, reservations, step):
                lost.append(step)
        if len(lost) > 1:
            raise Violation(f"more than one acknowledged commit was lost or damaged: {lost}; there are {sorted(found)}")
        for step in sorted(found)[:-KEPT]:
            # After an instant without an end the last owner, of another host, still has its reservation.
            self.stanchion(host, reservations, "rm", f"run@{step}", "--yes", "--take-over", expect=0)
            self.acknowledged.pop(step, None)
        return lost

    def compare(self, host, reservations, step):
        folder = self.folder / f"restored-{step}"
        code, _, err = self.stanchion(host, reservations, "restore", f"run@{step}", "-o", str(folder))
        if code == DAMAGED and reservations == "off":
            # What the other host was writing landed in it; its checksums show it.
            del self.acknowledged[step]
            self.stanchion(host, reservations, "rm", f"run@{step}", "--yes", "--take-over", expect=0)
            return False
        if code != 0:
            raise Violation(f"restore of run@{step} on {host.name}, reservations {reservations}, ended with {code}: {err}")
        expected = hashlib.shake_128(f"{step}".encode()).digest(FILE_BYTES)
        if (folder / f"data-{step}").read_bytes() != expected:
            raise Violation(f"run@{step} has other bytes than were saved")
        os.unlink(folder / f"data-{step}")
        folder.rmdir()
        return True
