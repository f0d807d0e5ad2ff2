//! Memory that drives may read and write directly.

mod arena;
mod region;
mod table;

pub use arena::{Arena, Buffer, BufferUsage};
pub use region::{HUGE_PAGE_BYTES, HugePages, Region};
pub use table::{BufferTable, Registration};
