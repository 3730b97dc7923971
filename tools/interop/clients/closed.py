"""A client is closed while another thread attaches a lock at a replica that does not answer. Its argument is the URL of the
service."""

import socket, sys, threading
from fencelock import Client, FencelockError

url = sys.argv[1]
with Client(url) as client:
    data = client.lock("a", detachable=True).detach()
with socket.create_server(("127.0.0.1", 0)) as silent:
    client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}")
    ended = []

    def attach():
        try:
            client.attach(data, timeout=60)
        except FencelockError as error:
            ended.append(str(error))

    # A daemon, so that a thread that hangs does not keep this program.
    thread = threading.Thread(target=attach, daemon=True)
    thread.start()
    silent.accept()
    client.close()
    thread.join(10)
    assert ended == ["the client was closed"], ended
with Client(url) as client:
    assert client.attach(data).release() == "released"
