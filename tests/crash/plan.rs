//! What happens to whom in a round, and after how much progress.

use kvtide_core::rng::Rng;

/// What is done. Members are named by their place in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    KillMember {
        who: usize,
    },
    KillServer,
    /// Both at once, the member first.
    KillBoth {
        who: usize,
    },
    /// Until another one has gone on for longer than anything lives that is not used.
    StopMember {
        who: usize,
        other: usize,
    },
    /// Until somebody has waited for an answer in vain.
    StopServer,
}

/// A blow, and when: after so many more lines in the history of one member, and where it is named
/// what that member is to be at, as soon as it has been caught at that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub by: usize,
    pub lines: u64,
    pub amid: Option<&'static str>,
    pub blow: Blow,
}

/// Parts of the lines that say what a member is at.
pub const WRITING: &str = "\"wrote\"";
pub const COMMITTING: &str = "\"do\":\"commit\"";
pub const READING: &str = "\"reading\"";

/// Lines that pass between two blows, at most.
const LINES_BETWEEN: u64 = 150;

/// The steps of a round: each kind of blow at least once, in an order of the seed's. The first
/// member only asks; all others write and read. The last two need nobody else to go on.
pub fn steps(seed: u64, members: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let any = |rng: &mut Rng| rng.below(members as u64) as usize;
    let transferring = |rng: &mut Rng| 1 + rng.below(members as u64 - 1) as usize;
    let mut steps = Vec::new();
    let mut push = |rng: &mut Rng, by: usize, amid, blow| {
        steps.push(Step { by, lines: 1 + rng.below(LINES_BETWEEN), amid, blow });
    };
    for amid in [WRITING, COMMITTING, READING] {
        let who = transferring(&mut rng);
        push(&mut rng, who, Some(amid), Blow::KillMember { who });
    }
    let who = any(&mut rng);
    push(&mut rng, who, None, Blow::KillMember { who });
    let by = transferring(&mut rng);
    push(&mut rng, by, Some(COMMITTING), Blow::KillServer);
    let by = any(&mut rng);
    push(&mut rng, by, None, Blow::KillServer);
    let (who, by) = (any(&mut rng), any(&mut rng));
    push(&mut rng, by, None, Blow::KillBoth { who });
    let who = transferring(&mut rng);
    let other = if who == members - 1 { members - 2 } else { members - 1 };
    let amid = [WRITING, COMMITTING, READING][rng.below(3) as usize];
    push(&mut rng, who, Some(amid), Blow::StopMember { who, other });
    if seed.is_multiple_of(2) {
        let by = any(&mut rng);
        push(&mut rng, by, None, Blow::StopServer);
    }
    for at in (1..steps.len()).rev() {
        steps.swap(at, rng.below(at as u64 + 1) as usize);
    }
    steps
}

#[test]
fn a_seed_is_a_plan_and_every_plan_has_all_kinds() {
    for seed in 0..50 {
        let plan = steps(seed, 5);
        assert_eq!(plan, steps(seed, 5));
        let count = |is: fn(&Blow) -> bool| plan.iter().filter(|step| is(&step.blow)).count();
        assert_eq!(count(|blow| matches!(blow, Blow::KillServer)), 2);
        assert_eq!(count(|blow| matches!(blow, Blow::KillMember { .. })), 4);
        assert_eq!(count(|blow| matches!(blow, Blow::KillBoth { .. })), 1);
        assert_eq!(count(|blow| matches!(blow, Blow::StopServer)), usize::from(seed % 2 == 0));
        for step in plan {
            assert!(step.by < 5);
            if let Blow::StopMember { who, other } = step.blow {
                assert!(who != other && who < 5 && [3, 4].contains(&other));
            }
            assert!(step.amid.is_none() || step.by > 0, "the scheduler moves no bytes");
        }
    }
    assert_ne!(steps(1, 5), steps(2, 5));
}
