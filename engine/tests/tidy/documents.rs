//! The documents of the repository: every file that they name is there.

use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// Extensions that make a word in backticks the name of a file of this repository.
const EXTENSIONS: &[&str] = &["rs", "md", "toml", "c", "h", "py", "map"];
/// Files of users, not of the repository.
const OF_USERS: &[&str] = &["stanchion.toml", "rust-toolchain.toml"];

/// The files that `document`, a path below `root`, names and that are not there.
pub fn missing_files(root: &Path, document: &str, text: &str) -> Vec<String> {
    let folder = root.join(document).parent().unwrap_or(root).to_owned();
    let mut missing = Vec::new();
    let mut in_block = false;
    for event in Parser::new_ext(text, pulldown_cmark::Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let target = dest_url.split('#').next().unwrap_or_default();
                let is_external = target.contains(':') || target.is_empty();
                if !is_external && !folder.join(target).exists() {
                    missing.push(format!("{document} links to {target}"));
                }
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Code(code) => {
                for word in code.split_whitespace().filter(|word| !exists(root, word)) {
                    missing.push(format!("{document} names `{word}`"));
                }
            }
            Event::Text(block) if in_block => {
                let scripts = block.split_whitespace().filter(|word| word.starts_with("scripts/"));
                for word in scripts.filter(|word| !exists(root, word)) {
                    missing.push(format!("{document} names {word} in a block"));
                }
            }
            _ => {}
        }
    }
    missing
}

/// Whether a word names a file that is there, or no file of the repository at all.
fn exists(root: &Path, word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', ':', ')', '.']).trim_start_matches('(');
    let path = Path::new(word);
    let is_path = word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    if !is_path || path.is_absolute() || OF_USERS.contains(&word) || word.starts_with('.') {
        return true;
    }
    let engine = root.join("engine/src");
    let extension = path.extension().and_then(|extension| extension.to_str());
    let first = word.split('/').next().unwrap_or_default();
    let is_below_a_folder = word.contains('/')
        && !matches!(first, "target" | "")
        && (root.join(first).is_dir() || engine.join(first).is_dir());
    if !is_below_a_folder && !extension.is_some_and(|e| EXTENSIONS.contains(&e)) {
        return true;
    }
    let below = [root.to_owned(), engine, root.join("include"), root.join("docs")];
    below.iter().any(|folder| {
        let path = folder.join(word);
        path.exists() || path.with_extension("rs").exists()
    })
}
