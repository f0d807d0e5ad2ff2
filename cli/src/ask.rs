// SPDX-License-Identifier: Apache-2.0
//! Questions on the terminal, before something is destroyed.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use crate::error::CommandError;
use crate::output::plain;

/// Asks one question on the terminal and returns the trimmed answer.
///
/// # Errors
/// [`CommandError::Refused`] where there is no terminal. Its text has `loss`, which
/// says what would be lost, and the option that confirms: `--yes`.
pub fn ask(question: &str, loss: &str) -> Result<String, CommandError> {
    if !stdin().is_terminal() {
        return Err(CommandError::Refused(format!("{loss}; pass --yes to confirm")));
    }
    // Names in it may come from a drive.
    let shown: Vec<String> = question.split('\n').map(plain).collect();
    let mut answer = String::new();
    stderr()
        .write_all(format!("{} ", shown.join("\n")).as_bytes())
        .and_then(|()| stderr().flush())
        .and_then(|()| stdin().read_line(&mut answer))
        .map_err(|error| CommandError::os("asking on the terminal", error))?;
    Ok(answer.trim().to_owned())
}
