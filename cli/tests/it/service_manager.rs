//! The lock service as a service manager sees it.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, TIMEOUT};

fn hear(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 100];
    let count = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

#[test]
fn the_service_manager_is_notified() {
    let fixture = Fixture::new();
    let path = fixture.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = fixture.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut service = command.env("NOTIFY_SOCKET", &path).spawn().unwrap();
    assert_eq!(hear(&socket), "READY=1");
    // The service listens by now.
    let lines = BufReader::new(service.stderr.take().unwrap()).lines();
    let said = lines.map(Result::unwrap);
    let listens = |line: &String| line.contains("listening on http://127.0.0.1:");
    let line = said.into_iter().find(listens).unwrap();
    let address = line.rsplit("http://").next().unwrap();
    std::net::TcpStream::connect(address).unwrap();
    let pid = Pid::from_child(&service);
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(hear(&socket), "STOPPING=1");
    assert!(service.wait().unwrap().success());
}
