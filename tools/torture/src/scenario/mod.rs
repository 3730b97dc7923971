//! Accidents that happened with home-made locks, on real servers. Each scenario runs the recipe and this library side by
//! side. The recipe must fail, and this library must hold or report the loss in time.

/// A scenario: its name, a description, and its function.
macro_rules! scenario {
    ($name:literal, $about:literal, $run:ident) => {
        Scenario {
            name: $name,
            about: $about,
            run: || Box::pin($run()),
        }
    };
}

mod etcd;
mod nodes;
mod redis;
mod sql;
mod story;

use fencelock_testbed::{Failure, Result};

use story::{Outcome, Scenario};

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    let all = [
        redis::SCENARIOS,
        nodes::SCENARIOS,
        sql::SCENARIOS,
        etcd::SCENARIOS,
    ];
    all.into_iter().flatten()
}

/// Runs the scenario with this name.
pub(crate) async fn run(name: &str) -> Result<Outcome> {
    let found = all().find(|scenario| scenario.name == name);
    let scenario = found.ok_or_else(|| {
        Failure::new(format!("there is no scenario {name:?}; --list prints them"))
    })?;
    let [naive, ours] = (scenario.run)().await?;
    Ok(Outcome {
        name: scenario.name,
        about: scenario.about,
        naive,
        ours,
    })
}
