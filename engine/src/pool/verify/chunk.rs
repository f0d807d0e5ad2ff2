// SPDX-License-Identifier: Apache-2.0
//! One chunk's way through a verification: which of its copies is read or written next. Pure.
//!
//! - Each wanted copy is read once, unless it is known to be missing.
//! - A bad or missing copy is written from the buffer when that holds verified bytes; otherwise
//!   another copy is read first. A copy that is not wanted is read only for that.
//! - Whatever reads and writes give, it ends: a copy is written at most once.

/// What is known of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copy {
    /// There is none, or its drive does not take part.
    None,
    Unread,
    /// Its drive is new: it was never written.
    Missing,
    Sound,
    Bad,
    /// It was written again.
    Mended,
    /// It could not be written.
    Stuck,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Read(usize),
    Write(usize),
    Done,
}

/// What became of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is sound, or no one needed to know.
    Fine,
    Mended,
    /// It is bad or missing.
    Damaged,
}

/// How to begin with a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begin {
    /// There is none, or its drive does not take part.
    Absent,
    /// Read it only if another copy needs it.
    Spare,
    /// Check it.
    Check,
    /// Write it without a look; only where there is another copy.
    Missing,
}

/// One chunk.
#[derive(Clone, Debug)]
pub(crate) struct ChunkCheck {
    copies: [Copy; 2],
    wanted: [bool; 2],
    repair: bool,
    /// The buffer holds the chunk's bytes, verified.
    in_buffer: bool,
}

impl ChunkCheck {
    /// With `repair`, bad copies are written again.
    pub(crate) fn new(begin: [Begin; 2], repair: bool) -> ChunkCheck {
        let copies = begin.map(|begin| match begin {
            Begin::Absent => Copy::None,
            Begin::Spare | Begin::Check => Copy::Unread,
            Begin::Missing => Copy::Missing,
        });
        let wanted = begin.map(|begin| matches!(begin, Begin::Check | Begin::Missing));
        ChunkCheck { copies, wanted, repair, in_buffer: false }
    }

    /// How many copies are checked.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.iter().filter(|wanted| **wanted).count() as u64
    }

    /// What to do next.
    pub(crate) fn next(&self) -> Step {
        let find = |is: &dyn Fn(usize) -> bool| (0..2).find(|copy| is(*copy));
        if let Some(copy) = find(&|copy| self.wanted[copy] && self.copies[copy] == Copy::Unread) {
            return Step::Read(copy);
        }
        let is_target = |copy: usize| {
            self.wanted[copy] && matches!(self.copies[copy], Copy::Bad | Copy::Missing)
        };
        let Some(target) = find(&is_target).filter(|_| self.repair) else { return Step::Done };
        if self.in_buffer {
            return Step::Write(target);
        }
        let source = find(&|copy| matches!(self.copies[copy], Copy::Sound | Copy::Unread));
        source.map_or(Step::Done, Step::Read)
    }

    /// A copy was read, and its bytes are right or not.
    pub(crate) fn was_read(&mut self, copy: usize, sound: bool) {
        self.copies[copy] = if sound { Copy::Sound } else { Copy::Bad };
        self.in_buffer = sound;
    }

    /// A copy was written, or could not be.
    pub(crate) fn was_written(&mut self, copy: usize, written: bool) {
        self.copies[copy] = if written { Copy::Mended } else { Copy::Stuck };
    }

    /// Whether the bytes of a bad copy were there, and it could not be written.
    pub(super) fn could_be_mended(&self, copy: usize) -> bool {
        self.copies[copy] == Copy::Stuck
    }

    /// What became of a copy, when nothing is left to do.
    pub(crate) fn verdict(&self, copy: usize) -> Verdict {
        match self.copies[copy] {
            Copy::None | Copy::Unread | Copy::Sound => Verdict::Fine,
            Copy::Mended => Verdict::Mended,
            Copy::Missing | Copy::Bad | Copy::Stuck => Verdict::Damaged,
        }
    }
}

/// Whether the copies on a drive that is being rebuilt are looked at before they are written. A
/// drive that comes back has most of them, a new one has none; a rebuilding that was interrupted
/// left a part.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Presence {
    bad_in_a_row: u32,
    since_a_look: u32,
}

impl Presence {
    /// After so many bad copies the next ones count as missing.
    const BAD: u32 = 32;
    /// One in so many is looked at all the same.
    const SAMPLE: u32 = 64;

    /// Whether the next copy counts as missing.
    pub(super) fn is_missing(&mut self) -> bool {
        if self.bad_in_a_row < Presence::BAD {
            return false;
        }
        self.since_a_look = (self.since_a_look + 1) % Presence::SAMPLE;
        self.since_a_look != 0
    }

    /// A copy was looked at.
    pub(super) fn saw(&mut self, sound: bool) {
        let next = (self.bad_in_a_row + 1).min(Presence::BAD);
        self.bad_in_a_row = if sound { 0 } else { next };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a check over copies that are sound or not, and drives that take writes or not. Returns
    /// what was done.
    fn run(check: &mut ChunkCheck, sound: [bool; 2], writable: [bool; 2]) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut buffer_is_right = false;
        let mut sound = sound;
        loop {
            let step = check.next();
            if step == Step::Done {
                return steps;
            }
            steps.push(step);
            assert!(steps.len() < 10, "it does not end: {steps:?}");
            match step {
                Step::Read(copy) => {
                    buffer_is_right = sound[copy];
                    check.was_read(copy, sound[copy]);
                }
                Step::Write(copy) => {
                    assert!(buffer_is_right, "unverified bytes were written: {steps:?}");
                    assert!(!sound[copy], "a sound copy was written: {steps:?}");
                    sound[copy] |= writable[copy];
                    check.was_written(copy, writable[copy]);
                }
                Step::Done => {}
            }
        }
    }

    use Begin::{Absent, Check, Missing, Spare};
    use Step::{Read, Write};

    #[test]
    fn reads_each_copy_once_and_writes_a_bad_one() {
        let steps = |begin, sound| run(&mut ChunkCheck::new(begin, true), sound, [true; 2]);
        assert_eq!(steps([Check, Check], [true, true]), [Read(0), Read(1)]);
        assert_eq!(steps([Check, Check], [false, true]), [Read(0), Read(1), Write(0)]);
        assert_eq!(steps([Check, Check], [true, false]), [Read(0), Read(1), Read(0), Write(1)]);
        assert_eq!(steps([Check, Check], [false, false]), [Read(0), Read(1)]);
        assert_eq!(steps([Check, Absent], [false, true]), [Read(0)]);
        assert_eq!(steps([Spare, Check], [true, true]), [Read(1)], "the source is not needed");
        assert_eq!(steps([Spare, Check], [true, false]), [Read(1), Read(0), Write(1)]);
        assert_eq!(steps([Spare, Missing], [true, false]), [Read(0), Write(1)]);
        assert_eq!(steps([Spare, Missing], [false, false]), [Read(0)]);
    }

    #[test]
    fn without_repair_nothing_is_written() {
        let mut check = ChunkCheck::new([Check, Check], false);
        assert_eq!(run(&mut check, [false, true], [true; 2]), [Read(0), Read(1)]);
        assert_eq!([check.verdict(0), check.verdict(1)], [Verdict::Damaged, Verdict::Fine]);
    }

    proptest! {
        #[test]
        fn it_ends_and_every_copy_that_can_be_mended_is(
            begin in prop::array::uniform2(0..4_usize),
            sound in prop::array::uniform2(any::<bool>()),
            writable in prop::array::uniform2(any::<bool>()),
            repair in any::<bool>(),
        ) {
            let begin = begin.map(|number| [Absent, Spare, Check, Missing][number]);
            // Missing is only said of a copy that is not there, with repair.
            let sound = [0, 1].map(|copy| sound[copy] && begin[copy] != Missing);
            prop_assume!(repair || !begin.contains(&Missing));
            let mut check = ChunkCheck::new(begin, repair);
            run(&mut check, sound, writable);
            for copy in 0..2 {
                let other = 1 - copy;
                let wanted = matches!(begin[copy], Check | Missing);
                let has_source = begin[other] != Absent && sound[other];
                let expected = match (wanted, sound[copy]) {
                    (true, false) if repair && has_source && writable[copy] => Verdict::Mended,
                    (true, false) => Verdict::Damaged,
                    (true, true) => Verdict::Fine,
                    // Whether it was read depends on the other one.
                    (false, _) => check.verdict(copy),
                };
                prop_assert_eq!(check.verdict(copy), expected);
            }
        }
    }

    #[test]
    fn a_new_drive_is_soon_written_without_a_look_and_a_returning_one_is_looked_at() {
        let mut new = Presence::default();
        let mut looked = 0;
        for _ in 0..10_000 {
            if !new.is_missing() {
                looked += 1;
                new.saw(false);
            }
        }
        assert!(looked < 32 + 2 * 10_000 / 64, "{looked}");
        let mut returning = Presence::default();
        for copy in 0..10_000 {
            assert!(!returning.is_missing());
            returning.saw(copy % 10 != 0);
        }
        // Where it turns out that copies are there, all are looked at again.
        let found = (0..1000).find(|_| !new.is_missing());
        assert!(found.is_some());
        new.saw(true);
        assert!((0..32).all(|_| !new.is_missing()));
    }
}
