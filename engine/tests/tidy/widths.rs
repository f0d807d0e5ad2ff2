// SPDX-License-Identifier: Apache-2.0
//! The width of lines: `.editorconfig` states it for each language; this test enforces it.

use std::collections::BTreeMap;
use std::path::Path;

/// A section of `.editorconfig`: what its files end with, or begin with, and their width.
pub type Widths = BTreeMap<String, usize>;

/// The widths that `.editorconfig` states, by extension; a script has none, and is under `scripts`.
pub fn stated(editorconfig: &str) -> Widths {
    let mut widths = Widths::new();
    let mut languages: Vec<String> = Vec::new();
    for line in editorconfig.lines().map(str::trim) {
        if let Some(glob) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let names =
                glob.trim_start_matches("*.").trim_end_matches("/**").trim_matches(['{', '}']);
            languages = names.split(',').map(str::to_owned).collect();
        } else if let Some(width) = line.strip_prefix("max_line_length = ") {
            let width = width.parse().expect("a width is a number");
            widths.extend(languages.iter().map(|language| (language.clone(), width)));
        }
    }
    widths
}

/// The width for a file, if its language has one.
pub fn of(widths: &Widths, file: &str) -> Option<usize> {
    let path = Path::new(file);
    let is_script = path.extension().is_none() && path.starts_with("scripts");
    let language = path.extension().and_then(|extension| extension.to_str());
    widths.get(language.or(is_script.then_some("scripts"))?).copied()
}

/// The lines of a file that are wider than `width`, as complaints.
pub fn wide_lines(file: &str, text: &str, width: usize) -> Vec<String> {
    let language = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
    let numbered = (1..).zip(text.lines());
    numbered
        .filter(|(_, line)| line.chars().count() > width && !cannot_be_cut(language, line))
        .map(|(number, line)| format!("{file}:{number}: {} columns", line.chars().count()))
        .collect()
}

/// A row of a table, a link, or a string that its language does not cut.
fn cannot_be_cut(language: &str, line: &str) -> bool {
    let line = line.trim();
    match language {
        "md" => line.starts_with('|') || line.contains("](") || line.starts_with("http"),
        // Code is rustfmt's; it leaves comments alone.
        "rs" => !line.starts_with("//") || line.starts_with("//! |"),
        _ => false,
    }
}
