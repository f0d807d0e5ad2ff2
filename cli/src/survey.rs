// SPDX-License-Identifier: Apache-2.0
//! What drives hold, for people.

use comfy_table::Table;
use stanchion_engine::Survey;
use stanchion_engine::host::safety::Findings;

use crate::output::{self, plain};
use crate::record::describe;

/// A table of what drives hold.
pub fn table(surveys: &[Survey]) -> Table {
    let header = ["ADDRESS", "SERIAL", "MODEL", "SIZE", "CONTENT", "IN USE"];
    let mut table = output::table(&header, &["SIZE"]);
    for survey in surveys {
        let info = survey.info.as_ref();
        table.add_row([
            plain(&survey.address),
            plain(survey.serial()),
            plain(info.map_or("", |info| &info.model)),
            info.map_or_else(String::new, |info| output::size(info.capacity_bytes)),
            plain(&describe(&survey.content)),
            plain(&in_use(&survey.in_use)),
        ]);
    }
    table
}

/// Who uses a drive, in words.
pub fn in_use(findings: &Findings) -> String {
    if findings.is_clear() { "no".to_owned() } else { findings.to_string() }
}
