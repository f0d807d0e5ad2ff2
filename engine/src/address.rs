// SPDX-License-Identifier: Apache-2.0
//! The name of a drive: one string, the same on the command line, in configuration and in messages.
//!
//! - `trtype:PCIe traddr:0000:04:00.0`, `trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420
//!   subnqn:nqn...`: an SPDK transport ID, with an optional ` ns:N` for a namespace other than 1,
//!   and an optional ` hostnqn:nqn...` for a target that admits only the hosts that it knows by
//!   name;
//! - `pcie:0000:04:00.0`: short for the first;
//! - anything else: the path of a block device or a file. Which of the two is found when it is
//!   opened, not here.
//!
//! Parsing needs neither SPDK nor the drive. What [`fmt::Display`] prints parses to the same
//! address.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// Bytes of an NQN, by the NVMe specification.
const MAX_NQN_BYTES: usize = 223;
/// Bytes of any other value: more than any address needs, less than SPDK's own field.
const MAX_VALUE_BYTES: usize = 255;

/// The address of a drive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DriveAddress {
    /// An NVMe namespace that SPDK drives.
    Spdk {
        /// The controller in canonical form: keys in a fixed order, without the namespace.
        transport_id: String,
        /// The namespace, from 1.
        namespace: u32,
    },
    /// A block device or a file that the kernel drives.
    Path(PathBuf),
}

/// The prefix of the PCI function in the canonical form of a PCIe transport ID.
const PCIE_PREFIX: &str = "trtype:PCIe traddr:";

/// The PCI function of a PCIe transport ID in its canonical form.
pub(crate) fn function_of_transport_id(transport_id: &str) -> Option<&str> {
    transport_id.strip_prefix(PCIE_PREFIX)
}

/// The key of this host's own name in the canonical form of an address.
const HOST_KEY: &str = " hostnqn:";

/// Splits an address in canonical form: the drive, which is the same for every host, and the name
/// that this host uses for itself there.
pub(crate) fn split_host(address: &str) -> (String, Option<&str>) {
    let Some((drive, rest)) = address.split_once(HOST_KEY) else { return (address.into(), None) };
    let (host, namespace) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    (format!("{drive}{namespace}"), Some(host))
}

impl DriveAddress {
    /// The PCI function that a PCIe address names, as `0000:04:00.0`.
    pub fn pci_function(&self) -> Option<&str> {
        match self {
            DriveAddress::Spdk { transport_id, .. } => function_of_transport_id(transport_id),
            DriveAddress::Path(_) => None,
        }
    }
}

impl FromStr for DriveAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::Usage("a drive address is empty".into()));
        }
        if let Some(bad) = text.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(wrong(text, &format!("it holds the control character {bad:?}")));
        }
        if has_prefix(text, "pcie:") {
            let rest = &text["pcie:".len()..];
            let (function, options) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            return transport_id(text, &format!("trtype:PCIe traddr:{function} {options}"));
        }
        if text.split_whitespace().any(|token| key_of(token) == Some("trtype")) {
            return transport_id(text, text);
        }
        if pci_function(text).is_some() {
            return Err(wrong(
                text,
                &format!("for the PCI function write pcie:{text}, for a file write ./{text}"),
            ));
        }
        Ok(DriveAddress::Path(PathBuf::from(text)))
    }
}

impl fmt::Display for DriveAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveAddress::Spdk { transport_id, namespace: 1 } => write!(f, "{transport_id}"),
            DriveAddress::Spdk { transport_id, namespace } => {
                write!(f, "{transport_id} ns:{namespace}")
            }
            DriveAddress::Path(path) => {
                let text = path.display().to_string();
                // A relative path that reads like another kind of address gets `./` in front.
                match text.parse::<DriveAddress>() {
                    Ok(DriveAddress::Path(parsed)) if parsed == *path => write!(f, "{text}"),
                    _ if path.is_relative() => write!(f, "./{text}"),
                    _ => write!(f, "{text}"),
                }
            }
        }
    }
}

fn wrong(address: &str, why: &str) -> Error {
    Error::Usage(format!("drive address {address:?}: {why}"))
}

fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

const KEYS: [&str; 7] = ["trtype", "adrfam", "traddr", "trsvcid", "subnqn", "hostnqn", "ns"];

/// The key of a `key:value` or `key=value` token, in lower case, if it is a known key.
fn key_of(token: &str) -> Option<&'static str> {
    let (key, _) = token.split_once([':', '='])?;
    KEYS.into_iter().find(|known| known.eq_ignore_ascii_case(key))
}

#[derive(Default)]
struct Fields<'a>([Option<&'a str>; KEYS.len()]);

impl<'a> Fields<'a> {
    fn parse(address: &str, text: &'a str) -> Result<Self, Error> {
        let mut fields = Fields::default();
        for token in text.split_whitespace() {
            let (Some(key), Some((_, value))) = (key_of(token), token.split_once([':', '=']))
            else {
                return Err(wrong(
                    address,
                    &format!("{token:?} is not one of {}, each with a value", KEYS.join(", ")),
                ));
            };
            let limit = if key.ends_with("nqn") { MAX_NQN_BYTES } else { MAX_VALUE_BYTES };
            if value.is_empty() || value.len() > limit {
                return Err(wrong(address, &format!("{key} needs a value of 1 to {limit} bytes")));
            }
            let slot = &mut fields.0[KEYS.iter().position(|known| *known == key).unwrap_or(0)];
            if slot.replace(value).is_some() {
                return Err(wrong(address, &format!("{key} is given twice")));
            }
        }
        Ok(fields)
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        KEYS.iter().position(|known| *known == key).and_then(|at| self.0[at])
    }
}

fn transport_id(address: &str, text: &str) -> Result<DriveAddress, Error> {
    let fields = Fields::parse(address, text)?;
    let need = |key: &str| {
        fields.get(key).ok_or_else(|| wrong(address, &format!("{key} is missing, as in {key}:...")))
    };
    let refuse = |key: &str, kind: &str| match fields.get(key) {
        Some(_) => Err(wrong(address, &format!("{key} does not apply to {kind}; leave it out"))),
        None => Ok(()),
    };
    let namespace = match fields.get("ns") {
        None => 1,
        Some(text) => match text.parse::<u32>() {
            // 0 names nothing and the last number names all namespaces.
            Ok(number) if number != 0 && number != u32::MAX => number,
            _ => return Err(wrong(address, "ns is a namespace number from 1, as in ns:1")),
        },
    };
    let kinds = ["PCIe", "TCP", "RDMA"];
    let given = need("trtype")?;
    let Some(kind) = kinds.into_iter().find(|kind| kind.eq_ignore_ascii_case(given)) else {
        return Err(wrong(
            address,
            &format!("trtype {given:?} is not supported; it is one of {}", kinds.join(", ")),
        ));
    };
    let traddr = need("traddr")?;
    let transport_id = if kind == "PCIe" {
        for key in ["adrfam", "trsvcid", "subnqn", "hostnqn"] {
            refuse(key, kind)?;
        }
        let function = pci_function(traddr).ok_or_else(|| {
            wrong(address, &format!("{traddr:?} is not a PCI function, as in 0000:04:00.0"))
        })?;
        format!("{PCIE_PREFIX}{function}")
    } else {
        let family = address_family(address, fields.get("adrfam"), traddr)?;
        let service = need("trsvcid")?;
        if service.parse::<u16>().is_ok_and(|port| port != 0) {
            let nqn = need("subnqn")?;
            let host =
                fields.get("hostnqn").map_or_else(String::new, |host| format!("{HOST_KEY}{host}"));
            format!(
                "trtype:{kind} adrfam:{family} traddr:{traddr} trsvcid:{service} subnqn:{nqn}{host}"
            )
        } else {
            return Err(wrong(address, "trsvcid is a port, 1 to 65535, as in trsvcid:4420"));
        }
    };
    Ok(DriveAddress::Spdk { transport_id, namespace })
}

fn address_family(address: &str, given: Option<&str>, traddr: &str) -> Result<&'static str, Error> {
    let Ok(parsed) = traddr.parse::<IpAddr>() else {
        return Err(wrong(address, &format!("traddr {traddr:?} is not an IP address")));
    };
    let family = if parsed.is_ipv4() { "IPv4" } else { "IPv6" };
    match given {
        Some(given) if !given.eq_ignore_ascii_case(family) => {
            Err(wrong(address, &format!("adrfam is {given}, but {traddr} is {family}")))
        }
        _ => Ok(family),
    }
}

/// `DOMAIN:BUS:DEVICE.FUNCTION` or `BUS:DEVICE.FUNCTION` in hexadecimal, in the form that sysfs
/// uses.
pub(crate) fn pci_function(text: &str) -> Option<String> {
    let (rest, function) = text.split_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => ("0000", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    let number = |text: &str, digits: usize, max: u32| {
        let plain = text.len() <= digits && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u32::from_str_radix(text, 16).ok()).flatten().filter(|n| *n <= max)
    };
    // Virtual root complexes (VMD) use domains of more than 16 bits.
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number(domain, 8, u32::MAX)?,
        number(bus, 2, 0xff)?,
        number(device, 2, 0x1f)?,
        number(function, 1, 7)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DriveAddress {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        let error = text.parse::<DriveAddress>().unwrap_err();
        assert!(matches!(error, Error::Usage(_)));
        error.to_string()
    }

    fn spdk(transport_id: &str, namespace: u32) -> DriveAddress {
        DriveAddress::Spdk { transport_id: transport_id.into(), namespace }
    }

    #[test]
    fn transport_ids_become_canonical() {
        let canonical = spdk("trtype:PCIe traddr:0000:0a:00.0", 1);
        for text in [
            "trtype:PCIe traddr:0000:0a:00.0",
            "traddr=0000:0A:00.0  TRTYPE=pcie",
            "pcie:0000:0a:00.0",
            "PCIe:0a:0.0",
            "pcie:0a:00.0 ns:1",
        ] {
            assert_eq!(parse(text), canonical, "{text}");
        }
        assert_eq!(parse("pcie:10000:01:00.0 ns:7"), spdk("trtype:PCIe traddr:10000:01:00.0", 7));
        let tcp = "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2016-06.io:c";
        assert_eq!(parse(tcp), spdk(tcp, 1));
        assert_eq!(
            parse("trtype:rdma traddr:fe80::1 subnqn:nqn.x trsvcid:4420 ns:2"),
            spdk("trtype:RDMA adrfam:IPv6 traddr:fe80::1 trsvcid:4420 subnqn:nqn.x", 2)
        );
    }

    #[test]
    fn a_host_has_a_name_of_its_own() {
        let drive = "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.x";
        let named = parse(&format!("hostnqn:nqn.h:1 {drive} ns:2"));
        assert_eq!(named, spdk(&format!("{drive} hostnqn:nqn.h:1"), 2));
        let printed = named.to_string();
        assert_eq!(printed, format!("{drive} hostnqn:nqn.h:1 ns:2"));
        assert_eq!(parse(&printed), named);
        assert_eq!(split_host(&printed), (format!("{drive} ns:2"), Some("nqn.h:1")));
        assert_eq!(split_host(drive), (drive.into(), None));
        assert!(error(&format!("{drive} hostnqn:")).contains("hostnqn needs a value"));
        let long = format!("{drive} hostnqn:{}", "n".repeat(MAX_NQN_BYTES + 1));
        assert!(error(&long).contains("1 to 223 bytes"));
        assert!(error("pcie:04:00.0 hostnqn:x").contains("does not apply to PCIe"));
    }

    #[test]
    fn everything_else_is_a_path() {
        for text in ["/dev/nvme0n1", "drive.img", "./0000:04:00.0", "/a b/c", "trtype.img", "a:b"] {
            assert_eq!(parse(text), DriveAddress::Path(text.into()));
        }
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in ["pcie:0a:00.0 ns:3", "/dev/sda", "x.img", "./pcie:04:00.0", "./trtype:x y"] {
            let address = parse(text);
            assert_eq!(parse(&address.to_string()), address, "{text}");
        }
        let odd = DriveAddress::Path("pcie:04:00.0".into());
        assert_eq!(odd.to_string(), "./pcie:04:00.0");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "empty"),
            ("a\nb", "control character"),
            ("0000:04:00.0", "write pcie:0000:04:00.0"),
            ("pcie:", "traddr needs a value"),
            ("pcie:04:20.0", "not a PCI function"),
            ("pcie:04:00.8", "not a PCI function"),
            ("pcie:04:00.0 ns:0", "from 1"),
            ("pcie:04:00.0 ns:4294967295", "from 1"),
            ("pcie:04:00.0 subnqn:x", "does not apply to PCIe"),
            ("pcie:04:00.0 what", "is not one of"),
            ("trtype:FC traddr:x", "not supported"),
            ("trtype:TCP traddr:127.0.0.1", "trsvcid is missing"),
            ("trtype:TCP traddr:127.0.0.1 trsvcid:4420", "subnqn is missing"),
            ("trtype:TCP traddr:127.0.0.1 trsvcid:0 subnqn:x", "is a port"),
            ("trtype:TCP traddr:host trsvcid:4420 subnqn:x", "not an IP address"),
            ("trtype:TCP adrfam:IPv4 traddr:::1 trsvcid:4420 subnqn:x", "is IPv6"),
            ("trtype:TCP trtype:TCP", "twice"),
        ] {
            let message = error(text);
            assert!(message.contains(part), "{text:?}: {message}");
        }
        let long = format!(
            "trtype:TCP traddr:127.0.0.1 trsvcid:1 subnqn:{}",
            "n".repeat(MAX_NQN_BYTES + 1)
        );
        assert!(error(&long).contains("223"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "[ -~]{0,60}") {
            if let Ok(address) = text.parse::<DriveAddress>() {
                proptest::prop_assert_eq!(parse(&address.to_string()), address);
            }
        }
    }
}
