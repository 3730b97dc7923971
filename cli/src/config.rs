//! `config`: the configuration file.

use std::time::Instant;

use fencelock::composite::shards_away;
use fencelock::{Config, StoreUrl, in_words};

use crate::args::ConfigCheck;
use crate::exit::{Failure, Outcome, code, print, say, worse};
use crate::store::{self, Wanted};

/// Says what each store of the file is, and what is wrong with it.
pub(crate) async fn check(args: ConfigCheck, store: Wanted) -> Outcome {
    let file = store.config_file()?;
    print(&format!("{}\n", file.file()))?;
    let mut worst = code::DONE;
    for name in file.names() {
        match check_store(&file, name, args.connect).await {
            Ok(line) => print(&format!("@{name}: {line}\n"))?,
            Err(failure) => worst = worse(worst, failure.report()),
        }
    }
    if let Err(failure) = check_service(&file) {
        worst = worse(worst, failure.report());
    }
    match worst {
        code::DONE => {}
        // The file may be right, and a store away.
        code::UNAVAILABLE => {
            say("not every store of the configuration file can be reached; see the errors above")
        }
        _ => say("the configuration file cannot be used; correct the errors above"),
    }
    Ok(worst)
}

async fn check_store(file: &Config, name: &str, connect: bool) -> Result<String, Failure> {
    let url = file.url(name)?;
    let wrong = |error| Failure::from(error).of(&format!("@{name}"));
    file.store(name).check().map_err(wrong)?;
    let mut line = describe(&url)?;
    if let Some(purpose) = file.purpose(name) {
        line += &format!(", for {}", purpose.as_str());
    }
    if connect {
        let begun = Instant::now();
        let engine = store::engine_to_inspect(&url).await.map_err(wrong)?;
        // A set opens without the shards that are away.
        let shards = fencelock::shard_urls(&StoreUrl::parse(&url)?);
        let shards: Vec<_> = shards.iter().map(|(id, _)| id.as_str()).collect();
        let away = shards_away(&*engine, &shards).await.into_iter().next();
        let reached = begun.elapsed();
        let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, engine.close()).await;
        away.map_or(Ok(()), |error| Err(wrong(error)))?;
        line += &format!(", reached in {}", in_words(reached));
    }
    Ok(line)
}

/// A store, and the shards of a set.
fn describe(url: &str) -> Result<String, Failure> {
    let url = StoreUrl::parse(url)?;
    let shards = fencelock::shard_urls(&url);
    if shards.is_empty() {
        return Ok(url.to_string());
    }
    let shown = |(id, url): &(String, String)| format!("{id} = {}", StoreUrl::redacted(url));
    let shards: Vec<_> = shards.iter().map(shown).collect();
    Ok(format!("shards {}", shards.join(", ")))
}

/// What the service reads of the file.
#[cfg(feature = "serve")]
fn check_service(file: &Config) -> Result<(), Failure> {
    let name = file.file();
    let text = std::fs::read_to_string(name);
    let text = text.map_err(|error| fencelock::Error::config_file(name, error.to_string()))?;
    let settings = fencelock_server::Settings::read(name, &text)?;
    settings.check_files()?;
    crate::serve::refuse_strangers(&settings)?;
    match settings.store {
        Some(store) if store.starts_with('@') => {
            file.url(&store)?;
        }
        Some(url) => fencelock::Store::from(url).check()?,
        None => {}
    }
    Ok(())
}

/// This build has no service.
#[cfg(not(feature = "serve"))]
fn check_service(_: &Config) -> Result<(), Failure> {
    Ok(())
}
