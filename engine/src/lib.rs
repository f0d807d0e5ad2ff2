//! The Stanchion engine. See ARCHITECTURE.md for the path of the bytes and who owns what when.

pub mod address;
pub mod device;
pub mod drives;
pub mod error;
pub mod limits;
pub mod memory;
pub mod units;

pub use error::{Damage, Error, ErrorKind, IoError};
