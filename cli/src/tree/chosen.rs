// SPDX-License-Identifier: Apache-2.0
//! Which shards `--shard` chooses: by name, below a directory, or by a pattern.

use std::collections::HashMap;

use glob::Pattern;
use stanchion_engine::CheckpointName;

use super::path;
use crate::error::CommandError;
use crate::output::plain;

/// For each name, whether one of `wanted` chooses it. A name that exists, of a shard or of a
/// directory that shards lie in, is taken as that name, and otherwise as a pattern. What lies in a
/// chosen directory is chosen.
///
/// # Errors
/// When one of `wanted` chooses nothing, or is neither a name nor a pattern.
pub fn choose(
    checkpoint: &CheckpointName,
    names: &[&str],
    wanted: &[String],
) -> Result<Vec<bool>, CommandError> {
    if wanted.is_empty() {
        return Ok(vec![true; names.len()]);
    }
    let mut numbers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (number, name) in names.iter().enumerate() {
        for below in path::parents(name).chain([*name]) {
            numbers.entry(below).or_default().push(number);
        }
    }
    let mut chosen = vec![false; names.len()];
    for text in wanted {
        let exact = numbers.get(text.trim_end_matches('/'));
        let mut take = |matching: &Vec<usize>| matching.iter().for_each(|n| chosen[*n] = true);
        if let Some(matching) = exact.or_else(|| numbers.get(text.as_str())) {
            take(matching);
            continue;
        }
        let pattern = Pattern::new(text).map_err(|error| {
            CommandError::Usage(format!(
                "--shard {}: neither a shard of {checkpoint} nor a pattern: {error}",
                plain(text)
            ))
        })?;
        let mut found = false;
        for (_, matching) in numbers.iter().filter(|(name, _)| pattern.matches(name)) {
            take(matching);
            found = true;
        }
        if !found {
            return Err(CommandError::NotFound(format!(
                "no shard of {checkpoint} matches {}; `stanchion show {checkpoint}` lists them",
                plain(text)
            )));
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], wanted: &[&str]) -> Result<Vec<String>, String> {
        let checkpoint = CheckpointName::new("a", 1).unwrap();
        let wanted: Vec<String> = wanted.iter().map(|text| (*text).to_owned()).collect();
        let chosen = choose(&checkpoint, names, &wanted).map_err(|error| error.to_string())?;
        let names = names.iter().zip(chosen).filter(|(_, chosen)| *chosen);
        Ok(names.map(|(name, _)| (*name).to_owned()).collect())
    }

    #[test]
    fn names_come_before_patterns() {
        let names = ["1.bin", "[1].bin", "*", "d", "d/a", "d/e/b", "[x"];
        assert_eq!(chosen(&names, &["[1].bin"]).unwrap(), ["[1].bin"]);
        assert_eq!(chosen(&names, &["*"]).unwrap(), ["*"]);
        assert_eq!(chosen(&names, &["[x"]).unwrap(), ["[x"]);
        assert_eq!(chosen(&names, &["?.bin"]).unwrap(), ["1.bin"]);
        assert_eq!(chosen(&names, &["*bin"]).unwrap(), ["1.bin", "[1].bin"]);
        assert_eq!(chosen(&names, &["d"]).unwrap(), ["d", "d/a", "d/e/b"]);
        // No shard of its own, but others lie in it.
        assert_eq!(chosen(&names, &["d/e/"]).unwrap(), ["d/e/b"]);
        assert_eq!(chosen(&names, &["*e", "1.bin"]).unwrap(), ["1.bin", "d/e/b"]);
        assert_eq!(chosen(&names, &[]).unwrap().len(), names.len());
    }

    #[test]
    fn each_must_choose_something() {
        assert!(chosen(&["a"], &["a", "typo"]).unwrap_err().contains("matches typo"));
        assert!(chosen(&["a"], &["z*"]).unwrap_err().contains("no shard of a@1 matches z*"));
        assert!(chosen(&["a"], &["[z"]).unwrap_err().contains("nor a pattern"));
    }
}
