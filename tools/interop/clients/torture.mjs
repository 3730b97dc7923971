// The TypeScript client of the lock service as a worker of `fencelock torture --with "node torture.mjs"`: it takes and releases
// locks, and reports what it believes (tools/torture/src/worker.rs; docs/torture.md has the protocol).
import { createConnection } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { LockHeld, LockLost, LockTimeout, Unavailable, connect } from "fencelock";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const job = JSON.parse((await lines.next()).value);
const urls = job.url.split("://")[1].split("?")[0].split(",").map((host) => `http://${host}`);

/** Pipes are written to at once, so that no output of a killed process is lost. */
const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

/** The resource that the locks protect: one line for each request, and one for its answer. */
class Resource {
  static async open() {
    const socket = createConnection({ port: job.resource, host: "127.0.0.1", noDelay: true });
    await new Promise((done, failed) => socket.once("connect", done).once("error", failed));
    socket.on("error", () => process.exit(1));
    return new Resource(socket);
  }

  constructor(socket) {
    this.socket = socket;
    this.answers = createInterface({ input: socket })[Symbol.asyncIterator]();
  }

  async ask(request) {
    this.socket.write(`${request}\n`);
    return Number((await this.answers.next()).value);
  }
}

/** How far the boot clock is ahead of Node's clock, in milliseconds, according to the fastest answer. */
async function bootAhead(resource) {
  let best = { took: Infinity };
  for (let tries = 0; tries < 100; tries += 1) {
    const asked = performance.now();
    const boot = (await resource.ask("t")) / 1e6;
    const took = performance.now() - asked;
    if (took < best.took) best = { took, ahead: boot - (asked + took / 2) };
  }
  return best.ahead;
}

const ahead = await bootAhead(await Resource.open());
/** A time of Node's clock in nanoseconds of the boot clock. */
const boot = (ms) => Math.round((ms + ahead) * 1e6);
const now = () => boot(performance.now());
/** The end of the validity. The client shows only the time that is left. */
const validUntil = (lock) => boot(lock.until);

/** Random numbers by a seed (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const ENDS = { released: "released", "already-expired": "expired", "not-owner": "not-owner" };
// Each replica reaches the store through its own proxy.
const client = connect(urls, { sameStore: "confirmed" });
let stopping = false;
let numbers = 0;

class Task {
  constructor(task, resource) {
    this.task = task;
    this.resource = resource;
    this.random = generator(job.seed ^ (job.worker << 20) ^ (job.life << 10) ^ task);
  }

  /** From 0 to this. */
  upTo(most) {
    return Math.floor(this.random() * (most + 1));
  }

  async run() {
    for (let failures = 0; !stopping; ) {
      failures = (await this.attempt()) ? failures + 1 : 0;
      if (failures >= 3) await sleep(5 + this.upTo(45));
    }
  }

  draw() {
    const number = this.upTo(999);
    if (number < job.overstay) return "overstay";
    if (number < 80) return "try";
    if (number < 130) return "drop-request";
    if (number < 200) return "drop-guard";
    return "wait";
  }

  /** How long to hold, in milliseconds. */
  stay() {
    const number = this.upTo(9999);
    if (number < 6000) return 0;
    if (number < 9980) return this.upTo(job.hold_us) / 1000;
    if (number < 9990) return this.upTo(job.ttl_ms / 4);
    // Long enough for renewals.
    return job.ttl_ms / 2 + this.upTo(job.ttl_ms);
  }

  /** One request, from its beginning to its end. Returns whether it failed. */
  async attempt() {
    const attempt = { n: numbers, name: this.upTo(job.names.length - 1), how: this.draw() };
    numbers += 1;
    attempt.shared = job.shared && attempt.how !== "overstay" && this.random() < 0.12;
    const { n, name, how, shared } = attempt;
    say({ asked: { n, task: this.task, name, shared, how, at: now() } });
    const end = await this.take(attempt).catch((error) => failed(error));
    say({ over: { n, at: now(), end } });
    return typeof end === "object";
  }

  async take(attempt) {
    const { how } = attempt;
    const name = job.names[attempt.name];
    const options = { ttlMs: job.ttl_ms, timeoutMs: job.patience_ms, mode: attempt.shared ? "shared" : "exclusive" };
    if (how === "drop-guard") {
      await client
        .withLock(name, options, async (lock) => {
          attempt.granted = true;
          await this.hold(attempt, lock);
        })
        .catch((error) => {
          // The client reported the loss, too.
          if (!attempt.granted || !(error instanceof LockLost)) throw error;
        });
      return "dropped";
    }
    if (how === "drop-request") {
      const cancel = new AbortController();
      setTimeout(() => cancel.abort(), this.upTo(20));
      options.signal = cancel.signal;
    }
    const lock = await (how === "try" ? client.tryLock(name, options) : client.lock(name, options));
    await (how === "overstay" ? this.overstay(attempt, lock) : this.hold(attempt, lock));
    return ENDS[await lock.release()];
  }

  granted(attempt, lock) {
    attempt.token = lock.token;
    attempt.claim = lock.claim.id;
    const { n, token, claim } = attempt;
    say({ granted: { n, at: now(), token, claim, valid: validUntil(lock) } });
  }

  /** Holds, and writes. What follows is the release. */
  async hold(attempt, lock) {
    this.granted(attempt, lock);
    const { n } = attempt;
    let told = null;
    lock.signal.addEventListener("abort", () => (told ??= now()));
    const read = await this.resource.ask(`r ${attempt.name}`);
    const ends = performance.now() + this.stay();
    for (let valid = validUntil(lock); !lock.signal.aborted && performance.now() < ends; ) {
      await sleep(Math.min(ends - performance.now(), 20));
      if (validUntil(lock) !== valid) {
        valid = validUntil(lock);
        say({ valid: { n, until: valid } });
      }
    }
    // The validity is checked last, as a careful program does. The process may still be stopped between the check and
    // the write.
    if (lock.isValid()) await this.write(attempt, read);
    const valid = validUntil(lock);
    const left = now();
    if (told === null && !lock.isValid()) told = left;
    say({ left: { n, until: Math.min(told ?? left, valid), told, valid } });
  }

  /** Blocks the whole program past the lease, and then writes like a program that never checks its lock. */
  async overstay(attempt, lock) {
    this.granted(attempt, lock);
    const read = await this.resource.ask(`r ${attempt.name}`);
    const more = this.upTo(job.ttl_ms);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, lock.validForMs() + more);
    const [told, valid] = [now(), validUntil(lock)];
    say({ left: { n: attempt.n, until: Math.min(told, valid), told, valid } });
    await this.write(attempt, read);
  }

  async write({ n, name, token, claim, shared }, read) {
    const mode = shared ? "s" : "x";
    await this.resource.ask(`w ${job.worker}:${job.life}:${n} ${name} ${token} ${claim} ${mode} ${read + 1}`);
  }
}

function failed(error) {
  if (error instanceof LockHeld) return "busy";
  if (error instanceof LockTimeout) return "timed-out";
  if (error.name === "AbortError") return "gone";
  if (error instanceof Unavailable && error.message.startsWith("the release of")) return "unconfirmed";
  return { failed: String(error) };
}

say("ready");
const tasks = [];
for (let task = 0; task < job.tasks; task += 1) tasks.push(new Task(task, await Resource.open()).run());
for await (const line of { [Symbol.asyncIterator]: () => lines }) if (line === "stop") break;
stopping = true;
await Promise.all(tasks);
await client.close();
say({ closed: null });
process.exit();
