// SPDX-License-Identifier: Apache-2.0
//! Whether a checkpoint that a reader read is still one of the two newest generations'.
//!
//! A reader keeps no writer out, so what it reads may be removed and written over meanwhile. Space
//! is written only when neither of the two newest generations names it. So what was read before
//! this look is whole if one of them still has the checkpoint; otherwise nothing of it counts.

use crate::drives::Drives;
use crate::error::Error;
use crate::format::{CatalogueEntry, Label, Root};
use crate::recover::metadata;
use crate::recover::newest::{catalogue_subject, decode_catalogue};
use crate::recover::roots::read_roots;
use crate::units::Generation;

/// How often the owner may have gone on while a catalogue was read.
const ATTEMPTS: u32 = 16;

/// Whether the checkpoint is in one of the two newest generations. `root` is that of the generation
/// in which the reader found it.
pub(crate) fn is_current(
    drives: &mut dyn Drives,
    label: &Label,
    root: &Root,
    entry: &CatalogueEntry,
) -> Result<bool, Error> {
    for _ in 0..ATTEMPTS {
        let roots = read_roots(drives, label)?;
        // Without a root the drives were formatted.
        let Some(newest) = roots.newest().cloned() else {
            return Ok(false);
        };
        if newest.id() == root.id() || newest.parent == root.id() {
            return Ok(true);
        }
        let parent = roots.parent_of(&newest);
        let mut is_certain = true;
        for kept in [Some(&newest), parent].into_iter().flatten() {
            match has(drives, label, kept, entry) {
                Some(true) => return Ok(true),
                Some(false) => {}
                None => is_certain = false,
            }
        }
        if is_certain {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Whether a generation has the checkpoint; `None` when its catalogue cannot be read: the owner may
/// have written over it.
fn has(
    drives: &mut dyn Drives,
    label: &Label,
    root: &Root,
    entry: &CatalogueEntry,
) -> Option<bool> {
    let decode = decode_catalogue(label, root);
    let first = root.generation.0 as usize;
    let subject = catalogue_subject();
    let found = metadata::read_object(drives, label, &root.catalogue, first, &subject, &decode);
    let (catalogue, _) = found.object?;
    Some(catalogue.entries.iter().any(|other| other.id == entry.id))
}

/// What the root rings hold, to see whether an owner has written meanwhile.
#[derive(PartialEq, Eq)]
pub(crate) struct Rings {
    newest: Option<(Generation, [u8; 16])>,
    bad: Vec<u64>,
}

/// Reads what the rings hold now.
pub(crate) fn rings(drives: &mut dyn Drives, label: &Label) -> Result<Rings, Error> {
    let roots = read_roots(drives, label)?;
    let newest = roots.newest();
    Ok(Rings {
        newest: newest.map(|root| (root.generation, root.id())),
        bad: roots.bad.iter().map(|bad| bad.offset_bytes).collect(),
    })
}
