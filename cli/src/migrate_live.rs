//! `migrate`, while programs run: shows what the library does.

use std::time::{Duration, SystemTime};

use fencelock::composite::{How, Migration, Phase, Prepare, Status, Stepped};
use fencelock::{MigrateSet, ShardSet, StoreUrl, Token, in_words, shard_urls};
use serde_json::{Value, json};

use crate::args::{Migrate, MigrateBegin, MigrateFinish, MigrateGo, MigratePrepare, MigrateStatus};
use crate::exit::{Failure, Outcome, code, print, say};
use crate::store::Wanted;

pub(crate) async fn migrate(what: Migrate, wanted: Wanted) -> Outcome {
    match what {
        Migrate::Prepare(args) => prepare(&args, wanted).await,
        Migrate::Begin(MigrateBegin {
            despite_findings,
            record_lost,
        }) => {
            let by = who();
            let begun = migration(wanted)?;
            let how = how(&by, None)?.despite_findings(despite_findings);
            let how = how.record_lost(record_lost);
            end(begun.begin(&how).await?)
        }
        Migrate::Status(args) => status(&args, wanted).await,
        Migrate::Finish(args) => finish(&args, wanted).await,
        Migrate::Abort(args) => {
            let by = who();
            let aborted = migration(wanted)?;
            end(aborted.abort(&how(&by, Some(&args))?).await?)
        }
        // `main` passes this subcommand to another module.
        Migrate::Offline { .. } => Err(Failure::usage("`migrate offline` takes FROM and TO")),
    }
}

/// The migration that `--store` names.
fn migration(wanted: Wanted) -> Result<Migration, Failure> {
    let url = wanted.resolve()?.url;
    Ok(MigrateSet::parse(&url)?.migration()?)
}

fn how<'a>(by: &'a str, args: Option<&MigrateGo>) -> Result<How<'a>, Failure> {
    let mut how = How::new(by).tell(&|what| say(what));
    let [patience, quiet] = args.map(MigrateGo::times).transpose()?.unwrap_or_default();
    how.patience = patience.unwrap_or(how.patience);
    how.quiet = quiet.unwrap_or(how.quiet);
    how.record_lost = args.is_some_and(|args| args.record_lost);
    Ok(how)
}

fn end(stepped: Stepped) -> Outcome {
    match stepped {
        Stepped::Done(phase) => {
            print(&format!("phase {phase}\n"))?;
            Ok(code::DONE)
        }
        Stepped::Dissolved(store) => {
            print(&format!("dissolved: programs use {store} by itself\n"))?;
            Ok(code::DONE)
        }
        Stepped::NotYet(why) => Err(Failure::new(code::HELD, format!("not yet: {why}"))),
        _ => Err(Failure::internal("migrate", "an unknown outcome")),
    }
}

/// Ends the set that `--store` names.
pub(crate) async fn dissolve(wanted: Wanted) -> Outcome {
    let url = wanted.resolve()?.url;
    let set = StoreUrl::parse(&url)?;
    end(match set.scheme.as_str() {
        "shards" => ShardSet::parse(&url)?.dissolve(&who()).await?,
        "migrate" => {
            MigrateSet::parse(&url)?
                .migration()?
                .dissolve(&who())
                .await?
        }
        _ => {
            let why = "it is one store; name a set, shards:?… or migrate:?…";
            return Err(set.refuse(why).into());
        }
    })
}

async fn prepare(args: &MigratePrepare, wanted: Wanted) -> Outcome {
    let [pace, tight, lock_delay] = args.times()?;
    let mut terms = Prepare::default().replace(args.replace);
    terms.record_lost = args.record_lost;
    terms.pace = pace.unwrap_or(terms.pace);
    terms.tight = tight.unwrap_or(terms.tight);
    terms.lock_delay = lock_delay.unwrap_or(terms.lock_delay);
    let (migration, shown) = match (&args.from, &args.to) {
        (Some(from), Some(to)) => {
            if wanted.store.is_some() {
                let why = "give either --store, or --from and --to";
                return Err(Failure::usage(why));
            }
            let set = args.set.as_deref().unwrap_or("migrate");
            let url = |named: &String| {
                let store = Some(named.clone());
                let config = wanted.config.clone();
                Ok::<_, Failure>(Wanted { store, config }.resolve()?.url)
            };
            let migration = MigrateSet::new(set, url(from)?, url(to)?).migration()?;
            (migration, Some(section(set, from, to)))
        }
        _ => (migration(wanted)?, None),
    };
    let prepared = migration.prepare(&terms, &who()).await?;
    if let Stepped::Done(phase) = &prepared {
        say(&format!(
            "phase {phase}; switch all programs to the set, then run `fencelock migrate begin`"
        ));
    }
    if let Some(shown) = shown {
        print(&shown)?;
    }
    Ok(code::DONE)
}

/// The section that programs need in their configuration file.
fn section(set: &str, from: &str, to: &str) -> String {
    let shown = |store: &str| match StoreUrl::parse(store) {
        // The file must not contain a password.
        Ok(url) if url.has_password() => format!("{} with password-file=…", url),
        // The passwords of the shards are within the options.
        Ok(url) if !shard_urls(&url).is_empty() => {
            let urls = shard_urls(&url);
            let urls = urls.iter().filter_map(|(_, url)| StoreUrl::parse(url).ok());
            match { urls }.any(|url| url.has_password()) {
                true => "@NAME".to_owned(),
                false => store.to_owned(),
            }
        }
        _ => store.to_owned(),
    };
    let quoted = |store: &str| Value::from(shown(store)).to_string();
    format!(
        "[store.{set}]\nmigrate = {{ from = {}, to = {} }}\n",
        quoted(from),
        quoted(to)
    )
}

async fn finish(args: &MigrateFinish, wanted: Wanted) -> Outcome {
    let by = who();
    let how = how(&by, Some(&args.go))?;
    let url = wanted.clone().resolve()?.url;
    let migration = migration(wanted)?;
    let Some(typed) = &args.old_is_destroyed else {
        let mut how = how;
        how.to = args.to.and_then(Phase::from_number);
        return end(migration.finish(&how).await?);
    };
    let set = StoreUrl::parse(&url)?.take("set");
    let set = set.unwrap_or_else(|| "migrate".to_owned());
    if *typed != set {
        let why = format!(
            "--old-is-destroyed needs the name of the set, which is {set:?}. If the old store is not destroyed, or comes back \
             and somebody reaches it alone, locks can be held twice"
        );
        return Err(Failure::usage(why));
    }
    let mut how = how;
    how.highest_token = args.highest_token.map(Token);
    end(migration.finish_without_old(&how).await?)
}

async fn status(args: &MigrateStatus, wanted: Wanted) -> Outcome {
    let status = migration(wanted)?.status().await?;
    match args.json {
        true => print(&format!("{}\n", as_json(&status)))?,
        false => print(&as_text(&status))?,
    }
    let away = status.stores.iter().any(|store| store.version.is_none());
    Ok(match away {
        true => code::UNAVAILABLE,
        false if !status.unpaired.is_empty() => code::HELD,
        false => code::DONE,
    })
}

fn as_text(status: &Status) -> String {
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(status.since);
    let ago = since.elapsed().unwrap_or_default();
    let ago = Duration::from_secs(ago.as_secs());
    let mut text = format!(
        "phase {}, version {}, since {} by {}\n",
        status.phase,
        status.version,
        in_words(ago),
        status.by
    );
    for store in &status.stores {
        let has = match (&store.version, &store.away) {
            (Some(version), _) => format!("version {version}"),
            (None, Some(why)) => why.clone(),
            (None, None) => "no record".to_owned(),
        };
        text += &format!("{}: {}: {has}\n", store.id, store.store);
    }
    if let Some((old, new, both)) = status.held {
        text += &format!(
            "held, of the names that move: {old} in the old store alone, {new} in the new one alone, {both} in both\n"
        );
    }
    for unpaired in &status.unpaired {
        text += &format!(
            "not switched: {} is held in one store alone by {}\n",
            unpaired.name, unpaired.owner
        );
    }
    text
}

fn as_json(status: &Status) -> Value {
    let stores = status.stores.iter().map(|store| {
        json!({"id": store.id, "store": store.store, "version": store.version, "away": store.away})
    });
    let unpaired = status.unpaired.iter();
    let unpaired = unpaired.map(|held| json!({"name": held.name.as_str(), "owner": held.owner}));
    json!({
        "phase": status.phase.number(),
        "version": status.version,
        "since": status.since,
        "by": status.by,
        "pace_ms": u64::try_from(status.pace.as_millis()).unwrap_or(u64::MAX),
        "tight_ms": u64::try_from(status.tight.as_millis()).unwrap_or(u64::MAX),
        "stores": stores.collect::<Vec<_>>(),
        "held": status.held.map(|(old, new, both)| json!({"old": old, "new": new, "both": both})),
        "unpaired": unpaired.collect::<Vec<_>>(),
    })
}

/// `user@host:pid`, for people who read the record.
fn who() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| "somebody".to_owned());
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let clean = |text: &str| {
        text.chars()
            .filter(|c| !c.is_control())
            .take(40)
            .collect::<String>()
    };
    format!("{}@{}:{}", clean(&user), clean(&host), std::process::id())
}
