//! `stanchion bind` and `stanchion unbind`: give drives to SPDK, and back to the kernel.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stanchion_engine::DriveAddress;
use stanchion_engine::host::binding::{BindOptions, Binder, Change, UserSpaceDriver, Write};
use stanchion_engine::host::pci::{self, NvmeFunction};
use stanchion_engine::{Content, Error, survey};

use crate::args::Common;
use crate::config;
use crate::exit::Failure;
use crate::output::{Output, plain};

const BIND_EXAMPLES: &str = "\
Examples:
  stanchion bind --drive /dev/nvme1n1 --drive pcie:0000:05:00.0      give both to vfio-pci
  stanchion bind --drive /dev/nvme1n1 --dry-run                      show every write to sysfs, write nothing
  stanchion bind --drive /dev/nvme1n1 --serial S4EWNX0R --force      although it holds somebody's data

Nothing on the drive is changed. A drive that is mounted, swapped on, part of an LVM volume, an md or
dm device, or open in a process is refused, whatever is said. One that is partitioned or holds
anything but a pool needs its serial and --force. A bind lasts until `stanchion unbind` or a reboot.";

const UNBIND_EXAMPLES: &str = "\
Examples:
  stanchion unbind --drive pcie:0000:05:00.0      back to the kernel's driver, as /dev/nvme...

Ends when the block device is back.";

/// The drivers that can be asked for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// The drive reaches only the memory that Stanchion gives it, where there is an IOMMU
    #[value(name = "vfio-pci")]
    VfioPci,
    /// The drive reaches any memory; only where vfio-pci cannot be had
    #[value(name = "uio_pci_generic")]
    UioPciGeneric,
}

/// Arguments of `stanchion bind`.
#[derive(Args, Debug)]
#[command(after_help = BIND_EXAMPLES)]
pub struct BindArgs {
    /// The driver to bind to
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "vfio-pci")]
    driver: Driver,
    /// The serial of a drive that is meant although it holds data; with --force
    #[arg(long = "serial", value_name = "SN", requires = "force")]
    serials: Vec<String>,
    /// Take partitioned drives, and drives that hold somebody's data, that --serial names
    #[arg(long)]
    force: bool,
    /// Accept that nothing keeps the drive from writing to any memory of this machine
    #[arg(long)]
    no_iommu: bool,
    /// Show what would be written to sysfs; write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `stanchion unbind`.
#[derive(Args, Debug)]
#[command(after_help = UNBIND_EXAMPLES)]
pub struct UnbindArgs {
    /// Show what would be written to sysfs; write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Document {
    format_version: u32,
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

/// Runs `stanchion bind`.
///
/// # Errors
/// Refusals, and whatever kept a drive from being bound.
pub fn bind(args: &BindArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let root = Path::new("/");
    let functions = functions(root, &config::required_drives(common)?)?;
    let options = BindOptions {
        driver: match args.driver {
            Driver::VfioPci => UserSpaceDriver::VfioPci,
            Driver::UioPciGeneric => UserSpaceDriver::UioPciGeneric,
        },
        without_iommu: args.no_iommu,
    };
    let binder = Binder::below(root);
    let plan = binder.plan_bind(&functions, &options)?;
    for change in &plan {
        check_content(&binder, change, args)?;
    }
    carry_out(&binder, &plan, args.dry_run, output)
}

/// Runs `stanchion unbind`.
///
/// # Errors
/// As [`bind`].
pub fn unbind(args: &UnbindArgs, common: &Common, output: Output) -> Result<(), Failure> {
    let root = Path::new("/");
    let functions = functions(root, &config::required_drives(common)?)?;
    let binder = Binder::below(root);
    let plan = binder.plan_unbind(&functions)?;
    carry_out(&binder, &plan, args.dry_run, output)
}

/// The functions behind the addresses, each once: namespaces share theirs.
fn functions(root: &Path, drives: &[DriveAddress]) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for drive in drives {
        let function = pci::function_of(root, drive)?;
        if !found.contains(&function) {
            found.push(function);
        }
    }
    Ok(found)
}

/// Refuses a drive with somebody's data, unless its serial was named and force was asked for.
fn check_content(binder: &Binder, change: &Change, args: &BindArgs) -> Result<(), Failure> {
    if change.is_empty() {
        return Ok(());
    }
    let function = &change.function;
    let mut doubts: Vec<String> =
        change.doubts.iter().map(|d| format!("{} ({})", d.what, d.evidence)).collect();
    for device in &function.namespaces {
        let path = binder.path("/dev").join(&device.name);
        let survey = survey(&[DriveAddress::Path(path)])?.remove(0);
        if let Some(finding) = survey.in_use.never_overridable().find(|f| f.what != "read-only") {
            let reason = format!("{} ({}); nothing overrides this", finding.what, finding.evidence);
            return Err(refused(function, reason));
        }
        match survey.content {
            Content::Blank | Content::Pool { .. } | Content::Absent => {}
            Content::Foreign(what) => doubts.push(format!("/dev/{} holds {what}", device.name)),
        }
    }
    let is_named = || function.serial.as_ref().is_some_and(|own| args.serials.contains(own));
    if doubts.is_empty() || (args.force && is_named()) {
        return Ok(());
    }
    let doubts = doubts.join("; ");
    let serial = function.serial_text();
    Err(refused(
        function,
        format!("{doubts}; if it is this drive that you mean, add --serial {serial} --force"),
    ))
}

fn refused(function: &NvmeFunction, reason: String) -> Failure {
    let address = format!("pcie:{}", function.address);
    Error::Refused { address, serial: function.serial_text().to_owned(), reason }.into()
}

fn carry_out(
    binder: &Binder,
    plan: &[Change],
    dry_run: bool,
    output: Output,
) -> Result<(), Failure> {
    let mut records = Vec::new();
    let mut result = Ok(());
    for change in plan {
        if dry_run {
            tell_writes(change, output)?;
            records.push(record(change, None));
            continue;
        }
        match binder.apply(change) {
            Ok(now) => {
                tell(change, &now, output)?;
                records.push(record(change, Some(&now)));
            }
            Err(error) => {
                // What was done before is told all the same: it stays done.
                result = Err(error.into());
                break;
            }
        }
    }
    if output.json {
        output.document(&Document { format_version: 1, dry_run, drives: records })?;
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

fn tell(change: &Change, now: &NvmeFunction, output: Output) -> Result<(), Failure> {
    if output.json {
        return Ok(());
    }
    let before = &change.function;
    let name = name(before, now);
    let Some(undo) = undo(change, now) else {
        let as_what = address(now);
        return output.summary(format_args!(
            "{name}: driver {} has it already, as {as_what}",
            change.driver
        ));
    };
    let from = before.driver.as_deref().unwrap_or("no driver");
    output.summary(format_args!(
        "{name}: moved from {from} to {}, now {}; to undo: {undo}",
        change.driver,
        address(now)
    ))
}

fn tell_writes(change: &Change, output: Output) -> Result<(), Failure> {
    if output.json {
        return Ok(());
    }
    let name = name(&change.function, &change.function);
    if change.is_empty() {
        return output.text(format_args!("{name}: driver {} has it already", change.driver));
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
