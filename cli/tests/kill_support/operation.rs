// SPDX-License-Identifier: Apache-2.0
//! What is killed: operations of one or more steps, each step one run of the command.

use super::model::Files;
use super::{Numbers, Test};

/// One run of the command that changes the pool.
pub enum Step {
    /// All or nothing.
    Save { name: String, files: Files },
    /// One commit a name, in the order of the names, in one process.
    Remove { names: Vec<String> },
    /// Needs `force` where checkpoints are destroyed.
    Format { force: bool },
}

/// Steps, one after the other.
pub struct Operation(pub Vec<Step>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    SaveSmall,
    SaveMedium,
    SaveLarge,
    Remove,
    RemoveSeveral,
    /// A new one is saved, then the oldest is removed.
    Replace,
    /// On drives that hold no pool; over the kernel, on files that do not exist.
    FormatFirst,
    FormatOver,
}

impl Kind {
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::SaveSmall,
        Kind::SaveMedium,
        Kind::SaveLarge,
        Kind::Remove,
        Kind::RemoveSeveral,
        Kind::Replace,
        Kind::FormatFirst,
        Kind::FormatOver,
    ];
    pub const COUNT: usize = 8;

    pub fn draw(numbers: &mut Numbers) -> Kind {
        // By weight, in percent: saves and what replaces are what a trainer does.
        const WEIGHTS: [u64; Kind::COUNT] = [16, 16, 14, 12, 10, 14, 9, 9];
        let mut drawn = numbers.between(0, WEIGHTS.iter().sum::<u64>() - 1);
        for (kind, weight) in Kind::ALL.into_iter().zip(WEIGHTS) {
            if drawn < weight {
                return kind;
            }
            drawn -= weight;
        }
        Kind::SaveSmall
    }
}

impl Test {
    /// Brings the pool into the state that an operation of this kind needs, and draws the
    /// operation.
    pub fn prepare(&mut self, kind: Kind) -> Operation {
        if kind == Kind::FormatFirst {
            self.rig.blank();
            self.model.forget_pool();
            return Operation(vec![Step::Format { force: false }]);
        }
        if !self.model.is_formatted() {
            self.make_pool(false);
        }
        match kind {
            Kind::SaveSmall => Operation(vec![self.save(self.plan.small_bytes)]),
            Kind::SaveMedium => Operation(vec![self.save(self.plan.medium_bytes)]),
            Kind::SaveLarge => {
                Operation(vec![self.save((self.plan.large_bytes, self.plan.large_bytes))])
            }
            Kind::Remove => {
                self.have_checkpoints(1);
                Operation(vec![Step::Remove { names: self.draw_names(1) }])
            }
            Kind::RemoveSeveral => {
                self.have_checkpoints(3);
                Operation(vec![Step::Remove { names: self.draw_names(3) }])
            }
            Kind::Replace => {
                self.have_checkpoints(1);
                let save = self.save(self.plan.medium_bytes);
                // Making room for it may have taken the last one.
                self.have_checkpoints(1);
                Operation(vec![save, Step::Remove { names: vec![self.model.oldest()] }])
            }
            Kind::FormatOver => {
                self.have_checkpoints(2);
                Operation(vec![Step::Format { force: true }])
            }
            Kind::FormatFirst => unreachable!("handled above"),
        }
    }

    /// A save of this many bytes in one to three files. Older checkpoints are removed to make room.
    fn save(&mut self, (low, high): (u64, u64)) -> Step {
        let len_bytes = self.numbers.between(low, high);
        while self.model.free_bytes() < len_bytes {
            let names = vec![self.model.oldest()];
            self.perform(&Operation(vec![Step::Remove { names }]), None);
        }
        let name = self.new_name("model");
        let count = self.numbers.between(1, 3);
        let mut lengths = vec![len_bytes / count; count as usize];
        lengths[0] += len_bytes % count;
        self.rig.forget_files(self.model.checkpoints().map(|(name, _)| name));
        let files = self.rig.make_files(&name, &lengths, &mut self.numbers);
        Step::Save { name, files }
    }

    fn have_checkpoints(&mut self, count: usize) {
        while self.model.checkpoints().count() < count {
            let save = self.save(self.plan.small_bytes);
            self.perform(&Operation(vec![save]), None);
        }
    }

    /// Different names, in the order in which the command removes them.
    fn draw_names(&mut self, count: usize) -> Vec<String> {
        let mut all: Vec<String> = self.model.checkpoints().map(|(name, _)| name.clone()).collect();
        let drawn = (0..count).map(|_| {
            let at = self.numbers.between(0, all.len() as u64 - 1);
            all.swap_remove(at as usize)
        });
        let mut drawn: Vec<String> = drawn.collect();
        drawn.sort_by_key(|name| super::model::step_of(name));
        drawn
    }
}
