// SPDX-License-Identifier: Apache-2.0
//! The newest whole generation: the newest root whose catalogue can be read.
//!
//! A sound catalogue of the same generation and another hash in the place of the newest one does
//! not make the generation before it safe to open unasked. It may be that of a successor whose
//! opening was interrupted after a late root had landed: then nothing is lost. It may as well be
//! older than the root, of an opening that was interrupted before, and the drive forgot the
//! catalogue of a commit that was acknowledged: then that commit would vanish in silence. A
//! catalogue has no epoch, so both leave the same bytes.

use crate::drives::Drives;
use crate::error::{Damage, Error};
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
    /// What was given up: a generation whose catalogue cannot be read, or one whose root may be in
    /// a place that cannot be read.
    pub(crate) given_up: Option<GivenUp>,
}

/// Why the generation is not the newest one.
pub(crate) struct GivenUp {
    /// Where it is certain that there was one.
    pub(crate) lost: Generation,
    pub(crate) damage: Damage,
}

/// Chooses the generation to open. Whether it may be opened is for the caller to say, if it is not
/// the newest one.
pub(crate) fn choose_generation(
    drives: &mut dyn Drives,
    label: &Label,
    roots: &Roots,
) -> Result<Newest, Error> {
    let Some(newest) = roots.newest() else {
        let mut damage = root_damage("", 0, "no drive of the pool holds a valid root".into());
        damage.offset_bytes = None;
        return Err(roots.bad.first().map_or(damage, |bad| bad.damage.clone()).into());
    };
    let hidden = || {
        let lost = newest.generation.next();
        roots.hidden.clone().map(|damage| GivenUp { lost, damage })
    };
    let mut bad = Vec::new();
    // Only these two are protected from reuse.
    for root in [Some(newest), roots.parent_of(newest)].into_iter().flatten() {
        let found = read_catalogue(drives, label, root);
        if let Some((catalogue, _)) = found.object {
            let unreadable = bad.first().map(|copy: &BadCopy| GivenUp {
                lost: newest.generation,
                damage: copy.damage.clone(),
            });
            bad.extend(found.bad);
            let before = roots.parent_of(root).map(|before| before.generation);
            let root = root.clone();
            let given_up = unreadable.or_else(hidden);
            let newest_seen = roots.newest_seen;
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
