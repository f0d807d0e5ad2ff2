// SPDX-License-Identifier: Apache-2.0
//! The middle of several measurements.

/// The middle of some numbers, or of the two in the middle. There is at least one.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let half = numbers.len() / 2;
    f64::midpoint(numbers[half], numbers[(numbers.len() - 1) / 2])
}
