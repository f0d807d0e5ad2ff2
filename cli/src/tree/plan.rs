// SPDX-License-Identifier: Apache-2.0
//! What a restore writes, in which order. Names and targets come from a drive: all of them are
//! checked before anything is written.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use stanchion_engine::{CheckpointName, SegmentInfo, Shard};

use super::chosen::choose;
use super::entry::{Entry, Kind};
use super::path;
use super::target::Target;
use crate::error::CommandError;
use crate::output::plain;

/// What a restore writes. Paths are below the output directory.
#[derive(Default, Debug)]
pub struct Plan {
    /// Directories, each before what is in it, with what they were if that is known.
    pub directories: Vec<(String, Option<Entry>)>,
    /// Files, by participant and offset.
    pub files: Vec<Target>,
    /// Links, by path.
    pub links: Vec<Target>,
}

impl Plan {
    /// Of the shards that `wanted` chooses, or of all. Where participants have shards of the same
    /// name, those of participant N lie in `rankN`.
    ///
    /// # Errors
    /// [`CommandError::Refused`] for a shard that cannot be a file below a directory, and for two
    /// that cannot be there together; [`CommandError::NotFound`] when there is none.
    pub fn new(
        checkpoint: &CheckpointName,
        segments: &[SegmentInfo],
        wanted: &[String],
    ) -> Result<Plan, CommandError> {
        let all = || segments.iter().flat_map(|segment| &segment.shards);
        let names: Vec<&str> = all().map(|shard| shard.name.as_str()).collect();
        let is_unique = names.iter().collect::<HashSet<_>>().len() == names.len();
        let mut chosen = choose(checkpoint, &names, wanted)?.into_iter();
        let mut plan = Plan::default();
        let mut found = BTreeMap::new();
        for segment in segments {
            let directories: HashMap<&str, &Shard> =
                segment.shards.iter().map(|shard| (shard.name.as_str(), shard)).collect();
            let prefix = match is_unique {
                true => String::new(),
                false => format!("rank{}/", segment.participant),
            };
            for shard in &segment.shards {
                if !chosen.next().unwrap_or(false) {
                    continue;
                }
                let target = target(checkpoint, segment.participant, shard, &prefix)?;
                for parent in path::parents(&target.path) {
                    let known = parent.strip_prefix(&prefix).and_then(|n| directories.get(n));
                    let entry = known.and_then(|shard| Entry::of(&shard.attributes).ok());
                    let entry = entry.filter(|entry| entry.kind == Kind::Directory);
                    found.entry(parent.to_owned()).or_insert(Item::Directory(entry));
                }
                plan.add(checkpoint, target, &mut found)?;
            }
        }
        if plan.files.is_empty() && plan.links.is_empty() && found.is_empty() {
            return Err(CommandError::NotFound(format!(
                "{checkpoint} has no shards, so there is no file to restore"
            )));
        }
        plan.links.sort_by(|one, other| one.path.cmp(&other.path));
        plan.check_parents(checkpoint, &found)?;
        let directories = found.into_iter().filter_map(|(path, item)| match item {
            Item::Directory(entry) => Some((path, entry)),
            Item::Other => None,
        });
        plan.directories = directories.collect();
        Ok(plan)
    }

    /// Bytes of all files.
    pub fn data_bytes(&self) -> u64 {
        self.files.iter().map(|target| target.end_bytes - target.start_bytes).sum()
    }

    /// The paths of files and links.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().chain(&self.links).map(|target| target.path.as_str())
    }

    fn add(
        &mut self,
        checkpoint: &CheckpointName,
        target: Target,
        found: &mut BTreeMap<String, Item>,
    ) -> Result<(), CommandError> {
        if target.entry.kind == Kind::Directory {
            // One that was found as a parent is known by now, too.
            let known = found.insert(target.path.clone(), Item::Directory(Some(target.entry)));
            return match known {
                Some(Item::Other) => Err(both(checkpoint, &target.path)),
                _ => Ok(()),
            };
        }
        if found.insert(target.path.clone(), Item::Other).is_some() {
            return Err(both(checkpoint, &target.path));
        }
        match target.entry.kind {
            Kind::Link(_) => self.links.push(target),
            _ => self.files.push(target),
        }
        Ok(())
    }

    /// Nothing lies below a file or a link: it would be written through the link.
    fn check_parents(
        &self,
        checkpoint: &CheckpointName,
        found: &BTreeMap<String, Item>,
    ) -> Result<(), CommandError> {
        let below = found.keys().flat_map(|name| path::parents(name));
        let mut wrong = below.filter(|parent| matches!(found.get(*parent), Some(Item::Other)));
        wrong.next().map_or(Ok(()), |parent| Err(both(checkpoint, parent)))
    }
}

/// What a path is.
enum Item {
    Directory(Option<Entry>),
    /// A file or a link.
    Other,
}

fn target(
    checkpoint: &CheckpointName,
    participant: u32,
    shard: &Shard,
    prefix: &str,
) -> Result<Target, CommandError> {
    let refused = |why: &str| {
        CommandError::Refused(format!(
            "shard \"{}\" of {checkpoint} cannot be a file below the output directory: {why}; pass \
             --shard to restore the others",
            plain(&shard.name)
        ))
    };
    path::check(&shard.name).map_err(refused)?;
    let entry = Entry::of(&shard.attributes).map_err(|why| refused(&why))?;
    if entry.kind != Kind::File && shard.len_bytes > 0 {
        return Err(refused("it is a directory or a link, and has bytes"));
    }
    if let Kind::Link(to) = &entry.kind
        && !path::stays_inside(to, path::part_count(&shard.name) - 1)
    {
        let to = plain(&String::from_utf8_lossy(to));
        return Err(refused(&format!("it is a link to \"{to}\", which may lead out of it")));
    }
    Ok(Target {
        participant,
        start_bytes: shard.offset_bytes,
        end_bytes: shard.offset_bytes + shard.len_bytes,
        path: format!("{prefix}{}", shard.name),
        entry,
    })
}

fn both(checkpoint: &CheckpointName, path: &str) -> CommandError {
    CommandError::Refused(format!(
        "\"{}\" of {checkpoint} is a file or a link, and a directory, too; pass --shard to restore \
         one of them",
        plain(path)
    ))
}

/// A path below the output directory, for messages.
pub fn shown(output: &Path, path: &str) -> String {
    plain(&output.join(path).to_string_lossy())
}
