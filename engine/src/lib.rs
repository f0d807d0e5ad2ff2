//! The Stanchion engine. See ARCHITECTURE.md for the path of the bytes and who owns what when.

pub mod device;
pub mod direct;
pub mod drives;
pub mod error;
pub mod extent;
pub mod format;
pub mod limits;
pub mod memory;
pub mod ring;
pub mod units;

pub use error::{Damage, Error, ErrorKind, IoError};
