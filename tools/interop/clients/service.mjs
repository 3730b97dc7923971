// The TypeScript client of the lock service as a program. Its arguments are URLS NAME SAME_STORE. It reads one command
// per line on stdin:
//
//     lock TTL_MS|- TIMEOUT_MS|-  held TOKEN | busy | timeout | unavailable | cancelled | refused STATUS PROBLEM | config MESSAGE | wrong; later, unasked:
//                               lost NS
//     cancel                    ends the lock command that waits
//     release                   released | already-expired | not-owner | unavailable
//     detach TTL_MS             takes the lock, and detaches it: detached | lost
//     valid                     true | false
//     block MS                  blocks the event loop, then as `valid`
//     loop SECONDS TTL_MS       one line `IN OUT TOKEN` for each hold, nanoseconds of the monotonic clock; then `done`
//     close                     closed
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "fencelock";

const [urls, name, sameStore] = process.argv.slice(2);
const client = connect(urls, { sameStore });
const tell = (line) => process.stdout.write(`${line}\n`);
const clock = () => process.hrtime.bigint();
const said = {
  LockHeld: () => "busy",
  LockTimeout: () => "timeout",
  Unavailable: () => "unavailable",
  AbortError: () => "cancelled",
  ConfigError: (error) => `config ${error.message}`,
  RangeError: () => "wrong",
  Refused: (error) => `refused ${error.status} ${error.problem}`,
};
tell("ready");
let lock;
let waiting;

async function acquire(ttl, timeout) {
  waiting = new AbortController();
  const options = { signal: waiting.signal };
  if (ttl !== "-") options.ttlMs = Number(ttl);
  if (timeout !== "-") options.timeoutMs = Number(timeout);
  try {
    const held = await client.lock(name, options);
    held.signal.addEventListener("abort", () => tell(`lost ${clock()}`));
    lock = held;
    tell(`held ${lock.token}`);
  } catch (error) {
    if (!said[error.name]) throw error;
    tell(said[error.name](error));
  }
}

async function loop(seconds, ttl) {
  const end = performance.now() + Number(seconds) * 1000;
  while (performance.now() < end) {
    const held = await client.lock(name, { ttlMs: Number(ttl) });
    const entered = clock();
    await sleep(4);
    const left = clock();
    if (held.isValid()) tell(`${entered} ${left} ${held.token}`);
    await held.release().catch(() => undefined);
  }
  tell("done");
}

const commands = {
  lock: acquire,
  cancel: () => waiting.abort(),
  release: async () => tell(await lock.release().catch((error) => said[error.name](error))),
  detach: async (ttl) => {
    const held = await client.lock(name, { ttlMs: Number(ttl), detachable: true });
    tell(await held.detach().then(() => "detached", () => "lost"));
  },
  valid: () => tell(lock.isValid()),
  block: (ms) => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Number(ms));
    tell(lock.isValid());
  },
  loop,
  close: async () => {
    await client.close();
    tell("closed");
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  // Not awaited, so that `cancel` is read while `lock` waits.
  void commands[command](...words);
}
process.exit();
