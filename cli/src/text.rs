// SPDX-License-Identifier: Apache-2.0
//! Words: how many of a thing, and text of unknown origin for a terminal.

/// A number of things, in words: `1 file`, `2 files`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Text of unknown origin, without characters that a terminal would act on.
pub fn plain(text: &str) -> String {
    let escape = |c: char| {
        if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_nothing_to_act_on() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
