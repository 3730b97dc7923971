//! The links between the members of an etcd cluster, through proxies that can cut one member off.
//!
//! The head of the first request on a connection names the member that it comes from.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::failure::{Failure, Result};
use crate::port::Port;

/// All links of a cluster.
#[derive(Debug)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
    /// Where each member listens, and where the others reach it.
    ports: Vec<(Port, Port)>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    cut: HashSet<usize>,
    links: Vec<Link>,
    /// The ids of the members, as far as they are known.
    ids: Vec<Option<String>>,
}

#[derive(Debug)]
struct Link {
    from: Option<String>,
    to: usize,
    streams: [TcpStream; 2],
}

impl Link {
    fn cut(&self) {
        for stream in &self.streams {
            // The connection may be closed already.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_cut(&self, from: Option<&str>, to: usize) -> bool {
        let of = |id: &str| {
            self.ids
                .iter()
                .position(|known| known.as_deref() == Some(id))
        };
        let from = from.and_then(of);
        self.cut.contains(&to) || from.is_some_and(|from| self.cut.contains(&from))
    }
}

impl Peers {
    pub(crate) fn start(members: usize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.state().ids = vec![None; members];
        let mut ports = Vec::new();
        for index in 0..members {
            let (own, known) = (Port::free()?, Port::free()?);
            let listener = TcpListener::bind(known.address());
            let listener = listener.map_err(Failure::to("listen for members"))?;
            let (target, shared) = (own.number(), Arc::clone(&shared));
            let thread = std::thread::Builder::new().name(format!("links to member {index}"));
            thread
                .spawn(move || accept(&listener, index, target, &shared))
                .map_err(Failure::to("start a thread for members"))?;
            ports.push((own, known));
        }
        Ok(Self { shared, ports })
    }

    pub(crate) fn listens_at(&self, member: usize) -> u16 {
        self.ports[member].0.number()
    }

    pub(crate) fn known_as(&self, member: usize) -> u16 {
        self.ports[member].1.number()
    }

    pub(crate) fn cut_off(&self, member: usize) {
        let mut state = self.shared.state();
        state.cut.insert(member);
        let state = &mut *state;
        let links = std::mem::take(&mut state.links);
        let (cut, left) = links
            .into_iter()
            .partition(|link| state.is_cut(link.from.as_deref(), link.to));
        state.links = left;
        let cut: Vec<Link> = cut;
        cut.iter().for_each(Link::cut);
    }

    pub(crate) fn rejoin(&self, member: usize) {
        self.shared.state().cut.remove(&member);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for (_, known) in &self.ports {
            // Wakes the thread that accepts.
            drop(TcpStream::connect(known.address()));
        }
        self.shared
            .state()
            .links
            .drain(..)
            .for_each(|link| link.cut());
    }
}

fn accept(listener: &TcpListener, to: usize, target: u16, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // A connection that cannot be served is closed. The member connects again.
        std::thread::spawn(move || drop(serve(stream, to, target, &shared)));
    }
}

fn serve(mut near: TcpStream, to: usize, target: u16, shared: &Shared) -> std::io::Result<()> {
    let head = read_head(&mut near)?;
    let from = field(&head, "x-server-from");
    if let Some(id) = field(&head, "x-raft-to") {
        // The request also names its target, so the ids become known.
        shared.state().ids[to] = Some(id);
    }
    let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
    {
        let mut state = shared.state();
        if state.is_cut(from.as_deref(), to) {
            return Ok(());
        }
        let streams = [near.try_clone()?, far.try_clone()?];
        state
            .links
            .retain(|link| link.streams[0].peer_addr().is_ok());
        state.links.push(Link { from, to, streams });
    }
    far.write_all(&head)?;
    let (mut back_from, mut back_to) = (far.try_clone()?, near.try_clone()?);
    let back = std::thread::spawn(move || {
        // An error ends the copy, like the end of the stream.
        drop(std::io::copy(&mut back_from, &mut back_to));
        drop(back_to.shutdown(Shutdown::Both));
        drop(back_from.shutdown(Shutdown::Both));
    });
    drop(std::io::copy(&mut near, &mut far));
    drop(far.shutdown(Shutdown::Both));
    drop(near.shutdown(Shutdown::Both));
    drop(back.join());
    Ok(())
}

/// Reads at least up to the end of the first request's head.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => break,
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    stream.set_read_timeout(None)?;
    Ok(head)
}

fn field(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let found = fields.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    Some(found.1.trim().to_owned())
}
