// SPDX-License-Identifier: Apache-2.0
//! Words: how many of a thing, and text of unknown origin for a terminal.

/// A number of things, in words: `1 file`, `2 files`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Text of unknown origin, without characters that a terminal would act on: controls, those that
/// change the direction of text, and line ends.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || is_invisible(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Marks and controls that show nothing, but change how other characters are shown.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_nothing_to_act_on() {
        assert_eq!(plain("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(
            plain("a\u{202e}b\u{2066}\u{200f}\u{2028}"),
            "a\\u{202e}b\\u{2066}\\u{200f}\\u{2028}"
        );
        assert_eq!(plain("modèle 模型 e\u{301}"), "modèle 模型 e\u{301}");
    }
}
