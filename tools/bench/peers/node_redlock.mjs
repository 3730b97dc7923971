// node-redlock 5 with ioredis, as a contender of the benchmark. Its arguments are HOST:PORT of each node. It is started
// in the directory where tools/interop/setup.sh has installed it.
//
// It reads one line of JSON on stdin, `{"names": [["name", …], …], "ms": PERIOD}`. It runs one worker for each list; a
// worker takes and releases its names in turn for PERIOD. The answer is the number of pairs.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "from-here.js"));
const Redis = require("ioredis");
const { default: Redlock } = require("redlock5");

const nodes = process.argv.slice(2).map((node) => {
  const [host, port] = node.split(":");
  return new Redis({ host, port: Number(port) });
});
const redlock = new Redlock(nodes, { retryCount: 0 });
redlock.on("error", () => {});

async function worker(names, end) {
  let pairs = 0;
  for (let i = 0; performance.now() < end; i++) {
    const lock = await redlock.acquire([names[i % names.length]], 30000);
    await lock.release();
    pairs++;
  }
  return pairs;
}

async function pairs({ names, ms }) {
  const end = performance.now() + ms;
  const all = await Promise.all(names.map((names) => worker(names, end)));
  return all.reduce((sum, pairs) => sum + pairs, 0);
}

// A first use, so that the code is compiled.
await pairs({ names: [[`warm-up/${process.pid}`]], ms: 1000 });
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) console.log(await pairs(JSON.parse(line)));
for (const node of nodes) node.disconnect();
