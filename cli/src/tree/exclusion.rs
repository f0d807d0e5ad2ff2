// SPDX-License-Identifier: Apache-2.0
//! `--exclude`: what a save leaves out.

use glob::{MatchOptions, Pattern};

use super::path;

/// A pattern for paths that a save leaves out.
#[derive(Clone, Debug)]
pub struct Exclusion {
    pattern: Pattern,
    /// It is compared with whole paths; otherwise with each part of one.
    of_paths: bool,
}

impl Exclusion {
    /// Reads it: a pattern with a `/` is for paths, one without for names in any directory.
    ///
    /// # Errors
    /// When it is not a pattern.
    pub fn parse(text: &str) -> Result<Exclusion, String> {
        let trimmed = text.trim_end_matches('/');
        let pattern = Pattern::new(trimmed.strip_prefix('/').unwrap_or(trimmed))
            .map_err(|error| error.to_string())?;
        Ok(Exclusion { pattern, of_paths: trimmed.contains('/') })
    }

    /// Whether it leaves out the path, or a directory that it lies in.
    pub fn matches(&self, name: &str) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        match self.of_paths {
            true => path::parents(name)
                .chain([name])
                .any(|path| self.pattern.matches_with(path, options)),
            false => name.split('/').any(|part| self.pattern.matches(part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_anywhere_or_paths_from_the_top() {
        let matches = |pattern: &str, name: &str| Exclusion::parse(pattern).unwrap().matches(name);
        assert!(matches("*.tmp", "a/b.tmp") && matches("cache", "x/cache/y"));
        assert!(!matches("*.tmp", "a/b.tmpx") && !matches("cache", "x/caches"));
        assert!(matches("a/*.tmp", "a/b.tmp") && !matches("a/*.tmp", "a/c/b.tmp"));
        assert!(
            matches("a/**/b", "a/x/y/b") && matches("/top", "top/x") && !matches("/top", "a/top")
        );
        assert!(matches("logs/", "a/logs"));
        assert!(Exclusion::parse("[").is_err());
    }
}
