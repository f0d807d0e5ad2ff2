// SPDX-License-Identifier: Apache-2.0
//! The structure that ARCHITECTURE.md draws, checked by a test: which layer may use which, where
//! `unsafe` may be, how long a file and a line may be, and that documents name existing files.

#![allow(clippy::unwrap_used)]

mod documents;
mod imports;
mod layers;
mod packages;
mod planted;
mod widths;

use std::fs;
use std::path::{Path, PathBuf};

use imports::{Parsed, Source};

/// Where `unsafe` may be. Three files outside of memory, ring and devices: `direct` and the
/// reactor's drive queue hand memory to devices, and a remote drive is itself a device.
const UNSAFE: &[&str] =
    &["memory/", "ring/", "device/", "direct", "reactor/drive_queue", "reactor/remote_drive"];

const MAX_LINES: usize = 600;

/// Folders without files of ours to check.
const NOT_OURS: &[&str] = &["target", ".git"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The files below a folder, as paths below it.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !path.is_symlink() {
                folders.extend((!NOT_OURS.contains(&name)).then_some(path));
            } else {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The Rust sources below a folder of the repository.
fn sources(folder: &str) -> Vec<Source> {
    let root = repository().join(folder);
    let rust = files(&root).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let source = |path: PathBuf| Source {
        file: path.with_extension("").to_str().unwrap().to_owned(),
        text: fs::read_to_string(root.join(path)).unwrap(),
    };
    rust.map(source).collect()
}

fn engine() -> Vec<Source> {
    let sources = sources("engine/src");
    assert!(sources.len() > 100, "the sources were not found");
    sources
}

fn assert_none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layers_use_only_what_stands_above_them_and_files_make_no_circles() {
    assert_none(layers::complaints(&Parsed::of(&engine())));
}

#[test]
fn the_command_and_the_c_library_have_no_circles() {
    for folder in ["cli/src", "src"] {
        let (arrows, mut wrong) = imports::arrows(&Parsed::of(&sources(folder)));
        let circles = imports::circles(&arrows);
        wrong.extend(circles.iter().map(|circle| layers::describe(circle, &arrows)));
        assert_none(wrong);
    }
}

#[test]
fn a_module_with_children_is_a_folder_with_a_mod_rs() {
    for folder in ["engine/src", "cli/src", "src", "spdk-sys/src", "cli/tests", "engine/tests"] {
        let root = repository().join(folder);
        let has_folder = |file: &PathBuf| root.join(file.with_extension("")).is_dir();
        let rust =
            files(&root).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
        assert_none(
            rust.filter(has_folder).map(|file| format!("{folder}/{}", file.display())).collect(),
        );
    }
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for Source { file, text } in engine() {
        let allowed = UNSAFE.iter().any(|allowed| file.starts_with(allowed));
        let is_for_tests = file.contains("test");
        if !allowed && !is_for_tests && imports::has_unsafe(&text) {
            wrong.push(file);
        }
    }
    assert_none(wrong);
}

#[test]
fn files_stay_short_and_are_in_the_architecture() {
    let architecture = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    for Source { file, text } in engine() {
        assert!(text.lines().count() <= MAX_LINES, "{file} has {} lines", text.lines().count());
        let top = file.split('/').next().unwrap();
        assert!(
            top == "lib" || architecture.contains(&format!("`{top}`")),
            "ARCHITECTURE.md lacks {top}"
        );
    }
}

#[test]
fn every_test_file_is_in_a_test_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let main = fs::read_to_string(root.join("tests/main.rs")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for entry in fs::read_dir(root.join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let runs = main.contains(&format!("\nmod {name};\n"))
            || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
        assert!(name == "main" || runs, "no binary has tests/{name}.rs: name it in tests/main.rs");
    }
}

#[test]
fn documents_name_files_that_are_there() {
    let root = repository();
    let all = files(&root);
    let names: Vec<String> = all.iter().map(|file| file.to_str().unwrap().to_owned()).collect();
    let repository = documents::Repository { root: &root, files: &names };
    let is_document = |name: &&String| {
        name.ends_with(".md") && (name.starts_with("docs/") || !name.contains('/'))
    };
    let mut wrong = Vec::new();
    for document in names.iter().filter(is_document) {
        let text = fs::read_to_string(root.join(document)).unwrap();
        wrong.extend(repository.missing_files(document, &text));
    }
    assert_none(wrong);
}

#[test]
fn lines_have_the_width_of_their_language() {
    let root = repository();
    let widths = widths::stated(&fs::read_to_string(root.join(".editorconfig")).unwrap());
    let rustfmt = fs::read_to_string(root.join("rustfmt.toml")).unwrap();
    assert!(rustfmt.contains(&format!("max_width = {}", widths["rs"])), "rustfmt.toml differs");
    let mut wrong = Vec::new();
    for file in files(&root) {
        let name = file.to_str().unwrap();
        let Some(width) = widths::of(&widths, name) else { continue };
        let text = fs::read_to_string(root.join(&file)).unwrap();
        wrong.extend(widths::wide_lines(name, &text, width));
    }
    assert_none(wrong);
}
