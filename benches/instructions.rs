// SPDX-License-Identifier: Apache-2.0
//! Runs one operation COUNT times: `instructions NAME COUNT`. `scripts/instructions` counts, by
//! Callgrind, what that costs, and takes the difference of two runs for the cost of one operation.

#![allow(missing_docs, clippy::unwrap_used)]

mod operations;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let operations = operations::all();
    let [name, count] = arguments.as_slice() else {
        operations.iter().for_each(|operation| println!("{}", operation.name));
        return;
    };
    let count: u32 = count.parse().expect("a count");
    let operation = operations
        .iter()
        .find(|operation| operation.name == name)
        .unwrap_or_else(|| panic!("no operation {name}"));
    let mut run = (operation.make)();
    (0..count).for_each(|_| run());
}
