// SPDX-License-Identifier: Apache-2.0
//! Takes NVMe controllers from the kernel's driver for SPDK, and gives them back.
//!
//! - Nothing changes before all checks are done: [`Binder::plan_bind`] and [`Binder::plan_unbind`]
//!   only read, and return the writes that [`Binder::apply`] will do.
//! - A drive in use is refused, and no option overrides that. While its driver is detached, each of
//!   its namespaces is held exclusively, so that no process begins to use it meanwhile.
//! - The override stays until [`Binder::apply`] of an unbind clears it, so that a module loaded
//!   later does not take the drive. It does not survive a reboot.
//! - A bind that fails gives the drive back to the kernel.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::pci::{
    self, IommuGroup, KERNEL_DRIVER, NvmeFunction, is_user_space_driver, nvme_function,
};
use super::safety::{Finding, inspect_block_device};
use super::sysfs::{LockOwner, System};
use crate::error::Error;

/// How long a driver may take to attach to the function.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the kernel's driver may take to start a controller: CAP.TO is up to 127.5 s, but a
/// drive that works needs only a few seconds.
const BLOCK_DEVICE_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// A driver that leaves a function to a user-space program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserSpaceDriver {
    /// DMA goes through the IOMMU, where the machine has one.
    VfioPci,
    /// DMA goes anywhere.
    UioPciGeneric,
}

impl UserSpaceDriver {
    /// As sysfs writes it.
    pub fn name(self) -> &'static str {
        match self {
            UserSpaceDriver::VfioPci => "vfio-pci",
            UserSpaceDriver::UioPciGeneric => "uio_pci_generic",
        }
    }

    fn modules(self) -> &'static [&'static str] {
        match self {
            // Without the second, vfio finds no IOMMU, and reports that only to a process that
            // opens a group.
            UserSpaceDriver::VfioPci => &["vfio-pci", "vfio_iommu_type1"],
            UserSpaceDriver::UioPciGeneric => &["uio_pci_generic"],
        }
    }
}

/// How to bind.
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// To which driver.
    pub driver: UserSpaceDriver,
    /// Accept that nothing confines the drive's DMA.
    pub without_iommu: bool,
}

/// One write to sysfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The attribute.
    pub path: String,
    /// What is written to it.
    pub text: String,
}

/// The planned change of one function. Without writes and modules, nothing is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The function as it was found.
    pub function: NvmeFunction,
    /// The driver that will have it.
    pub driver: &'static str,
    /// Kernel modules to load before.
    pub modules: Vec<&'static str>,
    /// Writes, in this order.
    pub writes: Vec<Write>,
    /// Findings against it that the caller may override, such as partitions.
    pub doubts: Vec<Finding>,
}

impl Change {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.modules.is_empty()
    }
}

/// Binds and unbinds on the machine whose /sys, /proc and /dev lie below a root directory.
#[derive(Clone, Debug)]
pub struct Binder {
    root: PathBuf,
    system: System,
}

impl Binder {
    /// `/`, except in tests.
    pub fn below(root: &Path) -> Binder {
        Binder { root: root.to_owned(), system: System::below(root) }
    }

    /// A path of the machine, below the root.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.system.path(absolute)
    }

    /// The changes that give functions to a user-space driver, each once.
    ///
    /// # Errors
    /// [`Error::Busy`] and [`Error::Refused`] for a drive in use, or one whose IOMMU group is not
    /// complete; [`Error::Environment`] without an IOMMU; as [`nvme_function`].
    pub fn plan_bind(
        &self,
        functions: &[String],
        options: &BindOptions,
    ) -> Result<Vec<Change>, Error> {
        functions.iter().map(|address| self.plan_bind_one(address, functions, options)).collect()
    }

    fn plan_bind_one(
        &self,
        address: &str,
        together: &[String],
        options: &BindOptions,
    ) -> Result<Change, Error> {
        let function = nvme_function(&self.root, address)?;
        let driver = options.driver.name();
        if function.driver.as_deref() == Some(driver) {
            let (modules, writes) = (Vec::new(), Vec::new());
            return Ok(Change { function, driver, modules, writes, doubts: Vec::new() });
        }
        let doubts = self.check_unused(&function)?;
        check_iommu(&function, together, options)?;
        let mut writes = Vec::new();
        if options.driver == UserSpaceDriver::VfioPci && function.iommu_group.is_none() {
            let path = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode".into();
            writes.push(Write { path, text: "Y".into() });
        }
        writes.extend(moving(&function, driver));
        let modules = self.missing_modules(driver, options.driver.modules());
        Ok(Change { function, driver, modules, writes, doubts })
    }

    /// The changes that give functions back to the kernel's own driver.
    ///
    /// # Errors
    /// [`Error::Busy`] when a process has it; [`Error::Refused`] when its driver is not one that
    /// `bind` uses; as [`nvme_function`].
    pub fn plan_unbind(&self, functions: &[String]) -> Result<Vec<Change>, Error> {
        functions.iter().map(|address| self.plan_unbind_one(address)).collect()
    }

    fn plan_unbind_one(&self, address: &str) -> Result<Change, Error> {
        let function = nvme_function(&self.root, address)?;
        let driver = KERNEL_DRIVER;
        let doubts = Vec::new();
        if function.driver.as_deref() == Some(driver) {
            let (modules, writes) = (Vec::new(), Vec::new());
            return Ok(Change { function, driver, modules, writes, doubts });
        }
        if let Some(other) = function.driver.as_deref().filter(|d| !is_user_space_driver(d)) {
            return Err(refused(
                &function,
                format!("it is bound to driver {other}, which is not one for SPDK"),
            ));
        }
        self.check_users(&function)?;
        let modules = self.missing_modules(driver, &[KERNEL_DRIVER]);
        let writes = moving(&function, "");
        Ok(Change { function, driver, modules, writes, doubts })
    }

    fn missing_modules(&self, driver: &str, modules: &[&'static str]) -> Vec<&'static str> {
        let registered = self.path("/sys/bus/pci/drivers").join(driver).exists();
        let is_missing = |module: &&str| {
            let loaded = self.path("/sys/module").join(module.replace('-', "_")).exists();
            // The first is the driver itself, which may be built in without a module directory.
            let is_built_in = registered && modules.first() == Some(module);
            !(loaded || is_built_in)
        };
        modules.iter().copied().filter(is_missing).collect()
    }

    /// Refuses a drive in use; returns the doubts that may be overridden.
    fn check_unused(&self, function: &NvmeFunction) -> Result<Vec<Finding>, Error> {
        let mut doubts = Vec::new();
        for device in &function.namespaces {
            for finding in inspect_block_device(&self.system, device.number) {
                // Nothing is written, so it does not matter if the drive is read-only.
                match finding.what {
                    "read-only" => {}
                    _ if finding.overridable => doubts.push(finding),
                    what => {
                        let reason =
                            format!("{what} ({}); nothing overrides this", finding.evidence);
                        return Err(refused(function, reason));
                    }
                }
            }
            if let Some(other) = pci::other_paths(&self.system, device, &function.address).first() {
                let reason = format!(
                    "/dev/{} is reached through pcie:{other}, too; a drive with several paths must stay with the kernel",
                    device.name
                );
                return Err(refused(function, reason));
            }
        }
        self.check_users(function)?;
        self.claim(function)?;
        Ok(doubts)
    }

    fn check_users(&self, function: &NvmeFunction) -> Result<(), Error> {
        match pci::users(&self.system, function).first() {
            Some(owner) => Err(busy(function, owner)),
            None => Ok(()),
        }
    }

    /// Holds every namespace exclusively, so that it cannot be mounted or stacked on.
    fn claim(&self, function: &NvmeFunction) -> Result<Vec<File>, Error> {
        let open = |name: &str| {
            let path = self.path("/dev").join(name);
            // Without O_CREAT it claims a block device, as a mount does.
            let file = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&path);
            file.map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => refused(
                    function,
                    format!("held (/dev/{name} is claimed by the kernel or a process); nothing overrides this"),
                ),
                _ => Error::os(format!("claiming {}", path.display()), error),
            })
        };
        function.namespaces.iter().map(|device| open(&device.name)).collect()
    }

    /// Applies the plan and waits until it has taken effect. Returns the function as it then is.
    ///
    /// # Errors
    /// [`Error::Refused`] when a process has begun to use the drive; [`Error::Environment`] when
    /// the driver is not available; [`Error::Os`] when a write failed.
    pub fn apply(&self, change: &Change) -> Result<NvmeFunction, Error> {
        let function = &change.function;
        if change.is_empty() {
            return Ok(function.clone());
        }
        let to_kernel = change.driver == KERNEL_DRIVER;
        self.check_users(function)?;
        let claims = if to_kernel { Vec::new() } else { self.claim(function)? };
        for module in &change.modules {
            load(module)?;
        }
        let done = change.writes.iter().try_for_each(|write| self.write(write)).and_then(|()| {
            drop(claims);
            self.wait_for(function, change.driver)
        });
        match done {
            Ok(found) => Ok(found),
            Err(error) if to_kernel => Err(error),
            Err(error) => {
                let back =
                    Write { path: attribute(function, "driver_override"), text: "\n".into() };
                let probe = probe(function);
                // Whatever of this fails, the first error is the one to report.
                let _ = self.write(&back).and_then(|()| self.write(&probe));
                Err(error)
            }
        }
    }

    fn write(&self, write: &Write) -> Result<(), Error> {
        self.system.write(&write.path, &write.text).map_err(|error| {
            if write.path.ends_with("noiommu_mode") && error.kind() == std::io::ErrorKind::NotFound
            {
                return Error::Environment(
                    "this kernel's vfio has no mode without an IOMMU; use `--driver uio_pci_generic`"
                        .into(),
                );
            }
            Error::os(format!("writing {:?} to {}", write.text.trim_end(), write.path), error)
        })
    }

    fn wait_for(&self, function: &NvmeFunction, driver: &str) -> Result<NvmeFunction, Error> {
        let started = Instant::now();
        loop {
            let found = nvme_function(&self.root, &function.address)?;
            let has_driver = found.driver.as_deref() == Some(driver);
            let is_there = |name: &str| self.path("/dev").join(name).exists();
            let is_whole = driver != KERNEL_DRIVER
                || found.namespaces.first().is_some_and(|device| is_there(&device.name));
            if has_driver && is_whole {
                return Ok(found);
            }
            let timeout = if has_driver { BLOCK_DEVICE_TIMEOUT } else { DRIVER_TIMEOUT };
            if started.elapsed() >= timeout {
                let name = format!("drive {} (pcie:{})", function.serial_text(), function.address);
                return Err(Error::Environment(match (has_driver, found.driver) {
                    (true, _) => format!(
                        "{name}: bound to {driver}, but no block device appeared within {} s; see `dmesg`",
                        timeout.as_secs()
                    ),
                    (false, Some(other)) => {
                        format!("{name}: bound to driver {other} instead of {driver}; see `dmesg`")
                    }
                    (false, None) => {
                        format!("{name}: driver {driver} did not bind to it; see `dmesg`")
                    }
                }));
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn attribute(function: &NvmeFunction, name: &str) -> String {
    format!("/sys/bus/pci/devices/{}/{name}", function.address)
}

fn probe(function: &NvmeFunction) -> Write {
    Write { path: "/sys/bus/pci/drivers_probe".into(), text: function.address.clone() }
}

/// The writes that move a function to the driver that its override names; none: to any that fits.
fn moving(function: &NvmeFunction, to: &str) -> Vec<Write> {
    let text = if to.is_empty() { "\n".into() } else { to.into() };
    let mut writes = vec![Write { path: attribute(function, "driver_override"), text }];
    if function.driver.is_some() {
        let path = attribute(function, "driver/unbind");
        writes.push(Write { path, text: function.address.clone() });
    }
    writes.push(probe(function));
    writes
}

fn check_iommu(
    function: &NvmeFunction,
    together: &[String],
    options: &BindOptions,
) -> Result<(), Error> {
    let name = format!("drive {} (pcie:{})", function.serial_text(), function.address);
    let confined = options.driver == UserSpaceDriver::VfioPci && function.iommu_group.is_some();
    if !confined && !options.without_iommu {
        let why = match options.driver {
            UserSpaceDriver::VfioPci => {
                "the machine has no IOMMU, or does not use it: enable it in the firmware and with the kernel parameter intel_iommu=on or amd_iommu=on"
            }
            UserSpaceDriver::UioPciGeneric => {
                "uio_pci_generic does not use the IOMMU: bind it to vfio-pci"
            }
        };
        return Err(Error::Environment(format!(
            "{name}: {why}, or pass --no-iommu to accept that the drive can write to any memory of the machine"
        )));
    }
    let Some(group) = &function.iommu_group else { return Ok(()) };
    if options.driver == UserSpaceDriver::UioPciGeneric {
        return match group.kind.as_deref() {
            Some("identity") => Ok(()),
            _ => Err(Error::Environment(format!(
                "{name}: the IOMMU blocks a drive of uio_pci_generic; bind it to vfio-pci"
            ))),
        };
    }
    check_group(function, group, together)
}

/// vfio opens a group only when no device in it has a kernel driver.
fn check_group(
    function: &NvmeFunction,
    group: &IommuGroup,
    together: &[String],
) -> Result<(), Error> {
    let in_the_way = group.others.iter().find(|(address, driver)| {
        let is_vfio = driver.as_deref().is_none_or(|d| d.starts_with("vfio"));
        !is_vfio && !together.contains(address)
    });
    match in_the_way {
        None => Ok(()),
        Some((address, driver)) => Err(refused(
            function,
            format!(
                "its IOMMU group {} also holds {address}, bound to driver {}; nothing overrides this: \
                 bind that device to vfio as well, or move the drive to another slot",
                group.number,
                driver.as_deref().unwrap_or_default()
            ),
        )),
    }
}

fn refused(function: &NvmeFunction, reason: String) -> Error {
    Error::Refused {
        address: format!("pcie:{}", function.address),
        serial: function.serial_text().to_owned(),
        reason,
    }
}

fn busy(function: &NvmeFunction, owner: &LockOwner) -> Error {
    let what = format!("drive {} (pcie:{})", function.serial_text(), function.address);
    Error::Busy { what, owner: owner.to_string() }
}

fn load(module: &str) -> Result<(), Error> {
    let wrong =
        |text: String| Error::Environment(format!("loading the kernel module {module}: {text}"));
    let output = Command::new("modprobe").arg(module).output();
    let output = output.map_err(|error| wrong(format!("modprobe: {error}; install kmod")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(wrong(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests;
