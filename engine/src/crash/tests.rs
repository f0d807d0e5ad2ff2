//! A few thousand images of what `scripts/crash-test` looks at more of.

use super::*;

fn options(images: u64, seed: u64) -> CrashOptions {
    CrashOptions { images, seed, threads: 2, only: None }
}

#[test]
fn a_few_thousand_crashes() {
    let report = explore(options(2_000, 1)).unwrap_or_else(|violation| panic!("{violation:?}"));
    assert!(report.distinct >= 2_000 && report.images >= report.distinct);
    assert!(report.sequences >= GROUP as u64);
}

#[test]
fn one_seed_gives_one_run() {
    let runs = [1, 2].map(|threads| {
        let report = explore(CrashOptions { threads, ..options(500, 7) });
        let report = report.unwrap_or_else(|violation| panic!("{violation:?}"));
        (report.images, report.distinct, report.sequences)
    });
    assert_eq!(runs[0], runs[1]);
}
