//! What the tests of the engine `redlock` need beside its servers.

use crate::failure::{Failure, Result};
use crate::redis::Redis;

/// The engine keeps a server that it has not seen before from voting, half a minute by default, and notes at the server
/// since when it is seen. This makes it long ago, so that a test can begin.
///
/// # Errors
/// If the server does not answer.
pub fn seen_long_ago(node: &Redis, database: u32) -> Result<()> {
    let info: String = node.command(&["INFO", "server"])?;
    let run = info
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .ok_or_else(|| Failure::new("a redis-server without a run id"))?;
    let since = format!("{run}:1");
    let noted = node.connect().and_then(|mut connection| {
        let mut commands = redis::pipe();
        commands.cmd("SELECT").arg(database);
        commands
            .cmd("HSET")
            .arg("fencelock:redlock")
            .arg("since")
            .arg(since);
        commands.query::<()>(&mut connection)
    });
    noted.map_err(Failure::to("note since when a server is seen"))
}
