//! A group whose coordinator moves: three brokers that replicate one partition of `__consumer_offsets`, in a small model, each
//! with a coordinator while it believes that it leads, and members as clients have them. All of it goes on in an order that
//! is drawn from a seed: brokers crash, are deposed without hearing of it, members crash, answers are lost.
//!
//! What is held to: an offset that was acknowledged is there at every later coordinator, or a later one; a generation has one
//! assignment, of which each partition is one member's; once nothing fails any more, all members have an assignment
//! and commit.

mod simulated;

use simulated::World;

/// How many runs the test makes. One takes a few milliseconds.
const SEEDS: u64 = 100;

/// Steps of a run in which things fail, and of the time after that.
const FAULTY_STEPS: usize = 10_000;

#[test]
fn what_was_acknowledged_is_kept_and_generations_have_one_assignment() {
    let (mut elections, mut generations, mut commits, mut lost) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..FAULTY_STEPS {
            world.step();
        }
        world.heal();
        elections += world.elections();
        generations += world.generations();
        commits += world.acknowledged();
        lost += world.records_cut();
    }
    // Were there no fail-overs, or nothing to lose in them, the runs would show little.
    println!(
        "{elections} elections, {generations} generations, {commits} commits, {lost} records that nobody was told of"
    );
    assert!(elections > SEEDS * 5, "{elections} elections");
    assert!(generations > SEEDS * 5, "{generations} generations");
    assert!(commits > SEEDS * 20, "{commits} commits");
    assert!(lost > SEEDS, "{lost} records cut off");
}
