// A client is closed while a request of it waits. Its argument is the URL of the service.
import assert from "node:assert";
import { connect } from "fencelock";

const [url] = process.argv.slice(2);
const waiters = async () => (await (await fetch(`${url}/v1/lock?name=a`)).json()).waiters.length;
const holder = connect(url);
const held = await holder.lock("a");
const client = connect(url);
const waiting = assert.rejects(client.lock("a"), /closed/);
while ((await waiters()) === 0) await new Promise((resume) => setTimeout(resume, 10));
await client.close();
// The program may end now.
assert.equal(client.service.background.size, 0);
assert.equal(await waiters(), 0);
await waiting;
await held.release();
await holder.close();
