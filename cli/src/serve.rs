//! `serve`: the lock service.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::{Error, Purpose};
use fencelock_server::{BearerToken, Reload, Server, Service, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Serve, ServeCommand};
use crate::environment::{STORE, or_variable};
use crate::exit::{Failure, Outcome, code, print, say};
use crate::notify::tell_manager;
use crate::open_files::raise_limit;
use crate::store::{self, Resolved, Wanted};

/// The port if none is given.
const PORT: u16 = 7420;

/// How long shutting down may take by default.
const DRAIN: Duration = Duration::from_secs(20);

/// The settings from the environment, for those that the command line does not have.
const CONFIG: &str = "FENCELOCK_SERVE_CONFIG";
const LISTEN: &str = "FENCELOCK_SERVE_LISTEN";
const ADVERTISE: &str = "FENCELOCK_SERVE_ADVERTISE";

pub(crate) async fn serve(args: Serve, store: Wanted) -> Outcome {
    if let Some(ServeCommand::Token { name }) = &args.command {
        return token(name);
    }
    crate::warnings::show();
    let file = config_file(store.config);
    let mut settings = settings(&args, file.as_ref())?;
    refuse_strangers(&settings)?;
    raise_limit(settings.config.limits.connections);
    let mut signals = Signals::listen()?;
    // The store of the command line or of the environment counts more than that of the file.
    let named = or_variable(store.store, STORE)?;
    let wanted = Wanted {
        store: named.or_else(|| settings.store.clone()),
        config: file.clone(),
    };
    let Resolved { url, purpose } = wanted.resolve()?;
    if settings.purpose.is_none() {
        settings.purpose = purpose.map(|purpose| purpose.as_str().to_owned());
    }
    let engine = tokio::select! {
        engine = fencelock::open_engine(&url) => engine?,
        // Nothing is served yet.
        () = signals.end() => return Ok(code::DONE),
    };
    let servers = start(&settings, &engine).await?;
    tell_manager("READY=1");
    while signals.is_reload().await {
        reload(&args, file.as_ref(), &mut settings, &servers).await;
    }
    tell_manager("STOPPING=1");
    say("draining: this replica refuses new claims, and ends when its last connection ends");
    let drain = settings.drain.unwrap_or(DRAIN);
    let service = servers.first().map(|server| server.service().clone());
    let mut all = tokio::task::JoinSet::new();
    for server in servers {
        all.spawn(server.drain(drain));
    }
    let drained = async {
        let mut ended = 0;
        while let Some(server) = all.join_next().await {
            ended += server.unwrap_or_default();
        }
        ended
    };
    let ended = tokio::select! {
        ended = drained => ended,
        // It ends at once. No hold is given back: the store frees each of them when its lease is over.
        () = signals.end() => service.map_or(0, |service| service.bound_holds()),
    };
    let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, engine.close()).await;
    match ended {
        0 => Ok(code::DONE),
        ended => Err(Failure::new(
            code::LOST,
            format!(
                "{ended} holds ended with this replica: on this store they belong to the replica that took them"
            ),
        )),
    }
}

/// Prints a new token for a principal.
fn token(name: &str) -> Outcome {
    let token = BearerToken::draw().map_err(|error| Failure::internal("drawing a token", error))?;
    print(&format!(
        "{}\n\n# For the configuration file of the service; the token itself is for its user alone.\n[[principal]]\nname = {name:?}\n\
         tokens = [{{ id = \"{}\", sha256 = \"{}\" }}]\nrights = [{{ prefix = \"\", rights = [\"take\", \"look\"] }}]\n",
        token.secret(),
        token.id(),
        token.sha256()
    ))?;
    Ok(code::DONE)
}

/// The configuration file: of the command line or the environment, else that of this machine if there is one.
fn config_file(given: Option<PathBuf>) -> Option<PathBuf> {
    let named = given.or_else(|| {
        let mut named = [CONFIG, fencelock::Config::VARIABLE]
            .into_iter()
            .filter_map(std::env::var_os);
        named.find(|path| !path.is_empty()).map(PathBuf::from)
    });
    let of_machine = || {
        let path = PathBuf::from(fencelock::Config::DEFAULT_PATH);
        path.exists().then_some(path)
    };
    named.or_else(of_machine)
}

/// The settings: the command line overrides the environment, which overrides the file.
fn settings(args: &Serve, file: Option<&PathBuf>) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    if let Some(file) = file {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| Error::config_file(&name, error.to_string()))?;
        settings = Settings::read(&name, &text)?;
    }
    if let Some(advertise) = or_variable(args.advertise.clone(), ADVERTISE)? {
        settings.config.advertise = Some(advertise);
    }
    settings.config.hosts.extend(args.hosts.iter().cloned());
    settings.insecure |= args.insecure;
    settings.drain = args.drain()?.or(settings.drain);
    if let Some(purpose) = args.purpose {
        settings.purpose = Some(Purpose::from(purpose).as_str().to_owned());
    }
    if !args.listen.is_empty() {
        settings.listen.clone_from(&args.listen);
    } else if let Some(listen) = or_variable(None, LISTEN)? {
        let address = listen.parse().map_err(|_| {
            Failure::new(
                code::CONFIG,
                format!("{LISTEN}={listen:?} must be an address and a port"),
            )
        })?;
        settings.listen = vec![address];
    }
    if settings.listen.is_empty() {
        settings.listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))];
    }
    Ok(settings)
}

/// Refuses to serve other machines without TLS and credentials, unless the operator gave `--insecure`.
pub(crate) fn refuse_strangers(settings: &Settings) -> Result<(), Failure> {
    let mut beyond = settings
        .listen
        .iter()
        .filter(|address| !address.ip().is_loopback());
    let Some(address) = beyond.next().filter(|_| !settings.insecure) else {
        return Ok(());
    };
    let lacks = match (
        settings.config.principals.is_empty(),
        settings.config.tls.is_none(),
    ) {
        (true, _) => "clients need no credentials: name principals in the configuration file",
        (_, true) => {
            "tokens would cross the network in the clear: name the files of TLS in the configuration file"
        }
        (false, false) => return Ok(()),
    };
    let text = format!(
        "{address} can be reached from other machines, and {lacks}, listen on 127.0.0.1, or allow it with --insecure"
    );
    Err(Failure::new(code::CONFIG, text))
}

async fn start(settings: &Settings, engine: &Arc<dyn Engine>) -> Result<Vec<Server>, Failure> {
    let service = Service::new(Arc::clone(engine), settings.config.clone())?;
    let correctness = settings.purpose.as_deref() != Some(Purpose::Efficiency.as_str());
    for limit in &engine.promises().limits {
        // What endangers efficiency endangers correctness, too.
        if correctness || limit.purpose == Purpose::Efficiency {
            say(&format!("warning: {}; {}", limit.what, limit.change));
        }
    }
    say(&format!("store {engine}"));
    let scheme = match settings.config.tls {
        Some(_) => "https",
        None => "http",
    };
    let mut servers = Vec::new();
    for &address in &settings.listen {
        let server = Server::start(address, service.clone()).await;
        let server = server.map_err(|error| {
            Failure::new(code::CONFIG, format!("listening on {address}: {error}"))
        })?;
        say(&format!("listening on {scheme}://{}", server.address()));
        servers.push(server);
    }
    if let Some(address) = settings.config.admin {
        let Some(first) = servers.first() else {
            return Ok(servers);
        };
        let admin = Server::start_admin(address, first.service().clone()).await;
        let admin = admin.map_err(|error| {
            Failure::new(code::CONFIG, format!("listening on {address}: {error}"))
        })?;
        say(&format!("metrics and health on http://{}", admin.address()));
        servers.push(admin);
    }
    Ok(servers)
}

/// Replaces the principals and certificates, and opens the audit log again. Reports what cannot be used, and then changes
/// nothing. If only the audit log cannot be opened, the earlier file goes on.
async fn reload(args: &Serve, file: Option<&PathBuf>, begun: &mut Settings, servers: &[Server]) {
    match replace(args, file, begun, servers) {
        Ok(reload) => {
            let audit = begun.config.audit.as_ref().map(|log| log.file.display());
            if let (Some(file), Err(error)) = (audit, reload.audit().await) {
                say(&format!(
                    "warning: the audit log cannot be opened again, and its earlier file goes on: {file}: {error}"
                ));
            }
            say("reloaded principals, rights and certificates; other changes need a restart");
        }
        Err(failure) => {
            let _ = failure.report();
            say("the configuration file was not reloaded; the earlier principals and rights stay");
        }
    }
}

fn replace(
    args: &Serve,
    file: Option<&PathBuf>,
    begun: &mut Settings,
    servers: &[Server],
) -> Result<Reload, Failure> {
    let mut settings = settings(args, file)?;
    // Settings that need a restart stay as they were. The new principals are checked: without any, strangers could take locks
    // from now on.
    settings.listen.clone_from(&begun.listen);
    settings.insecure = begun.insecure;
    settings.config.tls.clone_from(&begun.config.tls);
    refuse_strangers(&settings)?;
    let principals = settings.config.principals;
    if principals.is_empty() && !begun.config.principals.is_empty() {
        let file = file.map(|file| file.display().to_string());
        let why = "it names no principal, so everybody could take locks; a restart allows that";
        return Err(Error::config_file(file.unwrap_or_default(), why).into());
    }
    for server in servers {
        server.reload_tls()?;
    }
    let Some(server) = servers.first() else {
        return Err(Failure::new(code::CONFIG, "nothing is served"));
    };
    let anonymous = &settings.config.anonymous;
    let reload = server.service().reload(&principals, anonymous)?;
    begun.config.principals = principals;
    Ok(reload)
}

/// The signals that the service knows.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::internal("signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Returns when a signal ends the service.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The next signal: true if it asks to read the files again, false if it ends the service.
    async fn is_reload(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => false,
            _ = self.hangup.recv() => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn the_help_names_every_variable() {
        let mut command = Cli::command();
        command.build();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let help = serve.render_help().to_string();
        for variable in [CONFIG, LISTEN, ADVERTISE, STORE] {
            assert!(help.contains(&format!("${variable}")), "{variable}: {help}");
        }
    }
}
