//! `cargo sim --planted`: the proof is proved. Every bug that is planted in the core must be found
//! by a few seeds, or the simulator has a hole.
//!
//! Without the feature `planted` this only builds itself anew with it, in a target folder of its
//! own, and hands the words over.

/// Runs `--planted [NUMBER…] [--all] [--seeds N]`; without numbers, all bugs that must be caught.
#[cfg(not(feature = "planted"))]
pub fn run(words: &[String]) -> std::process::ExitCode {
    use std::path::PathBuf;
    use std::process::{Command, ExitCode};
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let ended = Command::new(cargo)
        .args(["run", "--release", "-q", "-p", "kvtide-sim", "--features", "planted"])
        .arg("--target-dir")
        .arg(target.join("planted"))
        .args(["--", "--planted"])
        .args(words)
        .current_dir(&root)
        .status();
    match ended {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "planted")]
pub use hunt::run;

#[cfg(feature = "planted")]
mod hunt {
    use crate::profile::Profile;
    use crate::run_profile;
    use kvtide_core::planted::{BUGS, Bug};
    use std::process::ExitCode;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The first seed that met a bug.
    struct Catch {
        seed: u64,
        events: u64,
        rule: String,
    }

    struct Order {
        numbers: Vec<u32>,
        /// Those that need not be caught yet as well.
        all: bool,
        seeds: u64,
    }

    impl Order {
        fn parse(words: &[String]) -> Option<Order> {
            let mut order = Order { numbers: Vec::new(), all: false, seeds: SEEDS };
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match word.as_str() {
                    "--all" => order.all = true,
                    "--seeds" => order.seeds = words.next()?.parse().ok()?,
                    number => order.numbers.push(number.parse().ok()?),
                }
            }
            Some(order)
        }

        fn bugs(&self) -> Vec<&'static Bug> {
            let is_meant = |bug: &&Bug| {
                let is_one = self.numbers.is_empty() && (self.all || bug.missing.is_empty());
                is_one || self.numbers.contains(&bug.number)
            };
            BUGS.iter().filter(is_meant).collect()
        }
    }

    /// Runs `--planted [NUMBER…] [--all] [--seeds N]`; without numbers, all bugs that must be
    /// caught. Only where nothing fails without a bug: else anything would be taken for a catch.
    pub fn run(words: &[String]) -> ExitCode {
        let Some(order) = Order::parse(words) else {
            eprintln!("usage: kvtide-sim --planted [NUMBER…] [--all] [--seeds N]");
            return ExitCode::from(2);
        };
        // Many of them end in a panic, which is as good as any other failure.
        std::panic::set_hook(Box::new(|_| {}));
        let clean = order.seeds.min(CLEAN_SEEDS);
        if let Some(Catch { seed, rule, .. }) = first_catch(&NO_BUG, clean) {
            eprintln!("seed {seed} fails without a bug, so nothing is proved: {rule}");
            return ExitCode::FAILURE;
        }
        let bugs = order.bugs();
        let catches = hunt(&bugs, order.seeds);
        println!("  no  race   seeds  events  bug: rule that failed");
        let mut escaped = 0;
        for (bug, catch) in bugs.iter().zip(&catches) {
            let Bug { number, race, name, missing, .. } = bug;
            match catch {
                Some(Catch { seed, events, rule }) => {
                    let rule = rule.lines().next().unwrap_or_default();
                    let seeds = seed + 1;
                    let now = if missing.is_empty() { "" } else { "now caught: " };
                    println!("{number:>4}  {race:<5} {seeds:>6}  {events:>6}  {name}: {now}{rule}");
                }
                None if !missing.is_empty() => {
                    println!("{number:>4}  {race:<5} {:>6}  {:>6}  {name}: {missing}", "-", "-");
                }
                None => {
                    escaped += 1;
                    println!("{number:>4}  {race:<5} {:>6}  {:>6}  {name}: ESCAPED", "-", "-");
                }
            }
        }
        let caught = catches.iter().flatten().count();
        println!("{caught} of {} bugs are caught within {} seeds", bugs.len(), order.seeds);
        if escaped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Seeds from 0 on, for every bug until one fails; over all cores.
    fn hunt(bugs: &[&Bug], seeds: u64) -> Vec<Option<Catch>> {
        let next = AtomicUsize::new(0);
        let catches = Mutex::new(Vec::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(bug) = bugs.get(at) else { return };
                        let catch = first_catch(bug, seeds);
                        catches.lock().expect("nobody panics with it").push((at, catch));
                    }
                });
            }
        });
        let mut catches = catches.into_inner().expect("nobody panics with it");
        catches.sort_by_key(|(at, _)| *at);
        catches.into_iter().map(|(_, catch)| catch).collect()
    }

    fn first_catch(bug: &Bug, seeds: u64) -> Option<Catch> {
        (0..seeds).find_map(|seed| try_seed(bug, seed))
    }

    fn try_seed(bug: &Bug, seed: u64) -> Option<Catch> {
        let mut profile = Profile::of(seed);
        profile.config.planted = bug.number;
        let failure = run_profile(profile, 0).err()?;
        Some(Catch { seed, events: failure.events, rule: failure.rule })
    }

    /// So many seeds are tried for each bug, where nothing else is said.
    const SEEDS: u64 = 500;
    /// And so many without a bug.
    const CLEAN_SEEDS: u64 = 20;
    const NO_BUG: Bug = Bug { number: 0, name: "", race: "", wrong: "", missing: "" };

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_bug_has_a_number_and_a_name_of_its_own() {
            for (at, bug) in BUGS.iter().enumerate() {
                assert_eq!(bug.number as usize, at + 1);
                assert_eq!(BUGS.iter().filter(|other| other.name == bug.name).count(), 1);
            }
        }

        #[test]
        fn without_a_bug_the_same_seeds_pass() {
            assert!(first_catch(&NO_BUG, 5).is_none());
        }

        #[test]
        fn what_need_not_be_caught_yet_is_tried_only_where_it_is_asked_for() {
            let bugs = |words: &[&str]| {
                let words: Vec<String> = words.iter().map(|word| (*word).into()).collect();
                Order::parse(&words).expect("an order").bugs()
            };
            assert!(bugs(&[]).iter().all(|bug| bug.missing.is_empty()));
            assert_eq!(bugs(&["--all", "--seeds", "3"]).len(), BUGS.len());
            for bug in BUGS {
                let named = bugs(&[&bug.number.to_string()]);
                assert_eq!(named.iter().map(|bug| bug.number).collect::<Vec<_>>(), [bug.number]);
            }
        }
    }
}
