//! The commit: the order in which a new generation reaches the drives. Pure; the drives are a trait.
//!
//! 1. Metadata (segment tables, manifests, the whole catalogue) to every drive. Data chunks were
//!    written and completed before. "Every drive" means each that the label does not call absent.
//! 2. Flush every drive. From here on everything that the new root names is durable everywhere.
//! 3. The root's front copy to every drive, durable when it completes.
//! 4. The root's back copy likewise.
//!
//! Each step starts only after the one before succeeded on every drive. A root on any drive
//! therefore means that all it names is durable on all drives, which is why one valid root is
//! enough evidence at recovery. A failure in step 1 leaves the pool as it was. After a failure in
//! steps 2 to 4 nobody knows what is durable: the pool refuses writes until it is opened again.

use crate::drives::{DriveCommand, Drives, flush_all, run_all};
use crate::error::Error;
use crate::format::{Label, Root, Zone};
use crate::planted::{Bug, planted};
use crate::units::DriveIndex;

/// Bytes that go to the same place on every drive: whole blocks.
#[derive(Clone, Debug)]
pub(crate) struct MetaWrite {
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Everything that makes one generation.
#[derive(Clone, Debug)]
pub(crate) struct CommitPlan {
    pub(crate) root: Root,
    pub(crate) metadata: Vec<MetaWrite>,
    /// Says which drives take part.
    pub(crate) label: Label,
}

/// How far a commit came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Metadata,
    Flush,
    Root,
}

/// A commit that failed.
#[derive(Debug)]
pub(crate) struct CommitFailure {
    pub(crate) stage: Stage,
    pub(crate) error: Error,
}

impl CommitFailure {
    /// What the pool must be poisoned with: `None` when the failure left it as it was.
    pub(crate) fn poison(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Metadata => None,
            Stage::Flush => Some("flush"),
            Stage::Root => Some("root write"),
        }
    }
}

impl CommitPlan {
    /// Carries the plan out.
    pub(crate) fn run(&self, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
        if planted(Bug::RootFirst) {
            self.write_roots(drives, Zone::Front)?;
        }
        self.write_metadata(drives)?;
        if !planted(Bug::SkipFlush) {
            self.flush(drives)?;
        }
        self.write_roots(drives, Zone::Front)?;
        self.write_roots(drives, Zone::Back)
    }

    fn write_metadata(&self, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
        let mut batch = Vec::new();
        for write in &self.metadata {
            batch.extend(self.label.live().map(|drive| DriveCommand::Write {
                drive,
                offset_bytes: write.offset_bytes,
                data: &write.bytes,
                durable: false,
            }));
        }
        run_all(drives, &mut batch).map_err(|error| CommitFailure { stage: Stage::Metadata, error })
    }

    fn flush(&self, drives: &mut dyn Drives) -> Result<(), CommitFailure> {
        flush_all(drives, self.label.live())
            .map_err(|error| CommitFailure { stage: Stage::Flush, error })
    }

    fn write_roots(&self, drives: &mut dyn Drives, zone: Zone) -> Result<(), CommitFailure> {
        let roots: Vec<(DriveIndex, u64, Vec<u8>)> = self
            .label
            .live()
            .map(|index| {
                let drive = &self.label.drives[index.as_usize()];
                let layout = &self.label.layout;
                let generation = self.root.generation;
                let offset = layout.root_offset(zone, generation, drive.capacity_bytes);
                (index, offset, self.root.encode(drive.uuid, offset))
            })
            .collect();
        let mut batch: Vec<_> = roots
            .iter()
            .map(|(drive, offset_bytes, data)| DriveCommand::Write {
                drive: *drive,
                offset_bytes: *offset_bytes,
                data,
                durable: true,
            })
            .collect();
        run_all(drives, &mut batch).map_err(|error| CommitFailure { stage: Stage::Root, error })
    }
}
