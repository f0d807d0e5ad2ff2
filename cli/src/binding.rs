// SPDX-License-Identifier: Apache-2.0
//! What `stanchion bind` and `stanchion unbind` share: the drives behind addresses, executing a
//! plan, and printing what was done.

use std::path::Path;

use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::host::binding::{Binder, Change, Write};
use stanchion_engine::host::pci::{self, NvmeFunction};

use crate::error::CommandError;
use crate::output::{self, Output, plain};

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    drives: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    serial: Option<String>,
    model: Option<String>,
    pci_address: String,
    /// What to give to `--drive` from now on.
    address: String,
    driver_before: Option<String>,
    driver: String,
    iommu_group: Option<u32>,
    changed: bool,
    modules: Vec<&'static str>,
    writes: Vec<WriteRecord>,
    undo: Option<String>,
}

#[derive(Serialize)]
struct WriteRecord {
    path: String,
    text: String,
}

/// The PCI functions behind the addresses, each once: namespaces share theirs.
///
/// # Errors
/// When there is no such function, or the address is not that of an NVMe drive on PCIe.
pub fn functions(root: &Path, drives: &[DriveAddress]) -> Result<Vec<String>, CommandError> {
    let mut found = Vec::new();
    for drive in drives {
        let function = pci::function_of(root, drive)?;
        if !found.contains(&function) {
            found.push(function);
        }
    }
    Ok(found)
}

/// Executes the plan of `stanchion bind` or `stanchion unbind`, and prints what was done.
///
/// # Errors
/// Why a drive could not be moved; [`CommandError::Partial`] when others were moved before.
pub fn apply(
    subcommand: &str,
    binder: &Binder,
    plan: &[Change],
    dry_run: bool,
    output: Output,
) -> Result<(), CommandError> {
    let mut records = Vec::new();
    let mut result = Ok(());
    for change in plan {
        if dry_run {
            print_writes(change, output)?;
            records.push(record(change, None));
            continue;
        }
        match binder.apply(change) {
            Ok(now) => {
                print_change(change, &now, output)?;
                records.push(record(change, Some(&now)));
            }
            // What was done before stays done, and is printed.
            Err(error) if records.is_empty() => {
                result = Err(error.into());
                break;
            }
            Err(error) => {
                result = Err(CommandError::Partial(format!(
                    "moved {} of {}, and no more: {error}",
                    records.len(),
                    output::count(plan.len(), "drive")
                )));
                break;
            }
        }
    }
    if output.json {
        output.document(subcommand, &Report { dry_run, drives: records })?;
    } else if dry_run {
        output.summary("dry run: nothing was written")?;
    }
    result
}

/// What to give to `--drive`: the block device while the kernel has it.
fn address(function: &NvmeFunction) -> String {
    match function.namespaces.first() {
        Some(device) => format!("/dev/{}", device.name),
        None => format!("pcie:{}", function.address),
    }
}

fn undo(change: &Change, now: &NvmeFunction) -> Option<String> {
    if change.is_empty() {
        return None;
    }
    match change.driver {
        pci::KERNEL_DRIVER => Some(format!("stanchion bind --drive {}", address(now))),
        _ => Some(format!("stanchion unbind --drive {}", address(now))),
    }
}

fn record(change: &Change, now: Option<&NvmeFunction>) -> Record {
    let before = &change.function;
    let now_or_before = now.unwrap_or(before);
    Record {
        serial: before.serial.clone().or_else(|| now_or_before.serial.clone()),
        model: before.model.clone().or_else(|| now_or_before.model.clone()),
        pci_address: before.address.clone(),
        address: address(now_or_before),
        driver_before: before.driver.clone(),
        driver: change.driver.to_owned(),
        iommu_group: before.iommu_group.as_ref().map(|group| group.number),
        changed: now.is_some() && !change.is_empty(),
        modules: change.modules.clone(),
        writes: change
            .writes
            .iter()
            .map(|Write { path, text }| WriteRecord { path: path.clone(), text: text.clone() })
            .collect(),
        undo: now.and_then(|now| undo(change, now)),
    }
}

/// `S123 (pcie:0000:04:00.0)`.
fn name(before: &NvmeFunction, now: &NvmeFunction) -> String {
    let serial = before.serial.as_deref().or(now.serial.as_deref());
    plain(&format!("{} (pcie:{})", serial.unwrap_or(before.serial_text()), before.address))
}

fn print_change(change: &Change, now: &NvmeFunction, output: Output) -> Result<(), CommandError> {
    if output.json {
        return Ok(());
    }
    let before = &change.function;
    let name = name(before, now);
    let Some(undo) = undo(change, now) else {
        let as_what = address(now);
        return output
            .summary(format_args!("{name}: bound to {} already, as {as_what}", change.driver));
    };
    let from = before.driver.as_deref().unwrap_or("no driver");
    output.summary(format_args!(
        "{name}: moved from {from} to {}, now {}; to undo: {undo}",
        change.driver,
        address(now)
    ))
}

fn print_writes(change: &Change, output: Output) -> Result<(), CommandError> {
    if output.json {
        return Ok(());
    }
    let name = name(&change.function, &change.function);
    if change.is_empty() {
        return output.text(format_args!("{name}: bound to {} already", change.driver));
    }
    output.text(format_args!("{name}:"))?;
    for module in &change.modules {
        output.text(format_args!("  modprobe {module}"))?;
    }
    for Write { path, text } in &change.writes {
        output.text(format_args!(
            "  echo {} > {path}",
            match text.as_str() {
                "\n" => "",
                text => text,
            }
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use stanchion_engine::host::binding::{BindOptions, UserSpaceDriver};

    use super::*;
    use crate::record::Document;

    /// A simulated machine with one NVMe drive in an IOMMU group of its own.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sys/bus/pci/devices/0000:02:00.0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("class"), "0x010802\n").unwrap();
        symlink("/drivers/nvme", dir.join("driver")).unwrap();
        let group = root.path().join("sys/kernel/iommu_groups/7");
        fs::create_dir_all(group.join("devices/0000:02:00.0")).unwrap();
        fs::write(group.join("type"), "DMA\n").unwrap();
        symlink("/groups/7", dir.join("iommu_group")).unwrap();
        fs::create_dir_all(root.path().join("sys/module/vfio_pci")).unwrap();
        root
    }

    #[test]
    fn records_are_what_the_schemas_say() {
        let root = machine();
        let binder = Binder::below(root.path());
        let functions = ["0000:02:00.0".to_owned()];
        let options = BindOptions { driver: UserSpaceDriver::VfioPci, without_iommu: false };
        let bind = binder.plan_bind(&functions, &options).unwrap();
        let unbind = binder.plan_unbind(&functions).unwrap();
        for (name, schema, plan) in [
            ("bind", include_str!("../../docs/json/bind.schema.json"), &bind),
            ("unbind", include_str!("../../docs/json/unbind.schema.json"), &unbind),
        ] {
            let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
            let dry = plan.iter().map(|change| record(change, None));
            let done = plan.iter().map(|change| record(change, Some(&change.function)));
            let report = Report { dry_run: true, drives: dry.chain(done).collect() };
            let document = serde_json::to_value(Document::new(name, &report)).unwrap();
            let validator = jsonschema::validator_for(&schema).unwrap();
            let errors: Vec<_> = validator.iter_errors(&document).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?} in {document:#}");
            // No key that the schema does not name.
            let drive = document["drives"][0].as_object().unwrap();
            let known = &schema["properties"]["drives"]["items"]["properties"];
            assert!(drive.keys().all(|key| known[key].is_object()), "{document:#}");
            assert_eq!(drive["pci_address"], "0000:02:00.0");
            assert_eq!(drive["iommu_group"], 7);
        }
        assert!(!bind[0].writes.is_empty());
    }
}
