// SPDX-License-Identifier: Apache-2.0
//! The name of a checkpoint: `NAME@STEP`.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::limits::MAX_NAME_BYTES;

/// `NAME@STEP`. Ordered by name, then by step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CheckpointName {
    /// Letters, digits, `-`, `_`, `.`, `/`, `+`, `:`, `=`; starts with a letter or a digit.
    pub name: String,
    /// The training step.
    pub step: u64,
}

impl CheckpointName {
    /// A checked name.
    ///
    /// # Errors
    /// [`Error::Usage`] that states the allowed characters.
    pub fn new(name: &str, step: u64) -> Result<CheckpointName, Error> {
        check_base_name(name)?;
        Ok(CheckpointName { name: name.to_owned(), step })
    }
}

/// Checks the part before the `@`.
///
/// # Errors
/// [`Error::Usage`] that states the allowed characters.
pub fn check_base_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_alphanumeric() || "-_./+:=".contains(c);
    let good = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.starts_with(char::is_alphanumeric)
        && name.chars().all(allowed);
    if good {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{name:?} is not a checkpoint name: 1 to {MAX_NAME_BYTES} bytes of letters, digits and -_./+:=, \
         starting with a letter or a digit"
    )))
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.step)
    }
}

impl FromStr for CheckpointName {
    type Err = Error;

    fn from_str(text: &str) -> Result<CheckpointName, Error> {
        let parsed =
            text.rsplit_once('@').and_then(|(name, step)| Some((name, step.parse().ok()?)));
        let Some((name, step)) = parsed else {
            return Err(Error::Usage(format!(
                "{text:?}: a checkpoint is named NAME@STEP, as in llama@100"
            )));
        };
        CheckpointName::new(name, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name: CheckpointName = "run-7/llama@100".parse().unwrap();
        assert_eq!((name.name.as_str(), name.step), ("run-7/llama", 100));
        assert_eq!(name.to_string(), "run-7/llama@100");
        for bad in ["", "llama", "@1", "llama@", "llama@x", "llama@-1", "a b@1", "-a@1", "a\n@1"] {
            assert!(bad.parse::<CheckpointName>().is_err(), "{bad}");
        }
        assert!(CheckpointName::new(&"x".repeat(MAX_NAME_BYTES + 1), 0).is_err());
    }
}
