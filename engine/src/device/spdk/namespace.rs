// SPDX-License-Identifier: Apache-2.0
//! What a namespace is as a drive.

use spdk_sys::{stn_spdk_controller_facts, stn_spdk_namespace_info};

use super::controller::text;
use super::split::Split;
use crate::address::DriveAddress;
use crate::device::DriveInfo;
use crate::drive_info::Origin;
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::units::round_down;

/// How to split commands to a namespace; an error when it cannot be a drive of a pool.
pub(super) fn supported_split(
    address: &str,
    about: &stn_spdk_controller_facts,
    namespace: &stn_spdk_namespace_info,
) -> Result<Split, Error> {
    // Another set may number its commands alike, and write only in order, or not by place at all.
    if namespace.command_set != 0 {
        let set = match namespace.command_set {
            1 => "key value".to_owned(),
            2 => "zoned (ZNS)".to_owned(),
            other => format!("{other:#04x}"),
        };
        return Err(Error::Environment(format!(
            "drive {address}: its namespace {} has the {set} command set; one of the NVM command set is \
             needed",
            namespace.id
        )));
    }
    let sector_bytes = u64::from(namespace.sector_bytes);
    if !matches!(sector_bytes, 512 | 4096) || namespace.metadata_bytes != 0 {
        return Err(Error::Environment(format!(
            "drive {address}: formatted with sectors of {sector_bytes} bytes and {} bytes of metadata; \
             512 or 4096 bytes without metadata are needed (`nvme format` changes that)",
            namespace.metadata_bytes
        )));
    }
    if capacity_bytes(namespace) == 0 {
        return Err(Error::Environment(format!("drive {address}: it has no capacity")));
    }
    let boundary_bytes = u64::from(namespace.optimal_boundary_sectors) * sector_bytes;
    Split::new(about.max_transfer_bytes, boundary_bytes).ok_or_else(|| {
        Error::Environment(format!(
            "drive {address}: it moves at most {} bytes at once, less than a block of {BLOCK_BYTES}; use \
             another drive",
            about.max_transfer_bytes
        ))
    })
}

pub(super) fn capacity_bytes(namespace: &stn_spdk_namespace_info) -> u64 {
    let bytes = namespace.sector_count.saturating_mul(u64::from(namespace.sector_bytes));
    round_down(bytes, BLOCK_BYTES)
}

/// Whether it has the type of reservation that we take: the controller and the namespace say so.
pub(super) fn has_reservations(
    about: &stn_spdk_controller_facts,
    namespace: &stn_spdk_namespace_info,
) -> bool {
    const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 1 << 3;
    about.has_reservations && namespace.reservations & WRITE_EXCLUSIVE_REGISTRANTS_ONLY != 0
}

/// Whether reservations outlive a power loss of the drive, or of its target, if it is asked to keep
/// them.
pub(super) fn keeps_reservations(namespace: &stn_spdk_namespace_info) -> bool {
    namespace.reservations & 1 != 0
}

/// Whether it may be asked who is registered: a target of SPDK before v21.07 writes beyond its own
/// memory then, when a host that is registered is not connected.
pub(super) fn may_report(about: &stn_spdk_controller_facts) -> bool {
    let firmware = text(&about.firmware);
    let release = firmware.split_once('.').and_then(|(year, month)| {
        Some((year.parse::<u32>().ok()?, month.get(..2)?.parse::<u32>().ok()?))
    });
    // A target can be given another model, and says its release all the same.
    !release.is_some_and(|release| ((18, 1)..(21, 7)).contains(&release))
}

/// The serial number of a namespace: all namespaces of one controller share the controller's.
pub(super) fn serial(about: &stn_spdk_controller_facts, namespace: u32) -> String {
    let serial = text(&about.serial);
    match namespace {
        1 => serial,
        id => format!("{serial}-ns{id}"),
    }
}

/// The drive info of a namespace, when `supported_split` allows it.
pub(super) fn drive_info(
    transport_id: &str,
    about: &stn_spdk_controller_facts,
    namespace: &stn_spdk_namespace_info,
    split: Split,
    queue_depth: u32,
) -> DriveInfo {
    let address = DriveAddress::Spdk { transport_id: transport_id.into(), namespace: namespace.id };
    DriveInfo {
        address: address.to_string(),
        serial: serial(about, namespace.id),
        model: text(&about.model),
        back_end: "spdk",
        capacity_bytes: capacity_bytes(namespace),
        max_transfer_bytes: split.max_command_bytes(),
        queue_depth,
        volatile_cache: Some(about.has_volatile_write_cache),
        reservations: Some(has_reservations(about, namespace)),
        interrupt_driven: false,
        needs_huge_pages: true,
        origin: Origin::nvme_namespace(
            &text(&about.model),
            &text(&about.serial),
            namespace.id,
            namespace.nguid,
            namespace.eui64,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_targets_are_not_asked_who_is_registered() {
        let with = |firmware: &str| {
            let mut facts = stn_spdk_controller_facts::default();
            for (to, from) in facts.firmware.iter_mut().zip(firmware.bytes()) {
                *to = from as std::ffi::c_char;
            }
            may_report(&facts)
        };
        for old in ["20.07", "18.04", "21.04", "21.01.1"] {
            assert!(!with(old), "{old}");
        }
        for sound in ["21.07", "24.09", "26.01", "GXA7301Q", "1.0", "", "20"] {
            assert!(with(sound), "{sound}");
        }
    }

    #[test]
    fn only_namespaces_that_suit_are_drives() {
        let about =
            stn_spdk_controller_facts { max_transfer_bytes: 128 << 10, ..Default::default() };
        let namespace = |sector_bytes, metadata_bytes, sector_count| stn_spdk_namespace_info {
            id: 2,
            sector_bytes,
            metadata_bytes,
            sector_count,
            ..Default::default()
        };
        let id = "trtype:PCIe traddr:0000:04:00.0";
        let drive = |about: &_, namespace: &_| {
            supported_split(id, about, namespace)
                .map(|split| drive_info(id, about, namespace, split, 16))
        };
        let found = drive(&about, &namespace(512, 0, 17)).unwrap();
        assert_eq!(found.capacity_bytes, 8192);
        assert_eq!(found.address, format!("{id} ns:2"));
        assert_eq!(found.serial, "-ns2");
        for bad in [namespace(520, 0, 17), namespace(512, 8, 17), namespace(512, 0, 7)] {
            assert!(matches!(drive(&about, &bad), Err(Error::Environment(_))));
        }
        for (command_set, name) in [(1, "key value"), (2, "zoned (ZNS)"), (0x30, "0x30")] {
            let other = stn_spdk_namespace_info { command_set, ..namespace(4096, 0, 17) };
            let error = drive(&about, &other).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("namespace 2"), "{error}");
        }
        let tiny = stn_spdk_controller_facts { max_transfer_bytes: 512, ..about };
        assert!(drive(&tiny, &namespace(512, 0, 17)).is_err());
    }
}
