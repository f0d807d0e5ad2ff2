// SPDX-License-Identifier: Apache-2.0
//! Compares the committed header, list of exports and numbers with the code.
//!
//! Layouts are compared by the C compiler itself: the code's sizes and offsets become static
//! assertions of a C file that includes the header.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use stanchion::c::*;

const HEADER: &str = include_str!("../include/stanchion.h");
const EXPORTS: &str = include_str!("../stanchion.map");
const NUMBERS: &str = include_str!("abi/numbers.txt");

/// Structure, size, and its fields with their offsets.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layout {
    ($name:ident: $($field:ident),+ $(,)?) => {
        (stringify!($name), size_of::<$name>(),
         vec![$((stringify!($field), offset_of!($name, $field))),+])
    };
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(stn_sqe: opcode, flags, reserved0, buffer, checkpoint, buffer_offset_bytes,
            len_bytes, segment_offset_bytes, user_data, reserved1),
        layout!(stn_cqe: user_data, result, flags, detail, aux),
        layout!(stn_pool_opts: size, flags, drives, cores, drive_count, core_count, huge_pages,
            reactors, queue_depth, checksum_threads),
        layout!(stn_format_opts: size, flags, drives, drive_count, reserved, chunk_bytes,
            create_bytes, metadata_bytes),
        layout!(stn_pool_info: size, drives, pool, generation, epoch, created_unix_ns, chunk_bytes,
            max_checkpoints, capacity_bytes, free_bytes, copies, reserved),
        layout!(stn_drive_info: size, volatile_cache, uuid, capacity_bytes, serial, address, model,
            back_end, state, reserved),
        layout!(stn_checkpoint_info: size, participants, id, bytes, step, committed_unix_ns,
            generation, damaged, health, name),
        layout!(stn_segment_info: size, participant, len_bytes, chunk_bytes, shards),
        layout!(stn_shard_info: size, dimensions, offset_bytes, len_bytes, name, dtype, shape),
        layout!(stn_shard: name, offset_bytes, len_bytes, dtype, shape, dimensions, reserved),
        layout!(stn_session_opts: size, flags, memory_bytes, entries, reserved),
        layout!(stn_begin_opts: size, flags, name, participants, participant, len_bytes, shards,
            shard_count, shard_size),
        layout!(stn_save_shard: name, bytes, len_bytes, dtype, shape, dimensions, reserved),
        layout!(stn_save_opts: size, flags, name, participants, participant, shards, shard_count,
            shard_size, timeout_ns),
        layout!(stn_restore_opts: size, flags, name, shard, participant, reserved, offset_bytes,
            len_bytes),
    ]
}

fn numbers() -> BTreeMap<&'static str, i64> {
    macro_rules! values {
        ($($name:ident),+ $(,)?) => { BTreeMap::from([$((stringify!($name), $name as i64)),+]) };
    }
    values![
        STN_VERSION,
        STN_E_DAMAGED,
        STN_E_POISONED,
        STN_E_REMOVED,
        STN_E_SHORT,
        STN_E_INCOMPLETE,
        STN_E_NOT_FORMATTED,
        STN_E_NEWER_FORMAT,
        STN_E_DRIVES,
        STN_E_REFUSED,
        STN_E_ENVIRONMENT,
        STN_E_PANIC,
        STN_E_OLDER_FORMAT,
        STN_OP_NOP,
        STN_OP_WRITE,
        STN_OP_READ,
        STN_OP_COMMIT,
        STN_OP_ABORT,
        STN_POOL_READ_ONLY,
        STN_POOL_DEGRADED,
        STN_POOL_FALL_BACK,
        STN_POOL_TAKE_OVER,
        STN_HUGE_REQUIRED,
        STN_HUGE_PREFERRED,
        STN_HUGE_OFF,
        STN_FORMAT_FORCE,
        STN_FORMAT_MIRROR,
        STN_DRIVE_MEMBER,
        STN_DRIVE_ABSENT,
        STN_DRIVE_REBUILDING,
        STN_HEALTH_WHOLE,
        STN_HEALTH_ONE_COPY,
        STN_HEALTH_LOST,
        STN_HEALTH_UNKNOWN,
        STN_SESSION_NO_MEMORY,
        STN_LOG_OFF,
        STN_LOG_ERROR,
        STN_LOG_WARN,
        STN_LOG_INFO,
        STN_LOG_DEBUG,
        STN_LOG_TRACE,
        STN_NAME_BYTES,
    ]
}

/// The header without comments.
fn code() -> String {
    let mut code = String::new();
    for part in HEADER.split("/*") {
        code.push_str(part.split_once("*/").map_or(part, |(_, after)| after));
    }
    code
}

fn compiles(source: &str) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("check.c");
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
        .args([&include, &file])
        .output()
        .expect("cc is needed");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn sizes_offsets_and_numbers_are_those_of_the_code() {
    let mut source = "#include <stanchion.h>\n".to_owned();
    for (name, size, fields) in layouts() {
        writeln!(source, "_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");").unwrap();
        for (field, offset) in fields {
            writeln!(
                source,
                "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");"
            )
            .unwrap();
        }
    }
    for (name, value) in numbers() {
        writeln!(source, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    compiles(&source).unwrap();
    let wrong = source.replace("struct stn_sqe) == 64", "struct stn_sqe) == 63");
    compiles(&wrong).expect_err("the check must be able to fail");
}

#[test]
fn every_structure_field_and_number_of_the_header_is_compared() {
    let code = code();
    let mut structures = BTreeMap::new();
    for part in code.split("\nstruct ").skip(1) {
        let Some((name, rest)) = part.split_once(" {") else { continue };
        let body = rest.split("\n};").next().unwrap();
        let field = |line: &str| {
            let name = line.trim().strip_suffix(';')?.rsplit([' ', '*']).next()?;
            Some(name.split('[').next()?.to_owned())
        };
        structures.insert(name.to_owned(), body.lines().filter_map(field).collect::<Vec<_>>());
    }
    let compared: BTreeMap<_, _> = layouts()
        .into_iter()
        .map(|(name, _, fields)| {
            (name.to_owned(), fields.into_iter().map(|(field, _)| field.to_owned()).collect())
        })
        .collect();
    assert_eq!(structures, compared);

    let defined: BTreeSet<_> = code
        .lines()
        .filter_map(|line| line.strip_prefix("#define STN_"))
        .map(|rest| format!("STN_{}", rest.split(' ').next().unwrap()))
        .filter(|name| !name.starts_with("STN_VERSION_"))
        .collect();
    let compared = numbers().into_keys().map(str::to_owned).collect();
    assert_eq!(defined, compared);
}

/// Each group is a kind of number: within it no number is used twice, including retired ones.
#[test]
fn numbers_are_the_committed_ones_and_none_is_used_again() {
    let mut committed = BTreeMap::new();
    let mut used = BTreeMap::new();
    let mut group = "";
    for line in NUMBERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            group = name.trim_end_matches(']');
            continue;
        }
        let mut words = line.split_whitespace();
        let (name, value) = (words.next().unwrap(), words.next().unwrap().parse::<i64>().unwrap());
        if let Some(other) = used.insert((group, value), name) {
            panic!("{value} of [{group}] is {name}'s and {other}'s");
        }
        if words.next() != Some("retired") {
            committed.insert(name, value);
        }
    }
    let mut numbers = numbers();
    // These may change.
    numbers.retain(|name, _| !matches!(*name, "STN_VERSION" | "STN_NAME_BYTES"));
    assert_eq!(committed, numbers, "tests/abi/numbers.txt says what was published");
}

fn functions_of_the_header() -> BTreeSet<String> {
    let code = code();
    let code = code.split("extern \"C\" {").nth(1).unwrap();
    let declarations = code.split(';').filter(|part| !part.contains("typedef"));
    let name = |part: &str| {
        let before = part.split_once('(')?.0;
        let name = before.rsplit([' ', '*', '\n']).next()?;
        name.starts_with("stn_").then(|| name.to_owned())
    };
    declarations.filter_map(name).collect()
}

#[test]
fn the_list_of_exports_has_the_functions_of_the_header() {
    let exports: BTreeSet<_> = EXPORTS
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("stn_"))
        .map(str::to_owned)
        .collect();
    assert!(exports.len() > 30);
    assert_eq!(exports, functions_of_the_header());
}

#[test]
fn the_library_exports_that_list_and_nothing_else() {
    // Cargo builds the libraries of a package into the folder of its tests.
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libstanchion.so");
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output()
    else {
        panic!("nm is needed");
    };
    assert!(output.status.success(), "{}: {output:?}", library.display());
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, functions_of_the_header());
}

#[test]
fn man_pages_can_be_made_of_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(root.join("scripts/man-pages"))
        .arg("1.2.3")
        .arg(root.join("include/stanchion.h"))
        .arg(directory.path())
        .output()
        .expect("python3 is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pages: BTreeSet<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<_> =
        functions_of_the_header().into_iter().map(|name| format!("{name}.3")).collect();
    expected.insert("stanchion.7".into());
    assert_eq!(pages, expected);
}

/// The C suite trusts this list; a file that moved is found here, long before that suite runs.
#[test]
fn what_is_provoked_elsewhere_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = include_str!("c/provoked_elsewhere.txt");
    let lines: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(lines.len() > 3, "{lines:?}");
    for line in lines {
        let mut words = line.splitn(4, ' ');
        let (file, test) = (words.nth(2).unwrap(), words.next().unwrap());
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        assert!(text.contains(test), "{file} has no {test:?}");
    }
}
