// SPDX-License-Identifier: Apache-2.0
//! The newest whole generation: the newest root whose catalogue can be read.

use crate::drives::Drives;
use crate::error::Error;
use crate::format::{Catalogue, FormatError, Label, Root};
use crate::recover::metadata::{self, BadCopy, Found, Subject};
use crate::recover::roots::{Roots, root_damage};
use crate::units::Generation;

/// The newest whole generation.
pub(crate) struct Newest {
    pub(crate) root: Root,
    pub(crate) catalogue: Catalogue,
    /// The newest generation of which a trace was found.
    pub(crate) newest_seen: Generation,
    /// The generation before `root`, if its root is still there.
    pub(crate) before: Option<Generation>,
    /// Copies of the catalogue that are bad.
    pub(crate) bad: Vec<BadCopy>,
    /// The generation that was given up because its catalogue cannot be read, if any.
    pub(crate) given_up: Option<Generation>,
}

/// Chooses the generation to open.
pub(crate) fn choose_generation(
    drives: &mut dyn Drives,
    label: &Label,
    roots: &Roots,
) -> Result<Newest, Error> {
    let Some(newest) = roots.by_generation.values().next_back() else {
        let mut damage = root_damage("", 0, "no drive of the pool holds a valid root".into());
        damage.offset_bytes = None;
        return Err(damage.into());
    };
    let newest_seen = newest.generation;
    // By identity, not by number: numbers of generations that were given up may lie between.
    let parent_of = |root: &Root| {
        let mut older = roots.by_generation.range(..root.generation).rev();
        older.find(|(_, other)| other.id() == root.parent).map(|(_, other)| other)
    };
    let mut bad = Vec::new();
    // Only these two are protected from reuse.
    for root in [Some(newest), parent_of(newest)].into_iter().flatten() {
        let found = read_catalogue(drives, label, root);
        if let Some((catalogue, _)) = found.object {
            bad.extend(found.bad);
            let given_up = (root.generation != newest_seen).then_some(newest_seen);
            let before = parent_of(root).map(|before| before.generation);
            let root = root.clone();
            return Ok(Newest { root, catalogue, newest_seen, before, bad, given_up });
        }
        metadata::unread(drives, &found.bad)?;
        bad.extend(found.bad);
    }
    let first = bad.into_iter().next().map(|copy| copy.damage);
    Err(first.unwrap_or_else(|| root_damage("", 0, "no catalogue".into())).into())
}

/// The catalogue that a root names, from any drive.
fn read_catalogue(drives: &mut dyn Drives, label: &Label, root: &Root) -> Found<Catalogue> {
    let first = root.generation.0 as usize;
    let decode = decode_catalogue(label, root);
    let subject = catalogue_subject();
    let mut found = metadata::read_object(drives, label, &root.catalogue, first, &subject, &decode);
    found.bad.iter_mut().for_each(|copy| copy.damage.generation = Some(root.generation));
    found
}

pub(crate) fn catalogue_subject() -> Subject {
    Subject { what: "catalogue", checkpoint: None }
}

pub(crate) fn decode_catalogue(
    label: &Label,
    root: &Root,
) -> impl Fn(&[u8]) -> Result<Catalogue, FormatError> {
    move |bytes| {
        let catalogue = Catalogue::decode(bytes, &root.catalogue, label.pool)?;
        catalogue.validate(root, &label.layout)?;
        Ok(catalogue)
    }
}
