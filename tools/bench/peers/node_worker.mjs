// A worker of the benchmark that locks with node-redlock 5 and ioredis on one server. Its protocol is in
// tools/bench/src/worker.rs. Its argument is the directory where tools/interop/setup.sh has installed them.
//
// The library has its default options, except a lease of 30 s and a wait without a limit.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.argv[2], "from-here.js"));
const Redis = require("ioredis");
const { default: Redlock } = require("redlock5");

// The boot clock. Node's own clock is the monotonic one, which stops in suspend.
const { readFileSync } = require("node:fs");
const ahead = (() => {
  const uptime = BigInt(Math.round(Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 100)) * 10_000_000n;
  const difference = uptime - process.hrtime.bigint();
  // The uptime has hundredths of a second. A smaller difference means that the machine was never suspended.
  return difference > 20_000_000n ? difference : 0n;
})();
const now = () => process.hrtime.bigint() + ahead;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = async () => (await lines.next()).value;
const job = JSON.parse(await line());
const { hostname, port } = new URL(job.url);
const redis = new Redis({ host: hostname, port: Number(port) });
const redlock = new Redlock([redis], { retryCount: -1 });
redlock.on("error", () => {});
const acquire = (name) => redlock.acquire([name], 30_000);

// Connect, and load scripts.
await (await acquire(`${job.name}/warm-up/${job.first}`)).release();
console.log("ready");
const until = BigInt((await line()).split(" ")[1]);
const tasks = Array.from({ length: job.tasks }, (_, n) => job.first + n);

async function pairs(task) {
  const names = Array.from({ length: job.names }, (_, n) => `${job.name}/${task}/${n}`);
  let count = 0;
  while (now() < until) {
    await (await acquire(names[count % names.length])).release();
    count++;
  }
  return count;
}

async function contend(task) {
  const seen = [];
  for (;;) {
    const asked = now();
    const lock = await acquire(job.name);
    const granted = now();
    await lock.release();
    seen.push(`held ${task} ${asked} ${granted} ${granted} 0`);
    if (job.act === "once" || granted >= until) return seen;
  }
}

async function hold(task) {
  const asked = now();
  const lock = await acquire(job.name);
  const granted = now();
  console.log("waiting");
  await line();
  const leaving = now();
  await lock.release();
  return [`held ${task} ${asked} ${granted} ${leaving} 0`];
}

const act = { pairs, hold }[job.act] ?? contend;
const running = tasks.map(act);
if (job.act !== "hold") console.log("waiting");
const all = await Promise.all(running);
console.log(job.act === "pairs" ? `pairs ${all.reduce((sum, count) => sum + count, 0)}` : all.flat().join("\n"));
console.log("end");
redis.disconnect();
process.exit(0);
