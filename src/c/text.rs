// SPDX-License-Identifier: Apache-2.0
//! Text into a buffer of the caller's.

#![allow(unsafe_code)]

use std::ffi::c_char;

/// Copies as much text as there is room for, and a NUL.
///
/// # Safety
/// `buffer` is NULL, or has room for `size` bytes.
pub(crate) unsafe fn write_text(buffer: *mut c_char, size: usize, text: &str) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let count = text.floor_char_boundary(size - 1);
    // SAFETY: the caller's promise; count + 1 <= size.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
        buffer.add(count).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_a_character_ends() {
        let mut buffer = [1; 8];
        // SAFETY: the buffer has 3 bytes.
        unsafe { write_text(buffer.as_mut_ptr(), 3, "aé") };
        assert_eq!(buffer[..3], [b'a' as c_char, 0, 1]);
    }
}
