//! Memory that drives may read and write directly.

mod region;

pub use region::{HUGE_PAGE_BYTES, HugePages, Region};
