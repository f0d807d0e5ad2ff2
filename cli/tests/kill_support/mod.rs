// SPDX-License-Identifier: Apache-2.0
//! Kill-and-reopen: the real command is killed (SIGKILL) at random instants, and what the next
//! process finds is compared with a model of what was acknowledged.
//!
//! - The model knows only what commands said when they ended with code 0. It shares no code with
//!   the engine: contents are bytes that this test made, space is counted from their lengths.
//! - An instant is drawn uniformly over the duration of the operation, as measured in runs
//!   without a kill. An operation that ends before its instant counts as finished, and its duration
//!   is the new measure; each kill lengthens it a little. So it follows the machine's load, and
//!   instants fall on the end of an operation as often as on its beginning.
//! - Everything random comes from one seed, which is printed. `STANCHION_TEST_SEED` sets it:
//!   the same operations, contents and instants; where in the code an instant falls depends on the
//!   machine.
//! - The live checkpoints leave room for one large save and little more: space that a dead process
//!   kept would soon make a save fail. Any failure that is not a kill fails the test.

// Each test file uses its own part of this.
#![allow(dead_code)]

mod model;
mod operation;
mod rig;
#[allow(unsafe_code)]
#[path = "../../../engine/tests/common/target.rs"]
mod target;

use std::time::Duration;

use model::{Fate, Model, Seen};
use operation::{Kind, Operation, Step};
pub use rig::Rig;
use rig::{Ended, MIB};

/// A kill multiplies the duration that instants are drawn from by this. A finished operation resets
/// it: about one in eight finishes.
const LENGTHENED: f64 = 1.03;

/// Pieces of random numbers (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

/// How long to go on, and how much to look at after each kill.
pub struct Plan {
    /// Ends when this many operations were killed; without it, after `rounds`.
    pub kills: Option<u64>,
    pub rounds: u64,
    /// Every how many rounds the pool is listed and verified, and one checkpoint is restored. In
    /// each round the outcome of a killed step is checked.
    pub look_every: u64,
    /// Every how many rounds every checkpoint is restored.
    pub restore_every: u64,
    /// Every how many rounds the free space is filled to the last chunk.
    pub fill_every: u64,
    /// Runs that measure each kind of operation.
    pub measurements: u64,
    pub small_bytes: (u64, u64),
    pub medium_bytes: (u64, u64),
    pub large_bytes: u64,
}

impl Plan {
    /// 100 kills, or what `STANCHION_KILL_ROUNDS` asks for.
    fn with_environment(mut self) -> Plan {
        if let Ok(text) = std::env::var("STANCHION_KILL_ROUNDS") {
            self.rounds = text.parse().expect("STANCHION_KILL_ROUNDS is a number");
            self.kills = None;
        }
        self
    }

    pub fn kernel() -> Plan {
        let plan = Plan {
            kills: Some(100),
            rounds: 142,
            look_every: 1,
            restore_every: 5,
            fill_every: 10,
            measurements: 2,
            small_bytes: (1, MIB),
            medium_bytes: (4 * MIB, 9 * MIB),
            large_bytes: 32 * MIB,
        };
        plan.with_environment()
    }

    /// SPDK takes most of a second to start, so fewer processes look at the pool after each kill.
    pub fn spdk() -> Plan {
        let plan = Plan {
            look_every: 10,
            restore_every: 30,
            fill_every: 30,
            measurements: 1,
            large_bytes: 24 * MIB,
            ..Plan::kernel()
        };
        plan.with_environment()
    }

    fn goes_on(&self, counts: &Counts) -> bool {
        counts.rounds < self.rounds && self.kills.is_none_or(|kills| counts.killed < kills)
    }
}

#[derive(Default)]
struct Counts {
    rounds: u64,
    killed: u64,
    acknowledged: u64,
}

/// The outcomes of the operations of one kind.
#[derive(Default, Clone, Copy)]
struct Tally {
    finished: u64,
    /// Killed, and the killed step left nothing visible.
    undone: u64,
    /// Killed, and the killed step is visible as a whole.
    done: u64,
    /// Killed, and neither (a format that left no pool; a part of several removals).
    between: u64,
}

struct Test {
    rig: Rig,
    plan: Plan,
    numbers: Numbers,
    model: Model,
    counts: Counts,
    durations: [Duration; Kind::COUNT],
    tallies: [Tally; Kind::COUNT],
    names: u64,
}

/// Runs the test; panics when the next process finds a state that is not allowed.
pub fn run(name: &str, rig: Rig, plan: Plan) {
    let seed = match std::env::var("STANCHION_TEST_SEED") {
        Ok(text) => text.parse().expect("STANCHION_TEST_SEED is a number"),
        Err(_) => rand_seed(),
    };
    println!("kill-test ({name}): STANCHION_TEST_SEED={seed} replays it");
    let mut test = Test {
        rig,
        plan,
        numbers: Numbers(seed),
        model: Model::default(),
        counts: Counts::default(),
        durations: Default::default(),
        tallies: Default::default(),
        names: 0,
    };
    test.measure();
    while test.plan.goes_on(&test.counts) {
        test.round();
    }
    test.report(name, seed);
    let Counts { rounds, killed, .. } = test.counts;
    assert!(killed * 10 >= rounds * 7, "only {killed} of {rounds} operations were killed");
}

fn rand_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a clock after 1970").as_nanos() as u64 % 1_000_000_000
}

impl Test {
    /// Runs each kind of operation to its end, and takes the median of the durations.
    fn measure(&mut self) {
        for kind in Kind::ALL {
            let mut took: Vec<Duration> = Vec::new();
            for _ in 0..self.plan.measurements {
                let operation = self.prepare(kind);
                let (cut_short, duration) = self.perform(&operation, None);
                assert!(cut_short.is_none());
                took.push(duration);
            }
            took.sort();
            self.durations[kind as usize] = took[took.len() / 2];
        }
        self.model.check(&Seen::look(&self.rig), &self.rig.context);
        self.look(true, false);
    }

    fn round(&mut self) {
        let kind = Kind::draw(&mut self.numbers);
        let operation = self.prepare(kind);
        let over = self.durations[kind as usize].as_micros() as u64;
        let instant = Duration::from_micros(self.numbers.between(0, over));
        self.counts.rounds += 1;
        let what = format!("round {}: {kind:?} killed after {instant:?}", self.counts.rounds);
        // Shown when an assertion below fails.
        self.rig.context = what;
        let (cut_short, took) = self.perform(&operation, Some(instant));
        // In a new process, right after the kill: it must open the pool, or find none.
        let mut seen = Seen::look(&self.rig);
        let round = self.counts.rounds;
        let look = round.is_multiple_of(self.plan.look_every);
        match cut_short {
            None => {
                self.durations[kind as usize] = took;
                self.tallies[kind as usize].finished += 1;
            }
            Some(step) => {
                self.durations[kind as usize] = self.durations[kind as usize].mul_f64(LENGTHENED);
                self.counts.killed += 1;
                self.settle(kind, step, &seen, look);
            }
        }
        if seen == Seen::NoPool {
            // Whatever a format left behind, the next one works.
            self.make_pool(kind == Kind::FormatOver);
            seen = Seen::look(&self.rig);
        }
        self.model.check(&seen, &self.rig.context);
        if look {
            let repairs = matches!(kind, Kind::FormatFirst | Kind::FormatOver);
            self.look(round.is_multiple_of(self.plan.restore_every), repairs);
        }
        if round.is_multiple_of(self.plan.fill_every) {
            self.fill();
        }
    }

    /// Runs the steps, and kills the one that runs at `instant`. Returns that step, and the time
    /// that the processes took.
    fn perform<'a>(
        &mut self,
        operation: &'a Operation,
        instant: Option<Duration>,
    ) -> (Option<&'a Step>, Duration) {
        let mut took = Duration::ZERO;
        for step in &operation.0 {
            let arguments = self.rig.arguments(step);
            let left = instant.map(|instant| instant.saturating_sub(took));
            let (ended, duration) = self.rig.run_until(&arguments, left);
            took += duration;
            match ended {
                Ended::Killed => return (Some(step), took),
                Ended::Exited(outcome) => {
                    self.counts.acknowledged += 1;
                    self.model.acknowledge(step, &outcome.ok(&self.rig).json());
                }
            }
        }
        (None, took)
    }

    /// Decides from what is visible how the killed step ended.
    fn settle(&mut self, kind: Kind, step: &Step, seen: &Seen, look: bool) {
        let fate = self.model.settle(step, seen, &self.rig.context);
        let tally = &mut self.tallies[kind as usize];
        match fate {
            Fate::Undone => tally.undone += 1,
            Fate::Done => tally.done += 1,
            Fate::Between => tally.between += 1,
        }
        if let Step::Save { name, files } = step {
            match fate {
                Fate::Undone if look => drop(self.rig.run(&["show", name]).fails(&self.rig, 10)),
                Fate::Undone => {}
                // Complete, although not acknowledged.
                Fate::Done | Fate::Between => self.rig.restores(name, files),
            }
        }
    }

    fn make_pool(&mut self, force: bool) {
        self.perform(&Operation(vec![Step::Format { force }]), None);
    }

    /// Compares what the pool lists and restores with the model. `repairs`: labels may have been
    /// erased in part, which opening for writing repairs.
    fn look(&mut self, restore_all: bool, repairs: bool) {
        self.model.check_list(&self.rig);
        let count = self.model.checkpoints().count() as u64;
        let chosen = self.numbers.between(0, count.max(1) - 1);
        for (number, (name, files)) in self.model.checkpoints().enumerate() {
            if restore_all || number as u64 == chosen {
                self.rig.restores(name, files);
            }
        }
        if repairs {
            self.rig.run(&["verify", "--repair", "--json"]).ok(&self.rig);
        }
        let verified = self.rig.run(&["verify", "--json"]).ok(&self.rig).json();
        assert_eq!(verified["clean"], true, "{}: {verified}", self.rig.context);
        assert_eq!(verified["checkpoint_count"], count, "{}: {verified}", self.rig.context);
    }

    /// Fills the free space to the last chunk. What `show` calls free is counted from the visible
    /// checkpoints; this asks the allocator.
    fn fill(&mut self) {
        let name = self.new_name("fill");
        let len_bytes = self.model.free_bytes();
        let files = self.rig.make_files(&name, &[len_bytes], &mut self.numbers);
        let save = Step::Save { name: name.clone(), files };
        self.perform(&Operation(vec![save, Step::Remove { names: vec![name] }]), None);
        self.rig.forget_files(self.model.checkpoints().map(|(name, _)| name));
    }

    fn new_name(&mut self, base: &str) -> String {
        self.names += 1;
        format!("{base}@{}", self.names)
    }

    fn report(&self, name: &str, seed: u64) {
        println!("{:>14} {:>9} | killed and: undone, done, between | finished", "operation", "ms");
        for kind in Kind::ALL {
            let Tally { finished, undone, done, between } = self.tallies[kind as usize];
            let ms = self.durations[kind as usize].as_secs_f64() * 1e3;
            println!(
                "{:>14} {ms:>9.1} | {undone:>3} {done:>3} {between:>3} | {finished:>3}",
                format!("{kind:?}")
            );
        }
        let unanswered = self.rig.unanswered.get();
        if unanswered > 0 {
            println!("{unanswered} connections were not answered in time and were tried again");
        }
        let Counts { rounds, killed, acknowledged } = self.counts;
        println!(
            "kill-test ({name}): {rounds} rounds, {killed} killed, {acknowledged} acknowledged, \
             violations 0, seed {seed}"
        );
    }
}
