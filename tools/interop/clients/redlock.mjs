// node-redlock with ioredis, as a client of the interoperability tests: version 4, or with a fourth argument version 5.
//
// Its arguments are HOST PORT NAME [5]. It reads one command per line on stdin, and answers on stdout:
//
//     take TTL_MS             held | busy
//     wait TTL_MS             held
//     release                 released | not-mine
//     loop SECONDS TTL_MS     one line `IN OUT` for each hold, nanoseconds of the monotonic clock; then `done`

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [host, port, name, version = "4"] = process.argv.slice(2);
const require = createRequire(join(process.cwd(), "from-here.js"));
const Redis = require("ioredis");
const redis = new Redis({ host, port: Number(port) });

// The two versions have different names for the same things.
function locks(settings) {
  if (version === "5") {
    const { default: Redlock } = require("redlock5");
    const redlock = new Redlock([redis], { ...settings, automaticExtensionThreshold: 1 });
    redlock.on("error", () => {});
    return { take: (ttl) => redlock.acquire([name], ttl), release: (lock) => lock.release() };
  }
  const Redlock = require("redlock");
  const redlock = new Redlock([redis], settings);
  redlock.on("clientError", () => {});
  return { take: (ttl) => redlock.lock(name, ttl), release: (lock) => lock.unlock() };
}

const once = locks({ retryCount: 0 });
const patient = locks({ retryCount: -1, retryDelay: 5, retryJitter: 5 });
let lock;

async function take(ttl, wait) {
  try {
    lock = await (wait ? patient : once).take(ttl);
    return true;
  } catch (error) {
    if (wait || !["LockError", "ExecutionError"].includes(error.name)) throw error;
    return false;
  }
}

async function release() {
  try {
    await once.release(lock);
    return true;
  } catch (error) {
    if (!["LockError", "ExecutionError"].includes(error.name)) throw error;
    return false;
  }
}

async function loop(seconds, ttl) {
  const now = () => process.hrtime.bigint();
  const end = now() + BigInt(Math.round(seconds * 1e9));
  const holds = [];
  while (now() < end) {
    await take(ttl, true);
    const entered = now();
    await sleep(Math.random() * 2);
    holds.push(`${entered} ${now()}`);
    await release();
    await sleep(Math.random() * 10);
  }
  for (const hold of holds) console.log(hold);
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  const numbers = words.map(Number);
  if (command === "take") console.log((await take(numbers[0], false)) ? "held" : "busy");
  else if (command === "wait") {
    await take(numbers[0], true);
    console.log("held");
  } else if (command === "release") console.log((await release()) ? "released" : "not-mine");
  else if (command === "loop") {
    await loop(...numbers);
    console.log("done");
  } else throw new Error(`told ${line}, which is unknown`);
}
redis.disconnect();
