// SPDX-License-Identifier: Apache-2.0
//! The documents of the repository: every file that they name is there.

use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Extensions that make a word in backticks the name of a file of this repository.
const EXTENSIONS: &[&str] = &["rs", "md", "toml", "c", "h", "py", "map"];
/// Files of users, not of the repository.
const OF_USERS: &[&str] = &["stanchion.toml", "rust-toolchain.toml", "save.c"];

/// The files of the repository, to look names up in.
pub struct Repository<'a> {
    pub root: &'a Path,
    /// Paths below the root.
    pub files: &'a [String],
}

impl Repository<'_> {
    /// The files that `document`, a path below the root, names and that are not there.
    pub fn missing_files(&self, document: &str, text: &str) -> Vec<String> {
        let folder = self.root.join(document).parent().unwrap_or(self.root).to_owned();
        let mut missing = Vec::new();
        let mut in_block = false;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let target = dest_url.split('#').next().unwrap_or_default();
                    let is_elsewhere = target.contains(':') || target.is_empty();
                    if !is_elsewhere && !folder.join(target).exists() {
                        missing.push(format!("{document} links to {target}"));
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => in_block = true,
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Code(code) => {
                    for word in code.split_whitespace().filter(|word| !self.allows(word)) {
                        missing.push(format!("{document} names `{word}`"));
                    }
                }
                Event::Text(block) if in_block => {
                    let words = block.split_whitespace();
                    let scripts = words.filter(|word| word.starts_with("scripts/"));
                    for word in scripts.filter(|word| !self.allows(word)) {
                        missing.push(format!("{document} names {word} in a block"));
                    }
                }
                _ => {}
            }
        }
        missing
    }

    /// Whether a word names a file that exists, or no file of the repository at all.
    fn allows(&self, word: &str) -> bool {
        let word = word.trim_end_matches([',', ';', ':', ')', '.']).trim_start_matches('(');
        let word = word.trim_start_matches("./");
        let path = Path::new(word);
        let is_path = word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        if !is_path || path.is_absolute() || OF_USERS.contains(&word) || has_placeholder(path) {
            return true;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_source = extension.is_some_and(|e| EXTENSIONS.contains(&e));
        let first = word.split('/').next().unwrap_or_default();
        let is_in_a_folder = word.contains('/') && self.has_folder(first) && first != "target";
        if !is_source && !is_in_a_folder {
            return true;
        }
        let word = word.trim_end_matches('/');
        let with_extension = format!("{word}.rs");
        let is_meant = |file: &String| {
            ends_with(file, word) || ends_with(file, &with_extension) || has_part(file, word)
        };
        self.files.iter().any(is_meant)
    }

    /// Whether there is such a folder at the top, or one that is a module of the engine.
    fn has_folder(&self, name: &str) -> bool {
        self.root.join(name).is_dir() || self.root.join("engine/src").join(name).is_dir()
    }
}

/// `NAME` in a recipe is a placeholder for the reader's choice.
fn has_placeholder(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| Path::new(part).file_stem()?.to_str());
    parts.any(|part| {
        let part = part.trim_end_matches(".schema");
        part.len() > 1
            && part.chars().all(|c| c.is_ascii_uppercase() || c == '-')
            && !matches!(part, "ARCHITECTURE" | "README" | "CONTRIBUTING" | "LICENSE")
    })
}

/// Whether the path ends with these whole parts.
fn ends_with(file: &str, end: &str) -> bool {
    file.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Whether the path goes through a folder of that name.
fn has_part(file: &str, folder: &str) -> bool {
    file.starts_with(&format!("{folder}/")) || file.contains(&format!("/{folder}/"))
}

#[test]
fn a_name_of_nothing_is_found() {
    let files = ["engine/src/pool/open.rs".to_owned(), "scripts/demo".to_owned()];
    let root = crate::repository();
    let repository = Repository { root: &root, files: &files };
    let text = "`pool/open.rs` `pool/open` `open.rs` `src/NAME.rs` `scripts/demo --quick` `a.img` `/etc/x.toml`";
    assert_eq!(repository.missing_files("README.md", text), Vec::<String>::new());
    let text = "`pool/gone.rs` [x](docs/gone.md) `scripts/gone`\n```\nscripts/lost now\n```\n| a |\n|-|\n| `b.rs` |";
    let found = repository.missing_files("README.md", text);
    for name in ["`pool/gone.rs`", "to docs/gone.md", "`scripts/gone`", "scripts/lost", "`b.rs`"] {
        assert!(found.iter().any(|line| line.contains(name)), "{name}: {found:?}");
    }
}
