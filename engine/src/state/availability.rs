// SPDX-License-Identifier: Apache-2.0
//! How much of a checkpoint's data is on the drives that are present. Pure.

use std::collections::BTreeMap;

use crate::format::{DriveState, Label, TableRef};
use crate::units::{Copies, DriveIndex};

/// Whether a checkpoint's data can be read from the drives that take part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// Every chunk is there, in as many copies as the pool was made for.
    Whole,
    /// Every chunk is there, but some in one copy only.
    OneCopy,
    /// Some chunks are only on drives that are missing.
    Lost {
        /// How many.
        chunks: u64,
        /// Serials of the drives that have them.
        drives: Vec<String>,
    },
    /// It is not known: its metadata cannot be read, or some chunks are only on drives that are
    /// being rebuilt. A restore shows whether they are right.
    Unknown,
}

/// How many chunks of a checkpoint lie on which drives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spread(BTreeMap<(DriveIndex, Option<DriveIndex>), u64>);

impl Spread {
    pub(crate) fn add(&mut self, copies: Copies) {
        let drives = (copies.first.drive, copies.second.map(|second| second.drive));
        *self.0.entry(drives).or_default() += 1;
    }

    /// Chunks whose table is only on drives that do not take part: they can be found with one of
    /// these only.
    pub(crate) fn add_unreachable(&mut self, table: &TableRef, chunks: u64) {
        let mut drives = table.copies().filter_map(|runs| runs.first()).map(|run| run.drive);
        if let Some(first) = drives.next() {
            *self.0.entry((first, drives.next())).or_default() += chunks;
        }
    }

    /// What the members hold of it, by the label.
    pub(crate) fn availability(&self, label: &Label) -> Availability {
        let entry = |drive: DriveIndex| &label.drives[drive.as_usize()];
        let holds = |drive: &DriveIndex| entry(*drive).state == DriveState::Member;
        let (mut lost, mut drives) = (0, Vec::new());
        let (mut any_thin, mut any_unknown) = (false, false);
        for ((first, second), chunks) in &self.0 {
            let places: Vec<DriveIndex> = std::iter::once(*first).chain(*second).collect();
            match places.iter().filter(|drive| holds(drive)).count() {
                0 if places.iter().any(|d| entry(*d).state == DriveState::Rebuilding) => {
                    any_unknown = true;
                }
                0 => {
                    lost += chunks;
                    drives.extend(places.into_iter().map(|drive| entry(drive).serial.clone()));
                }
                sound => any_thin |= sound < usize::from(label.copies),
            }
        }
        if lost > 0 {
            drives.sort();
            drives.dedup();
            return Availability::Lost { chunks: lost, drives };
        }
        match (any_unknown, any_thin) {
            (true, _) => Availability::Unknown,
            (false, true) => Availability::OneCopy,
            (false, false) => Availability::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::mirror_label;
    use crate::units::Location;

    #[test]
    fn a_chunk_is_there_while_one_of_its_drives_is() {
        use DriveState::{Absent, Member, Rebuilding};
        let at = |drive| Location { drive: DriveIndex(drive), slot: 0 };
        let mut spread = Spread::default();
        assert_eq!(
            spread.availability(&mirror_label(&[Absent, Member, Member])),
            Availability::Whole
        );
        spread.add(Copies { first: at(0), second: Some(at(1)) });
        spread.add(Copies { first: at(1), second: Some(at(2)) });
        let availability = |states| spread.availability(&mirror_label(states));
        assert_eq!(availability(&[Member, Member, Member]), Availability::Whole);
        assert_eq!(availability(&[Absent, Member, Member]), Availability::OneCopy);
        assert_eq!(availability(&[Rebuilding, Member, Member]), Availability::OneCopy);
        assert_eq!(availability(&[Member, Absent, Rebuilding]), Availability::Unknown);
        let drives = vec!["S1".to_owned(), "S2".to_owned()];
        assert_eq!(
            availability(&[Absent, Absent, Member]),
            Availability::Lost { chunks: 1, drives }
        );
        spread.add(Copies::one(at(2)));
        assert_eq!(
            spread.availability(&mirror_label(&[Member, Member, Member])),
            Availability::OneCopy
        );
    }
}
