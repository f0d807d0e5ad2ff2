// SPDX-License-Identifier: Apache-2.0
//! Verification: every copy of the metadata on every drive, and every copy of the data.

use crate::drives::Drives;
use crate::error::Error;
use crate::format::{CatalogueEntry, FormatError, Label, MetaExtent, Root};
use crate::name::CheckpointName;
use crate::pool::handle::Pool;
use crate::pool::options::PoolMode;
use crate::pool::verify_data::DataPass;
use crate::pool::verify_report::{VerifyProgress, VerifyReport};
use crate::recover::labels::{read_labels, repair_labels};
use crate::recover::metadata::{self, Found, Subject, repair_metadata};
use crate::recover::newest::{catalogue_subject, decode_catalogue};
use crate::recover::roots::{read_roots, repair_roots};

impl Pool {
    /// Verifies one checkpoint, or all: every copy of its metadata and every copy of its data. With
    /// `repair`, in a pool that is open for writing, bad copies are rewritten from sound ones. If
    /// everything is sound then, rebuilding drives become full members again.
    ///
    /// # Errors
    /// When verification itself cannot continue. Damage is not an error: the report names it.
    pub fn verify(
        &self,
        name: Option<&CheckpointName>,
        repair: bool,
        progress: VerifyProgress<'_>,
    ) -> Result<VerifyReport, Error> {
        let entries: Vec<CatalogueEntry> = match name {
            Some(name) => vec![self.open.find(name)?.entry.clone()],
            None => self.open.context.state().checkpoints().map(|c| c.entry.clone()).collect(),
        };
        let repair = repair && self.open.context.mode == PoolMode::ReadWrite;
        let (label, root) = {
            let state = self.open.context.state();
            (state.label().clone(), state.root().clone())
        };
        let names: Vec<_> =
            entries.iter().map(|e| CheckpointName { name: e.name.clone(), step: e.step }).collect();
        let all_copies = |entry: &CatalogueEntry| entry.bytes * u64::from(label.copies);
        let total_bytes = entries.iter().map(all_copies).sum();
        let work = Metadata { label: label.clone(), root, entries, repair };
        let mut report = self.open.on_keeper(move |keeper| work.check(keeper.drives()))??;
        let mut data = DataPass::new(self, label, repair, &mut report)?;
        for name in &names {
            data.check(name, &mut |bytes| progress(bytes, total_bytes))?;
        }
        data.finish()?;
        report.checkpoints = names.len();
        if repair && name.is_none() && report.is_clean() {
            report.rebuilt = self.open.on_keeper(|keeper| keeper.finish_rebuilding())??;
        }
        Ok(report)
    }
}

/// The pass over the metadata; runs on the keeper's thread.
struct Metadata {
    label: Label,
    root: Root,
    entries: Vec<CatalogueEntry>,
    repair: bool,
}

impl Metadata {
    fn check(&self, drives: &mut dyn Drives) -> Result<VerifyReport, Error> {
        let mut report = VerifyReport::default();
        self.check_labels(drives, &mut report)?;
        let roots = read_roots(drives, &self.label)?;
        report.metadata_copies += 2 * self.label.live().count() as u64;
        report.take_notices(repair_roots(drives, &self.label, &roots, self.repair));
        let decode = decode_catalogue(&self.label, &self.root);
        let subject = catalogue_subject();
        self.check_object(drives, &self.root.catalogue, &subject, &decode, &mut report);
        for entry in &self.entries {
            let decode = metadata::decode_manifest(&self.label, entry);
            let subject = metadata::manifest_subject(entry);
            let manifest =
                self.check_object(drives, &entry.manifest, &subject, &decode, &mut report);
            let Some(manifest) = manifest else { continue };
            let subject = metadata::table_subject(entry);
            for (participant, segment) in manifest.segments.iter().enumerate() {
                let decode =
                    metadata::decode_table(&self.label, entry, &manifest, participant as u32);
                self.check_object(drives, &segment.table, &subject, &decode, &mut report);
            }
        }
        Ok(report)
    }

    fn check_labels(
        &self,
        drives: &mut dyn Drives,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let mut labels: Vec<_> = self.label.drives.iter().map(|_| None).collect();
        for drive in self.label.live() {
            labels[drive.as_usize()] = Some(read_labels(drives, drive.as_usize())?);
            report.metadata_copies += 4;
        }
        report.take_notices(repair_labels(drives, &labels, self.repair)?);
        Ok(())
    }

    /// Checks the copy of every drive.
    fn check_object<T>(
        &self,
        drives: &mut dyn Drives,
        extent: &MetaExtent,
        subject: &Subject,
        decode: &dyn Fn(&[u8]) -> Result<T, FormatError>,
        report: &mut VerifyReport,
    ) -> Option<T> {
        let Found { object, bad } =
            metadata::check_copies(drives, &self.label, extent, subject, decode);
        report.metadata_copies += self.label.live().count() as u64;
        let (object, bytes) = object.unzip();
        match bytes.filter(|_| self.repair) {
            Some(sound) => {
                report.take_notices(repair_metadata(drives, &bad, Some(&sound)));
            }
            None => report.damages.extend(bad.into_iter().map(|copy| copy.damage)),
        }
        object
    }
}
