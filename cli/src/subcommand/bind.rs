// SPDX-License-Identifier: Apache-2.0
//! `stanchion bind`: takes drives from the kernel and gives them to SPDK.

use std::path::Path;

use clap::{Args, ValueEnum};
use stanchion_engine::DriveAddress;
use stanchion_engine::host::binding::{BindOptions, Binder, Change, UserSpaceDriver};
use stanchion_engine::host::pci::NvmeFunction;
use stanchion_engine::{Content, Error, survey};

use super::Subcommand;
use crate::binding;
use crate::context::Context;
use crate::error::CommandError;
use crate::options::Group;

const EXAMPLES: &str = "\
Examples:
  stanchion bind --drive /dev/nvme1n1 --drive pcie:0000:05:00.0      give both to vfio-pci
  stanchion bind --drive /dev/nvme1n1 --dry-run                      show the writes to sysfs
  stanchion bind --drive /dev/nvme1n1 --serial S4EWNX0R --force      although it holds data

Nothing on the drive is changed. A drive that is mounted, swapped on, part of an LVM volume, an md
or dm device, or open in a process is always refused. A drive that is partitioned, or holds anything
but a pool, needs --serial and --force. A bind lasts until `stanchion unbind` or a reboot.";

/// The drivers to choose from.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// With an IOMMU: the drive can access only Stanchion's buffers
    #[value(name = "vfio-pci")]
    VfioPci,
    /// The drive can access any memory; for machines without vfio-pci
    #[value(name = "uio_pci_generic")]
    UioPciGeneric,
}

/// Arguments of `stanchion bind`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Bind {
    /// The driver to bind to
    #[arg(long, value_enum, value_name = "DRIVER", default_value = "vfio-pci")]
    driver: Driver,
    /// Confirm, by serial, a drive that holds data (requires --force)
    #[arg(long = "serial", value_name = "SN", requires = "force")]
    serials: Vec<String>,
    /// Take the drives that --serial names although they are partitioned or hold data
    #[arg(long)]
    force: bool,
    /// Bind without an IOMMU: the drive can then write to any memory of this machine
    #[arg(long)]
    no_iommu: bool,
    /// Show what would be written to sysfs; write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Subcommand for Bind {
    const NAME: &'static str = "bind";
    const ABOUT: &'static str = "Take drives from the kernel and give them to SPDK";
    const GROUPS: &'static [Group] = &[Group::Drives, Group::Output];

    fn run(&self, context: &Context) -> Result<(), CommandError> {
        let root = Path::new("/");
        let functions = binding::functions(root, &context.required_drives()?)?;
        let options = BindOptions {
            driver: match self.driver {
                Driver::VfioPci => UserSpaceDriver::VfioPci,
                Driver::UioPciGeneric => UserSpaceDriver::UioPciGeneric,
            },
            without_iommu: self.no_iommu,
        };
        let binder = Binder::below(root);
        let plan = binder.plan_bind(&functions, &options)?;
        for change in &plan {
            check_content(&binder, change, self)?;
        }
        binding::apply(Self::NAME, &binder, &plan, self.dry_run, context.output)
    }
}

/// Refuses a drive that holds data, unless --serial names it and --force is given.
fn check_content(binder: &Binder, change: &Change, args: &Bind) -> Result<(), CommandError> {
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
        format!("{doubts}; to take it all the same, pass --serial {serial} --force"),
    ))
}

fn refused(function: &NvmeFunction, reason: String) -> CommandError {
    let address = format!("pcie:{}", function.address);
    Error::Refused { address, serial: function.serial_text().to_owned(), reason }.into()
}
